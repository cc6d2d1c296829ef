"""Standing requests of ours show the tokens that are good now (draft-22 §8.9, §9.20.16)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from moqt.codec.params import NO_PARAMETERS
from moqt.errors import Misuse
from moqt.session.publishing import OutgoingPublish
from moqt.session.state import Request
from moqt.session.subscriptions import SubscriberHalf
from moqt.session.updatable import UpdatableRequest

if TYPE_CHECKING:
    from moqt.codec.fields import Token
    from moqt.session.context import Context

#: Seconds between two looks at what we show: a token should be replaced that long before it ends.
LOOK: Final = 5.0


class Renewal:
    """Looks now and then at what ``SessionConfig.request_tokens`` gives.

    When that has changed, every request of ours that stands is updated, and the update shows it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._shown = self._now()
        #: Requests that have not shown what is good now.
        self._behind: set[UpdatableRequest | SubscriberHalf | OutgoingPublish] = set()
        context.call_later(LOOK, self._look)

    def _now(self) -> tuple[Token, ...]:
        show = self._context.config.request_tokens
        return () if show is None else tuple(show())

    def _look(self) -> None:
        shown, owners = self._now(), set(self._context.owners.values())
        if shown != self._shown:
            self._shown = shown
            self._behind = {
                owner
                for owner in owners
                if isinstance(owner, UpdatableRequest | SubscriberHalf | OutgoingPublish)
            }
        self._behind &= owners
        for owner in tuple(self._behind):
            if owner.state is Request.ESTABLISHED:  # what is unanswered, at a later look
                with suppress(Misuse):  # the peer owes it answers: at a later look
                    owner.update(NO_PARAMETERS)
                    self._behind.discard(owner)
        self._context.call_later(LOOK, self._look)
