"""What waits for a word of an upstream, and what it hears when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from moqt.errors import MalformedTrack, RequestCode, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import MoqtError
    from moqt.session.fetches import IncomingFetch
    from moqt.session.publications import IncomingSubscribe
    from moqt.session.status import IncomingTrackStatus

    Asked: TypeAlias = IncomingSubscribe | IncomingFetch | IncomingTrackStatus


class _Question(NamedTuple):
    request: Asked
    answer: Callable[[], None]


class Questions:
    """Requests that wait to hear how far a track has come: all but live SUBSCRIBEs.

    ``on_withdrawn`` is called when one has ended before its answer.
    """

    def __init__(self, on_withdrawn: Callable[[], None]) -> None:
        self._on_withdrawn = on_withdrawn
        self._open: list[_Question] = []

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: Asked, answer: Callable[[], None]) -> None:
        """``answer`` is called once an upstream has said it."""
        question = _Question(request, answer)
        self._open.append(question)
        request.on_end = lambda: self._withdrawn(question)

    def answer(self) -> None:
        """It is known now."""
        for question in self._taken():
            question.answer()

    def refuse(self, error: MoqtError) -> None:
        """Nobody will say it."""
        for question in self._taken():
            refuse(question.request, error)

    def _taken(self) -> list[_Question]:
        taken, self._open = self._open, []
        for question in taken:
            question.request.on_end = None
        return taken

    def _withdrawn(self, question: _Question) -> None:
        if question in self._open:
            self._open.remove(question)
            self._on_withdrawn()


def refuse(request: Asked, error: MoqtError) -> None:
    """Answer with what upstream said."""
    if isinstance(error, RequestFailed) and error.code in RequestCode._value2member_map_:
        code = RequestCode(error.code)
        request.refuse(code, error.reason, error.retry_after, error.redirect)
    elif isinstance(error, MalformedTrack):
        request.refuse(RequestCode.MALFORMED_TRACK, "malformed upstream")
    else:
        request.refuse(RequestCode.INTERNAL_ERROR, "the publisher is lost")
