"""What a relay keeps for each session, subscription, track and object; and a plan made of it.

    python -m benchmarks.relay_cost [--sessions 100] [--tracks 50]
    python -m benchmarks.relay_cost --plan --consumers 1000 --gib 10 --cpu-in 5 --cpu-out 8

The first measures a relay process by its resident memory while idle sessions, then subscriptions,
then tracks come. The second only calculates: ``--cpu-in`` and ``--cpu-out`` are seconds of CPU for
each GiB received and delivered, as ``benchmarks.relay_fanout`` measures them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import moqt
from benchmarks.kv_transfer import MIB
from benchmarks.relay_fanout import read, spawn, tell
from transport.certificates import write_test_certificates
from transport.config import ClientTls

SPACE: Final = (b"cost",)
#: Seconds for the relay to come to rest.
REST: Final = 1.0


def resident(pid: int) -> int:
    """Octets of memory a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


class Quiet:
    """A TrackReceiver that is only asked to be there."""

    def accepted(self, info: object) -> None:
        """Fine."""

    def open_subgroup(self, head: object) -> Any:  # noqa: ANN401 - an ObjectSink
        """Takes what comes."""
        return self

    open_fetch = open_subgroup

    def begin(self, head: object) -> None:
        """Nothing is kept."""

    write = end = gap = finish = abort = failed = begin

    def datagram(self, head: object, payload: object) -> None:
        """Nothing is kept."""

    def done(self, *how: object) -> None:
        """Fine."""


async def measure(
    folder: Path, port: int, pid: int, sessions: int, tracks: int
) -> dict[str, float]:
    """Octets for each thing, in the order in which they come."""
    url, tls = f"moqt://localhost:{port}/", ClientTls(ca_file=folder / "ca.pem")
    names = [moqt.FullTrackName(SPACE, b"track %d" % number) for number in range(tracks)]
    catalog = moqt.Catalog()
    for name in names:
        writer = catalog.add(moqt.Track(name)).subgroup(0)
        writer.object(0, b"x")
    catalog.announce(SPACE)
    source = await moqt.connect(url, handler=catalog.handler, tls=tls)
    catalog.announce_on(source)
    await asyncio.sleep(REST)
    before = resident(pid)
    people = [await moqt.connect(url, tls=tls) for _ in range(sessions)]
    await asyncio.sleep(REST)
    with_sessions = resident(pid)
    for one in people:
        one.subscribe(names[0], Quiet())  # type: ignore[arg-type]
    await asyncio.sleep(REST)
    with_subscriptions = resident(pid)
    for name in names[1:]:
        people[0].subscribe(name, Quiet())  # type: ignore[arg-type]
    await asyncio.sleep(REST)
    with_tracks = resident(pid)
    for one in (*people, source):
        one.sink.abandon()
    gc.collect()
    return {
        "session": (with_sessions - before) / sessions,
        "subscription": (with_subscriptions - with_sessions) / sessions,
        "track": (with_tracks - with_subscriptions) / max(1, tracks - 1),
    }


def plan(consumers: int, gib: float, cpu_in: float, cpu_out: float) -> list[str]:
    """Two tiers for ``consumers`` of one cache of ``gib`` GiB: one root, ``edges`` below it.

    Every relay is one process on one core. Layers are passed on as they come, so the tiers work at
    the same time, and the slower one says how long it takes. The last line adds a third tier.
    """
    found = [f"{consumers} consumers of {gib:g} GiB: {consumers * gib:g} GiB to deliver"]
    found.append("relays  root s  edge s  all within s  first of 80 layers s  origin egress")
    best = max(1, math.isqrt(consumers))
    for edges in sorted({max(1, best // 4), max(1, best // 2), best, 2 * best, 4 * best}):
        each = math.ceil(consumers / edges)
        root = gib * (cpu_in + edges * cpu_out)
        edge = gib * (cpu_in + each * cpu_out)
        first = (root + edge) / 80
        found.append(
            f"{edges + 1:6d}{root:8.0f}{edge:8.0f}{max(root, edge):14.0f}{first:22.1f}"
            f"{gib:10g} GiB = 1.00x"
        )
    each = math.ceil(round(consumers ** (1 / 3), 6))
    seconds = gib * (cpu_in + each * cpu_out)
    found.append(f"three tiers, {each} below each relay: all within {seconds:.0f} s")
    return found


def main() -> None:
    """Measure, or calculate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--tracks", type=int, default=50)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--consumers", type=int, default=1000)
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--cpu-in", type=float, default=5.0)
    parser.add_argument("--cpu-out", type=float, default=8.0)
    given = parser.parse_args()
    if given.plan:
        lines = plan(given.consumers, given.gib, given.cpu_in, given.cpu_out)
        sys.stdout.write("\n".join(lines) + "\n")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_test_certificates(folder)
        child = spawn("--role", "relay", "--folder", folder)
        port = read(child)["port"]
        found = asyncio.run(measure(folder, port, child.pid, given.sessions, given.tracks))
        tell(child)
        child.wait(timeout=30)
    sys.stdout.write(f"relay memory, {given.sessions} sessions, {given.tracks} tracks:\n")
    for what, octets in found.items():
        sys.stdout.write(f"  {what:14s} {octets / 1024:8.1f} KiB  ({octets / MIB:.3f} MiB)\n")


if __name__ == "__main__":
    main()
