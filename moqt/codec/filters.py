"""Location Filters and Range Filters on the wire (draft-22 §9.20.9, §8.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codec.cursor import Reader, Writer
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, MoqtError, ProtocolViolation
from moqt.model import (
    MAX_VI64,
    Location,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterType,
    Span,
)

if TYPE_CHECKING:
    from transport.api import BytesLike

#: How many of StartGroup, StartObject, EndGroupDelta, EndObject follow each type.
_FIELDS: Final = {
    LocationFilterType.NONE: 0,
    LocationFilterType.RELATIVE_START: 1,
    LocationFilterType.ABSOLUTE_START: 2,
    LocationFilterType.ABSOLUTE_START_GROUP_END: 3,
    LocationFilterType.ABSOLUTE_RANGE: 4,
    LocationFilterType.NEXT_OBJECT: 0,
}
#: Filters that test a property carry its type, and only even types hold integers.
_BY_PROPERTY: Final = frozenset({RangeFilterType.OBJECT_PROPERTY, RangeFilterType.TRACK_PROPERTY})
_MAX_PRIORITY: Final = 255


class InvalidFilter(MoqtError):
    """A Range Filter whose framing is whole but whose content is not: error(INVALID_FILTER)."""


def read_location_filter(reader: Reader) -> LocationFilter:
    """A self-delimiting Location Filter; ProtocolViolation for an unknown type or an overflow."""
    code = reader.varint()
    if code > LocationFilterType.NEXT_OBJECT:
        raise ProtocolViolation(f"location filter type {code:#x} is unknown")
    kind = LocationFilterType(code)
    found = [reader.varint() for _ in range(_FIELDS[kind])]
    group, obj, delta, end = found + [0] * (4 - len(found))
    if group + delta > MAX_VI64:
        raise ProtocolViolation("location filter ends above group 2^64-1")
    return LocationFilter(kind, Location(group, obj), delta, end)


def write_location_filter(writer: Writer, value: LocationFilter) -> None:
    """A Location Filter; Misuse when its end group overflows."""
    if value.start.group + value.end_group_delta > MAX_VI64:
        raise Misuse("location filter ends above group 2^64-1: choose a smaller end")
    writer.varint(value.type)
    for number in (*value.start, value.end_group_delta, value.end_object)[: _FIELDS[value.type]]:
        writer.varint(number)


def read_range_filter(kind: RangeFilterType, data: BytesLike) -> RangeFilter:
    """A Range Filter's content, its length already taken; InvalidFilter when unusable."""
    if not data:
        return RangeFilter(kind, remove=True)
    reader = Reader(data)
    spans = []
    try:
        set_id = reader.u8()
        property_type = reader.varint() if kind in _BY_PROPERTY else None
        place = 0
        while reader.remaining:
            first = place + reader.varint()
            last = None
            if reader.remaining:
                last = place = first + reader.varint()
            spans.append(Span(first, last))
    except Incomplete:
        raise InvalidFilter("its content ends inside a field") from None
    if property_type is not None and property_type & 1:
        raise InvalidFilter(f"property type {property_type:#x} is odd")
    limit = _MAX_PRIORITY if kind is RangeFilterType.PRIORITY else MAX_VI64
    if any(span.first > limit or (span.last or 0) > limit for span in spans):
        raise InvalidFilter(f"a range ends above {limit}")
    return RangeFilter(kind, tuple(spans), set_id, property_type)


def write_range_filter(value: RangeFilter) -> bytes:
    """A Range Filter's content without its length; Misuse when it breaks a rule of its type."""
    if value.remove:
        return b""
    writer = Writer()
    writer.u8(value.set_id)
    if value.type in _BY_PROPERTY:
        if value.property_type is None or value.property_type & 1:
            raise Misuse(
                f"{value.type.name} filter on property {value.property_type}: name an even type"
            )
        writer.varint(value.property_type)
    limit = _MAX_PRIORITY if value.type is RangeFilterType.PRIORITY else MAX_VI64
    place: int | None = 0
    for first, last in value.spans:
        if place is None or not place <= first <= (first if last is None else last) <= limit:
            raise Misuse(
                f"{value.type.name} filter {value.spans}: "
                f"give ascending ranges up to {limit}, only the last one open"
            )
        writer.varint(first - place)
        if last is not None:
            writer.varint(last - first)
        place = last
    return writer.getvalue()
