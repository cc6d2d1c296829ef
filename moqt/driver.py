"""A Session on an event loop: the receive door, the timer, and what an application awaits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import MoqtError, SessionClosed, SessionCode
from moqt.model import GroupOrder
from moqt.session.core import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from moqt.codec.fields import Token
    from moqt.codec.messages import RequestOk
    from moqt.codec.properties import SetupOptions
    from moqt.counters import Counters
    from moqt.model import FullTrackName, TrackNamespace, TrackSource
    from moqt.session.config import SessionConfig
    from moqt.session.fetches import OutgoingFetch
    from moqt.session.namespaces import OutgoingPublishNamespace, OutgoingSubscribeNamespace
    from moqt.session.ports import (
        NamespaceListener,
        RequestHandler,
        TrackReceiver,
        TracksListener,
    )
    from moqt.session.publishing import OutgoingPublish
    from moqt.session.subscriptions import OutgoingSubscribe
    from moqt.session.tracks import OutgoingSubscribeTracks
    from transport.api import BytesLike, PeerInfo, TransportSession

    #: Makes the application's side of one connection.
    HandlerFactory: TypeAlias = Callable[["Connection"], RequestHandler]

#: How often a closing connection looks whether the peer has everything, in seconds.
_FLUSH_STEP: Final = 0.005
#: A peer that acknowledges nothing more delays our close no longer than this, in seconds.
CLOSE_TIMEOUT: Final = 2.0
#: One that takes some, but ever so slowly, delays it no longer than this: 10 GiB at 20 MB/s.
CLOSE_LIMIT: Final = 600.0


class Door:
    """The TransportSink of one connection: every event enters the Session here, with its time."""

    def __init__(self, session: Session, on_ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._session = session
        self._on_ready: Callable[[], None] | None = on_ready
        #: Called right behind our SETUP.
        self.after_setup: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        session.timers.on_change = self._arm
        #: How the session ended.
        self.end: asyncio.Future[SessionClosed] = self._loop.create_future()

    def connected(self) -> None:
        """The handshake is complete."""
        self._session.connected(self._time())
        if self.after_setup is not None:
            self.after_setup()

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        """A stream of the peer."""
        self._session.stream_opened(self._time(), stream, unidirectional)

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        """Octets of a stream."""
        session = self._session
        session.stream_data(self._time(), stream, data, fin)
        if self._on_ready is not None and session.established:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()

    def stream_reset(self, stream: int, code: int) -> None:
        """RESET_STREAM."""
        self._session.stream_reset(self._time(), stream, code)

    def stop_sending(self, stream: int, code: int) -> None:
        """STOP_SENDING."""
        self._session.stop_sending(self._time(), stream, code)

    def stream_sent(self, stream: int) -> None:
        """A FIN of ours has been handed down."""
        self._session.stream_sent(self._time(), stream)

    def datagram(self, data: bytes) -> None:
        """A datagram."""
        self._session.datagram(self._time(), data)

    def closed(self, code: int, reason: str, remote: bool) -> None:
        """The transport session is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.end.done():
            self.end.set_result(SessionClosed(code, reason))
            self._session.transport_closed(self._time(), code, reason)

    def abandon(self, code: int = SessionCode.NO_ERROR, reason: str = "") -> None:
        """Close at once, whatever is still queued."""
        self._session.close(code, reason)

    def _arm(self) -> None:
        """The earliest deadline has changed."""
        due = self._session.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        try:
            self._session.tick(self._time())
        finally:
            self._arm()


class Connection:
    """One MOQT session as an application holds it.

    Requests go out at once and report through the receiver or listener given with them.
    """

    def __init__(
        self, transport: TransportSession, handler: HandlerFactory, config: SessionConfig
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        #: What it was made with.
        self.config = config
        self._handler = handler(self)
        #: The protocol core, for parts that run without an event loop, such as a relay's.
        self.session = Session(transport, self._handler, config)
        self._ready = asyncio.Event()
        #: What the transport session reports to.
        self.sink = Door(self.session, self._ready.set)
        self.when_closed(self._ready.set)

    # -- application -----------------------------------------------------------------------------

    @property
    def handler(self) -> RequestHandler:
        """What answers the peer's requests on this connection."""
        return self._handler

    @property
    def peer(self) -> PeerInfo:
        """Address, protocol and datagram size of the other end."""
        return self._transport.peer

    @property
    def peer_options(self) -> SetupOptions:
        """The peer's SETUP."""
        return self.session.peer_options

    @property
    def is_open(self) -> bool:
        """True until the session ends."""
        return not self.sink.end.done()

    @property
    def may_request(self) -> bool:
        """True while new requests make sense: the session is open, and the peer sent no GOAWAY."""
        return self.is_open and self.session.may_request

    @property
    def counters(self) -> Counters:
        """What has passed in this session so far, a copy."""
        return self.session.counters()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back once the session has ended."""
        self.sink.end.add_done_callback(lambda _: callback())

    def token(self, value: bytes, type: int = 0) -> Token:
        """An authorization token in the shortest form that may go out now (draft-22 §8.9).

        Registered with its first request, by value until that is answered, by its alias after.
        """
        return self.session.own_tokens.best(value, type)

    def when_goaway(self, callback: Callable[[str, int], None]) -> None:
        """Call back when the peer says GOAWAY for the session: URI, and ms or 0.

        At once, if it has said so already: a server that is about to end says it with its SETUP.
        """
        self.session.on_goaway = callback
        if (said := self.session.told_to_go) is not None:
            callback(said.uri, said.timeout)

    async def ready(self) -> None:
        """Wait for both SETUPs; raises SessionClosed."""
        await self._ready.wait()
        if not self.is_open:
            raise self.sink.end.result()

    async def wait_closed(self) -> SessionClosed:
        """Wait for the end of the session and say how it ended."""
        return await asyncio.shield(self.sink.end)

    async def close(
        self, code: int = SessionCode.NO_ERROR, reason: str = "", *, limit: float = CLOSE_LIMIT
    ) -> None:
        """Deliver what is queued while the peer takes some within CLOSE_TIMEOUT, then close.

        After ``limit`` seconds it closes at once.
        """
        time = self._loop.time
        end = time() + limit
        left = self._transport.unacknowledged()
        deadline = time() + CLOSE_TIMEOUT
        while left and self.is_open and time() < min(deadline, end):
            await asyncio.sleep(_FLUSH_STEP)
            # Sources go on filling up what the peer takes: any decrease is progress.
            before, left = left, self._transport.unacknowledged()
            if left < before:
                deadline = time() + CLOSE_TIMEOUT
        self.session.close(code, reason)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.wait_closed()
        except TimeoutError:
            self.sink.closed(code, reason, False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def subscribe(
        self,
        name: FullTrackName,
        receiver: TrackReceiver,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingSubscribe:
        """SUBSCRIBE; the handle updates and cancels."""
        return self.session.subscribe(name, parameters, receiver)

    def fetch(
        self,
        name: FullTrackName,
        receiver: TrackReceiver,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingFetch:
        """FETCH; the handle cancels."""
        return self.session.fetch(name, parameters, receiver)

    async def track_status(
        self, name: FullTrackName, parameters: Parameters = NO_PARAMETERS
    ) -> RequestOk:
        """TRACK_STATUS; raises RequestFailed or SessionClosed."""
        answer: asyncio.Future[RequestOk | MoqtError] = self._loop.create_future()

        def settle(result: RequestOk | MoqtError) -> None:
            if not answer.done():
                answer.set_result(result)

        request = self.session.track_status(name, parameters, settle)
        try:
            result = await answer
        finally:
            request.cancel()
        if isinstance(result, MoqtError):
            raise result
        return result

    def publish(
        self,
        source: TrackSource,
        answer: Callable[[MoqtError | None], None],
        parameters: Parameters = NO_PARAMETERS,
        order: GroupOrder = GroupOrder.ASCENDING,
    ) -> OutgoingPublish:
        """PUBLISH; whoever holds the source feeds the handle. ``Catalog.publish`` does both."""
        return self.session.publish(source, parameters, order, answer)

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        answer: Callable[[MoqtError | None], None],
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingPublishNamespace:
        """PUBLISH_NAMESPACE; cancelling the handle withdraws it."""
        return self.session.publish_namespace(namespace, parameters, answer)

    def subscribe_namespace(
        self,
        prefix: TrackNamespace,
        listener: NamespaceListener,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingSubscribeNamespace:
        """SUBSCRIBE_NAMESPACE; the handle cancels."""
        return self.session.subscribe_namespace(prefix, parameters, listener)

    def subscribe_tracks(
        self,
        prefix: TrackNamespace,
        listener: TracksListener,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingSubscribeTracks:
        """SUBSCRIBE_TRACKS; the handle updates and cancels."""
        return self.session.subscribe_tracks(prefix, parameters, listener)

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """GOAWAY on the control stream; ``timeout`` in ms."""
        self.session.goaway(uri, timeout)
