"""A Session on an event loop: the receive door, the timer, and what an application awaits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import MoqtError, SessionClosed, SessionCode
from moqt.session.core import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from moqt.codec.messages import RequestOk
    from moqt.codec.properties import SetupOptions
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.session.config import SessionConfig
    from moqt.session.fetches import OutgoingFetch
    from moqt.session.namespaces import OutgoingPublishNamespace, OutgoingSubscribeNamespace
    from moqt.session.ports import NamespaceListener, RequestHandler, TrackReceiver
    from moqt.session.subscriptions import OutgoingSubscribe
    from transport.api import BytesLike, PeerInfo, TransportSession

    #: Makes the application's side of one connection.
    HandlerFactory: TypeAlias = Callable[["Connection"], RequestHandler]

#: How often a closing connection looks whether the peer has everything, in seconds.
_FLUSH_STEP: Final = 0.005
#: A peer that acknowledges nothing delays our close no longer than this, in seconds.
CLOSE_TIMEOUT: Final = 2.0


class Connection:
    """One MOQT session as an application holds it; also the sink of its transport session.

    Requests go out at once and report through the receiver or listener given with them.
    """

    def __init__(
        self, transport: TransportSession, handler: HandlerFactory, config: SessionConfig
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._handler = handler(self)
        self._session = Session(transport, self._handler, config)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[SessionClosed] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._armed: float | None = None

    # -- TransportSink ---------------------------------------------------------------------------

    def connected(self) -> None:
        """The handshake is complete."""
        self._session.connected(self._loop.time())
        self._arm()

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        """A stream of the peer."""
        self._session.stream_opened(self._loop.time(), stream, unidirectional)

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        """Octets of a stream."""
        session = self._session
        session.stream_data(self._loop.time(), stream, data, fin)
        if session.next_deadline() != self._armed:
            self._arm()
        if session.established and not self._ready.done():
            self._ready.set_result(None)

    def stream_reset(self, stream: int, code: int) -> None:
        """RESET_STREAM."""
        self._session.stream_reset(self._loop.time(), stream, code)

    def stop_sending(self, stream: int, code: int) -> None:
        """STOP_SENDING."""
        self._session.stop_sending(self._loop.time(), stream, code)

    def stream_sent(self, stream: int) -> None:
        """A FIN of ours has been handed down."""
        self._session.stream_sent(self._loop.time(), stream)

    def datagram(self, data: bytes) -> None:
        """A datagram."""
        self._session.datagram(self._loop.time(), data)

    def closed(self, code: int, reason: str, remote: bool) -> None:
        """The transport session is over."""
        if self._timer is not None:
            self._timer.cancel()
        error = SessionClosed(code, reason)
        if not self._closed.done():
            self._closed.set_result(error)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting
        self._session.transport_closed(self._loop.time(), code, reason)

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
        return self._session.peer_options

    @property
    def is_open(self) -> bool:
        """True until the session ends."""
        return not self._closed.done()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back once the session has ended."""
        self._closed.add_done_callback(lambda _: callback())

    async def ready(self) -> None:
        """Wait for both SETUPs; raises SessionClosed."""
        await asyncio.shield(self._ready)

    async def wait_closed(self) -> SessionClosed:
        """Wait for the end of the session and say how it ended."""
        return await asyncio.shield(self._closed)

    async def close(self, code: int = SessionCode.NO_ERROR, reason: str = "") -> None:
        """Deliver what is queued, as far as the peer takes it within CLOSE_TIMEOUT, then close."""
        deadline = self._loop.time() + CLOSE_TIMEOUT
        while self.is_open and self._transport.unacknowledged() and self._loop.time() < deadline:
            await asyncio.sleep(_FLUSH_STEP)
        self._session.close(code, reason)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.wait_closed()
        except TimeoutError:
            self.closed(code, reason, False)

    def subscribe(
        self,
        name: FullTrackName,
        receiver: TrackReceiver,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingSubscribe:
        """SUBSCRIBE; the handle updates and cancels."""
        return self._session.subscribe(name, parameters, receiver)

    def fetch(
        self,
        name: FullTrackName,
        receiver: TrackReceiver,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingFetch:
        """FETCH; the handle cancels."""
        return self._session.fetch(name, parameters, receiver)

    async def track_status(
        self, name: FullTrackName, parameters: Parameters = NO_PARAMETERS
    ) -> RequestOk:
        """TRACK_STATUS; raises RequestFailed or SessionClosed."""
        answer: asyncio.Future[RequestOk | MoqtError] = self._loop.create_future()

        def settle(result: RequestOk | MoqtError) -> None:
            if not answer.done():
                answer.set_result(result)

        request = self._session.track_status(name, parameters, settle)
        try:
            result = await answer
        finally:
            request.cancel()
        if isinstance(result, MoqtError):
            raise result
        return result

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        answer: Callable[[MoqtError | None], None],
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingPublishNamespace:
        """PUBLISH_NAMESPACE; cancelling the handle withdraws it."""
        return self._session.publish_namespace(namespace, parameters, answer)

    def subscribe_namespace(
        self,
        prefix: TrackNamespace,
        listener: NamespaceListener,
        parameters: Parameters = NO_PARAMETERS,
    ) -> OutgoingSubscribeNamespace:
        """SUBSCRIBE_NAMESPACE; the handle cancels."""
        return self._session.subscribe_namespace(prefix, parameters, listener)

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """GOAWAY on the control stream; ``timeout`` in ms."""
        self._session.goaway(uri, timeout)

    # -- timer -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        due = self._session.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
        self._armed = due
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._session.tick(self._loop.time())
        self._arm()
