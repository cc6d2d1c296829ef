"""What the event loop side of KVCS waits with: a bell, and a thread for long computations."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

#: Hashing or parsing this much takes under a millisecond: a thread would cost more.
INLINE_OCTETS: Final = 256 << 10


class Bell:
    """Wakes everyone who waits. Check what you wait for, then ``wait``: no ring is lost between."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Something has changed."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _settle(waiter)

    async def wait(self, seconds: float) -> None:
        """Return at the next ring, or after ``seconds``."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(max(seconds, 0.0), _settle, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def off_loop(octets: int, call: Callable[[], _T]) -> _T:
    """The result of ``call``, from a thread when it works on many octets."""
    if octets <= INLINE_OCTETS:
        return call()
    return await asyncio.get_running_loop().run_in_executor(None, call)
