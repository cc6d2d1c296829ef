"""Sessions that move, in virtual time over bad paths: nothing lost, nothing doubled, any seed.

``KVCS_MIGRATION_SEEDS`` sets how many seeds run; ``make exactly-once`` runs 60.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from functools import partial
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import SessionCode, StreamCode
from moqt.migration import Roamer
from moqt.model import FullTrackName, GroupOrder, Location, LocationFilter
from moqt.publisher import Catalog
from moqt.session.config import SessionConfig
from moqt.track import Track
from tests.moqt.session.worlds import Receiver, World
from transport.errors import StreamAbort
from transport.network import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = range(int(os.environ.get("KVCS_MIGRATION_SEEDS", "5")))
NAME = FullTrackName((b"live",), b"video")
ALL = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0)),
)
NEWEST_FIRST = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0), group_order=GroupOrder.DESCENDING),
)
#: What has been published before anybody comes, and after; objects of a group.
PAST, LIVE, OBJECTS = 4, 16, 4
#: Virtual seconds that the publishing takes, and that one turn of the event loop stands for.
LENGTH, TURN = 2.0, 0.01


class Held:
    """The client of a World as the Connection that a Roamer holds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.session = world.client.session
        self.closed: tuple[int, str] | None = None

    @property
    def is_open(self) -> bool:
        return self.world.client.is_open

    def subscribe(self, name: Any, receiver: Any, parameters: Any = NO_PARAMETERS) -> Any:
        return self.session.subscribe(name, parameters, receiver)

    def fetch(self, name: Any, receiver: Any, parameters: Any = NO_PARAMETERS) -> Any:
        return self.session.fetch(name, parameters, receiver)

    def when_goaway(self, callback: Callable[[str, int], None]) -> None:
        self.session.on_goaway = callback

    async def close(self, code: int = SessionCode.NO_ERROR, reason: str = "") -> None:
        self.closed = code, reason
        self.session.close(code, reason)


class Journey:
    """One publisher, as many servers of it as it takes, and a client that moves between them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        self.catalog = Catalog()
        self.track = self.catalog.add(Track(NAME))
        self.octets: dict[Location, bytes] = {}
        self.held: list[Held] = []
        self.uris: list[str] = []
        self.open_server()
        self.roamer = Roamer(self.held[0], self.dial)  # type: ignore[arg-type]

    def open_server(self) -> Held:
        """One more server of the catalog, and a path to it with faults of its own."""
        random = self.random
        world = World(
            seed=random.getrandbits(32),
            clock=self.clock,
            server_handler=self.catalog.handler(None),  # type: ignore[arg-type]
            client_config=SessionConfig(authority="pair", path=f"/{len(self.held)}"),
            latency=random.choice((0.001, 0.02, 0.1)),
            jitter=random.choice((0.0, 0.05)),
            loss=random.choice((0.0, 0.1)),
            reorder=random.choice((0.0, 0.3)),
            split=random.choice((None, 60, 1200)),
            rate=random.choice((None, 50_000.0)),
        )
        self.held.append(Held(world))
        return self.held[-1]

    async def dial(self, uri: str) -> Any:
        """As moqt.connect: there once both SETUPs are in."""
        self.uris.append(uri)
        held = self.open_server()
        while not held.session.established:  # noqa: ASYNC110 - virtual time moves it
            await asyncio.sleep(0)
        return held

    async def run(self, seconds: float) -> None:
        """Virtual time passes, and what waits for it gets its turns."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.run(self.clock.now + TURN)
            for _ in range(5):
                await asyncio.sleep(0)

    def publish(self, group: int) -> None:
        """A group, its objects one after the other, on one subgroup or two."""
        random = self.random
        writers = [self.track.subgroup(group, sub) for sub in range(random.randint(1, 2))]
        delays = sorted(random.uniform(0, 0.3) for _ in range(OBJECTS))
        for number, delay in enumerate(delays):
            size = random.choice((0, 10, 500, 2500))
            place = Location(group, number)
            self.clock.call_later(delay, self.put(writers[number % len(writers)], place, size))
        for writer in writers:
            self.clock.call_later(0.31, writer.finish)

    def put(self, writer: Any, place: Location, size: int) -> Callable[[], None]:
        payload = hashlib.shake_128(repr(place).encode()).digest(size)

        def write() -> None:
            self.octets[place] = payload
            writer.object(place.object, payload)

        return write

    def check(self, receiver: Receiver) -> None:
        """Every object once, with its octets, whichever session brought it."""
        assert receiver.error is None
        came = [head.location for head, _ in receiver.objects]
        assert sorted(came) == sorted(self.octets)
        for head, payload in receiver.objects:
            assert (
                hashlib.sha256(payload).digest()
                == hashlib.sha256(self.octets[head.location]).digest()
            )


@pytest.mark.rule("M293", "M297")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moves", [1, 3])
async def test_each_object_once_wherever_the_session_moves(seed: int, moves: int) -> None:
    journey = Journey(seed)
    for group in range(PAST):
        journey.publish(group)
    await journey.run(0.5)
    receivers = [Receiver(), Receiver()]
    for receiver, asked in zip(receivers, (ALL, NEWEST_FIRST), strict=True):
        journey.roamer.subscribe(NAME, receiver, asked)
    await journey.run(1.0)  # both are accepted: what is published from now on is theirs
    assert all(receiver.info for receiver in receivers)
    for number in range(LIVE):
        when = number * LENGTH / LIVE + journey.random.uniform(0, 0.1)
        journey.clock.call_later(when, partial(journey.publish, PAST + number))
    for number in range(moves):
        await journey.run(journey.random.uniform(0.02, LENGTH / moves))
        here = journey.held[-1].world.server.session
        here.goaway(f"moqt://there/{number}")
        while len(journey.held) < number + 2:
            await journey.run(TURN)
        while journey.roamer.connection is not journey.held[-1]:
            await journey.run(TURN)
    await journey.run(LENGTH + 10)
    journey.track.end()
    await journey.run(12)
    assert journey.uris == [f"moqt://there/{number}" for number in range(moves)]
    for receiver in receivers:
        journey.check(receiver)
        assert receiver.end is not None
    *left, last = journey.held
    assert [held.closed for held in left] == [(SessionCode.NO_ERROR, "moved")] * moves
    assert last.closed is None
    for held in journey.held:
        assert not held.world.client.leftovers()
    await journey.roamer.close()


@pytest.mark.parametrize("objects", [0, 5], ids=["before-its-header", "midway"])
async def test_a_fill_that_is_reset_is_asked_for_anew_before_the_old_session_goes(
    objects: int,
) -> None:
    journey = Journey(0)
    for group in range(PAST):
        journey.publish(group)
    await journey.run(0.5)
    receiver = Receiver()
    journey.roamer.subscribe(NAME, receiver, ALL)
    await journey.run(3.0)
    whole, reads = journey.track.objects, []

    def first_broken(*arguments: Any) -> Iterator[Any]:
        reads.append(arguments)
        items = whole(*arguments)
        if len(reads) == 1:
            yield from islice(items, objects)
            raise StreamAbort(StreamCode.EXCESSIVE_LOAD)
        yield from items

    journey.track.objects = first_broken  # type: ignore[method-assign]
    journey.held[0].world.server.session.goaway("moqt://there/0")
    await journey.run(5.0)
    assert len(reads) == 2
    journey.check(receiver)
    assert journey.held[0].closed == (SessionCode.NO_ERROR, "moved")
    await journey.roamer.close()


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param(LocationFilter.next_object(), range(18, 24), id="from-now-on"),
        pytest.param(LocationFilter.groups(4, 5), range(18, 24), id="bounded"),
    ],
)
async def test_what_is_asked_for_anew_brings_nothing_that_was_not_wanted(
    asked: LocationFilter, wanted: range
) -> None:
    """Objects 0 to 17 come before, 18 to 23 are wanted, the rest comes after; 4 in each group."""
    journey = Journey(0)
    numbers = [Location(*divmod(number, OBJECTS)) for number in range(40)]
    writers = {group: journey.track.subgroup(group) for group in range(10)}

    def write(places: list[Location]) -> None:
        for place in places:
            writers[place.group].object(place.object, b"%d" % place.object)

    write(numbers[:18])
    await journey.run(0.5)
    receiver = Receiver()
    journey.roamer.subscribe(NAME, receiver, Parameters(location_filter=asked))
    await journey.run(2.0)
    write(numbers[18:21])
    await journey.run(2.0)
    journey.held[0].world.server.session.goaway("moqt://there/0")
    await journey.run(2.0)
    write(numbers[21:40] if asked.end_group_delta else numbers[21:24])
    for writer in writers.values():
        writer.finish()
    await journey.run(5.0)
    assert sorted(head.location for head, _ in receiver.objects) == [numbers[one] for one in wanted]
    assert journey.held[0].closed == (SessionCode.NO_ERROR, "moved")
    await journey.roamer.close()
