"""The server's half: one socket, many sessions, and who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from aioquic.quic.packet import (
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from transport import _aioquic
from transport.config import LARGEST_DATAGRAM, SMALLEST_DATAGRAM, QuicOptions
from transport.errors import TransportError
from transport.handshake import server_configuration, with_datagram_size
from transport.quic import MAX_LINGER, End, QuicSession
from transport.udp import UdpChannel, path_datagram_size, udp_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.packet import QuicHeader

    from transport.api import TransportSession, TransportSink
    from transport.authorities import ClientAuthorities
    from transport.config import ServerTls
    from transport.udp import Address

logger = logging.getLogger(__name__)

#: Octets of the connection ids we choose, and the least a client may choose (RFC 9000 §7.2).
CONNECTION_ID: Final = 8

#: Shorter datagrams hold no QUIC packet: first octet, connection id, and what protection needs.
SMALLEST_PACKET: Final = 1 + CONNECTION_ID + 20


async def serve(
    host: str,
    port: int,
    sink_factory: Callable[[TransportSession], TransportSink],
    *,
    tls: ServerTls,
    options: QuicOptions | None = None,
) -> Listener:
    """Listen on ``host`` (empty: all addresses) and ``port`` (0: a free one).

    ``sink_factory`` is called for each session whose handshake is done. TransportError when the
    address cannot be bound or the certificate cannot be used.
    """
    options = options or QuicOptions()
    configuration = server_configuration(tls, options)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        sock = _bound([(item[0], item[4]) for item in found], everywhere=not host)
    except OSError as error:
        raise TransportError(
            f"cannot listen on {host or 'all addresses'} port {port} ({error.strerror or error}); "
            "choose another port, or an address of this machine"
        ) from error
    return Listener(loop, sock, sink_factory, configuration, options, tls.client_ca)


def _bound(found: Iterable[tuple[int, tuple[object, ...]]], *, everywhere: bool) -> socket.socket:
    """A socket on the first usable address; for all addresses IPv6 that takes IPv4 too."""
    if everywhere:
        found = sorted(found, key=lambda item: item[0] != socket.AF_INET6)
    failure: OSError | None = None
    for family, address in found:
        sock = None
        try:
            sock = udp_socket(family)
            if everywhere and family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
        except OSError as error:
            failure = failure or error
            if sock is not None:
                sock.close()
        else:
            return sock
    raise failure or OSError("the host has no address")


class _Member:
    """What the listener keeps of a session: its connection ids, and a limit on its handshake."""

    __slots__ = ("connection_ids", "handshake")

    def __init__(self, handshake: asyncio.TimerHandle) -> None:
        self.connection_ids: set[bytes] = set()
        self.handshake: asyncio.TimerHandle | None = handshake


class Listener:
    """A listening socket and its sessions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        sink_factory: Callable[[TransportSession], TransportSink],
        configuration: QuicConfiguration,
        options: QuicOptions,
        client_ca: ClientAuthorities | None = None,
    ) -> None:
        self._loop = loop
        self._sink_factory = sink_factory
        self._configuration = configuration
        self._options = options
        self._connection: Callable[..., _aioquic.Connection] = _aioquic.Connection
        if client_ca is not None:
            self._connection = partial(_aioquic.AskingConnection, admit=client_ca.admit)
        self._routes: dict[bytes, QuicSession] = {}
        self._members: dict[QuicSession, _Member] = {}
        self._half_open = 0
        self._touched: dict[QuicSession, None] = {}
        self._retry = QuicRetryTokenHandler()
        self._refusing = False
        self._closing = False
        self._empty = asyncio.Event()
        self._channel = UdpChannel(loop, sock, self)
        self._address = self._channel.address

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._address[1]

    @property
    def sessions(self) -> frozenset[TransportSession]:
        """Sessions that are up."""
        return frozenset(session for session in self._members if session.connected)

    @property
    def entries(self) -> int:
        """Connections and connection ids it knows of: zero when all are gone."""
        return len(self._members) + len(self._routes) + self._half_open

    def refuse(self) -> None:
        """Take no new client (CONNECTION_REFUSED); a handshake that has begun goes on."""
        self._refusing = True

    async def close(self, code: int = 0, reason: str = "") -> None:
        """Close every session, wait until their peers had time to hear it (2 s at most)."""
        self._refusing = self._closing = True
        for session in list(self._members):
            if session.connected:
                session.close(code, reason)
            else:
                session.abandon(End(-1, "the server stops", remote=False))
        try:
            if self._members:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(MAX_LINGER):
                        await self._empty.wait()
        finally:
            for session in list(self._members):
                session.abandon(End(-1, "the server stops", remote=False))
            self._channel.close()

    # -- transport.udp.Receiver --------------------------------------------------------------------

    def datagram_received(self, data: bytes, address: Address) -> None:
        """Give it to its session; a new client may get one."""
        if len(data) < SMALLEST_PACKET:
            return
        if data[0] & 0x80:
            session = self._by_long_header(data, address)
        else:
            session = self._routes.get(data[1 : 1 + CONNECTION_ID])
        if session is None:
            return
        self._touched[session] = None
        try:
            session.receive(data, address, monotonic())
        except Exception as error:  # a bug below us costs this session alone
            session.fail(error)

    def batch_done(self) -> None:
        """One turn for each session that heard something."""
        touched, self._touched = self._touched, {}
        for session in touched:
            session.turn()

    def path_error(self, error: OSError) -> None:
        """One of many paths; its session will notice by itself."""
        logger.debug("a datagram could not be sent: %s", error)

    def writable(self) -> None:
        """Everybody may send again."""
        for session in list(self._members):
            session.turn()

    # -- transport.quic.Host -----------------------------------------------------------------------

    def session_ready(self, session: QuicSession) -> TransportSink:
        """It no longer counts as half-open; its owner is made."""
        self._handshake_over(session)
        return self._sink_factory(session)

    def session_ended(self, session: QuicSession, end: End) -> None:
        """Its connection ids stay until it is gone."""
        if self._handshake_over(session):
            logger.info("no session with %s: %s", session.peer.address[0], end.reason)

    def session_gone(self, session: QuicSession) -> None:
        """Forget it."""
        member = self._members.pop(session, None)
        if member is not None:
            for connection_id in member.connection_ids:
                self._routes.pop(connection_id, None)
        if self._closing and not self._members:
            self._empty.set()

    def connection_id_added(self, session: QuicSession, connection_id: bytes) -> None:
        """Route datagrams with this id to the session."""
        member = self._members.get(session)
        if member is not None:
            member.connection_ids.add(connection_id)
            self._routes[connection_id] = session

    def connection_id_removed(self, session: QuicSession, connection_id: bytes) -> None:
        """The peer has retired the id."""
        member = self._members.get(session)
        if member is not None and connection_id in member.connection_ids:
            member.connection_ids.remove(connection_id)
            self._routes.pop(connection_id, None)

    # -- inside ------------------------------------------------------------------------------------

    def _by_long_header(self, data: bytes, address: Address) -> QuicSession | None:
        header = _aioquic.read_header(data, CONNECTION_ID)
        if header is None or header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in self._configuration.supported_versions:
            if len(data) >= SMALLEST_DATAGRAM:  # never answer with more than was asked
                self._answer(
                    encode_quic_version_negotiation(
                        source_cid=header.destination_cid,
                        destination_cid=header.source_cid,
                        supported_versions=self._configuration.supported_versions,
                    ),
                    address,
                )
            return None
        session = self._routes.get(header.destination_cid)
        if (
            session is None
            and header.packet_type is QuicPacketType.INITIAL
            and len(data) >= SMALLEST_DATAGRAM
            and len(header.destination_cid) >= CONNECTION_ID
        ):
            session = self._admit(header, len(data), address)
        return session

    def _admit(self, header: QuicHeader, size: int, address: Address) -> QuicSession | None:
        """A new client: refuse it, ask it to prove its address, or make its session."""
        options = self._options
        if self._refusing or len(self._members) >= options.max_connections:
            self._answer(_aioquic.refusal(header), address)
            return None
        if self._half_open >= options.max_half_open:
            return None
        original = self._original_id(header, address)
        retried = original is not None
        if original is None:
            if self._half_open >= options.retry_from:
                self._ask_again(header, address)
                return None
            original = header.destination_cid
        ceiling = min(size, options.max_datagram_size or LARGEST_DATAGRAM)
        quic = self._connection(
            configuration=with_datagram_size(
                self._configuration, path_datagram_size(address, ceiling)
            ),
            original_destination_connection_id=original,
            retry_source_connection_id=header.destination_cid if retried else None,
        )
        session = QuicSession(quic, self._channel, self, options, self._loop)
        deadline = self._loop.call_later(
            options.connect_timeout,
            session.abandon,
            End(-1, "the handshake took too long", remote=False),
        )
        self._members[session] = _Member(deadline)
        self._half_open += 1
        self.connection_id_added(session, header.destination_cid)
        self.connection_id_added(session, quic.host_cid)
        return session

    def _original_id(self, header: QuicHeader, address: Address) -> bytes | None:
        """The connection id before our Retry, None when the packet holds no valid token of ours."""
        if not header.token:
            return None
        try:
            return self._retry.validate_token(
                address=address,
                destination_cid=header.destination_cid,
                token=header.token,
                now=monotonic(),
            )
        except ValueError:
            return None

    def _ask_again(self, header: QuicHeader, address: Address) -> None:
        """Retry: whoever answers it owns the address (RFC 9000 §8.1.2)."""
        source = os.urandom(CONNECTION_ID)
        token = self._retry.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source,
            now=monotonic(),
        )
        self._answer(
            encode_quic_retry(
                version=header.version or 0,
                source_cid=source,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            ),
            address,
        )

    def _answer(self, data: bytes, address: Address) -> None:
        self._channel.send([(data, address)])

    def _handshake_over(self, session: QuicSession) -> bool:
        """Whether the session was half-open until now."""
        member = self._members.get(session)
        if member is None or member.handshake is None:
            return False
        member.handshake.cancel()
        member.handshake = None
        self._half_open -= 1
        return True
