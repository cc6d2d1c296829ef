"""Under a bandwidth cap, earlier layers complete first and urgent data does not wait."""

from __future__ import annotations

import pytest

from moqt.codec.params import Parameters
from moqt.model import FullTrackName, LocationFilter
from moqt.publisher import Track
from tests.moqt.session.worlds import Receiver, Record, World

NAMESPACE = (b"kvcs-1",)
MIB = 1 << 20
RATE = 8 * MIB
LAYERS = 16
OBJECT = 32 << 10
LIVE = Parameters(location_filter=LocationFilter.next_object())


class Timed(Receiver):
    """Writes down when each stream ended, in virtual seconds."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.finished: list[tuple[int, float]] = []

    def open_subgroup(self, head):  # type: ignore[no-untyped-def]
        receiver = self

        class Ending(Record):
            def finish(self) -> None:
                super().finish()
                receiver.finished.append((head.group, receiver.world.pair.now))

        self.streams.append(Ending(head))
        return self.streams[-1]


def layer(track: Track, number: int, octets: int) -> None:
    writer = track.subgroup(number, priority=128 * number // LAYERS)
    payload = memoryview(bytes(OBJECT))
    for index in range(octets // OBJECT):
        writer.object(index, payload)
    writer.finish()


@pytest.mark.rule("M115")
def test_layers_published_at_once_complete_in_order() -> None:
    world = World(latency=0.010, rate=RATE)
    names = [FullTrackName(NAMESPACE, name) for name in (b"k.raw.s0", b"v.raw.s0")]
    tracks = [world.catalog.add(Track(name)) for name in names]
    receivers = [Timed(world) for _ in names]
    world.run(1)
    for name, receiver in zip(names, receivers, strict=True):
        world.client.session.subscribe(name, LIVE, receiver)
    world.run(1)
    for number in reversed(range(LAYERS)):  # the last layer is handed over first
        for track in tracks:
            layer(track, number, 256 << 10)
    world.run(30)
    ends = sorted((when, group) for receiver in receivers for group, when in receiver.finished)
    assert len(ends) == 2 * LAYERS
    order = [group for _, group in ends]
    assert order == sorted(order)


def test_a_late_urgent_stream_finishes_within_twice_the_ideal(
    pytestconfig: pytest.Config,
) -> None:
    world = World(latency=0.010, rate=RATE)
    bulk, urgent = (FullTrackName(NAMESPACE, name) for name in (b"bulk", b"urgent"))
    bulk_track, urgent_track = (world.catalog.add(Track(name)) for name in (bulk, urgent))
    slow, fast = Timed(world), Timed(world)
    world.run(1)
    world.client.session.subscribe(bulk, LIVE, slow)
    world.client.session.subscribe(urgent, LIVE, fast)
    world.run(1)
    for number in range(1, 17):
        writer = bulk_track.subgroup(number, priority=200)
        for index in range(32):
            writer.object(index, memoryview(bytes(OBJECT)))
        writer.finish()
    world.run(0.7)
    start = world.pair.now
    layer(urgent_track, 0, MIB)
    world.run(30)
    ideal = MIB / RATE + 2 * 0.010
    took = fast.finished[0][1] - start
    line = f" urgent 1 MiB: {1000 * took:.0f} ms, ideal {1000 * ideal:.0f} ms "
    pytestconfig.get_terminal_writer().write(line)
    assert took <= 2 * ideal
    assert len(slow.finished) == 16
