"""A KV cache between two processes over loopback, in turn with stock aioquic moving the same bytes.

    python -m benchmarks.kv_transfer [--rounds 5] [--mib 128] [--json FILE]
    python -m benchmarks.kv_transfer --cases live,live+uvloop,completed,completed+uvloop

Ours: ``kvcs.Publisher`` and ``kvcs.Consumer``, 32 layers, tracks k and v, objects of 32 KiB, live
(subscribed first) and completed (FETCH); the SHA-256 of every object is checked. Stock: aioquic's
own asyncio client and server with its defaults, one unidirectional stream per layer and track,
SHA-256 of every 32 KiB. Each case is a server process and a client process, ended before the next
begins; the cases of a round run in turn. Medians; CPU is the process's own (getrusage).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio import connect as stock_connect
from aioquic.asyncio import serve as stock_serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

import kvcs
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LAYERS: Final = 32
OBJECT: Final = 32 << 10
BLOCK_TOKENS: Final = 16
KV_HEADS: Final = 8
HEAD_DIM: Final = 128
MIB: Final = 1 << 20
ALPN: Final = "stock"


def usage() -> tuple[float, int]:
    """CPU seconds and peak octets of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def say(**what: object) -> None:
    """One JSON line to the parent."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def descriptor() -> kvcs.CompatibilityDescriptor:
    """A model whose block is 32 KiB per tensor."""
    return kvcs.CompatibilityDescriptor(
        model="benchmark",
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype="bfloat16",
        block_tokens=BLOCK_TOKENS,
    )


def blocks(mib: int) -> int:
    """Blocks of the prefix that make ``mib`` MiB in all layers of both tracks."""
    return mib * MIB // (LAYERS * 2 * OBJECT)


# -- ours -----------------------------------------------------------------------------------------


async def publisher(folder: Path, mib: int, mode: str) -> None:
    """Publish at once (completed) or when the consumer has subscribed (live)."""
    tensor = memoryview(os.urandom(blocks(mib) * OBJECT))
    tokens = range(blocks(mib) * BLOCK_TOKENS)
    tls = ServerTls(certificate=folder / "server.pem", private_key=folder / "server.key")
    async with kvcs.Publisher(scope_key=kvcs.ScopeKey(bytes(32))) as source:
        port = await source.listen("127.0.0.1", 0, tls=tls)
        publication = source.open(descriptor(), tokens=tokens)

        async def produce() -> None:
            for layer in range(LAYERS):
                await publication.put_layer(layer, tensor, tensor)
            await publication.finish()

        if mode == "completed":
            await produce()
        say(port=port, name=publication.name.fragment)
        line = await asyncio.to_thread(sys.stdin.readline)
        cpu, _ = usage()
        if mode == "live":
            await produce()
        await asyncio.to_thread(sys.stdin.readline)
        say(cpu=usage()[0] - cpu, peak=usage()[1], line=line.strip())


async def consumer(folder: Path, mib: int, mode: str, port: int, fragment: str) -> None:
    """Retrieve and verify everything."""
    tls = ClientTls(ca_file=folder / "ca.pem")
    async with kvcs.Consumer() as store:
        await store.connect(f"moqt://localhost:{port}/", tls=tls)
        name = kvcs.PublicationName.from_fragment(fragment)
        cpu, _ = usage()
        start = time.perf_counter()
        retrieval = await store.retrieve(name, mode=mode)
        if mode == "live":
            say(subscribed=True)
            start = time.perf_counter()
        report = await retrieval.wait()
        seconds = time.perf_counter() - start
        say(seconds=seconds, cpu=usage()[0] - cpu, peak=usage()[1], objects=report.objects)
        if report.octets != mib * MIB or report.duplicates or report.missing:
            raise SystemExit(f"wrong: {report}")


# -- stock aioquic --------------------------------------------------------------------------------


class StockServer(QuicConnectionProtocol):
    """Sends everything when asked."""

    mib = 0
    cpu = 0.0

    def quic_event_received(self, event: QuicEvent) -> None:
        """The one request."""
        if not isinstance(event, StreamDataReceived) or not event.data:
            return
        StockServer.cpu = usage()[0]
        tensor = os.urandom(blocks(self.mib) * OBJECT)
        for _ in range(2 * LAYERS):
            stream = self._quic.get_next_available_stream_id(is_unidirectional=True)
            self._quic.send_stream_data(stream, tensor, end_stream=True)
        self.transmit()


class StockClient(QuicConnectionProtocol):
    """Hashes each 32 KiB of each stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - aioquic's own
        super().__init__(*args, **kwargs)
        self.octets = 0
        self.want = 0
        self.held: dict[int, bytearray] = {}
        self.done = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Data of one of the streams."""
        if not isinstance(event, StreamDataReceived):
            return
        held = self.held.setdefault(event.stream_id, bytearray())
        held += event.data
        self.octets += len(event.data)
        while len(held) >= OBJECT:
            with memoryview(held) as view:
                hashlib.sha256(view[:OBJECT]).digest()
            del held[:OBJECT]
        if self.octets >= self.want and not self.done.done():
            self.done.set_result(None)


async def stock_server(folder: Path, mib: int, size: int) -> None:
    """aioquic's own server."""
    settings = QuicConfiguration(is_client=False, alpn_protocols=[ALPN], max_datagram_size=size)
    settings.load_cert_chain(folder / "server.pem", folder / "server.key")
    StockServer.mib = mib
    server = await stock_serve("127.0.0.1", 0, configuration=settings, create_protocol=StockServer)
    address = server._transport.get_extra_info("sockname")
    say(port=address[1], name="")
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.to_thread(sys.stdin.readline)
    say(cpu=usage()[0] - StockServer.cpu, peak=usage()[1])


async def stock_client(folder: Path, mib: int, size: int, port: int) -> None:
    """aioquic's own client."""
    settings = QuicConfiguration(is_client=True, alpn_protocols=[ALPN], max_datagram_size=size)
    settings.load_verify_locations(str(folder / "ca.pem"))
    settings.server_name = "localhost"
    async with stock_connect(
        "127.0.0.1", port, configuration=settings, create_protocol=StockClient
    ) as link:
        client: Any = link
        client.want = mib * MIB
        cpu, _ = usage()
        start = time.perf_counter()
        _, writer = await client.create_stream()
        writer.write(b"go")
        await client.done
        seconds = time.perf_counter() - start
        say(seconds=seconds, cpu=usage()[0] - cpu, peak=usage()[1], objects=mib * MIB // OBJECT)


# -- the driver -----------------------------------------------------------------------------------


def spawn(*words: str) -> subprocess.Popen[str]:
    """This file in another role."""
    command = [sys.executable, "-m", "benchmarks.kv_transfer", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


def read(child: subprocess.Popen[str]) -> dict[str, Any]:
    """The child's next line."""
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise SystemExit(f"a process of the benchmark ended early: {child.args}")
    found: dict[str, Any] = json.loads(line)
    return found


def tell(child: subprocess.Popen[str]) -> None:
    """Let the child go on."""
    if child.stdin:
        child.stdin.write("go\n")
        child.stdin.flush()


def run(case: str, folder: Path, mib: int) -> dict[str, float]:
    """One transfer; what both processes measured of themselves."""
    server = spawn("--role", "server", "--case", case, "--mib", str(mib), "--folder", str(folder))
    ready = read(server)
    where = ["--port", str(ready["port"]), "--name", ready["name"]]
    client = spawn(
        "--role", "client", "--case", case, "--mib", str(mib), "--folder", str(folder), *where
    )
    if case.startswith("live"):
        read(client)
    tell(server)
    got = read(client)
    tell(server)
    sent = read(server)
    for child in (client, server):
        child.wait(timeout=30)
    gib = mib / 1024
    return {
        "mib_s": mib / got["seconds"],
        "sender_cpu_s_gib": sent["cpu"] / gib,
        "receiver_cpu_s_gib": got["cpu"] / gib,
        "sender_peak_mib": sent["peak"] / MIB,
        "receiver_peak_mib": got["peak"] / MIB,
        "objects": got["objects"],
    }


CASES: Final = ("live", "completed", "stock-1200", "stock-16384")


def role(options: argparse.Namespace) -> None:
    """Be one of the processes."""
    folder, mib = options.folder, options.mib
    case, _, loop = options.case.partition("+")
    work: Callable[[], Coroutine[Any, Any, None]]
    if case.startswith("stock"):
        size = int(case.split("-")[1])
        if options.role == "server":
            work = lambda: stock_server(folder, mib, size)  # noqa: E731
        else:
            work = lambda: stock_client(folder, mib, size, options.port)  # noqa: E731
    elif options.role == "server":
        work = lambda: publisher(folder, mib, case)  # noqa: E731
    else:
        work = lambda: consumer(folder, mib, case, options.port, options.name)  # noqa: E731
    if loop == "uvloop":
        import uvloop

        uvloop.run(work())
    else:
        asyncio.run(work())


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", type=Path)
    for name in ("--role", "--case", "--name"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role(options)
        return
    cases = options.cases.split(",")
    found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_test_certificates(folder)
        for number in range(options.rounds):
            for case in cases:
                small = options.mib if not case.startswith("stock") else min(options.mib, 32)
                found[case].append(run(case, folder, small))
            sys.stderr.write(f"round {number + 1} of {options.rounds} done\n")
    report(found, options)


def report(found: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """Medians, and ratios to each stock case of the same run."""
    middle = {
        case: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for case, rounds in found.items()
    }
    keys = list(next(iter(middle.values())))
    sys.stdout.write("case".ljust(18) + "".join(key.rjust(20) for key in keys) + "\n")
    for case, row in middle.items():
        sys.stdout.write(case.ljust(18) + "".join(f"{row[key]:20.1f}" for key in keys) + "\n")
    for case, row in middle.items():
        for stock in (name for name in middle if name.startswith("stock") and name != case):
            ratio = row["mib_s"] / middle[stock]["mib_s"]
            sys.stdout.write(f"{case} / {stock}: {ratio:.2f}x\n")
    if options.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        result = {"machine": machine, "mib": options.mib, "rounds": found, "medians": middle}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
