"""Quarantine: every private attribute of aioquic that this package touches, one function each.

aioquic 1.7 has no public answer to any of these. ``tests/transport/test_aioquic_quarantine.py``
pins each name against the installed version.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from aioquic._buffer import Buffer, BufferReadError
from aioquic.quic.connection import (
    QuicConnection,
    QuicConnectionError,
    QuicConnectionState,
    QuicReceiveContext,
)
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    pull_quic_header,
    pull_quic_transport_parameters,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Alert, AlertDescription, CipherSuite, Direction, Epoch, ExtensionType
from cryptography.x509 import InvalidVersion

from transport.config import SMALLEST_DATAGRAM
from transport.errors import CertificateRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import ConnectionTerminated
    from aioquic.quic.stream import QuicStream
    from cryptography.x509 import Certificate

    from transport.api import BytesLike
    from transport.authorities import Shown

#: RFC 9000 §18.2: what a peer that names no max_udp_payload_size takes.
DEFAULT_UDP_PAYLOAD = 65527

#: Short header, longest connection id, packet number; AEAD tag; DATAGRAM type and length.
DATAGRAM_OVERHEAD = 1 + 20 + 2 + 16 + 3

#: Type and longest length of a DATAGRAM frame, which the peer's limit includes.
DATAGRAM_FRAME_HEAD = 9


def read_header(data: bytes, connection_id_length: int) -> QuicHeader | None:
    """The header of the first packet of a datagram, None when it is none."""
    try:
        return pull_quic_header(Buffer(data=data), host_cid_length=connection_id_length)
    except ValueError:
        return None


def refusal(header: QuicHeader) -> bytes:
    """A server's first packet that says CONNECTION_REFUSED to the client of this Initial."""
    version = header.version or 0
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=SMALLEST_DATAGRAM,
        peer_cid=header.source_cid,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=4)
    for value in (QuicErrorCode.CONNECTION_REFUSED, QuicFrameType.PADDING, 0):
        frame.push_uint_var(value)
    datagrams, _packets = builder.flush()
    return datagrams[0]


#: Seconds; a clock too coarse for the path must not divide by zero.
SHORTEST_RTT = 1e-6


# -- the handshake -------------------------------------------------------------------------------

#: Octets held of handshake messages that are not complete, in order or not: a chain of certificates
#: takes a few thousand. TLS would let a message have 16 MiB, and aioquic copies it with each frame.
MAX_HANDSHAKE = 64 << 10


class Connection(QuicConnection):
    """aioquic's, with a bound on what a peer may make it hold of a handshake message."""

    #: What the client has shown, at a server that asked for it; once the handshake is done.
    shown: Shown | None = None
    #: The client has gone through all of the handshake, and was not admitted.
    refused = False

    def _handle_crypto_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        start = buf.tell()
        end = buf.pull_uint_var() + buf.pull_uint_var()
        buf.seek(start)
        held = end - self._crypto_streams[context.epoch].receiver.starting_offset()
        if held + len(self.tls._receive_buffer) > MAX_HANDSHAKE:
            raise QuicConnectionError(
                error_code=QuicErrorCode.CRYPTO_BUFFER_EXCEEDED,
                frame_type=frame_type,
                reason_phrase=f"a handshake message of more than {MAX_HANDSHAKE} octets",
            )
        try:
            super()._handle_crypto_frame(context, frame_type, buf)
        except InvalidVersion as error:  # aioquic expects a ValueError of what it cannot parse
            raise QuicConnectionError(
                error_code=QuicErrorCode.CRYPTO_ERROR + AlertDescription.bad_certificate,
                frame_type=frame_type,
                reason_phrase="Certificate could not be parsed",
            ) from error


class AskingConnection(Connection):
    """A server's that asks for the client's certificate and does not trust it unseen.

    ``admit`` gets what the client has shown, its own certificate first, and nothing when it has
    none. It runs after TLS has checked the client's signature and Finished, and before the keys for
    what the client sends next are in place; a CertificateRefused ends the handshake with its alert.
    """

    def __init__(
        self,
        *,
        admit: Callable[[Sequence[Certificate]], Shown | None],
        configuration: QuicConfiguration,
        original_destination_connection_id: bytes,
        retry_source_connection_id: bytes | None = None,
    ) -> None:
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
        )
        self._admit = admit

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._request_client_certificate = True
        self.tls.update_traffic_key_cb = partial(self._keys, self.tls.update_traffic_key_cb)

    def _keys(
        self,
        install: Callable[[Direction, Epoch, CipherSuite, bytes], None],
        direction: Direction,
        epoch: Epoch,
        suite: CipherSuite,
        secret: bytes,
    ) -> None:
        if direction is Direction.DECRYPT and epoch is Epoch.ONE_RTT:
            self._admit_client()
        install(direction, epoch, suite, secret)

    def _admit_client(self) -> None:
        own = self.tls._peer_certificate
        try:
            self.shown = self._admit(
                () if own is None else (own, *self.tls._peer_certificate_chain)
            )
        except CertificateRefused as refused:
            self.refused = True
            alert = Alert(str(refused))
            alert.description = AlertDescription(refused.alert)
            raise alert from None


# -- streams -------------------------------------------------------------------------------------


def send(quic: QuicConnection, stream_id: int, data: BytesLike, fin: bool) -> None:
    """``send_stream_data`` without a copy: it appends any buffer, its annotation says bytes."""
    quic.send_stream_data(stream_id, cast("bytes", data), fin)


def stream_of(quic: QuicConnection, stream_id: int) -> QuicStream | None:
    """The live state of a stream, None once it was discarded."""
    return quic._streams.get(stream_id)


def streams_alive(quic: QuicConnection) -> int:
    """Streams whose state aioquic still holds."""
    return len(quic._streams)


def never_sent(stream: QuicStream) -> int:
    """Octets written and not sent even once; a reset stream never will."""
    sender = stream.sender
    if sender._reset_error_code is not None:
        return 0
    return sender._buffer_stop - sender.highest_offset


def stream_credit(stream: QuicStream) -> int:
    """Octets that may still be written before the peer's stream window ends."""
    return stream.max_stream_data_remote - stream.sender._buffer_stop


def initial_credit(quic: QuicConnection, *, unidirectional: bool) -> int:
    """The window of a stream that we are about to open."""
    if unidirectional:
        return quic._remote_max_stream_data_uni
    return quic._remote_max_stream_data_bidi_remote


def connection_credit(quic: QuicConnection) -> int:
    """Octets of all streams that may still be sent for the first time."""
    return quic._remote_max_data - quic._remote_max_data_used


def stream_slots(quic: QuicConnection, *, unidirectional: bool) -> int:
    """Streams of that kind we may still open."""
    if unidirectional:
        return quic._remote_max_streams_uni - quic._local_next_stream_id_uni // 4
    return quic._remote_max_streams_bidi - quic._local_next_stream_id_bidi // 4


def set_stream_limits(quic: QuicConnection, *, bidi: int, uni: int) -> None:
    """Streams the peer may have open; before the handshake, 128 otherwise."""
    for limit, value in ((quic._local_max_streams_bidi, bidi), (quic._local_max_streams_uni, uni)):
        limit.value = limit.sent = value


def unacknowledged(quic: QuicConnection) -> int:
    """Octets of all streams written and not acknowledged; those of reset streams do not count."""
    return sum(
        len(stream.sender._buffer)
        for stream in quic._streams.values()
        if stream.sender._reset_error_code is None
    )


# -- the path ------------------------------------------------------------------------------------


def rate(quic: QuicConnection) -> float | None:
    """Octets a second that the congestion window allows, None before the first round trip."""
    loss = quic._loss
    if not loss._rtt_initialized:
        return None
    return loss.congestion_window / max(loss._rtt_smoothed, SHORTEST_RTT)


def may_send(quic: QuicConnection) -> bool:
    """Whether window and pacing leave room for another full datagram at once."""
    loss = quic._loss
    room = loss.congestion_window - loss.bytes_in_flight
    return quic._pacing_at is None and room >= quic._max_datagram_size


def unanswered_probes(quic: QuicConnection) -> int:
    """Probe timeouts in a row."""
    return quic._loss._pto_count


def probe_timeout(quic: QuicConnection) -> float:
    """Seconds; a connection closes for three of them (RFC 9000 §10.2)."""
    return quic._loss.get_probe_timeout()


def probe(quic: QuicConnection) -> None:
    """Have the next packet ask for an acknowledgement, even where the window is full."""
    quic._send_probe()


def datagram_size(quic: QuicConnection) -> int:
    """Largest UDP payload sent."""
    return quic._max_datagram_size


def set_datagram_size(quic: QuicConnection, size: int) -> None:
    """Send smaller datagrams from now on; DATAGRAM frames that no longer fit are dropped."""
    quic._max_datagram_size = size
    pending = quic._datagrams_pending
    fitting = [data for data in pending if len(data) <= size - DATAGRAM_OVERHEAD]
    pending.clear()
    pending.extend(fitting)


def peer_udp_payload(quic: QuicConnection) -> int:
    """Largest UDP payload the peer takes; aioquic checks the parameter and forgets it."""
    for kind, data in quic.tls.received_extensions or ():
        if kind == ExtensionType.QUIC_TRANSPORT_PARAMETERS:
            try:
                parameters = pull_quic_transport_parameters(Buffer(data=data))
            except BufferReadError:
                break
            return parameters.max_udp_payload_size or DEFAULT_UDP_PAYLOAD
    return DEFAULT_UDP_PAYLOAD


def datagram_payload(quic: QuicConnection) -> int:
    """Largest payload of a DATAGRAM frame; 0 when the peer takes none."""
    limit = quic._remote_max_datagram_frame_size
    if limit is None:
        return 0
    return max(0, min(limit - DATAGRAM_FRAME_HEAD, quic._max_datagram_size - DATAGRAM_OVERHEAD))


def datagrams_waiting(quic: QuicConnection) -> int:
    """DATAGRAM frames that wait for the congestion window."""
    return len(quic._datagrams_pending)


# -- the end -------------------------------------------------------------------------------------


def close_event(quic: QuicConnection) -> ConnectionTerminated | None:
    """Why the connection ends, at once: the public event comes after the draining period."""
    return quic._close_event


def closed_by_peer(quic: QuicConnection) -> bool:
    """Whether a CONNECTION_CLOSE of the peer ended it."""
    return quic._state is QuicConnectionState.DRAINING
