"""What lies under a prefix, found without a look at the rest."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from moqt.session.prefixes import under

if TYPE_CHECKING:
    from collections.abc import Hashable

    from moqt.model import TrackNamespace

_V = TypeVar("_V", bound="Hashable")


class ByNamespace(Generic[_V]):
    """Values by their namespace: those under a prefix lie side by side, in order."""

    __slots__ = ("_sorted", "_values")

    def __init__(self) -> None:
        self._values: dict[TrackNamespace, dict[_V, None]] = {}
        self._sorted: list[TrackNamespace] = []

    def __len__(self) -> int:
        """Namespaces with a value."""
        return len(self._sorted)

    def add(self, namespace: TrackNamespace, value: _V) -> None:
        """One more; nothing when it is there."""
        values = self._values.get(namespace)
        if values is None:
            values = self._values[namespace] = {}
            insort(self._sorted, namespace)
        values[value] = None

    def discard(self, namespace: TrackNamespace, value: _V) -> None:
        """One less; nothing when it is not there."""
        values = self._values.get(namespace)
        if values is not None:
            values.pop(value, None)
            if not values:
                del self._values[namespace]
                del self._sorted[bisect_left(self._sorted, namespace)]

    def under(self, prefix: TrackNamespace) -> list[_V]:
        """All values of namespaces that begin with the fields of ``prefix``."""
        found: list[_V] = []
        for namespace in islice(self._sorted, bisect_left(self._sorted, prefix), None):
            if not under(namespace, prefix):
                break
            found += self._values[namespace]
        return found

    def above(self, namespace: TrackNamespace) -> list[_V]:
        """All values of its prefixes, itself included; the shortest first."""
        found: list[_V] = []
        for fields in range(len(namespace) + 1):
            found += self._values.get(namespace[:fields], ())
        return found
