"""Session: transport events in, requests out; it dispatches and knows the session's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.codec.datagram import decode_datagram
from moqt.codec.profile import LATEST, Profile
from moqt.codec.properties import SetupOptions
from moqt.errors import (
    MalformedTrack,
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    SessionClosed,
    SessionCode,
    SessionFault,
    StreamCode,
)
from moqt.session.context import Context
from moqt.session.fetches import IncomingFetch, OutgoingFetch
from moqt.session.namespaces import (
    IncomingPublishNamespace,
    IncomingSubscribeNamespace,
    OutgoingPublishNamespace,
    OutgoingSubscribeNamespace,
)
from moqt.session.publications import IncomingSubscribe, IncomingTrackStatus, OutgoingTrackStatus
from moqt.session.requests import IncomingRequest, RequestStream
from moqt.session.state import RESPONDER, Phase
from moqt.session.streams import DataStream
from moqt.session.subscriptions import OutgoingSubscribe
from transport.api import SendOrder, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, TrackNamespace
    from moqt.session.config import SessionConfig
    from moqt.session.ports import NamespaceListener, RequestHandler, TrackReceiver
    from transport.api import BytesLike, TransportSession

#: draft-22 §2.4.3: nothing is ever published under it.
RESERVED_FIELD: Final = b"."
SESSION_FIELD: Final = b".session"


class UnservedRequest(IncomingRequest):
    """PUBLISH and SUBSCRIBE_TRACKS: answered NOT_SUPPORTED, never with silence (draft-22 §1.6)."""

    table = RESPONDER

    def start(self, message: m.Publish | m.SubscribeTracks) -> None:
        """Refuse."""
        self.request_id = message.request_id
        self.parameters = message.parameters
        self.refuse(RequestCode.NOT_SUPPORTED, f"{type(message).__name__} is not served here")


_Opener: TypeAlias = (
    type[IncomingSubscribe]
    | type[IncomingFetch]
    | type[IncomingTrackStatus]
    | type[IncomingPublishNamespace]
    | type[IncomingSubscribeNamespace]
    | type[UnservedRequest]
)

#: What may open a request stream, and the role that answers it (draft-22 §6.4.2).
OPENERS: Final[dict[type, _Opener]] = {
    m.Subscribe: IncomingSubscribe,
    m.Fetch: IncomingFetch,
    m.TrackStatus: IncomingTrackStatus,
    m.PublishNamespace: IncomingPublishNamespace,
    m.SubscribeNamespace: IncomingSubscribeNamespace,
    m.Publish: UnservedRequest,
    m.SubscribeTracks: UnservedRequest,
}


class Session:
    """One MOQT session over one TransportSession; deterministic, does no I/O.

    The owner passes transport events with the time of each, calls ``tick`` at ``next_deadline``,
    and makes requests. ``draft-22 §6``.
    """

    def __init__(
        self,
        transport: TransportSession,
        handler: RequestHandler,
        config: SessionConfig,
        profile: Profile = LATEST,
    ) -> None:
        self._context = Context(transport, handler, config, profile)
        self._transport = transport
        self._phase = Phase.CONNECTING
        self._goaway_sent = False
        self._goaway_seen = False
        self._ready: list[Callable[[], None]] = []

    # -- transport events ------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """Open the control stream and say SETUP (draft-22 §6.3)."""
        context = self._context
        context.now = now
        self._phase = Phase.OPENING
        config = context.config
        options = SetupOptions(
            path=config.path,
            authority=config.authority,
            max_filter_ranges=config.max_filter_ranges,
            implementation=config.implementation,
            max_request_updates=config.max_request_updates,
        )
        stream = self._transport.open(SendOrder(Tier.CONTROL), unidirectional=True)
        self._control_stream = stream
        context.adopt(stream, OwnControl())
        self._transport.write(stream, m.encode_message(m.Setup(options), context.profile))
        context.call_at(now + config.setup_timeout, self._setup_overdue)

    def stream_opened(self, now: float, stream: int, unidirectional: bool) -> None:
        """A stream of the peer."""
        context = self._context
        context.now = now
        if unidirectional:
            context.adopt(stream, DataStream(context, stream, self._control_opened))
        else:
            context.adopt(stream, Intake(context, stream))

    def stream_data(self, now: float, stream: int, data: BytesLike, fin: bool) -> None:
        """Octets of a stream; the hot path."""
        context = self._context
        context.now = now
        owner = context.owners.get(stream)
        if owner is None:
            return
        try:
            owner.data(data, fin)
        except SessionFault as fault:
            self.close(fault.code, fault.reason)

    def stream_reset(self, now: float, stream: int, code: int) -> None:
        """RESET_STREAM of the peer."""
        self._context.now = now
        owner = self._context.owners.get(stream)
        if owner is not None:
            self._guard(owner.reset, code)

    def stop_sending(self, now: float, stream: int, code: int) -> None:
        """STOP_SENDING of the peer."""
        self._context.now = now
        owner = self._context.owners.get(stream)
        if owner is not None:
            self._guard(owner.stop, code)

    def stream_sent(self, now: float, stream: int) -> None:
        """Our FIN has been handed down."""
        self._context.now = now
        owner = self._context.owners.get(stream)
        if owner is not None:
            owner.sent()

    def datagram(self, now: float, data: bytes) -> None:
        """An object datagram; of an unknown alias it is dropped (draft-22 §3.1.3.1)."""
        context = self._context
        context.now = now
        if not context.established:
            return
        try:
            decoded = decode_datagram(data, context.profile)
            if decoded is None:
                return
            subscription = context.streams.subscription(decoded.track_alias)
            if subscription is not None:
                try:
                    head = decoded.head.resolve(subscription.default_priority)
                    subscription.receiver.datagram(head, decoded.payload)
                except MalformedTrack as fault:
                    subscription.fail(fault)
        except SessionFault as fault:
            self.close(fault.code, fault.reason)

    def transport_closed(self, now: float, code: int, reason: str) -> None:
        """The transport is gone: everything open ends, once."""
        context = self._context
        context.now = now
        if self._phase is Phase.CLOSED and not context.owners:
            return
        self._phase = Phase.CLOSED
        error = SessionClosed(code, reason)
        owners = sorted(context.owners.values(), key=lambda owner: isinstance(owner, RequestStream))
        context.owners.clear()
        for owner in owners:  # data first, so that sinks abort before their request reports
            owner.closed(error)
        context.handler.on_closed(code, reason)

    def tick(self, now: float) -> None:
        """Run what is due."""
        self._context.now = now
        if self._phase is not Phase.CLOSED:
            self._guard(self._context.tick)

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called at the latest; None for never."""
        return None if self._phase is Phase.CLOSED else self._context.next_deadline()

    # -- application -----------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Both SETUPs are exchanged and the session is open."""
        return self._phase is Phase.ESTABLISHED

    @property
    def peer_options(self) -> SetupOptions:
        """The peer's SETUP; defaults before it came."""
        return self._context.peer_options

    def subscribe(
        self, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> OutgoingSubscribe:
        """SUBSCRIBE (draft-22 §9.6)."""
        self._may_request()
        return OutgoingSubscribe(self._context, name, parameters, receiver)

    def fetch(
        self, name: FullTrackName, parameters: Parameters, receiver: TrackReceiver
    ) -> OutgoingFetch:
        """FETCH (draft-22 §9.11)."""
        self._may_request()
        return OutgoingFetch(self._context, name, parameters, receiver)

    def track_status(
        self,
        name: FullTrackName,
        parameters: Parameters,
        answer: Callable[[m.RequestOk | MoqtError], None],
    ) -> OutgoingTrackStatus:
        """TRACK_STATUS (draft-22 §9.13)."""
        self._may_request()
        return OutgoingTrackStatus(self._context, name, parameters, answer)

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        parameters: Parameters,
        answer: Callable[[MoqtError | None], None],
    ) -> OutgoingPublishNamespace:
        """PUBLISH_NAMESPACE (draft-22 §9.14)."""
        self._may_request()
        return OutgoingPublishNamespace(self._context, namespace, parameters, answer)

    def subscribe_namespace(
        self, prefix: TrackNamespace, parameters: Parameters, listener: NamespaceListener
    ) -> OutgoingSubscribeNamespace:
        """SUBSCRIBE_NAMESPACE (draft-22 §9.15)."""
        self._may_request()
        return OutgoingSubscribeNamespace(self._context, prefix, parameters, listener)

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """Say that the session will end soon; ``timeout`` in ms (draft-22 §9.2)."""
        if self._goaway_sent:
            raise Misuse("a session sends one GOAWAY on its control stream (§9.2)")
        self._context.check_goaway_uri(uri)
        self._goaway_sent = True
        self._transport.write(
            self._control_stream, m.encode_message(m.Goaway(uri, timeout), self._context.profile)
        )

    def close(self, code: int = SessionCode.NO_ERROR, reason: str = "") -> None:
        """End the session; ``transport_closed`` follows from the transport."""
        if self._phase is not Phase.CLOSED:
            self._phase = Phase.CLOSED
            self._transport.close(code, reason)

    # -- control stream --------------------------------------------------------------------------

    def _control_opened(self, stream: DataStream, held: bytes, fin: bool) -> None:
        if self._context.established or any(
            isinstance(o, PeerControl) for o in self._context.owners.values()
        ):
            raise ProtocolViolation("second control stream")
        control = PeerControl(self._context, self._setup, self._goaway)
        self._context.adopt(stream.handle, control)
        control.data(held, fin)

    def _setup(self, options: SetupOptions) -> None:
        context = self._context
        code, fault = check_setup(options, from_client=not self._transport.is_client)
        if code is not None:
            raise SessionFault(code, fault)
        context.handler.on_setup(options)
        context.peer_options = options
        context.established = True
        self._phase = Phase.ESTABLISHED
        context.release_held()

    def _goaway(self, message: m.Goaway) -> None:
        if self._goaway_seen:
            raise ProtocolViolation("second GOAWAY on the control stream")
        self._goaway_seen = True
        self._context.receive_goaway_uri(message.uri)
        self._context.handler.on_goaway(message.uri, message.timeout)

    def _setup_overdue(self) -> None:
        if self._phase is Phase.OPENING:
            raise SessionFault(SessionCode.CONTROL_MESSAGE_TIMEOUT, "no SETUP came")

    def _may_request(self) -> None:
        if self._phase is Phase.CLOSED:
            raise SessionClosed(0, "the session is closed")
        if self._goaway_seen:
            raise Misuse(
                "the peer sent GOAWAY: open new requests on the session it names (§6.6.1)"
            )

    def _guard(self, call: Callable[..., None], *arguments: int) -> None:
        try:
            call(*arguments)
        except SessionFault as fault:
            self.close(fault.code, fault.reason)


class OwnControl:
    """Our control stream: the peer must leave it open (draft-22 §6.3)."""

    def data(self, view: BytesLike, fin: bool) -> None:
        """Never: the stream is ours."""

    def reset(self, code: int) -> None:
        """Never: the stream is ours."""

    def stop(self, code: int) -> None:
        """STOP_SENDING on it ends the session."""
        raise ProtocolViolation("STOP_SENDING on the control stream")

    def sent(self) -> None:
        """Never: it is not finished."""

    def closed(self, error: SessionClosed) -> None:
        """Nothing waits here."""


class PeerControl:
    """The peer's control stream: SETUP, then GOAWAY at most (draft-22 §6.3)."""

    def __init__(
        self,
        context: Context,
        setup: Callable[[SetupOptions], None],
        goaway: Callable[[m.Goaway], None],
    ) -> None:
        self._context = context
        self._splitter = MessageSplitter(context.profile)
        self._setup: Callable[[SetupOptions], None] | None = setup
        self._goaway = goaway

    def data(self, view: BytesLike, fin: bool) -> None:
        """Whole messages, in order."""
        for kind, body in self._splitter.feed(view):
            message = m.decode_message(self._context.profile, kind, body, None)
            if self._setup is not None:
                if not isinstance(message, m.Setup):
                    raise ProtocolViolation("the control stream does not start with SETUP")
                setup, self._setup = self._setup, None
                setup(message.options)
            elif isinstance(message, m.Goaway):
                self._goaway(message)
            else:
                raise ProtocolViolation(f"{type(message).__name__} on the control stream")
        if fin:
            raise ProtocolViolation("the control stream was closed")

    def reset(self, code: int) -> None:
        """It must stay open."""
        raise ProtocolViolation("the control stream was reset")

    def stop(self, code: int) -> None:
        """Never: the stream is the peer's."""

    def sent(self) -> None:
        """Never: the stream is the peer's."""

    def closed(self, error: SessionClosed) -> None:
        """Nothing waits here."""


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
            context.hold(self._stream, self, view, fin)
            return
        messages = self._splitter.feed(view)
        if not messages:
            if fin:
                raise ProtocolViolation("a request stream ended before its first message was whole")
            return
        message = m.decode_message(context.profile, *messages[0], None)
        opener = OPENERS.get(type(message))
        if opener is None:
            raise ProtocolViolation(f"{type(message).__name__} opens a request stream")
        context.ids.take(message.request_id)  # type: ignore[union-attr]
        role = opener(context, self._stream)
        role.take_over(self._splitter)
        context.adopt(self._stream, role)
        refusal = self._refusal(message)
        if refusal is not None:
            role.request_id = message.request_id  # type: ignore[union-attr]
            role.refuse(refusal.code, refusal.reason, refusal.retry_after)
        else:
            role.start(message)  # type: ignore[arg-type]
        for kind, body in messages[1:]:
            role.message(kind, body)
        if fin:
            role.data(b"", fin)

    def _refusal(self, message: m.Message) -> RequestRefused | None:
        context = self._context
        space = getattr(message, "prefix", None) or getattr(message, "namespace", None)
        name = getattr(message, "name", None)
        if name is not None:
            space = name.namespace
        if space and space[0] in (RESERVED_FIELD, SESSION_FIELD):
            return RequestRefused(
                RequestCode.DOES_NOT_EXIST, "nothing is published under a reserved namespace"
            )
        if (
            sum(isinstance(o, IncomingRequest) for o in context.owners.values())
            > context.config.max_peer_requests
        ):
            return RequestRefused(
                RequestCode.EXCESSIVE_LOAD, "too many open requests", context.config.retry_interval
            )
        return context.check_parameters(message.parameters)  # type: ignore[union-attr]

    def reset(self, code: int) -> None:
        """Cancelled before it said anything."""
        self._context.transport.reset(self._stream, StreamCode.CANCELLED)
        self._context.forget(self._stream)

    def stop(self, code: int) -> None:
        """Cancelled before it said anything."""
        self._context.transport.stop(self._stream, StreamCode.CANCELLED)
        self._context.transport.reset(self._stream, StreamCode.CANCELLED)
        self._context.forget(self._stream)

    def sent(self) -> None:
        """Nothing was sent."""

    def closed(self, error: SessionClosed) -> None:
        """Nothing waits here."""


def check_setup(options: SetupOptions, *, from_client: bool) -> tuple[SessionCode | None, str]:
    """PATH and AUTHORITY are a client's, on raw QUIC (draft-22 §9.1.1, §9.1.2)."""
    if not from_client:
        if options.path is not None:
            return SessionCode.INVALID_PATH, "PATH from a server"
        if options.authority is not None:
            return SessionCode.INVALID_AUTHORITY, "AUTHORITY from a server"
        return None, ""
    if options.path and not options.path.startswith(("/", "?")):
        return SessionCode.MALFORMED_PATH, "PATH must be empty or start with /"
    return None, ""
