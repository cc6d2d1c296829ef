"""Pages name what is there: every module, the tests of the relay's faults."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, package_sources

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_module_has_its_line() -> None:
    listing = PAGE[PAGE.index("```") : PAGE.index("Cores (")]
    named = set(re.findall(r"\b(\w+\.py)\b", listing))
    there = {src.path.rpartition("/")[2] for src in package_sources()} - {"__init__.py"}
    assert sorted(there - named) == [], "modules that the page does not name"
    assert sorted(named - there) == [], "modules that do not exist"


def test_the_tests_of_the_faults_of_a_relay_exist() -> None:
    page = (ROOT / "docs" / "relay.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    """``file.py::test``, from tests/ on."""
    missing = []
    for file, test in re.findall(r"`(?:tests/)?([\w/]+\.py)::(\w+)", page.read_text("utf-8")):
        path = ROOT / "tests" / file
        found = path.is_file() and f"def {test}(" in path.read_text("utf-8")
        if not found:
            missing.append(f"{file}::{test}")
    assert missing == []
