"""Requests of the peer: what all of them have in common (draft-22 §6.4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from moqt.codec import messages as m
from moqt.errors import RequestCode, RequestRefused, StreamCode
from moqt.session.requests import RequestStream
from moqt.session.state import Request
from moqt.session.updates import PeerUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.codec.control import MessageSplitter
    from moqt.codec.params import Parameters
    from moqt.errors import SessionClosed
    from moqt.model import Redirect
    from moqt.session.context import Context
    from moqt.session.requests import Opening
    from moqt.session.tokens import Claim


class IncomingRequest(RequestStream):
    """A request of the peer: waits for ``accept``, which each role has, or ``refuse``."""

    parameters: Parameters

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self._waiting: list[tuple[m.RequestUpdate, RequestRefused | None]] = []
        self._updates = PeerUpdates(session)

    def take_over(self, splitter: MessageSplitter, claim: Claim) -> None:
        """Go on with the splitter that found the first message, which asked for ``claim``."""
        self._splitter = splitter
        self._updates.claim = claim

    @property
    def claim(self) -> Claim | None:
        """What the peer asked for, with the tokens in force, by value: those of updates, too."""
        return self._updates.claim

    def when_claimed(self, callback: Callable[[], None]) -> None:
        """Call back when an update has brought other tokens."""
        self._updates.on_claim = callback

    def take_in(self, message: Opening) -> None:
        """What every request says of itself."""
        self.request_id = message.request_id
        self.parameters = message.parameters

    def refuse(
        self,
        code: RequestCode,
        reason: str = "",
        retry_after: int | None = None,
        redirect: Redirect | None = None,
    ) -> None:
        """REQUEST_ERROR and FIN; ``retry_after`` in ms, None: do not repeat (draft-22 §9.4)."""
        if self.state is Request.PENDING:
            self._send_error(RequestRefused(code, reason, retry_after, redirect))
            self.close()

    def ask(self, method: Callable[[Self], None]) -> None:
        """Hand the request to the application; a RequestRefused it raises is the answer."""
        try:
            method(self)
        except RequestRefused as refused:
            self.refuse(refused.code, refused.reason, refused.retry_after, refused.redirect)

    # -- REQUEST_UPDATE --------------------------------------------------------------------------

    def messages(self, found: Iterable[tuple[int, bytes]], fin: bool) -> None:
        """Updates that arrive together were all unanswered at once (draft-22 §9.1.7)."""
        super().messages(found, fin)
        self._updates.waiting = len(self._waiting)

    def on_update(self, message: m.RequestUpdate) -> None:
        """Take the id; answer now, or in order after the answer to the request itself."""
        refusal = self._updates.take(message, self.stream)
        if self.state is Request.PENDING:
            self._waiting.append((message, refusal))
        elif self.state is not Request.CLOSED:
            self.updated(message, refusal)

    def answer_updates(self) -> None:
        """The request is answered: now its updates, in order."""
        waiting, self._waiting = self._waiting, []
        for message, refusal in waiting:
            if self.state is not Request.CLOSED:
                self.updated(message, refusal)

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Apply and answer; by default only authorization could change, which needs no action."""
        if refusal is None:
            self.send(m.RequestOk())
        else:
            self._send_error(refusal)
            self.close()

    # -- ends ------------------------------------------------------------------------------------

    def revoke(self, code: int) -> None:
        """It is no longer granted: end it, whatever it has come to (draft-22 §8.9)."""
        if self.state is Request.PENDING:
            self.refuse(RequestCode.UNAUTHORIZED)
        elif self.state is not Request.CLOSED:
            self.withdraw(code)

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
        super().ended()
