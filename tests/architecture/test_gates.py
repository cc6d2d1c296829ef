"""The test configuration itself: what must turn a run red does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

HEAD = """\
import asyncio, gc, warnings
import pytest
async def fail():
    raise ValueError("lost")
"""

RED = {
    "lost_exception": "async def test():\n"
    "    asyncio.ensure_future(fail())\n"
    "    await asyncio.sleep(0)",
    "lost_in_a_cycle": "async def test():\n"
    "    task = asyncio.ensure_future(fail())\n"
    "    task.add_done_callback(lambda done, kept=task: kept)\n"
    "    await asyncio.sleep(0)\n    await asyncio.sleep(0)",
    "failing_callback": "async def test():\n"
    "    asyncio.get_running_loop().call_soon(lambda: 1 / 0)\n"
    "    await asyncio.sleep(0)\n    await asyncio.sleep(0)",
    "failing_finalizer": "class A:\n    def __del__(self):\n        1 / 0\ndef test():\n    A()",
    "warning": "def test():\n    warnings.warn('old', DeprecationWarning)",
    "never_awaited": "def test():\n    fail()\n    gc.collect()",
    "unknown_marker": "@pytest.mark.unknown\ndef test():\n    pass",
    "unexpected_pass": "@pytest.mark.xfail(reason='x')\ndef test():\n    pass",
}
GREEN = {
    "debug_mode": "async def test():\n    assert asyncio.get_running_loop().get_debug()",
    "expected_failure": "@pytest.mark.xfail(reason='x')\ndef test():\n    assert False",
}
SKIP = {"skip": "def test():\n    pytest.skip('x')", "passes": "def test():\n    pass"}
SKIPPED_MODULE = SKIP | {"skip": "pytest.skip('x', allow_module_level=True)"}


def run(
    folder: Path, modules: dict[str, str], *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest over test modules under this project's own configuration."""
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    for name, body in modules.items():
        (folder / "tests" / f"test_{name}.py").write_text(HEAD + body + "\n", "utf-8")
    clean = {key: value for key, value in os.environ.items() if key != "KVCS_ALLOW_SKIPS"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", *arguments],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_must_fail_does_and_nothing_else(tmp_path: Path, workers: str) -> None:
    done = run(tmp_path, RED | GREEN, "-n", workers, "--dist", "worksteal")
    red = set(re.findall(r"^(?:FAILED|ERROR) tests/test_(\w+)\.py", done.stdout, re.MULTILINE))
    assert red == RED.keys(), done.stdout + done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("modules", [SKIP, SKIPPED_MODULE], ids=["test", "module"])
def test_a_skip_fails_the_run(tmp_path: Path, modules: dict[str, str], workers: str) -> None:
    done = run(tmp_path, modules, "-n", workers, "--dist", "worksteal")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "KVCS_ALLOW_SKIPS=1" in done.stdout


def test_skips_can_be_allowed(tmp_path: Path) -> None:
    done = run(tmp_path, SKIP, KVCS_ALLOW_SKIPS="1")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
