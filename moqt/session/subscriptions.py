"""A subscription as its subscriber sees it (draft-22 §3.1, §9.6, §9.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.params import Parameters, Place, Scope
from moqt.errors import DoneCode, Misuse, StreamCode
from moqt.model import GroupOrder, LocationFilter, LocationFilterType
from moqt.session.filters import RangeFilters
from moqt.session.ports import TrackInfo
from moqt.session.requests import OutgoingRequest
from moqt.session.state import SUBSCRIBER, Request
from moqt.session.track_requests import TrackRequest
from moqt.session.updates import OwnUpdates, check_update

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.properties import TrackProperties
    from moqt.model import FullTrackName, Location, ObjectSink
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver
    from moqt.session.state import Table
    from moqt.session.timers import Timer

_UNFILTERED = LocationFilter(LocationFilterType.NONE)


class SubscriberHalf(TrackRequest):
    """A subscription of ours, whoever began it: SUBSCRIBE, or PUBLISH of the peer."""

    def prepare(self, name: FullTrackName, parameters: Parameters) -> None:
        """Begin with ``parameters``; a fill among them may come at once."""
        self.name = name
        self.track_alias: int | None = None
        self.default_priority = 128
        #: Milliseconds until the publisher means to end it, 0 or None for never (§9.20.16).
        self.expires: int | None = None
        #: Called with what PUBLISH_STATE_NOTIFY says (draft-22 §9.10).
        self.on_notify: Callable[[Parameters], None] | None = None
        #: Called with the id of an update of ours and what the peer answers: Largest Object
        #: (§9.20.17).
        self.on_updated: Callable[[int, Parameters], None] | None = None
        self._dynamic_groups = False
        # As the peer knows them: the values of the last update that it has answered.
        self._forward = True
        self._place = _UNFILTERED
        self._within = _UNFILTERED.on_subscription(None)
        # As we have asked for, answered or not.
        self._filters = RangeFilters(parameters.range_filters)
        self.integrity.filtered = bool(parameters.range_filters)
        self._group_order = parameters.group_order
        self._opening = parameters
        self._own_updates = OwnUpdates(self)
        self._fills: set[int] = set()  # request ids of those that may yet come
        self._streams: dict[int, tuple[int, int | None] | None] = {}  # open ones: group, subgroup
        self._stream_count = 0
        self._done: m.PublishDone | None = None
        self._drain: Timer | None = None
        self._expect_fill(self.request_id, parameters)

    # -- application -----------------------------------------------------------------------------

    def update(self, parameters: Parameters) -> int:
        """REQUEST_UPDATE (draft-22 §9.5), its id; Misuse where the peer would have to close."""
        if self.state is not Request.ESTABLISHED:
            raise Misuse("only an established subscription can be updated")
        if parameters.new_group_request is not None and not self._dynamic_groups:
            raise Misuse("the track has no DYNAMIC_GROUPS: it takes no NEW_GROUP_REQUEST")
        check_update(parameters, Place.UPDATE_SUBSCRIPTION)
        filters = self._filters.updated(parameters.range_filters)
        message = self._own_updates.send(parameters, filters)
        self._filters = filters
        self.integrity.filtered |= bool(parameters.range_filters)
        self._expect_fill(message.request_id, parameters)
        return message.request_id

    # -- messages --------------------------------------------------------------------------------

    def establish(self, alias: int, properties: TrackProperties, largest: Location | None) -> None:
        """Bind the alias; data that came early is delivered now."""
        self.default_priority = properties.default_publisher_priority
        self._dynamic_groups = properties.dynamic_groups
        self.track_alias = alias
        fill = self._applied(self.request_id, self._opening, largest)
        self.receiver.accepted(TrackInfo(properties, largest, fill, expires=self.expires))
        if self.state is Request.ESTABLISHED:
            self.session.streams.bind(alias, self)

    def on_update_ok(self, message: m.RequestOk) -> None:
        """REQUEST_OK answers the oldest open update."""
        update = self._own_updates.answered(message)
        if message.parameters.expires is not None:
            self.expires = message.parameters.expires
        self._applied(update.request_id, update.parameters, message.parameters.largest_object)
        if self.on_updated is not None:
            self.on_updated(update.request_id, message.parameters)

    def on_update_error(self, message: m.RequestError) -> None:
        """A failed update; PUBLISH_DONE(UPDATE_FAILED) follows (draft-22 §9.5)."""
        self._drop_fill(self._own_updates.answered(message).request_id)

    def on_state_notify(self, message: m.PublishStateNotify) -> None:
        """The publisher changed something on its own; nothing is required (draft-22 §9.10)."""
        if self.on_notify is not None:
            self.on_notify(message.parameters)

    def on_publish_done(self, message: m.PublishDone) -> None:
        """The last message; streams may still be on their way (draft-22 §9.9)."""
        self._done = message
        self._drain = self.session.call_later(self.session.config.done_timeout, self._drain_overdue)
        self._check_drained()

    # -- data ------------------------------------------------------------------------------------

    def reluctance(self, group: int, subgroup: int | None) -> tuple[bool, bool, bool, int]:
        """How unlikely a stream is ours when several subscriptions share our alias: least wins."""
        outside = group < self._within.start.group or (
            self._within.end is not None and group > self._within.end.group
        )
        running = subgroup is not None and (group, subgroup) in self._streams.values()
        return self.state is not Request.ESTABLISHED, outside, running, self._stream_count

    def count_stream(self, stream: int, key: tuple[int, int | None] | None) -> None:
        """A data stream of this subscription is here: that of (group, subgroup), or a fill."""
        self._streams[stream] = key
        self._stream_count += 1

    def open_fetch(self, stream: int, request_id: int) -> ObjectSink:
        """The fill stream of ``request_id`` starts."""
        self._drop_fill(request_id)
        self.count_stream(stream, None)
        return self.receiver.open_fetch(request_id)

    def stream_over(self, stream: int, code: int | None) -> None:
        """A data stream of ours ended; its sink has heard how."""
        self._streams.pop(stream, None)
        self._check_drained()

    # -- ends ------------------------------------------------------------------------------------

    def release(self, code: int) -> None:
        """Stop the data streams with ``code`` and leave every map."""
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
        self.drop_fills()
        streams, self._streams = self._streams, {}
        self.session.streams.release(self, self.track_alias, streams, code)

    def _applied(self, request_id: int, asked: Parameters, largest: Location | None) -> bool:
        """The peer has applied ``asked``; True when a fill stream will come (draft-22 §3.4.1)."""
        if asked.forward is not None:
            self._forward = asked.forward
        if asked.location_filter is not None:
            self._place = asked.location_filter
            self._within = self._place.on_subscription(largest)
        if asked.fill is None:
            return False
        place = asked.fill.location_filter or self._place
        comes = self._forward and place.on_fetch(largest) is not None
        if not comes:
            self._drop_fill(request_id)
        return comes

    def _expect_fill(self, request_id: int, parameters: Parameters) -> None:
        if parameters.fill is not None:
            order = parameters.fill.group_order or self._group_order or GroupOrder.ASCENDING
            self._fills.add(request_id)
            self.session.streams.expect_fetch(request_id, self, order)

    def drop_fills(self) -> None:
        """No fill stream is awaited any more."""
        for request_id in tuple(self._fills):
            self._drop_fill(request_id)

    def _drop_fill(self, request_id: int) -> None:
        self._fills.discard(request_id)
        self.session.streams.forget_fetch(request_id)

    def _check_drained(self) -> None:
        done = self._done
        if done is not None and not self._streams and self._stream_count >= done.stream_count:
            self._drained(done, complete=True)

    def _drain_overdue(self) -> None:
        """Time for stragglers is over once no stream has brought anything for so long."""
        session = self.session
        due = session.streams.heard(self._streams) + session.config.done_timeout
        if due > session.now:
            self._drain = session.call_later(due - session.now, self._drain_overdue)
        elif self._done is not None:
            self._drained(self._done, complete=False)

    def _drained(self, done: m.PublishDone, *, complete: bool) -> None:
        """All streams are in, or the time for stragglers is over."""
        self.state = Request.CLOSED
        self.release(StreamCode.CANCELLED)
        self.finish()
        known = done.status in DoneCode._value2member_map_
        self.receiver.done(done.status if known else DoneCode.INTERNAL_ERROR, done.reason, complete)


class OutgoingSubscribe(SubscriberHalf, OutgoingRequest):
    """SUBSCRIBE of ours, from the request to the last stream."""

    table: ClassVar[Table] = SUBSCRIBER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIPTION

    def __init__(
        self, session: Context, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> None:
        super().__init__(session, lambda request_id: m.Subscribe(request_id, name, parameters))
        self.receiver = receiver
        session.streams.expect_alias(self)
        self.prepare(name, parameters)

    def on_subscribe_ok(self, message: m.SubscribeOk) -> None:
        """The publisher accepts."""
        self.session.streams.check_alias(message.track_alias, self.name)
        properties = self.read_properties(message.properties)
        if properties is not None:
            self.expires = message.parameters.expires
            self.establish(message.track_alias, properties, message.parameters.largest_object)

    def peer_finished(self) -> None:
        """FIN without PUBLISH_DONE is a failure (draft-22 §6.4.2.2)."""
        if self.state is Request.ESTABLISHED:
            self.unfinished("the peer finished the stream without PUBLISH_DONE")
        else:
            super().peer_finished()
