"""Thousands of sessions and streams over real sockets: memory flat, bad sessions harmless.

``make soak`` runs client and server in one process, so that its memory is that of both, and says
the slope of each figure over the later two thirds of a phase; then, for ``--minutes``, two relays
in a chain as processes of their own (tests.soak.relay). Exit code 1: something grew, or was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from kvcs.cli.output import Output
from moqt.codec.params import NO_PARAMETERS
from moqt.driver import Connection
from moqt.endpoint import Server, connect, serve
from moqt.model import FullTrackName
from moqt.publisher import Catalog, Track
from tests.soak import relay
from tests.soak.peers import Counter, hostile
from tests.soak.series import Series, resident
from transport.certificates import CertificatePaths, write_test_certificates
from transport.config import ClientTls, ServerTls
from transport.url import MoqtUrl

#: Octets by which memory may grow for each connection, and for each stream: less than what one
#: forgotten entry in any table would take.
FLAT = {"connections": 128.0, "streams": 16.0}
#: Python objects, the same; a leak of anything is at least one.
FLAT_OBJECTS = 0.02
#: What pools and caches may take while a short run warms up; objects of a session that is still
#: being closed while one sample is taken, and no longer at the next.
SLACK, SLACK_OBJECTS = 512 << 10, 300
SAMPLES = 60
SUBGROUPS = 250


class Memory(Series):
    """Resident octets and Python objects of this process over the units of one phase."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def sample_now(self, unit: int) -> None:
        """After so many of them."""
        gc.collect()
        self.sample(unit, octets=resident(), objects=len(gc.get_objects()))

    def report(self, seconds: float, output: Output) -> bool:
        """Say how it went; True when it stayed flat."""
        octets, objects, span = self.slope("octets"), self.slope("objects"), self.span()
        flat = octets < max(FLAT[self.what], SLACK / span)
        flat &= objects < max(FLAT_OBJECTS, SLACK_OBJECTS / span)
        first, last = (self.values["octets"][one] / 2**20 for one in (0, -1))
        output.say(
            self.what,
            f"{self.what}: {self.units[-1]} in {seconds:.0f} s;"
            f" resident {first:.1f} -> {last:.1f} MiB,"
            f" slope {octets:+.2f} octets and {objects:+.4f} objects each:"
            f" {'flat' if flat else 'GROWS'}",
        )
        return flat


class Stage:
    """A server with a catalog, and how to reach it."""

    def __init__(self, certificates: CertificatePaths, server: Server, catalog: Catalog) -> None:
        self.server = server
        self.catalog = catalog
        self.url = MoqtUrl.parse(f"moqt://localhost:{server.port}/soak")
        self.tls = ClientTls(ca_file=certificates.ca)

    async def connect(self) -> Connection:
        """A session of ours."""
        return await connect(self.url, tls=self.tls)

    async def round(self, connection: Connection, number: int) -> int:
        """A track of many subgroups, each a stream, from first to last; objects received."""
        name = FullTrackName((b"soak",), b"%d" % number)
        track = self.catalog.add(Track(name))
        over = asyncio.Event()
        counter = Counter(over)
        connection.subscribe(name, counter, NO_PARAMETERS)
        await counter.ready.wait()
        for group in range(SUBGROUPS):
            writer = track.subgroup(group)
            writer.object(0, b"payload of one object")
            writer.finish()
        track.end()
        await over.wait()
        self.catalog.remove(track)
        if counter.ending != "complete" or counter.objects != SUBGROUPS:
            raise SystemExit(f"round {number}: {counter.objects} objects, {counter.ending}")
        return counter.objects


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A server on a free port of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        certificates = write_test_certificates(Path(folder))
        catalog = Catalog()
        tls = ServerTls(certificate=certificates.certificate, private_key=certificates.private_key)
        async with await serve("127.0.0.1", 0, tls=tls, handler=catalog.handler) as server:
            yield Stage(certificates, server, catalog)


async def connections(stage: Stage, count: int) -> Memory:
    """Connect, ask something, close."""
    series = Memory("connections")
    name = FullTrackName((b"soak",), b"kept")
    track = stage.catalog.add(Track(name))
    writer = track.subgroup(0)
    writer.object(0, b"kept")
    every = max(1, count // SAMPLES)
    for number in range(count):
        connection = await stage.connect()
        over = asyncio.Event()
        connection.fetch(name, Counter(over), NO_PARAMETERS)
        await over.wait()
        await connection.close()
        if number % every == 0:
            series.sample_now(number)
    series.sample_now(count)
    stage.catalog.remove(track)
    return series


async def streams(stage: Stage, count: int) -> Memory:
    """Subgroup streams on one session, a request stream for every SUBGROUPS of them."""
    series = Memory("streams")
    done = 0
    every = max(1, count // SUBGROUPS // SAMPLES)
    async with await stage.connect() as connection:
        for number in range(-(-count // SUBGROUPS)):
            done += await stage.round(connection, number)
            if number % every == 0:
                series.sample_now(done)
        series.sample_now(done)
    return series


async def disturbed(stage: Stage, count: int, output: Output) -> bool:
    """A good session among bad ones: all its objects come."""
    random = Random(1)
    ended: Tally[int] = Tally()

    async def bad_session() -> None:
        ended[await hostile(stage.url, stage.tls, random)] += 1

    async with await stage.connect() as good:
        alone = time.monotonic()
        for number in range(20):
            await stage.round(good, 10**6 + number)
        alone = (time.monotonic() - alone) / 20
        began, rounds, slowest = time.monotonic(), 0, 0.0
        bad: set[asyncio.Task[None]] = set()
        for _ in range(count):
            while len(bad) >= 4:
                _, bad = await asyncio.wait(bad, return_when=asyncio.FIRST_COMPLETED)
            bad.add(asyncio.create_task(bad_session()))
            at = time.monotonic()
            await stage.round(good, 2 * 10**6 + rounds)
            rounds += 1
            slowest = max(slowest, time.monotonic() - at)
        await asyncio.gather(*bad)
        whole = good.is_open
    seconds = time.monotonic() - began
    codes = ", ".join(f"{code:#x}: {times}" for code, times in sorted(ended.items()))
    output.say(
        "bad",
        f"bad sessions: {count} in {seconds:.0f} s, ended {codes} (-0x2: nothing against them);"
        f" beside them {rounds * SUBGROUPS} streams of a good session, all whole;"
        f" {alone * 1000:.0f} ms a round alone, {seconds / rounds * 1000:.0f} ms beside,"
        f" slowest {slowest * 1000:.0f} ms; good session {'open' if whole else 'CLOSED'}",
    )
    return whole


async def soak(options: argparse.Namespace, output: Output) -> dict[str, Any]:
    """All phases; ``good`` when all is well."""
    good = True
    async with staged() as stage:
        phases: tuple[tuple[Callable[..., Any], int], ...] = (
            (connections, options.connections),
            (streams, options.streams),
        )
        found: dict[str, Any] = {}
        for phase, count in phases:
            began = time.monotonic()
            series = await phase(stage, count)
            good &= series.report(time.monotonic() - began, output)
            found[series.what] = {"units": series.units} | series.values
        good &= await disturbed(stage, options.bad, output)
        left = len(stage.server.connections)
        await asyncio.sleep(1)
        now = len(stage.server.connections)
        output.say("left", f"sessions left at the server: {now} (was {left})")
    if options.minutes > 0:
        found["relay"] = await relay.soak(options.minutes, options.seed, output)
        good &= not found["relay"]["faults"]
    return {"good": good and not now} | found


def main() -> int:
    """Says figures; 1 when memory grew, a session was disturbed, or a relay lost something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--bad", type=int, default=300)
    relay.add_options(parser, minutes=5.0)
    options = parser.parse_args()
    return relay.told(options, lambda output: soak(options, output))


if __name__ == "__main__":
    raise SystemExit(main())
