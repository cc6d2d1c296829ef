"""One session of the relay: its requests, each checked and passed to where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.relay.admission import FETCHES, INTERESTS, NAMESPACES, PUBLISHES, SUBSCRIPTIONS
from moqt.session.ports import Unserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.properties import SetupOptions
    from moqt.model import FullTrackName
    from moqt.relay.admission import Admission
    from moqt.relay.peers import Peer
    from moqt.relay.relay import Relay
    from moqt.relay.track import RelayTrack
    from moqt.session.fetches import IncomingFetch
    from moqt.session.namespaces import IncomingPublishNamespace, IncomingSubscribeNamespace
    from moqt.session.publications import IncomingSubscribe
    from moqt.session.publishing import IncomingPublish
    from moqt.session.status import IncomingTrackStatus
    from moqt.session.tracks import IncomingSubscribeTracks


class RelayHandler(Unserved):
    """The RequestHandler of one session, whoever dialled it."""

    def __init__(self, relay: Relay, peer: Peer, admission: Admission) -> None:
        self.relay = relay
        self.peer = peer
        self.admission = admission
        self.on_leave: Callable[[str, int], None] | None = None
        relay.peers[peer] = None

    def on_setup(self, options: SetupOptions) -> None:
        """Any peer that the judge of tokens admits."""

    def on_subscribe(self, request: IncomingSubscribe) -> None:
        """Live, and filled from the cache."""
        self.admission.request(SUBSCRIPTIONS, request)
        self._track(request.name).subscribe(request)

    def on_fetch(self, request: IncomingFetch) -> None:
        """From the cache, and from upstream what is missing."""
        self.admission.request(FETCHES, request)
        self._track(request.name).fetch(request)

    def on_track_status(self, request: IncomingTrackStatus) -> None:
        """What SUBSCRIBE_OK would say."""
        self.admission.request(FETCHES, request)
        self._track(request.name).status(request)

    def on_publish_namespace(self, request: IncomingPublishNamespace) -> None:
        """The peer has tracks."""
        self.admission.request(NAMESPACES, request)
        namespace, relay, peer = request.namespace, self.relay, self.peer
        request.accept()
        if request.active:
            request.on_end = lambda: relay.withdrawn(namespace, peer)
            relay.announced(namespace, peer)

    def on_subscribe_namespace(self, request: IncomingSubscribeNamespace) -> None:
        """Tell what there is under a prefix, and what comes and goes."""
        self.admission.check_prefix(request.prefix)
        self.admission.request(INTERESTS, request)
        relay, admission = self.relay, self.admission

        def over() -> None:
            relay.directory.leave(request)
            relay.interest_changed()

        def changed() -> None:
            relay.directory.moved(request)
            relay.interest_changed()

        request.accept()
        if request.active:
            request.on_end = over
            request.on_change = changed
            relay.directory.interested(request, admission)
            relay.interest_changed()
            relay.loops.interested(request.prefix)

    def on_subscribe_tracks(self, request: IncomingSubscribeTracks) -> None:
        """Offer the tracks under a prefix."""
        self.admission.check_prefix(request.prefix)
        self.admission.request(INTERESTS, request)
        self.relay.offers.interested(request, self.admission)
        self.relay.loops.interested(request.prefix)

    def on_publish(self, request: IncomingPublish) -> None:
        """A track on offer: one more upstream of it."""
        self.admission.request(PUBLISHES, request)
        self.relay.offered(request, self.peer)

    def on_goaway(self, uri: str, timeout: int) -> None:
        """An upstream relay, or a publisher that serves here, is about to leave."""
        if self.on_leave is not None:
            self.on_leave(uri, timeout)

    def on_closed(self, code: int, reason: str) -> None:
        """Forget the session; its requests have ended one by one."""
        self.relay.peers.pop(self.peer, None)
        self.relay.upstream_gone(self.peer)
        self.admission.close()

    def _track(self, name: FullTrackName) -> RelayTrack:
        """The track that a request is for; RequestRefused when it is our own question."""
        self.relay.loops.check(name)
        track = self.relay.track(name)
        self.relay.loops.asked(track)
        return track
