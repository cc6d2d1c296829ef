"""How long what we have granted lives unless it is extended: EXPIRES (draft-22 §9.20.16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import Context
    from moqt.session.timers import Timer


class Lifetime:
    """One grant; ``end`` is called when nobody has extended it in time."""

    __slots__ = ("_end", "_session", "_timer")

    def __init__(self, session: Context, end: Callable[[], None]) -> None:
        self._session = session
        self._end = end
        self._timer: Timer | None = None

    @property
    def offer(self) -> int | None:
        """The value of EXPIRES in ms, None for no end."""
        seconds = self._session.config.lifetime
        return max(round(seconds * 1000), 1) if seconds else None

    def grant(self) -> int | None:
        """Begin anew; the value of EXPIRES."""
        self.cancel()
        if self.offer is not None:
            self._timer = self._session.call_after_tick(self.offer / 1000, self._end)
        return self.offer

    def cancel(self) -> None:
        """The request is over."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
