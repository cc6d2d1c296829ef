"""kvcs.cli.start: the commands as they are installed."""

from __future__ import annotations

import json
import sys
import tomllib
from types import ModuleType

import pytest

from kvcs.cli import start
from tests.architecture.sources import ROOT

STARTS = [start.pub, start.sub, start.keygen, start.relay, start.token, start.kvcs]
NAMES = {begin: f"kvcs-{begin.__name__}" for begin in STARTS} | {start.kvcs: "kvcs"}


@pytest.mark.parametrize("begin", STARTS)
def test_it_is_the_command(begin, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [NAMES[begin], "--version"])
    # click remembers what a command was called when it first told its version.
    for name in [one for one in sys.modules if one.startswith("kvcs.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        begin()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"{NAMES[begin]} ")


def interrupted(name: str) -> ModuleType:
    raise KeyboardInterrupt


@pytest.mark.parametrize("begin", STARTS)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_interrupted_while_it_loads(
    begin, words: list[str], monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "import_module", interrupted)
    monkeypatch.setattr(sys, "argv", ["kvcs", *words])
    with pytest.raises(SystemExit) as ended:
        begin()
    assert ended.value.code == 130
    told = capsys.readouterr()
    if words:
        event = json.loads(told.out)
        assert (event["event"], event["exit_code"], told.err) == ("interrupted", 130, "")
    else:
        assert (told.out, told.err) == ("", "interrupted\n")


def test_all_commands_start_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    starts = {name: f"kvcs.cli.start:{begin.__name__}" for begin, name in NAMES.items()}
    assert project["scripts"] == starts
