"""What is due when: a heap of planned calls that pins nothing once a call is cancelled."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Cancelled entries the heap may hold before it is rebuilt.
_SLACK: Final = 64


class Timer:
    """One planned call; ``cancel`` lets go of everything it holds at once."""

    __slots__ = ("_delay", "_timers", "callback", "due")

    def __init__(self, timers: Timers, callback: Callable[[], None], delay: float | None) -> None:
        self._timers = timers
        self._delay = delay
        #: When it runs; None while its delay has not begun.
        self.due: float | None = None
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """It will not run; harmless when it has run."""
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled()

    @property
    def postponed(self) -> bool:
        """True while its delay waits for a tick to begin."""
        return self._delay is not None

    def begin(self) -> float:
        """The delay, which begins now."""
        delay, self._delay = self._delay, None
        return delay or 0.0


class Timers:
    """Planned calls of one session, on the clock of its owner (seconds)."""

    def __init__(self) -> None:
        #: Told when the earliest deadline has changed.
        self.on_change: Callable[[], None] | None = None
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._dead = 0

    def __len__(self) -> int:
        """Calls still planned."""
        return len(self._heap) - self._dead

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at the first tick not before ``when``."""
        timer = Timer(self, callback, None)
        self._push(when, timer)
        return timer

    def call_after_tick(self, now: float, delay: float, callback: Callable[[], None]) -> Timer:
        """The same for calls from outside an event, when ``now`` is that of the last event.

        The delay begins with the next tick, which is due at once.
        """
        timer = Timer(self, callback, delay)
        self._push(now, timer)
        return timer

    def next_deadline(self) -> float | None:
        """When the next tick is due; None for never."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Run what is due at ``now``."""
        while (due := self.next_deadline()) is not None and due <= now:
            _, _, timer = heapq.heappop(self._heap)
            if timer.postponed:
                self._push(now + timer.begin(), timer)
                continue
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def cancelled(self) -> None:
        """One more entry of the heap is dead."""
        self._dead += 1
        if self._dead > _SLACK + len(self):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def clear(self) -> None:
        """Forget all; what is cancelled afterwards is no longer here."""
        for _, _, timer in self._heap:
            timer.callback = None
        self._heap.clear()
        self._dead = 0

    def _push(self, when: float, timer: Timer) -> None:
        self._count += 1
        timer.due = None if timer.postponed else when
        heapq.heappush(self._heap, (when, self._count, timer))
        if self.on_change is not None and self._heap[0][2] is timer:
            self.on_change()
