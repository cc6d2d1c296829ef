"""Request streams: what all seven requests have in common (draft-22 §6.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Self

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
from moqt.session.checks import check_goaway, check_own_goaway, check_parameters
from moqt.session.state import Request, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.codec.messages import Message
    from moqt.codec.params import Parameters, Scope
    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, ObjectSink
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver
    from moqt.session.timers import Timer
    from transport.api import BytesLike

_LIVE: Final = (Request.PENDING, Request.ESTABLISHED)


def not_understood(properties: tuple[int, ...]) -> str:
    """Why a track cannot be used (draft-22 §3.7)."""
    return f"mandatory track property {', '.join(map(hex, properties[:4]))} not understood"


class RequestStream:
    """One bidirectional stream and the request it carries; subclasses are the roles.

    A subclass names its transition ``table`` and has the methods that the table names. FIN, reset
    and session end arrive in ``peer_finished``, ``peer_aborted`` and ``session_closed``. The stream
    is known to the session until the request is closed and both directions are over.
    """

    table: ClassVar[Table]
    scope: ClassVar[Scope | None] = None

    def __init__(self, session: Context, stream: int) -> None:
        self.session = session
        self.stream = stream
        self.state = Request.PENDING
        #: Called when the peer's GOAWAY on this stream asks to move the request: URI, ms or 0.
        self.on_move: Callable[[str, int], None] | None = None
        self._splitter: MessageSplitter | None = MessageSplitter(session.profile)
        self._sending = True
        self._receiving = True
        self._goaway_sent = False
        self._goaway_seen = False

    # -- transport events ------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets of the peer's direction."""
        if self._splitter is not None:
            self.messages(self._splitter.feed(view), fin)

    def messages(self, found: Iterable[tuple[int, bytes]], fin: bool) -> None:
        """Whole messages that arrived together, perhaps with the FIN behind them."""
        for kind, body in found:
            if self._splitter is not None:  # None: cancelled by what a message caused
                self.message(kind, body)
        if fin and self._splitter is not None:
            if self._splitter.pending:
                raise ProtocolViolation("FIN in the middle of a control message")
            self._receiving = False
            self.peer_finished()
            self._settle()

    def reset(self, code: int) -> None:
        """The peer reset its direction."""
        self._receiving = False
        self._splitter = None
        self.peer_aborted(code)

    def stop(self, code: int) -> None:
        """The peer stopped ours; QUIC has answered with a reset (draft-22 §6.4.2.3)."""
        self._end_sending(code)
        self.peer_aborted(code)

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
        """The peer cancelled."""
        raise NotImplementedError

    def session_closed(self, error: SessionClosed) -> None:
        """Tell the application, if it waits for something."""

    def moved(self) -> None:
        """Our GOAWAY on this stream has been in vain: end the request (draft-22 §9.2)."""
        raise NotImplementedError

    # -- ours ------------------------------------------------------------------------------------

    def send(self, message: Message, *, fin: bool = False) -> None:
        """Queue a message; ignored once our direction is over. Misuse when it breaks a limit."""
        octets = m.encode_message(message, self.session.profile)
        if self._sending:
            self.session.transport.write(self.stream, octets)
        if fin:
            self.finish()

    def finish(self) -> None:
        """FIN our direction."""
        if self._sending:
            self._sending = False
            self.session.transport.finish(self.stream)
        self._settle()

    def abandon(self, code: int) -> None:
        """Cancel: reset what we send, stop what we receive, forget the stream."""
        self._end_sending(code)
        if self._receiving:
            self._receiving = False
            self.session.transport.stop(self.stream, code)
        self._splitter = None
        self.state = Request.CLOSED
        self._settle()

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """Ask the peer to move just this request; ``timeout`` in ms, 0 for none (draft-22 §9.2)."""
        if self._goaway_sent:
            raise Misuse("a request stream carries one GOAWAY (§9.2)")
        check_own_goaway(uri, is_client=self.session.transport.is_client)
        self.send(m.Goaway(uri, timeout))
        self._goaway_sent = True
        if timeout:
            self.session.call_after_tick(timeout / 1000, self._goaway_overdue)

    def message(self, kind: int, body: bytes) -> None:
        """One whole message of the peer."""
        message = m.decode_message(
            self.session.profile,
            kind,
            body,
            self.scope,
            answers_update=self.state is not Request.PENDING,
        )
        if isinstance(message, m.Goaway):
            self._goaway(message)
            return
        step = self.table.get((self.state, type(message)))
        if step is None:
            raise ProtocolViolation(
                f"{type(message).__name__} on this request stream in state {self.state.name}"
            )
        self.state, method = step
        getattr(self, method)(message)

    def _goaway(self, message: m.Goaway) -> None:
        if self._goaway_seen:
            raise ProtocolViolation("second GOAWAY on a request stream")
        self._goaway_seen = True
        check_goaway(message.uri, from_client=not self.session.transport.is_client)
        if self.on_move is not None:
            self.on_move(message.uri, message.timeout)

    def _goaway_overdue(self) -> None:
        if self.state is not Request.CLOSED:
            self.moved()

    def _end_sending(self, code: int) -> None:
        if self._sending:
            self._sending = False
            self.session.transport.reset(self.stream, code)

    def _settle(self) -> None:
        if self.state is Request.CLOSED and not self._sending and not self._receiving:
            self.session.forget(self.stream)


class OutgoingRequest(RequestStream):
    """A request of ours: opened by its first message."""

    def __init__(self, session: Context, opening: Callable[[int], Message]) -> None:
        octets = m.encode_message(opening(session.ids.upcoming), session.profile)
        super().__init__(session, session.open_request())
        self.request_id = session.ids.allocate()
        self._grace: Timer | None = None
        session.adopt(self.stream, self)
        session.transport.write(self.stream, octets)

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets of the peer's direction; an answer that overtook SETUP is held."""
        if self.session.established:
            super().data(view, fin)
        elif not self.session.hold(self.stream, view, fin):
            self.fail(
                RequestFailed(RequestCode.EXCESSIVE_LOAD, "the answer came before SETUP"),
                StreamCode.EXCESSIVE_LOAD,
            )

    def stop(self, code: int) -> None:
        """The peer reads no more. Its answer or its reset may be right behind: wait for that."""
        self._end_sending(code)
        if not self._receiving:
            self.peer_aborted(code)
        elif self.stop_ends and self._grace is None:
            delay = self.session.config.stop_grace
            self._grace = self.session.call_later(delay, lambda: self.peer_aborted(code))

    @property
    def stop_ends(self) -> bool:
        """True when the peer's STOP_SENDING, left alone, would leave the request waiting."""
        return self.state in _LIVE

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Give up the request; nothing is reported to its receiver after this."""
        if self.state is not Request.CLOSED:
            self.abandon(code)

    def fail(self, error: MoqtError, code: int = StreamCode.CANCELLED) -> None:
        """Cancel for a reason that the application must hear."""
        if self.state is not Request.CLOSED:
            self.abandon(code)
            self.failed(error, code)

    def failure(self, message: m.RequestError) -> RequestFailed:
        """REQUEST_ERROR as the exception an application sees (draft-22 §9.4, §13)."""
        redirect = message.redirect
        if redirect is not None and redirect.uri and not self.session.transport.is_client:
            raise ProtocolViolation("a redirect of a client names a URI")
        retry = message.retry_interval - 1 if message.retry_interval else None
        if message.code in RequestCode._value2member_map_:
            return RequestFailed(message.code, message.reason, retry)
        reason = f"{message.reason} (code {message.code:#x})".lstrip()
        return RequestFailed(RequestCode.INTERNAL_ERROR, reason, retry)

    def on_error(self, message: m.RequestError) -> None:
        """REQUEST_ERROR to the request itself: both sides are through with it."""
        self.failed(self.failure(message), StreamCode.CANCELLED)
        self.finish()

    def peer_finished(self) -> None:
        """FIN before the answer means failure (draft-22 §6.4.2.2)."""
        if self.state is Request.PENDING:
            self.unfinished("the peer finished the stream without an answer")
        elif self.state is not Request.ESTABLISHED:
            self.finish()

    def unfinished(self, why: str) -> None:
        """FIN came before a message that was due."""
        self.state = Request.CLOSED
        self.failed(RequestFailed(RequestCode.INTERNAL_ERROR, why), StreamCode.CANCELLED)
        self.finish()

    def peer_aborted(self, code: int) -> None:
        """The peer refused or ended the request with a stream error."""
        if self.state in _LIVE:
            self.fail(
                RequestFailed(
                    RequestCode.INTERNAL_ERROR, f"the peer ended the request with code {code:#x}"
                )
            )
        else:
            self.finish()

    def session_closed(self, error: SessionClosed) -> None:
        """Report the lost session."""
        self.failed(error, -1)

    def moved(self) -> None:
        """The peer did not move it in time."""
        self.fail(RequestFailed(RequestCode.GOING_AWAY, "not moved in time"), StreamCode.GOING_AWAY)

    def failed(self, error: MoqtError, code: int) -> None:
        """Over without success: release what belongs to it with ``code``, report."""
        raise NotImplementedError

    def _settle(self) -> None:
        super()._settle()
        if self._grace is not None and self.state is Request.CLOSED:
            self._grace.cancel()
            self._grace = None


class TrackRequest(OutgoingRequest):
    """A request of ours that brings objects: SUBSCRIBE or FETCH."""

    def __init__(
        self,
        session: Context,
        name: FullTrackName,
        receiver: TrackReceiver,
        opening: Callable[[int], Message],
    ) -> None:
        super().__init__(session, opening)
        self.name = name
        self.receiver = receiver

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
        """The track broke the data model: cancel, report, leave the session alone (§12.1)."""
        self.fail(fault, StreamCode.MALFORMED_TRACK)

    def read_properties(self, raw: bytes) -> TrackProperties | None:
        """Track Properties of the answer; None when they ended the request (draft-22 §3.7)."""
        try:
            properties = TrackProperties.decode(raw)
        except MalformedTrack as fault:
            self.malformed(fault)
            return None
        if properties.unknown_mandatory:
            self.fail(
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

    def stream_over(self, stream: int, code: int | None) -> None:
        """A data stream ended: FIN when ``code`` is None, else reset."""
        raise NotImplementedError


class IncomingRequest(RequestStream):
    """A request of the peer: waits for ``accept``, which each role has, or ``refuse``."""

    request_id: int
    parameters: Parameters

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        #: Called once when the request is over, whoever ended it, before or after ``accept``.
        self.on_end: Callable[[], None] | None = None
        self._waiting: list[tuple[m.RequestUpdate, RequestRefused | None]] = []
        self._unanswered = 0

    @property
    def active(self) -> bool:
        """True from ``accept`` until the request is over."""
        return self.state in (Request.ESTABLISHED, Request.DRAINING)

    def take_over(self, splitter: MessageSplitter) -> None:
        """Go on with the splitter that found the first message."""
        self._splitter = splitter

    def refuse(self, code: RequestCode, reason: str = "", retry_after: int | None = None) -> None:
        """REQUEST_ERROR and FIN; ``retry_after`` in ms, None: do not repeat (draft-22 §9.4)."""
        if self.state is Request.PENDING:
            self.send_error(RequestRefused(code, reason, retry_after))
            self.close()

    def ask(self, method: Callable[[Self], None]) -> None:
        """Hand the request to the application; a RequestRefused it raises is the answer."""
        try:
            method(self)
        except RequestRefused as refused:
            self.refuse(refused.code, refused.reason, refused.retry_after)

    # -- REQUEST_UPDATE --------------------------------------------------------------------------

    def messages(self, found: Iterable[tuple[int, bytes]], fin: bool) -> None:
        """Updates that arrive together were all unanswered at once (draft-22 §9.1.7)."""
        super().messages(found, fin)
        self._unanswered = len(self._waiting)

    def on_update(self, message: m.RequestUpdate) -> None:
        """Take the id; answer now, or in order after the answer to the request itself."""
        self.session.ids.take(message.request_id)
        limit = self.session.config.max_request_updates
        self._unanswered += 1
        if limit and self._unanswered > limit:
            raise SessionFault(
                SessionCode.TOO_MANY_REQUEST_UPDATES, f"more than {limit} unanswered updates"
            )
        if self.session.transport.unsent(self.stream) > self.session.config.unread_answers:
            raise SessionFault(
                SessionCode.TOO_MANY_REQUEST_UPDATES, "the answers to updates are not taken"
            )
        refusal = check_parameters(message.parameters, self.session.config)
        if self.state is Request.PENDING:
            self._waiting.append((message, refusal))
        elif self.state is not Request.CLOSED:
            self.update(message, refusal)

    def answer_updates(self) -> None:
        """The request is answered: now its updates, in order."""
        waiting, self._waiting = self._waiting, []
        for message, refusal in waiting:
            if self.state is not Request.CLOSED:
                self.update(message, refusal)

    def update(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Apply and answer; by default only authorization could change, which needs no action."""
        if refusal is None:
            self.send(m.RequestOk())
        else:
            self.send_error(refusal)
            self.close()

    def send_error(self, refused: RequestRefused) -> None:
        """REQUEST_ERROR."""
        retry = 0 if refused.retry_after is None else refused.retry_after + 1
        self.send(m.RequestError(refused.code, retry, refused.reason))

    # -- ends ------------------------------------------------------------------------------------

    def close(self) -> None:
        """All has been said: FIN, and the application hears of the end."""
        self.state = Request.CLOSED
        self._waiting.clear()
        self.finish()
        self.ended()

    def peer_aborted(self, code: int) -> None:
        """Cancelled by the requester."""
        self.withdraw(StreamCode.CANCELLED)

    def moved(self) -> None:
        """The peer did not move it in time."""
        self.withdraw(StreamCode.GOING_AWAY)

    def withdraw(self, code: int) -> None:
        """Nobody wants it any more: release what was held for it, leave the stream."""
        self.abandon(code)
        self.withdrawn()

    def session_closed(self, error: SessionClosed) -> None:
        """The requester is gone."""
        self.withdrawn()

    def withdrawn(self) -> None:
        """Cancelled, or the session is gone: release what was held for the request."""
        self.ended()

    def ended(self) -> None:
        """Tell the application, once."""
        self._waiting.clear()
        callback, self.on_end = self.on_end, None
        if callback is not None:
            callback()
