"""Any cutting of a data stream gives the same records, and a cut head is all that is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec.data import (
    FetchEncoder,
    FetchHeader,
    SubgroupEncoder,
    SubgroupHeader,
    SubgroupReader,
    encode_fetch_header,
    encode_subgroup_header,
)
from moqt.codec.fields import write_pairs
from moqt.codec.records import ReadLimits
from moqt.errors import ProtocolViolation
from moqt.model import Gap, GroupOrder, ObjectHead
from tests.moqt.codec.recording import FIN, Recorder, read_fetch, read_subgroup
from tests.moqt.codec.strategies import cuts, fetch_records, integers, orders, subgroup_objects
from tests.vectors.draft22 import FETCHES, SUBGROUPS, StreamVector, octets

#: Properties longer than any fixed part of a head.
LONG = write_pairs([(0x79, bytes(700))])


@st.composite
def subgroups(draw: st.DrawFn) -> tuple[bytes, list[tuple[ObjectHead, bytes]]]:
    """A whole subgroup stream and what is on it."""
    header = SubgroupHeader(
        draw(integers),
        draw(integers),
        draw(st.none() | integers),
        draw(st.none() | st.integers(0, 255)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    objects = draw(
        subgroup_objects(
            header.group,
            header.subgroup,
            priority=128 if header.priority is None else header.priority,
            with_properties=header.has_properties,
        )
    )
    encoder = SubgroupEncoder(header)
    wire = encode_subgroup_header(header)
    return wire + b"".join(encoder.head(head) + payload for head, payload in objects), objects


def fetched(records: list[object], order: GroupOrder) -> bytes:
    """A whole fetch stream."""
    encoder = FetchEncoder(order)
    wire = encode_fetch_header(FetchHeader(4))
    for record in records:
        if isinstance(record, Gap):
            wire += encoder.gap(record)
        else:
            head, payload = record  # type: ignore[misc]
            wire += encoder.head(head) + payload
    return wire


@given(subgroups(), cuts)
def test_cutting_a_subgroup_stream_is_invisible(
    stream: tuple[bytes, list[tuple[ObjectHead, bytes]]], places: list[int]
) -> None:
    wire, objects = stream
    assert read_subgroup(wire).records == [*objects, FIN]
    assert read_subgroup(wire, *places).records == [*objects, FIN]
    assert read_subgroup(wire, *range(len(wire))).records == [*objects, FIN]


@given(orders.flatmap(lambda order: st.tuples(st.just(order), fetch_records(order))), cuts)
def test_cutting_a_fetch_stream_is_invisible(
    stream: tuple[GroupOrder, list[object]], places: list[int]
) -> None:
    order, records = stream
    wire = fetched(records, order)
    assert read_fetch(wire, order=order).records == [*records, FIN]
    assert read_fetch(wire, *places, order=order).records == [*records, FIN]
    assert read_fetch(wire, *range(len(wire)), order=order).records == [*records, FIN]


@pytest.mark.parametrize("vector", SUBGROUPS, ids=lambda vector: vector.hex[:16])
def test_subgroup_vector_cut_at_every_octet(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    for place in range(len(wire)):
        assert read_subgroup(wire, place).records == [*vector.records, FIN]


@pytest.mark.parametrize("vector", FETCHES, ids=lambda vector: vector.hex[:40])
def test_fetch_vector_cut_at_every_octet(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    for place in range(len(wire)):
        assert read_fetch(wire, place, order=vector.order).records == [*vector.records, FIN]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 54, 55, 56, 64, 100, 701, 703, 705, 5000])
def test_long_properties_in_any_steps(step: int) -> None:
    header = SubgroupHeader(7, 12, 0, 100, has_properties=True)
    objects = [
        (ObjectHead(12, 0, number, 100, size, properties=properties), bytes(size))
        for number, (size, properties) in enumerate([(3, LONG), (0, LONG), (900, b""), (1, LONG)])
    ]
    encoder = SubgroupEncoder(header)
    wire = encode_subgroup_header(header)
    wire += b"".join(encoder.head(head) + payload for head, payload in objects)
    assert read_subgroup(wire, *range(0, len(wire), step)).records == [*objects, FIN]
    records: list[object] = list(objects)
    wire = fetched(records, GroupOrder.ASCENDING)
    assert read_fetch(wire, *range(0, len(wire), step)).records == [*objects, FIN]


@pytest.mark.parametrize("size", range(30, 70))
def test_properties_that_end_just_where_the_first_look_ends(size: int) -> None:
    # The payload length behind them is long enough to be cut by that look.
    header = SubgroupHeader(7, 12, 0, 100, has_properties=True)
    properties = write_pairs([(0x79, bytes(size))])
    head = ObjectHead(12, 0, 1 << 60, 100, 1 << 60, properties=properties)
    wire = SubgroupEncoder(header).head(head) + bytes(100)
    for place in range(1, len(wire) - 100):
        sink = Recorder()
        reader = SubgroupReader(header, 128, sink)
        reader.feed(wire[:place])
        reader.feed(wire[place:])
        assert sink.begun == head
        assert sum(map(len, sink.views)) == 100


def test_the_cap_on_properties_is_the_callers() -> None:
    header = SubgroupHeader(7, 12, 0, 100, has_properties=True)
    head = SubgroupEncoder(header).head(ObjectHead(12, 0, 0, 100, 1, properties=LONG))
    SubgroupReader(header, 128, Recorder(), ReadLimits(properties=len(LONG))).feed(head)
    with pytest.raises(ProtocolViolation, match="at most 702"):
        SubgroupReader(header, 128, Recorder(), ReadLimits(properties=len(LONG) - 1)).feed(head)


def test_only_a_cut_head_is_held() -> None:
    header = SubgroupHeader(7, 12, 0, 100, has_properties=True)
    sink = Recorder()
    reader = SubgroupReader(header, 128, sink)
    head = SubgroupEncoder(header).head(ObjectHead(12, 0, 0, 100, 50_000, properties=LONG))
    reader.feed(head[:-1])
    assert sink.begun is None
    reader.feed(head[-1:] + bytes(10))
    assert sink.begun is not None
    assert sum(map(len, sink.views)) == 10
    for _ in range(4):
        reader.feed(bytes(10_000))
    reader.feed(bytes(9_990), True)
    assert sink.records[-1] == FIN


def test_empty_pieces_change_nothing() -> None:
    sink = Recorder()
    reader = SubgroupReader(SubgroupHeader(7, 12, 0, 1), 128, sink)
    for piece in ("", "00", "", "02", "61", "", "62", ""):
        reader.feed(octets(piece))
    reader.feed(b"", True)
    assert sink.records == [(ObjectHead(12, 0, 0, 1, 2), b"ab"), FIN]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_octets(kind: type) -> None:
    sink = Recorder()
    reader = SubgroupReader(SubgroupHeader(7, 12, 0, 1), 128, sink)
    reader.feed(kind(octets("00 02 61")))
    reader.feed(kind(octets("62 00 01")))
    reader.feed(kind(octets("63")), True)
    assert [payload for _, payload in sink.objects] == [b"ab", b"c"]
