"""What an application gives a session: who answers requests, and who takes what arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moqt.codec.messages import FetchOk, SubscribeOk
    from moqt.errors import MoqtError
    from moqt.model import ObjectHead, ObjectSink, SubgroupKey, TrackNamespace
    from moqt.session.fetches import IncomingFetch
    from moqt.session.namespaces import IncomingInterest, IncomingNamespace
    from moqt.session.publications import IncomingSubscribe, IncomingTrackStatus
    from transport.api import BytesLike


class RequestHandler(Protocol):
    """The application's side of a peer's requests.

    Each argument has ``accept`` and ``refuse``; either may be called now or later, once. A method
    may also raise ``RequestRefused``. ``Unserved`` answers NOT_SUPPORTED to all of them.
    """

    def on_subscribe(self, request: IncomingSubscribe) -> None: ...
    def on_fetch(self, request: IncomingFetch) -> None: ...
    def on_track_status(self, request: IncomingTrackStatus) -> None: ...
    def on_publish_namespace(self, request: IncomingNamespace) -> None: ...
    def on_subscribe_namespace(self, request: IncomingInterest) -> None: ...
    def on_goaway(self, uri: str, timeout: int) -> None: ...
    def on_setup(self) -> None: ...
    def on_closed(self, code: int, reason: str) -> None: ...


class TrackReceiver(Protocol):
    """Takes what a SUBSCRIBE or FETCH of ours brings. Exactly one of ``refused``, ``done`` ends it.

    Data may come before ``accepted``. ``open_subgroup`` and ``open_fetch`` may raise
    ``MalformedTrack``, as may the sinks they return: the session then cancels this request.
    """

    def accepted(self, ok: SubscribeOk | FetchOk) -> None:
        """SUBSCRIBE_OK or FETCH_OK."""
        ...

    def open_subgroup(self, key: SubgroupKey) -> ObjectSink:
        """A subgroup stream of this subscription starts."""
        ...

    def open_fetch(self, request_id: int) -> ObjectSink:
        """The data stream of a fetch, or a fill stream of a subscription, starts."""
        ...

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A datagram object."""
        ...

    def done(self, code: int, reason: str) -> None:
        """PUBLISH_DONE (``DoneCode``) and its streams are in; of a fetch: data ended, code 0."""
        ...

    def refused(self, error: MoqtError) -> None:
        """RequestFailed, MalformedTrack or SessionClosed: nothing more will come."""
        ...


class NamespaceListener(Protocol):
    """Takes the answers to a SUBSCRIBE_NAMESPACE of ours; namespaces are complete, not suffixes."""

    def accepted(self) -> None: ...
    def found(self, namespace: TrackNamespace) -> None: ...
    def gone(self, namespace: TrackNamespace) -> None: ...
    def ended(self, error: MoqtError | None) -> None: ...
