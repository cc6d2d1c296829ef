"""FETCH from both ends (draft-22 §3.2, §9.11, §9.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.params import Parameters, Place, Scope
from moqt.errors import (
    MalformedTrack,
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    StreamCode,
    StreamReset,
)
from moqt.model import GroupOrder, LocationFilter, LocationFilterType
from moqt.session.answering import IncomingRequest
from moqt.session.filters import RangeFilters
from moqt.session.ports import TrackInfo
from moqt.session.ranges import Delivery, RangeStream
from moqt.session.state import FETCHER, RESPONDER, Request
from moqt.session.track_requests import TrackRequest
from moqt.session.updatable import UpdatableRequest

if TYPE_CHECKING:
    from moqt.model import FullTrackName, Location, LocationRange, ObjectSink, TrackSource
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver
    from moqt.session.state import Table
    from moqt.session.timers import Timer

WHOLE_TRACK = LocationFilter(LocationFilterType.NONE)


class OutgoingFetch(TrackRequest, UpdatableRequest):
    """FETCH of ours: one answer, one data stream, in either order."""

    table: ClassVar[Table] = FETCHER
    scope: ClassVar[Scope | None] = Scope.FETCH
    place: ClassVar[Place] = Place.UPDATE_FETCH

    def __init__(
        self, session: Context, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> None:
        super().__init__(session, lambda request_id: m.Fetch(request_id, name, parameters))
        self.name = name
        self.receiver = receiver
        self._start = _first(parameters)
        self._stream: int | None = None
        self._awaits_stream = True
        self._late: Timer | None = None
        self._said_all = False
        self._may_be_lost = False
        order = parameters.group_order or GroupOrder.ASCENDING
        session.streams.expect_fetch(self.request_id, self, order)

    @property
    def stop_ends(self) -> bool:
        """Once it is answered, its data stream says how it ends."""
        return self.state is Request.PENDING

    def on_fetch_ok(self, message: m.FetchOk) -> None:
        """End Location is known; the objects may be before or behind it."""
        if self._start is not None and message.end < self._start:
            raise ProtocolViolation("FETCH_OK ends before the requested start")
        properties = self.read_properties(message.properties)
        if properties is None:
            return
        if message.end_of_track:
            try:
                self.integrity.end_track(message.end)
            except MalformedTrack as fault:
                self.malformed(fault)
                return
        self.receiver.accepted(
            TrackInfo(properties, end=message.end, end_of_track=message.end_of_track)
        )
        self._check_over()
        self._wait_for_stream()

    def open_fetch(self, stream: int, request_id: int) -> ObjectSink:
        """The data stream starts."""
        self._awaits_stream = False
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._stream = stream
        self.session.streams.forget_fetch(request_id)
        return self.receiver.open_fetch(request_id)

    def stream_over(self, stream: int, code: int | None) -> None:
        """FIN of the data stream, or its reset: what came stays valid, the fetch is over."""
        self._stream = None
        if code is None:
            self._check_over()
        else:
            self._fail(StreamReset(code))

    def stream_lost(self) -> None:
        """A stream was reset before its header: it may have been the one of this fetch."""
        if not self._may_be_lost:
            self._may_be_lost = True
            self._wait_for_stream()

    def peer_finished(self) -> None:
        """All is said: the data stream is on its way, or lost."""
        self._said_all = True
        self._wait_for_stream()
        super().peer_finished()

    def _wait_for_stream(self) -> None:
        """Shortly when both the end of the request and a lost stream speak against it."""
        lost, said_all = self._may_be_lost, self._said_all
        if self.state is not Request.ESTABLISHED or not self._awaits_stream:
            return
        if self._late is not None:
            self._late.cancel()
        if lost or said_all:
            config = self.session.config
            delay = config.stop_grace if lost and said_all else config.done_timeout
            self._late = self.session.call_later(delay, self._never_came)

    def _never_came(self) -> None:
        if self._awaits_stream:
            self._fail(StreamReset(StreamCode.CANCELLED))

    def release(self, code: int) -> None:
        """Stop the data stream with ``code``, expect none."""
        self._awaits_stream = False
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self.session.streams.forget_fetch(self.request_id)
        stream, self._stream = self._stream, None
        if stream is not None:
            self.session.streams.stop((stream,), code)

    def _check_over(self) -> None:
        if self.state is Request.ESTABLISHED and not self._awaits_stream and self._stream is None:
            self.state = Request.CLOSED
            self.finish()
            self.receiver.done(0, "", True)


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
        asked = self.parameters
        within = (asked.location_filter or WHOLE_TRACK).on_fetch(source.largest)
        if within is None:
            raise RequestRefused(
                RequestCode.INVALID_RANGE, "nothing published in the requested range"
            )
        ends, last = self._end(source, within)
        properties = b"" if asked.include_properties is False else source.properties
        self.send(m.FetchOk(ends, last, Parameters(), properties))
        self.state = Request.ESTABLISHED
        priority = 128 if asked.subscriber_priority is None else asked.subscriber_priority
        self._out = RangeStream(
            self.session,
            self.request_id,
            Delivery(
                source,
                within,
                asked.group_order or GroupOrder.ASCENDING,
                RangeFilters(asked.range_filters),
                asked.fill_timeout,
            ),
            priority,
            self._served,
        )
        self.answer_updates()

    def _end(self, source: TrackSource, within: LocationRange) -> tuple[bool, Location]:
        """End Of Track and End Location (draft-22 §9.12): an object if asked for, else the last."""
        end = within.end
        if end is None or end == source.largest:
            largest = source.largest or within.start
            return source.ended, largest
        asked = self.parameters.location_filter
        if asked is not None and asked.type is LocationFilterType.ABSOLUTE_RANGE:
            return False, end
        return False, max(source.last_within(within) or within.start, within.start)

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Only the priority can change; a failure resets the data (draft-22 §9.5)."""
        priority = message.parameters.subscriber_priority
        if refusal is None and priority is not None and self._out is not None:
            self._out.reprioritise(priority)
        out = self._out
        super().updated(message, refusal)
        if refusal is not None and out is not None:
            out.cancel(StreamCode.CANCELLED)

    def revoke(self, code: int) -> None:
        """No longer granted: the data stream says why it ends."""
        if self._out is not None:
            self._out.cancel(code)
        super().revoke(code)

    def withdrawn(self) -> None:
        """Cancelled: the data stream is reset with it (draft-22 §3.2)."""
        if self._out is not None:
            self._out.cancel(StreamCode.CANCELLED)
        self.ended()

    def _served(self, _: RangeStream, *, counted: bool) -> None:
        self._out = None
        if self.state is not Request.CLOSED:
            self.close()


def _first(parameters: Parameters) -> Location | None:
    """The start a FETCH_OK must not undercut; None when it depends on the peer's Largest Object."""
    wanted = parameters.location_filter
    if wanted is None or wanted.type in (
        LocationFilterType.NONE,
        LocationFilterType.RELATIVE_START,
        LocationFilterType.NEXT_OBJECT,
    ):
        return None
    return wanted.start
