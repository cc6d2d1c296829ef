"""When each layer was there, as bars that read the same on a terminal and in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

#: Left and right half of a cell, each on or off: bars end at half cells.
_HALVES: Final = {
    (False, False): " ",
    (True, False): "\N{LEFT HALF BLOCK}",
    (False, True): "\N{RIGHT HALF BLOCK}",
    (True, True): "\N{FULL BLOCK}",
}
#: Columns beside the bars: layer, published; then received, verified and the gaps of each consumer.
_FIXED: Final = 18
_EACH: Final = 21
_NARROWEST: Final = 8


class Arrival(NamedTuple):
    """One layer at one consumer, in seconds on one clock; both ends of its bar and its arrival."""

    received: float
    verified: float


def bar(start: float, end: float, full: float, width: int, *, unicode: bool = True) -> str:
    """A bar from ``start`` to ``end`` of 0 to ``full``, ``width`` cells wide, never empty."""
    halves = 2 * width
    scale = halves / full if full > 0 else 0.0
    first = min(max(int(start * scale), 0), halves - 1)
    last = min(max(int(end * scale), first), halves - 1)
    if not unicode:
        return " " * (first // 2) + "#" * (last // 2 - first // 2 + 1)
    cells = (
        _HALVES[first <= 2 * cell <= last, first <= 2 * cell + 1 <= last]
        for cell in range(last // 2 + 1)
    )
    return "".join(cells)


def waterfall(
    console: Console,
    title: str,
    published: Mapping[int, float],
    consumers: Mapping[str, Mapping[int, Arrival]],
) -> Table:
    """One row a layer: when it was published, and for each consumer when it came, as a bar.

    All times on one clock; 0 is the earliest of them. A bar runs from published (from received,
    where that is unknown) to verified.
    """
    arrivals = [one for found in consumers.values() for one in found.values()]
    every = [
        *published.values(),
        *(one.verified for one in arrivals),
        *(one.received for one in arrivals),
    ]
    zero, full = (min(every), max(every) - min(every)) if every else (0.0, 0.0)
    free = (console.width - _FIXED) // max(len(consumers), 1) - _EACH
    width = max(free, _NARROWEST)
    unicode = not console.options.ascii_only

    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("layer", justify="right")
    if published:
        table.add_column("published", justify="right")
    for name in consumers:
        table.add_column(f"{name}: got", justify="right")
        table.add_column("verified", justify="right")
        table.add_column(f"{f'0 to {full:.2f} s':>{width}}", width=width, no_wrap=True)
    layers = sorted({*published, *(layer for found in consumers.values() for layer in found)})
    for layer in layers:
        out = published.get(layer)
        row: list[str | Text] = [str(layer)]
        if published:
            row.append("" if out is None else f"{out - zero:.3f}")
        for found, colour in zip(consumers.values(), _colours(len(consumers)), strict=True):
            row += _cells(found.get(layer), out, zero, full, width, colour, unicode)
        table.add_row(*row)
    return table


def _colours(count: int) -> Sequence[str]:
    return [("cyan", "magenta", "yellow", "green")[index % 4] for index in range(count)]


def _cells(
    arrival: Arrival | None,
    published: float | None,
    zero: float,
    full: float,
    width: int,
    colour: str,
    unicode: bool,
) -> list[str | Text]:
    if arrival is None:
        return ["", "", ""]
    start = arrival.received if published is None else published
    drawn = bar(start - zero, arrival.verified - zero, full, width, unicode=unicode)
    return [
        f"{arrival.received - zero:.3f}",
        f"{arrival.verified - zero:.3f}",
        Text(drawn, style=colour),
    ]
