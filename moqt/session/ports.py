"""What an application gives a session: who answers requests, and who takes what arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from moqt.errors import RequestCode, RequestRefused

if TYPE_CHECKING:
    from moqt.codec.properties import SetupOptions, TrackProperties
    from moqt.errors import MoqtError
    from moqt.model import (
        FullTrackName,
        Location,
        ObjectHead,
        ObjectSink,
        SubgroupHead,
        TrackNamespace,
    )
    from moqt.session.fetches import IncomingFetch
    from moqt.session.namespaces import IncomingPublishNamespace, IncomingSubscribeNamespace
    from moqt.session.publications import IncomingSubscribe
    from moqt.session.publishing import IncomingPublish
    from moqt.session.status import IncomingTrackStatus
    from moqt.session.tracks import IncomingSubscribeTracks
    from transport.api import BytesLike


class RequestHandler(Protocol):
    """The application's side of a peer's requests.

    Each request has ``accept`` and ``refuse``; either may be called now or later, once, and does
    nothing when the peer has cancelled meanwhile (``request.on_end`` says so). A method may also
    raise ``RequestRefused``.
    """

    def on_setup(self, options: SetupOptions) -> None:
        """The peer's SETUP is in; raise SessionFault to refuse the session."""
        ...

    def on_subscribe(self, request: IncomingSubscribe) -> None:
        """SUBSCRIBE."""
        ...

    def on_fetch(self, request: IncomingFetch) -> None:
        """FETCH."""
        ...

    def on_track_status(self, request: IncomingTrackStatus) -> None:
        """TRACK_STATUS."""
        ...

    def on_publish_namespace(self, request: IncomingPublishNamespace) -> None:
        """PUBLISH_NAMESPACE."""
        ...

    def on_subscribe_namespace(self, request: IncomingSubscribeNamespace) -> None:
        """SUBSCRIBE_NAMESPACE."""
        ...

    def on_subscribe_tracks(self, request: IncomingSubscribeTracks) -> None:
        """SUBSCRIBE_TRACKS."""
        ...

    def on_publish(self, request: IncomingPublish) -> None:
        """PUBLISH that no SUBSCRIBE_TRACKS of ours asked for."""
        ...

    def on_goaway(self, uri: str, timeout: int) -> None:
        """GOAWAY on the control stream; ``timeout`` in ms, 0 when none is stated."""
        ...

    def on_closed(self, code: int, reason: str) -> None:
        """The session is over; ``code`` -1 when the connection was lost."""
        ...


class Unserved:
    """A RequestHandler that answers NOT_SUPPORTED to everything; derive and override."""

    def on_setup(self, options: SetupOptions) -> None:
        """Any peer will do."""

    def on_subscribe(self, request: IncomingSubscribe) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.NOT_SUPPORTED, "this endpoint publishes nothing")

    def on_fetch(self, request: IncomingFetch) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.NOT_SUPPORTED, "this endpoint publishes nothing")

    def on_track_status(self, request: IncomingTrackStatus) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.NOT_SUPPORTED, "this endpoint publishes nothing")

    def on_publish_namespace(self, request: IncomingPublishNamespace) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.NOT_SUPPORTED, "this endpoint takes no announcements")

    def on_subscribe_namespace(self, request: IncomingSubscribeNamespace) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.NOT_SUPPORTED, "this endpoint publishes nothing")

    def on_subscribe_tracks(self, request: IncomingSubscribeTracks) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.NOT_SUPPORTED, "this endpoint publishes nothing")

    def on_publish(self, request: IncomingPublish) -> None:
        """Refuse."""
        raise RequestRefused(RequestCode.UNINTERESTED, "this endpoint takes what it asks for")

    def on_goaway(self, uri: str, timeout: int) -> None:
        """Nothing to move."""

    def on_closed(self, code: int, reason: str) -> None:
        """Nothing to release."""


class TrackInfo(NamedTuple):
    """What SUBSCRIBE_OK, FETCH_OK or PUBLISH said.

    ``fill`` tells whether a fill stream will come; ``end`` and ``end_of_track`` are a fetch's.
    ``expires``: ms until the publisher means to end it, 0 or None for never.
    """

    properties: TrackProperties
    largest: Location | None = None
    fill: bool = False
    end: Location | None = None
    end_of_track: bool = False
    expires: int | None = None


class TrackReceiver(Protocol):
    """Takes what a SUBSCRIBE or FETCH of ours brings. Exactly one of ``failed``, ``done`` ends it.

    Data may come before ``accepted``. ``open_subgroup``, ``open_fetch``, ``datagram`` and the sinks
    may raise ``MalformedTrack``: the session then cancels this request and calls ``failed``.
    Nothing is called after the application's own ``cancel``.
    """

    def accepted(self, info: TrackInfo) -> None:
        """SUBSCRIBE_OK or FETCH_OK."""
        ...

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        """A subgroup stream of this subscription starts."""
        ...

    def open_fetch(self, request_id: int) -> ObjectSink:
        """The data stream of a fetch, or a fill stream of a subscription, starts."""
        ...

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A datagram object."""
        ...

    def done(self, code: int, reason: str, complete: bool) -> None:
        """Subscription: PUBLISH_DONE with its ``DoneCode``; ``complete`` when all its streams came.

        Fetch: FETCH_OK and the FIN of the data stream are in; code 0.
        """
        ...

    def failed(self, error: MoqtError) -> None:
        """RequestFailed, StreamReset, MalformedTrack or SessionClosed: nothing more will come."""
        ...


class TracksListener(Protocol):
    """Takes the answers to a SUBSCRIBE_TRACKS of ours."""

    def accepted(self) -> None:
        """REQUEST_OK; a PUBLISH may have come before."""
        ...

    def published(self, request: IncomingPublish) -> None:
        """A track: accept or refuse it; RequestRefused may be raised."""
        ...

    def skipped(self, name: FullTrackName) -> None:
        """PUBLISH_SKIPPED: this track will not be offered; it can be subscribed to."""
        ...

    def ended(self, error: MoqtError | None) -> None:
        """Nothing more will be offered; None when the peer just finished. Subscriptions go on."""
        ...


class NamespaceListener(Protocol):
    """Takes the answers to a SUBSCRIBE_NAMESPACE of ours; namespaces are complete, not suffixes."""

    def accepted(self) -> None:
        """REQUEST_OK: what is known follows."""
        ...

    def found(self, namespace: TrackNamespace) -> None:
        """NAMESPACE."""
        ...

    def gone(self, namespace: TrackNamespace) -> None:
        """NAMESPACE_DONE."""
        ...

    def ended(self, error: MoqtError | None) -> None:
        """The request is over: all namespaces count as gone; None when the peer just finished."""
        ...
