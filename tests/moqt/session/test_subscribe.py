"""SUBSCRIBE and fill between two sessions: what arrives, once, in which order, and how it ends."""

from __future__ import annotations

import pytest

from moqt.codec.params import Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed, StreamCode
from moqt.model import FullTrackName, Location, LocationFilter, ObjectStatus
from moqt.publisher import SubgroupWriter, Track

from .worlds import Receiver, World

NAME = FullTrackName((b"live", b"room1"), b"video")
EVERYTHING = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0, 0)),
)


def payload(group: int, number: int) -> bytes:
    """What object ``number`` of a group carries."""
    return bytes([group, number]) * 500


def publish_group(track: Track, group: int, count: int = 3) -> None:
    """A whole group, with its end."""
    writer: SubgroupWriter = track.subgroup(group, priority=group)
    for number in range(count):
        writer.object(number, payload(group, number))
    writer.object(count, status=ObjectStatus.END_OF_GROUP)
    writer.finish()


def normal(receiver: Receiver) -> list[tuple[int, int]]:
    """Locations of what carries a payload, sorted; all payloads are right."""
    found = []
    for head, data in receiver.objects:
        if head.status is ObjectStatus.NORMAL:
            assert data == payload(head.group, head.object)
            found.append((head.group, head.object))
    return sorted(found)


def at_rest(world: World) -> None:
    """Only the control streams are left on both sides."""
    assert world.client.is_open
    assert world.server.is_open
    for side in (world.client, world.server):
        assert not side.leftovers()
        assert side.transport.streams == 2
        assert side.transport.unsent() == 0


@pytest.mark.rule("M323", "M008", "M332")
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
    at_rest(world)


@pytest.mark.rule("M065", "M068", "M075", "M514")
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
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert normal(receiver) == expected
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    late = [record for record in receiver.streams if record.what.group == 1]
    assert [record.what.first_object for record in late] == [False]
    at_rest(world)


FAULTS = [
    {"split": 1, "rate": 400_000},
    {"loss": 0.2, "jitter": 0.02},
    {"reorder": 0.5, "split": 700},
    {"loss": 0.1, "reorder": 0.3, "split": 300, "rate": 200_000, "latency": 0.05},
]


@pytest.mark.rule("M135", "M352")
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_network_does(faults: dict[str, float], seed: int) -> None:
    world = World(seed=seed, **faults)
    track = world.catalog.add(Track(NAME))
    world.run(1)
    receivers = [Receiver() for _ in range(3)]
    for group in range(6):
        if group % 2 == 0:
            world.client.session.subscribe(NAME, EVERYTHING, receivers[group // 2])
        publish_group(track, group)
        world.run(0.01 * seed)
    track.end()
    world.run()
    for receiver in receivers:
        assert normal(receiver) == [(g, o) for g in range(6) for o in range(3)]
        assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    at_rest(world)


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
    at_rest(world)


def test_unknown_track() -> None:
    world = World()
    receiver = Receiver()
    world.run(1)
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run()
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.DOES_NOT_EXIST
    assert receiver.error.retry_after is None
    at_rest(world)


@pytest.mark.rule("M029")
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
    at_rest(world)
    writer.object(50, b"for nobody")
    writer.finish()
    world.run()
    assert receiver.streams[0].ended == StreamCode.CANCELLED
    at_rest(world)


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_at_any_moment_nothing_is_left(seed: int) -> None:
    world = World(seed=seed, rate=300_000, jitter=0.01, reorder=0.3)
    track = world.catalog.add(Track(NAME))
    publish_group(track, 0, count=30)
    world.run(1)
    receiver = Receiver()
    request = world.client.session.subscribe(NAME, EVERYTHING, receiver)
    for group in range(1, 8):
        world.run(0.004 * seed)
        if group == 1 + seed % 7:
            request.cancel()
        publish_group(track, group)
    track.end()
    world.run()
    assert receiver.end is None
    assert receiver.error is None
    assert all(record.ended is not None for record in (*receiver.streams, *receiver.fetches))
    at_rest(world)


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
    assert not world.client.leftovers()
    assert not world.server.leftovers()
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
    assert normal(receiver) == [(g, o) for g in range(3) for o in range(3)]
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    at_rest(world)


def test_streams_wait_for_credit_and_all_come() -> None:
    world = World(max_streams=4)
    track = world.catalog.add(Track(NAME))
    world.run(1)
    receiver = Receiver()
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    for group in range(40):
        publish_group(track, group)
    track.end()
    world.run()
    assert normal(receiver) == [(g, o) for g in range(40) for o in range(3)]
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    at_rest(world)


def test_a_reader_that_stops_reading_holds_references_only() -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    world.run(1)
    receiver = Receiver()
    world.client.session.subscribe(NAME, EVERYTHING, receiver)
    world.run(1)
    world.pair.stop_reading("to_client")
    for group in range(20):
        publish_group(track, group)
    track.end()
    world.run(5)
    assert receiver.end is None
    world.pair.resume_reading("to_client")
    world.run()
    assert normal(receiver) == [(g, o) for g in range(20) for o in range(3)]
    at_rest(world)
