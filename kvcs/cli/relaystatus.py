"""A relay's sessions, tracks, hits and traffic on a terminal, every second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvcs.relay_metrics import snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from moqt.relay.service import RelayService
    from moqt.relay.track import RelayTrack

#: Seconds between two looks.
EVERY: Final = 1.0
#: Tracks shown: those that have the most followers, then the most octets.
TRACKS: Final = 15
_MIB: Final = 1 << 20
#: Figures side by side: what 80 columns hold.
_ACROSS: Final = 3
#: Columns that a track's figures take; the rest is for its name.
_FIGURES: Final = 52


async def show(service: RelayService, console: Console | None = None) -> None:
    """Until it is cancelled."""
    before = snapshot(service)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(EVERY)
            now = snapshot(service)
            view = Group(summary(before, now), tracks(service, live.console.width))
            live.update(view, refresh=True)
            before = now


def summary(before: dict[str, int], now: dict[str, int]) -> Table:
    """The relay as a whole, in 80 columns; ``before`` is a second old."""
    drawn, hits = now["octets_out"], now["octets_from_cache"]
    told = (
        ("sessions", now["sessions_open"]),
        ("upstreams", now["upstreams_open"]),
        ("tracks", now["tracks"]),
        ("subscriptions", now["subscriptions"]),
        ("ingress MiB/s", f"{_rate(before, now, 'octets_in'):.1f}"),
        ("egress MiB/s", f"{_rate(before, now, 'octets_out'):.1f}"),
        ("out/in", f"{drawn / now['octets_in']:.1f}" if now["octets_in"] else "-"),
        ("hit ratio", f"{100 * hits / drawn:.0f} %" if drawn else "-"),
        ("cache MiB", f"{now['cache_octets'] / _MIB:.0f}"),
        ("budget MiB", f"{now['cache_budget_octets'] / _MIB:.0f}"),
        ("evicted", now["cache_evictions"]),
        ("waiting MiB", f"{now['backlog_octets'] / _MIB:.1f}"),
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(_ACROSS):
        table.add_column(no_wrap=True, style="dim")
        table.add_column(justify="right", no_wrap=True)
    for at in range(0, len(told), _ACROSS):
        row = told[at : at + _ACROSS]
        table.add_row(*(str(word) for name, value in row for word in (name, value)))
    return table


def tracks(service: RelayService, width: int = 80) -> Table:
    """The tracks that matter most now; a name too long for ``width`` columns is cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("track", "followers", "objects", "MiB", "largest", "state"):
        left = name in ("track", "state")
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=True,
            max_width=max(width - _FIGURES, 0) if name == "track" else None,
        )
    chosen = sorted(service.relay.tracks.values(), key=_weight, reverse=True)[:TRACKS]
    for track in chosen:
        archive, largest = track.stock.archive, track.largest
        table.add_row(
            Text(_name(track)),
            str(len(track.stock.subscriptions)),
            str(archive.objects),
            f"{archive.octets / _MIB:.1f}",
            "-" if largest is None else f"{largest.group}/{largest.object}",
            "live" if track.standing else "whole" if archive.complete else "cached",
        )
    return table


def _rate(before: dict[str, int], now: dict[str, int], name: str) -> float:
    return (now[name] - before[name]) / _MIB / EVERY


def _weight(track: RelayTrack) -> tuple[int, int]:
    return len(track.stock.subscriptions), track.stock.archive.octets


def _name(track: RelayTrack) -> str:
    """The name of the track, then the beginning of each field of its namespace, the last first.

    So much of it is seen where there is little room; octets that are no text are in hexadecimal.
    """
    fields = (track.name.name, *reversed(track.name.namespace))
    return " ".join(
        one.decode() if one.isascii() and one.decode().isprintable() else one[:3].hex() + ".."
        for one in fields
    )
