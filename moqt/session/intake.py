"""Request streams of the peer: the first message says who takes over (draft-22 §6.4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.errors import (
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    StreamCode,
)
from moqt.session.checks import check_parameters, reserved
from moqt.session.fetches import IncomingFetch
from moqt.session.namespaces import IncomingPublishNamespace, IncomingSubscribeNamespace
from moqt.session.patience import Patience
from moqt.session.publications import IncomingSubscribe
from moqt.session.publishing import IncomingPublish
from moqt.session.status import IncomingTrackStatus
from moqt.session.tokens import claim_of
from moqt.session.tracks import IncomingSubscribeTracks

if TYPE_CHECKING:
    from moqt.errors import SessionClosed
    from moqt.model import TrackNamespace
    from moqt.session.context import Context
    from moqt.session.requests import Opening
    from transport.api import BytesLike


_Role: TypeAlias = (
    type[IncomingSubscribe]
    | type[IncomingFetch]
    | type[IncomingTrackStatus]
    | type[IncomingPublishNamespace]
    | type[IncomingSubscribeNamespace]
    | type[IncomingPublish]
    | type[IncomingSubscribeTracks]
)

#: What may open a request stream, and the role that answers it.
OPENERS: Final[dict[type, _Role]] = {
    m.Subscribe: IncomingSubscribe,
    m.Fetch: IncomingFetch,
    m.TrackStatus: IncomingTrackStatus,
    m.PublishNamespace: IncomingPublishNamespace,
    m.SubscribeNamespace: IncomingSubscribeNamespace,
    m.Publish: IncomingPublish,
    m.SubscribeTracks: IncomingSubscribeTracks,
}


class Intake:
    """A request stream of the peer before its first message says what it is."""

    def __init__(self, context: Context, stream: int) -> None:
        self._context = context
        self._stream = stream
        self._splitter = MessageSplitter(context.profile)
        self._patience = Patience(context)

    def data(self, view: BytesLike, fin: bool) -> None:
        """Read up to the first message, then hand over to its role."""
        context = self._context
        if not context.established:
            if not context.hold(self._stream, view, fin):
                self._drop(StreamCode.EXCESSIVE_LOAD)
            return
        found = self._splitter.feed(view)
        self._patience.watch(not found)
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
        self._patience.watch(False)
        transport = self._context.transport
        transport.reset(self._stream, code)
        transport.stop(self._stream, code)
        self._context.forget(self._stream)

    def _hand_over(self, found: list[tuple[int, bytes]], fin: bool) -> None:
        context = self._context
        first = m.decode_message(context.profile, *found[0], None)
        context.counters.received.message(first)
        opener = OPENERS.get(type(first))
        if opener is None:
            raise ProtocolViolation(f"{type(first).__name__} opens a request stream")
        message = cast("Opening", first)
        context.ids.take(message.request_id)
        # Tokens first: what is registered stays so, whatever becomes of the message.
        claim, refusal = claim_of(message), _refusal(message, context)
        parameters, refusal = context.peer_tokens.admit(
            claim, message.parameters, context.now, refusal
        )
        if parameters is not message.parameters:
            message = replace(message, parameters=parameters)
        role = opener(context, self._stream)
        kept = claim._replace(
            tokens=parameters.authorization_tokens, fill=parameters.fill is not None
        )
        role.take_over(self._splitter, kept)
        role.take_in(message)
        context.adopt(self._stream, role)
        if len(context.peer_requests) > context.config.max_peer_requests:
            config = context.config
            role.refuse(RequestCode.EXCESSIVE_LOAD, "too many open requests", config.retry_interval)
            role.abandon(StreamCode.EXCESSIVE_LOAD)  # nothing of it is kept until the peer's FIN
            return
        if refusal is not None:
            role.refuse(refusal.code, refusal.reason, refusal.retry_after, refusal.redirect)
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
