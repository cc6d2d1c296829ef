"""Long fuzzing, guided by coverage: ``make fuzz SECONDS=600``.

Needs the ``atheris`` package. The targets take turns, each in a process of its own; what they find
interesting is kept under ``--work`` and is where the next run starts. An input that breaks the
contract is written to ``--work``/found, once per place it breaks at, and fuzzing goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
#: libFuzzer's own limits: an input that takes ten seconds, or a gigabyte, is a finding.
LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=1024", "-print_final_stats=1")
#: A target's turn, in seconds, at most: so that all have had one early in a long run.
TURN = 60
#: Targets whose inputs are many and slow get longer turns.
WEIGHTS = {"pair": 4, "wire": 4, "payload": 0.25, "datagram": 0.5}


def corpus(target: str) -> list[bytes]:
    """The committed inputs of one target: a line of hex each."""
    text = (CORPUS / f"{target}.hex").read_text()
    return [bytes.fromhex(line) for line in text.splitlines() if not line.startswith("#")]


class Harness:
    """Runs one target on every input, counts, and keeps what breaks it."""

    def __init__(self, name: str, target: Callable[[bytes], None], work: Path) -> None:
        self._target = target
        self._found = work / "found"
        self._figures = work / f"{name}.json"
        self._name = name
        self._places: set[str] = set()
        self._began = self._said = time.monotonic()
        self.executions = self.octets = 0

    def __call__(self, data: bytes) -> None:
        """One execution."""
        self.executions += 1
        self.octets += len(data)
        try:
            self._target(data)
        except Exception as broken:  # the finding itself
            self._keep(data, broken)
        if time.monotonic() > self._said + 1:
            self._say()

    def _keep(self, data: bytes, broken: Exception) -> None:
        frames = traceback.extract_tb(broken.__traceback__)[-2:]
        place = f"{type(broken).__name__} {[(frame.filename, frame.lineno) for frame in frames]}"
        if place not in self._places:
            self._places.add(place)
            name = f"{self._name}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
            self._found.mkdir(exist_ok=True)
            (self._found / f"{name}.bin").write_bytes(data)
            (self._found / f"{name}.txt").write_text("".join(traceback.format_exception(broken)))

    def _say(self) -> None:
        self._said = time.monotonic()
        self._figures.write_text(
            json.dumps(
                {
                    "executions": self.executions,
                    "octets": self.octets,
                    "seconds": self._said - self._began,
                    "crashes": len(self._places),
                }
            )
        )


def fuzz(name: str, seconds: int, work: Path) -> None:
    """One target in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=["moqt", "kvcs"]):
        from tests.fuzz import codec_targets, session_targets
    target = {**codec_targets.TARGETS, **session_targets.TARGETS}[name]
    kept = work / name
    kept.mkdir(parents=True, exist_ok=True)
    for octets in corpus(name):
        (kept / hashlib.sha1(octets).hexdigest()).write_bytes(octets)
    options = [*LIMITS, f"-max_total_time={seconds}", f"-artifact_prefix={work}/{name}-"]
    atheris.Setup([sys.argv[0], *options, str(kept)], Harness(name, target, work))
    atheris.Fuzz()


def names() -> list[str]:
    """All targets: each has a corpus."""
    return sorted(path.stem for path in CORPUS.glob("*.hex"))


def turns(seconds: int, work: Path, chosen: list[str]) -> dict[str, Any]:
    """All targets in turn, one process at a time; figures by target."""
    total: dict[str, Any] = {}
    end = time.monotonic() + seconds
    share = min(TURN, seconds / sum(WEIGHTS.get(name, 1) for name in chosen))
    round_ = 0
    while time.monotonic() < end - 4:
        name = chosen[round_ % len(chosen)]
        round_ += 1
        turn = max(4, int(min(share * WEIGHTS.get(name, 1), end - time.monotonic())))
        figures = work / f"{name}.json"
        figures.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.fuzz.run", "--only", name, "--turn", str(turn)]
        with (work / f"{name}.log").open("ab") as log:
            done = subprocess.run(
                [*command, "--work", str(work)], stdout=log, stderr=log, check=False
            )
        had = total.setdefault(name, dict.fromkeys(("executions", "octets", "seconds"), 0))
        found = json.loads(figures.read_text()) if figures.exists() else {}
        for what in had:
            had[what] += found.get(what, 0)
        (work / "total.json").write_text(json.dumps(total, indent=1))
        _tell(f"{name}: {found}" + (f" EXIT {done.returncode}" if done.returncode else ""))
    return total


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Says figures per target; 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--work", type=Path, default=Path(".fuzz"))
    parser.add_argument("--only", action="append", choices=names())
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.turn is not None:
        fuzz(options.only[0], options.turn, options.work)
    os.environ.setdefault("PYTHONPATH", ".")
    total = turns(options.seconds, options.work, options.only or names())
    _tell(f"{'target':12} {'executions':>12} {'octets/s':>10} {'seconds':>8}")
    for name, figures in sorted(total.items()):
        speed = figures["octets"] / max(figures["seconds"], 1)
        _tell(f"{name:12} {figures['executions']:12} {speed:10.0f} {figures['seconds']:8.0f}")
    crashes = [*options.work.glob("found/*.bin"), *options.work.glob("*-crash-*")]
    crashes += [*options.work.glob("*-timeout-*"), *options.work.glob("*-oom-*")]
    _tell("\n  ".join((f"findings: {len(crashes)}", *map(str, crashes))))
    return bool(crashes)


if __name__ == "__main__":
    raise SystemExit(main())
