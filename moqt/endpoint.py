"""The front door: connect to a peer, or serve peers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from moqt.codec.profile import LATEST
from moqt.driver import CLOSE_LIMIT, Connection
from moqt.errors import Misuse
from moqt.monitor import Monitor
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved
from transport.config import ClientTls, QuicOptions, ServerTls
from transport.endpoint import connect as transport_connect
from transport.listener import serve as transport_serve
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.driver import Connection, HandlerFactory
    from moqt.session.ports import RequestHandler
    from transport.api import TransportSession, TransportSink
    from transport.listener import Listener


def unserved(_: Connection) -> RequestHandler:
    """The handler of an endpoint that only asks."""
    return Unserved()


def quic_options(given: QuicOptions | None) -> QuicOptions:
    """The settings of a connection, with the protocol of our draft unless they name others."""
    options = given or QuicOptions()
    return options if options.protocols else replace(options, protocols=(LATEST.alpn,))


async def connect(
    url: str | MoqtUrl,
    *,
    handler: HandlerFactory = unserved,
    tls: ClientTls | None = None,
    config: SessionConfig | None = None,
    quic: QuicOptions | None = None,
    monitor: Monitor | None = None,
) -> Connection:
    """Open a session to a moqt:// URL and wait for both SETUPs (draft-22 §6.2).

    Raises transport.errors.InvalidUrl, transport.errors.ConnectFailed, moqt.errors.SessionClosed.
    """
    place = url if isinstance(url, MoqtUrl) else MoqtUrl.parse(url)
    settings = replace(
        config or SessionConfig(), authority=place.authority, path=place.path_and_query
    )
    eyes = monitor or Monitor()
    made: list[Connection] = []

    def sink(transport: TransportSession) -> TransportSink:
        connection, door = eyes.join(transport, handler, settings)
        made.append(connection)
        return door

    await transport_connect(place, sink, tls=tls or ClientTls(), options=quic_options(quic))
    connection = made[-1]
    try:
        await connection.ready()
    except BaseException:  # cancelled, too: nobody else knows of it
        connection.sink.abandon()
        raise
    return connection


class Server:
    """A listening endpoint and the connections it has."""

    def __init__(self, monitor: Monitor | None = None) -> None:
        self.connections: set[Connection] = set()
        #: Counts what all its sessions do, ended ones included.
        self.monitor = monitor or Monitor()
        self._listener: Listener
        #: What every new session hears behind our SETUP, once we are about to end.
        self._farewell: Callable[[Connection], None] | None = None

    @property
    def port(self) -> int:
        """The UDP port it listens on."""
        return self._listener.port

    def accept(
        self,
        transport: TransportSession,
        handler: HandlerFactory,
        config: SessionConfig,
        on_connection: Callable[[Connection], None] | None,
    ) -> TransportSink:
        """A transport session came in."""
        connection, door = self.monitor.join(transport, handler, config)
        self.connections.add(connection)
        connection.when_closed(lambda: self.connections.discard(connection))
        connection.sink.after_setup = lambda: self._greeted(connection)
        if on_connection is not None:
            on_connection(connection)
        return door

    def listening(self, listener: Listener) -> None:
        """The socket is open."""
        self._listener = listener

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """Ask every client to move to ``uri``, "" for here again; ``timeout`` in ms (§9.2).

        With a timeout a session that still has requests then is closed with GOAWAY_TIMEOUT.
        Whoever comes later hears it at once.
        """

        def farewell(connection: Connection) -> None:
            with suppress(Misuse):  # not open yet, or told before
                connection.goaway(uri, timeout)

        self._farewell = farewell
        for connection in tuple(self.connections):
            farewell(connection)

    def refuse(self) -> None:
        """Take no new client; one that is just connecting still comes in."""
        self._listener.refuse()

    async def close(self, code: int = 0, reason: str = "", *, limit: float = CLOSE_LIMIT) -> None:
        """Close every connection, after what is queued for it (in ``limit`` s), and the socket."""
        closing = (one.close(code, reason, limit=limit) for one in tuple(self.connections))
        await asyncio.gather(*closing)
        await self._listener.close(code, reason)

    def _greeted(self, connection: Connection) -> None:
        if self._farewell is not None:
            self._farewell(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def serve(
    host: str,
    port: int,
    *,
    tls: ServerTls,
    handler: HandlerFactory = unserved,
    config: SessionConfig | Callable[[TransportSession], SessionConfig] | None = None,
    quic: QuicOptions | None = None,
    monitor: Monitor | None = None,
    on_connection: Callable[[Connection], None] | None = None,
) -> Server:
    """Listen for sessions; port 0 takes a free one. ``on_connection`` hears of each at once.

    ``config`` may be made for each: its judge of tokens then knows whom it judges.
    Raises transport.errors.TransportError for an address or TLS files that cannot be used.
    """
    server = Server(monitor)

    def sink(transport: TransportSession) -> TransportSink:
        settings = config(transport) if callable(config) else config or SessionConfig()
        return server.accept(transport, handler, settings, on_connection)

    server.listening(await transport_serve(host, port, sink, tls=tls, options=quic_options(quic)))
    return server
