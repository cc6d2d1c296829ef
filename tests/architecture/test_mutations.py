"""The sample of mutants fits the code: each can be made, and a test carries its rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.mutate import SAMPLE, Stale, apply, carriers, judge
from tests.conformance.mutations import Mutation
from tests.conformance.report import collect


@pytest.fixture(scope="module")
def marked() -> dict[str, list[str]]:
    """Which tests carry which rule."""
    return collect()


def test_the_sample_is_large_and_names_each_rule_once() -> None:
    rules = Counter(one.rule for one in SAMPLE)
    assert len(rules) >= 40
    assert max(rules.values()) == 1
    assert {one.file.split("/")[1] for one in SAMPLE} >= {"codec", "session"}


@pytest.mark.parametrize("mutation", SAMPLE, ids=lambda one: one.rule)
def test_it_fits(mutation: Mutation, marked: dict[str, list[str]]) -> None:
    assert apply(mutation)
    assert carriers(mutation, marked)


@pytest.mark.parametrize(
    ("mutation", "why"),
    [
        (Mutation("M001", "moqt/none.py", "a", "b"), "M001, moqt/none.py: there is no such file"),
        (Mutation("M001", "moqt/errors.py", "nowhere", "b"), "'nowhere' occurs 0 times"),
        (Mutation("M001", "moqt/errors.py", "class ", "b"), "occurs [0-9]+ times, once is wanted"),
        (Mutation("M001", "moqt/errors.py", "class MoqtError", "class ("), "is no Python"),
    ],
)
def test_one_that_does_not_fit_says_why(mutation: Mutation, why: str) -> None:
    with pytest.raises(Stale, match=why):
        apply(mutation)


def test_a_rule_without_tests() -> None:
    with pytest.raises(Stale, match="no test carries this rule"):
        carriers(SAMPLE[0], {})


def test_what_is_noticed_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("one = 1\n")
    (tmp_path / "test_code.py").write_text(
        "import code_, pytest\n@pytest.mark.rule('M001')\ndef test():\n    assert code_.one == 1\n"
    )
    (tmp_path / "code.py").rename(tmp_path / "code_.py")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\npythonpath = ['.']\nmarkers = ['rule(*ids): rules']\n"
    )
    marked = {"M001": ["test_code.py::test"]}
    fates = [
        judge(Mutation("M001", "code_.py", "one = 1", new), marked, tmp_path)
        for new in ("one = 2", "one = 1.0", "import none_such\none = 1")
    ]
    assert fates[:2] == ["killed", "SURVIVED"]
    assert fates[2].startswith("broken")
    assert (tmp_path / "code_.py").read_text() == "one = 1\n"
