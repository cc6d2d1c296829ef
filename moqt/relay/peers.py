"""A session of the relay, as its other parts see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moqt.codec.params import NO_PARAMETERS
from moqt.errors import SessionCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.messages import RequestOk
    from moqt.codec.params import Parameters
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.session.core import Session
    from moqt.session.fetches import OutgoingFetch
    from moqt.session.namespaces import OutgoingSubscribeNamespace
    from moqt.session.ports import NamespaceListener, TrackReceiver, TracksListener
    from moqt.session.subscriptions import OutgoingSubscribe
    from moqt.session.tracks import OutgoingSubscribeTracks


class Holder(Protocol):
    """Whatever drives a session: a Connection of an event loop, or a test."""

    @property
    def session(self) -> Session:
        """The session, from its first event on."""
        ...


class Peer:
    """One session; what the relay shows for itself on it is a setting of the session."""

    def __init__(self, holder: Holder, identity: str = "") -> None:
        self._holder = holder
        #: Who it is, for limits and logs; never a secret.
        self.identity = identity
        #: What is asked there comes back to us.
        self.leads_back = False

    @property
    def session(self) -> Session:
        """Its session."""
        return self._holder.session

    @property
    def usable(self) -> bool:
        """True while new requests make sense."""
        return self.session.established and self.session.may_request

    def close(self, reason: str) -> None:
        """End the session at once."""
        self.session.close(SessionCode.NO_ERROR, reason)

    def subscribe(
        self, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> OutgoingSubscribe:
        """SUBSCRIBE."""
        return self.session.subscribe(name, parameters, receiver)

    def fetch(
        self, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> OutgoingFetch:
        """FETCH."""
        return self.session.fetch(name, parameters, receiver)

    def track_status(
        self, name: FullTrackName, answer: Callable[[RequestOk | MoqtError], None]
    ) -> None:
        """TRACK_STATUS."""
        self.session.track_status(name, NO_PARAMETERS, answer)

    def subscribe_namespace(
        self, prefix: TrackNamespace, listener: NamespaceListener
    ) -> OutgoingSubscribeNamespace:
        """SUBSCRIBE_NAMESPACE."""
        return self.session.subscribe_namespace(prefix, NO_PARAMETERS, listener)

    def subscribe_tracks(
        self, prefix: TrackNamespace, parameters: Parameters, listener: TracksListener
    ) -> OutgoingSubscribeTracks:
        """SUBSCRIBE_TRACKS."""
        return self.session.subscribe_tracks(prefix, parameters, listener)
