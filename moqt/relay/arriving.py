"""An object on its way in: its octets are passed on before it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import ObjectHead
    from transport.api import BytesLike


class Arriving:
    """The octets of one object so far. ``follows``: the object before it on its stream.

    ``follows`` is -1 at the start of a subgroup and None when that is not known.
    """

    __slots__ = (
        *("born", "broken", "cached", "follows", "head", "kept", "octets"),
        *("place", "views", "wakes", "whole"),
    )

    def __init__(
        self,
        head: ObjectHead,
        place: int,
        born: float,
        follows: int | None,
        *,
        kept: bool = True,
        cached: bool = True,
    ) -> None:
        self.head = head
        self.place = place
        self.born = born
        self.follows = follows
        self.views: list[BytesLike] = []
        self.octets = 0
        #: Its octets stay here until it is whole; else they only pass through.
        self.kept = kept
        #: False for one too large for the cache.
        self.cached = cached
        self.whole = False
        self.broken = False
        #: Readers that wait for more of it.
        self.wakes: set[Callable[[], None]] = set()

    def add(self, view: BytesLike) -> None:
        """The next octets."""
        if self.kept:
            self.views.append(view)
        self.octets += len(view)
        if self.wakes:
            self._wake()

    def end(self) -> None:
        """It is whole."""
        self.whole = True
        self._wake()

    def fail(self) -> None:
        """The rest will not come this way."""
        self.broken = True
        self._wake()

    def rest(self, payload: tuple[BytesLike, ...]) -> tuple[BytesLike, ...]:
        """What is missing here of the whole ``payload``."""
        return beyond(payload, self.octets)

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
