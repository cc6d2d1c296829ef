"""Random and damaged octets: only the documented faults, whatever the reader."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moqt.codec import varint
from moqt.codec.control import MessageSplitter, read_stream_type
from moqt.codec.cursor import Reader
from moqt.codec.data import FetchHeader, FetchReader, SubgroupHeader, SubgroupReader
from moqt.codec.datagram import decode_datagram
from moqt.codec.fields import Token, read_name, read_namespace, read_reason
from moqt.codec.filters import InvalidFilter, read_location_filter, read_range_filter
from moqt.codec.messages import decode_message, encode_message
from moqt.codec.params import Scope
from moqt.codec.profile import LATEST
from moqt.codec.properties import SetupOptions, TrackProperties, check_object_properties, find
from moqt.codec.varint import Incomplete
from moqt.errors import MalformedTrack, Misuse, SessionFault
from moqt.model import GroupOrder, RangeFilterType
from tests.moqt.codec.recording import Recorder, feed
from tests.moqt.codec.strategies import cuts
from tests.vectors.draft22 import FETCHES, MESSAGES, SUBGROUPS, octets

FAULTS = (SessionFault, MalformedTrack)
noise = st.binary(max_size=120)
scopes = st.none() | st.sampled_from(Scope)
codes = st.sampled_from(sorted(LATEST.messages))
#: Bodies of the vectors with their type, as something to damage.
BODIES = [MessageSplitter().feed(octets(vector.hex))[0] for vector in MESSAGES]
STREAMS = [octets(vector.hex) for vector in (*SUBGROUPS, *FETCHES)]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with some octets changed, and perhaps cut or longer."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=8))


@given(noise)
@example(b"\xff" * 9)
def test_values(data: bytes) -> None:
    for read in (
        varint.decode,
        read_stream_type,
        SubgroupHeader.decode,
        FetchHeader.decode,
        lambda octets: read_namespace(Reader(octets)),
        lambda octets: read_name(Reader(octets)),
        lambda octets: read_reason(Reader(octets)),
        lambda octets: read_location_filter(Reader(octets)),
    ):
        with contextlib.suppress(Incomplete, SessionFault):
            read(data)


@given(noise)
def test_whole_values_are_never_incomplete(data: bytes) -> None:
    for read in (
        Token.decode,
        SetupOptions.decode,
        TrackProperties.decode,
        check_object_properties,
        decode_datagram,
        lambda octets: find(octets, 2),
    ):
        with contextlib.suppress(FAULTS):
            read(data)


@given(noise, st.sampled_from(RangeFilterType))
def test_range_filters(data: bytes, kind: RangeFilterType) -> None:
    try:
        found = read_range_filter(kind, data)
    except InvalidFilter:
        return
    assert found.type is kind


@given(codes, noise, scopes)
def test_message_bodies(code: int, data: bytes, scope: Scope | None) -> None:
    with contextlib.suppress(SessionFault):
        decode_message(LATEST, code, data, scope)


@given(st.sampled_from(BODIES).flatmap(lambda each: st.tuples(st.just(each[0]), damaged(each[1]))))
def test_damaged_messages(message: tuple[int, bytes]) -> None:
    code, data = message
    try:
        found = decode_message(LATEST, code, data)
    except SessionFault:
        return
    try:
        again = encode_message(found)
    except Misuse:
        return  # what we tolerate but do not send
    [(kind, body)] = MessageSplitter().feed(again)
    assert kind == code
    # U+FFFD stands for octets that are not UTF-8, so compare what a second reading says.
    assert encode_message(decode_message(LATEST, kind, body)) == again


@given(noise, cuts)
def test_splitter(data: bytes, places: list[int]) -> None:
    def run(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
        splitter = MessageSplitter()
        found: list[tuple[int, bytes]] = []
        try:
            for piece in pieces:
                found += splitter.feed(piece)
        except SessionFault:
            return found, True
        return found, False

    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    starts = [0, *ends[:-1]]
    whole, broken = run([data])
    pieces, cut_broken = run([data[a:b] for a, b in zip(starts, ends, strict=True)])
    assert broken is cut_broken
    # Messages before a fault are dropped with it when they share its piece.
    assert pieces == whole or broken


def subgroup(data: bytes, places: list[int]) -> tuple[object, ...]:
    """What a subgroup stream after its header comes to: records and the fault's type."""
    sink = Recorder()
    reader = SubgroupReader(SubgroupHeader(7, 12, None, 1, has_properties=True), 128, sink)
    try:
        feed(reader, data, *places)
    except FAULTS as fault:
        return (*sink.records, sink.begun, str(fault))
    return tuple(sink.records)


def fetch(data: bytes, places: list[int], order: GroupOrder) -> tuple[object, ...]:
    """The same for a fetch stream."""
    sink = Recorder()
    try:
        feed(FetchReader(order, sink), data, *places)
    except FAULTS as fault:
        return (*sink.records, sink.begun, str(fault))
    return tuple(sink.records)


@given(noise, cuts)
def test_subgroup_streams(data: bytes, places: list[int]) -> None:
    whole = subgroup(data, [])
    assert subgroup(data, places) == whole
    assert subgroup(data, list(range(len(data)))) == whole


@given(noise, cuts, st.sampled_from(GroupOrder))
def test_fetch_streams(data: bytes, places: list[int], order: GroupOrder) -> None:
    whole = fetch(data, [], order)
    assert fetch(data, places, order) == whole
    assert fetch(data, list(range(len(data))), order) == whole


@given(st.sampled_from(STREAMS).flatmap(damaged), cuts)
def test_damaged_streams(data: bytes, places: list[int]) -> None:
    assert subgroup(data[4:], places) == subgroup(data[4:], [])
    for order in GroupOrder:
        assert fetch(data[2:], places, order) == fetch(data[2:], [], order)


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda vector: vector.hex[:12])
def test_every_octet_of_every_vector_set_to_its_extremes(vector: object) -> None:
    [(code, body)] = MessageSplitter().feed(octets(vector.hex))  # type: ignore[attr-defined]
    for at in range(len(body)):
        for octet in (0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFE, 0xFF):
            changed = body[:at] + bytes((octet,)) + body[at + 1 :]
            for scope in (None, *Scope):
                with contextlib.suppress(SessionFault):
                    decode_message(LATEST, code, changed, scope)
