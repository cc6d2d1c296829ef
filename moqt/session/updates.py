"""REQUEST_UPDATE on one request stream: those of the peer, and ours (draft-22 §9.5)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moqt.codec import messages as m
from moqt.codec.cursor import Writer
from moqt.codec.params import write_parameters
from moqt.errors import (
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    SessionCode,
    SessionFault,
)
from moqt.session.checks import check_own_parameters, check_parameters, check_redirect

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters, Place
    from moqt.session.context import Context
    from moqt.session.filters import RangeFilters
    from moqt.session.requests import RequestStream
    from moqt.session.tokens import Claim


def check_update(parameters: Parameters, place: Place) -> None:
    """Misuse for a parameter that an update of this kind of request must not carry."""
    write_parameters(Writer(), parameters, place)


class PeerUpdates:
    """Counts updates of the peer that were unanswered at once (draft-22 §9.1.7)."""

    __slots__ = ("_session", "claim", "on_claim", "waiting")

    def __init__(self, session: Context) -> None:
        self._session = session
        #: What the request asked for, and the tokens in force, for the judge.
        self.claim: Claim | None = None
        #: Called when other tokens are in force than before.
        self.on_claim: Callable[[], None] | None = None
        #: Unanswered ones; the request sets it down when it has answered what came together.
        self.waiting = 0

    def take(self, message: m.RequestUpdate, stream: int) -> RequestRefused | None:
        """Use up its id; why it cannot be served, if it cannot. SessionFault beyond the limits."""
        session = self._session
        session.ids.take(message.request_id)
        limit = session.config.max_request_updates
        self.waiting += 1
        if limit and self.waiting > limit:
            raise SessionFault(
                SessionCode.TOO_MANY_REQUEST_UPDATES, f"more than {limit} unanswered updates"
            )
        parameters = message.parameters
        refusal = check_parameters(parameters, session.config)
        before = self.claim
        self.claim, refusal = session.peer_tokens.admit_update(
            before, parameters, session.now, refusal
        )
        if self.claim is not before and self.on_claim is not None:
            self.on_claim()
        if session.transport.unsent(stream) > session.config.unread_answers:
            raise SessionFault(
                SessionCode.TOO_MANY_REQUEST_UPDATES, "the answers to updates are not taken"
            )
        if refusal is not None and refusal.code is RequestCode.REDIRECT:
            refusal = RequestRefused(RequestCode.INTERNAL_ERROR)  # no answer to an update (§12.3)
        return refusal


class OwnUpdates:
    """Updates of ours: sent within the peer's limit, answered in order."""

    __slots__ = ("_open", "_request")

    def __init__(self, request: RequestStream) -> None:
        self._request = request
        self._open: deque[m.RequestUpdate] = deque()

    def send(self, parameters: Parameters, filters: RangeFilters | None = None) -> m.RequestUpdate:
        """REQUEST_UPDATE; Misuse where the peer would have to close. ``filters``: then in force."""
        session = self._request.session
        limit = session.peer_options.max_request_updates
        if limit and len(self._open) >= limit:
            raise Misuse(f"the peer takes {limit} unanswered updates a request, all are in use")
        check_own_parameters(parameters, session.peer_options, filters)
        parameters = session.own_tokens.shown(parameters)
        message = m.RequestUpdate(session.ids.upcoming, parameters)
        self._request.send(message)
        session.ids.allocate()
        self._open.append(message)
        return message

    def answered(self, answer: m.RequestOk | m.RequestError) -> m.RequestUpdate:
        """The oldest open update, which ``answer`` is for; a violation when there is none."""
        if not self._open:
            raise ProtocolViolation(f"{type(answer).__name__} without an open REQUEST_UPDATE")
        if isinstance(answer, m.RequestError):
            client = self._request.session.transport.is_client
            check_redirect(answer.redirect, from_client=not client)
        return self._open.popleft()
