"""A range of a track on its way to one fetch or fill: from the cache, else from upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from moqt.errors import StreamCode
from moqt.model import Gap, GapKind, GroupOrder, LocationRange, ObjectStatus, StoredObject
from moqt.relay.arriving import Arriving, beyond
from moqt.relay.filling import Outlook
from moqt.relay.spans import last_of, location, place
from transport.errors import StreamAbort

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from moqt.model import Piece
    from moqt.relay.clock import Planned
    from moqt.relay.peers import Peer
    from moqt.relay.stock import Stock

    #: Pieces, and when it waited in vain the kind of the gap.
    Pieces: TypeAlias = Generator[Piece, None, GapKind | None]


class Reader:
    """One delivery of a range; ``at`` is the place it waits for while it waits."""

    def __init__(
        self,
        stock: Stock,
        order: GroupOrder,
        wake: Callable[[], None],
        fill_timeout: int | None,
    ) -> None:
        self._stock = stock
        self._order = order
        self._wake = wake
        limit = stock.context.config.fill_timeout
        # Seconds that may still be spent waiting (draft-22 §9.20.5).
        self._left = limit if fill_timeout is None else min(limit, fill_timeout / 1000)
        self._tried: list[Peer] = []
        self._given: Arriving | None = None
        self._absent = -1
        self._timer: Planned | None = None
        self._doomed = False
        #: The place it waits for, and since when.
        self.at: int | None = None
        self._since = 0.0

    def run(self, within: LocationRange) -> Pieces:
        """The pieces of a range, whose end is known."""
        if within.end is None or within.empty:
            return None
        first, last = place(within.start), place(within.end)
        self._stock.readers.add(self)
        try:
            if self._order is GroupOrder.DESCENDING and first >> 64 != last >> 64:
                yield from self._descend(first, last)
            else:
                yield from self._ascend(first, last)
        finally:
            self._timer_off()
            if self.at is not None:
                self._stock.waits.discard(self.at, self)
            self._stock.read(self)
        return None

    def stirred(self, arriving: Arriving | None, absent: int) -> None:
        """What it waits for may be here, is on its way, or nothing exists up to ``absent``.

        What it is told counts even when the cache has forgotten it before it looks.
        """
        self._given = arriving or self._given
        self._absent = max(absent, self._absent)
        self._wake()

    def doom(self) -> None:
        """Nothing of the track may be forwarded any more: reset."""
        self._doomed = True
        self._wake()

    def forgive(self, peer: Peer) -> None:
        """It was stopped by us: it may be asked again."""
        if peer in self._tried:
            self._tried.remove(peer)

    # -- orders ----------------------------------------------------------------------------------

    def _ascend(self, at: int, last: int) -> Pieces:
        archive = self._stock.archive
        while at <= last:
            self._check()
            hole = archive.known.gap(at, last)
            if hole is None or hole[0] > at:
                until = last if hole is None else hole[0] - 1
                stored = archive.after(at, until)
                if stored is None:
                    # Unless it was dropped just now, for its age: then it is a hole.
                    at = until + 1 if archive.known.covers(at, until) else at
                    continue
                self._hit(stored)
                yield stored
                at = place(stored.head.location) + 1
                continue
            if at == self.at and at <= self._absent:
                at, self._absent = min(self._absent, last) + 1, -1
                continue
            arriving = self._on_its_way(at)
            if arriving is not None:
                yield from self._stream(arriving)
                at += 1
                continue
            end = self._stock.before_arrivals(at, hole[1])
            kind = yield from self._wait(at, end)
            if kind is not None:
                yield Gap(kind, location(end))
                at = end + 1
        return None

    def _descend(self, first: int, top: int) -> Pieces:
        archive = self._stock.archive
        while top >= first:
            self._check()
            group = top >> 64
            low = max(first, place((group, 0)))
            if archive.known.covers(low, top):
                if archive.after(low, top) is None and low > first:
                    # Nothing here: on to the next group that has something, or is not known.
                    since = max(first, archive.known.since(low))
                    groups = archive.groups(since >> 64, group - 1)
                    below = groups[-1] if groups else since >> 64
                    top = min(low - 1, last_of(below))
                    continue
            elif top == last_of(group) and not archive.known.holds(top):
                bottom = max(first, archive.known.gap_before(top))
                whole = bottom if bottom == place((bottom >> 64, 0)) else last_of(bottom >> 64) + 1
                told = self._given is not None or self._absent >= low == self.at
                begun = told or low in self._stock.arriving
                if whole < low and not begun:  # whole groups are missing: one wait, one marker
                    kind = yield from self._wait(low, top, whole)
                    if kind is not None:
                        yield Gap(kind, location(last_of(whole >> 64)))
                        top = whole - 1
                    continue
            yield from self._ascend(low, top)
            top = low - 1
        return None

    def _check(self) -> None:
        if self._stock.fault is not None:
            raise StreamAbort(StreamCode.MALFORMED_TRACK)
        if self._doomed:
            raise StreamAbort(StreamCode.INTERNAL_ERROR)

    # -- pieces ----------------------------------------------------------------------------------

    def _hit(self, stored: StoredObject) -> None:
        counts = self._stock.context.counts
        counts["objects_from_cache"] += 1
        counts["octets_from_cache"] += stored.head.length
        self._stock.filler.passed(place(stored.head.location))

    def _stream(self, arriving: Arriving) -> Pieces:
        """An object as its octets come; when its source breaks, the rest from elsewhere."""
        if arriving.head.status is not ObjectStatus.NORMAL:
            return None
        sent = 0
        yield StoredObject(arriving.head, ())
        while True:
            for view in beyond(tuple(arriving.views), sent):
                sent += len(view)
                yield view
            if sent < arriving.octets:
                if arriving.kept:
                    continue  # more has come meanwhile
            elif arriving.whole:
                break
            elif arriving.kept and not arriving.broken:
                arriving.wakes.add(self._wake)
                yield None
                continue
            found = yield from self._elsewhere(arriving.place)
            if isinstance(found, StoredObject):
                for view in beyond(found.payload, sent):
                    yield view
                break
            arriving = found
        self._stock.filler.passed(arriving.place)
        return None

    def _on_its_way(self, at: int) -> Arriving | None:
        given, self._given = self._given, None
        for one in (self._stock.arriving.get(at), given):
            if one is not None and one.place == at and one.kept and not one.broken:
                return one
        return None

    def _elsewhere(self, at: int) -> Generator[Piece, None, StoredObject | Arriving]:
        """Another copy of an object that broke off."""
        while True:
            self._check()
            stored = self._stock.archive.get(at)
            if stored is not None:
                return stored
            arriving = self._on_its_way(at)
            if arriving is not None:
                return arriving
            kind = yield from self._wait(at, at)
            if kind is not None:
                raise StreamAbort(StreamCode.UNKNOWN_OBJECT_STATUS)

    # -- waiting ---------------------------------------------------------------------------------

    def _wait(self, at: int, end: int, first: int | None = None) -> Pieces:
        """Wait once for ``at``, missing like all from ``first`` to ``end``, ``at`` if not given.

        Returns the kind of the gap if that is in vain.
        """
        if self._left <= 0:
            return GapKind.TIMED_OUT
        clock = self._stock.context.clock
        now = clock.time()
        if at != self.at:
            self.at, self._since = at, now
            self._absent = -1
            self._given = None
            self._tried.clear()
        grace = self._stock.context.config.straggler - (now - self._since)
        delay = self._left
        if self._stock.may_come_live(at, late=grace <= 0):
            delay = min(delay, max(grace, 0.001)) if grace > 0 else delay
        else:
            span = (at if first is None else first, end)
            outlook = self._stock.filler.want(at, span, self._order, self._tried)
            if outlook is Outlook.NOWHERE and not self._stock.lost:
                return GapKind.UNKNOWN
        self._timer = clock.call_later(delay, self._wake)
        self._stock.waits.add(at, self)
        yield None
        self._stock.waits.discard(at, self)
        self._timer_off()
        self._left -= clock.time() - now
        if self._left <= 1e-9:  # a clock that is floating point
            self._left = 0
        return None

    def _timer_off(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
