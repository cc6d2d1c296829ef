"""FETCH from both ends, and the stream that serves a fetch or a fill (draft-22 §3.2, §3.4, §11.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from moqt.codec import messages as m
from moqt.codec.data import FetchEncoder, FetchHeader, encode_fetch_header
from moqt.codec.params import Parameters, Scope
from moqt.errors import (
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    StreamCode,
    StreamReset,
)
from moqt.model import Gap, GroupOrder, LocationFilter, LocationFilterType
from moqt.session.filters import RangeFilters
from moqt.session.ports import TrackInfo
from moqt.session.requests import IncomingRequest, TrackRequest
from moqt.session.state import FETCHER, RESPONDER, Request
from transport.api import Chunk, SendOrder, Tier

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, Location, LocationRange, ObjectSink, TrackSource
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver
    from moqt.session.state import Table
    from transport.api import BytesLike, ChunkSource

WHOLE_TRACK = LocationFilter(LocationFilterType.NONE)


class OutgoingFetch(TrackRequest):
    """FETCH of ours: one answer, one data stream, in either order."""

    table: ClassVar[Table] = FETCHER
    scope: ClassVar[Scope | None] = Scope.FETCH

    def __init__(
        self, session: Context, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> None:
        super().__init__(session, name, receiver)
        self._order = parameters.group_order or GroupOrder.ASCENDING
        self._start = _first(parameters)
        self._stream: int | None = None
        self._awaits_stream = True
        session.streams.expect_fetch(self.request_id, self)
        self.send(m.Fetch(self.request_id, name, parameters))

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Stop the request and its data; nothing more is reported."""
        self._release(code)
        super().cancel(code)

    def on_fetch_ok(self, message: m.FetchOk) -> None:
        """End Location is known; the objects may be before or behind it."""
        if self._start is not None and message.end < self._start:
            raise ProtocolViolation("FETCH_OK ends before the requested start")
        properties = self.read_properties(message.properties)
        if properties is None:
            return
        self.receiver.accepted(
            TrackInfo(properties, end=message.end, end_of_track=message.end_of_track)
        )
        self._check_over()

    def on_update_ok(self, message: m.RequestOk) -> None:
        """FETCH is never answered with REQUEST_OK, and we send no updates for it (draft-22 §9.3)."""
        raise ProtocolViolation("REQUEST_OK on a FETCH stream without an open update")

    def on_error(self, message: m.RequestError) -> None:
        """REQUEST_ERROR; objects already received stay valid (draft-22 §3.2)."""
        self.failed(self.failure(message))

    def fetch_order(self, request_id: int) -> GroupOrder | None:
        """Group order of the stream to come; None when it has come."""
        return self._order if self._awaits_stream and request_id == self.request_id else None

    def open_fetch(self, stream: int, request_id: int) -> ObjectSink:
        """The data stream starts."""
        self._awaits_stream = False
        self._stream = stream
        self.session.streams.forget_fetch(request_id)
        return self.receiver.open_fetch(request_id)

    def stream_over(self, stream: int, code: int | None) -> None:
        """FIN of the data stream, or its reset: what came stays valid, the fetch is over."""
        self._stream = None
        if code is None:
            self._check_over()
        else:
            self.fail(StreamReset(code))

    def failed(self, error: MoqtError) -> None:
        """Over without success."""
        self._release(StreamCode.CANCELLED)
        self.receiver.failed(error)

    def _check_over(self) -> None:
        if self.state is Request.ESTABLISHED and not self._awaits_stream and self._stream is None:
            self.state = Request.CLOSED
            self.finish()
            self.receiver.done(0, "", True)

    def _release(self, code: int) -> None:
        if self._awaits_stream:
            self._awaits_stream = False
            self.session.streams.forget_fetch(self.request_id)
        streams = set() if self._stream is None else {self._stream}
        self._stream = None
        self.session.streams.release(self, None, streams, code)


class IncomingFetch(IncomingRequest):
    """FETCH of the peer, waiting to be served from a TrackSource."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.FETCH

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self.name: FullTrackName
        self._out: RangeStream | None = None

    def start(self, message: m.Fetch) -> None:
        """Take the request in and ask the application."""
        self.request_id = message.request_id
        self.name = message.name
        self.parameters = message.parameters
        self.ask(self.session.handler.on_fetch)

    def accept(self, source: TrackSource) -> None:
        """FETCH_OK and the data stream.

        Raises RequestRefused(INVALID_RANGE) when the range holds nothing (draft-22 §3.2).
        """
        if self.state is not Request.PENDING:
            return
        within = (self.parameters.location_filter or WHOLE_TRACK).on_fetch(source.largest)
        if within is None or within.end is None or source.largest is None:
            raise RequestRefused(
                RequestCode.INVALID_RANGE, "nothing published in the requested range"
            )
        ends = source.ended and within.end == source.largest
        last = within.end if ends else max(source.last_within(within) or within.start, within.start)
        properties = b"" if self.parameters.include_properties is False else source.properties
        self.state = Request.ESTABLISHED
        self.send(m.FetchOk(ends, last, Parameters(), properties))
        order = self.parameters.group_order or GroupOrder.ASCENDING
        priority = (
            128
            if self.parameters.subscriber_priority is None
            else self.parameters.subscriber_priority
        )
        filters = RangeFilters(self.parameters.range_filters)
        self._out = RangeStream(
            self.session, self.request_id, source, within, order, priority, filters, self._served
        )

    def update(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Only the priority can change; a failure resets the data (draft-22 §9.5)."""
        if refusal is not None and self._out is not None:
            self._out.cancel(StreamCode.CANCELLED)
        if (
            refusal is None
            and self._out is not None
            and message.parameters.subscriber_priority is not None
        ):
            self._out.reprioritise(message.parameters.subscriber_priority)
        super().update(message, refusal)

    def withdrawn(self) -> None:
        """Cancelled: the data stream is reset with it (draft-22 §3.2)."""
        out, self._out = self._out, None
        if out is not None:
            out.cancel(StreamCode.CANCELLED)
        self.ended()

    def _served(self, _: RangeStream, *, counted: bool) -> None:
        self._out = None
        self.state = Request.CLOSED
        self.finish()
        self.ended()


class RangeStream:
    """One outgoing fetch-format stream: pulled object by object when its turn comes."""

    def __init__(
        self,
        session: Context,
        request_id: int,
        source: TrackSource,
        within: LocationRange,
        order: GroupOrder,
        priority: int,
        filters: RangeFilters,
        over: RangeOver,
    ) -> None:
        self._session = session
        self._priority = priority
        self._publisher_priority = 128
        self._over: RangeOver | None = over
        self.request_id = request_id
        self.stream = session.transport.open(self._send_order(), unidirectional=True)
        session.adopt(self.stream, self)
        session.transport.feed(self.stream, self._chunks(source, within, order, filters))

    def reprioritise(self, priority: int) -> None:
        """A new Subscriber Priority for what is not yet sent."""
        self._priority = priority
        self._session.transport.reorder(self.stream, self._send_order())

    def cancel(self, code: int) -> None:
        """Reset."""
        started = self._session.transport.started(self.stream)
        self._session.transport.reset(self.stream, code)
        self._end(counted=started)

    def _wake(self) -> None:
        self._session.transport.wake(self.stream)

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

    def _end(self, *, counted: bool) -> None:
        self._session.forget(self.stream)
        over, self._over = self._over, None
        if over is not None:
            over(self, counted=counted)

    def _send_order(self) -> SendOrder:
        return SendOrder(
            Tier.OBJECT, self._priority, self._publisher_priority, -self.request_id - 1
        )

    def _chunks(
        self, source: TrackSource, within: LocationRange, order: GroupOrder, filters: RangeFilters
    ) -> ChunkSource:
        encoder = FetchEncoder(order)
        header = encode_fetch_header(FetchHeader(self.request_id))
        for item in source.objects(within, order, self._wake):
            if item is None:
                yield None
            elif isinstance(item, Gap):
                yield Chunk((header + encoder.gap(item),))
                header = b""
            elif filters.admit(item.head):
                self._publisher_priority = item.head.priority
                yield Chunk((header + encoder.head(item.head), *item.payload), self._send_order())
                header = b""
        if header:
            yield Chunk((header,))


class RangeOver(Protocol):
    """Told once that a RangeStream is over; ``counted`` when the peer can have seen it."""

    def __call__(self, stream: RangeStream, /, *, counted: bool) -> None: ...


def _first(parameters: Parameters) -> Location | None:
    """The start a FETCH_OK must not undercut, where it does not depend on the peer's Largest Object."""
    wanted = parameters.location_filter
    if wanted is None or wanted.type in (
        LocationFilterType.RELATIVE_START,
        LocationFilterType.NEXT_OBJECT,
    ):
        return None
    return None if wanted.type is LocationFilterType.NONE else wanted.start
