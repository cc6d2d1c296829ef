"""The import contracts of pyproject.toml hold, cover every core, and cores need no third party."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib

from tests.architecture.rules import CORE_FORBIDS, is_core
from tests.architecture.sources import PACKAGES, ROOT, package_sources

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
    "contracts"
]


def test_contracts_hold() -> None:
    # In a process of its own: in ours it would switch off every logger that exists already.
    call = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(  # the interpreter and the text are ours
        [sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_core_is_under_contract() -> None:
    contract = next(c for c in CONTRACTS if c["name"] == "cores do no I/O")
    covered = tuple(contract["source_modules"])
    cores = [src.module for src in package_sources() if is_core(src.path)]
    missing = [m for m in cores if not any(m == c or m.startswith(c + ".") for c in covered)]
    assert missing == [], "add them to source_modules of 'cores do no I/O' in pyproject.toml"
    assert set(contract["forbidden_modules"]) == CORE_FORBIDS


def test_moqt_cores_need_no_third_party() -> None:
    ours = {*PACKAGES, *sys.stdlib_module_names}
    found = [
        src.at(node, name)
        for src in package_sources()
        if is_core(src.path) and src.path.startswith("moqt/")
        for node in ast.walk(src.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _imported(node)
        if name.partition(".")[0] not in ours
    ]
    assert found == []


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]
