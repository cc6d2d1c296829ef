"""Who waits for which place of a track."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from moqt.relay.spans import MAX_PLACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.relay.arriving import Arriving
    from moqt.relay.reading import Reader


class Waits:
    """Readers by the place they cannot go on without, found by place and by range of places.

    ``on_free`` hears a place that nobody waits for any more.
    """

    def __init__(self, on_free: Callable[[int], None]) -> None:
        self._on_free = on_free
        self._readers: dict[int, set[Reader]] = {}
        self._places: list[int] = []  # the same, in order

    def __contains__(self, at: int) -> bool:
        return at in self._readers

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, at: int, reader: Reader) -> None:
        """``reader`` waits for this place."""
        waiting = self._readers.get(at)
        if waiting is None:
            waiting = self._readers[at] = set()
            insort(self._places, at)
        waiting.add(reader)

    def discard(self, at: int, reader: Reader) -> None:
        """It goes on, or has given up."""
        waiting = self._readers.get(at)
        if waiting is None:
            return
        waiting.discard(reader)
        if not waiting:
            del self._readers[at]
            del self._places[bisect_left(self._places, at)]
            self._on_free(at)

    def stir(self, first: int = 0, last: int = MAX_PLACE, absent: int = -1) -> None:
        """Something has changed for a range of places: nothing exists there up to ``absent``."""
        places = self._places
        for at in places[bisect_left(places, first) : bisect_right(places, last)]:
            self.stir_at(at, absent=absent)

    def stir_at(self, at: int, arriving: Arriving | None = None, absent: int = -1) -> None:
        """Something has changed for one place; its object ``arriving`` has begun."""
        for reader in tuple(self._readers.get(at, ())):
            reader.stirred(arriving, absent)
