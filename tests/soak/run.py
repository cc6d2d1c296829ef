"""Thousands of sessions and streams over real sockets: memory flat, bad sessions harmless.

``make soak`` runs client and server in one process, so that its memory is that of both, and says
the slope of each figure over the later two thirds of a phase. Exit code 1: something grew.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from moqt.codec.params import NO_PARAMETERS
from moqt.driver import Connection
from moqt.endpoint import Server, connect, quic_options, serve
from moqt.model import FullTrackName
from moqt.publisher import Catalog, Track
from moqt.session.ports import TrackInfo
from transport.api import SendOrder, Tier, TransportSession
from transport.certificates import CertificatePaths, write_test_certificates
from transport.config import ClientTls, ServerTls
from transport.endpoint import connect as transport_connect
from transport.errors import TransportError
from transport.url import MoqtUrl

#: Octets by which memory may grow for each connection, and for each stream: less than what one
#: forgotten entry in any table would take.
FLAT = {"connections": 128.0, "streams": 16.0}
#: Python objects, the same; a leak of anything is at least one.
FLAT_OBJECTS = 0.02
#: What pools and caches may take while a short run warms up.
SLACK, SLACK_OBJECTS = 512 << 10, 100
SAMPLES = 60
SUBGROUPS = 250


@dataclass
class Series:
    """Memory over the units of one phase."""

    what: str
    units: list[int] = field(default_factory=list)
    octets: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)

    def sample(self, unit: int) -> None:
        """Resident octets and Python objects, now."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.units.append(unit)
        self.octets.append(pages * resource.getpagesize())
        self.objects.append(len(gc.get_objects()))

    def slope(self, values: list[int]) -> float:
        """Growth per unit, least squares over the later two thirds."""
        first = len(values) // 3
        xs, ys = self.units[first:], values[first:]
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        spread = sum((x - mean_x) ** 2 for x in xs)
        return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread

    def report(self, seconds: float) -> bool:
        """Say how it went; True when it stayed flat."""
        octets, objects = self.slope(self.octets), self.slope(self.objects)
        span = self.units[-1] - self.units[len(self.units) // 3]
        flat = octets < max(FLAT[self.what], SLACK / span)
        flat &= objects < max(FLAT_OBJECTS, SLACK_OBJECTS / span)
        tell(
            f"{self.what}: {self.units[-1]} in {seconds:.0f} s;"
            f" resident {self.octets[0] / 2**20:.1f} -> {self.octets[-1] / 2**20:.1f} MiB,"
            f" slope {octets:+.2f} octets and {objects:+.4f} objects each:"
            f" {'flat' if flat else 'GROWS'}"
        )
        return flat


def tell(line: str) -> None:
    """A line on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Counter:
    """A TrackReceiver that counts whole objects and forgets them."""

    def __init__(self, over: asyncio.Event) -> None:
        self.objects = 0
        self.resets = 0
        self.ending: Any = None
        self.ready = asyncio.Event()
        self._over = over

    def accepted(self, info: TrackInfo) -> None:
        """Objects may be published now."""
        self.ready.set()

    def open_subgroup(self, head: Any) -> Counter:
        """All streams end here."""
        return self

    def open_fetch(self, request_id: int) -> Counter:
        """The same."""
        return self

    def datagram(self, head: Any, payload: Any) -> None:
        """None are sent."""

    def begin(self, head: Any) -> None:
        """An object."""

    def write(self, view: Any) -> None:
        """Its octets."""

    def end(self) -> None:
        """It is whole."""
        self.objects += 1

    def gap(self, gap: Any) -> None:
        """None are sent."""

    def finish(self) -> None:
        """A stream is through."""

    def abort(self, code: int) -> None:
        """A stream was reset."""
        self.resets += 1

    def done(self, code: int, reason: str, complete: bool) -> None:
        """PUBLISH_DONE and all streams are in."""
        self.ending = "complete" if complete else "incomplete"
        self._over.set()

    def failed(self, error: Exception) -> None:
        """It ended otherwise."""
        self.ending = error
        self.ready.set()
        self._over.set()


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


async def connections(stage: Stage, count: int) -> Series:
    """Connect, ask something, close."""
    series = Series("connections")
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
            series.sample(number)
    series.sample(count)
    stage.catalog.remove(track)
    return series


async def streams(stage: Stage, count: int) -> Series:
    """Subgroup streams on one session, a request stream for every SUBGROUPS of them."""
    series = Series("streams")
    done = 0
    every = max(1, count // SUBGROUPS // SAMPLES)
    async with await stage.connect() as connection:
        for number in range(-(-count // SUBGROUPS)):
            done += await stage.round(connection, number)
            if number % every == 0:
                series.sample(done)
        series.sample(done)
    return series


class Hostile:
    """A peer that says what it must not; the fuzzer's inputs are its lines."""

    def __init__(self, transport: TransportSession, random: Random) -> None:
        self._transport = transport
        self._random = random
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(self) -> None:
        """Say it all."""
        open_ = self._transport.open
        random, order = self._random, SendOrder(Tier.REQUEST)
        if random.random() < 0.7:  # a SETUP that is right: path and authority
            control = open_(SendOrder(Tier.CONTROL), unidirectional=True)
            self._transport.write(control, bytes.fromhex("af00000a010178040978"))
        for _ in range(random.randrange(1, 40)):
            stream = open_(order, unidirectional=random.random() < 0.6)
            heads = (b"\x54\x01\x01\x00", b"\x05\x01", b"\x03\x00\x08\x00\x01\x01a", b"", b"\xff")
            self._transport.write(stream, random.choice(heads) + random.randbytes(300))
            if random.random() < 0.4:
                self._transport.finish(stream)
            elif random.random() < 0.3:
                self._transport.reset(stream, random.randrange(1 << 20))
        self._transport.send_datagram(random.randbytes(40))

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        """Not read."""

    def stream_data(self, stream: int, data: Any, fin: bool) -> None:
        """Not read."""

    def stream_reset(self, stream: int, code: int) -> None:
        """Not heard."""

    def stop_sending(self, stream: int, code: int) -> None:
        """Not heard."""

    def stream_sent(self, stream: int) -> None:
        """Not heard."""

    def datagram(self, data: bytes) -> None:
        """Not read."""

    def closed(self, code: int, reason: str, remote: bool) -> None:
        """How the server put up with it."""
        if not self.over.done():
            self.over.set_result(code if remote else -1)


async def hostile(stage: Stage, random: Random, ended: dict[int, int]) -> None:
    """One bad session; it leaves by itself when the server has nothing against it."""
    made: list[tuple[Hostile, TransportSession]] = []

    def sink(transport: TransportSession) -> Hostile:
        made.append((Hostile(transport, random), transport))
        return made[-1][0]

    try:
        await transport_connect(stage.url, sink, tls=stage.tls, options=quic_options(None))
        peer, transport = made[0]
        try:
            code = await asyncio.wait_for(asyncio.shield(peer.over), 0.5)
        except TimeoutError:
            code = -2
            transport.close(0)
            await peer.over
    except TransportError:
        code = -3
    ended[code] = ended.get(code, 0) + 1


async def disturbed(stage: Stage, count: int) -> bool:
    """A good session among bad ones: all its objects come."""
    random = Random(1)
    ended: dict[int, int] = {}
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
            bad.add(asyncio.create_task(hostile(stage, random, ended)))
            at = time.monotonic()
            await stage.round(good, 2 * 10**6 + rounds)
            rounds += 1
            slowest = max(slowest, time.monotonic() - at)
        await asyncio.gather(*bad)
        whole = good.is_open
    seconds = time.monotonic() - began
    codes = ", ".join(f"{code:#x}: {times}" for code, times in sorted(ended.items()))
    tell(
        f"bad sessions: {count} in {seconds:.0f} s, ended {codes} (-0x2: nothing against them);"
        f" beside them {rounds * SUBGROUPS} streams of a good session, all whole;"
        f" {alone * 1000:.0f} ms a round alone, {seconds / rounds * 1000:.0f} ms beside,"
        f" slowest {slowest * 1000:.0f} ms; good session {'open' if whole else 'CLOSED'}"
    )
    return whole


async def soak(options: argparse.Namespace) -> bool:
    """All phases; True when all is well."""
    good = True
    async with staged() as stage:
        phases: tuple[tuple[Callable[..., Any], int], ...] = (
            (connections, options.connections),
            (streams, options.streams),
        )
        for phase, count in phases:
            began = time.monotonic()
            series = await phase(stage, count)
            good &= series.report(time.monotonic() - began)
        good &= await disturbed(stage, options.bad)
        left = len(stage.server.connections)
        await asyncio.sleep(1)
        tell(f"sessions left at the server: {len(stage.server.connections)} (was {left})")
        return good and not stage.server.connections


def main() -> int:
    """Says figures; 1 when memory grew or a session was disturbed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--bad", type=int, default=300)
    return not asyncio.run(soak(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
