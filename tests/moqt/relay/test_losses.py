"""How long a lost publisher is waited for, and how a subscription ends that has had everything."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.errors import DoneCode
from moqt.model import ObjectHead, ObjectStatus, SubgroupHead
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from tests.moqt.session.worlds import Receiver

from .test_fidelity import Upstream, by_hand, send
from .test_recovery import FROM_NOW, holding, numbers, publisher
from .test_relaying import ALL, layer, normal
from .worlds import NAME, SPACE, Desk, RelayWorld

SHORT = RelayConfig(recovery=2.0)


def begun(world: RelayWorld) -> tuple[Receiver, Desk]:
    """A subscriber that has had object 0 of a subgroup that goes on, and the publisher."""
    request, receiver, desk = by_hand(world, FROM_NOW)
    send(request.subgroup(SubgroupHead(0, 0, 128, first_object=True)), 0, 0)
    world.run(0.1)
    return receiver, desk


def another(world: RelayWorld, *objects: int) -> tuple[Upstream, Desk]:
    """One more publisher, which has accepted and has these objects; its fetches wait."""
    upstream, desk = publisher(world)
    upstream.requests[0].accept(holding(*objects))
    world.run(0.1)
    assert len(upstream.fetches) == 1
    return upstream, desk


def ends_track(upstream: Upstream, *, group: int = 1) -> Any:
    """END_OF_TRACK as the one object of a group."""
    sink = upstream.requests[0].subgroup(SubgroupHead(group, 0, 128, first_object=True))
    sink.begin(ObjectHead(group, 0, 0, 128, 0, ObjectStatus.END_OF_TRACK))
    sink.end()
    sink.finish()


def test_what_was_missed_has_the_time_it_takes_once_a_publisher_is_there() -> None:
    world = RelayWorld(SHORT)
    receiver, desk = begun(world)
    desk.kill()
    upstream, _ = another(world, 0, 1, 2)
    world.run(3 * SHORT.recovery)
    send(upstream.requests[0].subgroup(SubgroupHead(0, 0, 128)), 0, 3)
    world.run(0.1)
    upstream.fetches[0].accept(holding(0, 1, 2))
    world.run(0.2)
    assert numbers(receiver) == [0, 1, 2, 3]
    assert [stream.ended for stream in receiver.streams] == [None]


def test_the_time_counts_anew_from_each_loss() -> None:
    world = RelayWorld(SHORT)
    receiver, first = begun(world)
    first.kill()
    world.run(0.7 * SHORT.recovery)
    _, second = another(world, 0, 1, 2)
    second.kill()
    world.run(0.7 * SHORT.recovery)
    assert receiver.end is None
    upstream, third = another(world, 0, 1, 2)
    upstream.fetches[0].accept(holding(0, 1, 2))
    world.run(0.2)
    assert numbers(receiver) == [0, 1, 2]
    third.kill()
    world.run(SHORT.recovery + 0.1)
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.INTERNAL_ERROR, "nobody came"


def test_a_track_that_ends_while_it_is_caught_up_with_ends_well() -> None:
    world = RelayWorld(SHORT)
    receiver, desk = begun(world)
    desk.kill()
    upstream, _ = another(world, 0, 1, 2)
    ends_track(upstream)
    upstream.requests[0].done(DoneCode.TRACK_ENDED)
    world.run(2 * SHORT.recovery)
    assert receiver.end is None
    whole = holding(0, 1, 2)
    whole.subgroup(1).object(0, status=ObjectStatus.END_OF_TRACK)
    upstream.fetches[0].accept(whole)
    world.run(1)
    for fetch in upstream.fetches[1:]:
        fetch.accept(whole)
    world.run(1)
    assert numbers(receiver) == [0, 1, 2]
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)


@pytest.mark.parametrize("relays", [1, 2])
def test_who_has_had_all_of_an_ended_track_does_not_wait_for_its_publisher(relays: int) -> None:
    world = RelayWorld()
    edge = world.relay
    for _ in range(relays - 1):
        edge = world.another()
        world.chain(edge, world.relay, SPACE[:1])
    track = Track(NAME)
    desk = world.publisher(track)
    _, receiver = world.desk(edge).subscribe()
    world.run(0.3)
    layer(track, 0)
    writer = track.subgroup(1)
    writer.object(0, status=ObjectStatus.END_OF_TRACK)
    writer.finish()
    world.run(0.2)
    desk.kill()
    world.run(0.3)
    assert normal(receiver) == ALL[:4]
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)


def test_who_lacks_something_of_an_ended_track_waits_for_its_publisher() -> None:
    world = RelayWorld(SHORT)
    request, receiver, desk = by_hand(world, FROM_NOW)
    send(request.subgroup(SubgroupHead(0, 0, 128, first_object=True)), 0, 0)
    sink = request.subgroup(SubgroupHead(1, 0, 128, first_object=True))
    sink.begin(ObjectHead(1, 0, 0, 128, 0, ObjectStatus.END_OF_TRACK))
    sink.end()
    sink.finish()
    world.run(0.1)
    desk.kill()
    world.run(0.5 * SHORT.recovery)
    assert receiver.end is None
    world.run(SHORT.recovery)
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.INTERNAL_ERROR
