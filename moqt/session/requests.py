"""Request streams: what all seven requests have in common (draft-22 §6.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.counters import code_name
from moqt.errors import (
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestFailed,
    RequestRefused,
    SessionClosed,
    StreamCode,
)
from moqt.session.checks import check_goaway, check_own_goaway, check_own_redirect, check_redirect
from moqt.session.patience import Patience
from moqt.session.state import Request, Table
from moqt.session.tokens import ANSWERS, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.codec.fields import Token
    from moqt.codec.messages import Message
    from moqt.codec.params import Scope
    from moqt.errors import MoqtError
    from moqt.session.context import Context
    from moqt.session.timers import Timer
    from transport.api import BytesLike

#: What may open a request stream.
Opening: TypeAlias = (
    m.Subscribe
    | m.Fetch
    | m.TrackStatus
    | m.PublishNamespace
    | m.SubscribeNamespace
    | m.Publish
    | m.SubscribeTracks
)

_LIVE: Final = (Request.PENDING, Request.ESTABLISHED)


class RequestStream:
    """One bidirectional stream and the request it carries; subclasses are the roles.

    A subclass names its transition ``table`` and has the methods that the table names. FIN, reset
    and session end arrive in ``peer_finished``, ``peer_aborted`` and ``session_closed``. The stream
    is known to the session until the request is closed and both directions are over.
    """

    table: ClassVar[Table]
    scope: ClassVar[Scope | None] = None
    request_id: int

    def __init__(self, session: Context, stream: int) -> None:
        self.session = session
        self.stream = stream
        self.state = Request.PENDING
        #: Called when the peer's GOAWAY on this stream asks to move the request: URI, ms or 0.
        self.on_move: Callable[[str, int], None] | None = None
        #: Of a request of the peer, or a track of ours offered to it: called once when it is over,
        #: whoever ended it, before or after it was accepted.
        self.on_end: Callable[[], None] | None = None
        self._endings: list[Callable[[], None]] = []
        self._splitter: MessageSplitter | None = MessageSplitter(session.profile)
        self._sending = True
        self._receiving = True
        self._patience = Patience(session)
        self._goaway_sent = False
        self._goaway_seen = False
        # Tokens in each message of ours that the peer has yet to answer, in order.
        self._questions: list[tuple[Token, ...]] = []

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
        elif self._splitter is not None:
            self._patience.watch(self._splitter.pending > 0)

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

    def failed(self, error: MoqtError, code: int) -> None:
        """Over without success: release what belongs to it with ``code``, report."""
        raise NotImplementedError

    @property
    def active(self) -> bool:
        """True from acceptance until the request is over."""
        return self.state in (Request.ESTABLISHED, Request.DRAINING)

    # -- ours ------------------------------------------------------------------------------------

    def send(self, message: Message, *, fin: bool = False) -> None:
        """Queue a message; ignored once our direction is over. Misuse when it breaks a limit."""
        octets = m.encode_message(message, self.session.profile)
        asks = isinstance(message, m.RequestUpdate)
        if asks:
            self.session.own_tokens.check(tokens_of(message), self.stream)
        if self._sending:
            self.session.transport.write(self.stream, octets)
            self.session.counters.sent.message(message)
            if asks:
                self._note_question(message)
        if fin:
            self.finish()

    def _note_question(self, message: Message) -> None:
        """A message of ours is out that the peer must answer."""
        tokens = tokens_of(message)
        self._questions.append(tokens)
        self.session.own_tokens.sent(tokens, self.stream)

    def finish(self) -> None:
        """FIN our direction."""
        if self._sending:
            self._sending = False
            self.session.transport.finish(self.stream)
        self._settle()

    def _send_error(self, refused: RequestRefused) -> None:
        """REQUEST_ERROR (draft-22 §9.4)."""
        client = self.session.transport.is_client
        check_own_redirect(refused, self.scope, is_client=client)
        retry = 0 if refused.retry_after is None else refused.retry_after + 1
        self.send(m.RequestError(refused.code, retry, refused.reason, refused.redirect))

    def close(self) -> None:
        """All has been said: FIN, and the application hears of the end."""
        self.state = Request.CLOSED
        self.finish()
        self.ended()

    def ended(self) -> None:
        """Tell the application, once."""
        callback, self.on_end = self.on_end, None
        if callback is not None:
            self._endings.insert(0, callback)
        while self._endings:
            self._endings.pop(0)()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back when ``on_end`` is called, after it: for whoever counts requests."""
        self._endings.append(callback)

    def _fail(self, error: MoqtError, code: int = StreamCode.CANCELLED) -> None:
        """Cancel for a reason that the application must hear."""
        if self.state is not Request.CLOSED:
            self.abandon(code)
            self.failed(error, code)

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
        client = self.session.transport.is_client
        check_own_goaway(uri, self.session.config, is_client=client)
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
        self.session.counters.received.message(message)
        if isinstance(message, m.Goaway):
            self._goaway(message)
            return
        step = self.table.get((self.state, type(message)))
        if step is None:
            raise ProtocolViolation(
                f"{type(message).__name__} on this request stream in state {self.state.name}"
            )
        if self._questions and isinstance(message, ANSWERS):
            self._heard()
        self.state, method = step
        getattr(self, method)(message)

    def _heard(self) -> None:
        """The oldest question is answered."""
        self.session.own_tokens.answered(self._questions.pop(0))

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
        if self.state is not Request.CLOSED:
            return
        self._patience.watch(False)
        while self._questions:
            self.session.own_tokens.lost(self._questions.pop())
        if not self._sending and not self._receiving:
            self.session.forget(self.stream)


class OutgoingRequest(RequestStream):
    """A request of ours: opened by its first message."""

    def __init__(self, session: Context, opening: Callable[[int], Opening]) -> None:
        message = opening(session.ids.upcoming)
        octets = m.encode_message(message, session.profile)
        session.own_tokens.check(tokens_of(message), None)
        super().__init__(session, session.open_request())
        self.request_id = session.ids.allocate()
        self._grace: Timer | None = None
        self._overdue: Timer | None = None
        limit = session.config.request_timeout
        if limit:
            limit += (message.parameters.rendezvous_timeout or 0) / 1000
            self._overdue = session.call_after_tick(limit, self._unanswered)
        session.adopt(self.stream, self)
        session.transport.write(self.stream, octets)
        session.counters.sent.message(message)
        self._note_question(message)

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets of the peer's direction; an answer that overtook SETUP is held."""
        if self.session.established:
            super().data(view, fin)
        elif not self.session.hold(self.stream, view, fin):
            self._fail(
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

    def _heard(self) -> None:
        """The first answer ends the waiting for it."""
        super()._heard()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    @property
    def stop_ends(self) -> bool:
        """True when the peer's STOP_SENDING, left alone, would leave the request waiting."""
        return self.state in _LIVE

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Give up the request; nothing is reported to its receiver after this."""
        if self.state is not Request.CLOSED:
            self.abandon(code)

    def failure(self, message: m.RequestError) -> RequestFailed:
        """REQUEST_ERROR as the exception an application sees (draft-22 §9.4, §13)."""
        check_redirect(message.redirect, from_client=not self.session.transport.is_client)
        retry = message.retry_interval - 1 if message.retry_interval else None
        if message.code in RequestCode._value2member_map_:
            code, reason = message.code, message.reason
            return RequestFailed(code, reason, retry, message.redirect, refused=True)
        reason = f"{message.reason} (code {message.code:#x})".lstrip()
        return RequestFailed(RequestCode.INTERNAL_ERROR, reason, retry, refused=True)

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
            expired = code == StreamCode.EXPIRED_AUTH_TOKEN  # no other says what to do about it
            found = RequestCode.EXPIRED_AUTH_TOKEN if expired else RequestCode.INTERNAL_ERROR
            why = f"the peer ended the request with {code_name(code)}"
            self._fail(RequestFailed(found, why))
        else:
            self.finish()

    def session_closed(self, error: SessionClosed) -> None:
        """Report the lost session."""
        self.failed(error, -1)

    def moved(self) -> None:
        """The peer did not move it in time."""
        late = RequestFailed(RequestCode.GOING_AWAY, "not moved in time")
        self._fail(late, StreamCode.GOING_AWAY)

    def _settle(self) -> None:
        super()._settle()
        if self.state is not Request.CLOSED:
            return
        for timer in (self._grace, self._overdue):
            if timer is not None:
                timer.cancel()
        self._grace = self._overdue = None

    def _unanswered(self) -> None:
        """The peer has had its time (draft-22 §12.3)."""
        self._fail(RequestFailed(RequestCode.TIMEOUT, "the peer does not answer"))
