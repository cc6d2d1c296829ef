"""Settings of a connection, frozen. Every limit says why it is what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transport.scheduler import UNSENT_BUDGET

if TYPE_CHECKING:
    from pathlib import Path

    from transport.authorities import ClientAuthorities

#: aioquic writes the length of a STREAM frame in 14 bits: larger datagrams corrupt the stream.
LARGEST_DATAGRAM: Final = 16384

#: What every QUIC path carries (RFC 9000 §14.1).
SMALLEST_DATAGRAM: Final = 1200

#: Seconds of silence after which QUIC itself drops a connection.
IDLE_TIMEOUT: Final = 30.0

#: Seconds: longer than an event loop hangs that is still of use, shorter than people wait.
PEER_TIMEOUT: Final = 12.0

_POSITIVE: Final = (
    *("idle_timeout", "peer_timeout", "connect_timeout", "unsent_budget", "piece", "hot_streams"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """``ca_file`` (PEM) is trusted instead of the public CAs; ``server_name`` replaces the host.

    ``certificate`` (then its intermediates) and ``private_key`` are our own, PEM, for servers that
    ask for one; both or neither. ``verify=False`` accepts any certificate: for tests alone.
    """

    ca_file: Path | None = None
    server_name: str | None = None
    verify: bool = True
    certificate: Path | None = None
    private_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """PEM files: the certificate (then its intermediates) and its key.

    With ``client_ca`` clients are asked for a certificate of one of those authorities.
    """

    certificate: Path
    private_key: Path
    client_ca: ClientAuthorities | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicOptions:
    """Seconds and octets. The defaults were measured; see each comment."""

    #: ALPN protocols, best first; the layer above names its own when there are none here.
    protocols: tuple[str, ...] = ()
    #: QUIC's own limit of silence; the smaller of both sides' counts.
    idle_timeout: float = IDLE_TIMEOUT
    #: A peer from which nothing comes for so long, though it is asked (PING) again and again, is
    #: lost; on slow paths it takes longer. None asks nothing: then ``idle_timeout`` ends what is
    #: silent, subscriptions that wait, too.
    peer_timeout: float | None = PEER_TIMEOUT
    #: Until the handshake is done; a half-open connection at a server lives no longer.
    connect_timeout: float = 10.0
    #: None takes what the path carries; never above LARGEST_DATAGRAM.
    max_datagram_size: int | None = None
    #: Largest DATAGRAM frame taken from the peer; MOQT needs the extension (draft-22 §6.1).
    max_datagram_frame_size: int = 65536
    #: Never-sent octets kept inside QUIC: 256 KiB is full speed, more only delays urgent streams.
    unsent_budget: int = UNSENT_BUDGET
    #: Handed to QUIC at once: a 32 KiB block with its headers in one call.
    piece: int = 33 << 10
    #: Streams with unsent octets inside QUIC: each costs time per packet, whatever it sends.
    hot_streams: int = 4
    #: Streams the peer may have open: one a request. Each costs about 0.4 us per packet we send.
    max_streams_bidi: int = 256
    #: Streams the peer may have open: one a subgroup or fetch.
    max_streams_uni: int = 256
    #: Initial flow control of the connection; aioquic doubles it as octets arrive.
    max_data: int = 16 << 20
    #: Initial flow control of a stream; bounds what gaps in one stream can make us hold.
    max_stream_data: int = 2 << 20
    #: Connections of a server, and those among them whose handshake is not done.
    max_connections: int = 1000
    max_half_open: int = 256
    #: Half-open connections from which on a client must prove its address (RFC 9000 §8.1.2).
    retry_from: int = 64

    def __post_init__(self) -> None:
        """ValueError for values that cannot work."""
        size = self.max_datagram_size
        if size is not None and not SMALLEST_DATAGRAM <= size <= LARGEST_DATAGRAM:
            raise ValueError(
                f"max_datagram_size is {size}: "
                f"choose {SMALLEST_DATAGRAM} to {LARGEST_DATAGRAM}, or None for what the path takes"
            )
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}: it must be above 0")
