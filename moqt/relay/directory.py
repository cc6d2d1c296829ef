"""Who has announced which namespace, and who wants to hear of it (draft-22 §4, §7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.session.prefixes import under

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
        # Interests by prefix: a namespace meets at most as many prefixes as it has fields.
        self._interests: dict[TrackNamespace, dict[IncomingSubscribeNamespace, Admission]] = {}

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
            for interest, admission in self._interested(namespace):
                self._tell(interest, namespace, admission)
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
        for interest, _ in self._interested(namespace):
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
        self._interests.setdefault(interest.prefix, {})[interest] = admission
        for namespace in tuple(self._announced):
            if under(namespace, interest.prefix):
                self._tell(interest, namespace, admission)

    def moved(self, interest: IncomingSubscribeNamespace, before: TrackNamespace) -> None:
        """Its prefix was ``before`` (REQUEST_UPDATE)."""
        admission = self._remove(interest, before)
        if admission is not None:
            self.interested(interest, admission)

    def leave(self, interest: IncomingSubscribeNamespace, prefix: TrackNamespace) -> None:
        """Nobody wants to hear any more."""
        self._remove(interest, prefix)

    def prefixes(self) -> list[TrackNamespace]:
        """The prefixes of all interests."""
        return list(self._interests)

    @staticmethod
    def _tell(
        interest: IncomingSubscribeNamespace, namespace: TrackNamespace, admission: Admission
    ) -> None:
        if admission.may_know(interest, namespace):
            interest.found(namespace)

    def _interested(
        self, namespace: TrackNamespace
    ) -> list[tuple[IncomingSubscribeNamespace, Admission]]:
        return [
            interest
            for length in range(len(namespace) + 1)
            for interest in tuple(self._interests.get(namespace[:length], {}).items())
        ]

    def _remove(
        self, interest: IncomingSubscribeNamespace, prefix: TrackNamespace
    ) -> Admission | None:
        interests = self._interests.get(prefix)
        if interests is None:
            return None
        admission = interests.pop(interest, None)
        if not interests:
            del self._interests[prefix]
        return admission
