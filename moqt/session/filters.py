"""Range filters of one request, evaluated per object (draft-22 §3.3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codec.properties import find
from moqt.model import ObjectHead, RangeFilter, RangeFilterType

if TYPE_CHECKING:
    from collections.abc import Iterable


class RangeFilters:
    """Sets are alternatives; inside a set every filter must pass; no filter passes all."""

    __slots__ = ("_all", "_sets")

    def __init__(self, filters: Iterable[RangeFilter] = ()) -> None:
        self._all = tuple(f for f in filters if not f.remove)
        sets: dict[int, list[RangeFilter]] = {}
        for item in self._all:
            sets.setdefault(item.set_id, []).append(item)
        self._sets = tuple(sets.values())

    @property
    def present(self) -> tuple[RangeFilter, ...]:
        """The filters themselves."""
        return self._all

    @property
    def spans(self) -> int:
        """Ranges in all filters together, what MAX_FILTER_RANGES counts."""
        return sum(len(f.spans) for f in self._all)

    def updated(self, changes: tuple[RangeFilter, ...]) -> RangeFilters:
        """After a REQUEST_UPDATE: each type it names is replaced or removed (draft-22 §9.5)."""
        named = {f.type for f in changes}
        return RangeFilters((*(f for f in self._all if f.type not in named), *changes))

    def admit(self, head: ObjectHead) -> bool:
        """True when the object passes."""
        if not self._sets:
            return True
        return any(all(f.admits(_value(f, head)) for f in members) for members in self._sets)


def _value(wanted: RangeFilter, head: ObjectHead) -> int | None:
    if wanted.type is RangeFilterType.OBJECT_ID:
        return head.object
    if wanted.type is RangeFilterType.SUBGROUP:
        return head.subgroup
    if wanted.type is RangeFilterType.PRIORITY:
        return head.priority
    if wanted.type is RangeFilterType.OBJECT_PROPERTY and wanted.property_type is not None:
        found = find(head.properties, wanted.property_type)
        return found if isinstance(found, int) else None
    return None
