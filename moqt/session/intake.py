"""Request streams of the peer: the first message says who takes over (draft-22 §6.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, cast

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.codec.params import Scope
from moqt.codec.properties import TrackProperties
from moqt.errors import (
    MalformedTrack,
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    StreamCode,
)
from moqt.session.checks import check_parameters, reserved
from moqt.session.fetches import IncomingFetch
from moqt.session.namespaces import IncomingPublishNamespace, IncomingSubscribeNamespace
from moqt.session.publications import IncomingSubscribe
from moqt.session.requests import IncomingRequest, not_understood
from moqt.session.state import REFUSED_PUBLISH, RESPONDER
from moqt.session.status import IncomingTrackStatus

if TYPE_CHECKING:
    from moqt.errors import SessionClosed
    from moqt.model import TrackNamespace
    from moqt.session.context import Context
    from moqt.session.state import Table
    from transport.api import BytesLike

Opening: TypeAlias = (
    m.Subscribe
    | m.Fetch
    | m.TrackStatus
    | m.PublishNamespace
    | m.SubscribeNamespace
    | m.Publish
    | m.SubscribeTracks
)


class RefusedPublish(IncomingRequest):
    """PUBLISH: answered, never with silence (draft-22 §1.6); its data streams are stopped."""

    table: ClassVar[Table] = REFUSED_PUBLISH
    scope: ClassVar[Scope | None] = Scope.PUBLISH

    def start(self, message: m.Publish) -> None:
        """Refuse; an unknown mandatory property has a code of its own (draft-22 §3.7)."""
        self.session.streams.refused(message.track_alias, message.name)
        try:
            unknown = TrackProperties.decode(message.properties).unknown_mandatory
        except MalformedTrack as fault:
            self.refuse(RequestCode.MALFORMED_TRACK, str(fault))
            return
        if unknown:
            self.refuse(RequestCode.UNSUPPORTED_EXTENSION, not_understood(unknown))
        else:
            self.refuse(RequestCode.NOT_SUPPORTED, "PUBLISH is not served here")

    def ignore(self, message: m.PublishDone | m.PublishStateNotify) -> None:
        """Said before the refusal was heard."""


class RefusedSubscribeTracks(IncomingRequest):
    """SUBSCRIBE_TRACKS: answered, never with silence (draft-22 §1.6)."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_TRACKS

    def start(self, message: m.SubscribeTracks) -> None:
        """Refuse."""
        self.refuse(RequestCode.NOT_SUPPORTED, "SUBSCRIBE_TRACKS is not served here")


_Role: TypeAlias = (
    type[IncomingSubscribe]
    | type[IncomingFetch]
    | type[IncomingTrackStatus]
    | type[IncomingPublishNamespace]
    | type[IncomingSubscribeNamespace]
    | type[RefusedPublish]
    | type[RefusedSubscribeTracks]
)

#: What may open a request stream, and the role that answers it.
OPENERS: Final[dict[type, _Role]] = {
    m.Subscribe: IncomingSubscribe,
    m.Fetch: IncomingFetch,
    m.TrackStatus: IncomingTrackStatus,
    m.PublishNamespace: IncomingPublishNamespace,
    m.SubscribeNamespace: IncomingSubscribeNamespace,
    m.Publish: RefusedPublish,
    m.SubscribeTracks: RefusedSubscribeTracks,
}


class Intake:
    """A request stream of the peer before its first message says what it is."""

    def __init__(self, context: Context, stream: int) -> None:
        self._context = context
        self._stream = stream
        self._splitter = MessageSplitter(context.profile)

    def data(self, view: BytesLike, fin: bool) -> None:
        """Read up to the first message, then hand over to its role."""
        context = self._context
        if not context.established:
            if not context.hold(self._stream, view, fin):
                self._drop(StreamCode.EXCESSIVE_LOAD)
            return
        found = self._splitter.feed(view)
        if found:
            self._hand_over(found, fin)
        elif fin:
            raise ProtocolViolation("a request stream ended before its first message was whole")

    def reset(self, code: int) -> None:
        """Cancelled before it said anything."""
        self._drop(StreamCode.CANCELLED)

    def stop(self, code: int) -> None:
        """Cancelled before it said anything."""
        self._drop(StreamCode.CANCELLED)

    def sent(self) -> None:
        """Nothing was sent."""

    def closed(self, error: SessionClosed) -> None:
        """Nothing waits here."""

    def _drop(self, code: int) -> None:
        transport = self._context.transport
        transport.reset(self._stream, code)
        transport.stop(self._stream, code)
        self._context.forget(self._stream)

    def _hand_over(self, found: list[tuple[int, bytes]], fin: bool) -> None:
        context = self._context
        first = m.decode_message(context.profile, *found[0], None)
        opener = OPENERS.get(type(first))
        if opener is None:
            raise ProtocolViolation(f"{type(first).__name__} opens a request stream")
        message = cast("Opening", first)
        context.ids.take(message.request_id)
        role = opener(context, self._stream)
        role.take_over(self._splitter)
        role.request_id = message.request_id
        role.parameters = message.parameters
        context.adopt(self._stream, role)
        if len(context.peer_requests) > context.config.max_peer_requests:
            config = context.config
            role.refuse(RequestCode.EXCESSIVE_LOAD, "too many open requests", config.retry_interval)
            role.abandon(StreamCode.EXCESSIVE_LOAD)  # nothing of it is kept until the peer's FIN
            return
        refusal = _refusal(message, context)
        if refusal is not None:
            role.refuse(refusal.code, refusal.reason, refusal.retry_after)
        else:
            role.start(message)  # type: ignore[arg-type]
        role.messages(found[1:], fin)


def _refusal(message: Opening, context: Context) -> RequestRefused | None:
    """Why nobody need be asked."""
    refusal = check_parameters(message.parameters, context.config)
    return reserved(_namespace(message)) or refusal


def _namespace(message: Opening) -> TrackNamespace:
    if isinstance(message, m.PublishNamespace):
        return message.namespace
    if isinstance(message, m.SubscribeNamespace | m.SubscribeTracks):
        return message.prefix
    return message.name.namespace
