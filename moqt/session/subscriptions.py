"""A subscription as its subscriber sees it (draft-22 §3.1, §9.6, §9.7)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from moqt.codec import messages as m
from moqt.codec.params import Parameters, Scope
from moqt.errors import DoneCode, Misuse, ProtocolViolation, StreamCode
from moqt.model import GroupOrder
from moqt.session.ports import TrackInfo
from moqt.session.requests import TrackRequest
from moqt.session.state import SUBSCRIBER, Request

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, Location, ObjectSink, SubgroupHead
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver
    from moqt.session.state import Table

UNKNOWN_COUNT: Final = (1 << 64) - 1


class OutgoingSubscribe(TrackRequest):
    """SUBSCRIBE of ours, from the request to the last stream."""

    table: ClassVar[Table] = SUBSCRIBER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIPTION

    def __init__(
        self, session: Context, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> None:
        super().__init__(session, name, receiver)
        self.track_alias: int | None = None
        self.default_priority = 128
        self._group_order = parameters.group_order
        self._fills: dict[int, GroupOrder] = {}
        self._updates: deque[m.RequestUpdate] = deque()
        self._streams: set[int] = set()  # open data streams
        self._stream_count = 0
        self._announced_count: int | None = None
        self._done: m.PublishDone | None = None
        self._parameters = parameters
        self._expect_fill(self.request_id, parameters)
        self.send(m.Subscribe(self.request_id, name, parameters))

    # -- application -----------------------------------------------------------------------------

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE (draft-22 §9.5); raises Misuse where the peer would have to close."""
        if self.state is not Request.ESTABLISHED:
            raise Misuse("only an established subscription can be updated")
        if parameters.group_order is not None:
            raise Misuse("GROUP_ORDER is fixed for the life of a subscription (§9.5)")
        limit = self.session.peer_options.max_request_updates
        if limit and len(self._updates) >= limit:
            raise Misuse(f"the peer takes {limit} unanswered updates a request, all are in use")
        message = m.RequestUpdate(self.session.ids.allocate(), parameters)
        self._updates.append(message)
        self._expect_fill(message.request_id, parameters)
        self.send(message)

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """End the subscription: stop its streams, forget its alias; nothing more is reported."""
        self._release(code)
        super().cancel(code)

    # -- messages --------------------------------------------------------------------------------

    def on_subscribe_ok(self, message: m.SubscribeOk) -> None:
        """Bind the alias; data that came early is delivered now."""
        properties = self.read_properties(message.properties)
        if properties is None:
            return
        self.default_priority = properties.default_publisher_priority
        self.track_alias = message.track_alias
        largest = message.parameters.largest_object
        fill = self._fill_comes(self._parameters, largest)
        if not fill:
            self._drop_fill(self.request_id)
        self.receiver.accepted(TrackInfo(properties, largest, fill))
        if self.state is Request.ESTABLISHED:
            self.session.streams.bind(message.track_alias, self)

    def on_error(self, message: m.RequestError) -> None:
        """REQUEST_ERROR to the SUBSCRIBE itself."""
        self.failed(self.failure(message))

    def on_update_ok(self, message: m.RequestOk) -> None:
        """REQUEST_OK answers the oldest open update."""
        if not self._updates:
            raise ProtocolViolation("REQUEST_OK without an open REQUEST_UPDATE")
        update = self._updates.popleft()
        if not self._fill_comes(update.parameters, message.parameters.largest_object):
            self._drop_fill(update.request_id)

    def on_update_error(self, message: m.RequestError) -> None:
        """A failed update; PUBLISH_DONE(UPDATE_FAILED) follows (draft-22 §9.5)."""
        if not self._updates:
            raise ProtocolViolation("REQUEST_ERROR without an open REQUEST_UPDATE")
        self._drop_fill(self._updates.popleft().request_id)

    def on_state_notify(self, message: m.PublishStateNotify) -> None:
        """The publisher changed something on its own; nothing is required (draft-22 §9.10)."""

    def on_publish_done(self, message: m.PublishDone) -> None:
        """The last message; streams may still be on their way (draft-22 §9.9)."""
        self._done = message
        self._announced_count = message.stream_count
        self.session.call_at(
            self.session.now + self.session.config.done_timeout, self._drain_timeout
        )
        self._check_drained()

    # -- data ------------------------------------------------------------------------------------

    def open_subgroup(self, stream: int, key: SubgroupHead) -> ObjectSink:
        """A subgroup stream with our alias starts."""
        self.count_stream(stream)
        return self.receiver.open_subgroup(key)

    def fetch_order(self, request_id: int) -> GroupOrder | None:
        """Group order of the fill ``request_id``; None when it has had its stream."""
        return self._fills.get(request_id)

    def open_fetch(self, stream: int, request_id: int) -> ObjectSink:
        """The fill stream of ``request_id`` starts."""
        self._drop_fill(request_id)
        self.count_stream(stream)
        return self.receiver.open_fetch(request_id)

    def stream_over(self, stream: int, code: int | None) -> None:
        """A data stream of ours ended; its sink has heard how."""
        self._streams.discard(stream)
        self._check_drained()

    # -- ends ------------------------------------------------------------------------------------

    def failed(self, error: MoqtError) -> None:
        """Over without PUBLISH_DONE."""
        self._release(StreamCode.CANCELLED)
        self.receiver.failed(error)

    def _expect_fill(self, request_id: int, parameters: Parameters) -> None:
        if parameters.fill is not None:
            order = parameters.fill.group_order or self._group_order or GroupOrder.ASCENDING
            self._fills[request_id] = order
            self.session.streams.expect_fetch(request_id, self)

    def _fill_comes(self, parameters: Parameters, largest: Location | None) -> bool:
        """Whether the publisher opens a fill stream, by the rules it follows (draft-22 §3.4.1)."""
        if parameters.fill is None or parameters.forward is False:
            return False
        place = (
            parameters.fill.location_filter
            or parameters.location_filter
            or self._parameters.location_filter
        )
        return largest is not None and (place is None or place.on_fetch(largest) is not None)

    def _drop_fill(self, request_id: int) -> None:
        if self._fills.pop(request_id, None) is not None:
            self.session.streams.forget_fetch(request_id)

    def count_stream(self, stream: int) -> None:
        """A data stream of this subscription is here."""
        self._streams.add(stream)
        self._stream_count += 1
        if self._announced_count is not None and self._stream_count > self._announced_count:
            raise ProtocolViolation("more data streams than PUBLISH_DONE announced")

    def _check_drained(self) -> None:
        if (
            self.state is Request.DRAINING
            and not self._streams
            and self._stream_count == self._announced_count
        ):
            self._drained(complete=True)

    def _drain_timeout(self) -> None:
        self._drained(complete=False)

    def _drained(self, *, complete: bool) -> None:
        """All streams are in, or the time for stragglers is over."""
        if self.state is not Request.DRAINING or self._done is None:
            return
        self.state = Request.CLOSED
        self._release(StreamCode.CANCELLED)
        self.finish()
        status = self._done.status
        known = status in DoneCode._value2member_map_
        self.receiver.done(
            status if known else DoneCode.INTERNAL_ERROR, self._done.reason, complete
        )

    def _release(self, code: int) -> None:
        for request_id in tuple(self._fills):
            self._drop_fill(request_id)
        streams, self._streams = self._streams, set()
        self.session.streams.release(self, self.track_alias, streams, code)
