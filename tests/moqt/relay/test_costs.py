"""What tracks cost beside their objects is in the budget, and no more of it than there is."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import write_pairs
from moqt.errors import RequestCode, RequestFailed
from moqt.model import FullTrackName, LocationFilter, SubgroupHead
from moqt.publisher import Track
from moqt.relay.archive import MAX_ABSENT
from moqt.relay.cache import (
    EXTRAS,
    EXTRAS_LEAST,
    FINISHED_COST,
    GAP_COST,
    PROPERTIES,
    TRACK_COST,
    Cache,
)
from moqt.relay.config import RelayConfig
from moqt.relay.legs import Leg
from moqt.relay.spans import place

from .test_publishers import offer
from .test_relaying import layer, normal
from .tracks import archive
from .worlds import NAME, SPACE, Desk, RelayWorld

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = write_pairs([(0x9001, b"p" * 60_000)])


def name_of(number: int) -> FullTrackName:
    return FullTrackName((*SPACE[:2], b"%d" % number), b"t")


def track_of(number: int, properties: bytes = b"") -> Track:
    track = Track(name_of(number))
    track._properties = properties
    return track


def serving(world: RelayWorld, *tracks: Track) -> Desk:
    """A client that announces what all of these lie under."""
    desk = world.desk()
    for track in tracks:
        desk.catalog.add(track)
    desk.catalog.announce(SPACE[:2])
    world.run(0.1)
    desk.catalog.announce_on(desk.side)  # type: ignore[arg-type]
    world.run(0.1)
    return desk


def measured(work: Callable[[], object], count: int) -> float:
    """Octets that each of ``count`` things costs that ``work`` makes and returns."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = work()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept is not None
    return (after - before) / count


def test_what_is_charged_is_what_it_costs() -> None:
    world = RelayWorld(RelayConfig(cache=1 << 34))
    relay = world.relay
    names = [name_of(number) for number in range(1000)]
    peer: Any = None

    def tracks() -> list[Any]:
        made = [relay.track(name) for name in names]
        for one in made:
            one._legs.append(Leg(one, peer))
        return made

    assert measured(tracks, 1000) < TRACK_COST
    stock = relay.track(names[0]).stock

    def finished() -> object:
        for group in range(2000):
            fan = stock.fan(SubgroupHead(group + (1 << 40), 0, 1))
            fan.begun(5, 4)
            fan.close()
        return stock.fans

    assert measured(finished, 2000) < FINISHED_COST

    def gaps() -> object:
        for group in range(2000):
            first = place((group, 1 << 40))
            stock.absent(first, first + 5)
        return stock.archive.known

    assert measured(gaps, 2000) < GAP_COST


def test_tracks_are_in_the_budget() -> None:
    world = RelayWorld(RelayConfig(linger=1.0))
    assert world.relay.cache.octets == 0
    desk = offer(world, track_of(0, LONG))
    assert world.relay.cache.octets > TRACK_COST + len(LONG) - PROPERTIES
    desk.kill()
    world.run(3)
    assert not world.relay.tracks
    assert world.relay.cache.octets == 0


def test_many_tracks_with_long_properties() -> None:
    """Those beyond a part of the budget are refused; others go on, and so do those without."""
    world = RelayWorld(RelayConfig(cache=8 << 20, linger=1.0))
    limit = (8 << 20) // EXTRAS
    cache = world.relay.cache
    honest = Track(NAME)
    layer(honest, 0)
    world.publisher(honest)
    asked = Parameters(location_filter=LocationFilter.groups(0, 0))
    _, before = world.desk().fetch(NAME, asked)
    world.run(0.1)
    desk = world.desk()
    answers: list[Any] = []
    requests = []
    for number in range(100):
        track = track_of(number, LONG)
        request = desk.session.publish(track, NO_PARAMETERS, track.order, answers.append)
        track.offer(request)
        requests.append(request)
    world.run(0.5)
    taken = sum(request.active for request in requests)
    assert limit // 2 < taken * (len(LONG) - PROPERTIES) < limit
    assert len(answers) == 100
    assert cache.octets < cache.budget
    small = track_of(1000, write_pairs([(0x9001, b"p" * 100)]))
    offer(world, small)
    layer(small, 0)
    world.run(0.1)
    _, reader = world.desk().fetch(name_of(1000), asked)
    _, again = world.desk().fetch(NAME, asked)
    world.run(1)
    assert normal(reader) == normal(again) == normal(before) != []
    desk.kill()
    world.run(5)
    world.relay.sweep()
    assert cache._extras <= 4 * FINISHED_COST
    assert cache.octets < 5 * TRACK_COST + 20_000


@pytest.mark.parametrize("how", ["subscribe", "fetch"])
def test_properties_that_do_not_fit_are_refused_to_who_asks(how: str) -> None:
    world = RelayWorld(RelayConfig(cache=4 << 20, linger=1.0))
    tracks = [track_of(number, LONG) for number in range(40)]
    for track in tracks:
        layer(track, 0)
    desk = serving(world, *tracks)
    reader = world.desk()
    receivers = []
    for track in tracks:
        asked = Parameters(location_filter=LocationFilter.groups(0, 0))
        ask = reader.subscribe if how == "subscribe" else reader.fetch
        receivers.append(ask(track.name, asked if how == "fetch" else NO_PARAMETERS)[1])
    world.run(0.5)
    refused = [one for one in receivers if one.error is not None]
    assert 15 < len(refused) < 30
    for one in refused:
        assert isinstance(one.error, RequestFailed)
        assert one.error.code == RequestCode.EXCESSIVE_LOAD
    sent = desk.session.counters().received.messages
    assert sent["SUBSCRIBE"] + sent["FETCH"] <= 120, "not asked for again and again"
    reader.kill()
    desk.kill()
    world.run(5)
    for track in tuple(world.relay.tracks.values()):
        track.stock.archive.clear()
    world.relay.sweep()
    assert world.relay.cache._extras == world.relay.cache.octets == 0


def test_a_track_that_is_only_cached_makes_room_for_properties() -> None:
    world = RelayWorld(RelayConfig(cache=4 << 20, linger=1.0))
    reader = world.desk()
    for number in range(40):
        track = track_of(number, LONG)
        layer(track, 0)
        desk = serving(world, track)
        asked = Parameters(location_filter=LocationFilter.groups(0, 0))
        _, receiver = reader.fetch(track.name, asked)
        world.run(0.5)
        assert len(normal(receiver)) == 4
        desk.kill()
        world.run(30)
    assert 10 < len(world.relay.tracks) < 20


def test_finished_subgroups_of_all_tracks_together() -> None:
    cache = 1 << 20
    world = RelayWorld(RelayConfig(cache=cache))
    tracks = [world.relay.track(name_of(number)) for number in range(4)]
    for track in tracks:
        for group in range(1000):
            track.stock.fan(SubgroupHead(group, 0, 1)).close()
    kept = [len(track.stock.fans) for track in tracks]
    assert sum(kept) * FINISHED_COST <= EXTRAS_LEAST + 4 * FINISHED_COST
    assert kept[0] == 1000
    assert kept[3] >= 1
    for track in tracks:
        track.stock.forget_fans()
    assert world.relay.cache._extras == 0
    assert world.relay.cache.octets < 4 * (TRACK_COST + 200)


def test_gaps_of_all_tracks_together() -> None:
    cache = Cache(1 << 20)
    many = [archive(cache=cache) for _ in range(10)]
    for one in many:
        one.open()
        for group in range(MAX_ABSENT + 100):
            one.absent(place((group, 1 << 40)), place((group, 1 << 40)) + 1)
        for _ in range(5):  # what was forgotten for its number is asked for again
            one.absent(place((9999, 1 << 40)), place((9999, 1 << 40)) + 1)
    intervals = sum(len(one.known) for one in many)
    assert 0 < intervals * GAP_COST <= cache._extras + 10 * GAP_COST <= EXTRAS_LEAST
    for one in many:
        one.close()
    assert (cache.octets, cache._extras) == (0, 0)
