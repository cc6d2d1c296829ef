"""A relay on an event loop: it listens, dials its upstreams, and leaves in good order."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from moqt.endpoint import serve
from moqt.monitor import Monitor
from moqt.relay.admission import AdmissionLimits, Gate, Judge
from moqt.relay.config import RelayConfig
from moqt.relay.handler import RelayHandler
from moqt.relay.peers import Peer
from moqt.relay.relay import Relay
from moqt.relay.upstreams import Uplinks, Upstream
from moqt.session.config import SessionConfig
from transport.config import PEER_TIMEOUT, QuicOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.driver import Connection
    from moqt.endpoint import Server
    from moqt.relay.spill import Spill
    from moqt.session.tokens import TokenVerifier
    from transport.api import TransportSession
    from transport.config import ServerTls

_log = logging.getLogger(__name__)

#: Seconds between two looks for tracks of which nothing is left.
SWEEP: Final = 5.0
#: Milliseconds that clients have to move when the relay leaves.
LEAVE_TIME: Final = 5_000


def relay_quic(peer_timeout: float = PEER_TIMEOUT) -> QuicOptions:
    """A relay has more streams of one peer open than an end of the line."""
    return QuicOptions(max_streams_bidi=4096, max_streams_uni=1024, peer_timeout=peer_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Where and how a relay serves."""

    host: str
    port: int
    tls: ServerTls
    relay: RelayConfig = field(default_factory=RelayConfig)
    session: SessionConfig = field(default_factory=SessionConfig)
    quic: QuicOptions = field(default_factory=relay_quic)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    #: Makes the judge of one session; without it everything is open to everybody.
    judge: Callable[[TransportSession], TokenVerifier] | None = None
    upstreams: tuple[Upstream, ...] = ()
    #: Where clients are sent when the relay leaves; "" is here again.
    successor: str = ""


class RelayService:
    """One relay process; ``start``, then ``close``."""

    def __init__(
        self, config: ServiceConfig, *, monitor: Monitor | None = None, spill: Spill | None = None
    ) -> None:
        self.config = config
        self.monitor = monitor or Monitor()
        self.relay = Relay(asyncio.get_running_loop(), config.relay, spill)
        self.gate = Gate(self.relay.context, config.admission, time.time)
        self.uplinks = Uplinks(self.relay, quic=config.quic, monitor=self.monitor)
        self._server: Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The UDP port it listens on."""
        return self._listening.port

    @property
    def connections(self) -> set[Connection]:
        """Sessions that clients have opened."""
        return self._listening.connections

    async def start(self) -> Self:
        """Listen, and dial the upstreams. Raises transport.errors.TransportError."""
        config = self.config
        self._server = await serve(
            config.host,
            config.port,
            tls=config.tls,
            handler=self._handler,
            config=self._session,
            quic=config.quic,
            monitor=self.monitor,
        )
        for upstream in config.upstreams:
            self.uplinks.add(upstream)
        self._sweeper = asyncio.ensure_future(self._sweep())
        return self

    async def leave(self, limit: float = LEAVE_TIME / 1000) -> None:
        """GOAWAY to every client; returns when all have gone, at the latest after ``limit`` s.

        Nobody new is taken.
        """
        server = self._listening
        self._refuse()
        server.goaway(self.config.successor, int(limit * 1000))
        if server.connections:
            ends = [asyncio.ensure_future(one.wait_closed()) for one in server.connections]
            _, late = await asyncio.wait(ends, timeout=limit)
            for end in late:
                end.cancel()

    async def close(self) -> None:
        """End every session, deliver what is queued within a second."""
        self._refuse()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.uplinks.close()
        await self._listening.close(limit=1.0)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def _listening(self) -> Server:
        if self._server is None:
            raise RuntimeError("the relay has not been started: await start()")
        return self._server

    def _refuse(self) -> None:
        self.relay.leaving = True
        self._listening.refuse()

    def _session(self, transport: TransportSession) -> SessionConfig:
        judge = self.config.judge
        if judge is None:
            return self.config.session
        return replace(self.config.session, token_verifier=judge(transport))

    def _handler(self, connection: Connection) -> RelayHandler:
        judge = connection.config.token_verifier
        admission = self.gate.admission(
            lambda: connection.peer.address[0], judge if isinstance(judge, Judge) else None
        )
        return RelayHandler(self.relay, Peer(connection), admission)

    async def _sweep(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(SWEEP)
            self.relay.sweep()
            if (loops := self.relay.context.counts["loops"]) > told:
                told = loops
                _log.warning("what was asked upstream came back here: relays form a circle")

    def review(self) -> None:
        """Ask the judge again for everything that stands: keys or scopes have changed."""
        for connection in tuple(self.connections):
            if isinstance(connection.handler, RelayHandler):
                connection.handler.admission.review()
