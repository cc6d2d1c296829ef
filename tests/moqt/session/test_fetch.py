"""FETCH from both ends: ranges, orders, End Location, cancellation (draft-22 §3.2, §11.4)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.data import FetchHeader, FetchReader
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import (
    RequestCode,
    RequestFailed,
    SessionClosed,
    SessionCode,
    StreamCode,
    StreamReset,
)
from moqt.model import (
    FullTrackName,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    LocationRange,
    ObjectHead,
    ObjectStatus,
    RangeFilter,
    RangeFilterType,
    Span,
    StoredObject,
)
from moqt.publisher import Catalog, ServingLimits, Track
from transport.errors import StreamAbort

from .wire import NAME, Wire, leftovers
from .worlds import Receiver, Record

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
TYPE = LocationFilterType
LAST = (1 << 64) - 1


def published() -> Track:
    """Groups 10 to 12: objects 0 to 3 and an end, but group 11 only 0, and 12 without an end."""
    track = Track(NAME)
    for group, count in ((10, 4), (11, 1), (12, 4)):
        writer = track.subgroup(group, priority=group)
        for number in range(count):
            writer.object(number, bytes([group, number]))
        if group == 10:
            writer.object(count, status=ObjectStatus.END_OF_GROUP)
        writer.finish()
    return track


def fetched(
    source: Any, parameters: Parameters = NO_PARAMETERS
) -> tuple[Wire, int, list[m.Message], Record | None, Any]:
    """A FETCH served from ``source``: wire, stream, answers, what a peer reads, how it ended."""
    wire = Wire()
    stream = wire.bidi(m.Fetch(wire.id(), NAME, parameters))
    (request,) = wire.handler.requests
    request.ask(lambda _: request.accept(source))
    opened = wire.opened(unidirectional=True)[1:]
    record, end = None, None
    for data in opened:
        octets, end = wire.pulled(data)
        record = read(octets, parameters.group_order or GroupOrder.ASCENDING)
    return wire, stream, wire.answer(stream).messages, record, end


def read(octets: bytes, order: GroupOrder, request_id: int = 0) -> Record:
    """A fetch stream of ours, as a peer reads it."""
    header, at = FetchHeader.decode(octets)
    assert header.request_id == request_id
    record = Record(header)
    FetchReader(order, record).feed(octets[at:])
    return record


def places(record: Record) -> list[tuple[int, int]]:
    """Locations in the order of arrival."""
    return [(head.group, head.object) for head, _ in record.objects]


def exact(start: tuple[int, int], end: tuple[int, int]) -> LocationFilter:
    """Type 0x04."""
    return LocationFilter(TYPE.ABSOLUTE_RANGE, Location(*start), end[0] - start[0], end[1])


ALL = [(10, 0), (10, 1), (10, 2), (10, 3), (11, 0), (12, 0), (12, 1), (12, 2), (12, 3)]

#: filter, what comes, End Location.
RANGES: list[tuple[str, LocationFilter | None, list[tuple[int, int]], tuple[int, int]]] = [
    ("absent", None, ALL, (12, 3)),
    ("none", LocationFilter(TYPE.NONE), ALL, (12, 3)),
    ("since", LocationFilter.since(11, 0), ALL[4:], (12, 3)),
    ("since-largest", LocationFilter.since(12, 3), ALL[8:], (12, 3)),
    ("this-group", LocationFilter.back(1), ALL[5:], (12, 3)),
    ("two-groups", LocationFilter.back(2), ALL[4:], (12, 3)),
    ("far-back", LocationFilter.back(99), ALL, (12, 3)),
    ("groups", LocationFilter.groups(10, 11), ALL[:5], (11, 0)),
    ("a-group", LocationFilter.groups(10, 10), ALL[:4], (10, 3)),
    ("beyond", LocationFilter.groups(11, 99), ALL[4:], (12, 3)),
    ("exact", exact((10, 1), (12, 1)), ALL[1:7], (12, 1)),
    ("exact-in-a-gap", exact((10, 2), (11, 7)), ALL[2:5], (11, 7)),
    ("exact-to-largest", exact((12, 0), (12, 3)), ALL[5:], (12, 3)),
    ("exact-beyond", exact((12, 2), (13, 0)), ALL[7:], (12, 3)),
    ("nothing-there", exact((11, 4), (11, 9)), [], (11, 9)),
    ("empty-group", LocationFilter.groups(9, 9), [], (9, 0)),
]


@pytest.mark.rule("M039", "M040", "M043", "M045", "M055", "M342", "M343", "M047", "M048")
@pytest.mark.rule("M353", "M372")
@pytest.mark.parametrize(("_", "place", "expected", "end"), RANGES, ids=[row[0] for row in RANGES])
def test_ranges(_: str, place: Any, expected: Any, end: Any) -> None:
    wire, stream, answers, record, ended = fetched(published(), Parameters(location_filter=place))
    assert answers == [m.FetchOk(False, Location(*end), NO_PARAMETERS, b"")]
    assert record is not None
    assert places(record) == expected
    assert [payload for _, payload in record.objects] == [bytes(place) for place in expected]
    assert [head.priority for head, _ in record.objects] == [group for group, _ in expected]
    assert ended == FIN
    assert wire.answer(stream).end == FIN
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


REFUSED: list[tuple[str, LocationFilter | None]] = [
    ("beyond", LocationFilter.since(12, 4)),
    ("far-beyond", LocationFilter.since(LAST, LAST)),
    ("next-object", LocationFilter.next_object()),
    ("next-group", LocationFilter.back(0)),
    ("empty", exact((10, 3), (10, 2))),
    ("groups-beyond", LocationFilter.groups(13, 14)),
]


@pytest.mark.rule("M042", "M475")
@pytest.mark.parametrize(("_", "place"), REFUSED, ids=[row[0] for row in REFUSED])
def test_ranges_that_hold_nothing(_: str, place: Any) -> None:
    wire, stream, answers, record, _end = fetched(published(), Parameters(location_filter=place))
    (error,) = answers
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.INVALID_RANGE
    assert record is None
    assert wire.answer(stream).end == FIN
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M041")
@pytest.mark.parametrize("place", [None, LocationFilter.since(0), LocationFilter.back(1)])
def test_a_track_without_objects(place: LocationFilter | None) -> None:
    _, _, (error,), record, _ = fetched(Track(NAME), Parameters(location_filter=place))
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.INVALID_RANGE
    assert record is None


@pytest.mark.rule("M046", "M368")
@pytest.mark.parametrize("order", [None, *GroupOrder])
def test_orders(order: GroupOrder | None) -> None:
    properties = TrackProperties(default_publisher_group_order=GroupOrder.DESCENDING)
    track = Track(NAME, properties)
    for group in (10, 11, 12):
        writer = track.subgroup(group)
        writer.object(0, b"")
        writer.object(1, b"")
    _, _, _, record, _ = fetched(track, Parameters(group_order=order))
    assert record is not None
    groups = [12, 11, 10] if order is GroupOrder.DESCENDING else [10, 11, 12]
    assert places(record) == [(group, number) for group in groups for number in (0, 1)]


@pytest.mark.rule("M047")
def test_subgroups_play_no_role() -> None:
    track = Track(NAME)
    even, odd = track.subgroup(0, 0), track.subgroup(0, 1)
    for number in range(4):
        (odd if number % 2 else even).object(number, b"")
    _, _, _, record, _ = fetched(track)
    assert record is not None
    assert [(head.object, head.subgroup) for head, _ in record.objects] == [
        (0, 0), (1, 1), (2, 0), (3, 1)
    ]  # fmt: skip


@pytest.mark.rule("M536")
def test_status_objects_stay_out() -> None:
    track = published()
    writer = track.subgroup(13)
    writer.object(0, status=ObjectStatus.END_OF_TRACK)
    _, _, answers, record, _ = fetched(track)
    assert record is not None
    assert places(record) == ALL
    assert answers == [m.FetchOk(True, Location(13, 0), NO_PARAMETERS, b"")]


@pytest.mark.rule("M530", "M342")
@pytest.mark.parametrize(
    ("place", "ends", "end"),
    [
        (LocationFilter.since(0), True, (13, 0)),
        (LocationFilter.groups(10, 12), False, (12, 3)),
        (exact((12, 0), (13, 0)), True, (13, 0)),
        (exact((12, 0), (12, 9)), False, (12, 9)),
        (LocationFilter.groups(13, 20), True, (13, 0)),
    ],
)
def test_end_of_track(place: LocationFilter, ends: bool, end: tuple[int, int]) -> None:
    track = published()
    track.subgroup(13).object(0, status=ObjectStatus.END_OF_TRACK)
    track.end()
    _, _, (ok,), _, _ = fetched(track, Parameters(location_filter=place))
    assert isinstance(ok, m.FetchOk)
    assert (ok.end_of_track, ok.end) == (ends, Location(*end))


@pytest.mark.rule("M060", "M396")
def test_filters_and_properties() -> None:
    track = Track(NAME, TrackProperties(max_cache_duration=1))
    writer = track.subgroup(0)
    for number in range(6):
        writer.object(number, b"x")
    only = RangeFilter(RangeFilterType.OBJECT_ID, (Span(1, 2), Span(5, None)))
    parameters = Parameters(range_filters=(only,), include_properties=False)
    _, _, (ok,), record, end = fetched(track, parameters)
    assert isinstance(ok, m.FetchOk)
    assert ok.properties == b""
    assert record is not None
    assert places(record) == [(0, 1), (0, 2), (0, 5)]
    assert end == FIN
    _, _, (ok,), _, _ = fetched(track)
    assert isinstance(ok, m.FetchOk)
    assert ok.properties == track.properties


@pytest.mark.rule("M365", "M114", "M115")
@pytest.mark.parametrize("priority", [None, 3])
def test_the_priority_of_a_fetch(priority: int | None) -> None:
    wire = Wire()
    wire.bidi(m.Fetch(0, NAME, Parameters(subscriber_priority=priority)))
    wire.handler.requests[0].accept(published())
    _, opened = wire.calls("open")
    # Most urgent until the first object says how urgent it is: it is pulled, and then moved.
    assert (opened[2].subscriber, opened[2].publisher) == (priority or 128, 0)
    moved = [order for _, order in wire.transport.pull(opened[1]) if order is not None]
    assert [(o.subscriber, o.publisher) for o in moved] == [
        (priority or 128, group) for group in (10, 11, 12)
    ]


@pytest.mark.rule("M043")
def test_what_is_published_later_is_no_part_of_it() -> None:
    track = published()
    wire = Wire()
    wire.bidi(m.Fetch(0, NAME))
    wire.handler.requests[0].accept(track)
    track.subgroup(13).object(0, b"late")
    (data,) = wire.opened(unidirectional=True)[1:]
    assert places(read(wire.pulled(data)[0], GroupOrder.ASCENDING)) == ALL


# -- sources that wait or fail -------------------------------------------------------------------


class Source:
    """A TrackSource that gives what the test puts in."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)
        self.name = FullTrackName((b"a",), b"b")
        self.properties = b""
        self.largest: Location | None = Location(9, 9)
        self.ended = False
        self.wake: Any = None

    def last_within(self, within: LocationRange) -> Location | None:
        return None

    def objects(
        self, within: LocationRange, order: GroupOrder, wake: Any, fill_timeout: Any = None
    ) -> Any:
        self.wake = wake
        while self.items:
            item = self.items.pop(0)
            if isinstance(item, Exception):
                raise item
            yield item


def item(number: int) -> StoredObject:
    """A small object."""
    return StoredObject(ObjectHead(0, 0, number, 128, 1), (b"x",))


@pytest.mark.rule("M044", "M026")
def test_a_source_that_is_not_ready_is_woken() -> None:
    source = Source(item(0), None, item(1))
    wire = Wire()
    stream = wire.bidi(m.Fetch(0, NAME))
    wire.handler.requests[0].accept(source)
    (data,) = wire.opened(unidirectional=True)[1:]
    first, end = wire.pulled(data)
    assert end is None
    source.wake()
    assert wire.calls("wake") == [("wake", data)]
    rest, end = wire.pulled(data)
    assert end == FIN
    assert places(read(first + rest, GroupOrder.ASCENDING)) == [(0, 0), (0, 1)]
    assert wire.answer(stream).end == FIN


@pytest.mark.rule("M449", "M480")
@pytest.mark.parametrize("before", [0, 1])
def test_a_source_that_fails_resets_the_data(before: int) -> None:
    abort = StreamAbort(StreamCode.UNKNOWN_OBJECT_STATUS)
    source = Source(*[item(0)] * before, abort)
    wire, stream, (ok,), record, end = fetched(source)
    assert isinstance(ok, m.FetchOk)
    assert record is not None  # a header at least
    assert len(record.objects) == before
    assert end == StreamCode.UNKNOWN_OBJECT_STATUS
    assert wire.answer(stream).end == FIN
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


def test_gaps_are_passed_on() -> None:
    gap = Gap(GapKind.UNKNOWN, Location(0, 5))
    _, _, _, record, _ = fetched(Source(item(0), gap, item(6)))
    assert record is not None
    assert record.gaps == [gap]
    assert places(record) == [(0, 0), (0, 6)]


# -- cancellation --------------------------------------------------------------------------------


@pytest.mark.rule("M053", "M054")
@pytest.mark.parametrize("how", ["stop", "reset"])
def test_the_subscriber_cancels(how: str) -> None:
    wire = Wire()
    stream = wire.bidi(m.Fetch(0, NAME))
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    request.accept(published())
    (data,) = wire.opened(unidirectional=True)[1:]
    getattr(wire, how)(stream)
    assert ends == ["end"]
    assert wire.answer(stream).end == StreamCode.CANCELLED
    assert wire.data(data)[1] == StreamCode.CANCELLED
    assert not leftovers(wire.session)


def test_the_subscriber_stops_only_the_data() -> None:
    wire = Wire()
    stream = wire.bidi(m.Fetch(0, NAME))
    wire.handler.requests[0].accept(published())
    (data,) = wire.opened(unidirectional=True)[1:]
    wire.stop(data)
    assert wire.data(data)[1] == StreamCode.CANCELLED
    assert wire.answer(stream).end == FIN
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M488", "M476")
def test_fetches_at_once_are_bounded() -> None:
    catalog = Catalog(ServingLimits(fetches=2, retry_after=300))
    catalog.add(published())
    wire = Wire(handler=catalog.handler(None))  # type: ignore[arg-type]
    streams = [wire.bidi(m.Fetch(wire.id(), NAME), fin=True) for _ in range(3)]
    assert [type(wire.last(stream)) for stream in streams] == [m.FetchOk, m.FetchOk, m.RequestError]
    assert wire.last(streams[2]) == m.RequestError(9, 301, "2 fetches are open")
    bad = wire.bidi(m.Fetch(wire.id(), NAME, Parameters(location_filter=REFUSED[0][1])))
    assert isinstance(wire.last(bad), m.RequestError)
    wire.stop(streams[0])
    wire.pulled(wire.opened(unidirectional=True)[2])
    again = [wire.bidi(m.Fetch(wire.id(), NAME)) for _ in range(3)]
    assert [type(wire.last(stream)) for stream in again] == [m.FetchOk, m.FetchOk, m.RequestError]


# -- as requester --------------------------------------------------------------------------------

OBJECT = bytes.fromhex("1c 0a 00 80 01 61")


def ours(parameters: Parameters = NO_PARAMETERS) -> tuple[Wire, Any, Receiver]:
    """A FETCH of ours; the wire, the handle, the receiver."""
    wire = Wire(is_client=True)
    receiver = Receiver()
    return wire, wire.session.fetch(NAME, parameters, receiver), receiver


OK = m.FetchOk(False, Location(12, 7))


@pytest.mark.rule("M515", "M160")
@pytest.mark.parametrize("order", ["ok-data", "data-ok", "between"])
def test_answer_and_objects_in_any_order(order: str) -> None:
    wire, request, receiver = ours()
    octets = bytes.fromhex("05 00") + OBJECT
    if order == "ok-data":
        wire.send(request.stream, OK)
        wire.uni(octets, fin=True)
    elif order == "data-ok":
        wire.uni(octets, fin=True)
        assert receiver.end is None
        wire.send(request.stream, OK)
    else:
        data = wire.uni(octets[:5])
        wire.send(request.stream, OK)
        wire.send(data, octets[5:], fin=True)
    assert receiver.end == (0, "", True)
    assert receiver.info is not None
    assert (receiver.info.end, receiver.info.end_of_track) == (Location(12, 7), False)
    assert receiver.locations == [(10, 0)]
    assert receiver.fetches[0].ended == FIN
    assert wire.answer(request.stream).end == FIN
    wire.send(request.stream, fin=True)
    assert not leftovers(wire.session)


def test_descending_is_read_as_asked() -> None:
    wire, request, receiver = ours(Parameters(group_order=GroupOrder.DESCENDING))
    wire.send(request.stream, OK)
    wire.uni(bytes.fromhex("05 00 1c 0c 00 80 01 61 0c 01 00 01 62"), fin=True)
    assert [(head.group, data) for head, data in receiver.objects] == [(12, b"a"), (10, b"b")]


@pytest.mark.rule("M341")
@pytest.mark.parametrize(
    ("place", "end", "good"),
    [
        (LocationFilter.since(10, 4), (10, 4), True),
        (LocationFilter.since(10, 4), (10, 3), False),
        (LocationFilter.groups(10, 12), (9, 9), False),
        (exact((10, 4), (10, 9)), (10, 0), False),
        (None, (0, 0), True),
        (LocationFilter.back(2), (0, 0), True),  # where it starts, only the peer knows
    ],
)
def test_an_end_before_the_start(
    place: LocationFilter | None, end: tuple[int, int], good: bool
) -> None:
    wire, request, _ = ours(Parameters(location_filter=place))
    wire.send(request.stream, m.FetchOk(False, Location(*end)))
    assert wire.fault is (None if good else VIOLATION)


@pytest.mark.rule("M091", "M087")
def test_a_mandatory_property_we_do_not_know() -> None:
    wire, request, receiver = ours()
    data = wire.uni(bytes.fromhex("05 00") + OBJECT)
    wire.send(request.stream, m.FetchOk(False, Location(12, 7), NO_PARAMETERS, b"\xc0\x40\x00\x01"))
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.UNSUPPORTED_EXTENSION
    assert wire.stopped(request.stream) == StreamCode.CANCELLED
    assert wire.stopped(data) == StreamCode.CANCELLED
    assert receiver.fetches[0].ended == StreamCode.CANCELLED
    assert not leftovers(wire.session)


@pytest.mark.rule("M507", "M483")
@pytest.mark.parametrize(
    ("code", "seen"),
    [
        (StreamCode.UNKNOWN_OBJECT_STATUS, StreamCode.UNKNOWN_OBJECT_STATUS),
        (0x9D, StreamCode.INTERNAL_ERROR),
        ((1 << 62) - 1, StreamCode.INTERNAL_ERROR),
        (0x52E4A40FA8DB + 0x12, StreamCode.MALFORMED_TRACK),
    ],
)
def test_the_data_stream_is_reset(code: int, seen: StreamCode) -> None:
    wire, request, receiver = ours()
    wire.send(request.stream, OK)
    data = wire.uni(bytes.fromhex("05 00") + OBJECT)
    wire.reset(data, code)
    assert isinstance(receiver.error, StreamReset)
    assert receiver.error.code == seen
    assert receiver.fetches[0].ended == seen
    assert receiver.locations == [(10, 0)]  # what came stays valid
    assert wire.stopped(request.stream) == StreamCode.CANCELLED
    assert not leftovers(wire.session)


def test_an_error_after_objects_came() -> None:
    wire, request, receiver = ours()
    data = wire.uni(bytes.fromhex("05 00") + OBJECT)
    wire.send(request.stream, m.RequestError(RequestCode.TIMEOUT), fin=True)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.locations == [(10, 0)]
    assert wire.stopped(data) == StreamCode.CANCELLED
    assert not leftovers(wire.session)


@pytest.mark.rule("M052")
@pytest.mark.parametrize("when", ["asked", "answered", "running", "served"])
def test_we_cancel(when: str) -> None:
    wire, request, receiver = ours()
    if when != "asked":
        wire.send(request.stream, OK)
    data = wire.uni(bytes.fromhex("05 00") + OBJECT) if when in ("running", "served") else None
    if data is not None and when == "served":
        wire.send(data, fin=True)
    request.cancel()
    if when == "served":
        assert receiver.end == (0, "", True)
        assert wire.stopped(request.stream) is None
    else:
        assert receiver.end is None
        assert wire.stopped(request.stream) == StreamCode.CANCELLED
        assert wire.answer(request.stream).end == StreamCode.CANCELLED
        assert data is None or wire.stopped(data) == StreamCode.CANCELLED
        late = wire.uni(bytes.fromhex("05 00") + OBJECT)
        assert wire.stopped(late) == StreamCode.CANCELLED
        assert not leftovers(wire.session)
    assert receiver.error is None


@pytest.mark.rule("M039")
@pytest.mark.parametrize("second", [OK, m.RequestError(0), m.RequestOk()])
def test_a_second_answer(second: m.Message) -> None:
    wire, request, _ = ours()
    wire.send(request.stream, OK, second)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M524")
def test_request_ok_is_no_answer() -> None:
    wire, request, _ = ours()
    wire.send(request.stream, m.RequestOk())
    assert wire.fault is VIOLATION


@pytest.mark.parametrize("request_id", ["02", "01", "ffffffffffffffffff"])
def test_a_fetch_stream_nobody_asked_for(request_id: str) -> None:
    wire, request, receiver = ours()
    stray = wire.uni(bytes.fromhex("05" + request_id) + OBJECT)
    assert wire.stopped(stray) == StreamCode.CANCELLED
    first = wire.uni(bytes.fromhex("05 00") + OBJECT)
    second = wire.uni(bytes.fromhex("05 00") + OBJECT)
    assert wire.stopped(second) == StreamCode.CANCELLED
    assert wire.fault is None
    wire.send(request.stream, OK)
    wire.send(first, fin=True)
    assert receiver.end == (0, "", True)


def test_stop_sending_after_the_answer_is_no_end() -> None:
    wire, request, receiver = ours()
    wire.send(request.stream, OK)
    wire.stop(request.stream, 0)
    wire.wait(60)
    assert receiver.error is None
    wire.uni(bytes.fromhex("05 00") + OBJECT, fin=True)
    assert receiver.end == (0, "", True)


def test_the_session_dies() -> None:
    wire, request, receiver = ours()
    wire.send(request.stream, OK)
    wire.uni(bytes.fromhex("05 00") + OBJECT)
    wire.lose(-1)
    assert isinstance(receiver.error, SessionClosed)
    assert receiver.fetches[0].ended == -1
