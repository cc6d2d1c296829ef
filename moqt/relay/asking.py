"""What downstream wants to hear of, asked for upstream: as few prefixes as cover it (§7.5)."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.codec.params import NO_PARAMETERS
from moqt.errors import MoqtError, RequestFailed
from moqt.session.prefixes import under

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moqt.model import FullTrackName, TrackNamespace
    from moqt.relay.clock import Planned
    from moqt.relay.peers import Peer
    from moqt.relay.relay import Relay
    from moqt.session.namespaces import OutgoingSubscribeNamespace
    from moqt.session.publishing import IncomingPublish
    from moqt.session.tracks import OutgoingSubscribeTracks

#: Seconds after REQUEST_OK in which an upstream names again what an earlier request had named.
RENAMED: Final = 1.0
#: Seconds until an upstream that refused is asked again, if it is still wanted; doubled each time
#: up to the second.
AGAIN: Final = 5.0
LONGEST: Final = 320.0
#: Prefixes of a kind that are asked for at one upstream: a relay like this one takes 256 of both
#: kinds together of a session. Those who want more share them.
MAX_ASKED: Final = 120
#: Refusals that are remembered of one upstream.
MAX_REFUSED: Final = 1024


def shortest(prefixes: Iterable[TrackNamespace]) -> list[TrackNamespace]:
    """Those that no other one covers."""
    found: dict[TrackNamespace, None] = {}
    for prefix in sorted(set(prefixes), key=len):
        if not any(prefix[:fields] in found for fields in range(len(prefix))):
            found[prefix] = None
    return list(found)


def shared(wanted: Iterable[Iterable[TrackNamespace]], most: int) -> list[TrackNamespace]:
    """At most ``most`` prefixes that cover what several want, each in turn; the first ones first.

    None covers another.
    """
    ranked = sorted(
        ((rank, prefix) for one in wanted for rank, prefix in enumerate(islice(one, most))),
        key=lambda pair: pair[0],
    )
    widest = set(shortest(prefix for _, prefix in ranked))
    found: dict[TrackNamespace, None] = {}
    for _, prefix in ranked:
        if len(found) == most:
            break
        cover = next(prefix[:n] for n in range(len(prefix) + 1) if prefix[:n] in widest)
        found[cover] = None
    return list(found)


class _Refusal(NamedTuple):
    """Not before ``until``; the next time after twice this ``pause``."""

    until: float
    pause: float


class Asking:
    """The SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS requests of one session to an upstream relay."""

    def __init__(self, relay: Relay, peer: Peer, prefixes: tuple[TrackNamespace, ...]) -> None:
        self._relay = relay
        self._peer = peer
        self._prefixes = prefixes
        self._namespaces: dict[TrackNamespace, _Asked] = {}
        self._tracks: dict[TrackNamespace, _Asked] = {}
        #: What this upstream has named; of how many requests' names it is.
        self._known: dict[TrackNamespace, int] = {}
        self._refused: OrderedDict[tuple[type[_Asked], TrackNamespace], _Refusal] = OrderedDict()
        self._later: Planned | None = None

    def adjust(self) -> None:
        """Ask for what is wanted now, and no longer for what is not."""
        if not self._peer.usable:
            return
        self._adjust(self._namespaces, self._relay.directory.interests.wanted, _Named)
        self._adjust(self._tracks, self._relay.offers.interests.wanted, _Offered)

    def close(self) -> None:
        """The session is over, or about to be: what it named is gone."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        for one in (*self._namespaces.values(), *self._tracks.values()):
            one.cancel()
        self._namespaces.clear()
        self._tracks.clear()
        for namespace in tuple(self._known):
            del self._known[namespace]
            self._relay.withdrawn(namespace, self._peer)

    def named(self, namespace: TrackNamespace) -> None:
        """One more request names it."""
        count = self._known.get(namespace, 0)
        self._known[namespace] = count + 1
        if not count:
            self._relay.announced(namespace, self._peer)

    def unnamed(self, namespace: TrackNamespace) -> None:
        """One request names it no longer."""
        count = self._known.get(namespace, 0) - 1
        if count > 0:
            self._known[namespace] = count
        elif self._known.pop(namespace, None) is not None:
            self._relay.withdrawn(namespace, self._peer)

    def granted(self, one: _Asked) -> None:
        """A request stands."""
        self._refused.pop((type(one), one.prefix), None)

    def over(self, one: _Asked, error: MoqtError | None) -> None:
        """A request has ended without us: perhaps it is granted later."""
        table = self._namespaces if isinstance(one, _Named) else self._tracks
        if table.get(one.prefix) is not one:
            return
        del table[one.prefix]
        key = type(one), one.prefix
        before = self._refused.pop(key, None)
        pause = AGAIN if before is None else min(2 * before.pause, LONGEST)
        if isinstance(error, RequestFailed) and error.retry_after:
            pause = max(pause, error.retry_after / 1000)
        self._refused[key] = _Refusal(self._relay.context.clock.time() + pause, pause)
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        self._relay.interest_changed()  # what it covered is asked for by itself

    # -- inside ----------------------------------------------------------------------------------

    def _retry(self) -> None:
        self._later = None
        self.adjust()

    def _plan(self) -> None:
        """Look again when the first of those refused may be asked for again."""
        clock = self._relay.context.clock
        now = clock.time()
        due = [one.until for one in self._refused.values() if one.until > now]
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if due:
            self._later = clock.call_later(min(due) - now, self._retry)

    def _may_ask(self, make: type[_Asked], prefix: TrackNamespace, now: float) -> bool:
        refusal = self._refused.get((make, prefix))
        return refusal is None or refusal.until <= now

    def _parts(
        self, asked: Iterable[TrackNamespace], make: type[_Asked]
    ) -> Iterable[TrackNamespace]:
        """Those of ``asked`` that this upstream serves and has not just refused."""
        now, loops = self._relay.context.clock.time(), self._relay.loops
        for prefix in asked:
            for served in self._prefixes:
                part = prefix if under(prefix, served) else served
                meets = under(prefix, served) or under(served, prefix)
                may_ask = meets and self._may_ask(make, part, now)
                if may_ask and not loops.has_left(self._peer, part):
                    yield part

    def _adjust(
        self,
        table: dict[TrackNamespace, _Asked],
        asked: Mapping[str, Iterable[TrackNamespace]],
        make: type[_Asked],
    ) -> None:
        parts = [self._parts(prefixes, make) for prefixes in asked.values()]
        wanted = dict.fromkeys(shared(parts, MAX_ASKED))
        replaced = []
        for prefix in [one for one in table if one not in wanted]:
            # Two requests of a kind may not overlap: the old one goes first (draft-22 §4.2).
            replaced.append(table.pop(prefix))
            replaced[-1].stop()
        for prefix in wanted:
            if prefix not in table:
                one = make(self, self._relay, self._peer, prefix)
                if one.open():
                    table[prefix] = one
        self._plan()
        for one in replaced:
            heir = next((new for at, new in table.items() if under(one.prefix, at)), None)
            one.hand_over(heir is not None)


class _Asked:
    """One request of ours for a prefix."""

    def __init__(self, asking: Asking, relay: Relay, peer: Peer, prefix: TrackNamespace) -> None:
        self._asking = asking
        self._relay = relay
        self._peer = peer
        self.prefix = prefix
        self._request: OutgoingSubscribeNamespace | OutgoingSubscribeTracks | None = None

    def open(self) -> bool:
        """Ask; False when the session takes no requests."""
        try:
            self._request = self._ask()
        except MoqtError:
            return False
        return True

    def stop(self) -> None:
        """Ask no longer; what it has brought stands until ``hand_over``."""
        if self._request is not None:
            self._request.cancel()

    def hand_over(self, heir: bool) -> None:
        """Another request has taken its place, or none."""

    def cancel(self) -> None:
        """The session ends, and all that it has named with it."""
        self.stop()

    def accepted(self) -> None:
        """REQUEST_OK."""
        self._asking.granted(self)

    def _ask(self) -> OutgoingSubscribeNamespace | OutgoingSubscribeTracks:
        raise NotImplementedError


class _Named(_Asked):
    """One SUBSCRIBE_NAMESPACE: a NamespaceListener."""

    def __init__(self, asking: Asking, relay: Relay, peer: Peer, prefix: TrackNamespace) -> None:
        super().__init__(asking, relay, peer, prefix)
        self._found: set[TrackNamespace] = set()

    def hand_over(self, heir: bool) -> None:
        """Its names go, at once or when a wider request has had the time to name them."""
        if heir:
            self._relay.context.clock.call_later(RENAMED, self._forget)
        else:
            self._forget()

    def cancel(self) -> None:
        """Its names are withdrawn all together."""
        self._found.clear()
        super().cancel()

    def found(self, namespace: TrackNamespace) -> None:
        """NAMESPACE."""
        if namespace not in self._found:
            self._found.add(namespace)
            self._asking.named(namespace)

    def gone(self, namespace: TrackNamespace) -> None:
        """NAMESPACE_DONE."""
        if namespace in self._found:
            self._found.discard(namespace)
            self._asking.unnamed(namespace)

    def ended(self, error: MoqtError | None) -> None:
        """Refused, or over."""
        self._forget()
        self._asking.over(self, error)

    def _ask(self) -> OutgoingSubscribeNamespace:
        return self._peer.subscribe_namespace(self.prefix, self)

    def _forget(self) -> None:
        found, self._found = self._found, set()
        for namespace in found:
            self._asking.unnamed(namespace)


class _Offered(_Asked):
    """One SUBSCRIBE_TRACKS: a TracksListener. What it has brought stands by itself."""

    def published(self, request: IncomingPublish) -> None:
        """A track of the upstream's."""
        self._relay.offered(request, self._peer)

    def skipped(self, name: FullTrackName) -> None:
        """It can be subscribed to."""

    def ended(self, error: MoqtError | None) -> None:
        """Refused, or over."""
        self._asking.over(self, error)

    def _ask(self) -> OutgoingSubscribeTracks:
        return self._peer.subscribe_tracks(self.prefix, NO_PARAMETERS, self)
