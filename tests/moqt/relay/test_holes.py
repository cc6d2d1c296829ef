"""Holes that no stream shows: what a pause left out, what was lost before it began."""

from __future__ import annotations

import pytest

from moqt.codec.params import Parameters
from moqt.model import ObjectHead, ObjectStatus, SubgroupHead
from moqt.publisher import Track

from .test_fidelity import by_hand, send
from .worlds import NAME, RelayWorld


@pytest.mark.parametrize("after", [0.06, 0.11, 0.16, 0.21, 0.31])
def test_a_stream_that_goes_on_after_a_pause_may_have_left_out(after: float) -> None:
    """One more object may follow on the same stream before what was left out is fetched."""
    world = RelayWorld(latency=0.05)
    track = Track(NAME)
    world.publisher(track)
    request, receiver = world.desk().subscribe()
    world.run(0.5)
    writer = track.subgroup(0)
    writer.object(0, b"0")
    writer.object(1, b"1")
    world.run(0.5)
    request.update(Parameters(forward=False))
    world.run(0.5)
    request.update(Parameters(forward=True))
    world.run(0.04)
    writer.object(2, b"2")  # the resume is on its way
    world.run(after)
    writer.object(3, b"3")
    world.run(2.0)
    writer.finish()
    assert sorted(payload for _, payload in receiver.objects) == [b"0", b"1", b"2", b"3"]


def test_a_subgroup_lost_before_it_began_beside_one_that_is_whole() -> None:
    world = RelayWorld()
    request, receiver, desk = by_hand(world)
    sink = request.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    send(sink, 0, 0, 2)
    sink.begin(ObjectHead(0, 0, 3, 128, 0, ObjectStatus.END_OF_GROUP))
    sink.end()
    sink.finish()
    world.run(0.1)
    desk.kill()
    world.run(0.1)
    track = Track(NAME)
    whole, other = track.subgroup(0, 0), track.subgroup(0, 1)
    whole.object(0, bytes([0]))
    other.object(1, bytes([1]))
    whole.object(2, bytes([2]))
    world.publisher(track)
    world.run(2.0)
    normal = [h.object for h, _ in receiver.objects if h.status is ObjectStatus.NORMAL]
    assert normal == [0, 2, 1]
