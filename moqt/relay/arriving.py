"""An object on its way in: its octets are passed on before it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import ObjectHead
    from transport.api import BytesLike


class Unfinished:
    """Octets kept of objects that are not whole, all tracks together.

    Beyond ``limit`` those begun first are let go: who never finishes keeps nobody else out.
    """

    __slots__ = ("_kept", "limit", "octets")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.octets = 0
        self._kept: dict[Arriving, int] = {}

    def add(self, arriving: Arriving, octets: int) -> None:
        """More of it is kept."""
        self._kept[arriving] = self._kept.get(arriving, 0) + octets
        self.octets += octets
        while self.octets > self.limit:
            next(iter(self._kept)).let_go()

    def remove(self, arriving: Arriving) -> None:
        """It is whole, broken or let go."""
        self.octets -= self._kept.pop(arriving, 0)


class Arriving:
    """The octets of one object so far. ``follows``: the object before it on its stream.

    ``follows`` is -1 at the start of a subgroup and None when that is not known.
    """

    __slots__ = (
        *("born", "broken", "cached", "follows", "head", "kept", "octets"),
        *("place", "unfinished", "views", "wakes", "whole"),
    )

    def __init__(
        self,
        head: ObjectHead,
        place: int,
        born: float,
        follows: int | None,
        unfinished: Unfinished,
        *,
        kept: bool = True,
        cached: bool = True,
    ) -> None:
        self.head = head
        self.place = place
        self.born = born
        self.follows = follows
        self.unfinished = unfinished
        self.views: list[BytesLike] = []
        self.octets = 0
        #: Its octets stay here until it is whole; else they only pass through.
        self.kept = kept
        #: False for one too large for the cache, or let go.
        self.cached = cached
        self.whole = False
        self.broken = False
        #: Readers that wait for more of it.
        self.wakes: set[Callable[[], None]] = set()

    def add(self, view: BytesLike) -> None:
        """The next octets."""
        self.octets += len(view)
        if self.kept:
            self.views.append(view)
            self.unfinished.add(self, len(view))
        if self.wakes:
            self._wake()

    def end(self) -> None:
        """It is whole."""
        self.unfinished.remove(self)
        self.whole = True
        self._wake()

    def fail(self) -> None:
        """The rest will not come this way."""
        self.unfinished.remove(self)
        self.broken = True
        self._wake()

    def let_go(self) -> None:
        """There is no room for it: the rest only passes through."""
        self.unfinished.remove(self)
        self.kept = self.cached = False
        self.views.clear()
        self._wake()

    def serves(self, sent: int) -> bool:
        """True when everything of it after ``sent`` octets is here or still to come."""
        return self.kept or self.octets <= sent

    def _wake(self) -> None:
        wakes, self.wakes = self.wakes, set()
        for wake in wakes:
            wake()


def beyond(payload: tuple[BytesLike, ...], octets: int) -> tuple[BytesLike, ...]:
    """``payload`` without its first ``octets`` octets."""
    found: list[BytesLike] = []
    for view in payload:
        if octets >= len(view):
            octets -= len(view)
        elif octets:
            found.append(memoryview(view)[octets:])
            octets = 0
        else:
            found.append(view)
    return tuple(found)
