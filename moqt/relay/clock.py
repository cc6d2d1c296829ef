"""The clock of a relay: an asyncio event loop is one, and so is the virtual one of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Planned(Protocol):
    """A call that will run."""

    def cancel(self) -> None:
        """It will not run; harmless when it has run."""
        ...


class Clock(Protocol):
    """Seconds that never go back, and calls planned on them."""

    def time(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Planned:
        """Run ``callback`` once, ``delay`` seconds from now."""
        ...
