"""The examples of docs/moqt.md run as they stand, over real sockets, and end by themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import moqt

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "moqt"
PAGE = (ROOT / "docs" / "moqt.md").read_text("utf-8")
EXAMPLES = sorted(FOLDER.glob("*.py"))
MAX_LINES = 60
#: The chat in statements and the lines they take: what one has to write and to read.
MAX_CHAT_LINES = 30


def output(folder: Path, *words: object) -> list[str]:
    """What a program prints; warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.e2e
def test_chat(tmp_path: Path) -> None:
    lines = output(tmp_path, FOLDER / "chat.py")
    assert sorted(lines) == [
        "ann to bob: hello bob",
        "ann to bob: how are you?",
        "bob to ann: hello ann",
    ]


@pytest.mark.e2e
def test_clock(tmp_path: Path) -> None:
    lines = output(tmp_path, FOLDER / "clock.py", 70, 0.001)
    times = [re.fullmatch(r"minute (\d), second (\d+): \d\d:\d\d:\d\d", line) for line in lines]
    seconds = [60 * int(one[1]) + int(one[2]) for one in times if one]
    assert len(seconds) == len(lines)
    assert seconds == list(range(70))


@pytest.mark.e2e
def test_fetch_past(tmp_path: Path) -> None:
    lines = output(tmp_path, FOLDER / "fetch_past.py")
    days = [int(line.strip()[0]) for line in lines if line.startswith("  ")]
    assert days == [2, 2, 3, 3, 4, 4, 4, 4, 3, 3, 2, 2]
    assert [line.partition(",")[0] for line in lines[::7]][:2] == ["ASCENDING", "DESCENDING"]
    assert lines[-1].startswith("refused: INVALID_RANGE")


@pytest.mark.e2e
def test_browse(tmp_path: Path) -> None:
    assert output(tmp_path, FOLDER / "browse.py") == [
        "found: home/cameras/attic",
        "found: home/cameras/door",
        "found: home/cameras/garden",
        "gone: home/cameras/door",
    ]


@pytest.mark.e2e
def test_sink(tmp_path: Path) -> None:
    assert output(tmp_path, FOLDER / "sink.py") == ["8388608 octets, equal: True"]


@pytest.mark.e2e
def test_the_program_on_the_page(tmp_path: Path) -> None:
    (program,) = [code for code in blocks() if "asyncio.run(" in code]
    assert output(tmp_path, "-c", program) == ["0, 0: hello", "0, 1: world"]


def blocks() -> list[str]:
    """The Python of the page."""
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_all_of_the_page_is_python_and_names_what_exists() -> None:
    for code in blocks():
        compile(code, "docs/moqt.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = set(re.findall(r"\bmoqt\.([A-Za-z_]+)\b", "\n".join(blocks())))
    assert {"connect", "serve", "subscribe", "fetch", "namespaces", "Monitor", "Trace"} <= names
    assert [name for name in names if not hasattr(moqt, name)] == []


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_the_page_shows_every_example_and_each_is_short() -> None:
    assert len(EXAMPLES) == 5
    for path in EXAMPLES:
        assert f"../examples/moqt/{path.name}" in PAGE
        assert path.read_text("utf-8").count("\n") < MAX_LINES, path.name


def test_the_chat_is_thirty_lines() -> None:
    tree = ast.parse((FOLDER / "chat.py").read_text("utf-8"))
    imports = (ast.Import, ast.ImportFrom, ast.Expr)
    body = [one for one in tree.body if not isinstance(one, imports)]
    assert sum((one.end_lineno or 0) - one.lineno + 1 for one in body) <= MAX_CHAT_LINES


def test_every_name_of_the_package_is_there() -> None:
    for name in moqt.__all__:
        assert getattr(moqt, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = moqt.nothing


def test_the_verifier_on_the_page_refuses_prefixes_that_cover_the_secret() -> None:
    (code,) = [code for code in blocks() if "def judge(" in code]
    room: dict[str, Any] = {"moqt": moqt}
    exec(code.partition("\n\n\nsettings")[0], room)
    shown = (moqt.Token.use_value(b"open sesame"),)
    tracks = moqt.Action.SUBSCRIBE_TRACKS
    for namespace in ((), (b"market",), (b"market", b"dark"), (b"market", b"dark", b"deeper")):
        assert room["judge"](moqt.Claim(tracks, namespace), 0.0).code.name == "UNAUTHORIZED"
        assert room["judge"](moqt.Claim(tracks, namespace, session_tokens=shown), 0.0) is None
    assert room["judge"](moqt.Claim(tracks, (b"market", b"lit")), 0.0) is None
    assert room["judge"](moqt.Claim(moqt.Action.SETUP), 0.0) is None
