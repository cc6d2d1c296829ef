"""Subscriptions and fetches as async iterators, for applications.

They join each object into one ``bytes``. Who wants octets as they arrive, without copy and queue,
gives ``Connection.subscribe`` or ``Connection.fetch`` a TrackReceiver instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moqt.codec.params import NO_PARAMETERS
from moqt.errors import (
    DoneCode,
    Misuse,
    MoqtError,
    RequestCode,
    RequestFailed,
    SubscriptionEnded,
    TooFarBehind,
)
from moqt.model import Location, ObjectStatus
from moqt.reading import BUFFER_OCTETS, ITEM_COST, Inbox, Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.driver import Connection
    from moqt.model import FullTrackName, Gap, ObjectHead, SubgroupHead
    from moqt.session.ports import TrackInfo, TrackReceiver
    from moqt.session.publishing import IncomingPublish
    from moqt.session.subscriptions import OutgoingSubscribe
    from transport.api import BytesLike


class ReceivedObject(NamedTuple):
    """A whole object (§2.1); ``payload`` is empty for every status but NORMAL.

    ``subgroup`` is None when it came as a datagram; ``properties`` are raw key-value octets.
    """

    group: int
    subgroup: int | None
    object: int
    priority: int
    status: ObjectStatus
    properties: bytes
    payload: bytes

    @property
    def location(self) -> Location:
        """Group and object as one ordered value."""
        return Location(self.group, self.object)


class _Joiner:
    """The ObjectSink of one stream: its octets become whole objects in the inbox."""

    __slots__ = ("_arrivals", "_cost", "_head", "_inbox", "_payload")

    def __init__(self, arrivals: _Arrivals) -> None:
        self._arrivals = arrivals
        self._inbox = arrivals.inbox
        self._head: ObjectHead | None = None
        self._payload = bytearray()
        self._cost = 0

    def begin(self, head: ObjectHead) -> None:
        inbox = self._inbox
        cost = ITEM_COST + len(head.properties)
        if cost + head.length > inbox.limit and not inbox.over:
            inbox.fail(
                TooFarBehind(
                    f"object {head.group}, {head.object} of {head.length} octets is beyond the"
                    f" limit of {inbox.limit}: give a larger one, or a TrackReceiver"
                )
            )
        elif inbox.reserve(cost):
            self._head, self._cost = head, cost
            self._payload = bytearray()

    def write(self, view: BytesLike) -> None:
        if self._head is not None:
            if self._inbox.reserve(len(view)):
                self._payload += view
                self._cost += len(view)
            else:
                self._drop()

    def end(self) -> None:
        head = self._head
        if head is not None:
            self._head = None
            self._inbox.put(_whole(head, bytes(self._payload)), self._cost)
            self._payload = bytearray()

    def gap(self, gap: Gap) -> None:
        if self._inbox.reserve(ITEM_COST):
            self._arrivals.gaps.append(gap)

    def finish(self) -> None:
        pass

    def abort(self, code: int) -> None:
        self._arrivals.resets += 1
        self._drop()

    def _drop(self) -> None:
        if self._head is not None:
            self._head = None
            self._payload = bytearray()
            self._inbox.release(self._cost)


def _whole(head: ObjectHead, payload: bytes) -> ReceivedObject:
    return ReceivedObject(
        head.group,
        head.subgroup,
        head.object,
        head.priority,
        head.status,
        head.properties,
        payload,
    )


class _Arrivals:
    """The TrackReceiver of a subscription or fetch: everything into one inbox."""

    def __init__(
        self,
        inbox: Inbox[ReceivedObject],
        accepted: Callable[[TrackInfo], None],
        ended: Callable[[MoqtError | None], None],
        ending: Callable[[int, str, bool], MoqtError | None],
    ) -> None:
        self.inbox = inbox
        self.gaps: list[Gap] = []
        self.resets = 0
        self.accepted = accepted
        self.failed = ended
        self._ending = ending

    def open_subgroup(self, head: SubgroupHead) -> _Joiner:
        return _Joiner(self)

    def open_fetch(self, request_id: int) -> _Joiner:
        return _Joiner(self)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        cost = ITEM_COST + len(head.properties) + len(payload)
        if self.inbox.reserve(cost):
            self.inbox.put(_whole(head, bytes(payload)), cost)

    def done(self, code: int, reason: str, complete: bool) -> None:
        self.failed(self._ending(code, reason, complete))


class _TrackReading(Reading[ReceivedObject]):
    """What Subscription and Fetch have in common."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._arrivals = _Arrivals(self._inbox, self._answered, self._end, self._ending)
        self._info: TrackInfo | None = None

    @property
    def receiver(self) -> TrackReceiver:
        """What takes it all in."""
        return self._arrivals

    @property
    def info(self) -> TrackInfo:
        """What the peer's answer said; raises Misuse before it is here."""
        if self._info is None:
            raise Misuse("no answer is here yet: await accepted() first, or use async with")
        return self._info

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What the publisher has said will not come, of a fetch or fill (§11.4.1.2)."""
        return tuple(self._arrivals.gaps)

    @property
    def resets(self) -> int:
        """Streams that the publisher gave up: what else they would have brought is lost."""
        return self._arrivals.resets

    async def accepted(self) -> TrackInfo:
        """Wait for the answer; raises RequestFailed, MalformedTrack, SessionClosed."""
        await self._answer()
        return self.info

    def _answered(self, info: TrackInfo) -> None:
        self._info = info
        self._accept()

    def _ending(self, code: int, reason: str, complete: bool) -> MoqtError | None:
        """How the iteration ends when the publisher is done."""
        raise NotImplementedError


class Subscription(_TrackReading):
    """SUBSCRIBE (§9.6), or a PUBLISH accepted: objects as they become whole, fills included.

    The iteration stops when the track has ended and all its streams came. Else it raises
    SubscriptionEnded, RequestFailed, MalformedTrack, SessionClosed, or TooFarBehind.
    """

    def __init__(
        self, limit: int, begin: Callable[[TrackReceiver], OutgoingSubscribe | IncomingPublish]
    ) -> None:
        super().__init__(limit)
        self._half = begin(self._arrivals)
        self._request = self._half

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE (§9.5); raises Misuse where the peer would have to close."""
        self._half.update(parameters)

    def _ending(self, code: int, reason: str, complete: bool) -> MoqtError | None:
        if code == DoneCode.TRACK_ENDED and complete:
            return None
        return SubscriptionEnded(DoneCode(code), reason, complete=complete)


class Fetch(_TrackReading):
    """FETCH (§9.11): past objects in the order asked for; stops when all have come.

    Else it raises StreamReset, RequestFailed, MalformedTrack, SessionClosed, or TooFarBehind.
    """

    def __init__(
        self, connection: Connection, name: FullTrackName, parameters: Parameters, limit: int
    ) -> None:
        super().__init__(limit)
        self._request = connection.fetch(name, self._arrivals, parameters)

    def _ending(self, code: int, reason: str, complete: bool) -> MoqtError | None:
        return None


def subscribe(
    connection: Connection,
    name: FullTrackName,
    parameters: Parameters = NO_PARAMETERS,
    *,
    limit: int = BUFFER_OCTETS,
) -> Subscription:
    """Ask for a track's objects from now on, and for those before with ``parameters.fill``.

    At most ``limit`` octets wait to be read. Raises Misuse, SessionClosed.
    """
    return Subscription(limit, lambda taker: connection.subscribe(name, taker, parameters))


def accept(request: IncomingPublish, *, limit: int = BUFFER_OCTETS) -> Subscription:
    """PUBLISH_OK to a track that the peer offers (§9.8): from then on the same as SUBSCRIBE.

    At most ``limit`` octets wait to be read.
    """
    made = Subscription(limit, lambda _: request)
    request.accept(made.receiver)
    if not request.active:  # whatever ended it while it was accepted has been heard by now
        made.receiver.failed(RequestFailed(RequestCode.UNINTERESTED, "withdrawn before accepted"))
    return made


def fetch(
    connection: Connection,
    name: FullTrackName,
    parameters: Parameters = NO_PARAMETERS,
    *,
    limit: int = BUFFER_OCTETS,
) -> Fetch:
    """Ask for past objects: ``parameters.location_filter`` which, ``group_order`` in which order.

    At most ``limit`` octets wait to be read. Raises Misuse, SessionClosed.
    """
    return Fetch(connection, name, parameters, limit)
