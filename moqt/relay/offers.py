"""Tracks that publishers offer by PUBLISH, and who wants every track of a prefix (§3.6, §7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.relay.interests import Interests
from moqt.relay.namespaces import ByNamespace

if TYPE_CHECKING:
    from collections.abc import Container

    from moqt.model import FullTrackName
    from moqt.relay.admission import Admission
    from moqt.relay.relay import Relay
    from moqt.relay.track import RelayTrack
    from moqt.session.context import Context
    from moqt.session.tracks import IncomingSubscribeTracks


class Offers:
    """Published tracks, each offered once to every SUBSCRIBE_TRACKS that it matches."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        # How many PUBLISH there are of each track.
        self._offered: dict[FullTrackName, int] = {}
        self._names: ByNamespace[FullTrackName] = ByNamespace()
        self.interests: Interests[IncomingSubscribeTracks] = Interests()
        # Interests that have had another prefix: they were told of what lies elsewhere.
        self._moved: dict[IncomingSubscribeTracks, None] = {}

    def __len__(self) -> int:
        """Tracks on offer."""
        return len(self._offered)

    def came(self, track: RelayTrack, held: Container[Context]) -> None:
        """A publisher offers it: PUBLISH to everyone who asked for such tracks (draft-22 §7.6).

        Not to the sessions in ``held``: their SUBSCRIBE waited for it and is answered.
        """
        count = self._offered.get(track.name, 0)
        self._offered[track.name] = count + 1
        if not count:
            self._names.add(track.name.namespace, track.name)
            for interest in self.interests.above(track.name.namespace):
                if interest.session not in held:
                    self._offer(track, interest)

    def gone(self, track: RelayTrack) -> None:
        """One publisher has ended it."""
        count = self._offered.get(track.name, 0) - 1
        if count > 0:
            self._offered[track.name] = count
            return
        if self._offered.pop(track.name, None) is not None:
            self._names.discard(track.name.namespace, track.name)
        for interest in (*self.interests.above(track.name.namespace), *self._moved):
            interest.forget(track.name)

    def interested(self, interest: IncomingSubscribeTracks, admission: Admission) -> None:
        """Offer what there is and what will be, until it ends."""
        interest.on_end = lambda: self._left(interest)
        interest.on_change = lambda: self._changed(interest)
        interest.accept()
        if interest.active:
            self.interests.add(interest, admission)
            self._offer_all(interest)

    def _left(self, interest: IncomingSubscribeTracks) -> None:
        self.interests.remove(interest)
        self._moved.pop(interest, None)
        self._relay.interest_changed()

    def _changed(self, interest: IncomingSubscribeTracks) -> None:
        if interest.prefix != self.interests.prefix(interest):
            admission = self.interests.remove(interest)
            if admission is None:
                return
            self._moved[interest] = None
            self.interests.add(interest, admission)
        self._offer_all(interest)

    def _offer_all(self, interest: IncomingSubscribeTracks) -> None:
        for name in self._names.under(interest.prefix):
            track = self._relay.tracks.get(name)
            if track is not None and interest.active:
                self._offer(track, interest)
        self._relay.interest_changed()

    def _offer(self, track: RelayTrack, interest: IncomingSubscribeTracks) -> None:
        admission = self.interests.admission(interest)
        if not admission.may_know(interest, track.name.namespace, track.name.name):
            return
        request = interest.publish(track, track.order)
        if request is not None:
            track.serve(request)
            admission.offered(request)
