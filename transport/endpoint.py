"""``connect`` and ``serve``. Here the client's half: addresses, datagram sizes, one socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from time import monotonic
from typing import TYPE_CHECKING, Final, Self

from transport import _aioquic
from transport.config import LARGEST_DATAGRAM, SMALLEST_DATAGRAM, QuicOptions
from transport.errors import ConnectFailed, ConnectFault
from transport.handshake import client_configuration, connect_failed, with_datagram_size
from transport.listener import Listener, serve
from transport.quic import End, QuicSession
from transport.udp import UdpChannel, family_of, path_datagram_size, udp_socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic.quic.configuration import QuicConfiguration

    from transport.api import TransportSession, TransportSink
    from transport.config import ClientTls
    from transport.udp import Address
    from transport.url import MoqtUrl

__all__ = ["Listener", "connect", "serve"]

logger = logging.getLogger(__name__)

#: Silence after which a first flight of large datagrams is repeated with small ones: the peer
#: may have a smaller receive buffer than its path. Three of ours have gone out by then.
LARGE_FLIGHT_TIMEOUT: Final = 1.0


async def connect(
    url: MoqtUrl,
    sink_factory: Callable[[TransportSession], TransportSink],
    *,
    tls: ClientTls,
    options: QuicOptions | None = None,
) -> TransportSession:
    """Open a session to ``url``; its sink is made once the handshake is done.

    Each address of the host is tried in turn. ConnectFailed says which step failed, and the fix.
    """
    options = options or QuicOptions()
    configuration = client_configuration(url, tls, options)
    deadline = monotonic() + options.connect_timeout
    failure: ConnectFailed | None = None
    addresses = await _addresses(url)
    for tried, address in enumerate(addresses):
        share = (deadline - monotonic()) / (len(addresses) - tried)
        path = _Path(url, address, sink_factory, configuration, options)
        try:
            return await path.open(share)
        except ConnectFailed as error:
            if error.fault not in (ConnectFault.UNREACHABLE, ConnectFault.TIMEOUT):
                raise
            failure = failure or error
    raise failure or ConnectFailed(ConnectFault.UNREACHABLE, f"{url}: the host has no address")


async def _addresses(url: MoqtUrl) -> list[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            url.host, url.port, type=socket.SOCK_DGRAM
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConnectFailed(
            ConnectFault.UNREACHABLE,
            f"{url}: the name {url.host!r} cannot be resolved ({error}); check the host",
        ) from error
    return [item[4] for item in found]  # type: ignore[misc]  # INET and INET6 alone have UDP ports


class _Path:
    """All attempts at one address."""

    def __init__(
        self,
        url: MoqtUrl,
        address: Address,
        sink_factory: Callable[[TransportSession], TransportSink],
        configuration: QuicConfiguration,
        options: QuicOptions,
    ) -> None:
        self.url = url
        self.address = address
        self.sink_factory = sink_factory
        self.configuration = configuration
        self.options = options

    async def open(self, seconds: float) -> TransportSession:
        """First with the datagrams the path should carry, then with the smallest."""
        deadline = monotonic() + seconds
        ceiling = self.options.max_datagram_size or LARGEST_DATAGRAM
        size = path_datagram_size(self.address, ceiling)
        if size > SMALLEST_DATAGRAM:
            with _Dialer(self, size) as dialer:
                if await dialer.answered(min(LARGE_FLIGHT_TIMEOUT, seconds / 2)):
                    return await dialer.result(deadline)
            logger.info("%s: no answer to large datagrams, trying small ones", self.url)
        with _Dialer(self, SMALLEST_DATAGRAM) as dialer:
            return await dialer.result(deadline)

    def unreachable(self, error: OSError) -> ConnectFailed:
        """The network says that nobody is there."""
        host, port = self.address[:2]
        return ConnectFailed(
            ConnectFault.UNREACHABLE,
            f"{self.url}: nothing answers at {host} port {port} ({error.strerror or error}); "
            "check host and port, and that the server runs",
        )

    def silent(self) -> ConnectFailed:
        """Nothing came back."""
        host, port = self.address[:2]
        return ConnectFailed(
            ConnectFault.TIMEOUT,
            f"{self.url}: no session with {host} port {port} within "
            f"{self.options.connect_timeout:g} s; check that a QUIC server listens there and that "
            "no firewall drops UDP",
        )


class _Dialer:
    """One attempt, and afterwards the host of its session: one connected socket.

    As a context manager it leaves nothing behind unless the block ended well with a session.
    """

    def __init__(self, path: _Path, size: int) -> None:
        loop = asyncio.get_running_loop()
        self._path = path
        self._ready: asyncio.Future[TransportSession] = loop.create_future()
        self._heard = asyncio.Event()
        try:
            sock = udp_socket(family_of(path.address))
            try:
                sock.connect(path.address)
            except OSError:
                sock.close()
                raise
        except OSError as error:
            raise path.unreachable(error) from error
        self._channel = UdpChannel(loop, sock, self, path.address)
        quic = _aioquic.Connection(configuration=with_datagram_size(path.configuration, size))
        self._session = QuicSession(quic, self._channel, self, path.options, loop)
        quic.connect(path.address, monotonic())
        self._session.turn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        ready = self._ready
        if ready.done() and not ready.cancelled():
            if ready.exception() is None and kind is None:
                return
        else:
            ready.cancel()
        if self._session.connected:
            self._session.close(0, "given up")
        else:
            self._session.abandon(End(-1, "given up", remote=False))

    async def answered(self, seconds: float) -> bool:
        """Whether anything was heard from the address within ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        return self._heard.is_set()

    async def result(self, deadline: float) -> TransportSession:
        """The session. ConnectFailed when none came of it by ``deadline``."""
        try:
            async with asyncio.timeout(max(0.0, deadline - monotonic())):
                return await self._ready
        except TimeoutError:
            raise self._path.silent() from None

    # -- transport.udp.Receiver --------------------------------------------------------------------

    def datagram_received(self, data: bytes, address: Address) -> None:
        """Give it to the session."""
        self._heard.set()
        try:
            self._session.receive(data, address, monotonic())
        except Exception as error:  # a bug below us costs the session, not the loop
            self._session.fail(error)

    def batch_done(self) -> None:
        """One turn for all of them."""
        self._session.turn()

    def path_error(self, error: OSError) -> None:
        """Before any answer a verdict; later only a hint, which anybody could forge."""
        if not self._heard.is_set() and not self._ready.done():
            self._ready.set_exception(self._path.unreachable(error))
            self._heard.set()

    def writable(self) -> None:
        """The session may send again."""
        self._session.turn()

    # -- transport.quic.Host -----------------------------------------------------------------------

    def session_ready(self, session: QuicSession) -> TransportSink:
        """Make the owner, and let ``result`` return."""
        try:
            sink = self._path.sink_factory(session)
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
        if not self._ready.done():
            self._ready.set_result(session)
        return sink

    def session_ended(self, session: QuicSession, end: End) -> None:
        """Before the session was ready this is why ``result`` fails."""
        self._heard.set()
        if not self._ready.done():
            path = self._path
            self._ready.set_exception(
                connect_failed(path.url, path.address, path.options.protocols, end)
            )

    def session_gone(self, session: QuicSession) -> None:
        """The socket has served."""
        self._channel.close()

    def connection_id_added(self, session: QuicSession, connection_id: bytes) -> None:
        """One socket, one session: nothing to route."""

    def connection_id_removed(self, session: QuicSession, connection_id: bytes) -> None:
        """As above."""
