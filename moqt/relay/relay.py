"""A relay without its sockets: sessions come in, and tracks go from each to all (draft-22 §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.errors import RequestCode, RequestRefused
from moqt.relay.asking import Asking
from moqt.relay.cache import Cache
from moqt.relay.config import RelayConfig
from moqt.relay.context import RelayContext
from moqt.relay.directory import Directory
from moqt.relay.loops import Loops
from moqt.relay.namespaces import ByNamespace
from moqt.relay.offers import Offers
from moqt.relay.track import RelayTrack
from moqt.session.prefixes import under

if TYPE_CHECKING:
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.relay.clock import Clock
    from moqt.relay.peers import Peer
    from moqt.relay.spill import Spill
    from moqt.session.publishing import IncomingPublish

#: Tracks looked at for one to forget when there are too many.
_LOOKS: Final = 16


class Relay:
    """Tracks, namespaces and sessions of one relay; each session has a ``RelayHandler``."""

    def __init__(
        self, clock: Clock, config: RelayConfig | None = None, spill: Spill | None = None
    ) -> None:
        self.config = config or RelayConfig()
        self.cache = Cache(self.config.cache, spill)
        self.context = RelayContext(self.config, clock, self.cache, self.candidates)
        self.context.make_room = lambda: self._forget_one(costly=True)
        self.directory = Directory()
        self.tracks: dict[FullTrackName, RelayTrack] = {}
        self._by_namespace: ByNamespace[RelayTrack] = ByNamespace()
        self.offers = Offers(self)
        self.peers: dict[Peer, None] = {}
        #: Sessions to other relays, by the prefix that they serve; the longest counts first.
        self.upstreams: dict[Peer, tuple[TrackNamespace, ...]] = {}
        self.loops = Loops(self)
        self._asking: dict[Peer, Asking] = {}
        self._changed = False
        #: No new work is taken.
        self.leaving = False

    def track(self, name: FullTrackName) -> RelayTrack:
        """The track of that name, known or new; EXCESSIVE_LOAD when there are too many."""
        if self.leaving:
            raise RequestRefused(RequestCode.GOING_AWAY, "the relay is closing")
        found = self.tracks.get(name)
        if found is None:
            if len(self.tracks) >= self.config.max_tracks and not self._forget_one():
                raise RequestRefused(RequestCode.EXCESSIVE_LOAD, "too many tracks", 1000)
            found = self.tracks[name] = RelayTrack(self.context, name, self._idle)
            self._by_namespace.add(name.namespace, found)
            found.stock.archive.open()
        return found

    def candidates(self, name: FullTrackName) -> list[Peer]:
        """Whom to ask for a track: who announced it, and the relays that serve its namespace."""
        found = dict.fromkeys(self.directory.publishers(name))
        namespace = name.namespace
        fits = [
            (max(len(prefix) for prefix in matching), peer)
            for peer, prefixes in self.upstreams.items()
            if not self.loops.has_left(peer, namespace)
            and (matching := [one for one in prefixes if under(namespace, one)])
        ]
        longest = max((length for length, _ in fits), default=0)
        found.update(dict.fromkeys(peer for length, peer in fits if length == longest))
        return list(found)

    # -- publishers ------------------------------------------------------------------------------

    def announced(self, namespace: TrackNamespace, peer: Peer) -> None:
        """A peer has tracks under ``namespace``: whoever follows one follows it there too."""
        self.directory.announce(namespace, peer)
        for track in self._by_namespace.under(namespace):
            track.publisher_came(peer)

    def withdrawn(self, namespace: TrackNamespace, peer: Peer) -> None:
        """It has them no longer; what it serves already goes on."""
        self.directory.withdraw(namespace, peer)

    def offered(self, request: IncomingPublish, peer: Peer) -> None:
        """A peer publishes a track to us: one more upstream of it, and on offer to others."""
        track = self.track(request.name)
        held = track.awaiting()
        track.offered(request, peer)
        if request.active:
            self.offers.came(track, held)
            request.when_ended(lambda: self.offers.gone(track))

    def upstream_came(self, peer: Peer, prefixes: tuple[TrackNamespace, ...]) -> None:
        """A session to a relay upstream is open."""
        self.upstreams[peer] = prefixes
        self.loops.came(peer)
        asking = self._asking[peer] = Asking(self, peer, prefixes)
        asking.adjust()
        for track in tuple(self.tracks.values()):
            if peer in self.candidates(track.name):
                track.publisher_came(peer)

    def upstream_gone(self, peer: Peer) -> None:
        """It is over, or about to be."""
        self.upstreams.pop(peer, None)
        asking = self._asking.pop(peer, None)
        if asking is not None:
            asking.close()
        self.loops.forget(peer)

    def leads_back(self, peer: Peer) -> None:
        """What is asked at an upstream comes back here: ask nothing there any more."""
        peer.leads_back = True
        self.upstream_gone(peer)
        self.leads_back_under(peer, ())
        self.context.clock.call_later(0, lambda: peer.close("this upstream leads back"))

    def leads_back_under(self, peer: Peer, namespace: TrackNamespace) -> None:
        """The same for a part of what it serves."""
        for track in self._by_namespace.under(namespace):
            track.let_go(peer, has_none=True)
        self.interest_changed()

    def let_go(self, peer: Peer) -> None:
        """A session is about to end: what another one serves too is left here."""
        for track in tuple(self.tracks.values()):
            track.let_go(peer)

    # -- inside ----------------------------------------------------------------------------------

    def _forget_one(self, *, costly: bool = False) -> bool:
        """Drop a track that only its cached objects keep; few are looked at, each in its turn.

        ``costly``: one that has more than a track needs.
        """
        for _ in range(min(_LOOKS, len(self.tracks))):
            name = next(iter(self.tracks))
            track = self.tracks.pop(name)
            self.tracks[name] = track
            if not track.busy and (track.stock.archive.extras or not costly):
                self._forget(track)
                return True
        return False

    def _forget(self, track: RelayTrack) -> None:
        track.stock.archive.close()
        del self.tracks[track.name]
        self._by_namespace.discard(track.name.namespace, track)

    def interest_changed(self) -> None:
        """Somebody wants to hear of other namespaces or tracks than before."""
        if not self._changed:
            self._changed = True  # what comes together is looked at once
            self.context.clock.call_later(0, self._adjust)

    def _adjust(self) -> None:
        self._changed = False
        for asking in tuple(self._asking.values()):
            asking.adjust()

    def sweep(self) -> None:
        """Let go of tracks of which nothing is left; to be called now and then."""
        for track in tuple(self.tracks.values()):
            self._idle(track)

    def _idle(self, track: RelayTrack) -> None:
        """Nobody wants a track: it stays as long as something of it is cached."""
        archive = track.stock.archive
        archive.known  # what has expired goes  # noqa: B018
        gone = not archive.objects and not track.busy
        if track.stock.fault is not None:
            gone = True  # whoever asks again begins anew; what still reads it is being reset
        if gone and self.tracks.get(track.name) is track:
            self._forget(track)
