"""docs/architecture.md names every module, and no module that is not there."""

from __future__ import annotations

import re

from tests.architecture.sources import ROOT, package_sources

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_module_has_its_line() -> None:
    listing = PAGE[PAGE.index("```") : PAGE.index("Cores (")]
    named = set(re.findall(r"\b(\w+\.py)\b", listing))
    there = {src.path.rpartition("/")[2] for src in package_sources()} - {"__init__.py"}
    assert sorted(there - named) == [], "modules that the page does not name"
    assert sorted(named - there) == [], "modules that do not exist"
