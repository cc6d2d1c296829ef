"""kvcs.cli.waterfall: bars to half a cell, and a table that fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvcs.cli.waterfall import Arrival, Scale, bar, waterfall

TEN = Scale(100.0, 10.0, 10, unicode=True)
ASCII = TEN._replace(unicode=False)


@pytest.mark.parametrize(
    ("start", "end", "made", "drawn"),
    [
        (100.0, 100.0, None, "▌"),
        (100.6, 100.6, None, "▐"),
        (100.0, 100.6, None, "█"),
        (102.0, 104.2, None, "  ██▌"),
        (102.6, 104.9, None, "  ▐██"),
        (109.9, 110.0, None, "         ▐"),
        (103.0, 104.6, 101.0, " ░░██"),
        (103.0, 104.6, 102.9, "  ░██"),
        (90.0, 120.0, None, "██████████"),
        (105.0, 104.0, 106.0, "     ▌"),
    ],
)
def test_bar(start: float, end: float, made: float | None, drawn: str) -> None:
    assert bar(TEN, start, end, made) == drawn


def test_bar_without_unicode() -> None:
    assert bar(ASCII, 103.0, 104.6, 101.0) == " --##"


def test_all_at_once() -> None:
    assert bar(Scale(5.0, 0.0, 4, unicode=True), 5.0, 5.0) == "▌"


def drawn(
    published: dict[int, float], consumers: dict[str, dict[int, Arrival]], width: int = 80
) -> list[str]:
    screen = io.StringIO()
    console = Console(file=screen, width=width)
    console.print(waterfall(console, "title", published, consumers))
    return screen.getvalue().splitlines()


def test_rows_on_one_clock() -> None:
    arrivals = {0: Arrival(11.0, 11.5), 1: Arrival(12.0, 12.0)}
    lines = drawn({0: 10.0, 1: 11.0, 2: 12.0}, {"a": arrivals, "b": {1: Arrival(14.0, 14.0)}})
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[4:7]]
    assert rows[0][:4] == ["0", "0.000", "1.000", "1.500"]
    assert rows[1][:4] == ["1", "1.000", "2.000", "2.000"]
    assert rows[1][-3:-1] == ["4.000", "4.000"]
    assert rows[2] == ["2", "2.000"]


def test_one_consumer_without_its_publisher() -> None:
    lines = drawn({}, {"": {3: Arrival(1.0, 1.5)}})
    assert lines[2].split()[:3] == ["layer", "got", "verified"]
    assert lines[4].split()[:3] == ["3", "0.000", "0.500"]


def test_nothing_came() -> None:
    assert any("layer" in line for line in drawn({}, {"a": {}}))


def test_a_narrow_terminal_still_gets_bars() -> None:
    lines = drawn({0: 0.0}, {"a": {0: Arrival(1.0, 1.0)}}, width=50)
    assert "█" in lines[-2]
