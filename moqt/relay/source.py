"""A relay's track as what fetches, fills and subscriptions are served from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.errors import RequestRefused
from moqt.relay.reading import Reader
from moqt.relay.spans import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moqt.model import FullTrackName, GroupOrder, Location, LocationRange, Piece
    from moqt.relay.stock import Stock
    from moqt.session.fetches import IncomingFetch

#: Milliseconds after which to ask again for what a track that goes on has not come to here: one
#: track of a publication may overtake another on its way through a relay.
LAG: Final = 250


class StockedTrack:
    """A TrackSource over what the relay has, and what it can get."""

    def __init__(self, stock: Stock) -> None:
        self.stock = stock

    @property
    def name(self) -> FullTrackName:
        """Full Track Name."""
        return self.stock.name

    @property
    def properties(self) -> bytes:
        """Track Properties as they came (draft-22 §8.4)."""
        return self.stock.archive.properties

    @property
    def largest(self) -> Location | None:
        """Largest Object."""
        return self.stock.archive.largest

    @property
    def ended(self) -> bool:
        """True when Largest Object is the track's final one."""
        final = self.stock.archive.final
        return final is not None and final == self.largest

    def last_within(self, within: LocationRange) -> Location | None:
        """The last object of the range; its end while that is not known."""
        end = within.end
        if end is None:
            return None
        return self.stock.archive.last(place(within.start), place(end)) or end

    def accept(self, request: IncomingFetch) -> None:
        """FETCH_OK; a range beyond what is here may be asked for again while upstream stands."""
        try:
            request.accept(self)
        except RequestRefused as refusal:
            stands = any(leg.established for leg in self.stock.legs)
            raise RequestRefused(
                refusal.code, refusal.reason, LAG if stands and not self.ended else None
            ) from None

    def objects(
        self,
        within: LocationRange,
        order: GroupOrder,
        wake: Callable[[], None],
        fill_timeout: int | None = None,
    ) -> Iterator[Piece]:
        """From the cache, and what is missing from upstream."""
        return Reader(self.stock, order, wake, fill_timeout).run(within)
