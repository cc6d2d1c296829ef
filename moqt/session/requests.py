"""Request ids and request streams: what all seven requests have in common (draft-22 §6.4.2)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, ClassVar, Self

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.codec.properties import TrackProperties
from moqt.errors import (
    MalformedTrack,
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestFailed,
    RequestRefused,
    SessionClosed,
    SessionCode,
    SessionFault,
    StreamCode,
)
from moqt.session.state import Request, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.messages import Message
    from moqt.codec.params import Parameters, Scope
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, GroupOrder, ObjectSink
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver
    from transport.api import BytesLike


class RequestIds:
    """Our ids going out, the peer's coming in, each used once (draft-22 §6.4.2.1)."""

    def __init__(self, *, is_client: bool, max_holes: int) -> None:
        self._next = 0 if is_client else 1
        self._peer_parity = 1 if is_client else 0
        self._floor = self._peer_parity  # every peer id below it has been seen
        self._beyond: list[int] = []  # seen ids above the floor, sorted
        self._max_holes = max_holes

    def allocate(self) -> int:
        """The next id of ours."""
        value = self._next
        self._next += 2
        return value

    def take(self, value: int) -> None:
        """Accept an id of the peer; raises SessionFault(INVALID_REQUEST_ID) on parity or repetition."""
        if value & 1 != self._peer_parity:
            raise SessionFault(
                SessionCode.INVALID_REQUEST_ID, f"request id {value} has the wrong parity"
            )
        at = bisect_left(self._beyond, value)
        if value < self._floor or (at < len(self._beyond) and self._beyond[at] == value):
            raise SessionFault(SessionCode.INVALID_REQUEST_ID, f"request id {value} used twice")
        self._beyond.insert(at, value)
        while self._beyond and self._beyond[0] == self._floor:
            self._beyond.pop(0)
            self._floor += 2
        if len(self._beyond) > self._max_holes:
            raise SessionFault(SessionCode.INVALID_REQUEST_ID, "too many gaps between request ids")


class RequestStream:
    """One bidirectional stream and the request it carries; subclasses are the roles.

    A subclass names its transition ``table`` and has the methods that the table names. FIN, reset
    and session end arrive in ``peer_finished``, ``peer_aborted`` and ``session_closed``.
    """

    table: ClassVar[Table]
    scope: ClassVar[Scope | None] = None

    def __init__(self, session: Context, stream: int) -> None:
        self.session = session
        self.stream = stream
        self.state = Request.PENDING
        self._splitter: MessageSplitter | None = MessageSplitter(session.profile)
        self._sending = True
        self._receiving = True
        self._goaway_sent = False
        self._goaway_seen = False

    def take_over(self, splitter: MessageSplitter) -> None:
        """Go on with the splitter that found the first message."""
        self._splitter = splitter

    # -- transport events ------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets of the peer's direction."""
        if not self.session.established:
            self.session.hold(self.stream, self, view, fin)
            return
        splitter = self._splitter
        if splitter is None:
            return
        for kind, body in splitter.feed(view):
            self.message(kind, body)
            if self._splitter is None:  # cancelled by what the message caused
                return
        if fin:
            if splitter.pending:
                raise ProtocolViolation("FIN in the middle of a control message")
            self._receiving = False
            self.peer_finished()
            self._forget_if_over()

    def reset(self, code: int) -> None:
        """The peer reset its direction: the request is cancelled."""
        self._receiving = False
        self._splitter = None
        self.peer_aborted(code)
        self.abandon(StreamCode.CANCELLED)

    def stop(self, code: int) -> None:
        """The peer stopped ours: the request is cancelled (draft-22 §6.4.2.3)."""
        if self._sending:
            self._sending = False
            self.session.transport.reset(self.stream, code)
        self.peer_aborted(code)
        self.abandon(StreamCode.CANCELLED)

    def sent(self) -> None:
        """Our FIN has left."""

    def closed(self, error: SessionClosed) -> None:
        """The session ended under the request."""
        if self.state is not Request.CLOSED:
            self.state = Request.CLOSED
            self.session_closed(error)

    # -- roles -----------------------------------------------------------------------------------

    def peer_finished(self) -> None:
        """FIN: nothing more from the peer; never a cancellation by itself."""

    def peer_aborted(self, code: int) -> None:
        """Reset or STOP_SENDING: the peer cancelled."""

    def session_closed(self, error: SessionClosed) -> None:
        """Tell the application, if it waits for something."""

    # -- ours ------------------------------------------------------------------------------------

    def send(self, message: Message, *, fin: bool = False) -> None:
        """Queue a message; ignored once our direction is over."""
        if not self._sending:
            return
        self.session.transport.write(self.stream, m.encode_message(message, self.session.profile))
        if fin:
            self.finish()

    def finish(self) -> None:
        """FIN our direction."""
        if self._sending:
            self._sending = False
            self.session.transport.finish(self.stream)
            self._forget_if_over()

    def abandon(self, code: int) -> None:
        """Cancel: reset what we send, stop what we receive, forget the stream."""
        if self._sending:
            self._sending = False
            self.session.transport.reset(self.stream, code)
        if self._receiving:
            self._receiving = False
            self.session.transport.stop(self.stream, code)
        self._splitter = None
        self.state = Request.CLOSED
        self.session.forget(self.stream)

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """Ask the peer to move just this request; ``timeout`` in ms (draft-22 §9.2)."""
        if self._goaway_sent:
            raise Misuse("a request stream carries one GOAWAY")
        self.session.check_goaway_uri(uri)
        self._goaway_sent = True
        self.send(m.Goaway(uri, timeout))

    def message(self, kind: int, body: bytes) -> None:
        """One whole message of the peer."""
        message = m.decode_message(self.session.profile, kind, body, self.scope)
        if isinstance(message, m.Goaway):
            if self._goaway_seen:
                raise ProtocolViolation("second GOAWAY on a request stream")
            self._goaway_seen = True
            self.session.receive_goaway_uri(message.uri)
            self.on_goaway(message)
            return
        step = self.table.get((self.state, type(message)))
        if step is None:
            raise ProtocolViolation(
                f"{type(message).__name__} on this request stream in state {self.state.name}"
            )
        self.state, method = step
        getattr(self, method)(message)

    def on_goaway(self, message: m.Goaway) -> None:
        """The peer wants this request moved; roles that can, tell the application."""

    def _forget_if_over(self) -> None:
        if not self._sending and not self._receiving:
            self.session.forget(self.stream)


class OutgoingRequest(RequestStream):
    """A request of ours: opened by its first message."""

    def __init__(self, session: Context, request_id: int) -> None:
        super().__init__(session, session.open_request())
        self.request_id = request_id
        session.adopt(self.stream, self)

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Give up the request; nothing is reported to its receiver after this."""
        if self.state is not Request.CLOSED:
            self.abandon(code)

    def failure(self, message: m.RequestError) -> RequestFailed:
        """REQUEST_ERROR as the exception an application sees (draft-22 §9.4)."""
        retry = message.retry_interval - 1 if message.retry_interval else None
        return RequestFailed(message.code, message.reason, retry)

    def peer_finished(self) -> None:
        """FIN before the answer means failure (draft-22 §6.4.2.2)."""
        if self.state is Request.PENDING:
            self.state = Request.CLOSED
            self.failed(RequestFailed(0, "the peer finished the stream without an answer"))
        if self.state in (Request.CLOSED, Request.DRAINING):
            self.finish()

    def peer_aborted(self, code: int) -> None:
        """The peer refused or ended the request with a stream error."""
        if self.state is not Request.CLOSED:
            self.state = Request.CLOSED
            self.failed(RequestFailed(0, f"the peer reset the request stream with code {code:#x}"))

    def session_closed(self, error: SessionClosed) -> None:
        """Report the lost session."""
        self.failed(error)

    def failed(self, error: MoqtError) -> None:
        """The request is over without success: role-specific report."""
        raise NotImplementedError


class TrackRequest(OutgoingRequest):
    """A request of ours that brings objects: SUBSCRIBE or FETCH."""

    def __init__(self, session: Context, name: FullTrackName, receiver: TrackReceiver) -> None:
        super().__init__(session, session.ids.allocate())
        self.name = name
        self.receiver = receiver

    def fail(self, error: MoqtError) -> None:
        """End from our side for a reason the application must hear (malformed track, extension)."""
        if self.state is not Request.CLOSED:
            self.cancel(
                StreamCode.MALFORMED_TRACK
                if isinstance(error, MalformedTrack)
                else StreamCode.CANCELLED
            )
            self.receiver.failed(error)

    def read_properties(self, raw: bytes) -> TrackProperties | None:
        """Track Properties of the answer; None when they ended the request (draft-22 §3.7)."""
        try:
            properties = TrackProperties.decode(raw)
        except MalformedTrack as fault:
            self.fail(fault)
            return None
        if properties.unknown_mandatory:
            kinds = ", ".join(hex(kind) for kind in properties.unknown_mandatory)
            self.fail(
                RequestFailed(
                    RequestCode.UNSUPPORTED_EXTENSION,
                    f"mandatory track property {kinds} not understood",
                )
            )
            return None
        return properties

    def fetch_order(self, request_id: int) -> GroupOrder | None:
        """Group order of the fetch stream ``request_id``; None when none is awaited."""
        raise NotImplementedError

    def open_fetch(self, stream: int, request_id: int) -> ObjectSink:
        """The fetch stream ``request_id`` starts."""
        raise NotImplementedError

    def stream_over(self, stream: int, code: int | None) -> None:
        """A data stream ended: FIN when ``code`` is None, else reset."""
        raise NotImplementedError


class IncomingRequest(RequestStream):
    """A request of the peer, waiting for ``accept`` or ``refuse`` (each role has its ``accept``)."""

    request_id: int
    parameters: Parameters

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        #: Called once when the request is over, whoever ended it, before or after ``accept``.
        self.on_end: Callable[[], None] | None = None

    def refuse(self, code: RequestCode, reason: str = "", retry_after: int | None = None) -> None:
        """REQUEST_ERROR and FIN; ``retry_after`` in ms, None for "do not repeat" (draft-22 §9.4)."""
        if self.state is not Request.PENDING:
            return
        self.state = Request.CLOSED
        self.send(
            m.RequestError(code, 0 if retry_after is None else retry_after + 1, reason, None),
            fin=True,
        )

    def ask(self, method: Callable[[Self], None]) -> None:
        """Hand the request to the application; a RequestRefused it raises is the answer."""
        try:
            method(self)
        except RequestRefused as refused:
            self.refuse(refused.code, refused.reason, refused.retry_after)

    def on_update(self, message: m.RequestUpdate) -> None:
        """Take the id; every role answers in its own way."""
        self.session.ids.take(message.request_id)
        if self.state is Request.CLOSED:
            return
        refusal = self.session.check_parameters(message.parameters)
        self.update(message, refusal)

    def update(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Apply and answer; by default only authorization could change, which needs no action."""
        if refusal is not None:
            self.send(m.RequestError(refusal.code, 0, refusal.reason, None), fin=True)
            self.state = Request.CLOSED
        else:
            self.send(m.RequestOk())

    def peer_aborted(self, code: int) -> None:
        """Cancelled by the requester."""
        self.state = Request.CLOSED
        self.withdrawn()

    def session_closed(self, error: SessionClosed) -> None:
        """The requester is gone."""
        self.withdrawn()

    def withdrawn(self) -> None:
        """The requester no longer wants it: release what was held for it."""
        self.ended()

    def ended(self) -> None:
        """Tell the application, once."""
        callback, self.on_end = self.on_end, None
        if callback is not None:
            callback()
