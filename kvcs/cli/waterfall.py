"""When each layer was there, as bars that read the same on a terminal and in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

#: Left and right half of a cell, each on or off: bars begin and end at half cells.
_HALVES: Final = {
    (False, False): " ",
    (True, False): "\N{LEFT HALF BLOCK}",
    (False, True): "\N{RIGHT HALF BLOCK}",
    (True, True): "\N{FULL BLOCK}",
}
_SHADE: Final = "\N{LIGHT SHADE}"
_COLOURS: Final = ("cyan", "magenta", "yellow", "green")
#: Columns of numbers: layer and published; received and verified of each consumer.
_FIXED: Final = 17
_EACH: Final = 18
_NARROWEST: Final = 8


class Arrival(NamedTuple):
    """One layer at one consumer: when its last object was whole, and when it was verified."""

    received: float
    verified: float


class Scale(NamedTuple):
    """Seconds from ``zero`` on, ``full`` of them over ``width`` cells."""

    zero: float
    full: float
    width: int
    unicode: bool

    def half(self, at: float) -> int:
        """The half cell, from 0, that a time falls into."""
        halves = 2 * self.width
        place = int((at - self.zero) * halves / self.full) if self.full > 0 else 0
        return min(max(place, 0), halves - 1)


def bar(scale: Scale, start: float, end: float, made_from: float | None = None) -> str:
    """A bar from ``start`` to ``end``, at least half a cell; before it, since ``made_from``, shade.

    Without Unicode: # and -, whole cells.
    """
    first, last = scale.half(start), max(scale.half(end), scale.half(start))
    made = first if made_from is None else min(scale.half(made_from), first)
    shade = _SHADE if scale.unicode else "-"
    drawn = []
    for cell in range(last // 2 + 1):
        on = (first <= 2 * cell <= last, first <= 2 * cell + 1 <= last)
        if any(on):
            drawn.append(_HALVES[on] if scale.unicode else "#")
        else:
            drawn.append(shade if made // 2 <= cell < first // 2 else " ")
    return "".join(drawn)


def waterfall(
    console: Console,
    title: str,
    published: Mapping[int, float],
    consumers: Mapping[str, Mapping[int, Arrival]],
) -> Table:
    """One row a layer: when it was published, and for each consumer when it came, as a bar.

    All times on one clock; 0 is the earliest. Shade is the making of the layer, since the one
    before; the bar runs from published (from received, if that is unknown) to verified.
    """
    times = [
        *published.values(),
        *(at for found in consumers.values() for arrival in found.values() for at in arrival),
    ]
    zero, full = (min(times), max(times) - min(times)) if times else (0.0, 0.0)
    width = (console.width - _FIXED) // max(len(consumers), 1) - _EACH
    scale = Scale(zero, full, max(width, _NARROWEST), not console.options.ascii_only)

    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, title_justify="left")
    table.add_column("layer", justify="right")
    if published:
        table.add_column("published", justify="right")
    for name in consumers:
        table.add_column(f"{name}: got" if name else "got", justify="right")
        table.add_column("verified", justify="right")
        table.add_column(f"0 to {full:.2f} s", width=scale.width, no_wrap=True)
    for layer in sorted({*published, *(n for found in consumers.values() for n in found)}):
        out = published.get(layer)
        row: list[str | Text] = [str(layer)]
        if published:
            row.append("" if out is None else f"{out - zero:.3f}")
        for place, found in enumerate(consumers.values()):
            arrival = found.get(layer)
            if arrival is None:
                row += ["", "", ""]
                continue
            start = arrival.received if out is None else out
            drawn = bar(scale, start, arrival.verified, published.get(layer - 1))
            numbers = (f"{at - zero:.3f}" for at in arrival)
            row += [*numbers, Text(drawn, style=_COLOURS[place % len(_COLOURS)])]
        table.add_row(*row)
    return table
