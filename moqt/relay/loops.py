"""Upstreams that lead back to this relay, found by asking them for what only it can have named.

MOQT counts no hops. In a circle every relay waits for the next one, or stands on it: what nobody
publishes would never be refused, and what has ended never end.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.errors import MoqtError, RequestCode, RequestRefused
from moqt.model import FullTrackName
from moqt.session.prefixes import under

if TYPE_CHECKING:
    from moqt.model import TrackNamespace
    from moqt.relay.clock import Planned
    from moqt.relay.peers import Peer
    from moqt.relay.relay import Relay
    from moqt.relay.track import RelayTrack

#: Seconds between two looks at one upstream.
LOOK_EVERY: Final = 10.0
#: Seconds for which what leads back is not asked for there.
LEFT: Final = 60.0
#: Octets of a name that nobody else makes by chance.
_NONCE: Final = 16


class _Look(NamedTuple):
    """Where it went; ``widest``: for all that this upstream serves; ``wider``: after another."""

    peer: Peer
    widest: bool
    wider: bool


class Loops:
    """Looks at an upstream when what is asked of us may be what we ask there.

    A look is one TRACK_STATUS for a track that does not exist: it goes where a SUBSCRIBE for its
    namespace goes, and if it comes back here, so does everything else there. Then the namespace
    with one field less is looked at, up to what the upstream serves. Whoever publishes in a
    namespace may bring a look back here: that costs that namespace alone, and all that an upstream
    serves only who may announce all of it.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._sent: dict[FullTrackName, _Look] = {}
        self._left: dict[Peer, dict[TrackNamespace, Planned]] = {}
        self._due: dict[Peer, float] = {}
        self._planned: dict[Peer, Planned] = {}

    def check(self, name: FullTrackName) -> None:
        """RequestRefused when a look has come back: that upstream is left, or a part of it."""
        look = self._sent.pop(name, None)
        if look is not None:
            self._came_back(look, name.namespace)
            raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")

    def has_left(self, peer: Peer, namespace: TrackNamespace) -> bool:
        """True when what is under ``namespace`` leads back from ``peer``."""
        left = self._left.get(peer)
        return left is not None and any(
            namespace[:fields] in left for fields in range(len(namespace) + 1)
        )

    def came(self, peer: Peer) -> None:
        """An upstream, before anything else is asked there: whoever closes a circle opens it.

        One that is used by nobody closes none.
        """
        relay = self._relay
        tracks = (one.name.namespace for one in relay.tracks.values() if one.wanted)
        interests = (relay.directory.interests, relay.offers.interests)
        for prefix in (*tracks, *(one for kind in interests for one in kind.prefixes())):
            self._look_under(peer, prefix)
            if peer in self._due:
                break

    def asked(self, track: RelayTrack) -> None:
        """A request for a track that may be asked for upstream already."""
        for leg in track.stock.legs:
            if leg.peer in self._relay.upstreams:
                self._suspect(leg.peer, track.name.namespace)

    def interested(self, prefix: TrackNamespace) -> None:
        """A request for a prefix, which is asked for upstream, too."""
        for peer in self._relay.upstreams:
            self._look_under(peer, prefix)

    def forget(self, peer: Peer) -> None:
        """An upstream is gone."""
        self._due.pop(peer, None)
        planned = self._planned.pop(peer, None)
        if planned is not None:
            planned.cancel()
        for one in self._left.pop(peer, {}).values():
            one.cancel()
        for name in [name for name, look in self._sent.items() if look.peer is peer]:
            del self._sent[name]

    # -- inside ----------------------------------------------------------------------------------

    def _look_under(self, peer: Peer, prefix: TrackNamespace) -> None:
        for served in self._relay.upstreams[peer]:
            if under(prefix, served) or under(served, prefix):
                self._suspect(peer, max(prefix, served, key=len))
                return

    def _suspect(self, peer: Peer, namespace: TrackNamespace) -> None:
        if peer in self._planned or self.has_left(peer, namespace):
            return
        clock = self._relay.context.clock
        wait = self._due.get(peer, 0.0) - clock.time()
        if wait > 0:
            self._planned[peer] = clock.call_later(wait, lambda: self._look(peer, namespace))
        else:
            self._look(peer, namespace)

    def _look(self, peer: Peer, namespace: TrackNamespace, *, wider: bool = False) -> None:
        self._planned.pop(peer, None)
        if not peer.usable:
            return
        self._due[peer] = self._relay.context.clock.time() + LOOK_EVERY
        served = self._relay.upstreams[peer]
        widest = namespace in served or not namespace
        # All of it is nowhere in particular: nobody but who serves everything can have that.
        name = FullTrackName(
            namespace or (secrets.token_bytes(_NONCE),), secrets.token_bytes(_NONCE)
        )
        try:
            peer.track_status(name, lambda _: self._answered(name))
        except MoqtError:
            return  # the session is ending, or the namespace leaves no room for a name
        self._sent[name] = _Look(peer, widest, wider)

    def _answered(self, name: FullTrackName) -> None:
        self._sent.pop(name, None)

    def _came_back(self, look: _Look, namespace: TrackNamespace) -> None:
        relay, peer = self._relay, look.peer
        if not look.wider:
            relay.context.counts["loops"] += 1
        if look.widest:
            relay.leads_back(peer)
            return
        left = self._left.setdefault(peer, {})
        for narrower in [one for one in left if under(one, namespace)]:
            left.pop(narrower).cancel()
        again = relay.context.clock.call_later(LEFT, lambda: self._again(peer, namespace))
        left[namespace] = again
        relay.leads_back_under(peer, namespace)
        self._look(peer, namespace[:-1], wider=True)

    def _again(self, peer: Peer, namespace: TrackNamespace) -> None:
        del self._left[peer][namespace]
        self._relay.interest_changed()
