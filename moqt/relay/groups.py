"""The objects that a relay has of one group of a track."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.model import StoredObject


class Group:
    """Objects by ID; one whose payload is on disk has none here. ``end``: of an End of Group.

    ``mixed``: IDs by subgroup, once there are several.
    """

    __slots__ = ("born", "end", "ids", "mixed", "objects")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.objects: dict[int, StoredObject] = {}
        self.born: dict[int, float] = {}
        self.end: int | None = None
        self.mixed: dict[int | None, list[int]] | None = None

    def add(self, stored: StoredObject, born: float) -> None:
        """An object whose ID is new."""
        found, subgroup = stored.head.object, stored.head.subgroup
        if self.mixed is None and self.ids:
            only = self.objects[self.ids[0]].head.subgroup
            if subgroup != only:
                self.mixed = {only: self.ids.copy()}
        _into(self.ids, found)
        if self.mixed is not None:
            _into(self.mixed.setdefault(subgroup, []), found)
        self.objects[found] = stored
        self.born[found] = born

    def remove(self, found: int) -> StoredObject:
        """One that is there."""
        stored = self.objects.pop(found)
        del self.born[found]
        del self.ids[bisect_left(self.ids, found)]
        if self.mixed is not None:
            ids = self.mixed[stored.head.subgroup]
            del ids[bisect_left(ids, found)]
        return stored

    def of(self, subgroup: int | None) -> Sequence[int]:
        """IDs of the objects of a subgroup."""
        if self.mixed is not None:
            return self.mixed.get(subgroup, ())
        here = self.ids and self.objects[self.ids[0]].head.subgroup == subgroup
        return self.ids if here else ()


def _into(ids: list[int], found: int) -> None:
    if not ids or found > ids[-1]:
        ids.append(found)
    else:
        insort(ids, found)
