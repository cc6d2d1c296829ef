"""Publish, join and leave at two relays in a chain, on and on: nothing lost, memory flat.

    python -m tests.soak.relay --minutes 30 [--seed N] [--json FILE]

Real kvcs-relay processes, closed with tokens, with caches so small that groups are evicted, spilled
and fetched again all the time. Publishers come, publish and leave well, fail, lose their session or
are killed; consumers come early, late and afterwards, take all or a part, leave in the middle or
stand still; strangers flicker, push and are denied. Every object is verified. Memory is judged by
its slope over the last quarter (least squares: a cache that fills up is no leak), and when all have
left the relays must be as empty as they began. Exit code 1: something was lost, grew, or was left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from kvcs.cli.output import Output, choose_output
from tests.soak.relays import Keys, Relay, judge
from tests.soak.series import Series, resident
from tests.soak.strangers import Strangers
from tests.soak.visits import Visits

#: Publications at a time.
VISITORS = 4
#: Seconds between two strangers, two publishers that are killed, two consumers that stand still.
STRANGERS_EVERY, KILLS_EVERY, STANDERS_EVERY = 0.3, 15.0, 25.0
#: Samples of a run, and seconds between two at least; lines that are told, and the same for them.
SAMPLES, LEAST = 900, 1.0
LINES, LINE = 30, 5.0
#: Seconds that a visit may take; a machine under load is no fault.
LIMIT = 180.0
#: Seconds until a relay has noticed everybody who left without a word, and forgotten the last.
REST = 75.0
#: Faults after which it is of no use to go on.
ENOUGH_FAULTS = 20


class Soak:
    """One run; ``faults`` are what went wrong."""

    def __init__(self, seconds: float, seed: int, output: Output) -> None:
        self.faults: list[str] = []
        self.output = output
        self._seconds = seconds
        self._seed = seed
        self._lines = max(1, min(LINES, int(seconds / LINE)))
        self._random = Random(seed)
        #: This process: its publishers and consumers.
        self._clients = Series()
        self._began = time.monotonic()
        self._relays: list[Relay] = []
        # That a publisher has come back is what is wanted here.
        logging.getLogger("kvcs.uplink").setLevel(logging.ERROR)
        self._visits: Visits
        self._strangers: Strangers

    async def run(self) -> dict[str, Any]:
        """The result."""
        with tempfile.TemporaryDirectory() as folder:
            async with AsyncExitStack() as stack:
                keys = Keys(Path(folder), self._random)
                origin = await Relay("origin", keys).start(stack)
                edge = await Relay("edge", keys, upstream=origin).start(stack)
                self._relays = [origin, edge]
                self._visits = Visits(keys, self._relays, self._random)
                self._strangers = Strangers(keys, self._random, self._visits.known)
                await self._load()
                await self._rest()
                result = self._result()
                for relay in reversed(self._relays):
                    await relay.end()
        for relay in self._relays:
            self.faults += relay.faults
        return result | {"faults": self.faults}

    # -- load ------------------------------------------------------------------------------------

    async def _load(self) -> None:
        self._began = time.monotonic()
        self.output.expect(self._lines, "relay soak")
        visits = self._visits
        async with asyncio.TaskGroup() as group:
            for _ in range(VISITORS):
                group.create_task(self._again(0.0, lambda: self._random.choice(visits.kinds)()))
            group.create_task(self._again(KILLS_EVERY, visits.killed))
            group.create_task(self._again(STANDERS_EVERY, visits.stood_still))
            group.create_task(
                self._again(
                    STRANGERS_EVERY,
                    lambda: self._strangers.visit(self._random.choice(self._relays)),
                )
            )
            group.create_task(self._watch())

    @property
    def _left(self) -> float:
        """Seconds of load."""
        if len(self.faults) >= ENOUGH_FAULTS:
            return 0.0
        return self._began + self._seconds - time.monotonic()

    async def _again(self, every: float, visit: Callable[[], Awaitable[None]]) -> None:
        """One after the other, begun ``every`` so many seconds at most."""
        while self._left > 0:
            began = time.monotonic()
            try:
                async with asyncio.timeout(LIMIT):
                    await visit()
            except Exception as error:  # whatever it is, it is a fault that is told
                self._failed(error)
            rest = began + every - time.monotonic()
            await asyncio.sleep(max(0.0, min(rest, self._left)))

    def _failed(self, error: Exception) -> None:
        inner = error
        while isinstance(inner, ExceptionGroup):
            inner = inner.exceptions[0]
        place = traceback.extract_tb(inner.__traceback__)[-1]
        told = f"{type(inner).__name__}: {inner} ({Path(place.filename).name}:{place.lineno})"
        self.faults.append(f"{time.monotonic() - self._began:.0f} s: {told}")
        self.output.say("fault", f"FAULT {self.faults[-1]}")

    async def _watch(self) -> None:
        """Samples, and a line now and then."""
        every = max(LEAST, self._seconds / SAMPLES)
        told = 0
        while self._left > 0:
            await self._sample()
            due = (time.monotonic() - self._began) / self._seconds * self._lines
            while told < min(self._lines, int(due)):
                told += 1
                self.output.step("sample", self._line())
            await asyncio.sleep(min(every, max(0.0, self._left)))
        while told < self._lines:
            told += 1
            self.output.step("sample", self._line())

    async def _sample(self) -> None:
        await asyncio.gather(*(relay.sample() for relay in self._relays))
        sessions = sum(relay.numbers["sessions"] for relay in self._relays)
        self._clients.sample(sessions, resident=resident())

    def _line(self) -> str:
        told = [f"{time.monotonic() - self._began:5.0f} s"]
        for relay in self._relays:
            now = {name: values[-1] for name, values in relay.series.values.items()}
            told.append(
                f"{relay.name} {now['resident'] / 2**20:.1f} MiB, {relay.numbers['sessions']}"
                f" sessions ({now['sessions_open']:.0f} open), {now['tracks']:.0f} tracks,"
                f" {now['descriptors']:.0f} files"
            )
        told.append(f"{self._visits.octets / 2**20:.0f} MiB verified, {len(self.faults)} faults")
        return "; ".join(told)

    # -- the end ---------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Everybody has left: so must what the relays knew of them."""
        began = time.monotonic()
        while left := [one for relay in self._relays for one in await relay.at_rest()]:
            if time.monotonic() - began > REST:
                self.faults += left
                break
            await asyncio.sleep(1)
        told = ", ".join(left) or f"the relays are empty after {time.monotonic() - began:.0f} s"
        self.output.say("rest", f"everybody has left: {told}")

    def _result(self) -> dict[str, Any]:
        judged = {relay.name: relay.judge() for relay in self._relays}
        # What they publish and receive comes and goes, in tens of MiB.
        judged["clients"] = judge("clients", self._clients) | {"verdict": "not judged"}
        return {
            "machine": {"python": platform.python_version(), "cores": os.cpu_count()},
            "seconds": self._seconds,
            "seed": self._seed,
            "verified_octets": self._visits.octets,
            "visits": dict(sorted(self._visits.tally.items())),
            "strangers": dict(sorted(self._strangers.visits.items())),
            "processes": judged,
        }


def report(result: dict[str, Any], output: Output) -> None:
    """What people want to know of it."""
    for what in ("visits", "strangers"):
        counted = ", ".join(f"{name}: {count}" for name, count in result[what].items())
        output.say(what, f"{what}: {counted}")
    for name, found in result["processes"].items():
        first, last, most = (octets / 2**20 for octets in found["resident"])
        slopes = ", ".join(f"{slope:+.0f}" for slope in found["octets_a_session_by_quarter"])
        output.say(
            "process",
            f"{name}: {found['sessions']} sessions; resident {first:.1f} -> {last:.1f} MiB (at most"
            f" {most:.1f}); octets a session by quarter {slopes}; over the later two thirds"
            f" {found['octets_a_session']:+.0f}, less than {found['allowed']:.0f} are let:"
            f" {found['verdict']}",
        )
    for fault in result["faults"]:
        output.say("fault", f"FAULT {fault}")
    verified = result["verified_octets"] / 2**20
    output.say(
        "result",
        f"relay: {verified:.0f} MiB verified in {result['seconds']:.0f} s;"
        f" {len(result['faults'])} faults",
    )


async def soak(minutes: float, seed: int, output: Output) -> dict[str, Any]:
    """A run with its report; all is well when its ``faults`` are none."""
    result = await Soak(minutes * 60, seed, output).run()
    report(result, output)
    return result | {"good": not result["faults"]}


def add_options(parser: argparse.ArgumentParser, minutes: float) -> None:
    """What this soak, alone or behind the others, can be told."""
    parser.add_argument("--minutes", type=float, default=minutes, help="of relays; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="of what visitors do")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the result, all samples too")


def told(
    options: argparse.Namespace, run: Callable[[Output], Coroutine[None, None, dict[str, Any]]]
) -> int:
    """Run it, write the result where it is wanted; the exit code."""
    output = choose_output(as_json=False)
    try:
        result = asyncio.run(run(output))
    finally:
        output.close()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return not result["good"]


def main() -> int:
    """Says figures; 1 when something was lost, grew, or was left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_options(parser, minutes=30.0)
    options = parser.parse_args()
    return told(options, lambda output: soak(options.minutes, options.seed, output))


if __name__ == "__main__":
    raise SystemExit(main())
