"""What a producer serves: the catalog of an endpoint, and the tracks in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.codec.fields import check_name
from moqt.codec.params import NO_PARAMETERS
from moqt.errors import (
    Misuse,
    MoqtError,
    RequestCode,
    RequestFailed,
    RequestRefused,
)
from moqt.session.checks import check_own_namespace
from moqt.session.ports import Unserved
from moqt.track import SubgroupWriter, Track

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.driver import Connection
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.session.fetches import IncomingFetch
    from moqt.session.namespaces import IncomingSubscribeNamespace, OutgoingPublishNamespace
    from moqt.session.publications import IncomingSubscribe
    from moqt.session.publishing import OutgoingPublish
    from moqt.session.status import IncomingTrackStatus
    from moqt.session.tracks import IncomingSubscribeTracks


def _unheard(_: MoqtError | None) -> None:
    """Nobody waits for the answer."""


__all__ = ["Catalog", "CatalogHandler", "ServingLimits", "SubgroupWriter", "Track"]


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What one subscriber may ask of a publisher at once."""

    #: Fetches one session may have open (draft KVCS: bound concurrent fetches per subscriber).
    fetches: int = 64
    #: Milliseconds a SUBSCRIBE may wait for a track that is not there yet (draft-22 §9.20.6).
    rendezvous: int = 30_000
    #: Such SUBSCRIBEs a catalog keeps waiting; one more is answered at once.
    awaited: int = 256
    #: Those of one session: nobody takes all the places.
    awaited_each: int = 64
    #: Milliseconds a refused subscriber is told to wait.
    retry_after: int = 500


class Catalog:
    """The tracks and namespaces of one endpoint, served on every connection it is given to."""

    def __init__(self, limits: ServingLimits = ServingLimits()) -> None:
        self._limits = limits
        self._leaving = False
        self._tracks: dict[FullTrackName, Track] = {}
        self._namespaces: dict[TrackNamespace, None] = {}
        self._interests: set[IncomingSubscribeNamespace] = set()
        self._track_interests: set[IncomingSubscribeTracks] = set()
        self._awaited: dict[FullTrackName, list[IncomingSubscribe]] = {}
        self._announced: dict[Connection, dict[TrackNamespace, OutgoingPublishNamespace]] = {}
        #: Told when a peer refuses, or later revokes, an announcement.
        self.on_refused: Callable[[TrackNamespace, RequestFailed], None] | None = None

    def add(self, track: Track) -> Track:
        """Serve ``track`` from now on."""
        if track.name in self._tracks:
            raise Misuse("a track of that name is served already")
        self._tracks[track.name] = track
        for request in self._awaited.pop(track.name, ()):
            track.attach(request)
        for interest in tuple(self._track_interests):
            self._offer(track, interest)
        return track

    def remove(self, track: Track) -> None:
        """Serve it no longer and let its objects go."""
        if self._tracks.get(track.name) is track:
            del self._tracks[track.name]
            for interest in self._track_interests:
                interest.forget(track.name)
        track.discard()

    def track(self, name: FullTrackName) -> Track:
        """The track of that name; raises RequestRefused (DOES_NOT_EXIST, GOING_AWAY)."""
        if self._leaving:
            raise RequestRefused(RequestCode.GOING_AWAY, "the publisher is closing")
        found = self._tracks.get(name)
        if found is None:
            raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")
        return found

    def subscribe(self, request: IncomingSubscribe) -> None:
        """Serve the track, or wait for it as long as the subscriber and the limits allow."""
        asked = request.parameters.rendezvous_timeout or 0
        wait = min(asked, self._limits.rendezvous)
        if request.name in self._tracks or not wait or not self._may_wait(request):
            self.track(request.name).attach(request)
            return
        if self._leaving:
            raise RequestRefused(RequestCode.GOING_AWAY, "the publisher is closing")
        self._awaited.setdefault(request.name, []).append(request)
        request.on_end = lambda: self._waits_no_longer(request)
        request.refuse_after(wait)

    def _may_wait(self, request: IncomingSubscribe) -> bool:
        waiting = [one.session for each in self._awaited.values() for one in each]
        limits = self._limits
        theirs = waiting.count(request.session)
        return len(waiting) < limits.awaited and theirs < limits.awaited_each

    def leave(self) -> None:
        """Begin nothing new: what is being served can then be served to its end."""
        self._leaving = True

    def publish(
        self,
        track: Track,
        connection: Connection,
        parameters: Parameters = NO_PARAMETERS,
        answer: Callable[[MoqtError | None], None] = _unheard,
    ) -> OutgoingPublish:
        """Offer ``track`` on ``connection`` by PUBLISH; live at once unless ``forward`` is False.

        ``answer`` hears None when the peer accepts, else the error (draft-22 §9.8).
        """
        request = connection.publish(track, answer, parameters, track.order)
        track.offer(request)
        return request

    def announce(self, namespace: TrackNamespace) -> None:
        """Tell everyone who asked, and every connection in ``announce_on``.

        Raises Misuse for a name that cannot be published.
        """
        check_name(namespace)
        check_own_namespace(namespace)
        self._namespaces[namespace] = None
        for interest in self._interests:
            if interest.matches(namespace):
                interest.found(namespace)
        for connection, sent in self._announced.items():
            self._announce(connection, sent, namespace)

    def withdraw(self, namespace: TrackNamespace) -> None:
        """The opposite of ``announce``."""
        self._namespaces.pop(namespace, None)
        for interest in self._interests:
            if interest.matches(namespace):
                interest.gone(namespace)
        for sent in self._announced.values():
            request = sent.pop(namespace, None)
            if request is not None:
                request.cancel()

    def announce_on(self, connection: Connection) -> None:
        """Send PUBLISH_NAMESPACE on ``connection`` for all namespaces, now and later.

        For connections that we dialled: relays, and consumers that listen.
        """
        sent = self._announced.setdefault(connection, {})
        for namespace in self._namespaces:
            self._announce(connection, sent, namespace)

    def handler(self, connection: Connection) -> CatalogHandler:
        """The RequestHandler of one connection."""
        return CatalogHandler(self, connection, self._limits)

    def interested(self, request: IncomingSubscribeNamespace) -> None:
        """Answer a SUBSCRIBE_NAMESPACE and keep it informed."""
        request.on_end = lambda: self._interests.discard(request)
        request.on_change = lambda: self._tell(request)
        request.accept()
        if request.active:
            self._interests.add(request)
            self._tell(request)

    def interested_in_tracks(self, request: IncomingSubscribeTracks) -> None:
        """Answer a SUBSCRIBE_TRACKS; offer what is here, and what will be added."""
        request.on_end = lambda: self._track_interests.discard(request)
        request.on_change = lambda: self._offer_all(request)
        request.accept()
        if request.active:
            self._track_interests.add(request)
            self._offer_all(request)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._announced.pop(connection, None)

    def _tell(self, interest: IncomingSubscribeNamespace) -> None:
        for namespace in self._namespaces:
            if interest.matches(namespace):
                interest.found(namespace)

    def _offer_all(self, interest: IncomingSubscribeTracks) -> None:
        for track in tuple(self._tracks.values()):
            self._offer(track, interest)

    def _offer(self, track: Track, interest: IncomingSubscribeTracks) -> None:
        request = None if self._leaving else interest.publish(track, track.order)
        if request is not None:
            track.offer(request)

    def _waits_no_longer(self, request: IncomingSubscribe) -> None:
        waiting = self._awaited.get(request.name, [])
        if request in waiting:
            waiting.remove(request)
            if not waiting:
                del self._awaited[request.name]

    def _announce(
        self,
        connection: Connection,
        sent: dict[TrackNamespace, OutgoingPublishNamespace],
        namespace: TrackNamespace,
    ) -> None:
        def answered(error: MoqtError | None) -> None:
            if error is not None:
                sent.pop(namespace, None)
            if isinstance(error, RequestFailed) and self.on_refused is not None:
                self.on_refused(namespace, error)

        if connection.is_open and namespace not in sent:
            try:
                sent[namespace] = connection.publish_namespace(namespace, answered)
            except MoqtError:
                return  # the session is ending: nothing can be announced on it any more


class CatalogHandler(Unserved):
    """Serves a Catalog on one connection; counts what this peer has open."""

    def __init__(self, catalog: Catalog, connection: Connection, limits: ServingLimits) -> None:
        self._catalog = catalog
        self._connection = connection
        self._limits = limits
        self._fetches = 0

    def on_subscribe(self, request: IncomingSubscribe) -> None:
        """Live from the track."""
        self._catalog.subscribe(request)

    def on_fetch(self, request: IncomingFetch) -> None:
        """Past objects, within the limit of concurrent fetches."""
        track = self._catalog.track(request.name)
        if self._fetches >= self._limits.fetches:
            raise RequestRefused(
                RequestCode.EXCESSIVE_LOAD,
                f"{self._fetches} fetches are open",
                self._limits.retry_after,
            )
        self._fetches += 1
        request.on_end = self._fetch_over
        request.accept(track)

    def on_track_status(self, request: IncomingTrackStatus) -> None:
        """What SUBSCRIBE_OK would say."""
        request.accept(self._catalog.track(request.name))

    def on_subscribe_namespace(self, request: IncomingSubscribeNamespace) -> None:
        """Our namespaces under the prefix."""
        self._catalog.interested(request)

    def on_subscribe_tracks(self, request: IncomingSubscribeTracks) -> None:
        """Our tracks under the prefix."""
        self._catalog.interested_in_tracks(request)

    def on_closed(self, code: int, reason: str) -> None:
        """Forget the connection."""
        self._catalog.forget(self._connection)

    def _fetch_over(self) -> None:
        self._fetches -= 1
