"""Who has announced which namespace, and who wants to hear of it (draft-22 §4, §7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.relay.interests import Interests
from moqt.relay.namespaces import ByNamespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moqt.model import FullTrackName, TrackNamespace
    from moqt.relay.admission import Admission
    from moqt.relay.peers import Peer
    from moqt.session.namespaces import IncomingSubscribeNamespace


class Directory:
    """Namespaces by their fields: what is announced, by whom, and the interests in prefixes."""

    def __init__(self) -> None:
        self._announced: dict[TrackNamespace, dict[Peer, int]] = {}
        self._names: ByNamespace[TrackNamespace] = ByNamespace()
        self.interests: Interests[IncomingSubscribeNamespace] = Interests()

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
            self._names.add(namespace, namespace)
            for interest in self.interests.above(namespace):
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
        self._names.discard(namespace, namespace)
        for interest in self.interests.above(namespace):
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

    def interested(self, interest: IncomingSubscribeNamespace, admission: Admission) -> None:
        """Tell what there is, and keep it informed until ``leave``.

        ``admission`` decides of each namespace whether the reader may know of it (§15).
        """
        self.interests.add(interest, admission)
        for namespace in self._names.under(interest.prefix):
            self._tell(interest, namespace)

    def moved(self, interest: IncomingSubscribeNamespace) -> None:
        """It has another prefix than before (REQUEST_UPDATE)."""
        admission = self.interests.remove(interest)
        if admission is not None:
            self.interested(interest, admission)

    def leave(self, interest: IncomingSubscribeNamespace) -> None:
        """Nobody wants to hear any more."""
        self.interests.remove(interest)

    def _tell(self, interest: IncomingSubscribeNamespace, namespace: TrackNamespace) -> None:
        if self.interests.admission(interest).may_know(interest, namespace):
            interest.found(namespace)
