"""The one interface between MOQT and whatever carries it.

Raw QUIC implements it today; WebTransport, other QUIC backends and the in-memory pair of
``transport.testing`` have the same shape. Streams are named by opaque handles, not by QUIC stream
ids: a stream of ours gets its id only when its first byte is handed down, so that opening order,
stream credit and bandwidth all follow priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

BytesLike: TypeAlias = bytes | bytearray | memoryview


class Tier(IntEnum):
    """What must never wait for what (draft-22 §5.1): lower goes first."""

    CONTROL = 0
    REQUEST = 1
    OBJECT = 2
    PADDING = 3


class SendOrder(NamedTuple):
    """Where a stream stands in the queue of one session; lower tuples go first.

    Streams of equal ``(tier, subscriber, publisher)`` but different ``flow`` take turns; inside
    one flow (one subscription or fetch) the smaller ``rank`` goes first.
    """

    tier: int
    subscriber: int = 128
    publisher: int = 128
    flow: int = 0
    rank: tuple[int, ...] = ()


class Chunk(NamedTuple):
    """What a source hands out: views sent together, and the order they have from now on."""

    views: tuple[BytesLike, ...]
    order: SendOrder | None = None


#: Pulled at most one chunk ahead, first when the stream first reaches the head of the queue.
#: ``None`` parks the stream until ``TransportSession.wake``. The end of the iterator is its FIN;
#: ``transport.errors.StreamAbort`` raised inside it resets the stream with that code, any other
#: exception closes the session. Of ``reorder`` and ``Chunk.order`` the latest call wins.
ChunkSource: TypeAlias = Iterator[Chunk | None]


class PeerInfo(NamedTuple):
    """What is known of the other end once connected."""

    address: tuple[str, int]
    protocol: str
    datagram_size: int


class PeerCertificate(Protocol):
    """What a client has shown: it holds the key, and an authority vouches for the certificate."""

    @property
    def der(self) -> bytes:
        """The certificate."""
        ...

    @property
    def ends(self) -> float:
        """Unix time when it, or an authority above it, is no longer valid; the session goes on.

        0 once the authorities have changed and none vouches for it any more.
        """
        ...


class TransportSession(Protocol):
    """One connection, as its owner drives it. All calls return at once and never block.

    Calls on a stream that is already gone, or on a closed session, are ignored: the owner learns
    of both through the sink, and a late write is no mistake. ``open`` and ``write`` are legal
    before ``connected``. No sink method and no source runs inside a call of this class: they run
    after the current event. Only octets that QUIC may send now count toward what is kept unsent
    below: a stream blocked by flow control or stream credit is skipped, and the tiers CONTROL and
    REQUEST are never held back by objects.
    """

    @property
    def is_client(self) -> bool:
        """True on the side that opened the connection."""
        ...

    @property
    def peer(self) -> PeerInfo:
        """Valid after ``TransportSink.connected``."""
        ...

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """At a server that asks for it: what the client has shown; valid as ``peer`` is."""
        ...

    def open(self, order: SendOrder, *, unidirectional: bool) -> int:
        """Reserve a stream and return its handle; nothing is sent before the first byte."""
        ...

    def write(self, stream: int, *views: BytesLike) -> None:
        """Queue references to ``views``; they must not change until sent."""
        ...

    def feed(self, stream: int, source: ChunkSource) -> None:
        """After what is queued, pull the rest of the stream from ``source``."""
        ...

    def wake(self, stream: int) -> None:
        """A source that answered ``None`` may have more now."""
        ...

    def reorder(self, stream: int, order: SendOrder) -> None:
        """Change the order of what is not yet handed down."""
        ...

    def finish(self, stream: int) -> None:
        """FIN after everything queued."""
        ...

    def reset(self, stream: int, code: int) -> None:
        """RESET_STREAM our direction; what is queued is dropped."""
        ...

    def stop(self, stream: int, code: int) -> None:
        """STOP_SENDING the peer's direction; no more data of it is reported."""
        ...

    def send_datagram(self, data: bytes) -> bool:
        """Send unreliably; False when it cannot fit or the peer takes none."""
        ...

    def stream_slots(self, *, unidirectional: bool) -> int:
        """Streams of that kind the peer lets us start now; those opened but not started count."""
        ...

    def started(self, stream: int) -> bool:
        """True once the first octet was handed to QUIC: the peer can know of the stream."""
        ...

    def unacknowledged(self) -> int:
        """Octets of all streams not yet acknowledged by the peer, queued ones included."""
        ...

    def unsent(self, stream: int | None = None) -> int:
        """Octets queued here and not yet handed to QUIC, of one stream or of all."""
        ...

    def close(self, code: int, reason: str = "") -> None:
        """CONNECTION_CLOSE with an application code; ``TransportSink.closed`` follows."""
        ...


class TransportSink(Protocol):
    """What a session's owner is told, called directly from the receive path, in order.

    A sink must not block. Views passed to ``stream_data`` are read-only and stay valid as long as
    they are referenced; a backend that reuses its buffers copies once.
    """

    def connected(self) -> None:
        """The handshake is complete."""
        ...

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        """The peer opened a stream; its first data follows at once."""
        ...

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        """The next octets of a stream, in order; ``data`` may be empty when ``fin``."""
        ...

    def stream_reset(self, stream: int, code: int) -> None:
        """The peer reset its direction."""
        ...

    def stop_sending(self, stream: int, code: int) -> None:
        """The peer wants no more of our direction; the owner should reset it."""
        ...

    def stream_sent(self, stream: int) -> None:
        """Everything of our direction, FIN included, has been handed to QUIC."""
        ...

    def datagram(self, data: bytes) -> None:
        """One datagram."""
        ...

    def closed(self, code: int, reason: str, remote: bool) -> None:
        """The session is over, once, whoever ended it; ``code`` -1 is a lost connection."""
        ...
