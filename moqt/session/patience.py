"""How long a peer may leave something half said (draft-22 §12.2: the timeouts of a session)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.errors import SessionCode, SessionFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import Context
    from moqt.session.timers import Timer


class Patience:
    """One limit on one stream: runs while something is unfinished, however it trickles in."""

    __slots__ = ("_context", "_over", "_timer")

    def __init__(self, context: Context, over: Callable[[], None] | None = None) -> None:
        self._context = context
        self._over = over or stalled
        self._timer: Timer | None = None

    def watch(self, unfinished: bool) -> None:
        """Begin when something is unfinished, unless begun; end when it is not."""
        if not unfinished:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self._context.call_later(self._context.config.stall_timeout, self._over)


def stalled() -> None:
    """A control message was begun and not finished."""
    raise SessionFault(SessionCode.CONTROL_MESSAGE_TIMEOUT, "a control message stays unfinished")
