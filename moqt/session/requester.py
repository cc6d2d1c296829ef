"""What an application asks of its peer: the seven requests of a session (draft-22 §9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.errors import Misuse, SessionClosed
from moqt.session.checks import check_own_namespace, check_own_parameters
from moqt.session.fetches import OutgoingFetch
from moqt.session.namespaces import OutgoingPublishNamespace, OutgoingSubscribeNamespace
from moqt.session.publishing import OutgoingPublish
from moqt.session.state import Phase
from moqt.session.status import OutgoingTrackStatus
from moqt.session.subscriptions import OutgoingSubscribe
from moqt.session.tracks import OutgoingSubscribeTracks

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec import messages as m
    from moqt.codec.params import Parameters
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, GroupOrder, TrackNamespace, TrackSource
    from moqt.session.context import Context
    from moqt.session.ports import NamespaceListener, TrackReceiver, TracksListener


class Requester:
    """One method a request; each raises Misuse or SessionClosed before anything is written."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._phase = Phase.CONNECTING

    def subscribe(
        self, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> OutgoingSubscribe:
        """SUBSCRIBE (draft-22 §9.6)."""
        shown = self._checked(name.namespace, parameters)
        return OutgoingSubscribe(self._context, name, shown, receiver)

    def fetch(
        self, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> OutgoingFetch:
        """FETCH (draft-22 §9.11)."""
        shown = self._checked(name.namespace, parameters)
        return OutgoingFetch(self._context, name, shown, receiver)

    def track_status(
        self,
        name: FullTrackName,
        parameters: Parameters,
        answer: Callable[[m.RequestOk | MoqtError], None],
    ) -> OutgoingTrackStatus:
        """TRACK_STATUS (draft-22 §9.13)."""
        shown = self._checked(name.namespace, parameters)
        return OutgoingTrackStatus(self._context, name, shown, answer)

    def publish(
        self,
        source: TrackSource,
        parameters: Parameters,
        order: GroupOrder,
        answer: Callable[[MoqtError | None], None],
    ) -> OutgoingPublish:
        """PUBLISH (draft-22 §9.8); ``order`` is the track's DEFAULT_PUBLISHER_GROUP_ORDER."""
        shown = self._checked(source.name.namespace, parameters)
        return OutgoingPublish(self._context, source, shown, order, answer)

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        parameters: Parameters,
        answer: Callable[[MoqtError | None], None],
    ) -> OutgoingPublishNamespace:
        """PUBLISH_NAMESPACE (draft-22 §9.14)."""
        shown = self._checked(namespace, parameters)
        return OutgoingPublishNamespace(self._context, namespace, shown, answer)

    def subscribe_namespace(
        self, prefix: TrackNamespace, parameters: Parameters, listener: NamespaceListener
    ) -> OutgoingSubscribeNamespace:
        """SUBSCRIBE_NAMESPACE (draft-22 §9.15)."""
        shown = self._checked(prefix, parameters)
        return OutgoingSubscribeNamespace(self._context, prefix, shown, listener)

    def subscribe_tracks(
        self, prefix: TrackNamespace, parameters: Parameters, listener: TracksListener
    ) -> OutgoingSubscribeTracks:
        """SUBSCRIBE_TRACKS (draft-22 §9.18)."""
        shown = self._checked(prefix, parameters)
        return OutgoingSubscribeTracks(self._context, prefix, shown, listener)

    def _checked(self, namespace: TrackNamespace, parameters: Parameters) -> Parameters:
        """With the tokens that it shows."""
        if self._phase is Phase.CLOSED:
            raise SessionClosed(0, "the session is closed")
        if self._context.leaving:
            raise Misuse("the peer sent GOAWAY: open new requests on the session it names (§6.6.1)")
        check_own_namespace(namespace)
        check_own_parameters(parameters, self._context.peer_options)
        return self._context.own_tokens.shown(parameters)
