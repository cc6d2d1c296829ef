"""TRACK_STATUS at both ends: one question, one answer, nothing kept (draft-22 §9.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.params import Parameters, Scope
from moqt.session.answering import IncomingRequest
from moqt.session.requests import OutgoingRequest
from moqt.session.state import STATUS_ANSWERER, STATUS_ASKER, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import MoqtError
    from moqt.model import FullTrackName, TrackSource
    from moqt.session.context import Context
    from moqt.session.state import Table


class IncomingTrackStatus(IncomingRequest):
    """TRACK_STATUS of the peer: what a SUBSCRIBE_OK would say."""

    table: ClassVar[Table] = STATUS_ANSWERER
    scope: ClassVar[Scope | None] = Scope.TRACK_STATUS
    name: FullTrackName

    def start(self, message: m.TrackStatus) -> None:
        """Take the request in and ask the application."""
        self.request_id = message.request_id
        self.name = message.name
        self.parameters = message.parameters
        self.ask(self.session.handler.on_track_status)

    def accept(self, source: TrackSource) -> None:
        """Answer from ``source``."""
        if self.state is Request.PENDING:
            properties = b"" if self.parameters.include_properties is False else source.properties
            self.send(m.RequestOk(Parameters(largest_object=source.largest), properties))
            self.close()


class OutgoingTrackStatus(OutgoingRequest):
    """TRACK_STATUS of ours; ``answer`` gets the REQUEST_OK or the error."""

    table: ClassVar[Table] = STATUS_ASKER
    scope: ClassVar[Scope | None] = Scope.TRACK_STATUS

    def __init__(
        self,
        session: Context,
        name: FullTrackName,
        parameters: Parameters,
        answer: Callable[[m.RequestOk | MoqtError], None],
    ) -> None:
        super().__init__(session, lambda request_id: m.TrackStatus(request_id, name, parameters))
        self._answer = answer
        self.finish()

    def on_ok(self, message: m.RequestOk) -> None:
        """TRACK_STATUS_OK."""
        self._answer(message)

    def failed(self, error: MoqtError, code: int) -> None:
        """Refused, or no answer came."""
        self._answer(error)
