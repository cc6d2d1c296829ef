"""What a publisher begins and never ends, or sends out of turn, costs a relay so much at most."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import StreamCode
from moqt.model import LocationFilter, ObjectHead, SubgroupHead
from moqt.publisher import Track
from moqt.relay.cache import OBJECT_COST
from moqt.relay.config import RelayConfig
from moqt.relay.subgroups import MAX_WAITING
from moqt.session.subgroups import STREAM_COST
from tests.moqt.session.worlds import Receiver

from .test_fidelity import Upstream, by_hand, send, shape
from .worlds import NAME, ONE_TRACK, SPACE, RelayWorld


def two_publishers(world: RelayWorld) -> tuple[list[Any], Receiver]:
    """The relay's subscriptions at two publishers by hand; a subscriber behind it."""
    upstreams = [Upstream(), Upstream()]
    for upstream in upstreams:
        desk = world.desk(handler=upstream)
        desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, receiver = world.desk().subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    requests = [one.requests[0] for one in upstreams]
    for request in requests:
        request.accept(Track(NAME))
    world.run(0.1)
    return requests, receiver


def stalled(request: Any, group: int = 0, subgroup: int = 0, length: int = 10) -> Any:
    """A subgroup whose first object lacks its last octet."""
    sink = request.subgroup(SubgroupHead(group, subgroup, 1, first_object=True))
    sink.begin(ObjectHead(group, subgroup, 0, 1, length))
    sink.write(b"x" * (length - 1))
    return sink


def had(receiver: Receiver) -> list[tuple[int, int]]:
    return [(head.group, head.object) for head, _ in receiver.objects]


def fan_of(world: RelayWorld) -> Any:
    return next(iter(world.relay.tracks[NAME].stock.fans.values()))


def test_an_object_too_large_to_keep_that_must_wait_is_reset_not_cut() -> None:
    """Its first octets are gone when its turn comes: no short object may go out."""
    world = RelayWorld(RelayConfig(max_cached_object=1000))
    (one, other), receiver = two_publishers(world)
    first = stalled(one)
    world.run(0.1)
    second = other.subgroup(SubgroupHead(0, 0, 1))
    second.begin(ObjectHead(0, 0, 1, 1, 2000))
    second.write(b"y" * 1500)
    world.run(0.1)
    first.write(b"x")
    first.end()
    world.run(0.1)
    second.write(b"y" * 500)
    second.end()
    send(second, 0, 2, priority=1)
    world.run(0.1)
    first.abort(StreamCode.CANCELLED)
    world.run(0.1)
    second.finish()
    world.run(0.1)
    assert receiver.error is None
    assert shape(receiver) == [
        (0, [0], StreamCode.INTERNAL_ERROR),
        (0, [2], StreamCode.CANCELLED),  # not FIN: object 1 is missing
    ]
    assert [len(payload) for _, payload in receiver.objects] == [10, 1]


def test_objects_that_wait_for_one_before_them_are_few() -> None:
    world = RelayWorld()
    (one, other), receiver = two_publishers(world)
    stalled(one)
    world.run(0.1)
    ahead = other.subgroup(SubgroupHead(0, 0, 1))
    for number in range(2, 2 * MAX_WAITING, 2):  # each may follow one that is not here
        ahead.begin(ObjectHead(0, 0, number, 1, 1))
        ahead.write(b"y")
        ahead.end()
    world.run(0.5)
    assert had(receiver) == []
    assert len(fan_of(world).follows) == MAX_WAITING - 1
    for number in range(2 * MAX_WAITING, 2 * MAX_WAITING + 20, 2):
        ahead.begin(ObjectHead(0, 0, number, 1, 1))
        ahead.write(b"y")
        ahead.end()
    world.run(0.5)
    assert len(fan_of(world).follows) == 0
    assert [at[1] for at in had(receiver)] == list(range(2, 2 * MAX_WAITING + 20, 2))


def test_what_waits_and_is_forgotten_is_not_looked_for_again_and_again() -> None:
    world = RelayWorld(RelayConfig(cache=ONE_TRACK + 4 * OBJECT_COST))
    (one, other), _ = two_publishers(world)
    stalled(one)
    world.run(0.1)
    ahead = other.subgroup(SubgroupHead(0, 0, 1))
    for number in range(2, 4 * MAX_WAITING, 2):
        ahead.begin(ObjectHead(0, 0, number, 1, 1))
        ahead.write(b"y")
        ahead.end()
    world.run(0.5)
    assert len(fan_of(world).follows) <= MAX_WAITING


def test_a_subgroup_that_never_ends_keeps_no_others() -> None:
    world = RelayWorld(RelayConfig(max_finished=3))
    request, receiver, _ = by_hand(world)
    stalled(request)
    for group in range(1, 30):
        sink = request.subgroup(SubgroupHead(group, 0, 1, first_object=True))
        send(sink, group, 0, priority=1)
        sink.finish()
        world.run(0.05)
    assert len(world.relay.tracks[NAME].stock.fans) <= 4
    assert len(had(receiver)) == 29


def test_objects_that_are_not_finished_take_so_much() -> None:
    """Those begun first are let go and pass through; what was sent of them stays right."""
    world = RelayWorld(RelayConfig(unfinished=5000))
    request, receiver, _ = by_hand(world)
    sinks = [stalled(request, group, length=1000) for group in range(10)]
    world.run(0.5)
    unfinished = world.relay.context.unfinished
    assert 0 < unfinished.octets <= 5000
    for sink in sinks:
        sink.write(b"x")
        sink.end()
        sink.finish()
    world.run(0.5)
    assert unfinished.octets == 0
    assert sorted(had(receiver)) == [(group, 0) for group in range(10)]
    assert {payload for _, payload in receiver.objects} == {b"x" * 1000}
    assert world.relay.cache.objects == 5


def test_a_reader_of_an_object_that_is_let_go_gets_it_elsewhere() -> None:
    world = RelayWorld(RelayConfig(unfinished=1500, straggler=0.1))
    track = Track(NAME)
    upstream, whole = Upstream(), b"x" * 1000
    one = world.desk(handler=upstream)
    one.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, live = world.desk().subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    (request,) = upstream.requests
    request.accept(track)
    sink = stalled(request, length=1000)
    stalled(request, 1, length=10)
    world.run(0.1)
    asked = Parameters(location_filter=LocationFilter.groups(0, 0))
    _, reader = world.desk().fetch(NAME, asked)
    world.run(0.05)
    stalled(request, 2, length=1000)  # no room for both
    world.run(0.05)
    track.subgroup(0, priority=1).object(0, whole)
    world.run(0.5)
    for fetch in upstream.fetches:
        fetch.accept(track)
    world.run(0.5)
    sink.write(b"x")
    sink.end()
    sink.finish()
    world.run(1.0)
    assert [payload for _, payload in live.objects] == [whole]
    assert [payload for _, payload in reader.objects] == [whole]


@pytest.mark.parametrize("length", [0, 1])
def test_small_objects_run_ahead_of_a_reader_no_further_than_large_ones(length: int) -> None:
    world = RelayWorld(RelayConfig(cache=ONE_TRACK + 400 * OBJECT_COST))
    track = Track(NAME)
    world.publisher(track)
    writer = track.subgroup(0)
    for number in range(2000):
        writer.object(number, b"x" * length)
    writer.finish()
    lame = world.desk(window=2000)
    lame.pair.stop_reading("to_client")
    _, slow = lame.fetch()
    world.run(2.0)
    counts = world.relay.context.counts
    assert counts["fetches_stopped"] >= 1
    assert counts["objects_in"] < 1500
    lame.pair.resume_reading("to_client")
    world.run()
    assert len(had(slow)) == 2000


@pytest.mark.parametrize("length", [0, 10])
def test_small_objects_that_nobody_takes_count_with_what_they_cost(length: int) -> None:
    """Each group has a stream of its own, which costs more than its one object."""
    world = RelayWorld(RelayConfig(backlog=100 * STREAM_COST))
    track = Track(NAME)
    world.publisher(track)
    lame = world.desk(window=2000)
    lame.pair.stop_reading("to_client")
    lame.subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    for group in range(600):
        writer = track.subgroup(group)
        writer.object(0, b"x" * length)
        writer.finish()
        world.run(0.001)
    assert world.relay.context.counts["too_far_behind"] == 1
    assert not world.relay.tracks[NAME].stock.subscriptions


def test_a_backlog_that_was_taken_is_none() -> None:
    world = RelayWorld()
    track = Track(NAME)
    world.publisher(track)
    _, receiver = world.desk().subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    for group in range(5):
        writer = track.subgroup(group)
        writer.object(0, b"x" * 1000)
        writer.object(1)
        if group < 4:
            writer.finish()
    world.run(0.5)
    (subscription,) = world.relay.tracks[NAME].stock.subscriptions
    assert subscription.backlog == STREAM_COST  # the one that is open
    assert len(had(receiver)) == 10
