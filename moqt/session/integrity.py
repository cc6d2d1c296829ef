"""What a subscriber remembers of a track to notice that it is malformed (draft-22 §12.1).

All of it is bounded: what is forgotten is no longer checked, and never held against the track.
Payloads of an object that comes twice are compared by the application, which has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codec.properties import PRIOR_GROUP_ID_GAP, PRIOR_OBJECT_ID_GAP, find
from moqt.errors import MalformedTrack
from moqt.model import MAX_VI64, Location, ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import ObjectHead, ObjectSink, SubgroupHead

#: Groups whose shape is remembered, the latest to start: a live track has few at once.
MAX_GROUPS: Final = 64
#: Objects and subgroups remembered in all of them, about 100 octets each.
MAX_ENTRIES: Final = 4096
#: Declared gaps remembered, of a track and of each group.
MAX_GAPS: Final = 64

_NEVER: Final = MAX_VI64 + 1


class _Subgroup:
    """``final`` is the last Object ID before a FIN."""

    __slots__ = ("final", "largest", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.final = _NEVER
        self.largest = -1


class _Group:
    """``final`` is the largest Object ID there can be; ``marks`` say how each object came.

    A mark is the Subgroup ID, or below zero the priority of a datagram object.
    """

    __slots__ = ("final", "gap", "gaps", "kept", "largest", "marks", "number", "subgroups")

    def __init__(self, number: int) -> None:
        self.number = number
        self.kept = True
        self.final = _NEVER
        self.largest = -1
        self.gap: int | None = None
        self.gaps: list[range] = []
        self.marks: dict[int, int] = {}
        self.subgroups: dict[int, _Subgroup] = {}


class TrackIntegrity:
    """One subscription's or fetch's knowledge of its track; methods raise MalformedTrack.

    ``filtered``: FIN then says nothing about the last object, since some may have been left out.
    """

    __slots__ = ("_entries", "_final", "_gaps", "_groups", "_largest", "filtered")

    def __init__(self) -> None:
        self.filtered = False
        self._groups: dict[int, _Group] = {}
        self._entries = 0
        self._gaps: list[range] = []
        self._largest: Location | None = None
        self._final: Location | None = None

    def __len__(self) -> int:
        """Objects and subgroups remembered."""
        return self._entries

    # -- from the streams ------------------------------------------------------------------------

    def subgroup(
        self, head: SubgroupHead, opener: Callable[[SubgroupHead], ObjectSink]
    ) -> ObjectSink:
        """The sink that ``opener`` makes, behind the checks of one subgroup stream."""
        group = self._group(head.group)
        subgroup = self._subgroup(group, head.subgroup, head.priority)
        return _SubgroupCheck(self, group, subgroup, opener(head), ends_group=head.end_of_group)

    def fetch(self, sink: ObjectSink) -> ObjectSink:
        """``sink`` behind the checks of a fetch or fill stream."""
        return _FetchCheck(self, sink)

    def datagram(self, head: ObjectHead, *, ends_group: bool) -> None:
        """A datagram object."""
        group = self._group(head.group)
        self.object(group, head)
        if ends_group:
            self.end_group(group, head.object)

    def fetched(self, head: ObjectHead) -> None:
        """An object of a fetch stream, whose subgroup and priority are its own."""
        group = self._group(head.group)
        if head.subgroup is not None:
            subgroup = self._subgroup(group, head.subgroup, head.priority)
            if head.object > subgroup.final:
                raise MalformedTrack(
                    f"object {tuple(head.location)} beyond the end of its subgroup"
                )
        self.object(group, head)

    def end_track(self, final: Location) -> None:
        """No object lies beyond ``final`` (draft-22 §9.12, §11.1.1)."""
        if self._final is not None and self._final != final:
            raise MalformedTrack(f"the track ends at {tuple(self._final)} and at {tuple(final)}")
        if self._largest is not None and self._largest > final:
            raise MalformedTrack(f"an end of the track at {tuple(final)}, before its objects")
        self._final = final

    # -- one object ------------------------------------------------------------------------------

    def object(self, group: _Group, head: ObjectHead) -> None:
        """Everything that concerns a single object of ``group``."""
        number = head.object
        if number > group.final:
            raise MalformedTrack(f"object {tuple(head.location)} beyond the end of its group")
        if number > group.largest:
            group.largest = number
            self._advance(head)
        mark = ~head.priority if head.subgroup is None else head.subgroup
        known = group.marks.get(number)
        if known is None:
            if self._entries < MAX_ENTRIES and group.kept:
                group.marks[number] = mark
                self._entries += 1
        elif known != mark:
            raise MalformedTrack(f"object {tuple(head.location)} came before in another way")
        if group.gaps and any(number in gap for gap in group.gaps):
            raise MalformedTrack(f"object {tuple(head.location)} inside a declared gap")
        if head.properties:
            self._declared(group, head)
        if head.status is not ObjectStatus.NORMAL:
            if head.status is ObjectStatus.END_OF_GROUP:
                self.end_group(group, number)
            else:
                self.end_track(head.location)

    def end_group(self, group: _Group, final: int) -> None:
        """No object of ``group`` lies beyond ``final``."""
        if group.final != _NEVER and group.final != final:
            raise MalformedTrack(f"group {group.number} ends at {group.final} and at {final}")
        if group.largest > final:
            raise MalformedTrack(f"an end of group {group.number} at {final}, before its objects")
        group.final = final

    # -- inside ----------------------------------------------------------------------------------

    def _advance(self, head: ObjectHead) -> None:
        place = head.location
        if self._largest is None or place > self._largest:
            self._largest = place
        if self._final is not None and place > self._final:
            raise MalformedTrack(f"object {tuple(place)} beyond the end of the track")

    def _declared(self, group: _Group, head: ObjectHead) -> None:
        """PRIOR_GROUP_ID_GAP and PRIOR_OBJECT_ID_GAP (draft-22 §10.8, §10.9)."""
        groups = find(head.properties, PRIOR_GROUP_ID_GAP)
        if isinstance(groups, int):
            if group.gap is not None and group.gap != groups:
                raise MalformedTrack(f"group {group.number} declares gaps {group.gap} and {groups}")
            if group.gap is None:
                group.gap = groups
                gap = range(group.number - groups, group.number)
                if any(other in gap for other, known in self._groups.items() if known.largest >= 0):
                    raise MalformedTrack(f"a gap before group {group.number} covers a known group")
                if gap and len(self._gaps) < MAX_GAPS:
                    self._gaps.append(gap)
        objects = find(head.properties, PRIOR_OBJECT_ID_GAP)
        if isinstance(objects, int) and objects and len(group.gaps) < MAX_GAPS:
            gap = range(head.object - objects, head.object)
            if any(number in gap for number in group.marks):
                raise MalformedTrack(f"a gap before {tuple(head.location)} covers a known object")
            group.gaps.append(gap)

    def _group(self, number: int) -> _Group:
        group = self._groups.get(number)
        if group is None:
            if any(number in gap for gap in self._gaps):
                raise MalformedTrack(f"group {number} lies inside a declared gap")
            if len(self._groups) >= MAX_GROUPS or self._entries >= MAX_ENTRIES:
                self._forget_oldest()
            group = self._groups[number] = _Group(number)
        return group

    def _subgroup(self, group: _Group, number: int, priority: int) -> _Subgroup:
        subgroup = group.subgroups.get(number)
        if subgroup is None:
            subgroup = _Subgroup(priority)
            if self._entries < MAX_ENTRIES:
                group.subgroups[number] = subgroup
                self._entries += 1
        elif subgroup.priority != priority:
            raise MalformedTrack(
                f"subgroup {number} of group {group.number} has priorities "
                f"{subgroup.priority} and {priority}"
            )
        return subgroup

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._groups), None)
        if oldest is not None:
            group = self._groups.pop(oldest)
            group.kept = False
            self._entries -= len(group.marks) + len(group.subgroups)


class _SubgroupCheck:
    """An ObjectSink in front of another; payload goes past it, straight to the other."""

    __slots__ = (
        *("_begin", "_ends_group", "_finish", "_group", "_known", "_last", "_subgroup"),
        *("abort", "end", "gap", "write"),
    )

    def __init__(
        self,
        known: TrackIntegrity,
        group: _Group,
        subgroup: _Subgroup,
        sink: ObjectSink,
        *,
        ends_group: bool,
    ) -> None:
        self._known = known
        self._group = group
        self._subgroup = subgroup
        self._ends_group = ends_group
        self._last = -1
        self._begin = sink.begin
        self._finish = sink.finish
        self.write = sink.write
        self.end = sink.end
        self.gap = sink.gap
        self.abort = sink.abort

    def begin(self, head: ObjectHead) -> None:
        """Check, then on."""
        number = self._last = head.object
        subgroup = self._subgroup
        if number > subgroup.final:
            raise MalformedTrack(f"object {tuple(head.location)} beyond the end of its subgroup")
        if number > subgroup.largest:
            subgroup.largest = number
        self._known.object(self._group, head)
        self._begin(head)

    def finish(self) -> None:
        """The last object is the subgroup's final one, and perhaps the group's."""
        subgroup, last = self._subgroup, self._last
        if not self._known.filtered and last >= 0:
            if subgroup.largest > last or subgroup.final not in (_NEVER, last):
                raise MalformedTrack(
                    f"a subgroup of group {self._group.number} ends with FIN at {last}, "
                    f"after object {max(subgroup.largest, min(subgroup.final, MAX_VI64))}"
                )
            subgroup.final = last
            if self._ends_group:
                self._known.end_group(self._group, last)
        self._finish()


class _FetchCheck:
    """The same in front of the sink of a fetch stream."""

    __slots__ = ("_begin", "_known", "abort", "end", "finish", "gap", "write")

    def __init__(self, known: TrackIntegrity, sink: ObjectSink) -> None:
        self._known = known
        self._begin = sink.begin
        self.write = sink.write
        self.end = sink.end
        self.gap = sink.gap
        self.finish = sink.finish
        self.abort = sink.abort

    def begin(self, head: ObjectHead) -> None:
        """Check, then on."""
        self._known.fetched(head)
        self._begin(head)
