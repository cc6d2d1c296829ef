"""Our transport against stock aioquic: N MiB over 32 streams between two processes on loopback.

    python benchmarks/transport_ratio.py --mib 64 --rounds 3 [--digest]

Cases run interleaved, one round after the other; a figure is the median of its rounds. Stock means
aioquic's own asyncio server and client, with all data handed to it at once, as its examples do.
The sender is on core 0 and the receiver on core 1. Trust the ratios, not the MiB/s: the machine
decides those. CPU is in seconds per GiB moved, sender and receiver.
"""

# ruff: noqa: T201, S603 - a program for the command line that starts itself
from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio import connect as stock_connect
from aioquic.asyncio import serve as stock_serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived

from transport.api import Chunk, SendOrder, Tier
from transport.certificates import write_test_certificates
from transport.config import ClientTls, QuicOptions, ServerTls
from transport.endpoint import connect, serve
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aioquic.quic.events import QuicEvent

    from transport.api import BytesLike, TransportSession

BLOCK = 32768
HEADER = bytes(74)  # an object header and a KVCS payload header
STREAMS = 32

CASES = ("stock:1200", "stock:1452", "stock:16384", "ours:1200", "ours:1452", "ours:16384")


class Meter:
    """Counts what arrives; with ``digest`` every 32 KiB of a stream are hashed."""

    def __init__(self, total: int, digest: bool) -> None:
        self.left = total
        self.digest = digest
        self.parts: dict[int, bytearray] = {}
        self.done = asyncio.get_running_loop().create_future()

    def take(self, stream: int, data: BytesLike) -> None:
        self.left -= len(data)
        if self.digest:
            part = self.parts.setdefault(stream, bytearray())
            part += data
            while len(part) >= BLOCK:
                with memoryview(part) as view:
                    hashlib.sha256(view[:BLOCK]).digest()
                del part[:BLOCK]
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)


class Ours:
    """A sink for both roles: a server that answers requests, a client that meters."""

    def __init__(self, session: TransportSession, meter: Meter | None = None) -> None:
        self.session = session
        self.meter = meter
        self.cpu = 0.0
        self.answer = asyncio.get_running_loop().create_future()

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        if self.meter is None:
            self.serve(stream, bytes(data))
        elif stream == 0:
            self.answer.set_result(json.loads(bytes(data)))
        else:
            self.meter.take(stream, data)

    def serve(self, stream: int, request: bytes) -> None:
        if request == b"cpu":
            answer = json.dumps(time.process_time() - self.cpu).encode()
            self.session.write(stream, answer)
            self.session.finish(stream)
            return
        if not request:
            return
        self.cpu = time.process_time()
        blob = memoryview(os.urandom(BLOCK))
        for flow in range(STREAMS):
            urgency = 128 * flow // STREAMS  # as KVCS orders its layers
            order = SendOrder(Tier.OBJECT, 128, urgency, flow, (flow,))
            out = self.session.open(order, unidirectional=True)
            self.session.feed(out, objects(int(request) // STREAMS, blob))

    def closed(self, code: int, reason: str, remote: bool) -> None:
        if self.meter is not None and not self.meter.done.done():
            self.meter.done.set_exception(ConnectionError(reason))

    def connected(self) -> None: ...
    def stream_opened(self, stream: int, unidirectional: bool) -> None: ...
    def stream_reset(self, stream: int, code: int) -> None: ...
    def stop_sending(self, stream: int, code: int) -> None: ...
    def stream_sent(self, stream: int) -> None: ...
    def datagram(self, data: bytes) -> None: ...


def objects(octets: int, blob: memoryview) -> Iterator[Chunk]:
    """Chunks as MOQT makes them: header and payload views."""
    while octets > 0:
        yield Chunk((HEADER[:6], HEADER[6:], blob))
        octets -= len(blob) + len(HEADER)


class Stock(QuicConnectionProtocol):
    """The same, as aioquic's own asyncio examples would do it."""

    meter: Meter | None = None
    cpu = 0.0

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated) and self.meter and not self.meter.done.done():
            self.meter.done.set_exception(ConnectionError(event.reason_phrase))
        if not isinstance(event, StreamDataReceived):
            return
        if self.meter is None:
            self.serve(event.stream_id, event.data)
        elif event.stream_id & 2:
            self.meter.take(event.stream_id, event.data)
        elif event.data:
            self.answer.set_result(json.loads(event.data))

    def serve(self, stream: int, request: bytes) -> None:
        if request == b"cpu":
            answer = json.dumps(time.process_time() - self.cpu).encode()
            self._quic.send_stream_data(stream, answer, True)
            self.transmit()
            return
        if not request:
            return
        self.cpu = time.process_time()
        octets = int(request) // STREAMS
        data = os.urandom(BLOCK) * (octets // BLOCK + 1)
        for _ in range(STREAMS):
            out = self._quic.get_next_available_stream_id(is_unidirectional=True)
            self._quic.send_stream_data(out, data, True)
        self.transmit()


async def run_server(case: str, folder: Path) -> None:
    kind, size = case.split(":")
    certificate, key = folder / "server.pem", folder / "server.key"
    if kind == "ours":
        listener = await serve(
            "127.0.0.1",
            0,
            Ours,
            tls=ServerTls(certificate=certificate, private_key=key),
            options=QuicOptions(protocols=("moqt-22",), max_datagram_size=int(size)),
        )
        port = listener.port
    else:
        configuration = QuicConfiguration(
            is_client=False, alpn_protocols=["moqt-22"], max_datagram_size=int(size)
        )
        configuration.load_cert_chain(certificate, key)
        stock = await stock_serve(
            "127.0.0.1", 0, configuration=configuration, create_protocol=Stock
        )
        port = stock._transport.get_extra_info("sockname")[1]
    print(port, flush=True)
    await asyncio.Event().wait()


async def run_client(case: str, folder: Path, port: int, octets: int, digest: bool) -> None:
    kind, size = case.split(":")
    meter = Meter(octets, digest)
    if kind == "ours":
        session = await connect(
            MoqtUrl.parse(f"moqt://127.0.0.1:{port}/"),
            lambda session: Ours(session, meter),
            tls=ClientTls(ca_file=folder / "ca.pem"),
            options=QuicOptions(protocols=("moqt-22",), max_datagram_size=int(size)),
        )
        sink = session._sink
        first = session.open(SendOrder(Tier.REQUEST), unidirectional=False)
        second = session.open(SendOrder(Tier.REQUEST), unidirectional=False)

        def ask(number: int, request: bytes) -> None:
            session.write((second, first)[number], request)
            session.finish((second, first)[number])

        await report(ask, meter, octets, sink)
        session.close(0)
        return
    configuration = QuicConfiguration(
        alpn_protocols=["moqt-22"], max_datagram_size=int(size), verify_mode=ssl.CERT_NONE
    )
    async with stock_connect(
        "127.0.0.1", port, configuration=configuration, create_protocol=Stock
    ) as protocol:
        protocol.meter = meter
        protocol.answer = asyncio.get_running_loop().create_future()

        def ask(number: int, request: bytes) -> None:
            stream = protocol._quic.get_next_available_stream_id()
            protocol._quic.send_stream_data(stream, request, True)
            protocol.transmit()

        await report(ask, meter, octets, protocol)


async def report(
    ask: Callable[[int, bytes], None], meter: Meter, octets: int, peer: Ours | Stock
) -> None:
    """Ask for the octets, wait, print what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    ask(0, str(octets + STREAMS * BLOCK).encode())
    await asyncio.wait_for(meter.done, 300)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ask(1, b"cpu")
    sender = await asyncio.wait_for(peer.answer, 30)
    gib = octets / (1 << 30)
    print(json.dumps([octets / (1 << 20) / wall, sender / gib, cpu / gib]), flush=True)


def run_case(case: str, folder: Path, mib: int, digest: bool) -> list[float]:
    """One transfer in two fresh processes: MiB/s, sender's and receiver's CPU seconds per GiB."""
    common = [sys.executable, __file__, "--folder", str(folder), "--case", case]
    server = subprocess.Popen([*common, "--role", "server"], stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip()
        options = ["--role", "client", "--port", port, "--mib", str(mib)]
        if digest:
            options.append("--digest")
        done = subprocess.run(
            [*common, *options], capture_output=True, text=True, timeout=600, check=True
        )
        return json.loads(done.stdout)
    finally:
        server.kill()
        server.wait()


def drive(arguments: argparse.Namespace) -> None:
    """All cases, interleaved, and the ratios."""
    figures: dict[str, list[list[float]]] = {case: [] for case in arguments.cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_test_certificates(folder)
        for _ in range(arguments.rounds):
            for case in arguments.cases:
                slow = case in ("stock:1200", "stock:1452")
                mib = max(1, arguments.mib // 4) if slow else arguments.mib
                figures[case].append(run_case(case, folder, mib, arguments.digest))
    medians = {
        case: [statistics.median(column) for column in zip(*rows, strict=True)]
        for case, rows in figures.items()
    }
    print(
        f"{'case':<12} {'MiB/s':>7} {'CPU snd':>8} {'CPU rcv':>8}   ratio to stock:1200, same size"
    )
    base = medians.get("stock:1200", [float("nan")])[0]
    for case, (speed, sender, receiver) in medians.items():
        same = medians.get("stock:" + case.split(":")[1], [float("nan")])[0]
        ratios = f"{speed / base:5.1f} {speed / same:5.1f}"
        print(f"{case:<12} {speed:7.1f} {sender:8.2f} {receiver:8.2f}   {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--digest", action="store_true", help="SHA-256 of each 32 KiB block")
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES, metavar="CASE")
    parser.add_argument("--role", choices=("server", "client"), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role is None:
        drive(arguments)
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0] if arguments.role == "server" else cores[-1]})
    if arguments.role == "server":
        asyncio.run(run_server(arguments.case, arguments.folder))
    else:
        octets = arguments.mib << 20
        client = run_client(
            arguments.case, arguments.folder, arguments.port, octets, arguments.digest
        )
        asyncio.run(client)


if __name__ == "__main__":
    main()
