"""What the roles of one session share: the transport, the ids, the clock, the maps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from moqt.codec.profile import LATEST, Profile
from moqt.codec.properties import SetupOptions
from moqt.counters import Counted, Counters
from moqt.session.request_ids import RequestIds
from moqt.session.routes import IncomingStreams
from moqt.session.streams import DataStream
from moqt.session.timers import Timers
from moqt.session.tokens import OwnTokens, PeerTokens
from transport.api import SendOrder, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import SessionClosed
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.session.config import SessionConfig
    from moqt.session.ports import RequestHandler
    from moqt.session.timers import Timer
    from moqt.session.tracks import OutgoingSubscribeTracks
    from transport.api import BytesLike, TransportSession


class StreamOwner(Protocol):
    """Whatever is responsible for one stream handle."""

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets of the peer's direction."""
        ...

    def reset(self, code: int) -> None:
        """The peer reset its direction."""
        ...

    def stop(self, code: int) -> None:
        """The peer stopped ours."""
        ...

    def sent(self) -> None:
        """Our FIN has been handed down."""
        ...

    def closed(self, error: SessionClosed) -> None:
        """The session is over."""
        ...


class _Held:
    """What one stream brought before the peer's SETUP."""

    __slots__ = ("fin", "octets")

    def __init__(self) -> None:
        self.octets = bytearray()
        self.fin = False


class Context:
    """Shared by the roles; owns the map of streams and the timers, decides nothing by itself."""

    def __init__(
        self,
        transport: TransportSession,
        handler: RequestHandler,
        config: SessionConfig,
        profile: Profile = LATEST,
    ) -> None:
        #: What has passed; complete but for the streams that still run.
        self.counters = Counters()
        self.transport: TransportSession = Counted(transport, self.counters)
        self.handler = handler
        self.config = config
        self.profile = profile
        self.now = 0.0
        #: Both SETUPs are exchanged and nobody has closed.
        self.established = False
        self.peer_options = SetupOptions()
        self.ids = RequestIds(is_client=transport.is_client, max_holes=config.max_id_holes)
        self.own_tokens = OwnTokens(config.request_tokens)
        self.peer_tokens = PeerTokens(config.max_auth_token_cache_size, config.token_verifier)
        self.owners: dict[int, StreamOwner] = {}
        #: Request streams of the peer that are still open.
        self.peer_requests: set[int] = set()
        self.streams = IncomingStreams(self)
        #: Prefixes of the peer's SUBSCRIBE_NAMESPACE requests in force, for the overlap rule.
        self.interests: set[TrackNamespace] = set()
        #: The same of its SUBSCRIBE_TRACKS requests.
        self.track_interests: set[TrackNamespace] = set()
        #: SUBSCRIBE_TRACKS requests of ours, by request id.
        self.tracks_wanted: dict[int, OutgoingSubscribeTracks] = {}
        #: Tracks that the peer publishes to us, and by how many PUBLISH each.
        self.peer_tracks: Counter[FullTrackName] = Counter()
        #: Streams of our latest PUBLISH messages, some of which wait for stream credit.
        self.publishes: list[int] = []
        #: Told of a data stream reset before anyone here knew what it was.
        self.on_stream_lost: Callable[[], None] | None = None
        #: The peer has said GOAWAY: it takes no new requests.
        self.leaving = False
        self.timers = Timers()
        self._aliases = 0
        self._held: dict[int, _Held] = {}
        self._held_octets = 0

    # -- streams ---------------------------------------------------------------------------------

    def open_request(self) -> int:
        """A new bidirectional stream for a request of ours."""
        return self.transport.open(SendOrder(Tier.REQUEST), unidirectional=False)

    def may_publish(self) -> bool:
        """True when one more PUBLISH can go out at once (draft-22 §9.19)."""
        transport = self.transport
        self.publishes = [one for one in self.publishes if not transport.started(one)]
        free = transport.stream_slots(unidirectional=False)
        return self.established and not self.leaving and len(self.publishes) < free

    def wanted(self, namespace: TrackNamespace) -> OutgoingSubscribeTracks | None:
        """The SUBSCRIBE_TRACKS of ours that a PUBLISH under ``namespace`` is due to."""
        found = (one for one in self.tracks_wanted.values() if one.covers(namespace))
        return next(found, None)

    def adopt(self, stream: int, owner: StreamOwner) -> None:
        """From now on ``owner`` hears of ``stream``."""
        self.owners[stream] = owner

    def forget(self, stream: int) -> None:
        """Nobody needs to hear of ``stream`` any more."""
        self.owners.pop(stream, None)
        self.peer_requests.discard(stream)
        held = self._held.pop(stream, None)
        if held is not None:
            self._held_octets -= len(held.octets)

    def hold(self, stream: int, view: BytesLike, fin: bool) -> bool:
        """Keep what came before the peer's SETUP; False when that is too much (draft-22 §6.3)."""
        config, held = self.config, self._held.get(stream)
        if self._held_octets + len(view) > config.early_octets or (
            held is None and len(self._held) >= config.early_streams
        ):
            return False
        if held is None:
            held = self._held[stream] = _Held()
        held.octets += view
        held.fin = fin
        self._held_octets += len(view)
        return True

    def release_held(self) -> None:
        """The peer's SETUP is in: deliver what was held, stream by stream as they came."""
        held, self._held = self._held, {}
        self._held_octets = 0
        for stream, kept in held.items():
            owner = self.owners.get(stream)
            if owner is not None and self.established:
                owner.data(bytes(kept.octets), kept.fin)

    def allocate_alias(self) -> int:
        """A Track Alias of ours, never used twice in a session (draft-22 §3.1.3)."""
        self._aliases += 1
        return self._aliases

    def clear(self) -> list[StreamOwner]:
        """The session is over: forget everything; returns who must be told."""
        self.established = False
        owners = list(self.owners.values())
        self.owners.clear()
        self.peer_requests.clear()
        self.interests.clear()
        self.track_interests.clear()
        self.tracks_wanted.clear()
        self.peer_tracks.clear()
        self.publishes.clear()
        self.own_tokens.clear()
        self.peer_tokens.clear()
        self.timers.clear()
        self.streams.clear()
        self._held.clear()
        self._held_octets = 0
        return owners

    def counted(self) -> Counters:
        """A copy of ``counters``, running streams included."""
        found = Counters(streams_open=len(self.owners))
        found.add(self.counters)
        for owner in self.owners.values():
            if isinstance(owner, DataStream):
                found.received.carried(*owner.tally)
        return found

    # -- time ------------------------------------------------------------------------------------

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` in ``delay`` seconds; for use inside transport events and ticks."""
        return self.timers.call_at(self.now + delay, callback)

    def call_after_tick(self, delay: float, callback: Callable[[], None]) -> Timer:
        """The same for use anywhere: ``now`` may be long ago."""
        return self.timers.call_after_tick(self.now, delay, callback)
