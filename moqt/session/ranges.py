"""The stream that serves a fetch or a fill, object by object (draft-22 §11.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from moqt.codec.data import FetchEncoder, FetchHeader, encode_fetch_header
from moqt.counters import code_name
from moqt.model import Gap, GroupOrder, LocationRange, StoredObject, TrackSource
from moqt.session.order import FILL, rank
from transport.api import Chunk, SendOrder, Tier
from transport.errors import StreamAbort

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.session.context import Context
    from moqt.session.filters import RangeFilters
    from transport.api import BytesLike, ChunkSource


class Delivery(NamedTuple):
    """What is delivered, and in which order."""

    source: TrackSource
    within: LocationRange
    order: GroupOrder
    filters: RangeFilters
    #: Milliseconds a relay may spend on what it does not have; None is its own limit.
    fill_timeout: int | None = None


class Place(NamedTuple):
    """Where a fill stands: the flow of its subscription, whose order it follows or not."""

    flow: int
    against: bool


class RangeStream:
    """One outgoing fetch-format stream: pulled object by object when its turn comes."""

    def __init__(
        self,
        session: Context,
        request_id: int,
        delivery: Delivery,
        priority: int,
        over: RangeOver,
        fill: Place | None = None,
    ) -> None:
        self._session = session
        self._over: RangeOver | None = over
        self._request_id = request_id
        self._group_order = delivery.order
        self._fill = fill
        self._at: tuple[int, int] | None = None  # priority and group that the order is made for
        # Most urgent until the first object says how urgent it is: it is pulled, not sent.
        self._order = SendOrder(
            Tier.OBJECT, priority, 0, -request_id - 1 if fill is None else fill.flow
        )
        self.stream = session.transport.open(self._order, unidirectional=True)
        session.adopt(self.stream, self)
        session.transport.feed(self.stream, self._chunks(delivery))

    def reprioritise(self, priority: int) -> None:
        """A new Subscriber Priority for what is not yet sent."""
        self._order = self._order._replace(subscriber=priority)
        self._session.transport.reorder(self.stream, self._order)

    def cancel(self, code: int) -> None:
        """Reset."""
        started = self._session.transport.started(self.stream)
        self._session.transport.reset(self.stream, code)
        self._end(counted=started)

    # -- stream owner ----------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Never: the stream is ours."""

    def reset(self, code: int) -> None:
        """Never: the stream is ours."""

    def stop(self, code: int) -> None:
        """The peer wants no more of this stream alone."""
        self.cancel(code)

    def sent(self) -> None:
        """FIN has left."""
        self._end(counted=True)

    def closed(self, error: MoqtError) -> None:
        """The session is gone; the request hears it by itself."""
        self._over = None

    # -- inside ----------------------------------------------------------------------------------

    def _end(self, *, counted: bool) -> None:
        self._session.forget(self.stream)
        over, self._over = self._over, None
        if over is not None:
            over(self, counted=counted)

    def _wake(self) -> None:
        self._session.transport.wake(self.stream)

    def _chunks(self, delivery: Delivery) -> ChunkSource:
        source, within, order, filters, fill_timeout = delivery
        encoder = FetchEncoder(order)
        sent = self._session.counters.sent
        header = encode_fetch_header(FetchHeader(self._request_id), self._session.profile)
        passing = False
        try:
            for item in source.objects(within, order, self._wake, fill_timeout):
                if item is None:
                    yield None
                elif isinstance(item, Gap):
                    yield Chunk((header + encoder.gap(item),))
                    header = b""
                elif not isinstance(item, StoredObject):
                    if passing:
                        yield Chunk((item,))
                elif passing := filters.admit(item.head):
                    head = item.head
                    views = (header + encoder.head(head), *item.payload)
                    sent.carried(1, head.length)
                    yield Chunk(views, self._moved(head.priority, head.group))
                    header = b""
        except StreamAbort as abort:
            sent.resets[code_name(abort.code)] += 1
            if header:  # the peer must learn which fill has failed (draft-22 §3.4.1)
                yield Chunk((header,))
            self._end(counted=True)
            raise
        if header:
            yield Chunk((header,))

    def _moved(self, priority: int, group: int) -> SendOrder | None:
        """The order from an object of ``group`` on; None when it is the present one."""
        if self._at == (priority, group):
            return None
        self._at = priority, group
        order, fill = self._order, self._fill
        place = () if fill is None else rank(self._group_order, group, FILL, against=fill.against)
        self._order = order._replace(publisher=priority, rank=place)
        return self._order


class RangeOver(Protocol):
    """Told once that a RangeStream is over; ``counted`` when the peer can have seen it."""

    def __call__(self, stream: RangeStream, /, *, counted: bool) -> None: ...
