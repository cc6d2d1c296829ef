"""What goes through a relay comes out as it was: objects, properties, order, streams."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import (
    IMMUTABLE_PROPERTIES,
    MAX_CACHE_DURATION,
    PRIOR_GROUP_ID_GAP,
    PRIOR_OBJECT_ID_GAP,
    write_pairs,
)
from moqt.errors import StreamCode
from moqt.model import (
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    ObjectStatus,
    SubgroupHead,
)
from moqt.publisher import Track
from moqt.session.ports import Unserved
from tests.moqt.session.worlds import Receiver

from .test_publishers import Offers, offer
from .worlds import NAME, SPACE, Desk, RelayWorld

#: An application's own types, unknown ones, and inside IMMUTABLE_PROPERTIES a list whose integers
#: are longer than they need be: who reads it and writes it anew changes it.
WIDE = bytes.fromhex("8078 8007 8001 8003 616263".replace(" ", ""))
OBJECT_PROPERTIES = write_pairs(
    sorted(
        [
            (0x78, 7),
            (0x79, b"application"),
            (0x3801, b"wide application"),
            (0x9000, 12345),
            (0x9001, b"unknown"),
            (PRIOR_OBJECT_ID_GAP, 2),
            (PRIOR_GROUP_ID_GAP, 3),
            (IMMUTABLE_PROPERTIES, WIDE),
        ],
        key=lambda pair: pair[0],
    )
)
TRACK_PROPERTIES = write_pairs(
    sorted(
        [
            (MAX_CACHE_DURATION, 600_000),
            (0x78, 1),
            (0x9000, 99),
            (0x9003, b"unknown"),
            (IMMUTABLE_PROPERTIES, WIDE),
        ],
        key=lambda pair: pair[0],
    )
)


class Upstream(Unserved):
    """A publisher by hand: holds the subscriptions that the relay makes."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.fetches: list[Any] = []

    def on_subscribe(self, request: Any) -> None:
        self.requests.append(request)

    def on_fetch(self, request: Any) -> None:
        self.fetches.append(request)


def by_hand(world: RelayWorld, asked: Parameters = NO_PARAMETERS) -> tuple[Any, Receiver, Desk]:
    """The relay's subscription at a publisher by hand, who has accepted; a subscriber behind it."""
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, receiver = world.desk().subscribe(NAME, asked)
    world.run(0.1)
    (request,) = upstream.requests
    request.accept(Track(NAME))
    world.run(0.1)
    return request, receiver, desk


def send(sink: Any, group: int, *numbers: int, subgroup: int = 0, priority: int = 128) -> None:
    """Whole objects of one octet."""
    for number in numbers:
        sink.begin(ObjectHead(group, subgroup, number, priority, 1))
        sink.write(bytes([number]))
        sink.end()


def shape(receiver: Receiver) -> list[tuple[int, list[int], Any]]:
    """Group, objects and end of every stream, as they came."""
    return [
        (one.what.group, [head.object for head, _ in one.objects], one.ended)
        for one in receiver.streams
    ]


# -- properties ----------------------------------------------------------------------------------


@pytest.mark.rule(
    "M173", "M207", "M208", "M209", "M210", "M211", "M212", "M218", "M219", "M220", "M223", "M224"
)
@pytest.mark.rule(
    "M225", "M226", "M227", "M228", "M229", "M230", "M402", "M403", "M404", "M405", "M406"
)
@pytest.mark.rule("M410", "M411", "M414", "M415")
@pytest.mark.parametrize("relays", [1, 2])
def test_every_octet_of_an_object_and_its_properties(relays: int) -> None:
    world = RelayWorld(split=7)
    edge = world.relay
    for _ in range(relays - 1):
        edge = world.another()
        world.chain(edge, world.relay, SPACE[:1])
    track = Track(NAME)
    track._properties = TRACK_PROPERTIES
    world.publisher(track)
    _, live = world.desk(edge).subscribe()
    world.run(0.2)
    payloads = [bytes([number]) * (number * 500) for number in range(3, 6)]
    writer = track.subgroup(9, 7, priority=33, has_properties=True)
    for number, payload in zip((4, 5, 6), payloads, strict=True):
        writer.object(
            number,
            payload[:100],
            payload[100:],
            properties=OBJECT_PROPERTIES if number == 4 else b"",
        )
    writer.finish()
    world.run(0.3)
    _, past = world.desk(edge).fetch(NAME, Parameters(location_filter=LocationFilter.since(0)))
    world.run(2)
    for receiver in (live, past):
        assert receiver.error is None
        assert receiver.info is not None
        assert receiver.info.properties.raw == TRACK_PROPERTIES
        assert [(h.group, h.subgroup, h.object, h.priority) for h, _ in receiver.objects] == [
            (9, 7, number, 33) for number in (4, 5, 6)
        ]
        assert [octets for _, octets in receiver.objects] == payloads
        assert receiver.objects[0][0].properties == OBJECT_PROPERTIES


@pytest.mark.rule("M207")
def test_track_properties_are_in_every_answer() -> None:
    world = RelayWorld()
    track = Track(NAME)
    track._properties = TRACK_PROPERTIES
    track.subgroup(0).object(0, b"x")
    world.publisher(track)
    asking, answers = Offers(), []
    desk = world.desk()
    desk.session.track_status(NAME, NO_PARAMETERS, answers.append)
    desk.session.subscribe_tracks(SPACE, NO_PARAMETERS, asking)
    world.run(0.3)
    assert [answer.properties for answer in answers] == [TRACK_PROPERTIES]
    assert [answer.parameters.largest_object for answer in answers] == [Location(0, 0)]
    pushed = Track(NAME._replace(name=b"pushed"))
    pushed._properties = TRACK_PROPERTIES
    offer(world, pushed)
    world.run(0.2)
    assert [one.properties.raw for one in asking.requests] == [TRACK_PROPERTIES]


@pytest.mark.rule("M355", "M357", "M358", "M122", "M185")
def test_nothing_of_a_subscriber_is_copied_upstream() -> None:
    world = RelayWorld()
    asked = Parameters(
        object_delivery_timeout=5000,
        subgroup_delivery_timeout=6000,
        subscriber_priority=3,
        group_order=GroupOrder.DESCENDING,
        location_filter=LocationFilter.since(0, 0),
    )
    request, _, _ = by_hand(world, asked)
    said = request.parameters
    assert said.object_delivery_timeout is None
    assert said.subgroup_delivery_timeout is None
    assert said.subscriber_priority is None
    assert said.group_order is None
    assert said.location_filter == LocationFilter.next_object()


# -- streams and order ---------------------------------------------------------------------------


@pytest.mark.rule("M009", "M182")
def test_a_subgroup_that_begins_here_begins_there() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world)
    whole = request.subgroup(SubgroupHead(0, 0, 5, first_object=True))
    send(whole, 0, 3, 4, 9, priority=5)
    whole.finish()
    part = request.subgroup(SubgroupHead(1, 0, 5))
    send(part, 1, 3, 4, priority=5)
    part.finish()
    world.run(0.2)
    assert [one.what.first_object for one in receiver.streams] == [True, False]
    assert [one.what.priority for one in receiver.streams] == [5, 5]
    assert shape(receiver) == [(0, [3, 4, 9], "fin"), (1, [3, 4], "fin")]


@pytest.mark.rule("M443", "M444")
def test_what_may_not_be_the_next_goes_on_a_stream_of_its_own() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world)
    first = request.subgroup(SubgroupHead(0, 0, 5, first_object=True))
    send(first, 0, 0, 1)
    world.run(0.1)
    first.abort(StreamCode.DELIVERY_TIMEOUT)
    world.run(0.1)
    second = request.subgroup(SubgroupHead(0, 0, 5))
    send(second, 0, 5, 7)
    world.run(0.1)
    second.finish()
    world.run(0.2)
    assert shape(receiver) == [
        (0, [0, 1], StreamCode.DELIVERY_TIMEOUT),
        (0, [5, 7], StreamCode.CANCELLED),
    ]
    assert not receiver.streams[1].what.first_object


@pytest.mark.rule("M183")
def test_the_next_object_goes_on_wherever_it_comes_from() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world)
    streams = [request.subgroup(SubgroupHead(0, 0, 5, first_object=not at)) for at in range(2)]
    send(streams[0], 0, 0, 1)
    send(streams[1], 0, 2, 3)
    world.run(0.1)
    streams[0].finish()
    streams[1].finish()
    world.run(0.2)
    assert [head.object for head, _ in receiver.objects] == [0, 1, 2, 3]


@pytest.mark.rule("M121")
def test_the_more_urgent_goes_first() -> None:
    world = RelayWorld()
    tracks = [Track(NAME), Track(NAME._replace(name=b"urgent"))]
    world.publisher(*tracks)
    desk = world.desk(rate=50_000.0)
    receivers = [
        desk.subscribe(track.name, Parameters(subscriber_priority=priority))[1]
        for track, priority in zip(tracks, (200, 10), strict=True)
    ]
    world.run(0.3)
    for track in tracks:
        for group in range(4):
            writer = track.subgroup(group, priority=group)
            writer.object(0, bytes(10_000))
            writer.finish()
    world.run(1.0)
    assert len(receivers[1].objects) == 4
    assert len(receivers[0].objects) < 2
    world.run()
    assert [head.group for head, _ in receivers[0].objects] == [0, 1, 2, 3]


def test_datagrams_go_through_and_are_kept() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world)
    head = ObjectHead(0, None, 0, 7, 3, properties=write_pairs([(0x9000, 5)]))
    request.datagram(head, b"abc")
    request.datagram(head, b"abc")
    world.run(0.2)
    assert receiver.datagrams == [(head, b"abc")]
    (track,) = world.relay.tracks.values()
    stored = track.stock.archive.get(0)
    assert stored is not None
    assert (stored.head, b"".join(stored.payload)) == (head, b"abc")


def test_a_status_goes_through() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world)
    sink = request.subgroup(SubgroupHead(2, 1, 5, first_object=True))
    sink.begin(ObjectHead(2, 1, 0, 5, 0, ObjectStatus.END_OF_GROUP))
    sink.end()
    sink.finish()
    world.run(0.2)
    (found,) = receiver.objects
    assert found[0].status is ObjectStatus.END_OF_GROUP
