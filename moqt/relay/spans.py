"""Places of a track as integers, and sets of them as disjoint intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from moqt.model import MAX_VI64, Location

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The last place there can be: {2^64-1, 2^64-1}.
MAX_PLACE: Final = (1 << 128) - 1


def place(at: tuple[int, int]) -> int:
    """Group and object as one integer, in the order of Locations and without holes between.

    The object behind the last one of a group is the first of the next group.
    """
    return (at[0] << 64) + at[1]


def location(place: int) -> Location:
    """The Location of a place."""
    return Location(place >> 64, place & MAX_VI64)


def last_of(group: int) -> int:
    """The last place of ``group``."""
    return group << 64 | MAX_VI64


class Spans:
    """A set of places as sorted inclusive intervals that neither overlap nor touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """How many intervals there are."""
        return len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Take in ``first`` to ``last``; nothing when ``last`` lies before ``first``."""
        firsts, lasts = self._firsts, self._lasts
        if lasts and first == lasts[-1] + 1 and first <= last:  # objects in order: the usual case
            lasts[-1] = last
            return
        if last < first:
            return
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1)
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = (first,)
        lasts[low:high] = (last,)

    def remove(self, first: int, last: int) -> None:
        """Take out ``first`` to ``last``."""
        if last < first:
            return
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        starts, ends = [], []
        if firsts[low] < first:
            starts.append(firsts[low])
            ends.append(first - 1)
        if lasts[high - 1] > last:
            starts.append(last + 1)
            ends.append(lasts[high - 1])
        firsts[low:high] = starts
        lasts[low:high] = ends

    def clear(self) -> None:
        """Take out everything."""
        self._firsts.clear()
        self._lasts.clear()

    def holds(self, place: int) -> bool:
        """True when ``place`` is in it."""
        at = bisect_left(self._lasts, place)
        return at < len(self._lasts) and self._firsts[at] <= place

    def covers(self, first: int, last: int) -> bool:
        """True when all of ``first`` to ``last`` is in it; an empty range always is."""
        return last < first or self.until(first) >= last

    def until(self, place: int) -> int:
        """The last place of the interval that holds ``place``; ``place - 1`` when none does."""
        at = bisect_left(self._lasts, place)
        if at < len(self._lasts) and self._firsts[at] <= place:
            return self._lasts[at]
        return place - 1

    def since(self, place: int) -> int:
        """The first place of the interval that holds ``place``; ``place + 1`` when none does."""
        at = bisect_left(self._lasts, place)
        if at < len(self._lasts) and self._firsts[at] <= place:
            return self._firsts[at]
        return place + 1

    def gap(self, first: int, last: int) -> tuple[int, int] | None:
        """The first part of ``first`` to ``last`` that is not in it; None when all is."""
        first = self.until(first) + 1
        if first > last:
            return None
        at = bisect_left(self._firsts, first)
        return first, last if at == len(self._firsts) else min(last, self._firsts[at] - 1)

    def gap_before(self, place: int) -> int:
        """Where the gap that ``place`` lies in begins; ``place + 1`` when it lies in none."""
        at = bisect_left(self._lasts, place)
        if at < len(self._lasts) and self._firsts[at] <= place:
            return place + 1
        return self._lasts[at - 1] + 1 if at else 0

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of ``first`` to ``last`` that are not in it, ascending."""
        firsts, lasts = self._firsts, self._lasts
        found: list[tuple[int, int]] = []
        at = bisect_left(lasts, first)
        while first <= last and at < len(firsts) and firsts[at] <= last:
            if first < firsts[at]:
                found.append((first, firsts[at] - 1))
            first = lasts[at] + 1
            at += 1
        if first <= last:
            found.append((first, last))
        return found
