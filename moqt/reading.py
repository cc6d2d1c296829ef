"""Readings: a request of ours and what waits for its reader, bounded, as an async iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from moqt.errors import Misuse, MoqtError, StreamCode, TooFarBehind

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

#: Octets that wait for the application, of one subscription or fetch: two seconds at 64 Mbit/s.
BUFFER_OCTETS: Final = 16 << 20
#: What keeping an object, a gap, a namespace or an offer costs us besides its octets.
ITEM_COST: Final = 256


class Inbox(Generic[_T]):
    """What waits for one reader, bounded; what came before the end is read before the end.

    Beyond ``limit`` octets it is over with TooFarBehind, and ``overflow`` is called once.
    """

    __slots__ = ("_items", "_news", "_octets", "_overflow", "error", "limit", "over")

    def __init__(self, limit: int, overflow: Callable[[], None]) -> None:
        if limit < ITEM_COST:
            raise Misuse(f"limit of {limit} octets: give at least {ITEM_COST}")
        self.limit = limit
        #: Nothing more comes in; ``error`` says why, None when all is well.
        self.over = False
        self.error: MoqtError | None = None
        self._items: deque[tuple[_T, int]] = deque()
        self._octets = 0
        self._overflow = overflow
        self._news = asyncio.Event()

    @property
    def octets(self) -> int:
        """Octets kept, whole objects and begun ones."""
        return self._octets

    def reserve(self, octets: int) -> bool:
        """Keep ``octets`` more; False when there is no room, or nothing more is wanted."""
        if self.over:
            return False
        if self._octets + octets > self.limit:
            self.fail(TooFarBehind(f"{self.limit} octets wait to be read already"))
            return False
        self._octets += octets
        return True

    def release(self, octets: int) -> None:
        """They are not kept any more."""
        self._octets -= octets

    def put(self, item: _T, octets: int) -> None:
        """An item for the reader, which ``octets`` were reserved for."""
        if not self.over:
            self._items.append((item, octets))
            self._news.set()

    def fail(self, error: TooFarBehind) -> None:
        """There is no room: it is over."""
        self.end(error)
        self._overflow()

    def end(self, error: MoqtError | None = None) -> None:
        """Nothing more comes; the first end counts."""
        if not self.over:
            self.over = True
            self.error = error
            self._news.set()

    def clear(self) -> list[_T]:
        """Nobody reads any more; what was not read."""
        self.end()
        unread = [item for item, _ in self._items]
        self._octets -= sum(octets for _, octets in self._items)
        self._items.clear()
        return unread

    async def next(self) -> _T:
        """The next item; afterwards StopAsyncIteration, or the error it ended with."""
        while not self._items:
            if self.error is not None:
                raise self.error
            if self.over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        item, octets = self._items.popleft()
        self._octets -= octets
        return item


class Cancellable(Protocol):
    """A request of ours, as far as its reading goes."""

    def cancel(self, code: int = ...) -> None:
        """Give it up."""
        ...


class Reading(Generic[_T]):
    """A request of ours and what it brings, read with ``async for``.

    ``async with`` waits for the peer's answer and cancels at its end. What came before an end is
    read first; then the iteration stops, or raises the error that ended it.
    """

    def __init__(self, limit: int) -> None:
        self._inbox = Inbox[_T](limit, self._fell_behind)
        self._settled = asyncio.Event()
        self._accepted = False
        self._request: Cancellable

    @property
    def buffered(self) -> int:
        """Octets that wait to be read."""
        return self._inbox.octets

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Give it up: nothing more is read from it."""
        self._pass_up(self._inbox.clear())
        self._settled.set()
        self._request.cancel(code)

    def _pass_up(self, unread: list[_T]) -> None:
        """What came and will not be read."""

    def _accept(self) -> None:
        self._accepted = True
        self._settled.set()

    def _end(self, error: MoqtError | None) -> None:
        self._inbox.end(error)
        self._settled.set()

    def _fell_behind(self) -> None:
        self._settled.set()
        self._request.cancel(StreamCode.TOO_FAR_BEHIND)

    async def _answer(self) -> None:
        await self._settled.wait()
        if not self._accepted:
            raise self._inbox.error or Misuse("the request was cancelled before it was answered")

    async def __aenter__(self) -> Self:
        try:
            await self._answer()
        except BaseException:
            self.cancel()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        return await self._inbox.next()
