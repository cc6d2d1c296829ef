"""Location Filters and Range Filters as octets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec.cursor import Reader, Writer
from moqt.codec.filters import (
    InvalidFilter,
    read_location_filter,
    read_range_filter,
    write_location_filter,
    write_range_filter,
)
from moqt.errors import Misuse, ProtocolViolation
from moqt.model import (
    MAX_VI64,
    Location,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterType,
    Span,
)
from tests.moqt.codec.strategies import location_filters, octet, range_filters
from tests.vectors.draft22 import LOCATION_FILTERS, RANGE_FILTERS, octets

TOP = "ff" * 9
Kind = RangeFilterType


def encoded(value: LocationFilter) -> bytes:
    writer = Writer()
    write_location_filter(writer, value)
    return writer.getvalue()


@pytest.mark.parametrize(("wire", "value"), LOCATION_FILTERS)
def test_location_filter_vector(wire: str, value: LocationFilter) -> None:
    reader = Reader(octets(wire))
    assert read_location_filter(reader) == value
    reader.expect_end("filter")
    assert encoded(value) == octets(wire)


@given(location_filters)
def test_location_filter_round_trip(value: LocationFilter) -> None:
    assert read_location_filter(Reader(encoded(value))) == value


@pytest.mark.rule("M369")
@pytest.mark.parametrize("wire", ["06", "80fa", "7f", TOP])
def test_unknown_location_filter_type_is_a_violation(wire: str) -> None:
    with pytest.raises(ProtocolViolation, match="location filter type"):
        read_location_filter(Reader(octets(wire) + bytes(8)))


@pytest.mark.rule("M373")
def test_absolute_zero_is_not_next_object() -> None:
    found = read_location_filter(Reader(octets("02 00 00")))
    assert found.type is LocationFilterType.ABSOLUTE_START
    assert read_location_filter(Reader(octets("05"))).type is LocationFilterType.NEXT_OBJECT


@pytest.mark.rule("M370")
@pytest.mark.parametrize("wire", [f"03 {TOP} 00 01", f"04 {TOP} 00 01 00", f"03 01 00 {TOP}"])
def test_end_group_overflow_is_a_violation(wire: str) -> None:
    with pytest.raises(ProtocolViolation, match="2\\^64-1"):
        read_location_filter(Reader(octets(wire)))


def test_the_last_group_is_no_overflow() -> None:
    found = read_location_filter(Reader(octets(f"03 {TOP} 00 00")))
    assert found.start == Location(MAX_VI64, 0)


def test_our_own_overflow_is_misuse() -> None:
    kind = LocationFilterType.ABSOLUTE_RANGE
    with pytest.raises(Misuse):
        encoded(LocationFilter(kind, Location(MAX_VI64, 0), 1, 0))


@pytest.mark.parametrize(("wire", "value"), RANGE_FILTERS)
def test_range_filter_vector(wire: str, value: RangeFilter) -> None:
    content = Reader(octets(wire)).length_prefixed(100, "filter")
    assert read_range_filter(value.type, content) == value
    assert write_range_filter(value) == content


@given(st.sampled_from(Kind).flatmap(lambda kind: octet.flatmap(lambda i: range_filters(kind, i))))
def test_range_filter_round_trip(value: RangeFilter) -> None:
    assert read_range_filter(value.type, write_range_filter(value)) == value


def test_a_set_without_ranges_is_kept() -> None:
    found = read_range_filter(Kind.SUBGROUP, b"\x07")
    assert found == RangeFilter(Kind.SUBGROUP, (), 7)
    assert not found.admits(0)


@pytest.mark.rule("M232")
@pytest.mark.parametrize(
    "wire", [f"00 {TOP} 01", f"00 01 {TOP}", f"00 01 01 {TOP}", f"00 {TOP} 00 01"]
)
def test_range_overflow_is_an_invalid_filter(wire: str) -> None:
    with pytest.raises(InvalidFilter, match="above"):
        read_range_filter(Kind.OBJECT_ID, octets(wire))


@pytest.mark.rule("M375")
@pytest.mark.parametrize("wire", ["00 8100", "00 00 8100", "00 80ff 01", "00 7f 7f 02 00"])
def test_priority_above_255_is_an_invalid_filter(wire: str) -> None:
    with pytest.raises(InvalidFilter, match="above 255"):
        read_range_filter(Kind.PRIORITY, octets(wire))
    read_range_filter(Kind.OBJECT_ID, octets(wire))


def test_priority_255_is_allowed() -> None:
    assert read_range_filter(Kind.PRIORITY, octets("00 80ff 00")).spans == (Span(255, 255),)


@pytest.mark.rule("M377", "M379")
@pytest.mark.parametrize("kind", [Kind.OBJECT_PROPERTY, Kind.TRACK_PROPERTY])
def test_odd_property_type_is_an_invalid_filter(kind: RangeFilterType) -> None:
    with pytest.raises(InvalidFilter, match="odd"):
        read_range_filter(kind, octets("01 11 64"))


@pytest.mark.parametrize(
    ("kind", "wire"),
    [(Kind.SUBGROUP, "00 80"), (Kind.OBJECT_PROPERTY, "00"), (Kind.OBJECT_PROPERTY, "00 ff")],
)
def test_content_cut_inside_a_field_is_an_invalid_filter(kind: RangeFilterType, wire: str) -> None:
    with pytest.raises(InvalidFilter, match="ends inside"):
        read_range_filter(kind, octets(wire))


@pytest.mark.rule("M376", "M378")
@pytest.mark.parametrize(
    "bad",
    [
        RangeFilter(Kind.OBJECT_ID, (Span(5, 3),)),
        RangeFilter(Kind.OBJECT_ID, (Span(5, 9), Span(8, 10))),
        RangeFilter(Kind.OBJECT_ID, (Span(5, None), Span(8, 10))),
        RangeFilter(Kind.OBJECT_ID, (Span(-1, 3),)),
        RangeFilter(Kind.OBJECT_ID, (Span(1, MAX_VI64 + 1),)),
        RangeFilter(Kind.PRIORITY, (Span(0, 256),)),
        RangeFilter(Kind.PRIORITY, (Span(256, None),)),
        RangeFilter(Kind.OBJECT_ID, (Span(1, 2),), set_id=256),
        RangeFilter(Kind.OBJECT_PROPERTY, (Span(1, 2),)),
        RangeFilter(Kind.OBJECT_PROPERTY, (Span(1, 2),), property_type=3),
        RangeFilter(Kind.TRACK_PROPERTY, (Span(1, 2),), property_type=5),
    ],
)
def test_our_own_bad_range_filter_is_misuse(bad: RangeFilter) -> None:
    with pytest.raises(Misuse):
        write_range_filter(bad)
