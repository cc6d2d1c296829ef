"""One KV cache through a relay to 1, 4 and 16 consumers, in turn with another relay.

    python -m benchmarks.relay_fanout [--rounds 5] [--mib 128] [--consumers 1,4,16] [--json FILE]
    python -m benchmarks.relay_fanout --other "PROGRAM --port {port} --cert {cert} --key {key}"

Three processes over loopback: ``kvcs.Publisher`` dials the relay, the relay, and one process with
all consumers, which check the SHA-256 of every object. Cases: live (all subscribed before the first
object) and completed (all fetch afterwards). CPU and peak memory of the relay are read from /proc,
so that both relays are measured alike; origin egress is what the publisher sent, divided by what it
published. Medians of the rounds in which all consumers were served; a round in which they were not
is told as that, and the others go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import select
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
from moqt.publisher import ServingLimits
from moqt.relay.service import RelayService, ServiceConfig
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls
from transport.errors import TransportError

TICKS: Final = os.sysconf("SC_CLK_TCK")
CASES: Final = ("live", "completed")
#: Seconds without an object after which a consumer gives up.
PATIENCE: Final = 120
#: Seconds for what is not measured: processes that start, say something, or end.
GRACE: Final = 60.0
FIGURES: Final = tuple(
    ["mib_s", "relay_cpu_s_gib", "relay_peak_mib", "origin_egress", "duplicates", "missing"]
)


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
    # A relay that asks once for each of its consumers is slow, but not to be refused for it.
    limits = ServingLimits(fetches=4096)
    async with kvcs.Publisher(scope_key=kvcs.ScopeKey(bytes(32)), limits=limits) as source:
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


async def consumers(
    folder: Path, mib: int, case: str, port: int, name: str, count: int, limit: float
) -> None:
    """Retrieve and verify everything, ``count`` times at once, within ``limit`` seconds."""
    tls = ClientTls(ca_file=folder / "ca.pem")
    publication = kvcs.PublicationName.from_fragment(name)
    stores = [kvcs.Consumer() for _ in range(count)]
    start = time.perf_counter()
    reports: list[kvcs.Report] = []
    faults: list[str] = []

    async def take(one: kvcs.Retrieval) -> None:
        try:
            reports.append(await one.wait())
        except kvcs.KvcsError as error:
            faults.append(str(error))

    try:
        async with asyncio.timeout(limit):
            for store in stores:
                await store.connect(f"moqt://localhost:{port}/", tls=tls)
            start = time.perf_counter()
            running = [
                await store.retrieve(publication, mode=case, timeout=PATIENCE)  # type: ignore[arg-type]
                for store in stores
            ]
            if case == "live":
                say(subscribed=True)
                start = time.perf_counter()
            await asyncio.gather(*map(take, running))
    except TimeoutError:
        faults.append(f"{limit:g} s have passed")
    except (kvcs.KvcsError, TransportError) as error:
        faults.append(str(error))
    say(
        seconds=time.perf_counter() - start,
        complete=len(reports),
        faults=sorted(set(faults)),
        duplicates=sum(report.duplicates for report in reports),
        missing=sum(report.missing for report in reports),
    )
    await asyncio.gather(*(store.close() for store in stores))


# -- the driver -----------------------------------------------------------------------------------


class Failed(Exception):
    """A relay did not do what is measured here."""


def spawn(*words: object) -> subprocess.Popen[bytes]:
    """This file in another role."""
    command = [sys.executable, "-m", "benchmarks.relay_fanout", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)  # noqa: S603


def read(child: subprocess.Popen[bytes], limit: float = GRACE) -> dict[str, Any]:
    """The child's next line; raises Failed."""
    out = child.stdout
    if out is None or not select.select([out], [], [], limit)[0]:
        raise Failed(f"the {role_of(child)} said nothing for {limit:g} s")
    line = out.readline()
    if not line:
        raise Failed(f"the {role_of(child)} ended early")
    found: dict[str, Any] = json.loads(line)
    return found


def role_of(child: subprocess.Popen[bytes]) -> str:
    """Which of the processes it is."""
    words = list(map(str, child.args)) if isinstance(child.args, list) else []
    return words[words.index("--role") + 1] if "--role" in words else "other relay"


def tell(child: subprocess.Popen[bytes]) -> None:
    """Let the child go on."""
    with suppress(BrokenPipeError):
        if child.stdin:
            child.stdin.write(b"go\n")
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


def start_relay(which: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Ours, or the command line of another one; and its port."""
    if which == "ours":
        child = spawn("--role", "relay", "--folder", folder)
        return child, read(child)["port"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = which.format(port=port, cert=folder / "server.pem", key=folder / "server.key")
    child = subprocess.Popen(  # noqa: S603
        shlex.split(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(2.0)  # it says nothing that could be waited for
    return child, port


def stop(child: subprocess.Popen[bytes]) -> None:
    """End it, whatever it is doing."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(timeout=30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def run(which: str, case: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """One fan-out; ``failed`` says why there are no figures."""
    folder, mib, limit = options.folder, options.mib, options.limit
    children: list[subprocess.Popen[bytes]] = []
    got: dict[str, Any] = {}
    try:
        middle, port = start_relay(which, folder)
        children.append(middle)
        shared = ("--case", case, "--mib", mib, "--folder", folder, "--port", port)
        source = spawn("--role", "publisher", *shared)
        children.append(source)
        name = read(source)["name"]
        before = cpu(middle.pid)
        words = ("--name", name, "--count", count, "--limit", limit)
        sink = spawn("--role", "consumers", *shared, *words)
        children.append(sink)
        if case == "live":
            got = read(sink, limit + GRACE)
        if "complete" not in got:  # all have subscribed, or there is nothing to wait for
            tell(source)
            got = read(sink, limit + GRACE)
        if got["complete"] < count:
            raise Failed(
                f"did not deliver: {got['complete']} of {count} complete after"
                f" {got['seconds']:.0f} s: {got['faults'][0][:200]}"
            )
        used, most = cpu(middle.pid) - before, peak(middle.pid)
        tell(source)
        sent = read(source)
        for child in (sink, source):
            child.wait(timeout=GRACE)
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        return {"failed": str(error), **got}
    finally:
        for child in reversed(children):
            stop(child)
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
        names = options.port, options.name, options.count, options.limit
        asyncio.run(consumers(folder, mib, case, *names))


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--consumers", default="1,4,16")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--other", help="command line of another relay, run in turn with ours")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a fan-out may take")
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
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as place:
        options.folder = Path(place)
        write_test_certificates(options.folder)
        for number in range(options.rounds):
            for case in options.cases.split(","):
                for count in map(int, options.consumers.split(",")):
                    for label, which in relays.items():
                        rows = found.setdefault(f"{label} {case} x{count}", [])
                        rows.append(run(which, case, count, options))
                        if "failed" in rows[-1]:
                            sys.stderr.write(f"{label} {case} x{count}: {rows[-1]['failed']}\n")
            sys.stderr.write(f"round {number + 1} of {options.rounds} done\n")
    report(found, options)


def report(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Medians of every case, and what failed."""
    middle: dict[str, dict[str, Any]] = {}
    for case, rounds in found.items():
        good = [one for one in rounds if "failed" not in one]
        row: dict[str, Any] = {
            key: statistics.median(one[key] for one in good) for key in (good[0] if good else ())
        }
        failed = [one["failed"] for one in rounds if "failed" in one]
        middle[case] = row | ({"failed": failed, "of_rounds": len(rounds)} if failed else {})
    sys.stdout.write("case".ljust(24) + "".join(key.rjust(17) for key in FIGURES) + "\n")
    for case, row in middle.items():
        if "mib_s" in row:
            told = "".join(f"{row[key]:17.2f}" for key in FIGURES)
            sys.stdout.write(case.ljust(24) + told + "\n")
        for why in dict.fromkeys(row.get("failed", ())):
            times = f"{row['failed'].count(why)} of {row['of_rounds']} rounds"
            sys.stdout.write(f"{case.ljust(24)}  {times}: {why}\n")
    if options.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        result = {"machine": machine, "mib": options.mib, "rounds": found, "medians": middle}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
