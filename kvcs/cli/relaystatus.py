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


async def show(service: RelayService, console: Console | None = None) -> None:
    """Until it is cancelled."""
    before = snapshot(service)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(EVERY)
            now = snapshot(service)
            live.update(Group(summary(before, now), tracks(service)), refresh=True)
            before = now


def summary(before: dict[str, int], now: dict[str, int]) -> Table:
    """The relay as a whole; ``before`` is a second old."""
    drawn = now["octets_out"]
    hits = now["octets_from_cache"]
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("sessions", "upstreams", "tracks", "subscriptions", "cache MiB", "in MiB/s"):
        table.add_column(name, justify="right")
    for name in ("out MiB/s", "out/in", "from cache", "waiting MiB"):
        table.add_column(name, justify="right")
    table.add_row(
        str(now["sessions_open"]),
        str(now["upstreams_open"]),
        str(now["tracks"]),
        str(now["subscriptions"]),
        f"{now['cache_octets'] / _MIB:.0f} of {now['cache_budget_octets'] / _MIB:.0f}",
        f"{_rate(before, now, 'octets_in'):.1f}",
        f"{_rate(before, now, 'octets_out'):.1f}",
        f"{drawn / now['octets_in']:.1f}" if now["octets_in"] else "-",
        f"{100 * hits / drawn:.0f} %" if drawn else "-",
        f"{now['backlog_octets'] / _MIB:.1f}",
    )
    return table


def tracks(service: RelayService) -> Table:
    """The tracks that matter most now."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("track", "followers", "objects", "MiB", "largest", "state"):
        table.add_column(name, justify="left" if name in ("track", "state") else "right")
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
    """Short: the beginning of each field, in hexadecimal unless it is text."""
    fields = (*track.name.namespace, track.name.name)
    return " ".join(
        one.decode() if one.isascii() and one.decode().isprintable() else one[:3].hex() + ".."
        for one in fields
    )
