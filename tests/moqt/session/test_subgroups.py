"""Subgroup streams on their way out: headers, FIN or reset, pause, filters (draft-22 §11.3)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, StreamCode
from moqt.model import (
    LocationFilter,
    ObjectHead,
    ObjectStatus,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Track
from moqt.session.filters import RangeFilters

from .test_subscribe_wire import data_streams, read, served
from .wire import NAME, Wire, leftovers

FIN = "fin"
NEXT = Parameters(location_filter=LocationFilter.next_object())
PAUSE, RESUME = Parameters(forward=False), Parameters(forward=True)


def update(wire: Wire, stream: int, parameters: Parameters) -> None:
    """REQUEST_UPDATE of the subscriber."""
    wire.send(stream, m.RequestUpdate(wire.id(), parameters))


def sent(wire: Wire, at: int = 0) -> tuple[list[int], str | int | None]:
    """Object ids on one of our data streams, pulled now, and how it ended."""
    stream = data_streams(wire)[at]
    octets, end = wire.pulled(stream)
    return [head.object for head, _ in read(octets)[1].objects], end


def test_literal_octets() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    writer = track.subgroup(12, 1, priority=100)
    writer.object(0, b"A", b"B")
    writer.object(1, b"C")
    writer.object(4, b"")
    writer.object(5, status=ObjectStatus.END_OF_GROUP)
    writer.finish()
    octets, end = wire.pulled(data_streams(wire)[0])
    expected = "54 01 0c 01 64  00 02 4142  00 01 43  02 00 00  00 00 03"
    assert octets == bytes.fromhex(expected)
    assert end == FIN


@pytest.mark.rule("M434", "M437", "M438")
def test_properties_on_every_object() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    writer = track.subgroup(12, priority=128, has_properties=True)
    writer.object(0, b"AB", properties=bytes.fromhex("3c02"))
    writer.object(1, b"C")
    octets, _ = wire.pulled(data_streams(wire)[0])
    assert octets == bytes.fromhex("51 01 0c 80  00 02 3c02 02 4142  00 00 01 43")


@pytest.mark.rule("M008")
def test_first_object_is_claimed_only_with_the_first_object() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track, NEXT)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    other = wire.bidi(m.Subscribe(wire.id(), NAME, NEXT))
    track.attach(wire.handler.requests[-1])
    writer.object(1, b"y")
    headers = [read(wire.pulled(one)[0])[0] for one in data_streams(wire)]
    assert [header.first_object for header in headers] == [True, False]
    wire.stop(other)
    update(wire, stream, PAUSE)
    late = track.subgroup(1)
    late.object(0, b"x")
    update(wire, stream, RESUME)
    late.object(1, b"y")
    header, _ = read(wire.pulled(data_streams(wire)[-1])[0])
    assert (header.track_alias, header.group, header.first_object) == (1, 1, False)


@pytest.mark.rule("M008", "M441")
def test_what_is_paused_away_before_its_turn() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")  # waits for its turn
    update(wire, stream, PAUSE)
    assert wire.pulled(data_streams(wire)[0]) == (b"", None)
    update(wire, stream, RESUME)
    writer.object(1, b"y")
    octets, _ = wire.pulled(data_streams(wire)[0])
    header, record = read(octets)
    assert not header.first_object
    assert [head.object for head, _ in record.objects] == [1]
    writer.finish()
    assert wire.pulled(data_streams(wire)[0]) == (b"", StreamCode.CANCELLED)


@pytest.mark.rule("M440")
@pytest.mark.parametrize("parameters", [NO_PARAMETERS, NEXT])
def test_fin_when_all_has_gone(parameters: Parameters) -> None:
    track = Track(NAME)
    wire, _, _ = served(track, parameters)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    assert sent(wire) == ([0], None)
    writer.object(1, b"y")
    writer.finish()
    assert wire.pulled(data_streams(wire)[0])[1] == FIN


@pytest.mark.rule("M440")
def test_fin_although_objects_before_the_start_were_left_out() -> None:
    track = Track(NAME)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    wire, _, _ = served(track, NEXT)
    writer.object(1, b"y")
    writer.finish()
    assert sent(wire) == ([1], FIN)


@pytest.mark.rule("M441", "M445")
def test_reset_when_objects_behind_the_start_were_left_out() -> None:
    track = Track(NAME)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    wire, _, _ = served(track)  # unfiltered: it should have had object 0
    writer.object(1, b"y")
    writer.finish()
    assert sent(wire) == ([1], StreamCode.CANCELLED)


@pytest.mark.rule("M441", "M445", "M027")
@pytest.mark.parametrize("how", ["pause", "narrow"])
@pytest.mark.parametrize("judged", [True, False])
def test_reset_after_pause_or_narrowing(how: str, judged: bool) -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    assert sent(wire) == ([0], None)
    narrow = Parameters(location_filter=LocationFilter.groups(1, 1))
    update(wire, stream, PAUSE if how == "pause" else narrow)
    writer.object(1, b"y")
    if judged:
        assert wire.pulled(data_streams(wire)[0]) == (b"", None)
    wide = Parameters(location_filter=LocationFilter.since(0))
    update(wire, stream, RESUME if how == "pause" else wide)
    writer.object(2, b"z")
    writer.finish()
    octets, end = wire.pulled(data_streams(wire)[0])
    if judged:
        assert (octets, end) == (bytes.fromhex("01 01 7a"), StreamCode.CANCELLED)
    else:  # its turn came only after the update that lets it pass
        assert (octets, end) == (bytes.fromhex("00 01 79 00 01 7a"), FIN)


@pytest.mark.rule("M441", "M445")
def test_reset_when_the_start_moves_beyond_the_rest() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    assert sent(wire) == ([0], None)
    update(wire, stream, Parameters(location_filter=LocationFilter.since(5)))
    writer.object(1, b"y")
    writer.finish()
    assert wire.pulled(data_streams(wire)[0]) == (b"", StreamCode.CANCELLED)


@pytest.mark.rule("M441")
@pytest.mark.parametrize("gone", [True, False])
def test_abandoned_by_the_producer(gone: bool) -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    stream = data_streams(wire)[0]
    if gone:
        wire.pulled(stream)
    writer.abort(StreamCode.INTERNAL_ERROR)
    assert wire.data(stream)[1] == StreamCode.INTERNAL_ERROR
    assert set(leftovers(wire.session)) == {"owners", "peer_requests"}  # the subscription


def test_a_begun_object_is_completed_before_a_pause_takes_hold() -> None:
    track = Track(NAME)
    wire, stream, request = served(track)
    sink = request.subgroup(track_head(track))
    sink.begin(ObjectHead(0, 0, 0, 128, 4))
    sink.write(b"ab")
    data = data_streams(wire)[0]
    first, _ = wire.pulled(data)
    update(wire, stream, PAUSE)
    sink.write(b"cd")
    sink.end()
    second, _ = wire.pulled(data)
    assert read(first + second)[1].objects[0][1] == b"abcd"


def track_head(track: Track) -> Any:
    """The head of subgroup 0 of group 0."""
    from moqt.model import SubgroupHead

    return SubgroupHead(0, 0, 128)


def test_a_sink_of_a_subscription_that_is_over_opens_nothing() -> None:
    track = Track(NAME)
    wire, stream, request = served(track)
    sink = request.subgroup(track_head(track))
    wire.stop(stream)
    sink.begin(ObjectHead(0, 0, 0, 128, 1))
    sink.write(b"x")
    sink.end()
    sink.finish()
    assert not data_streams(wire)
    assert not leftovers(wire.session)


def test_a_stream_whose_objects_are_all_filtered_away_never_starts() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")  # waits for its turn
    none = Parameters(range_filters=(spans(IDS, (7, 7)),))
    update(wire, stream, none)
    writer.finish()
    assert wire.pulled(data_streams(wire)[0]) == (b"", StreamCode.CANCELLED)
    track.end()
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 0)


def test_a_stopped_stream_keeps_nothing_that_is_written_later() -> None:
    track = Track(NAME)
    wire, _, request = served(track)
    sink = request.subgroup(track_head(track))
    sink.begin(ObjectHead(0, 0, 0, 128, 100))
    wire.stop(data_streams(wire)[0])
    for _ in range(100):
        sink.write(b"x")
    sink.end()
    sink.begin(ObjectHead(0, 0, 1, 128, 1))
    sink.write(b"x")
    assert not sink._items
    sink.finish()
    sink.abort(1)


def test_a_writer_forgets_subscriptions_that_are_over() -> None:
    track = Track(NAME)
    writer = track.subgroup(0)
    for _ in range(3):
        wire, stream, _ = served(track)
        writer.object(writer._last + 1, b"x")
        wire.stop(stream)
        assert not leftovers(wire.session)
    assert not writer._sinks


# -- range filters -------------------------------------------------------------------------------


def spans(kind: RangeFilterType, *pairs: tuple[int, int | None], **more: Any) -> RangeFilter:
    """One Range Filter."""
    return RangeFilter(kind, tuple(Span(*pair) for pair in pairs), **more)


IDS, PRIORITY = RangeFilterType.OBJECT_ID, RangeFilterType.PRIORITY
SUBGROUP, PROPERTY = RangeFilterType.SUBGROUP, RangeFilterType.OBJECT_PROPERTY
HEAD = ObjectHead(3, 2, 10, 100, 5, properties=bytes.fromhex("10 64"))

ADMITS: list[tuple[str, list[RangeFilter], bool]] = [
    ("none", [], True),
    ("inside", [spans(IDS, (3, 5), (10, 15))], True),
    ("first", [spans(IDS, (10, 11))], True),
    ("last", [spans(IDS, (9, 10))], True),
    ("between", [spans(IDS, (3, 5), (11, 15))], False),
    ("open", [spans(IDS, (7, None))], True),
    ("subgroup", [spans(SUBGROUP, (2, 2))], True),
    ("priority", [spans(PRIORITY, (101, 255))], False),
    ("and", [spans(IDS, (10, 10)), spans(PRIORITY, (0, 99))], False),
    ("or", [spans(IDS, (10, 10), set_id=1), spans(PRIORITY, (0, 99), set_id=2)], True),
    ("property", [spans(PROPERTY, (100, None), property_type=0x10)], True),
    ("property-out", [spans(PROPERTY, (101, None), property_type=0x10)], False),
    ("property-missing", [spans(PROPERTY, (0, None), property_type=0x12)], False),
    ("set-without-range", [RangeFilter(IDS)], False),
]


@pytest.mark.rule("M060")
@pytest.mark.parametrize(("_", "filters", "passes"), ADMITS, ids=[row[0] for row in ADMITS])
def test_range_filters(_: str, filters: list[RangeFilter], passes: bool) -> None:
    assert RangeFilters(filters).admit(HEAD) is passes


@pytest.mark.rule("M060", "M062")
def test_range_filters_of_special_objects() -> None:
    datagram = HEAD._replace(subgroup=None)
    assert not RangeFilters([spans(SUBGROUP, (0, None))]).admit(datagram)
    sealed = HEAD._replace(properties=bytes.fromhex("0b 02 10 64"))
    assert RangeFilters([spans(PROPERTY, (100, 100), property_type=0x10)]).admit(sealed)


@pytest.mark.rule("M064", "M060")
def test_only_objects_that_pass_the_filters_are_sent() -> None:
    track = Track(NAME)
    both = Parameters(
        location_filter=LocationFilter.since(0, 2), range_filters=(spans(IDS, (1, 2), (5, 6)),)
    )
    wire, _, _ = served(track, both)
    writer = track.subgroup(0)
    for number in range(8):
        writer.object(number, b"x")
    writer.finish()
    assert sent(wire) == ([2, 5, 6], FIN)


TOO_MANY = bytes([0, *[1, 0] * 33])


@pytest.mark.parametrize(
    "filters",
    [
        pytest.param("26 03 00 05 01 00 03 00 07 01", marks=pytest.mark.rule("M058"), id="twice"),
        pytest.param(f"26 43 {TOO_MANY.hex()}", marks=pytest.mark.rule("M059", "M285"), id="count"),
        pytest.param("27 04 00 00 8100", marks=pytest.mark.rule("M375"), id="priority-256"),
        pytest.param("28 03 00 11 05", marks=pytest.mark.rule("M377", "M376"), id="odd-property"),
        pytest.param("26 0b 00 05 ffffffffffffffffff", marks=pytest.mark.rule("M232"), id="sum"),
        pytest.param("26 02 00 c0", id="cut"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("kind", ["03", "16"])
def test_filters_that_are_refused(filters: str, inner: bool, kind: str) -> None:
    wire = Wire()
    body = bytes.fromhex(filters)
    count = 2 if filters.startswith("26 03") else 1
    if inner and kind == "16":
        return
    if inner:
        nested = bytes([count]) + body
        body, count = bytes([0x23, len(nested)]) + nested, 1
    whole = bytes.fromhex("00 02 04 6c697665 05 726f6f6d31 05 766964656f") + bytes([count]) + body
    stream = wire.bidi(bytes.fromhex(kind) + len(whole).to_bytes(2, "big") + whole)
    (error,) = wire.answer(stream).messages
    assert isinstance(error, m.RequestError)
    assert error.code == 0x36
    assert wire.answer(stream).end == FIN
    assert not wire.handler.requests
    assert wire.fault is None


@pytest.mark.rule("M380")
@pytest.mark.parametrize("kind", ["03", "16"])
def test_a_track_property_filter_has_no_place_here(kind: str) -> None:
    wire = Wire()
    whole = bytes.fromhex("00 02 04 6c697665 05 726f6f6d31 05 766964656f 01 29 03 00 10 05")
    wire.bidi(bytes.fromhex(kind) + len(whole).to_bytes(2, "big") + whole)
    assert wire.fault is not None
