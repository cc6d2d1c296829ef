"""What a session offers its peer, and what it lets a peer make it keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moqt.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.codec.fields import Token
    from moqt.session.tokens import TokenVerifier

IMPLEMENTATION: Final = "kvcs/0.1.0"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Frozen per session; every limit says what it protects.

    Times are in seconds. ``authority`` and ``path`` are sent by a client on raw QUIC
    (draft-22 §9.1.1, §9.1.2) and None elsewhere.
    """

    implementation: str = IMPLEMENTATION
    authority: str | None = None
    path: str | None = None
    #: The session runs over WebTransport, whose own URI says authority and path: our SETUP names
    #: neither, and a peer's that does ends the session (draft-22 §9.1.1, §9.1.2).
    webtransport: bool = False
    #: What a server serves: authorities (host, or host:port) and paths without query; None is all
    #: (draft-22 §9.1.1, §9.1.2).
    served_authorities: tuple[str, ...] | None = None
    served_paths: tuple[str, ...] | None = None
    #: What our SETUP shows for us, by value or registered for later (draft-22 §9.1.4).
    setup_tokens: tuple[Token, ...] = ()
    #: What each request and update of ours shows, by value, asked anew each time; it goes out in
    #: the shortest form, unless the request names tokens itself (draft-22 §8.9).
    request_tokens: Callable[[], Iterable[Token]] | None = None
    #: Judges SETUP, requests and updates of the peer; None admits all.
    token_verifier: TokenVerifier | None = None
    #: Octets of tokens, and 16 for each, that the peer may register with us (draft-22 §9.1.3).
    max_auth_token_cache_size: int = 0
    #: Ranges the peer may put in the filters of one request (draft-22 §9.1.6): all are compared
    #: with every object.
    max_filter_ranges: int = 32
    #: Unanswered REQUEST_UPDATEs per request stream; we answer at once, so few are ever open.
    max_request_updates: int = 16
    #: Fill streams one subscription may have open or waiting; one more ends it. The peer may keep
    #: them all waiting, by giving no credit for streams.
    max_fills: int = 64
    #: Octets of our answers on one request stream that the peer does not let us send.
    unread_answers: int = 64 << 10
    #: A peer that connects and never sends SETUP holds a session no longer than this.
    setup_timeout: float = 10.0
    #: A control message, or the header of a data stream or object, that was begun must be whole by
    #: then: a peer that trickles holds a stream no longer.
    stall_timeout: float = 30.0
    #: A request of ours that nobody answers fails after this, and the RENDEZVOUS_TIMEOUT it states.
    request_timeout: float = 60.0
    #: Streams and octets that arrive before the peer's SETUP are kept, up to here; more are reset.
    early_streams: int = 256
    early_octets: int = 1 << 20
    #: Data streams whose alias is not known yet (draft-22 §3.1.3.1): count, octets, time.
    orphan_streams: int = 256
    orphan_octets: int = 8 << 20
    orphan_timeout: float = 5.0
    #: Datagrams of such aliases, kept while a SUBSCRIBE of ours is unanswered: count, octets.
    orphan_datagrams: int = 64
    orphan_datagram_octets: int = 1 << 17
    #: After PUBLISH_DONE late streams may still come; then the count was wrong.
    done_timeout: float = 10.0
    #: Request streams of the peer open at once; one more is answered EXCESSIVE_LOAD.
    max_peer_requests: int = 4096
    #: Holes in the peer's request ids that we remember; each request cancelled early leaves one.
    max_id_holes: int = 1024
    #: After STOP_SENDING on a request of ours the answer or the reset may be right behind.
    stop_grace: float = 1.0
    #: Octets of the namespaces one SUBSCRIBE_NAMESPACE of ours may bring; 64 more count for each.
    namespace_octets: int = 8 << 20
    #: Seconds (EXPIRES) that what we grant lives unless its peer extends it by REQUEST_UPDATE; 0 is
    #: for ever (draft-22 §9.20.16).
    lifetime: float = 0.0
    #: Retry interval, in milliseconds, sent with EXCESSIVE_LOAD.
    retry_interval: int = 1000

    def __post_init__(self) -> None:
        if self.request_tokens is not None and not callable(self.request_tokens):
            raise Misuse("request_tokens is asked anew for each request: give a function")
