"""Requests that are granted for a time and changed by REQUEST_UPDATE, at both ends (§9.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.params import Parameters, Place
from moqt.errors import Misuse, StreamCode
from moqt.session.answering import IncomingRequest
from moqt.session.lifetimes import Lifetime
from moqt.session.requests import OutgoingRequest
from moqt.session.state import Request
from moqt.session.updates import OwnUpdates, check_update

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import RequestRefused
    from moqt.session.context import Context
    from moqt.session.requests import Opening


class UpdatableRequest(OutgoingRequest):
    """A request of ours that may be updated with what ``place`` allows."""

    place: ClassVar[Place]

    def __init__(self, session: Context, opening: Callable[[int], Opening]) -> None:
        super().__init__(session, opening)
        #: Milliseconds until the peer means to end it, 0 or None for never (draft-22 §9.20.16).
        self.expires: int | None = None
        self._updates = OwnUpdates(self)

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE, without parameters to extend it; Misuse for what may not change."""
        if self.state not in (Request.PENDING, Request.ESTABLISHED):
            raise Misuse("only a request that is in force can be updated")
        check_update(parameters, self.place)
        self._updates.send(parameters)

    def on_update_ok(self, message: m.RequestOk) -> None:
        """The oldest open update is applied."""
        update = self._updates.answered(message)
        if message.parameters.expires is not None:
            self.expires = message.parameters.expires
        self.update_applied(update.parameters)

    def update_applied(self, parameters: Parameters) -> None:
        """What the peer has changed for us."""

    def on_update_error(self, message: m.RequestError) -> None:
        """It failed: with it the request ends (draft-22 §9.5.1)."""
        self._updates.answered(message)
        self._fail(self.failure(message))


class LastingRequest(IncomingRequest):
    """A request of the peer that lives for ``SessionConfig.lifetime`` unless extended."""

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self._lifetime = Lifetime(session, lambda: self.withdraw(StreamCode.CANCELLED))

    def grant(self) -> None:
        """REQUEST_OK, to the request or to an update, with its EXPIRES."""
        self.send(m.RequestOk(Parameters(expires=self._lifetime.grant())))

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Extend it; a failure closes it (draft-22 §9.5.1)."""
        if refusal is None:
            self.grant()
        else:
            super().updated(message, refusal)

    def ended(self) -> None:
        """Nothing expires any more."""
        self._lifetime.cancel()
        super().ended()
