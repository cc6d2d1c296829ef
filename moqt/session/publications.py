"""A subscription as its publisher sees it; TRACK_STATUS at both ends (draft-22 §3.1, §9.7, §9.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.datagram import encode_datagram
from moqt.codec.params import Parameters, Scope
from moqt.errors import DoneCode, RequestRefused, StreamCode
from moqt.model import GroupOrder, Location, LocationFilter, LocationRange
from moqt.session.fetches import WHOLE_TRACK, RangeStream
from moqt.session.filters import RangeFilters
from moqt.session.requests import IncomingRequest, OutgoingRequest
from moqt.session.state import RESPONDER, STATUS_ANSWERER, STATUS_ASKER, Request
from moqt.session.subgroups import SubgroupStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, ObjectHead, ObjectSink, SubgroupHead, TrackSource
    from moqt.session.context import Context
    from moqt.session.state import Table
    from transport.api import BytesLike


class IncomingSubscribe(IncomingRequest):
    """SUBSCRIBE of the peer; once accepted, the publisher's handle on that subscription.

    The source that accepted it calls ``subgroup`` for every subgroup it opens, ``datagram`` for
    datagram objects and ``done`` at the end.
    """

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIPTION

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self.name: FullTrackName
        self.track_alias = 0
        self.forward = True
        self.priority = 128
        self.group_order = GroupOrder.ASCENDING
        self.within = LocationRange(Location(0, 0), None)
        self.filters = RangeFilters()
        self._source: TrackSource
        self._subgroups: set[SubgroupStream] = set()
        self._fills: set[RangeStream] = set()
        self._stream_count = 0
        self._done: m.PublishDone | None = None

    def start(self, message: m.Subscribe) -> None:
        """Take the request in and ask the application."""
        self.request_id = message.request_id
        self.name = message.name
        self.parameters = message.parameters
        self.ask(self.session.handler.on_subscribe)

    # -- the source's side -----------------------------------------------------------------------

    def accept(self, source: TrackSource, order: GroupOrder = GroupOrder.ASCENDING) -> None:
        """SUBSCRIBE_OK; filters and fill are resolved against one Largest Object (draft-22 §3.4).

        ``order`` is the track's DEFAULT_PUBLISHER_GROUP_ORDER.
        """
        if self.state is not Request.PENDING:
            return
        wanted = self.parameters
        self._source = source
        self.state = Request.ESTABLISHED
        self.group_order = wanted.group_order or order
        self.filters = RangeFilters(wanted.range_filters)
        self._apply(wanted, source.largest)
        self.track_alias = self.session.allocate_alias()
        properties = b"" if wanted.include_properties is False else source.properties
        self.send(
            m.SubscribeOk(self.track_alias, Parameters(largest_object=source.largest), properties)
        )
        self._fill(self.request_id, wanted, source.largest)

    def subgroup(self, key: SubgroupHead) -> ObjectSink:
        """A sink for one subgroup; its stream opens with the first object that passes."""
        return SubgroupStream(self, key)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """One datagram object, dropped when it does not pass or does not fit (draft-22 §11.2)."""
        if self.passes(head):
            self.session.transport.send_datagram(encode_datagram(self.track_alias, head, payload))

    def done(self, code: DoneCode, reason: str = "") -> None:
        """PUBLISH_DONE, as soon as every stream of the subscription is closed (draft-22 §9.9)."""
        if self.state is Request.ESTABLISHED:
            self.state = Request.DRAINING
            self._done = m.PublishDone(code, 0, reason)
            self._check_drained()

    def passes(self, head: ObjectHead) -> bool:
        """Not paused, and let through by every filter (draft-22 §3.3.3)."""
        return self.forward and head.location in self.within and self.filters.admit(head)

    @property
    def active(self) -> bool:
        """True while objects may be sent."""
        return self.state in (Request.ESTABLISHED, Request.DRAINING)

    # -- streams ---------------------------------------------------------------------------------

    def stream_open(self, subgroup: SubgroupStream) -> None:
        """A data stream will open."""
        self._subgroups.add(subgroup)

    def stream_over(self, subgroup: SubgroupStream, *, counted: bool) -> None:
        """It was finished and sent, or reset; ``counted`` when the peer can have seen it."""
        self._subgroups.discard(subgroup)
        self._stream_count += counted
        self._check_drained()

    # -- the subscriber's side -------------------------------------------------------------------

    def update(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Apply what may change; a failure ends the subscription (draft-22 §9.5)."""
        if self.state is not Request.ESTABLISHED:
            return
        wanted = message.parameters
        filters = self.filters.updated(wanted.range_filters)
        if refusal is None:
            refusal = self.session.check_spans(filters)
        if refusal is not None:
            self.send(m.RequestError(refusal.code, 0, refusal.reason, None))
            self._abort_streams(StreamCode.CANCELLED)
            self.done(DoneCode.UPDATE_FAILED, refusal.reason)
            return
        largest = self._source.largest
        self.filters = filters
        self._apply(wanted, largest)
        self.send(m.RequestOk(Parameters(largest_object=largest)))
        self._fill(message.request_id, wanted, largest)

    def withdrawn(self) -> None:
        """The subscriber cancelled, or its session ended: reset everything of this subscription."""
        self.state = Request.CLOSED
        self._abort_streams(StreamCode.CANCELLED)
        self.ended()

    def _apply(self, wanted: Parameters, largest: Location | None) -> None:
        if wanted.forward is not None:
            self.forward = wanted.forward
        if wanted.location_filter is not None:
            self.within = wanted.location_filter.on_subscription(largest)
        if wanted.subscriber_priority is not None and wanted.subscriber_priority != self.priority:
            self.priority = wanted.subscriber_priority
            for subgroup in self._subgroups:
                subgroup.reorder()

    def _fill(self, request_id: int, wanted: Parameters, largest: Location | None) -> None:
        """Steps 2 to 6 of the fill rules (draft-22 §3.4.1)."""
        if wanted.fill is None or not self.forward:
            return
        place: LocationFilter = (
            wanted.fill.location_filter or self.parameters.location_filter or WHOLE_TRACK
        )
        within = place.on_fetch(largest)
        if within is None:
            return
        order = wanted.fill.group_order or self.parameters.group_order or GroupOrder.ASCENDING
        priority = (
            self.priority
            if wanted.fill.subscriber_priority is None
            else wanted.fill.subscriber_priority
        )
        filters = (
            RangeFilters(wanted.fill.range_filters) if wanted.fill.range_filters else self.filters
        )
        fill = RangeStream(
            self.session,
            request_id,
            self._source,
            within,
            order,
            priority,
            filters,
            self._fill_over,
        )
        self._fills.add(fill)

    def _fill_over(self, fill: RangeStream, *, counted: bool) -> None:
        self._fills.discard(fill)
        self._stream_count += counted
        self._check_drained()

    def _abort_streams(self, code: int) -> None:
        for subgroup in tuple(self._subgroups):
            subgroup.abort(code)
        for fill in tuple(self._fills):
            fill.cancel(code)

    def _check_drained(self) -> None:
        if (
            self._done is None
            or self._subgroups
            or self._fills
            or self.state is not Request.DRAINING
        ):
            return
        self.state = Request.CLOSED
        self.send(m.PublishDone(self._done.status, self._stream_count, self._done.reason), fin=True)
        self.ended()


class IncomingTrackStatus(IncomingRequest):
    """TRACK_STATUS of the peer: what a SUBSCRIBE_OK would say, and nothing kept (draft-22 §9.13)."""

    table: ClassVar[Table] = STATUS_ANSWERER
    scope: ClassVar[Scope | None] = Scope.TRACK_STATUS

    def start(self, message: m.TrackStatus) -> None:
        """Take the request in and ask the application."""
        self.request_id = message.request_id
        self.name = message.name
        self.parameters = message.parameters
        self.ask(self.session.handler.on_track_status)

    def accept(self, source: TrackSource) -> None:
        """Answer from ``source``."""
        if self.state is not Request.PENDING:
            return
        self.state = Request.CLOSED
        properties = b"" if self.parameters.include_properties is False else source.properties
        self.send(m.RequestOk(Parameters(largest_object=source.largest), properties), fin=True)


class OutgoingTrackStatus(OutgoingRequest):
    """TRACK_STATUS of ours; ``answer`` gets the REQUEST_OK or the error."""

    table: ClassVar[Table] = STATUS_ASKER
    scope: ClassVar[Scope | None] = Scope.TRACK_STATUS

    def __init__(
        self,
        session: Context,
        name: FullTrackName,
        parameters: Parameters,
        answer: Callable[[m.RequestOk | MoqtError], None],
    ) -> None:
        super().__init__(session, session.ids.allocate())
        self._answer = answer
        self.send(m.TrackStatus(self.request_id, name, parameters), fin=True)

    def on_ok(self, message: m.RequestOk) -> None:
        """TRACK_STATUS_OK."""
        self._answer(message)

    def on_error(self, message: m.RequestError) -> None:
        """REQUEST_ERROR."""
        self._answer(self.failure(message))

    def failed(self, error: MoqtError) -> None:
        """No answer came."""
        self._answer(error)
