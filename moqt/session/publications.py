"""A subscription as its publisher sees it (draft-22 §3.1, §9.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.datagram import encode_datagram
from moqt.codec.params import Parameters, Scope
from moqt.errors import DoneCode, RequestCode, RequestRefused, StreamCode
from moqt.model import GroupOrder
from moqt.session.answering import IncomingRequest
from moqt.session.checks import check_spans
from moqt.session.fetches import WHOLE_TRACK
from moqt.session.filters import RangeFilters
from moqt.session.lifetimes import Lifetime
from moqt.session.ranges import Delivery, Place, RangeStream
from moqt.session.requests import RequestStream
from moqt.session.state import RESPONDER, Request
from moqt.session.subgroups import SubgroupStream
from moqt.session.timeouts import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import (
        FullTrackName,
        Location,
        ObjectHead,
        ObjectSink,
        SubgroupHead,
        TrackSource,
    )
    from moqt.session.context import Context
    from moqt.session.state import Table
    from moqt.session.timers import Timer
    from transport.api import BytesLike


class PublisherHalf(RequestStream):
    """A subscription that we serve, whoever began it: SUBSCRIBE of the peer, or PUBLISH.

    The source calls ``subgroup`` for every subgroup it opens, ``datagram`` for datagram objects
    and ``done`` at the end, or ``abort`` to end it at once.
    """

    name: FullTrackName
    parameters: Parameters

    def prepare(self, session: Context) -> None:
        """Nothing is served yet."""
        self.lifetime = Lifetime(session, self._expired)
        self.track_alias = 0
        self.forward = True
        self.priority = 128
        self.group_order = GroupOrder.ASCENDING
        self.within = WHOLE_TRACK.on_subscription(None)
        self.filters = RangeFilters()
        #: Delivery timeouts of the track, and those that the subscriber asks for.
        self.published_timeouts = UNLIMITED
        self.timeouts = UNLIMITED
        self._place = WHOLE_TRACK
        self._source: TrackSource | None = None
        self._subgroups: set[SubgroupStream] = set()
        #: Fill streams, and whether each has the subscription's priority.
        self._fills: dict[RangeStream, bool] = {}
        self._stream_count = 0
        self._done: tuple[DoneCode, str] | None = None
        #: Octets of subgroups that wait here for their turn, and what keeping them and their open
        #: streams costs; its fills wait at their source.
        self.backlog = 0
        #: Called when the subscriber has paused or resumed it.
        self.on_forward: Callable[[], None] | None = None
        #: Called with NEW_GROUP_REQUEST: 0, or the largest known group plus one (§9.20.19).
        self.on_new_group: Callable[[int], None] | None = None

    def subgroup(self, key: SubgroupHead, after: Location | None = None) -> ObjectSink:
        """A sink for one subgroup; its stream opens with the first object that passes.

        ``after`` is the subgroup's last object so far: when the subscription should have had it,
        the stream ends with a reset instead of FIN (draft-22 §11.3.2).
        """
        return SubgroupStream(self, key, after)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """One datagram object, dropped when it does not pass or does not fit (draft-22 §11.2)."""
        if self.active and self.state is not Request.DRAINING and self.passes(head):
            octets = encode_datagram(self.track_alias, head, payload)
            if self.session.transport.send_datagram(octets):
                self.session.counters.sent.datagram(head.length)

    def done(self, code: DoneCode, reason: str = "") -> None:
        """PUBLISH_DONE, as soon as every stream of the subscription is closed (draft-22 §9.9)."""
        if self.state is Request.ESTABLISHED:
            self.state = Request.DRAINING
            self._done = code, reason
            self._check_drained()

    def abort(self, code: DoneCode, reason: str = "") -> None:
        """Reset every open stream, then PUBLISH_DONE at once."""
        if self.active:
            self.state = Request.DRAINING
            self._done = None
            self._abort_streams(StreamCode.INTERNAL_ERROR)
            self._done = code, reason
            self._check_drained()

    def notify(self) -> None:
        """PUBLISH_STATE_NOTIFY: how far the track has come (draft-22 §9.10)."""
        if self.state is Request.ESTABLISHED and self._source is not None:
            self.send(m.PublishStateNotify(Parameters(largest_object=self._source.largest)))

    def passes(self, head: ObjectHead) -> bool:
        """Not paused, and let through by every filter (draft-22 §3.3.3)."""
        return self.forward and head.location in self.within and self.filters.admit(head)

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

    def apply_update(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Apply what may change; a failure ends the subscription (draft-22 §9.5)."""
        wanted, source = message.parameters, self._source
        filters = self.filters.updated(wanted.range_filters)
        if refusal is None:
            refusal = check_spans(filters, self.session.config)
        if refusal is None and wanted.fill is not None:
            refusal = self._too_many_fills()
        if refusal is not None or source is None:
            refusal = refusal or RequestRefused(RequestCode.INTERNAL_ERROR)
            self._send_error(refusal)
            self.abort(DoneCode.UPDATE_FAILED, refusal.reason)
            return
        largest = source.largest
        self.filters = filters
        self._apply(wanted, largest)
        granted = Parameters(expires=self.lifetime.grant(), largest_object=largest)
        self.send(m.RequestOk(granted))
        self._fill(message.request_id, wanted, source, largest)
        self._ask_group(wanted)
        if wanted.forward is not None and self.on_forward is not None:
            self.on_forward()

    def _apply(self, wanted: Parameters, largest: Location | None) -> None:
        self.timeouts = self.timeouts.updated(wanted)
        if wanted.forward is not None:
            self.forward = wanted.forward
        if wanted.location_filter is not None:
            self._place = wanted.location_filter
            self.within = self._place.on_subscription(largest)
        if wanted.subscriber_priority is not None and wanted.subscriber_priority != self.priority:
            self.priority = wanted.subscriber_priority
            for subgroup in self._subgroups:
                subgroup.reorder()
            for fill, inherits in self._fills.items():
                if inherits:
                    fill.reprioritise(self.priority)

    def _fill(
        self, request_id: int, wanted: Parameters, source: TrackSource, largest: Location | None
    ) -> None:
        """Steps 2 to 6 of the fill rules (draft-22 §3.4.1); what is not said is inherited."""
        asked = wanted.fill
        if asked is None or not self.forward:
            return
        within = (asked.location_filter or self._place).on_fetch(largest)
        if within is None:
            return
        order = asked.group_order or self.parameters.group_order or GroupOrder.ASCENDING
        inherits = asked.subscriber_priority is None
        fill = RangeStream(
            self.session,
            request_id,
            Delivery(
                source,
                within,
                order,
                self.filters.updated(asked.range_filters),
                asked.fill_timeout,
            ),
            self.priority if asked.subscriber_priority is None else asked.subscriber_priority,
            self._fill_over,
            Place(self.request_id, against=order is not self.group_order),
        )
        self._fills[fill] = inherits

    def _too_many_fills(self) -> RequestRefused | None:
        limit = self.session.config.max_fills
        if len(self._fills) < limit:
            return None
        return RequestRefused(RequestCode.EXCESSIVE_LOAD, f"{limit} fills are open")

    def _fill_over(self, fill: RangeStream, *, counted: bool) -> None:
        self._fills.pop(fill, None)
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
        code, reason = self._done
        self.send(m.PublishDone(code, self._stream_count, reason))
        self.close()

    def ended(self) -> None:
        """Let the source go and tell the application."""
        self._source = None
        self.lifetime.cancel()
        super().ended()

    def _expired(self) -> None:
        self.abort(DoneCode.EXPIRED, "not extended in time")

    def _ask_group(self, wanted: Parameters) -> None:
        """Pass NEW_GROUP_REQUEST on; a track without dynamic groups ignores it (§3.5.1)."""
        if wanted.new_group_request is not None and self.on_new_group is not None:
            self.on_new_group(wanted.new_group_request)


class IncomingSubscribe(PublisherHalf, IncomingRequest):
    """SUBSCRIBE of the peer; once accepted, the publisher's handle on that subscription."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIPTION

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self._waits: Timer | None = None
        self.prepare(session)

    def start(self, message: m.Subscribe) -> None:
        """Take the request in and ask the application."""
        self.request_id = message.request_id
        self.name = message.name
        self.parameters = message.parameters
        self.ask(self.session.handler.on_subscribe)

    def accept(self, source: TrackSource, order: GroupOrder = GroupOrder.ASCENDING) -> None:
        """SUBSCRIBE_OK; filters and fill are resolved against one Largest Object (draft-22 §3.4).

        ``order`` is the track's DEFAULT_PUBLISHER_GROUP_ORDER.
        """
        if self.state is not Request.PENDING:
            return
        self._stop_waiting()
        wanted = self.parameters
        largest = source.largest
        alias = self.session.allocate_alias()
        properties = b"" if wanted.include_properties is False else source.properties
        granted = Parameters(expires=self.lifetime.grant(), largest_object=largest)
        self.send(m.SubscribeOk(alias, granted, properties))
        self._source = source
        self.published_timeouts = UNLIMITED.overridden(source.properties)
        self.track_alias = alias
        self.state = Request.ESTABLISHED
        self.group_order = wanted.group_order or order
        self.filters = RangeFilters(wanted.range_filters)
        self._apply(wanted, largest)
        self._fill(self.request_id, wanted, source, largest)
        self._ask_group(wanted)
        self.answer_updates()

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """The subscriber changes what it wants."""
        self.apply_update(message, refusal)

    def revoke(self, code: int) -> None:
        """No longer granted: PUBLISH_DONE says so."""
        if self.state is Request.PENDING:
            super().revoke(code)
        else:
            self.abort(DoneCode.UNAUTHORIZED, "no longer granted")

    def refuse_after(self, milliseconds: int) -> None:
        """TIMEOUT unless it is answered by then (draft-22 §9.20.6)."""
        self._stop_waiting()
        self._waits = self.session.call_after_tick(
            milliseconds / 1000, lambda: self.refuse(RequestCode.TIMEOUT, "no such track came")
        )

    def ended(self) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        super().ended()

    def _stop_waiting(self) -> None:
        timer, self._waits = self._waits, None
        if timer is not None:
            timer.cancel()

    def withdrawn(self) -> None:
        """The subscriber cancelled, or its session ended: reset everything of this subscription."""
        self._abort_streams(StreamCode.CANCELLED)
        self.ended()
