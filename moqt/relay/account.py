"""What of a track has been passed on to its subscriptions, and what they may still lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.relay.spans import MAX_PLACE, last_of, place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moqt.relay.archive import Archive
    from moqt.relay.subgroups import FanOut

#: Groups heard last among which a hole may be a stream that was lost with its session.
LOOK_BACK: Final = 16


class Account:
    """Knows more than the cache, which may have forgotten what was passed on."""

    def __init__(self, archive: Archive, fans: Mapping[tuple[int, int], FanOut]) -> None:
        self._archive = archive
        self._fans = fans
        #: Subscriptions follow the track live from here on.
        self.floor = 0
        #: The last place that could not be recovered.
        self.missed = -1
        #: From the first to the last of these all that exists has been passed on.
        self.passed_on = (0, -1)

    def covers(self, first: int, last: int) -> bool:
        """True when all there is from ``first`` to ``last`` is known or has been passed on."""
        since, to = self.passed_on
        if since <= first <= to:
            first = to + 1
        return self._archive.known.covers(first, last)

    def lacking(self) -> int:
        """The first place that subscriptions may still lack: of an open subgroup, or never heard.

        A group whose stream was lost before it began shows as a hole among the last ones.
        """
        fans = self._fans.values()
        at = self.floor
        groups = sorted({fan.head.group for fan in fans if fan.head.group >= at >> 64})
        if len(groups) > LOOK_BACK:
            groups = groups[-LOOK_BACK:]
            at = place((groups[0], 0))
        found = []
        for fan in fans:
            after = place((fan.head.group, 0 if fan.passed is None else fan.passed + 1))
            # Another subgroup of it may have been lost before it began.
            start = max(place((fan.head.group, 0)), self.floor)
            after = min(after, self._archive.known.until(start) + 1)
            if not fan.closed:
                found.append(after)
            elif fan.head.group >= at >> 64:
                # It was reset; or another one of its group has never begun.
                found.append(self._hole(fan.head.group) if fan.complete else max(after, at))
        for group in groups:
            if not self._archive.known.covers(at, place((group, 0)) - 1):
                break
            at = place((group + 1, 0))
        return min([at, *found])

    def _hole(self, group: int) -> int:
        """The first place of ``group`` that is not known, with others behind it that are.

        MAX_PLACE when there is none: what the cache has forgotten it has forgotten whole.
        """
        last = last_of(group)
        gap = self._archive.known.gap(max(place((group, 0)), self.floor), last)
        return MAX_PLACE if gap is None or gap[1] == last else gap[0]
