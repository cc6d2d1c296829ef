"""Every limit of a relay is reached, and what is beyond it is refused; what stood goes on."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed
from moqt.model import FullTrackName, LocationFilter
from moqt.publisher import Track
from moqt.relay.admission import AdmissionLimits, Gate, Kind
from moqt.relay.config import RelayConfig
from tests.moqt.session.worlds import Listener

from .test_relaying import ALL, LAYERS, end, layer, normal
from .worlds import NAME, ONE_TRACK, SPACE, RelayWorld


def refused(receiver: Any) -> RequestCode:
    assert isinstance(receiver.error, RequestFailed), receiver.error
    return RequestCode(receiver.error.code)


def track_of(number: int) -> FullTrackName:
    return FullTrackName(SPACE, b"k%d" % number)


# -- RelayConfig ---------------------------------------------------------------------------------


def test_a_subscriber_that_does_not_read_is_ended() -> None:
    world = RelayWorld(RelayConfig(backlog=20_000))
    track = Track(NAME)
    world.publisher(track)
    _, good = world.desk().subscribe()
    lame = world.desk(window=4000)
    lame.pair.stop_reading("to_client")
    _, slow = lame.subscribe()
    world.run(0.1)
    for group in range(20):
        layer(track, group)
        world.run(0.01)
    end(track, 20)
    (subscriptions,) = (len(one.stock.subscriptions) for one in world.relay.tracks.values())
    assert subscriptions <= 1
    assert world.relay.context.counts["too_far_behind"] == 1
    lame.pair.resume_reading("to_client")
    world.run()
    assert len(normal(good)) == 20 * 4
    assert slow.end is not None
    assert slow.end[0] == DoneCode.TOO_FAR_BEHIND


def test_an_object_too_large_to_keep_passes_through() -> None:
    world = RelayWorld(RelayConfig(max_cached_object=1000))
    track = Track(NAME)
    world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.1)
    layer(track, 0)
    end(track, 1)
    world.run()
    assert normal(receiver) == [at for at in ALL if at[0] == 0]
    (kept,) = (one.stock.archive for one in world.relay.tracks.values())
    assert kept.objects == 2, "the ends of group and track"
    _, again = world.desk().fetch(NAME, Parameters(location_filter=LocationFilter.groups(0, 0)))
    world.run()
    assert normal(again) == normal(receiver)


def test_a_small_cache_and_a_late_reader() -> None:
    world = RelayWorld(RelayConfig(cache=ONE_TRACK + 12_000))
    track = Track(NAME)
    world.publisher(track)
    _, first = world.desk().subscribe()
    world.run(0.1)
    for group in range(LAYERS):
        layer(track, group)
        world.run(0.05)
        assert world.relay.cache.octets <= ONE_TRACK + 12_000
    _, late = world.desk().subscribe()
    world.run(1)
    end(track)
    world.run()
    assert normal(first) == ALL == normal(late)
    assert world.relay.cache.evictions > 0
    assert world.relay.cache.octets <= ONE_TRACK + 12_000


def test_what_waits_for_a_publisher_is_bounded_in_time_and_number() -> None:
    world = RelayWorld(RelayConfig(rendezvous=2.0, max_rendezvous=1))
    desk = world.desk()
    asked = Parameters(rendezvous_timeout=60_000)
    _, waits = desk.subscribe(NAME, asked)
    world.run(0.1)
    _, beyond = desk.subscribe(track_of(1), asked)
    world.run(0.1)
    assert refused(beyond) == RequestCode.DOES_NOT_EXIST
    assert waits.error is None
    world.run(2.5)
    assert refused(waits) == RequestCode.TIMEOUT
    assert not world.relay.context.waiting


@pytest.mark.parametrize("stated", [None, 300, 60_000])
def test_a_range_that_never_comes_is_given_up(stated: int | None) -> None:
    world = RelayWorld(RelayConfig(fill_timeout=1.0, straggler=0.1))
    track = Track(NAME)
    layer(track, 0)
    desk = world.publisher(track)
    desk.catalog.track(NAME).objects = lambda *_: iter((None,))  # type: ignore[method-assign]
    asked = Parameters(location_filter=LocationFilter.groups(0, 0), fill_timeout=stated)
    _, receiver = world.desk().fetch(NAME, asked)
    world.run(0.2)
    assert receiver.fetches == [] or receiver.fetches[0].ended is None
    world.run(0.9)
    (stream,) = receiver.fetches
    assert stream.ended == "fin"
    assert [gap.kind.name for gap in stream.gaps] == ["TIMED_OUT"]


def test_fetches_upstream_are_few_at_once() -> None:
    world = RelayWorld(RelayConfig(max_fetches=1))
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.publisher(track)
    receivers = []
    for group in (0, 2, 4):
        asked = Parameters(location_filter=LocationFilter.groups(group, group))
        receivers.append(world.desk().fetch(NAME, asked)[1])
    world.run()
    for group, receiver in zip((0, 2, 4), receivers, strict=True):
        assert normal(receiver) == [at for at in ALL if at[0] == group]


def test_a_track_nobody_wants_is_left() -> None:
    world = RelayWorld(RelayConfig(linger=3.0))
    track = Track(NAME)
    world.publisher(track)
    request, _ = world.desk().subscribe()
    world.run(0.1)
    request.cancel()
    world.run(2.0)
    assert len(track._subscriptions) == 1
    world.run(2.0)
    assert not track._subscriptions
    assert not world.relay.tracks


def test_a_lost_publisher_is_waited_for_so_long() -> None:
    world = RelayWorld(RelayConfig(recovery=5.0))
    track = Track(NAME)
    desk = world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.1)
    layer(track, 0)
    world.run(0.1)
    desk.kill()
    world.run(4.0)
    assert receiver.end is None
    world.run(2.0)
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.INTERNAL_ERROR


def test_tracks_are_bounded() -> None:
    world = RelayWorld(RelayConfig(max_tracks=2))
    names = [track_of(number) for number in range(3)]
    world.publisher(*map(Track, names))
    receivers = [world.desk().subscribe(name)[1] for name in names]
    world.run(0.2)
    assert [one.error is None for one in receivers] == [True, True, False]
    assert refused(receivers[2]) == RequestCode.EXCESSIVE_LOAD


def test_finished_subgroups_are_few() -> None:
    world = RelayWorld(RelayConfig(max_finished=3))
    track = Track(NAME)
    world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.1)
    for group in range(LAYERS):
        layer(track, group)
        world.run(0.1)
    (known,) = world.relay.tracks.values()
    assert len(known.stock.fans) <= 4
    assert normal(receiver) == ALL


# -- AdmissionLimits -----------------------------------------------------------------------------


def ask_many(world: RelayWorld, count: int, **limits: Any) -> list[bool]:
    """Which of ``count`` SUBSCRIBEs, at once on one session, are not refused for their number."""
    world.limits = AdmissionLimits(**limits)
    desk = world.desk()
    receivers = [
        desk.subscribe(track_of(n), Parameters(rendezvous_timeout=1))[1] for n in range(count)
    ]
    world.run(0.5)
    return [refused(one) != RequestCode.EXCESSIVE_LOAD for one in receivers]


@pytest.mark.rule("M487")
@pytest.mark.parametrize("whose", ["session", "identity"])
def test_requests_come_no_faster(whose: str) -> None:
    world = RelayWorld()
    admitted = ask_many(world, 8, **{f"{whose}_rate": 1.0, f"{whose}_burst": 3.0})
    assert admitted == [True] * 3 + [False] * 5
    world.run(2.0)
    assert world.relay.context.counts["requests_throttled"] == 5
    _, later = world.desk().subscribe(NAME, Parameters())
    world.run(0.2)
    assert refused(later) == RequestCode.DOES_NOT_EXIST, "time has filled the bucket again"


def test_octets_drawn_count() -> None:
    world = RelayWorld()
    world.limits = AdmissionLimits(egress=500.0)
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.publisher(track)
    desk = world.desk()
    asked = Parameters(location_filter=LocationFilter.groups(0, 3))
    _, first = desk.fetch(NAME, asked)
    world.run(0.5)
    assert len(normal(first)) == 16
    _, second = desk.fetch(NAME, asked)
    world.run(0.5)
    assert refused(second) == RequestCode.EXCESSIVE_LOAD
    assert isinstance(second.error, RequestFailed)
    assert second.error.retry_after
    world.run(second.error.retry_after / 1000 + 1)
    _, third = desk.fetch(NAME, asked)
    world.run(0.5)
    assert len(normal(third)) == 16


@pytest.mark.rule("M496")
def test_prefixes_name_enough_fields() -> None:
    world = RelayWorld()
    world.limits = AdmissionLimits(prefix_fields=2)
    desk = world.desk()
    heard: list[Any] = []
    for prefix in ((), SPACE[:1], SPACE[:2]):
        desk.session.subscribe_namespace(prefix, Parameters(), Listener(heard))
    world.run(0.2)
    codes = [error.code for error in heard]
    assert codes == [RequestCode.NAMESPACE_TOO_LARGE] * 2


def test_identities_remembered_are_bounded() -> None:
    world = RelayWorld()
    gate = Gate(world.relay.context, AdmissionLimits(identities=3))
    for number in range(10):
        gate.identity(f"host {number}")
    assert len(gate) == 3


@pytest.mark.rule("M496")
@pytest.mark.parametrize("whose", ["session", "identity"])
def test_requests_open_at_once_are_bounded(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Kind("subscriptions", 2, 100) if whose == "session" else Kind("subscriptions", 100, 2)
    monkeypatch.setattr("moqt.relay.handler.SUBSCRIPTIONS", few)
    world = RelayWorld()
    desks = [world.desk(), world.desk()]
    asked = Parameters(rendezvous_timeout=60_000)
    receivers = [desks[0].subscribe(track_of(n), asked)[1] for n in range(2)]
    world.run(0.1)
    requests = []
    for number in range(2, 4):
        desk = desks[0] if whose == "session" else desks[1]
        request, receiver = desk.subscribe(track_of(number), asked)
        requests.append(request)
        receivers.append(receiver)
    world.run(0.2)
    assert [one.error is None for one in receivers] == [True, True, False, False]
    assert {refused(one) for one in receivers[2:]} == {RequestCode.EXCESSIVE_LOAD}
    desks[0].kill()
    world.run(0.2)
    _, free = desks[1].subscribe(track_of(9), asked)
    world.run(0.2)
    assert free.error is None


def test_nothing_is_left_of_a_session() -> None:
    world = RelayWorld()
    track = Track(NAME)
    publisher = world.publisher(track)
    desk = world.desk()
    desk.subscribe()
    desk.session.subscribe_namespace((), Parameters(), Listener())
    world.run(0.2)
    assert len(world.relay.peers) == 2
    desk.kill()
    publisher.kill()
    world.run()
    assert not world.relay.peers
    assert not world.relay.directory.interests
    assert len(world.relay.directory) == 0
    assert not world.relay.tracks


def test_identities_that_all_have_something_open_are_kept() -> None:
    gate = Gate(RelayWorld().relay.context, AdmissionLimits(identities=2))
    for name in ("a", "b", "c"):
        gate.identity(name).open["fetches"] += 1
    assert len(gate) == 3
    gate.identity("a").open["fetches"] -= 1
    gate.identity("d")
    assert len(gate) == 3


def test_tracks_that_are_only_cached_make_room() -> None:
    world = RelayWorld(RelayConfig(max_tracks=3, linger=1.0))
    tracks = [Track(track_of(number)) for number in range(6)]
    for track in tracks:
        layer(track, 0)
    world.publisher(*tracks)
    desk = world.desk()
    for number in range(6):
        asked = Parameters(location_filter=LocationFilter.groups(0, 0))
        _, receiver = desk.fetch(track_of(number), asked)
        world.run(5)
        assert len(normal(receiver)) == 4
    assert len(world.relay.tracks) == 3
