"""Fills: past objects beside a subscription, asked for with FILL_PARAMETERS (draft-22 §3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.data import FetchHeader
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import DoneCode, SessionCode, StreamCode
from moqt.model import (
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Track
from moqt.session.ports import Unserved
from transport.errors import StreamAbort

from .test_fetch import Source, item, places, published, read
from .test_subscribe_wire import data_streams, order_of, served
from .wire import NAME, Wire, leftovers
from .worlds import Receiver

FIN = "fin"
NEXT = LocationFilter.next_object()
WHOLE = Parameters(location_filter=LocationFilter.since(0))
ALL = [(10, 0), (10, 1), (10, 2), (10, 3), (11, 0), (12, 0), (12, 1), (12, 2), (12, 3)]


def filled(track: Track, **parameters: Any) -> tuple[Wire, int, Any]:
    """A subscription of the peer with a fill."""
    return served(track, Parameters(**parameters))


def fill_of(wire: Wire, at: int = 0, order: GroupOrder = GroupOrder.ASCENDING) -> Any:
    """What a peer reads on one of our streams, its request id, and how it ended."""
    octets, end = wire.pulled(data_streams(wire)[at])
    request_id = FetchHeader.decode(octets)[0].request_id
    return places(read(octets, order, request_id)), request_id, end


# -- which range ---------------------------------------------------------------------------------

#: the subscription's filter, the fill's, what comes (None: no stream).
RANGES: list[tuple[str, LocationFilter | None, LocationFilter | None, Any]] = [
    ("whole", NEXT, LocationFilter.since(0), ALL),
    ("whole-by-none", NEXT, LocationFilter(LocationFilterType.NONE), ALL),
    ("this-group", NEXT, LocationFilter.back(1), ALL[5:]),
    ("two-groups", NEXT, LocationFilter.back(2), ALL[4:]),
    ("groups", NEXT, LocationFilter.groups(10, 11), ALL[:5]),
    ("beyond-the-end", NEXT, LocationFilter.groups(11, 77), ALL[4:]),
    ("inherited", LocationFilter.groups(11, 77), None, ALL[4:]),
    ("inherited-nothing", None, None, ALL),
    pytest.param(
        "inherited-next", NEXT, None, None, marks=pytest.mark.rule("M067"), id="inherited-next"
    ),
    pytest.param("next", None, NEXT, None, marks=pytest.mark.rule("M067"), id="next"),
    pytest.param(
        "beyond", None, LocationFilter.since(13), None, marks=pytest.mark.rule("M067"), id="beyond"
    ),
    pytest.param(
        "empty",
        None,
        LocationFilter(LocationFilterType.ABSOLUTE_RANGE, Location(10, 3), 0, 2),
        None,
        marks=pytest.mark.rule("M067"),
        id="empty",
    ),
]  # type: ignore[list-item]


@pytest.mark.rule("M065", "M066", "M068", "M070", "M075", "M383")
@pytest.mark.parametrize(("_", "outer", "inner", "expected"), RANGES)
def test_the_range_of_a_fill(_: str, outer: Any, inner: Any, expected: Any) -> None:
    wire, stream, _request = filled(
        published(), location_filter=outer, fill=Parameters(location_filter=inner)
    )
    ok = wire.last(stream)
    assert isinstance(ok, m.SubscribeOk)
    assert ok.parameters.largest_object == Location(12, 3)
    if expected is None:
        assert not data_streams(wire)
    else:
        assert fill_of(wire) == (expected, 0, FIN)


@pytest.mark.rule("M067")
def test_no_fill_of_an_empty_track() -> None:
    wire, stream, _ = filled(Track(NAME), location_filter=NEXT, fill=WHOLE)
    assert wire.answer(stream).messages == [m.SubscribeOk(1)]
    assert not data_streams(wire)


@pytest.mark.rule("M514", "M065")
@pytest.mark.parametrize("place", [LocationFilter.since(0), LocationFilter.groups(0, 77)])
def test_a_fill_ends_at_the_largest_object_of_its_moment(place: LocationFilter) -> None:
    track = published()
    fill = Parameters(location_filter=place)
    wire, _, request = filled(track, location_filter=NEXT, fill=fill)
    writer = track.subgroup(13)
    writer.object(0, b"live")
    assert fill_of(wire)[0] == ALL
    assert request.within.start == Location(12, 4)
    assert len(data_streams(wire)) == 2


@pytest.mark.rule("M071")
def test_no_fill_while_paused_nor_on_resume() -> None:
    wire, stream, _ = filled(published(), forward=False, fill=WHOLE)
    assert not data_streams(wire)
    wire.send(stream, m.RequestUpdate(2, Parameters(fill=WHOLE)))
    assert not data_streams(wire)
    wire.send(stream, m.RequestUpdate(4, Parameters(forward=True)))
    assert not data_streams(wire)
    assert len(wire.answer(stream).messages) == 3
    wire.send(stream, m.RequestUpdate(6, Parameters(forward=False, fill=WHOLE)))
    assert not data_streams(wire)
    wire.send(stream, m.RequestUpdate(8, Parameters(forward=True, fill=WHOLE)))
    assert fill_of(wire) == (ALL, 8, FIN)


@pytest.mark.rule("M068", "M069", "M382", "M066")
def test_fills_by_update() -> None:
    wire, stream, _ = filled(published(), location_filter=NEXT, fill=WHOLE)
    wire.send(stream, m.RequestUpdate(2))
    assert len(data_streams(wire)) == 1  # FILL_PARAMETERS are not kept
    wire.send(
        stream,
        m.RequestUpdate(4, Parameters(location_filter=LocationFilter.since(12), fill=Parameters())),
        m.RequestUpdate(6, Parameters(fill=Parameters())),
    )
    assert wire.data(data_streams(wire)[0])[1] is None  # the first goes on
    assert fill_of(wire, 1) == (ALL[5:], 4, FIN)
    assert fill_of(wire, 2) == (ALL[5:], 6, FIN)  # the filter in force is that of the update
    assert fill_of(wire, 0) == (ALL, 0, FIN)


@pytest.mark.rule("M070", "M117")
@pytest.mark.parametrize(
    ("asked", "inner", "default", "order"),
    [
        (None, None, GroupOrder.DESCENDING, GroupOrder.ASCENDING),
        (GroupOrder.DESCENDING, None, GroupOrder.ASCENDING, GroupOrder.DESCENDING),
        (GroupOrder.DESCENDING, GroupOrder.ASCENDING, GroupOrder.ASCENDING, GroupOrder.ASCENDING),
        (None, GroupOrder.DESCENDING, GroupOrder.ASCENDING, GroupOrder.DESCENDING),
    ],
)
def test_the_order_of_a_fill(asked: Any, inner: Any, default: GroupOrder, order: Any) -> None:
    track = Track(NAME, TrackProperties(default_publisher_group_order=default))
    for group in (1, 2):
        track.subgroup(group).object(0, b"")
    fill = Parameters(location_filter=WHOLE.location_filter, group_order=inner)
    wire, _, _ = filled(track, group_order=asked, location_filter=NEXT, fill=fill)
    expected = [(1, 0), (2, 0)] if order is GroupOrder.ASCENDING else [(2, 0), (1, 0)]
    assert fill_of(wire, order=order)[0] == expected


@pytest.mark.rule("M070")
def test_filters_of_a_fill_override_by_kind() -> None:
    def spans(kind: RangeFilterType, first: int, last: int) -> RangeFilter:
        return RangeFilter(kind, (Span(first, last),))

    ids, priority = RangeFilterType.OBJECT_ID, RangeFilterType.PRIORITY
    track = published()
    outer = (spans(ids, 0, 1), spans(priority, 10, 11))
    inner = {
        "inherited": ((), [(10, 0), (10, 1), (11, 0)]),
        "one": ((spans(ids, 1, 2),), [(10, 1), (10, 2)]),
        "removed": ((RangeFilter(ids, remove=True),), ALL[:5]),
    }
    for filters, expected in inner.values():
        fill = Parameters(location_filter=WHOLE.location_filter, range_filters=filters)
        wire, _, _ = filled(track, location_filter=NEXT, range_filters=outer, fill=fill)
        assert fill_of(wire)[0] == expected


# -- scheduling ----------------------------------------------------------------------------------


def moves(wire: Wire, stream: int) -> list[Any]:
    """The orders that come with the chunks of a fill."""
    return [order for _, order in wire.transport.pull(stream) if order is not None]


@pytest.mark.rule("M118", "M116")
def test_in_a_group_the_fill_goes_first() -> None:
    track = Track(NAME)
    writers = [track.subgroup(group, priority=5) for group in (1, 2)]
    for writer in writers:
        writer.object(0, b"")
    wire, _, _ = filled(track, location_filter=NEXT, fill=WHOLE)
    writers[1].object(1, b"")
    track.subgroup(3, priority=5).object(0, b"")
    fill, live, later = data_streams(wire)
    first, second = moves(wire, fill)
    assert first < second < order_of(wire, live) < order_of(wire, later)
    assert first.flow == order_of(wire, live).flow


@pytest.mark.rule("M117")
def test_a_fill_against_the_order_goes_after_what_is_live() -> None:
    track = Track(NAME)
    track.subgroup(1, priority=5).object(0, b"")
    fill = Parameters(location_filter=WHOLE.location_filter, group_order=GroupOrder.DESCENDING)
    wire, _, _ = filled(track, location_filter=NEXT, fill=fill)
    track.subgroup(9, priority=5).object(0, b"")
    past, live = data_streams(wire)
    assert order_of(wire, live) < moves(wire, past)[0]


@pytest.mark.rule("M070", "M113")
@pytest.mark.parametrize("own", [None, 3])
def test_the_priority_of_a_fill(own: int | None) -> None:
    fill = Parameters(location_filter=WHOLE.location_filter, subscriber_priority=own)
    wire, stream, _ = filled(published(), subscriber_priority=9, location_filter=NEXT, fill=fill)
    (data,) = data_streams(wire)
    assert order_of(wire, data).subscriber == (own or 9)
    assert {order.publisher for order in moves(wire, data)} == {10, 11, 12}
    wire.send(stream, m.RequestUpdate(2, Parameters(subscriber_priority=77)))
    moved = [call[2].subscriber for call in wire.calls("reorder") if call[1] == data]
    assert moved == ([] if own else [77])


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.rule("M073", "M074")
@pytest.mark.parametrize("before", [0, 2])
def test_a_fill_that_fails(before: int) -> None:
    abort = StreamAbort(StreamCode.UNKNOWN_OBJECT_STATUS)
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME, Parameters(location_filter=NEXT, fill=WHOLE)))
    (request,) = wire.handler.requests
    request.accept(Source(*map(item, range(before)), abort))
    (data,) = data_streams(wire)
    octets, end = wire.pulled(data)
    assert len(places(read(octets, GroupOrder.ASCENDING))) == before
    assert octets.startswith(b"\x05\x00")
    assert end == StreamCode.UNKNOWN_OBJECT_STATUS
    assert request.active
    request.done(DoneCode.TRACK_ENDED)
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 1)


@pytest.mark.rule("M076")
def test_a_stopped_fill_leaves_the_subscription_alone() -> None:
    track = published()
    wire, stream, request = filled(track, location_filter=NEXT, fill=WHOLE)
    (data,) = data_streams(wire)
    wire.transport.started_streams.add(data)
    wire.stop(data)
    assert wire.data(data)[1] == StreamCode.CANCELLED
    assert request.active
    track.end()
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 1)


@pytest.mark.rule("M334", "M030")
def test_publish_done_waits_for_fills_and_counts_them() -> None:
    track = published()
    wire, stream, _ = filled(track, location_filter=NEXT, fill=WHOLE)
    track.end()
    assert len(wire.answer(stream).messages) == 1
    fill_of(wire)
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 1)
    assert wire.answer(stream).end == FIN


def test_a_track_that_is_withdrawn_resets_its_fills_and_says_so() -> None:
    track = published()
    wire, stream, _ = filled(track, location_filter=NEXT, fill=WHOLE)
    track.discard()
    octets, end = wire.pulled(data_streams(wire)[0])
    assert octets == bytes.fromhex("0500")
    assert end == StreamCode.INTERNAL_ERROR
    done = wire.last(stream)
    assert isinstance(done, m.PublishDone)
    assert (done.status, done.stream_count) == (DoneCode.INTERNAL_ERROR, 1)


# -- as subscriber -------------------------------------------------------------------------------


class Both(Unserved):
    """Nothing is asked of us here."""


def asked(parameters: Parameters) -> tuple[Wire, Any, Receiver]:
    """A SUBSCRIBE of ours with a fill."""
    wire = Wire(is_client=True, handler=Both())
    receiver = Receiver()
    return wire, wire.session.subscribe(NAME, parameters, receiver), receiver


def ok(largest: Location | None) -> m.SubscribeOk:
    """SUBSCRIBE_OK with a Largest Object."""
    return m.SubscribeOk(7, Parameters(largest_object=largest))


LARGEST = Location(12, 3)
FILL = bytes.fromhex("05 00 1c 0a 00 80 01 61")


@pytest.mark.parametrize(
    ("parameters", "largest", "comes"),
    [
        (Parameters(location_filter=NEXT, fill=WHOLE), LARGEST, True),
        (Parameters(location_filter=NEXT, fill=WHOLE), None, False),
        (Parameters(location_filter=NEXT, fill=NO_PARAMETERS), LARGEST, False),
        (Parameters(fill=NO_PARAMETERS), LARGEST, True),
        (Parameters(forward=False, fill=WHOLE), LARGEST, False),
        (Parameters(location_filter=NEXT), LARGEST, False),
    ],
)
def test_whether_a_fill_will_come(
    parameters: Parameters, largest: Location | None, comes: bool
) -> None:
    wire, request, receiver = asked(parameters)
    wire.send(request.stream, ok(largest))
    assert receiver.info is not None
    assert receiver.info.fill is comes
    assert leftovers(wire.session).get("fetches", 0) == comes
    data = wire.uni(FILL, fin=True)
    assert (wire.stopped(data) is None) is comes
    assert wire.fault is None


@pytest.mark.parametrize("first", ["fill", "ok"])
def test_a_fill_and_its_answer_in_any_order(first: str) -> None:
    wire, request, receiver = asked(Parameters(location_filter=NEXT, fill=WHOLE))
    if first == "ok":
        wire.send(request.stream, ok(LARGEST))
    wire.uni(FILL, fin=True)
    if first == "fill":
        wire.send(request.stream, ok(LARGEST))
    assert receiver.locations == [(10, 0)]
    assert receiver.fetches[0].what == 0
    assert wire.stopped(wire.uni(FILL)) == StreamCode.CANCELLED  # it had its stream
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 1), fin=True)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M076")
def test_a_reset_fill_does_not_end_the_subscription() -> None:
    wire, request, receiver = asked(Parameters(location_filter=NEXT, fill=WHOLE))
    wire.send(request.stream, ok(LARGEST))
    data = wire.uni(FILL)
    wire.reset(data, StreamCode.INTERNAL_ERROR)
    assert receiver.fetches[0].ended == StreamCode.INTERNAL_ERROR
    assert receiver.error is None
    wire.uni(bytes.fromhex("14 07 0d 00 00 00 01 41"), fin=True)
    assert receiver.locations == [(10, 0), (13, 0)]


def test_a_fill_asked_for_by_update() -> None:
    wire, request, receiver = asked(Parameters(location_filter=NEXT, forward=False))
    wire.send(request.stream, ok(LARGEST))
    request.update(Parameters(fill=WHOLE))  # still paused: none will come
    request.update(Parameters(forward=True, fill=WHOLE))
    request.update(Parameters(fill=NO_PARAMETERS))  # inherits Next Object: none
    answer = m.RequestOk(Parameters(largest_object=LARGEST))
    wire.send(request.stream, answer, answer, answer)
    assert leftovers(wire.session)["fetches"] == 1
    stray = wire.uni(bytes.fromhex("05 02") + FILL[2:])
    assert wire.stopped(stray) == StreamCode.CANCELLED
    wire.uni(bytes.fromhex("05 04") + FILL[2:], fin=True)
    assert [record.what for record in receiver.fetches] == [4]
    assert wire.fault is None


def test_the_order_of_a_fill_is_read_as_asked() -> None:
    down = GroupOrder.DESCENDING
    wire, request, receiver = asked(Parameters(group_order=down, location_filter=NEXT, fill=WHOLE))
    wire.send(request.stream, ok(LARGEST))
    wire.uni(bytes.fromhex("05 00 1c 0c 00 80 01 61 0c 01 00 01 62"), fin=True)
    assert [head.group for head, _ in receiver.objects] == [12, 10]
    request.update(Parameters(fill=Parameters(group_order=GroupOrder.ASCENDING)))
    wire.uni(bytes.fromhex("05 02 1c 0c 00 80 01 61 0c 01 00 01 62"), fin=True)
    assert [head.group for head, _ in receiver.fetches[1].objects] == [12, 14]


@pytest.mark.rule("M381", "M371")
@pytest.mark.parametrize(
    "inner",
    [
        "10 01",
        "03 03 03 00 61",
        "29 03 00 10 01",
        "23 00",
        "32 01",
        "21 03 ffffffffffffffffff 00 01",
    ],
)
def test_what_a_fill_cannot_carry(inner: str) -> None:
    wire = Wire()
    nested = b"\x01" + bytes.fromhex(inner)
    body = bytes.fromhex("00 02 04 6c697665 05 726f6f6d31 05 766964656f 01 23")
    body += bytes([len(nested)]) + nested
    wire.bidi(b"\x03" + len(body).to_bytes(2, "big") + body)
    assert wire.fault is SessionCode.PROTOCOL_VIOLATION
