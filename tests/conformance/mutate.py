"""Break one rule at a time in a copy of the tree and see that its tests notice: ``make mutate``.

``ARGS="--only M123"`` takes one rule, ``ARGS="--each 10"`` every tenth; exit code 1 when a mutant
survives, or when a mutation no longer fits the code. The tests of a rule are those that carry its
marker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.mutations import MUTATIONS, Mutation
from tests.conformance.report import ROOT, collect
from tests.conformance.request_mutations import REQUEST_MUTATIONS

#: The whole sample.
SAMPLE = (*MUTATIONS, *REQUEST_MUTATIONS)
#: Seconds for the tests of one rule; a mutant that hangs them is noticed.
PATIENCE = 120
#: The same for those of all rules, before anything is changed.
PATIENCE_FOR_ALL = 600
COPIED = ("kvcs", "moqt", "transport", "tests", "pyproject.toml", "docs", "README.md")


class Stale(Exception):
    """A mutation does not fit the code, or its rule has no test; the message says which."""


def apply(mutation: Mutation, root: Path = ROOT) -> str:
    """The file's text with the mutation in it; raises Stale."""
    where = f"{mutation.rule}, {mutation.file}"
    path = root / mutation.file
    if not path.is_file():
        raise Stale(f"{where}: there is no such file; name the one the rule has moved to")
    text = path.read_text("utf-8")
    found = text.count(mutation.old)
    if found != 1:
        raise Stale(f"{where}: {mutation.old!r} occurs {found} times, once is wanted")
    changed = text.replace(mutation.old, mutation.new)
    try:
        compile(changed, mutation.file, "exec")
    except SyntaxError as error:
        raise Stale(f"{where}: with {mutation.new!r} the file is no Python: {error}") from None
    return changed


def carriers(mutation: Mutation, marked: dict[str, list[str]]) -> list[str]:
    """The tests that carry the rule; raises Stale when there are none."""
    if not marked.get(mutation.rule):
        raise Stale(f"{mutation.rule}: no test carries this rule")
    return marked[mutation.rule]


def run(tests: list[str], root: Path, patience: float = PATIENCE) -> str:
    """'passed', 'failed', or what else came of it."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "failed"
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-200:]]
    return {0: "passed", 1: "failed"}.get(done.returncode, f"broken: {last[0]}")


def judge(mutation: Mutation, marked: dict[str, list[str]], root: Path) -> str:
    """'killed', 'SURVIVED', or why it cannot be said."""
    try:
        tests = carriers(mutation, marked)
        changed = apply(mutation, root)
    except Stale as stale:
        return f"STALE: {stale}"
    path = root / mutation.file
    before = path.read_text("utf-8")
    path.write_text(changed, "utf-8")
    try:
        outcome = run(tests, root)
    finally:
        path.write_text(before, "utf-8")
    return {"failed": "killed", "passed": "SURVIVED"}.get(outcome, outcome)


def main() -> int:
    """Says how each mutant fared; 1 unless all were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="RULE")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="only every Nth")
    options = parser.parse_args()
    chosen = [one for one in SAMPLE if not options.only or one.rule in options.only]
    chosen = chosen[:: options.each]
    marked = collect()
    fates: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        root = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, root / name)
        every = sorted({test for one in chosen for test in marked.get(one.rule, ())})
        if (sound := run(every, root, PATIENCE_FOR_ALL)) != "passed":
            sys.stdout.write(f"the tests fail before anything is changed: {sound}\n")
            return 1
        for mutation in chosen:
            fates.append(judge(mutation, marked, root))
            sys.stdout.write(f"{mutation.rule} {mutation.file}: {fates[-1]}\n")
            sys.stdout.flush()
    killed = fates.count("killed")
    sys.stdout.write(f"{killed} of {len(fates)} mutants killed\n")
    return killed != len(fates)


if __name__ == "__main__":
    raise SystemExit(main())
