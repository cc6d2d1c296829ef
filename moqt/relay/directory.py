"""Who has announced which namespace, and who wants to hear of it (draft-22 §4, §7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.session.prefixes import under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moqt.model import FullTrackName, TrackNamespace
    from moqt.relay.peers import Peer
    from moqt.session.namespaces import IncomingSubscribeNamespace


class Directory:
    """Namespaces by their fields: what is announced, by whom, and the interests in prefixes."""

    def __init__(self) -> None:
        self._announced: dict[TrackNamespace, dict[Peer, int]] = {}
        # Interests by prefix: a namespace meets at most as many prefixes as it has fields.
        self._interests: dict[TrackNamespace, dict[IncomingSubscribeNamespace, None]] = {}
        #: May the reader behind an interest know of a namespace?
        self.may_know: Callable[[IncomingSubscribeNamespace, TrackNamespace], bool] | None = None

    def __len__(self) -> int:
        """Namespaces announced."""
        return len(self._announced)

    def __iter__(self) -> Iterator[TrackNamespace]:
        return iter(self._announced)

    def announce(self, namespace: TrackNamespace, peer: Peer) -> bool:
        """``peer`` has tracks under ``namespace``; True when nobody had before."""
        peers = self._announced.setdefault(namespace, {})
        fresh = not peers
        peers[peer] = peers.get(peer, 0) + 1
        if fresh:
            for interest in self._interested(namespace):
                self._tell(interest, namespace)
        return fresh

    def withdraw(self, namespace: TrackNamespace, peer: Peer) -> bool:
        """The opposite; True when nobody has it any more."""
        peers = self._announced.get(namespace)
        if peers is None or peer not in peers:
            return False
        peers[peer] -= 1
        if peers[peer]:
            return False
        del peers[peer]
        if peers:
            return False
        del self._announced[namespace]
        for interest in self._interested(namespace):
            if interest.matches(namespace):
                interest.gone(namespace)
        return True

    def publishers(self, name: FullTrackName) -> list[Peer]:
        """Who may have a track: announcers of its namespace, else of a prefix of it (§4.1)."""
        namespace = name.namespace
        exact = self._announced.get(namespace)
        if exact:
            return list(exact)
        found: dict[Peer, None] = {}
        for length in range(len(namespace) - 1, -1, -1):
            found.update(dict.fromkeys(self._announced.get(namespace[:length], ())))
        return list(found)

    def interested(self, interest: IncomingSubscribeNamespace) -> None:
        """Tell what there is, and keep it informed until ``leave``."""
        self._interests.setdefault(interest.prefix, {})[interest] = None
        self.tell_all(interest)

    def moved(self, interest: IncomingSubscribeNamespace, before: TrackNamespace) -> None:
        """Its prefix was ``before`` (REQUEST_UPDATE)."""
        self._remove(interest, before)
        self.interested(interest)

    def leave(self, interest: IncomingSubscribeNamespace, prefix: TrackNamespace) -> None:
        """Nobody wants to hear any more."""
        self._remove(interest, prefix)

    def tell_all(self, interest: IncomingSubscribeNamespace) -> None:
        """Every namespace under its prefix."""
        for namespace in tuple(self._announced):
            if under(namespace, interest.prefix):
                self._tell(interest, namespace)

    def prefixes(self) -> list[TrackNamespace]:
        """The shortest prefixes that cover all interests (draft-22 §7.5)."""
        found: list[TrackNamespace] = []
        for prefix in sorted(self._interests, key=len):
            if not any(under(prefix, shorter) for shorter in found):
                found.append(prefix)
        return found

    def _tell(self, interest: IncomingSubscribeNamespace, namespace: TrackNamespace) -> None:
        if self.may_know is None or self.may_know(interest, namespace):
            interest.found(namespace)

    def _interested(self, namespace: TrackNamespace) -> list[IncomingSubscribeNamespace]:
        return [
            interest
            for length in range(len(namespace) + 1)
            for interest in tuple(self._interests.get(namespace[:length], ()))
        ]

    def _remove(self, interest: IncomingSubscribeNamespace, prefix: TrackNamespace) -> None:
        interests = self._interests.get(prefix)
        if interests is not None:
            interests.pop(interest, None)
            if not interests:
                del self._interests[prefix]
