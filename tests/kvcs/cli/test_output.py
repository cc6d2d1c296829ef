"""kvcs.cli.output: one vocabulary of events, three ways to show it."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from kvcs.cli.output import (
    JsonLines,
    Output,
    PlainLines,
    Terminal,
    choose_output,
    counted,
    printable,
    stretch,
    wall_clock,
)


def play(output: Output) -> None:
    output.say("listening", "listening on port 4", port=4)
    output.expect(2, "published")
    output.step("published", "layer 0 published", layer=0)
    output.step("published", "layer 1 published", layer=1)
    output.close()


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    play(JsonLines())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '{"event": "listening", "port": 4}'
    assert [json.loads(line)["event"] for line in lines] == ["listening", "published", "published"]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    play(PlainLines())
    assert capsys.readouterr().out == "listening on port 4\nlayer 0 published\nlayer 1 published\n"


def test_a_terminal_gets_a_bar_and_no_line_a_layer() -> None:
    screen = io.StringIO()
    play(Terminal(Console(file=screen, force_terminal=True, width=80)))
    assert "listening on port 4" in screen.getvalue()
    assert "2/2" in screen.getvalue()
    assert "layer 1" not in screen.getvalue()


def test_markup_of_others_is_text() -> None:
    screen = io.StringIO()
    Terminal(Console(file=screen, force_terminal=True)).say("x", "[red]no[/] markup")
    assert "[red]no[/] markup" in screen.getvalue()


def test_without_a_terminal_lines_are_plain() -> None:
    assert isinstance(choose_output(as_json=False), PlainLines)
    assert isinstance(choose_output(as_json=True), JsonLines)


def test_one_and_many() -> None:
    assert [counted(n, "block") for n in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
    assert [stretch("layer", 3, n) for n in (3, 5)] == ["layer 3", "layers 3 to 5"]


@pytest.mark.rule("M499")
def test_a_peer_steers_no_terminal() -> None:
    assert printable("gone\x1b[2J\x07\nbye") == "gone\ufffd[2J\ufffd\nbye"


def test_json_stays_one_ascii_line(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().say("error", "", message="a\nb\x1b\u2028")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isascii()
    assert json.loads(line)["message"] == "a\nb\x1b\u2028"


def test_times_of_a_loop_become_unix_time(monkeypatch) -> None:
    monkeypatch.setattr("kvcs.cli.output.time.time", lambda: 1000.0)
    clock = wall_clock(lambda: 4.0)
    assert clock(5.5) == 1001.5
