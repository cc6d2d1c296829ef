"""Subgroup and fetch streams: headers, readers into an ObjectSink, writers (draft-22 §11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from moqt.codec import varint
from moqt.codec.profile import LATEST
from moqt.codec.properties import check_object_properties, check_own_properties
from moqt.codec.records import DEFAULT_LIMITS, ReadLimits, RecordReader
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation
from moqt.model import MAX_VI64, Gap, GapKind, GroupOrder, Location, ObjectHead, ObjectStatus

if TYPE_CHECKING:
    from moqt.codec.profile import Profile
    from moqt.model import ObjectSink
    from transport.api import BytesLike

#: The longest stream header: four vi64 and a priority. A session holds no more before it decides.
MAX_STREAM_HEADER: Final = 4 * varint.MAX_SIZE + 1

#: Type Flags of a subgroup stream (draft-22 §11.3.1).
_PROPERTIES: Final = 0x01
_MODE: Final = 0x06
_MODE_ZERO: Final = 0x00
_MODE_FIRST: Final = 0x02
_MODE_FIELD: Final = 0x04
_END_OF_GROUP: Final = 0x08
_ALWAYS: Final = 0x10
_DEFAULT_PRIORITY: Final = 0x20
_FIRST_OBJECT: Final = 0x40

#: Serialization Flags of a fetch stream (draft-22 §11.4.1).
_F_SUBGROUP: Final = 0x03
_F_OBJECT: Final = 0x04
_F_GROUP: Final = 0x08
_F_PRIORITY: Final = 0x10
_F_PROPERTIES: Final = 0x20
_F_DATAGRAM: Final = 0x40
_F_PLACE: Final = _F_GROUP | _F_OBJECT
_F_RESERVED: Final = 0x80
_GAP_KINDS: Final = {kind.value: kind for kind in GapKind}

_STATUSES: Final = {status.value: status for status in ObjectStatus}
_NORMAL: Final = ObjectStatus.NORMAL


def is_subgroup_type(code: int) -> bool:
    """True when a stream type has the form of Type Flags (valid ones and reserved modes alike)."""
    return code < 0x80 and code & _ALWAYS != 0


@dataclass(frozen=True, slots=True)
class SubgroupHeader:
    """Starts a subgroup stream (draft-22 §11.3.1).

    ``subgroup`` None is the ID of the first object on the stream; ``priority`` None is the
    track's default.
    """

    track_alias: int
    group: int
    subgroup: int | None
    priority: int | None = None
    has_properties: bool = False
    end_of_group: bool = False
    first_object: bool = False

    @classmethod
    def decode(cls, data: BytesLike, offset: int = 0) -> tuple[Self, int]:
        """The header, its stream type included, and the next offset; Incomplete when cut."""
        flags, at = varint.decode(data, offset)
        mode = flags & _MODE
        if not is_subgroup_type(flags) or mode == _MODE:
            raise ProtocolViolation(f"subgroup type flags {flags:#x} are invalid")
        alias, at = varint.decode(data, at)
        group, at = varint.decode(data, at)
        subgroup: int | None = None if mode == _MODE_FIRST else 0
        if mode == _MODE_FIELD:
            subgroup, at = varint.decode(data, at)
        priority = None
        if not flags & _DEFAULT_PRIORITY:
            if at >= len(data):
                raise Incomplete("cut before the publisher priority")
            priority = data[at]
            at += 1
        header = cls(
            alias,
            group,
            subgroup,
            priority,
            bool(flags & _PROPERTIES),
            bool(flags & _END_OF_GROUP),
            bool(flags & _FIRST_OBJECT),
        )
        return header, at

    def subgroup_id(self, data: BytesLike, offset: int) -> int:
        """The Subgroup ID, if need be that of the object at ``offset``; Incomplete when cut."""
        return varint.decode(data, offset)[0] if self.subgroup is None else self.subgroup


def encode_subgroup_header(header: SubgroupHeader) -> bytes:
    """The shortest form: no field for Subgroup ID 0, no priority when None."""
    flags = _ALWAYS | header.has_properties * _PROPERTIES | header.end_of_group * _END_OF_GROUP
    flags |= header.first_object * _FIRST_OBJECT
    tail = b""
    if header.subgroup is None:
        flags |= _MODE_FIRST
    elif header.subgroup:
        flags |= _MODE_FIELD
        tail = varint.encode(header.subgroup)
    if header.priority is None:
        flags |= _DEFAULT_PRIORITY
    else:
        tail += _octet(header.priority)
    return (
        varint.encode(flags)
        + varint.encode(header.track_alias)
        + varint.encode(header.group)
        + tail
    )


def _octet(priority: int) -> bytes:
    if not 0 <= priority <= 255:
        raise Misuse(f"priority {priority}: give 0 to 255")
    return bytes((priority,))


@dataclass(frozen=True, slots=True)
class FetchHeader:
    """Starts a fetch or fill stream (draft-22 §11.4.1)."""

    request_id: int

    @classmethod
    def decode(
        cls, data: BytesLike, offset: int = 0, profile: Profile = LATEST
    ) -> tuple[Self, int]:
        """The header, its stream type included, and the next offset; Incomplete when cut."""
        code, at = varint.decode(data, offset)
        if code != profile.fetch_stream:
            raise ProtocolViolation(f"stream type {code:#x} is no FETCH_HEADER")
        request_id, at = varint.decode(data, at)
        return cls(request_id), at


def encode_fetch_header(header: FetchHeader, profile: Profile = LATEST) -> bytes:
    """Stream type and Request ID."""
    return varint.encode(profile.fetch_stream) + varint.encode(header.request_id)


class SubgroupReader(RecordReader):
    """Reads a subgroup stream after its header (draft-22 §11.3.1); see ``RecordReader.feed``.

    ``default_priority`` is the track's, used when the header has none. Raises ProtocolViolation
    and, for properties no object may carry, MalformedTrack.
    """

    __slots__ = ("_group", "_has_properties", "_next", "_priority", "_subgroup")

    def __init__(
        self,
        header: SubgroupHeader,
        default_priority: int,
        sink: ObjectSink,
        limits: ReadLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(sink, limits)
        self._group = header.group
        self._subgroup = header.subgroup
        self._priority = default_priority if header.priority is None else header.priority
        self._has_properties = header.has_properties
        self._next = 0

    def _head(self, data: memoryview, at: int) -> tuple[int, int]:
        start = at
        delta, at = varint.decode(data, at)
        number = self._next + delta
        properties = b""
        if self._has_properties:
            properties, at = self._properties(data, at, start)
        length, at = varint.decode(data, at)
        status = _NORMAL
        if not length:
            code, at = varint.decode(data, at)
            status = read_status(code, properties)
        if number > MAX_VI64:
            raise ProtocolViolation("object id above 2^64-1 on a subgroup stream")
        if self._subgroup is None:
            self._subgroup = number
        if properties:
            check_object_properties(properties, Location(self._group, number))
        self._next = number + 1
        self._begun += 1
        self._promised += length
        self._sink.begin(
            ObjectHead(
                self._group, self._subgroup, number, self._priority, length, status, properties
            )
        )
        if not length:
            self._sink.end()
        return at, length


def read_status(code: int, properties: bytes) -> ObjectStatus:
    """An Object Status; ProtocolViolation when unknown or with properties (draft-22 §11.1)."""
    if code == 0:
        return _NORMAL
    status = _STATUSES.get(code)
    if status is None:
        raise ProtocolViolation(f"object status {code:#x} is unknown")
    if properties:
        raise ProtocolViolation(f"properties on an object of status {status.name}")
    return status


class FetchReader(RecordReader):
    """Reads a fetch or fill stream after its header (draft-22 §11.4.1); see ``RecordReader.feed``.

    ``group_order`` is that of the fetch. Raises ProtocolViolation and MalformedTrack.
    """

    __slots__ = ("_down", "_group", "_object", "_priority", "_subgroup")

    def __init__(
        self, group_order: GroupOrder, sink: ObjectSink, limits: ReadLimits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(sink, limits)
        self._down = group_order is GroupOrder.DESCENDING
        self._group = -1  # none yet
        self._object = 0
        self._subgroup: int | None = None
        self._priority: int | None = None

    def _head(self, data: memoryview, at: int) -> tuple[int, int]:
        start = at
        flags, at = varint.decode(data, at)
        if flags >= _F_RESERVED:
            return self._gap(flags, data, at)
        if self._group < 0 and flags & _F_PLACE != _F_PLACE:
            raise ProtocolViolation("first fetch record must give its group and object id")
        group = self._group
        if flags & _F_GROUP:
            delta, at = varint.decode(data, at)
            group = self._moved(delta)
        subgroup, at = self._subgroup_at(flags, data, at)
        number, at = self._object_at(flags, data, at)
        priority, at = self._priority_at(flags, data, at)
        properties = b""
        if flags & _F_PROPERTIES:
            properties, at = self._properties(data, at, start)
        length, at = varint.decode(data, at)
        if properties:
            check_object_properties(properties, Location(group, number))
        self._group = group
        self._object = number
        self._priority = priority
        if subgroup is not None:
            self._subgroup = subgroup
        self._begun += 1
        self._promised += length
        self._sink.begin(ObjectHead(group, subgroup, number, priority, length, _NORMAL, properties))
        if not length:
            self._sink.end()
        return at, length

    def _moved(self, delta: int) -> int:
        if self._group < 0:
            return delta
        group = self._group - delta - 1 if self._down else self._group + delta + 1
        if not 0 <= group <= MAX_VI64:
            raise ProtocolViolation("group id leaves 0 to 2^64-1 on a fetch stream")
        return group

    def _subgroup_at(self, flags: int, data: memoryview, at: int) -> tuple[int | None, int]:
        mode = flags & _F_SUBGROUP
        if flags & _F_DATAGRAM:
            return None, at
        if mode == _F_SUBGROUP:
            return varint.decode(data, at)
        if mode == 0:
            return 0, at
        prior = self._subgroup
        if prior is None or prior + mode - 1 > MAX_VI64:
            raise ProtocolViolation(
                "fetch record refers to the subgroup of an object that has none"
            )
        return prior + mode - 1, at

    def _object_at(self, flags: int, data: memoryview, at: int) -> tuple[int, int]:
        number = 1
        if flags & _F_OBJECT:
            number, at = varint.decode(data, at)
            if flags & _F_GROUP:
                return number, at
        number += self._object
        if number > MAX_VI64:
            raise ProtocolViolation("object id above 2^64-1 on a fetch stream")
        return number, at

    def _priority_at(self, flags: int, data: memoryview, at: int) -> tuple[int, int]:
        if not flags & _F_PRIORITY:
            if self._priority is None:
                raise ProtocolViolation(
                    "fetch record refers to the priority of an object before the first"
                )
            return self._priority, at
        if at >= len(data):
            raise Incomplete("cut before the publisher priority")
        return data[at], at + 1

    def _gap(self, flags: int, data: memoryview, at: int) -> tuple[int, int]:
        kind = _GAP_KINDS.get(flags)
        if kind is None:
            raise ProtocolViolation(f"fetch serialization flags {flags:#x} are unknown")
        # §11.4.1.2 as peers read it: both ids are absolute and no payload length follows.
        group, at = varint.decode(data, at)
        number, at = varint.decode(data, at)
        self._group = group
        self._object = number
        self._sink.gap(Gap(kind, Location(group, number)))
        return at, 0


class SubgroupEncoder:
    """Object heads of one subgroup stream, in order; the payload follows each head.

    Misuse when an object does not belong on the stream or its ID does not rise.
    """

    __slots__ = ("_group", "_has_properties", "_next", "_subgroup")

    def __init__(self, header: SubgroupHeader) -> None:
        self._group = header.group
        self._subgroup = header.subgroup
        self._has_properties = header.has_properties
        self._next = 0

    def head(self, head: ObjectHead) -> bytes:
        """The octets before ``head.length`` octets of payload (draft-22 §11.3.1)."""
        number = head.object
        length = head.length
        delta = number - self._next
        subgroup = number if self._subgroup is None else self._subgroup
        if not 0 <= delta <= MAX_VI64 - self._next or (head.group, head.subgroup) != (
            self._group,
            subgroup,
        ):
            raise Misuse(f"object {head.location} does not follow on this subgroup stream")
        out = varint.encode(delta)
        if head.properties:
            check_own_properties(head.properties, head.location)
        if self._has_properties:
            out += varint.encode(len(head.properties)) + head.properties
        elif head.properties:
            raise Misuse("object with properties on a stream whose header announces none")
        if head.status and (length or head.properties):
            raise Misuse(f"object of status {head.status.name} with payload or properties")
        out += varint.encode(length) if length else b"\0" + varint.encode(head.status)
        self._subgroup = subgroup
        self._next = number + 1
        return out


class FetchEncoder:
    """Records of one fetch or fill stream, in order; Misuse when the order is broken."""

    __slots__ = ("_down", "_group", "_object", "_priority", "_subgroup")

    def __init__(self, group_order: GroupOrder) -> None:
        self._down = group_order is GroupOrder.DESCENDING
        self._group = -1  # none yet
        self._object = 0
        self._subgroup: int | None = None
        self._priority: int | None = None

    def head(self, head: ObjectHead) -> bytes:
        """The octets before ``head.length`` octets of payload (draft-22 §11.4.1)."""
        if head.status:
            raise Misuse(f"object of status {head.status.name} on a fetch stream: leave it out")
        flags, group, number = self._place(head.group, head.object)
        subgroup = head.subgroup
        middle = b""
        if subgroup is None:
            flags |= _F_DATAGRAM
        elif subgroup:
            # After a Datagram object peers differ on the prior subgroup, so it is written out.
            ahead = -1 if self._subgroup is None else subgroup - self._subgroup
            if 0 <= ahead <= 1:
                flags |= ahead + 1
            else:
                flags |= _F_SUBGROUP
                middle = varint.encode(subgroup)
        tail = b""
        if head.priority != self._priority:
            flags |= _F_PRIORITY
            tail = _octet(head.priority)
        if head.properties:
            check_own_properties(head.properties, head.location)
            flags |= _F_PROPERTIES
            tail += varint.encode(len(head.properties)) + head.properties
        self._group = head.group
        self._object = head.object
        self._subgroup = subgroup
        self._priority = head.priority
        return varint.encode(flags) + group + middle + number + tail + varint.encode(head.length)

    def gap(self, gap: Gap) -> bytes:
        """An End of Range record up to and including ``gap.location`` (draft-22 §11.4.1.2)."""
        group, number = gap.location
        self._place(group, number)
        self._group = group
        self._object = number
        return varint.encode(gap.kind) + varint.encode(group) + varint.encode(number)

    def _place(self, group: int, number: int) -> tuple[int, bytes, bytes]:
        """Flags, Group ID Delta and Object ID Delta of what comes next."""
        if max(group, number) > MAX_VI64:
            raise Misuse(f"{Location(group, number)} is outside 0 to 2^64-1")
        if self._group < 0:
            return _F_PLACE, varint.encode(group), varint.encode(number)
        step = self._group - group if self._down else group - self._group
        if step > 0:
            return _F_PLACE, varint.encode(step - 1), varint.encode(number)
        ahead = number - self._object
        if step or ahead <= 0:
            raise Misuse(f"{Location(group, number)} on a fetch stream after object {self._object}")
        return (0, b"", b"") if ahead == 1 else (_F_OBJECT, b"", varint.encode(ahead))
