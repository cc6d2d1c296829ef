"""What subscriptions have missed while no upstream stood, fetched and passed on in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.model import Gap, GroupOrder, LocationRange, StoredObject, SubgroupHead
from moqt.relay.reading import Reader
from moqt.relay.spans import location, place
from transport.errors import StreamAbort

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import Location
    from moqt.relay.clock import Planned
    from moqt.relay.reading import Pieces
    from moqt.relay.stock import Stock


class Recovery:
    """From the loss of the last upstream until what was missed has been passed on.

    Meanwhile ``Stock.recovering`` holds back what comes live until its place in the order comes.
    """

    def __init__(self, stock: Stock, over: Callable[[bool], None], first: int) -> None:
        """What is missed begins at ``first``; ``over`` is told whether it has succeeded."""
        self._stock = stock
        self._over: Callable[[bool], None] | None = over
        self._pieces: Pieces | None = None
        self._walked_to = -1
        #: What exists from here to where the walk has come has been passed on.
        self._since = first
        self._whole: StoredObject | None = None
        self._planned: Planned | None = None
        #: The track has ended upstream: nothing follows what is being passed on.
        self.ending = False
        stock.recovering = True
        stock.recovering_from = first
        self._limit: Planned | None = None
        self.alone()

    def alone(self) -> None:
        """No upstream stands: one has to come in time."""
        if self._limit is None and self._over is not None:
            context = self._stock.context
            delay = context.config.recovery
            self._limit = context.clock.call_later(delay, lambda: self.stop(False))

    def upstream(self, largest: Location | None) -> None:
        """An upstream stands, whose largest object is this: get everything up to there."""
        self._limit_off()
        if self._pieces is not None:
            return
        first = location(self._stock.recovering_from)
        if largest is None or largest < first:
            self.stop(True)
            return
        self._walk(first, largest)
        self._wake()

    def stop(self, succeeded: bool) -> None:
        """It is over."""
        over, self._over = self._over, None
        if over is None:
            return
        self._limit_off()
        if self._planned is not None:
            self._planned.cancel()
        if self._pieces is not None:
            self._pieces.close()
        self._stock.recovering = False
        if succeeded:
            self._stock.account.passed_on = self._since, self._walked_to
        over(succeeded)

    def _limit_off(self) -> None:
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.cancel()

    def _walk(self, first: Location, last: Location) -> None:
        reader = Reader(self._stock, GroupOrder.ASCENDING, self._wake, None)
        self._pieces = reader.run(LocationRange(first, last))
        self._walked_to = place(last)

    def _skip(self) -> None:
        """The rest of an object cannot be had: on to the next one."""
        broken, self._whole = self._whole, None
        if broken is None or self._stock.fault is not None:
            self.stop(False)
            return
        self._misses(place(broken.head.location))
        self._walk(location(self._since), location(self._walked_to))
        self._wake()

    def _misses(self, last: int) -> None:
        """What ends there could not be had."""
        self._since = last + 1
        self._stock.account.missed = last

    def _pass(self) -> None:
        """On to its subgroup, once the object is whole."""
        stored = self._whole
        if stored is None or sum(map(len, stored.payload)) < stored.head.length:
            return
        self._whole = None
        head = stored.head
        if head.subgroup is not None:
            key = SubgroupHead(head.group, head.subgroup, head.priority, has_properties=True)
            self._stock.fan(key).offer(stored, self._since)

    def _wake(self) -> None:
        if self._planned is None and self._over is not None:
            self._planned = self._stock.context.clock.call_later(0, self._step)

    def _step(self) -> None:
        self._planned = None
        pieces = self._pieces
        if pieces is None or self._over is None:
            return
        try:
            for piece in pieces:
                if piece is None:
                    return
                if isinstance(piece, StoredObject):
                    self._whole = piece
                elif isinstance(piece, Gap):
                    self._misses(place(piece.location))
                elif self._whole is not None:
                    self._whole = self._whole._replace(payload=(*self._whole.payload, piece))
                self._pass()
        except StreamAbort:
            self._skip()
            return
        largest = self._stock.largest
        if largest is not None and place(largest) > self._walked_to:
            # What came live meanwhile was held back, and a small cache may have lost it again.
            self._walk(location(self._walked_to + 1), largest)
            self._wake()
        elif self.ending or any(leg.live for leg in self._stock.legs):
            self.stop(True)
        else:  # the upstream it was for is gone or paused: on from here with the next one
            self._pieces = None
            self._stock.recovering_from = self._walked_to + 1
            self.alone()
