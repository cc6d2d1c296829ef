"""Requests that bring us objects: what SUBSCRIBE, FETCH and PUBLISH have in common."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from moqt.codec.properties import TrackProperties
from moqt.errors import MalformedTrack, RequestCode, RequestFailed, StreamCode
from moqt.session.integrity import TrackIntegrity
from moqt.session.requests import RequestStream
from moqt.session.state import Request

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, ObjectSink
    from moqt.session.ports import TrackReceiver


def not_understood(properties: tuple[int, ...]) -> str:
    """Why a track cannot be used (draft-22 §3.7)."""
    return f"mandatory track property {', '.join(map(hex, properties[:4]))} not understood"


class TrackRequest(RequestStream):
    """A request that brings us objects: SUBSCRIBE or FETCH of ours, an accepted PUBLISH."""

    name: FullTrackName
    receiver: TrackReceiver

    @cached_property
    def integrity(self) -> TrackIntegrity:
        """What is known of the track's shape from what this request has brought."""
        return TrackIntegrity()

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """End it: its data streams are stopped, their sinks aborted; nothing else is reported."""
        if self.state is not Request.CLOSED:
            self.abandon(code)
            self.release(code)

    def failed(self, error: MoqtError, code: int) -> None:
        """Over without success: stop its streams and tell the receiver."""
        self.release(code)
        self.receiver.failed(error)

    def malformed(self, fault: MalformedTrack) -> None:
        """The track broke the data model: cancel all that we have of it, and say so (§12.1)."""
        for request in tuple(self.session.owners.values()):
            if isinstance(request, TrackRequest) and request.name == self.name:
                request._fail(fault, StreamCode.MALFORMED_TRACK)
        self._fail(fault, StreamCode.MALFORMED_TRACK)

    def read_properties(self, raw: bytes) -> TrackProperties | None:
        """Track Properties of the answer; None when they ended the request (draft-22 §3.7)."""
        try:
            properties = TrackProperties.decode(raw)
        except MalformedTrack as fault:
            self.malformed(fault)
            return None
        if properties.unknown_mandatory:
            self._fail(
                RequestFailed(
                    RequestCode.UNSUPPORTED_EXTENSION, not_understood(properties.unknown_mandatory)
                )
            )
            return None
        return properties

    def release(self, code: int) -> None:
        """Stop the data streams with ``code`` and leave every map."""
        raise NotImplementedError

    def open_fetch(self, stream: int, request_id: int) -> ObjectSink:
        """The fetch stream ``request_id`` starts."""
        raise NotImplementedError

    def stream_lost(self) -> None:
        """A data stream was reset before its header: whose it was is unknown."""

    def stream_over(self, stream: int, code: int | None) -> None:
        """A data stream ended: FIN when ``code`` is None, else reset."""
        raise NotImplementedError
