"""SUBSCRIBE and fill between two sessions: what arrives, once, in which order, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moqt.codec.params import Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed
from moqt.model import FullTrackName, Location, LocationFilter, ObjectStatus
from moqt.publisher import Track

from .worlds import Receiver, World

if TYPE_CHECKING:
    from moqt.publisher import SubgroupWriter

NAME = FullTrackName((b"live", b"room1"), b"video")
EVERYTHING = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0, 0)),
)


def payload(group: int, number: int) -> bytes:
    return bytes([group, number]) * 500


def publish_group(track: Track, group: int, count: int = 3) -> None:
    writer: SubgroupWriter = track.subgroup(group, priority=group)
    for number in range(count):
        writer.object(number, payload(group, number))
    writer.object(count, status=ObjectStatus.END_OF_GROUP)
    writer.finish()


def test_live_from_the_start() -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    receiver = Receiver()
    world.run(1)
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    assert receiver.info is not None
    assert receiver.info.largest is None
    assert not receiver.info.fill
    for group in range(3):
        publish_group(track, group)
        world.run(1)
    track.end()
    world.run()
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert receiver.locations == [(g, o) for g in range(3) for o in range(4)]
    assert all(record.ended == "fin" for record in receiver.streams)
    assert [record.what.priority for record in receiver.streams] == [0, 1, 2]
    assert all(record.what.first_object for record in receiver.streams)
    assert world.client.is_open
    assert world.pair.server.streams <= 2  # only the control streams are left
    assert world.pair.client.streams <= 2


@pytest.mark.rule("M065", "M068", "M075")
def test_join_in_the_middle_is_exactly_once() -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    world.run(1)
    publish_group(track, 0)
    writer = track.subgroup(1, priority=1)
    writer.object(0, payload(1, 0))
    receiver = Receiver()
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    assert receiver.info is not None
    assert receiver.info.largest == Location(1, 0)
    assert receiver.info.fill
    writer.object(1, payload(1, 1))
    writer.finish()
    publish_group(track, 2)
    track.end()
    world.run()
    normal = [(h.group, h.object) for h, _ in receiver.objects if h.status is ObjectStatus.NORMAL]
    assert sorted(normal) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert len(normal) == len(set(normal))
    for head, data in receiver.objects:
        if head.status is ObjectStatus.NORMAL:
            assert data == payload(head.group, head.object)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    late = [record for record in receiver.streams if record.what.group == 1]
    assert [record.what.first_object for record in late] == [False]


def test_after_the_end_all_comes_as_fill() -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    for group in range(4):
        publish_group(track, group)
    track.end()
    world.run(1)
    receiver = Receiver()
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run()
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert not receiver.streams
    assert receiver.locations == [(g, o) for g in range(4) for o in range(3)]
    assert receiver.fetches[0].ended == "fin"


def test_unknown_track() -> None:
    world = World()
    receiver = Receiver()
    world.run(1)
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run()
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.DOES_NOT_EXIST
    assert receiver.error.retry_after is None


def test_cancel_resets_everything_of_the_subscription() -> None:
    world = World(rate=100_000)
    track = world.catalog.add(Track(NAME))
    world.run(1)
    receiver = Receiver()
    request = world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    writer = track.subgroup(0)
    for number in range(50):
        writer.object(number, bytes(10_000))
    world.run(0.5)
    request.cancel()
    world.run(5)
    assert receiver.end is None
    assert receiver.error is None
    assert world.client.is_open
    assert world.server.is_open
    assert world.pair.server.unsent() == 0
    assert world.pair.server.streams <= 2
    writer.object(50, b"for nobody")
    writer.finish()
    world.run()
    assert receiver.streams[0].ended == 1


def test_session_lost() -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    publish_group(track, 0)
    world.run(1)
    receiver = Receiver()
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    world.pair.kill()
    world.run()
    assert receiver.error is not None
    assert world.client.ended is not None
    assert world.client.ended[0] == -1
    publish_group(track, 1)  # nobody listens, nothing breaks


def test_pause_and_resume() -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    world.run(1)
    receiver = Receiver()
    request = world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    publish_group(track, 0)
    world.run(1)
    request.update(Parameters(forward=False))
    world.run(1)
    publish_group(track, 1)
    world.run(1)
    request.update(
        Parameters(forward=True, fill=Parameters(location_filter=LocationFilter.groups(1, 1)))
    )
    world.run(1)
    publish_group(track, 2)
    track.end()
    world.run()
    normal = [(h.group, h.object) for h, _ in receiver.objects if h.status is ObjectStatus.NORMAL]
    assert sorted(normal) == [(g, o) for g in range(3) for o in range(3)]
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
