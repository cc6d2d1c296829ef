"""Which rule of the draft is proven by which test; ``make conformance`` writes it down.

``rules.tsv`` lists the rules, ``reasons.tsv`` those that do not apply or come later and why, and
the tests carry ``@pytest.mark.rule("M123")``. From these come ``status.tsv`` and
``docs/conformance.md``. Markers are read from the syntax trees, so nothing has to be imported.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
STATUS = HERE / "status.tsv"
PAGE = ROOT / "docs" / "conformance.md"

Function = ast.FunctionDef | ast.AsyncFunctionDef

DONE: Final = "done"
NOT_APPLICABLE: Final = "not applicable"
LATER: Final = "later"
NOT_YET: Final = "not yet"
STATUSES: Final = (DONE, NOT_APPLICABLE, LATER, NOT_YET)


class BadMarker(Exception):
    """A marker, rule id or reason that cannot be counted; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of rules.tsv."""

    id: str
    section: str
    role: str
    level: str
    statement: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule with its status, and the tests that prove it or the reason why none does."""

    rule: Rule
    status: str
    tests: tuple[str, ...] = ()
    reason: str = ""


def read_rules() -> list[Rule]:
    """All rules, in the order of the table."""
    keys = ("id", "section", "role", "level", "statement")
    return [Rule(**{key: row[key] for key in keys}) for row in _rows(HERE / "rules.tsv")]


def read_reasons() -> dict[str, tuple[str, str]]:
    """Rule id to (status, reason); raises BadMarker on an unknown status or an empty reason."""
    found: dict[str, tuple[str, str]] = {}
    for row in _rows(HERE / "reasons.tsv"):
        if row["status"] not in (NOT_APPLICABLE, LATER) or not row["reason"].strip():
            raise BadMarker(
                f"reasons.tsv, {row['rule']}: status is {NOT_APPLICABLE!r} or {LATER!r}, "
                "and the reason is a sentence"
            )
        if row["rule"] in found:
            raise BadMarker(f"reasons.tsv lists {row['rule']} twice")
        found[row["rule"]] = (row["status"], row["reason"])
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


def collect(files: Iterable[Path] | None = None) -> dict[str, list[str]]:
    """Rule id to the node ids (``file::function``, ``file::Class::method``) that carry it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in files if files is not None else sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        for rule, test in markers(name, ast.parse(path.read_text("utf-8"), name)):
            if test not in found[rule]:
                found[rule].append(test)
    return dict(found)


def markers(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every (rule id, node id) of one test module.

    A marker stands on a test, on a Test class, in ``pytestmark``, or in a case list that a test is
    parametrized with. One that belongs to no test raises BadMarker: it would count for nothing.
    """
    unclaimed = {id(call): call for call in _calls(tree)}
    lists = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for target in _targets(statement)
        if isinstance(target, ast.Name)
    }
    shared = list(_calls(lists["pytestmark"])) if "pytestmark" in lists else []
    for test, decorators in _tests(tree, name, ()):
        calls = list(shared)
        for decorator in decorators:
            calls += _calls(decorator)
            names = [n.id for n in ast.walk(decorator) if isinstance(n, ast.Name)]
            calls += (call for n in names if n in lists for call in _calls(lists[n]))
        for call in calls:
            unclaimed.pop(id(call), None)
            yield from ((rule, test) for rule in _ids(name, call))
    for call in unclaimed.values():
        raise BadMarker(f"{name}:{call.lineno}: this marker belongs to no test")


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.rule"):
            yield node


def _ids(name: str, call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            raise BadMarker(f"{name}:{call.lineno}: rule ids are literal strings")
        yield argument.value
    if not call.args or call.keywords:
        raise BadMarker(f'{name}:{call.lineno}: write rule("M001", ...)')


def _tests(
    parent: ast.Module | ast.ClassDef, prefix: str, outer: tuple[ast.expr, ...]
) -> Iterator[tuple[str, tuple[ast.expr, ...]]]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests(node, f"{prefix}::{node.name}", (*outer, *node.decorator_list))
        elif isinstance(node, Function) and node.name.startswith("test_"):
            yield f"{prefix}::{node.name}", (*outer, *node.decorator_list)


def build() -> list[Entry]:
    """One entry per rule; raises BadMarker where tests, reasons and rules disagree."""
    rules, reasons, tests = read_rules(), read_reasons(), collect()
    unknown = (tests.keys() | reasons.keys()) - {rule.id for rule in rules}
    if unknown:
        where = [test for rule in sorted(unknown) for test in tests.get(rule, ["reasons.tsv"])]
        raise BadMarker(f"no such rule: {sorted(unknown)} in {where}")
    both = tests.keys() & reasons.keys()
    if both:
        raise BadMarker(f"{sorted(both)} have a test and a reason for having none: remove one")
    return [_entry(rule, tests.get(rule.id, []), reasons.get(rule.id)) for rule in rules]


def _entry(rule: Rule, tests: list[str], reason: tuple[str, str] | None) -> Entry:
    if tests:
        return Entry(rule, DONE, tuple(tests))
    if reason:
        return Entry(rule, reason[0], reason=reason[1])
    return Entry(rule, NOT_YET)


def status_table(entries: list[Entry]) -> str:
    """The text of status.tsv: a line for each rule and test."""
    lines = ["rule\tstatus\ttest"]
    for entry in entries:
        lines += (f"{entry.rule.id}\t{entry.status}\t{test}" for test in entry.tests or ("",))
    return "\n".join(lines) + "\n"


def page(entries: list[Entry]) -> str:
    """The text of docs/conformance.md."""
    lines = [
        "# Conformance",
        "",
        "Generated by `make conformance`; do not edit. Each rule of the protocol's draft is *done* "
        "when a test marked with it fails if the rule is broken, *not applicable* or *later* with "
        "the reason given, else *not yet*. A level with `*` is a duty that the draft states "
        "without a capitalized keyword or that follows from a definition. Test paths are relative "
        "to `tests/`.",
        "",
        *_summary("role", entries, lambda entry: entry.rule.role),
        *_summary("level", entries, lambda entry: entry.rule.level.removesuffix("*"))[:-1],
    ]
    section = ""
    for entry in entries:
        top = "§" + entry.rule.section.lstrip("§").partition(".")[0]
        if top != section:
            section = top
            lines += ["", f"## {section}", "", "| rule | role | what | status | proven by |"]
            lines += ["|---|---|---|---|---|"]
        lines.append(_row(entry))
    return "\n".join(lines) + "\n"


def _summary(title: str, entries: list[Entry], key: Callable[[Entry], str]) -> list[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        counts[key(entry)][entry.status] += 1
        counts["**all**"][entry.status] += 1
    order = sorted(counts, key=lambda name: (name.startswith("*"), name))
    lines = [f"| {title} | {' | '.join(STATUSES)} | all |", "|---" + "|---:" * 5 + "|"]
    for name in order:
        cells = [str(counts[name][status]) for status in STATUSES]
        lines.append(f"| {name} | {' | '.join(cells)} | {counts[name].total()} |")
    return [*lines, ""]


def _row(entry: Entry) -> str:
    rule = entry.rule
    proof = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in entry.tests)
    what = f"{rule.section} {rule.level}: {rule.statement}"
    cells = (rule.id, rule.role, what, entry.status, proof or entry.reason)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write both files and say how many rules stand where."""
    try:
        entries = build()
    except BadMarker as bad:
        sys.stderr.write(f"conformance: {bad}\n")
        return 1
    STATUS.write_text(status_table(entries), "utf-8")
    PAGE.write_text(page(entries), "utf-8")
    counts = Counter(entry.status for entry in entries)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    sys.stdout.write(f"{len(entries)} rules: {summary}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
