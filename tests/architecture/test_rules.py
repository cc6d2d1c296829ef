"""Every module keeps the house rules, and every rule bites."""

from __future__ import annotations

import re

import pytest

from tests.architecture import rules
from tests.architecture.sources import (
    PACKAGES,
    ROOT,
    functions,
    package_sources,
    read,
    source,
    suite_sources,
    text_files,
)

PACKAGE_RULES = [
    rules.module_size,
    rules.function_size,
    rules.class_size,
    rules.module_name,
    rules.no_pickle,
    rules.core_is_pure,
    rules.no_assert,
    rules.no_swallowing,
    rules.draft_only_in_profile,
    rules.private_attributes,
]
TEST_RULES = [rules.module_size, rules.module_name, rules.no_pickle, rules.no_swallowing]
#: Where the contracts live whose Protocols document a method once for all implementations.
CONTRACTS = ("transport/api.py", "moqt/model.py", "moqt/session/ports.py")
#: Names of tools and of places on one machine; brackets keep this line from matching itself.
WORK_TOOLS = re.compile(
    r"/work/[a-z]|/r[o]ot/|/home/[a-z]|cl[a]ude|anthr[o]pic|cop[i]lot|chat[g]pt|co-auth[o]red-by",
    re.IGNORECASE,
)


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_packages(rule: rules.Rule) -> None:
    assert [line for src in package_sources() for line in rule(src)] == []


@pytest.mark.parametrize("rule", TEST_RULES, ids=lambda rule: rule.__name__)
def test_tests(rule: rules.Rule) -> None:
    assert [line for src in suite_sources() for line in rule(src)] == []


def test_public_names_have_docstrings() -> None:
    contract = (read(ROOT / path) for path in CONTRACTS)
    inherited = frozenset(name for src in contract for name in rules.protocol_members(src))
    left = [line for src in package_sources() for line in rules.docstrings(src, inherited)]
    assert left == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_every_workaround_for_aioquic_is_tested() -> None:
    quarantine = ROOT / rules.QUARANTINE
    if not quarantine.exists():
        return
    tests = "".join(src.text for src in suite_sources() if src.path.startswith("tests/transport/"))
    names = {node.name for node in functions(read(quarantine).tree) if node.name[0] != "_"}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", tests)) == []


def test_no_work_tools_are_named() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in text_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (match := WORK_TOOLS.search(line))
    ]
    assert found == []


PLANTED = [
    (rules.module_size, "moqt/x.py", "#\n" * 501),
    (rules.module_size, "tests/x.py", "#\n" * 601),
    (rules.function_size, "moqt/x.py", "def f():\n" + "    g()\n" * 60),
    (
        rules.class_size,
        "moqt/x.py",
        "class C:\n" + "".join(f" def f{i}(s): 0\n" for i in range(21)),
    ),
    (rules.module_name, "moqt/utils.py", ""),
    (rules.module_name, "moqt/common/x.py", ""),
    (rules.no_pickle, "kvcs/x.py", "import pickle"),
    (rules.no_pickle, "kvcs/x.py", "numpy.load(f, allow_pickle=True)"),
    (rules.core_is_pure, "moqt/codec/x.py", "import asyncio.tasks"),
    (rules.core_is_pure, "moqt/session/x.py", "from time import monotonic"),
    (rules.core_is_pure, "kvcs/payload.py", "import logging"),
    (rules.no_assert, "moqt/x.py", "assert x"),
    (rules.no_swallowing, "moqt/x.py", "try: f()\nexcept: raise"),
    (rules.no_swallowing, "moqt/x.py", "try: f()\nexcept Exception: pass"),
    (rules.no_swallowing, "moqt/x.py", "try: f()\nexcept (KeyError, BaseException): pass"),
    (rules.draft_only_in_profile, "moqt/x.py", "ALPN = 'moqt-22'"),
    (rules.draft_only_in_profile, "moqt/x.py", "f'{x} draft-18'"),
    (rules.draft_only_in_profile, "moqt/x.py", "if profile.draft >= 22: f()"),
    (rules.draft_only_in_profile, "moqt/x.py", "from moqt.codec.profile import DRAFT_22"),
    (rules.draft_only_in_profile, "kvcs/cli/x.py", "ALPN = 'moqt-22'"),
    (rules.private_attributes, "transport/x.py", "connection._streams"),
    (rules.private_attributes, "transport/x.py", "self._quic._streams"),
    (rules.docstrings, "moqt/x.py", "x = 1"),
    (rules.docstrings, "moqt/x.py", "'''m'''\ndef f(): return 1"),
    (rules.docstrings, "moqt/x.py", "'''m'''\nclass C:\n '''c'''\n def f(self): return 1"),
]


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_a_planted_offence_is_found(rule: rules.Rule, path: str, text: str) -> None:
    assert len(list(rule(source(path, text)))) == 1


ALLOWED = [
    (rules.no_swallowing, "try: f()\nexcept Exception:\n    undo()\n    raise"),
    (rules.no_swallowing, "try: f()\nexcept Exception:  # the user's callback: logged\n    log()"),
    (rules.draft_only_in_profile, "'''draft-22 1.2'''\n# moqt-22\nx = 1\n'''draft-22'''"),
    (
        rules.private_attributes,
        "class A:\n def f(self, b): self._x = b._x = super()._f()\n def _f(s): 0",
    ),
    (rules.docstrings, "'''m'''\nclass C(Protocol):\n '''c'''\n def f(self): ..."),
    (rules.docstrings, "'''m'''\nclass C:\n '''c'''\n def __len__(self): return 1"),
]


@pytest.mark.parametrize(("rule", "text"), ALLOWED)
def test_what_a_rule_allows(rule: rules.Rule, text: str) -> None:
    assert list(rule(source("transport/x.py", text))) == []
