"""What a peer has: namespaces and tracks under a prefix, as async iterators."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from moqt.codec.params import NO_PARAMETERS
from moqt.errors import RequestCode, RequestRefused
from moqt.reading import BUFFER_OCTETS, ITEM_COST, Inbox, Reading
from moqt.subscriber import Subscription, accept, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.driver import Connection
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.session.publishing import IncomingPublish


class Change(StrEnum):
    """What happened to a namespace."""

    FOUND = "found"
    GONE = "gone"


class Namespaces(Reading[tuple[Change, "TrackNamespace"]]):
    """SUBSCRIBE_NAMESPACE (§9.15): whole namespaces under a prefix, as they come and go.

    The iteration stops when the peer finishes; all count as gone then. Else it raises
    RequestFailed, SessionClosed, or TooFarBehind.
    """

    def __init__(
        self, connection: Connection, prefix: TrackNamespace, parameters: Parameters, limit: int
    ) -> None:
        super().__init__(limit)
        listener = _Listener(self._inbox, self._accept, self._end)
        self._request = connection.subscribe_namespace(prefix, listener, parameters)

    async def accepted(self) -> None:
        """Wait for the answer; raises RequestFailed, SessionClosed."""
        await self._answer()


class _Listener:
    """The NamespaceListener of Namespaces."""

    def __init__(
        self,
        inbox: Inbox[tuple[Change, TrackNamespace]],
        accept: Callable[[], None],
        end: Callable[[MoqtError | None], None],
    ) -> None:
        self.accepted = accept
        self.ended = end
        self._inbox = inbox

    def found(self, namespace: TrackNamespace) -> None:
        self._put(Change.FOUND, namespace)

    def gone(self, namespace: TrackNamespace) -> None:
        self._put(Change.GONE, namespace)

    def _put(self, change: Change, namespace: TrackNamespace) -> None:
        cost = ITEM_COST + sum(map(len, namespace))
        if self._inbox.reserve(cost):
            self._inbox.put((change, namespace), cost)


class Offer(NamedTuple):
    """A track that the peer has: offered with PUBLISH, or named in PUBLISH_SKIPPED.

    ``request`` is the PUBLISH, with what it says of the track; None when it was skipped. One that
    is neither accepted nor refused keeps its place and its first octets in the session.
    """

    connection: Connection
    name: FullTrackName
    request: IncomingPublish | None

    def accept(self, *, limit: int = BUFFER_OCTETS) -> Subscription:
        """PUBLISH_OK; SUBSCRIBE to one that was skipped. At most ``limit`` octets wait."""
        if self.request is None:
            return subscribe(self.connection, self.name, limit=limit)
        return accept(self.request, limit=limit)

    def refuse(self, code: RequestCode = RequestCode.UNINTERESTED, reason: str = "") -> None:
        """REQUEST_ERROR; of one that was skipped nothing comes anyhow."""
        if self.request is not None:
            self.request.refuse(code, reason)


class Tracks(Reading[Offer]):
    """SUBSCRIBE_TRACKS (§9.18): a PUBLISH of every track under a prefix, now and later.

    The iteration stops when the peer finishes. Else it raises RequestFailed, SessionClosed, or
    TooFarBehind. Offers that nobody has read are refused at its end; those accepted go on.
    """

    def __init__(
        self, connection: Connection, prefix: TrackNamespace, parameters: Parameters, limit: int
    ) -> None:
        super().__init__(limit)
        listener = _Offers(connection, self._inbox, self._accept, self._end)
        self._half = connection.subscribe_tracks(prefix, listener, parameters)
        self._request = self._half

    async def accepted(self) -> None:
        """Wait for the answer; raises RequestFailed, SessionClosed."""
        await self._answer()

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE (§9.5); raises Misuse where the peer would have to close."""
        self._half.update(parameters)

    def _pass_up(self, unread: list[Offer]) -> None:
        for offer in unread:
            offer.refuse(reason="nobody waits for offers any more")


class _Offers:
    """The TracksListener of Tracks."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox[Offer],
        accept: Callable[[], None],
        end: Callable[[MoqtError | None], None],
    ) -> None:
        self.accepted = accept
        self.ended = end
        self._connection = connection
        self._inbox = inbox

    def published(self, request: IncomingPublish) -> None:
        if not self._put(Offer(self._connection, request.name, request)):
            raise RequestRefused(RequestCode.EXCESSIVE_LOAD, "too many offers wait to be read")

    def skipped(self, name: FullTrackName) -> None:
        self._put(Offer(self._connection, name, None))

    def _put(self, offer: Offer) -> bool:
        name = offer.name
        cost = ITEM_COST + sum(map(len, name.namespace)) + len(name.name)
        room = self._inbox.reserve(cost)
        if room:
            self._inbox.put(offer, cost)
        return room


def namespaces(
    connection: Connection,
    prefix: TrackNamespace = (),
    parameters: Parameters = NO_PARAMETERS,
    *,
    limit: int = BUFFER_OCTETS,
) -> Namespaces:
    """Ask which namespaces the peer knows under ``prefix``: pairs (Change, namespace).

    At most ``limit`` octets wait to be read. Raises Misuse, SessionClosed.
    """
    return Namespaces(connection, prefix, parameters, limit)


def tracks(
    connection: Connection,
    prefix: TrackNamespace = (),
    parameters: Parameters = NO_PARAMETERS,
    *,
    limit: int = BUFFER_OCTETS,
) -> Tracks:
    """Ask for an offer of every track that the peer has under ``prefix``: accept or refuse each.

    At most ``limit`` octets wait to be read. Raises Misuse, SessionClosed.
    """
    return Tracks(connection, prefix, parameters, limit)
