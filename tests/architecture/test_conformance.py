"""The conformance table says what the tests say."""

from __future__ import annotations

import ast

import pytest

from tests.conformance import report

STALE = "run `make conformance` and commit what it writes"


def test_status_is_fresh() -> None:
    """Also fails on markers with unknown ids, or that belong to no test."""
    assert report.STATUS.read_text("utf-8") == report.status_table(report.build()), STALE


def test_page_is_fresh() -> None:
    assert report.PAGE.read_text("utf-8") == report.page(report.build()), STALE


def test_rules_are_the_whole_table() -> None:
    ids = [rule.id for rule in report.read_rules()]
    assert ids == [f"M{number:03}" for number in range(1, len(ids) + 1)]


MODULE = """
CASES = [pytest.param(1, marks=pytest.mark.rule("M004"))]
@pytest.mark.rule("M001", "M002")
def test_a(): ...
@pytest.mark.rule("M003")
class TestB:
    @pytest.mark.parametrize("n", CASES)
    async def test_c(self, n): ...
"""


def test_markers_are_found_wherever_pytest_takes_them() -> None:
    assert list(report.markers("t.py", ast.parse(MODULE))) == [
        ("M001", "t.py::test_a"),
        ("M002", "t.py::test_a"),
        ("M003", "t.py::TestB::test_c"),
        ("M004", "t.py::TestB::test_c"),
    ]


def test_a_module_marker_counts_for_each_of_its_tests() -> None:
    text = 'pytestmark = [pytest.mark.rule("M001")]\ndef test_a(): 0\ndef test_b(): 0'
    found = list(report.markers("t.py", ast.parse(text)))
    assert found == [("M001", "t.py::test_a"), ("M001", "t.py::test_b")]


@pytest.mark.parametrize(
    "text",
    [
        '@pytest.mark.rule("M001")\ndef helper(): ...',
        "@pytest.mark.rule(ID)\ndef test_a(): ...",
        "@pytest.mark.rule()\ndef test_a(): ...",
        'UNUSED = [pytest.mark.rule("M001")]',
    ],
)
def test_a_marker_that_would_not_count_is_refused(text: str) -> None:
    with pytest.raises(report.BadMarker):
        list(report.markers("t.py", ast.parse(text)))
