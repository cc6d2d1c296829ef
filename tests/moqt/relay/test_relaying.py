"""Objects through a relay: once, whole and in the order of their subgroup, whoever joins when."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode
from moqt.model import GroupOrder, LocationFilter, ObjectStatus
from moqt.publisher import Track

from .worlds import NAME, RelayWorld

LAYERS, BLOCKS = 6, 4
ALL = [(g, o) for g in range(LAYERS) for o in range(BLOCKS)]


def payload(group: int, number: int) -> bytes:
    return bytes([group, number]) * 700


def layer(track: Track, group: int, blocks: int = BLOCKS) -> None:
    writer = track.subgroup(group, priority=group)
    for number in range(blocks):
        writer.object(number, payload(group, number))
    writer.object(blocks, status=ObjectStatus.END_OF_GROUP)
    writer.finish()


def end(track: Track, layers: int = LAYERS) -> None:
    writer = track.subgroup(layers)
    writer.object(0, status=ObjectStatus.END_OF_TRACK)
    writer.finish()
    track.end()


def normal(receiver: Any) -> list[tuple[int, int]]:
    found = []
    for head, octets in receiver.objects:
        if head.status is ObjectStatus.NORMAL:
            assert octets == payload(head.group, head.object)
            found.append((head.group, head.object))
    return sorted(found)


def test_live_from_the_start() -> None:
    world = RelayWorld()
    track = Track(NAME)
    world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.2)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert normal(receiver) == ALL
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.TRACK_ENDED
    assert receiver.end[2], "all streams came"
    assert world.relay.context.counts["octets_in"] == sum(len(payload(*at)) for at in ALL)


@pytest.mark.parametrize("joined", range(LAYERS + 1))
def test_a_join_in_the_middle(joined: int) -> None:
    world = RelayWorld(latency=0.01)
    track = Track(NAME)
    world.publisher(track)
    _, first = world.desk().subscribe()
    world.run(0.2)
    late: Any = None
    for group in range(LAYERS):
        if group == joined:
            _, late = world.desk().subscribe()
        layer(track, group)
        world.run(0.005)
    if late is None:
        _, late = world.desk().subscribe()
    world.run(0.3)
    end(track)
    world.run()
    for receiver in (first, late):
        assert normal(receiver) == ALL
        assert receiver.end is not None
        assert receiver.end[0] == DoneCode.TRACK_ENDED
    assert world.relay.context.counts["octets_in"] == sum(len(payload(*at)) for at in ALL)


@pytest.mark.parametrize("order", GroupOrder)
def test_a_fetch_twice_asks_upstream_once(order: GroupOrder) -> None:
    world = RelayWorld()
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.publisher(track)
    asked = Parameters(location_filter=LocationFilter.groups(1, 3), group_order=order)
    for _ in range(2):
        _, receiver = world.desk().fetch(NAME, asked)
        world.run()
        assert receiver.error is None
        assert normal(receiver) == [at for at in ALL if 1 <= at[0] <= 3]
        groups = [head.group for head, _ in receiver.objects]
        assert groups == sorted(groups, reverse=order is GroupOrder.DESCENDING)
        assert receiver.fetches[0].gaps == []
    assert world.relay.context.counts["octets_in"] == 12 * 1400
    assert world.relay.context.counts["fetches_upstream"] == 1


def test_the_publisher_is_gone_and_all_is_here() -> None:
    world = RelayWorld()
    track = Track(NAME)
    desk = world.publisher(track)
    _, receiver = world.desk().subscribe()
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.run()
    desk.kill()
    world.run()
    _, late = world.desk().fetch(NAME, NO_PARAMETERS)
    world.run()
    assert normal(late) == ALL == normal(receiver)
    _, refused = world.desk().subscribe()
    world.run()
    assert refused.error is not None


def test_two_relays_in_a_chain() -> None:
    world = RelayWorld(latency=0.01)
    edge = world.another()
    track = Track(NAME)
    world.publisher(track)
    world.chain(edge, world.relay)
    _, first = world.desk(edge).subscribe()
    world.run(0.3)
    for group in range(3):
        layer(track, group)
    world.run(0.3)
    _, late = world.desk(edge).subscribe()
    world.run(0.1)
    for group in range(3, LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert normal(first) == ALL == normal(late)
    assert world.relay.context.counts["octets_in"] == 24 * 1400
    assert edge.context.counts["octets_in"] == 24 * 1400


@pytest.mark.rule("M050")
def test_what_a_fetch_left_out_does_not_exist() -> None:
    world = RelayWorld()
    track = Track(NAME)
    for group in (1, 2, 5):
        writer = track.subgroup(group)
        for number in (0, 3, 4):
            writer.object(number, payload(group, number))
        writer.finish()
    layer(track, 6)
    world.publisher(track)
    asked = Parameters(location_filter=LocationFilter.groups(0, 5))
    for _ in range(2):
        _, receiver = world.desk().fetch(NAME, asked)
        world.run()
        assert normal(receiver) == [(g, n) for g in (1, 2, 5) for n in (0, 3, 4)]
        assert receiver.fetches[0].gaps == []
    assert world.relay.context.counts["fetches_upstream"] == 1
