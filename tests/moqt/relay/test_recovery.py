"""What an upstream leaves undone is had elsewhere: when it dies, pauses, lags or starts late."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.data import FetchEncoder, FetchHeader, encode_fetch_header
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import write_pairs
from moqt.errors import DoneCode, RequestCode, RequestFailed, SessionCode, StreamCode
from moqt.model import (
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    ObjectStatus,
    SubgroupHead,
)
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from tests.moqt.session.worlds import Receiver

from .test_fidelity import Upstream, by_hand, send, shape
from .test_publishers import PAUSED, code, offer
from .test_relaying import ALL, end, layer, normal
from .worlds import NAME, SPACE, Desk, RelayWorld

FROM_NOW = Parameters(location_filter=LocationFilter.next_object())


def publisher(world: RelayWorld) -> tuple[Upstream, Desk]:
    """One that serves by hand."""
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    return upstream, desk


def holding(*numbers: int) -> Track:
    """A track that has these objects of group 0."""
    track = Track(NAME)
    writer = track.subgroup(0)
    for number in numbers:
        writer.object(number, bytes([number]))
    return track


def numbers(receiver: Receiver) -> list[int]:
    return [head.object for head, _ in receiver.objects if head.status is ObjectStatus.NORMAL]


# -- paused upstreams ----------------------------------------------------------------------------


def test_an_upstream_goes_on_from_its_answer_to_the_resume_alone() -> None:
    world = RelayWorld()
    track = Track(NAME)
    desk = world.publisher(track)
    first, _ = world.desk().subscribe()
    world.run(0.2)
    layer(track, 0)
    world.run(0.2)
    late = world.desk()
    desk.pair.freeze("to_server", 0.4)
    first.update(Parameters(forward=False))
    world.run(0.1)
    layer(track, 1)
    _, second = late.subscribe()
    world.run(1)
    layer(track, 2)
    world.run(1)
    assert normal(second) == ALL[:12]


@pytest.mark.parametrize("relays", [1, 2])
def test_a_paused_subscription_is_told_how_far_the_track_is(relays: int) -> None:
    world = RelayWorld()
    edge = world.relay
    for _ in range(relays - 1):
        edge = world.another()
        world.chain(edge, world.relay, SPACE[:1])
    track = Track(NAME)
    layer(track, 0)
    world.publisher(track)
    world.desk().subscribe(NAME, PAUSED)
    world.run(0.2)
    layer(track, 1)
    _, second = world.desk(edge).subscribe(NAME, PAUSED)
    world.run(0.5)
    assert second.info is not None
    assert second.info.largest == Location(1, 4)


def test_a_fetch_while_an_upstream_relay_resumes_knows_how_far_the_track_is() -> None:
    world = RelayWorld(latency=0.01)
    edge = world.another()
    world.chain(edge, world.relay, SPACE[:1])
    track = Track(NAME)
    layer(track, 0)
    world.publisher(track)
    desk = world.desk(edge)
    desk.subscribe(NAME, PAUSED)
    world.run(0.5)
    layer(track, 1)
    desk.subscribe()
    world.run(0.055)
    _, receiver = desk.fetch(NAME, Parameters(location_filter=LocationFilter.groups(0, 1)))
    world.run(1)
    assert normal(receiver) == ALL[:8]


def test_those_who_wait_are_not_paused_by_one_who_is() -> None:
    world = RelayWorld()
    track = Track(NAME)
    desk = world.publisher(track)
    world.desk().subscribe(NAME, PAUSED)
    world.run(0.2)
    live = world.desk()
    desk.pair.freeze("to_server", 0.2)
    world.desk().subscribe(NAME, PAUSED)
    _, receiver = live.subscribe()
    world.run(0.1)
    layer(track, 0)
    world.run(0.3)
    assert desk.session.counters().received.messages["REQUEST_UPDATE"] == 1
    assert normal(receiver) == ALL[:4]


def test_who_waits_for_a_resume_is_answered_when_the_upstream_dies() -> None:
    world = RelayWorld()
    track = Track(NAME)
    desk = world.publisher(track)
    world.desk().subscribe(NAME, PAUSED)
    world.run(0.2)
    late = world.desk()
    desk.pair.freeze("to_server", 0.5)
    _, receiver = late.subscribe()
    world.run(0.1)
    desk.kill()
    world.run(3)
    assert receiver.info is None
    assert code(receiver) == RequestCode.DOES_NOT_EXIST


# -- several publishers --------------------------------------------------------------------------


def two_by_hand(world: RelayWorld) -> tuple[Any, Any, Upstream, Desk, Receiver]:
    """Subscriptions at a publisher that is at {0, 0} and at one that is at {0, 2}."""
    (slow, desk), (ahead, _) = publisher(world), publisher(world)
    _, receiver = world.desk().subscribe(NAME, FROM_NOW)
    world.run(0.1)
    slow.requests[0].accept(holding(0))
    world.run(0.1)
    ahead.requests[0].accept(holding(0, 1, 2))
    world.run(0.1)
    return slow.requests[0], ahead.requests[0], ahead, desk, receiver


@pytest.mark.rule("M175", "M176", "M182", "M183")
def test_a_publisher_that_is_ahead_does_not_hide_what_another_is_to_bring() -> None:
    world = RelayWorld()
    slow, ahead, _, _, receiver = two_by_hand(world)
    send(ahead.subgroup(SubgroupHead(0, 0, 128)), 0, 3)
    world.run(0.1)
    assert receiver.objects == []
    send(slow.subgroup(SubgroupHead(0, 0, 128)), 0, 1, 2, 3)
    world.run(0.1)
    assert shape(receiver) == [(0, [1, 2, 3], None)]


@pytest.mark.rule("M175", "M176", "M183")
def test_what_a_lost_publisher_was_to_bring_is_fetched_from_the_other() -> None:
    world = RelayWorld()
    _, ahead, upstream, desk, receiver = two_by_hand(world)
    send(ahead.subgroup(SubgroupHead(0, 0, 128)), 0, 3)
    world.run(0.1)
    desk.kill()
    world.run(0.7)
    for request in upstream.fetches:
        request.accept(holding(0, 1, 2, 3))
    world.run(0.3)
    assert numbers(receiver) == [1, 2, 3]


def test_a_publisher_that_lags_proves_nothing_about_what_follows() -> None:
    world = RelayWorld()
    whole, part = Track(NAME), Track(NAME)
    layer(whole, 0)
    layer(whole, 1)
    writer = part.subgroup(0, priority=0)
    writer.object(0, bytes([0, 0]) * 700)
    first = world.publisher(whole)
    world.desk().subscribe(NAME, PAUSED)
    world.run(0.2)
    world.publisher(part)
    world.run(0.2)
    first.kill()
    world.run(0.1)
    asked = Parameters(location_filter=LocationFilter.groups(0, 1))
    _, receiver = world.desk().fetch(NAME, asked)
    world.run(1)
    assert normal(receiver) == ALL[:1]
    assert [gap.kind for gap in receiver.fetches[0].gaps] == [GapKind.UNKNOWN]
    world.publisher(whole)
    _, again = world.desk().fetch(NAME, asked)
    world.run(1)
    assert normal(again) == ALL[:8]


@pytest.mark.rule("M193")
def test_who_publishes_without_an_announcement_is_asked_for_the_past() -> None:
    world = RelayWorld()
    track = Track(NAME)
    layer(track, 0)
    desk = offer(world, track)
    desk.catalog.add(track)
    _, receiver = world.desk().subscribe()
    world.run(0.5)
    assert normal(receiver) == ALL[:4]


# -- upstreams that are lost ---------------------------------------------------------------------


def test_a_relay_upstream_is_given_time_to_find_the_publisher() -> None:
    world = RelayWorld()
    edge = world.another()
    track = Track(NAME)
    first = world.publisher(track)
    pair = world.chain(edge, world.relay, SPACE[:1])
    _, receiver = world.desk(edge).subscribe()
    world.run(0.3)
    layer(track, 0)
    world.run(0.2)
    first.kill()
    pair.kill()
    world.run(7)  # nobody keeps it at the upper relay any more
    world.chain(edge, world.relay, SPACE[:1])
    world.run(1)
    layer(track, 1)
    world.publisher(track)
    world.run(1)
    end(track, 2)
    world.run()
    assert normal(receiver) == ALL[:8]


def test_a_fill_waits_while_an_upstream_is_expected() -> None:
    world = RelayWorld()
    upstream, desk = publisher(world)
    _, receiver = world.desk().subscribe()
    world.run(0.1)
    upstream.requests[0].accept(holding(0, 1))
    world.run(0.2)
    assert len(upstream.fetches) == 1
    desk.kill()
    world.run(1)
    world.publisher(holding(0, 1))
    world.run(1)
    assert numbers(receiver) == [0, 1]
    assert receiver.fetches[0].gaps == []


def test_a_subscription_that_has_ended_wants_nothing_though_its_fill_goes_on() -> None:
    world = RelayWorld()
    upstream, _ = publisher(world)
    _, receiver = world.desk().subscribe()
    world.run(0.1)
    upstream.requests[0].accept(holding(0, 1))
    world.run(0.2)
    upstream.requests[0].done(DoneCode.TRACK_ENDED)
    world.run(0.2)
    (track,) = world.relay.tracks.values()
    assert not track.stock.subscriptions
    upstream.fetches[0].accept(holding(0, 1))
    world.run(0.2)
    assert numbers(receiver) == [0, 1]
    assert receiver.end is not None


@pytest.mark.rule("M443", "M444")
def test_behind_a_hole_that_cannot_be_recovered_streams_begin_anew() -> None:
    world = RelayWorld()
    request, receiver, desk = by_hand(world, FROM_NOW)
    send(request.subgroup(SubgroupHead(0, 0, 128, first_object=True)), 0, 0)
    world.run(0.1)
    desk.kill()
    upstream, _ = publisher(world)
    track = holding(0, 1, 2, 3)
    whole = track.objects

    def objects(*asked: Any) -> Any:
        yield Gap(GapKind.UNKNOWN, Location(0, 1))
        yield from (one for one in whole(*asked) if one.head.object > 1)

    track.objects = objects  # type: ignore[method-assign,assignment]
    upstream.requests[0].accept(track)
    world.run(0.1)
    for fetch in upstream.fetches:
        fetch.accept(track)
    world.run(0.1)
    for fetch in upstream.fetches[1:]:
        fetch.accept(track)
    world.run(0.5)
    assert [one[1] for one in shape(receiver)] == [[0], [2, 3]]
    assert receiver.streams[0].ended == StreamCode.INTERNAL_ERROR


@pytest.mark.rule("M183")
def test_what_cannot_be_recovered_ends_with_no_fin() -> None:
    world = RelayWorld()
    request, receiver, desk = by_hand(world, FROM_NOW)
    send(request.subgroup(SubgroupHead(0, 0, 128, first_object=True)), 0, 0)
    world.run(0.1)
    desk.kill()
    upstream, _ = publisher(world)
    upstream.requests[0].accept(holding(0, 1, 2, 3))
    world.run(0.1)
    for fetch in upstream.fetches:
        fetch.refuse(RequestCode.INTERNAL_ERROR, "lost it")
    world.run(0.3)
    sink = upstream.requests[0].subgroup(SubgroupHead(0, 0, 128))
    send(sink, 0, 4)
    world.run(0.1)
    sink.finish()
    world.run(0.3)
    assert numbers(receiver) == [0, 4]
    assert "fin" not in [stream.ended for stream in receiver.streams]


def test_an_object_that_breaks_off_while_it_is_recovered_is_left_out() -> None:
    world = RelayWorld(RelayConfig(recovery=3.0, fill_timeout=1.0))
    request, receiver, desk = by_hand(world, FROM_NOW)
    send(request.subgroup(SubgroupHead(0, 0, 128, first_object=True)), 0, 0)
    world.run(0.1)
    desk.kill()
    upstream, other = publisher(world)
    track = holding(0, 1, 2)
    whole = track.objects
    track.objects = broken(whole)  # type: ignore[method-assign,assignment]
    upstream.requests[0].accept(track)
    world.run(0.1)
    upstream.fetches[0].accept(track)
    world.run(0.1)
    other.side.transport.reset(max(other.side.transport._table.by_handle), 0)
    world.run(0.2)
    track.objects = whole  # type: ignore[method-assign]
    for fetch in upstream.fetches[1:]:
        fetch.refuse(RequestCode.INTERNAL_ERROR, "lost it")
    world.run(5)
    assert receiver.end is None, "the subscription goes on"


def broken(objects: Any) -> Any:
    """Only the head of the first object, and nothing after it."""

    def found(*asked: Any) -> Any:
        for stored in objects(*asked):
            yield stored._replace(payload=(), head=stored.head._replace(length=9))
            while True:
                yield None

    return found


# -- what is known not to exist ------------------------------------------------------------------


@pytest.mark.rule("M172")
def test_what_is_known_not_to_exist_is_neither_passed_on_nor_kept() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world, FROM_NOW)
    (track,) = world.relay.tracks.values()
    track.stock.absent(2, 2)
    sink = request.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    send(sink, 0, 0, 1, 2, 3)
    sink.finish()
    world.run(0.2)
    assert shape(receiver) == [(0, [0, 1, 3], "fin")]
    assert track.stock.archive.get(2) is None
    assert world.relay.context.counts["objects_refused"] == 1


def test_the_end_of_a_group_may_come_where_nothing_is() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world, FROM_NOW)
    (track,) = world.relay.tracks.values()
    track.stock.absent(1, (1 << 64) - 1)
    sink = request.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    send(sink, 0, 0)
    sink.begin(ObjectHead(0, 0, 1, 128, 0, ObjectStatus.END_OF_GROUP))
    sink.end()
    sink.finish()
    world.run(0.2)
    assert shape(receiver) == [(0, [0, 1], "fin")]


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.rule("M443", "M444")
def test_a_stream_that_cannot_be_continued_is_reset_and_another_begun() -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world, FROM_NOW)
    first = request.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    send(first, 0, 0, 1)
    world.run(0.1)
    second = request.subgroup(SubgroupHead(0, 0, 128))
    send(second, 0, 5)
    world.run(0.1)
    assert shape(receiver) == [(0, [0, 1], None)], "2 to 4 may yet come"
    first.abort(StreamCode.DELIVERY_TIMEOUT)
    world.run(0.1)
    assert shape(receiver) == [(0, [0, 1], StreamCode.INTERNAL_ERROR), (0, [5], None)]


@pytest.mark.rule("M121")
def test_what_the_publisher_holds_for_urgent_goes_first() -> None:
    world = RelayWorld()
    track = Track(NAME)
    world.publisher(track)
    _, receiver = world.desk(rate=50_000.0).subscribe(NAME, FROM_NOW)
    world.run(0.3)
    for group in range(4):
        writer = track.subgroup(group, priority=200 - group)
        writer.object(0, bytes(20_000))
        writer.finish()
    world.run()
    came = [head.group for head, _ in receiver.objects]
    assert sorted(came) == [0, 1, 2, 3]
    assert came.index(3) < came.index(2) < came.index(1)


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.rule("M206")
def test_an_object_that_closes_one_session_closes_no_other() -> None:
    world = RelayWorld()
    upstream, desk = publisher(world)
    reader = world.desk()
    _, receiver = reader.subscribe(NAME, FROM_NOW)
    world.run(0.1)
    request = upstream.requests[0]
    request.accept(Track(NAME))
    world.run(0.1)
    send(request.subgroup(SubgroupHead(0, 0, 128, first_object=True)), 0, 0)
    world.run(0.1)
    transport = desk.side.transport
    # A stream of the subgroup {1, 0} with an object of a status that there is not: 0x7.
    (stream,) = [transport.open(order, unidirectional=True) for order in [send_order()]]
    transport.write(stream, bytes([0x10, request.track_alias, 1, 128, 0, 0, 0x7]))
    world.run(0.2)
    assert desk.side.ended is not None
    assert desk.side.ended[0] == SessionCode.PROTOCOL_VIOLATION
    assert reader.side.ended is None
    assert numbers(receiver) == [0]


def send_order() -> Any:
    from transport.api import SendOrder, Tier

    return SendOrder(Tier.OBJECT, 0, 0, 0)


@pytest.mark.rule("M093")
def test_a_mandatory_property_that_comes_late_resets_what_was_begun() -> None:
    world = RelayWorld()
    request, _, desk = by_hand(world, FROM_NOW)
    upstream = desk.side.session._context.handler
    send(request.subgroup(SubgroupHead(5, 0, 128, first_object=True)), 5, 0)
    world.run(0.1)
    _, receiver = world.desk().fetch(NAME, Parameters(location_filter=LocationFilter.groups(0, 0)))
    world.run(0.7)
    fetch, transport = upstream.fetches[0], desk.side.transport
    stream = transport.open(send_order(), unidirectional=True)
    profile = desk.session._context.profile
    transport.write(stream, encode_fetch_header(FetchHeader(fetch.request_id), profile))
    transport.write(stream, FetchEncoder(GroupOrder.ASCENDING).head(ObjectHead(0, 0, 0, 128, 1)))
    transport.write(stream, b"x")
    world.run(0.2)
    assert numbers(receiver) == [0]
    track = holding(0)
    track._properties = write_pairs([(0x4000, 1)])
    fetch.accept(track)
    world.run(0.5)
    (stream,) = receiver.fetches
    assert stream.ended == StreamCode.INTERNAL_ERROR
    assert not isinstance(receiver.error, RequestFailed)
