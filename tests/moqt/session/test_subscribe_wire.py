"""SUBSCRIBE, octet by octet: answers, aliases, filters, the end (draft-22 §3.1, §9.6 to §9.9)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.data import SubgroupHeader, SubgroupReader
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import (
    DoneCode,
    RequestCode,
    RequestFailed,
    SessionCode,
    StreamCode,
)
from moqt.model import (
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    LocationRange,
    ObjectHead,
    ObjectStatus,
)
from moqt.publisher import Track

from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Receiver, Record

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
NEXT = LocationFilter.next_object()


def served(track: Track, parameters: Parameters = NO_PARAMETERS) -> tuple[Wire, int, Any]:
    """An accepted subscription of the peer: the wire, its stream, our handle."""
    wire = Wire()
    stream = wire.bidi(m.Subscribe(wire.id(), NAME, parameters))
    (request,) = wire.handler.requests
    track.attach(request)
    return wire, stream, request


def data_streams(wire: Wire) -> list[int]:
    """Data streams of ours, in the order of opening."""
    return wire.opened(unidirectional=True)[1:]


def read(octets: bytes) -> tuple[SubgroupHeader, Record]:
    """A subgroup stream of ours, as a peer reads it."""
    header, at = SubgroupHeader.decode(octets)
    record = Record(header)
    SubgroupReader(header, 128, record).feed(octets[at:])
    return header, record


def subscribed(
    wire: Wire | None = None,
    *,
    alias: int = 7,
    name: FullTrackName = NAME,
    parameters: Parameters = NO_PARAMETERS,
    answer: m.SubscribeOk | None = None,
) -> tuple[Wire, Any, Receiver]:
    """An established subscription of ours."""
    wire = wire or Wire(is_client=True)
    receiver = Receiver()
    request = wire.session.subscribe(name, parameters, receiver)
    wire.send(request.stream, answer or m.SubscribeOk(alias))
    return wire, request, receiver


# -- answers -------------------------------------------------------------------------------------


@pytest.mark.rule("M020", "M322", "M385")
def test_subscribe_ok_says_what_there_is() -> None:
    properties = TrackProperties(max_cache_duration=30_000)
    track = Track(NAME, properties)
    wire, stream, _ = served(track)
    (ok,) = wire.answer(stream).messages
    assert ok == m.SubscribeOk(1, NO_PARAMETERS, properties.encode())
    track.subgroup(12).object(3, b"x")
    again = wire.bidi(m.Subscribe(2, NAME))
    track.attach(wire.handler.requests[-1])
    assert wire.last(again) == m.SubscribeOk(
        2, Parameters(largest_object=Location(12, 3)), properties.encode()
    )


@pytest.mark.rule("M396")
@pytest.mark.parametrize("include", [None, True, False])
def test_properties_may_be_left_out(include: bool | None) -> None:
    properties = TrackProperties(max_cache_duration=30_000)
    wire, stream, _ = served(Track(NAME, properties), Parameters(include_properties=include))
    (ok,) = wire.answer(stream).messages
    assert isinstance(ok, m.SubscribeOk)
    assert ok.properties == (b"" if include is False else properties.encode())


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(m.RequestOk(), marks=pytest.mark.rule("M524"), id="request-ok"),
        pytest.param(m.FetchOk(False, Location(0, 0)), id="fetch-ok"),
        pytest.param(m.PublishDone(0, 0), id="done-first"),
        pytest.param(m.Namespace((b"a",)), marks=pytest.mark.rule("M531"), id="namespace"),
    ],
)
def test_answers_that_are_none(answer: m.Message) -> None:
    wire = Wire(is_client=True)
    request = wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    wire.send(request.stream, answer)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M022")
@pytest.mark.parametrize("second", [m.SubscribeOk(7), m.SubscribeOk(8), m.RequestError(0)])
def test_a_second_answer_to_subscribe(second: m.Message) -> None:
    wire, request, _ = subscribed()
    wire.send(request.stream, second)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M089", "M087")
def test_a_mandatory_property_we_do_not_know() -> None:
    wire, request, receiver = subscribed(
        answer=m.SubscribeOk(7, NO_PARAMETERS, bytes.fromhex("c04000 01"))
    )
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.UNSUPPORTED_EXTENSION
    assert receiver.info is None
    assert wire.answer(request.stream).end == StreamCode.CANCELLED
    assert wire.stopped(request.stream) == StreamCode.CANCELLED
    assert not leftovers(wire.session)


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param("22 03", marks=pytest.mark.rule("M400"), id="group-order"),
        pytest.param("30 02", marks=pytest.mark.rule("M401"), id="dynamic-groups"),
        pytest.param("0e 8100", id="priority"),
    ],
)
def test_properties_out_of_range(properties: str) -> None:
    wire, _, _ = subscribed(answer=m.SubscribeOk(7, NO_PARAMETERS, bytes.fromhex(properties)))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M408", "M465", "M467")
def test_a_track_malformed_from_the_start() -> None:
    wire, request, receiver = subscribed(
        answer=m.SubscribeOk(7, NO_PARAMETERS, bytes.fromhex("0b 02 0b 00"))
    )
    assert receiver.error is not None
    assert wire.answer(request.stream).end == StreamCode.MALFORMED_TRACK
    assert wire.fault is None


# -- track aliases -------------------------------------------------------------------------------


@pytest.mark.rule("M032", "M034")
def test_our_aliases_are_never_used_twice() -> None:
    wire = Wire()
    seen = []
    for name in (NAME, OTHER, NAME):
        stream = wire.bidi(m.Subscribe(wire.id(), name))
        Track(name).attach(wire.handler.requests[-1])
        (ok,) = wire.answer(stream).messages
        assert isinstance(ok, m.SubscribeOk)
        seen.append(ok.track_alias)
        wire.stop(stream)
    assert len(set(seen)) == 3


@pytest.mark.rule("M033")
@pytest.mark.parametrize(
    "reuse", [m.SubscribeOk(7), m.Publish(1, OTHER, 7)], ids=["subscribe-ok", "publish"]
)
def test_one_alias_for_two_tracks(reuse: m.Message) -> None:
    wire, _, _ = subscribed()
    if isinstance(reuse, m.SubscribeOk):
        other = wire.session.subscribe(OTHER, NO_PARAMETERS, Receiver())
        wire.send(other.stream, reuse)
    else:
        wire.bidi(reuse)
    assert wire.fault is SessionCode.DUPLICATE_TRACK_ALIAS


@pytest.mark.rule("M513")
def test_one_alias_for_two_subscriptions_of_one_track() -> None:
    wire, _, first = subscribed()
    _, _, second = subscribed(wire)
    wire.bidi(m.Publish(1, NAME, 7))
    assert wire.fault is None
    object_0 = bytes.fromhex("54 07 0c 01 64  00 02 4142")
    one, two = wire.uni(object_0), wire.uni(object_0)  # a copy for each
    assert [len(first.streams), len(second.streams)] == [1, 1]
    wire.send(one, fin=True)
    wire.send(two, fin=True)
    assert first.locations == second.locations == [(12, 0)]


def test_an_alias_shared_by_filters_that_differ() -> None:
    wire, _, early = subscribed(parameters=Parameters(location_filter=LocationFilter.groups(0, 4)))
    _, _, late = subscribed(wire, parameters=Parameters(location_filter=LocationFilter.since(5)))
    for group in (6, 2, 9):
        wire.uni(bytes([0x14, 7, group, 0, 0, 0, 1, 65]), fin=True)
    wire.datagram(bytes([0, 7, 3, 0, 0, 65]))
    assert early.locations == [(2, 0)]
    assert late.locations == [(6, 0), (9, 0)]
    assert [len(early.datagrams), len(late.datagrams)] == [1, 0]


def test_an_alias_of_a_subscription_that_drains_may_name_another_track() -> None:
    wire, request, receiver = subscribed()
    wire.uni(bytes.fromhex("14 07 00 00 00"))
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 1), fin=True)
    _, _, other = subscribed(wire, name=OTHER)
    assert wire.fault is None
    wire.uni(bytes.fromhex("14 07 01 00 00"))
    assert [len(receiver.streams), len(other.streams)] == [1, 1]


# -- what may be sent ----------------------------------------------------------------------------


FILTERS: list[tuple[str, LocationFilter | None, tuple[Any, Any]]] = [
    ("absent", None, ((0, 0), None)),
    ("none", LocationFilter(LocationFilterType.NONE), ((0, 0), None)),
    ("next-group", LocationFilter.back(0), ((13, 0), None)),
    ("this-group", LocationFilter.back(1), ((12, 0), None)),
    ("one-before", LocationFilter.back(2), ((11, 0), None)),
    ("all-before", LocationFilter.back(20), ((0, 0), None)),
    ("absolute-origin", LocationFilter.since(0, 0), ((0, 0), None)),
    ("absolute", LocationFilter.since(300), ((300, 0), None)),
    ("next-object", NEXT, ((12, 4), None)),
    ("past-groups", LocationFilter.groups(10, 11), ((10, 0), (11, (1 << 64) - 1))),
    (
        "range",
        LocationFilter(LocationFilterType.ABSOLUTE_RANGE, Location(10, 4), 0, 9),
        ((10, 4), (10, 9)),
    ),
    (
        "empty",
        LocationFilter(LocationFilterType.ABSOLUTE_RANGE, Location(10, 4), 0, 3),
        ((10, 4), (10, 3)),
    ),
]


@pytest.mark.rule("M056", "M372", "M373")
@pytest.mark.parametrize(("_", "place", "expected"), FILTERS, ids=[row[0] for row in FILTERS])
def test_location_filters_are_resolved_once(_: str, place: Any, expected: Any) -> None:
    track = Track(NAME)
    writer = track.subgroup(12)
    writer.object(3, b"x")
    wire, stream, request = served(track, Parameters(location_filter=place))
    assert isinstance(wire.last(stream), m.SubscribeOk)
    start, end = expected
    within = LocationRange(Location(*start), None if end is None else Location(*end))
    assert request.within == within
    writer.object(9, b"y")
    assert request.within == within


@pytest.mark.rule("M055", "M057", "M064")
def test_only_what_lies_in_the_range_is_sent() -> None:
    track = Track(NAME)
    place = LocationFilter(LocationFilterType.ABSOLUTE_RANGE, Location(1, 2), 1, 1)
    wire, stream, request = served(track, Parameters(location_filter=place))
    for group in range(4):
        writer = track.subgroup(group)
        for number in range(4):
            writer.object(number, b"x")
        writer.finish()
    sent = [read(wire.pulled(one)[0]) for one in data_streams(wire)]
    assert [(h.group, [o.object for o, _ in r.objects]) for h, r in sent] == [
        (1, [2, 3]),
        (2, [0, 1]),
    ]
    assert request.active
    assert len(wire.answer(stream).messages) == 1


@pytest.mark.rule("M027", "M028")
def test_a_paused_subscription_gets_messages_only() -> None:
    track = Track(NAME)
    wire, stream, request = served(track, Parameters(forward=False, fill=NO_PARAMETERS))
    track.subgroup(0).object(0, b"x")
    request.datagram(ObjectHead(0, None, 1, 0, 1), b"y")
    assert not data_streams(wire)
    assert not wire.calls("send_datagram")
    track.end()
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 0)


@pytest.mark.rule("M024")
def test_every_subscription_has_its_own_copy() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    wire.bidi(m.Subscribe(2, NAME))
    track.attach(wire.handler.requests[-1])
    writer = track.subgroup(0)
    writer.object(0, b"x")
    writer.finish()
    sent = [read(wire.pulled(one)[0]) for one in data_streams(wire)]
    assert sorted(header.track_alias for header, _ in sent) == [1, 2]


@pytest.mark.rule("M005", "M328")
def test_datagram_objects_travel_as_datagrams() -> None:
    track = Track(NAME)
    wire, _, request = served(track)
    request.datagram(ObjectHead(12, None, 5, 128, 2), b"hi")
    assert wire.calls("send_datagram") == [("send_datagram", bytes.fromhex("0001 0c 05 80 6869"))]
    assert not data_streams(wire)
    request.done(DoneCode.TRACK_ENDED)
    request.datagram(ObjectHead(12, None, 6, 128, 2), b"ho")
    assert len(wire.calls("send_datagram")) == 1


@pytest.mark.rule("M509")
def test_a_datagram_object_that_does_not_fit_is_dropped() -> None:
    wire, _, request = served(Track(NAME))
    request.datagram(ObjectHead(12, None, 5, 128, 2000), bytes(2000))
    assert not wire.calls("send_datagram")
    assert not data_streams(wire)


@pytest.mark.rule("M031")
def test_nothing_is_sent_for_a_refused_subscription() -> None:
    wire = Wire()
    wire.bidi(m.Subscribe(0, NAME))
    (request,) = wire.handler.requests
    request.refuse(RequestCode.UNAUTHORIZED)
    track = Track(NAME)
    track.attach(request)
    track.subgroup(0).object(0, b"x")
    request.datagram(ObjectHead(0, None, 1, 0, 1), b"y")
    assert not data_streams(wire)
    assert not wire.calls("send_datagram")


# -- group order and priority --------------------------------------------------------------------


def order_of(wire: Wire, stream: int) -> Any:
    """The SendOrder a stream was opened with."""
    return next(call[2] for call in wire.calls("open") if call[1] == stream)


@pytest.mark.rule("M116", "M368")
@pytest.mark.parametrize(
    ("asked", "default", "down"),
    [
        (None, GroupOrder.ASCENDING, False),
        (None, GroupOrder.DESCENDING, True),
        (GroupOrder.ASCENDING, GroupOrder.DESCENDING, False),
        (GroupOrder.DESCENDING, GroupOrder.ASCENDING, True),
    ],
)
def test_groups_go_in_the_order_of_the_subscription(
    asked: GroupOrder | None, default: GroupOrder, down: bool
) -> None:
    track = Track(NAME, TrackProperties(default_publisher_group_order=default))
    wire, _, _ = served(track, Parameters(group_order=asked))
    for group in (1, 2):
        track.subgroup(group).object(0, b"x")
    one, two = (order_of(wire, stream) for stream in data_streams(wire))
    assert (one > two) is down
    assert one.flow == two.flow


@pytest.mark.rule("M119", "M006", "M007")
def test_subgroups_of_a_group_go_in_ascending_order_on_a_stream_each() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    for subgroup in (2, 1):
        track.subgroup(5, subgroup).object(subgroup, b"x")
    two, one = data_streams(wire)
    assert order_of(wire, one) < order_of(wire, two)
    assert [read(wire.pulled(s)[0])[0].subgroup for s in (one, two)] == [1, 2]


@pytest.mark.rule("M365", "M123", "M114", "M115")
def test_priorities() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    wire.bidi(m.Subscribe(2, NAME, Parameters(subscriber_priority=7)))
    track.attach(wire.handler.requests[-1])
    track.subgroup(0, priority=200).object(0, b"x")
    orders = sorted(order_of(wire, stream) for stream in data_streams(wire))
    assert [(o.subscriber, o.publisher) for o in orders] == [(7, 200), (128, 200)]


@pytest.mark.rule("M113")
def test_a_changed_priority_moves_what_waits() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    track.subgroup(0).object(0, b"x")
    wire.send(stream, m.RequestUpdate(2, Parameters(subscriber_priority=1)))
    ((_, moved, order),) = wire.calls("reorder")
    assert [moved] == data_streams(wire)
    assert order.subscriber == 1


def test_end_of_group_travels_as_a_status() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"")
    writer.object(1, status=ObjectStatus.END_OF_GROUP)
    writer.finish()
    octets, end = wire.pulled(data_streams(wire)[0])
    assert end == FIN
    assert [(head.object, head.status) for head, _ in read(octets)[1].objects] == [
        (0, ObjectStatus.NORMAL),
        (1, ObjectStatus.END_OF_GROUP),
    ]
