"""What a relay keeps, waits for and lets its peers do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Limits of one relay; times in seconds, sizes in octets."""

    #: Octets of objects kept in memory, all tracks together.
    cache: int = 1 << 30
    #: An object larger than this passes through and is not kept: it would empty the cache.
    max_cached_object: int = 64 << 20
    #: Octets kept of objects that are not whole yet, all tracks together: beyond it those begun
    #: first are not kept, since who publishes may begin objects on every stream and end none.
    unfinished: int = 256 << 20
    #: Octets of one subscription that wait for its subscriber; more end it with TOO_FAR_BEHIND,
    #: since QUIC gives the sender no way to slow down whoever publishes.
    backlog: int = 64 << 20
    #: The largest RENDEZVOUS_TIMEOUT that is granted (draft-22 §9.20.6), and how many SUBSCRIBEs
    #: may wait for a publisher at once.
    rendezvous: float = 60.0
    max_rendezvous: int = 4096
    #: What is spent on a range that is not here when a request states no FILL_TIMEOUT (§9.20.5).
    fill_timeout: float = 30.0
    #: What is due on a live subscription may be late by this before it is fetched.
    straggler: float = 0.5
    #: Fetches upstream that one track may have open; more ranges wait for these.
    max_fetches: int = 8
    #: A track that nobody wants stays subscribed to upstream for so long.
    linger: float = 5.0
    #: Subscriptions wait for a lost publisher to come back for so long.
    recovery: float = 15.0
    #: Tracks known at once, cached or in use; requests for one more are refused (EXCESSIVE_LOAD).
    max_tracks: int = 65_536
    #: Finished subgroups of a track that are remembered, so that a second publisher's copy of one
    #: is not delivered again.
    max_finished: int = 4096
