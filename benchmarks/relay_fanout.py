"""One KV cache through a relay to 1, 4 and 16 consumers, in turn with another relay.

    python -m benchmarks.relay_fanout [--rounds 5] [--mib 128] [--consumers 1,4,16] [--json FILE]
    python -m benchmarks.relay_fanout --other "PROGRAM --port {port} --cert {cert} --key {key}"

Three processes over loopback: ``kvcs.Publisher`` dials the relay, the relay, and one process with
all consumers, which check the SHA-256 of every object. Cases: live (all subscribed before the first
object) and completed (all fetch afterwards). CPU and peak memory of the relay are read from /proc,
so that both relays are measured alike; origin egress is what the publisher sent, divided by what it
published. Medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import kvcs
from benchmarks.kv_transfer import BLOCK_TOKENS, LAYERS, MIB, OBJECT, blocks, descriptor, say
from moqt.relay.service import RelayService, ServiceConfig
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

TICKS: Final = os.sysconf("SC_CLK_TCK")
CASES: Final = ("live", "completed")


# -- roles ----------------------------------------------------------------------------------------


async def relay(folder: Path) -> None:
    """Ours, until the parent says so."""
    tls = ServerTls(certificate=folder / "server.pem", private_key=folder / "server.key")
    async with RelayService(ServiceConfig(host="127.0.0.1", port=0, tls=tls)) as service:
        say(port=service.port)
        await asyncio.to_thread(sys.stdin.readline)
        say(**{key: int(value) for key, value in service.relay.context.counts.items()})


async def publisher(folder: Path, mib: int, case: str, port: int) -> None:
    """Publish at once (completed) or when all consumers have subscribed (live)."""
    tensor = memoryview(os.urandom(blocks(mib) * OBJECT))
    tokens = range(blocks(mib) * BLOCK_TOKENS)
    async with kvcs.Publisher(scope_key=kvcs.ScopeKey(bytes(32))) as source:
        await source.dial(f"moqt://localhost:{port}/", tls=ClientTls(ca_file=folder / "ca.pem"))
        publication = source.open(descriptor(), tokens=tokens)

        async def produce() -> None:
            for layer in range(LAYERS):
                await publication.put_layer(layer, tensor, tensor)
            await publication.finish()

        if case == "completed":
            await produce()
        say(name=publication.name.fragment)
        await asyncio.to_thread(sys.stdin.readline)
        if case == "live":
            await produce()
        await asyncio.to_thread(sys.stdin.readline)
        say(egress=source.monitor.counters.sent.octets / (mib * MIB))


async def consumers(folder: Path, mib: int, case: str, port: int, name: str, count: int) -> None:
    """Retrieve and verify everything, ``count`` times at once."""
    tls = ClientTls(ca_file=folder / "ca.pem")
    publication = kvcs.PublicationName.from_fragment(name)
    stores = [kvcs.Consumer() for _ in range(count)]
    for store in stores:
        await store.connect(f"moqt://localhost:{port}/", tls=tls)
    start = time.perf_counter()
    running = [await one.retrieve(publication, mode=case, timeout=120) for one in stores]  # type: ignore[arg-type]
    if case == "live":
        say(subscribed=True)
        start = time.perf_counter()
    reports = await asyncio.gather(*(one.wait() for one in running))
    seconds = time.perf_counter() - start
    twice = sum(report.duplicates for report in reports)
    say(seconds=seconds, duplicates=twice, missing=sum(report.missing for report in reports))
    for store in stores:
        await store.close()


# -- the driver -----------------------------------------------------------------------------------


def spawn(*words: object) -> subprocess.Popen[str]:
    """This file in another role."""
    command = [sys.executable, "-m", "benchmarks.relay_fanout", *map(str, words)]
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
    with suppress(BrokenPipeError):
        if child.stdin:
            child.stdin.write("go\n")
            child.stdin.flush()


def cpu(pid: int) -> float:
    """CPU seconds of a process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak(pid: int) -> float:
    """The most memory it has had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def start_relay(which: str, folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Ours, or the command line of another one; and its port."""
    if which == "ours":
        child = spawn("--role", "relay", "--folder", folder)
        return child, read(child)["port"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = which.format(port=port, cert=folder / "server.pem", key=folder / "server.key")
    child = subprocess.Popen(  # noqa: S603
        shlex.split(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    time.sleep(2.0)  # it says nothing that could be waited for
    return child, port


def run(which: str, case: str, count: int, folder: Path, mib: int) -> dict[str, float]:
    """One fan-out."""
    middle, port = start_relay(which, folder)
    try:
        shared = ("--case", case, "--mib", mib, "--folder", folder, "--port", port)
        source = spawn("--role", "publisher", *shared)
        name = read(source)["name"]
        before = cpu(middle.pid)
        sink = spawn("--role", "consumers", *shared, "--name", name, "--count", count)
        if case == "live":
            read(sink)
        tell(source)
        got = read(sink)
        used, most = cpu(middle.pid) - before, peak(middle.pid)
        tell(source)
        sent = read(source)
        for child in (sink, source):
            child.wait(timeout=60)
    finally:
        middle.send_signal(signal.SIGTERM)
        middle.wait(timeout=30)
    delivered = mib * count
    return {
        "mib_s": delivered / got["seconds"],
        "relay_cpu_s_gib": used / (delivered / 1024),
        "relay_peak_mib": most,
        "origin_egress": sent["egress"],
        "duplicates": got["duplicates"],
        "missing": got["missing"],
    }


def role(options: argparse.Namespace) -> None:
    """Be one of the processes."""
    folder, mib, case = options.folder, options.mib, options.case
    if options.role == "relay":
        asyncio.run(relay(folder))
    elif options.role == "publisher":
        asyncio.run(publisher(folder, mib, case, options.port))
    else:
        asyncio.run(consumers(folder, mib, case, options.port, options.name, options.count))


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--consumers", default="1,4,16")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--other", help="command line of another relay, run in turn with ours")
    parser.add_argument("--json", type=Path)
    for name in ("--role", "--case", "--name"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--port", "--count"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role(options)
        return
    relays = {"ours": "ours"} | ({"other": options.other} if options.other else {})
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_test_certificates(folder)
        for number in range(options.rounds):
            for case in options.cases.split(","):
                for count in map(int, options.consumers.split(",")):
                    for label, which in relays.items():
                        rows = found.setdefault(f"{label} {case} x{count}", [])
                        rows.append(run(which, case, count, folder, options.mib))
            sys.stderr.write(f"round {number + 1} of {options.rounds} done\n")
    report(found, options)


def report(found: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """Medians of every case."""
    middle = {
        case: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        for case, rounds in found.items()
    }
    keys = list(next(iter(middle.values())))
    sys.stdout.write("case".ljust(24) + "".join(key.rjust(17) for key in keys) + "\n")
    for case, row in middle.items():
        sys.stdout.write(case.ljust(24) + "".join(f"{row[key]:17.2f}" for key in keys) + "\n")
    if options.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        result = {"machine": machine, "mib": options.mib, "rounds": found, "medians": middle}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
