"""Faults that a relay survives: nothing is lost, nothing comes twice, nothing half seems whole."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moqt.codec.params import Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed
from moqt.model import FullTrackName, GapKind, LocationFilter, ObjectStatus
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from moqt.relay.relay import Relay
from moqt.relay.spill import Spill
from tests.moqt.session.worlds import Listener

from .test_relaying import ALL, BLOCKS, LAYERS, end, layer, normal
from .worlds import NAME, ONE_TRACK, SPACE, RelayClock, RelayWorld


def all_of(group: int) -> Parameters:
    return Parameters(location_filter=LocationFilter.groups(0, group))


@pytest.mark.parametrize("dies_after", range(LAYERS))
def test_the_publisher_dies_after_a_layer(dies_after: int) -> None:
    world = RelayWorld(RelayConfig(recovery=3.0), latency=0.005)
    track = Track(NAME)
    publisher = world.publisher(track)
    _, live = world.desk().subscribe()
    world.run(0.2)
    for group in range(dies_after + 1):
        layer(track, group)
    world.run(0.1)
    publisher.kill()
    world.run(10)
    wanted = [at for at in ALL if at[0] <= dies_after]
    assert normal(live) == wanted
    assert live.end is not None
    assert live.end[0] == DoneCode.INTERNAL_ERROR, "not as if the track had ended"
    _, past = world.desk().fetch(NAME, all_of(dies_after))
    _, beyond = world.desk().fetch(NAME, all_of(LAYERS))
    world.run(1)
    assert normal(past) == wanted
    assert past.fetches[0].gaps == []
    assert normal(beyond) == wanted


@pytest.mark.parametrize("seconds", [1.0, 5.0])
def test_the_path_upstream_is_cut_for_a_while(seconds: float) -> None:
    world = RelayWorld(latency=0.005)
    edge = world.another()
    track = Track(NAME)
    world.publisher(track)
    pair = world.chain(edge, world.relay, SPACE[:1])
    _, live = world.desk(edge).subscribe()
    world.run(0.3)
    layer(track, 0)
    layer(track, 1)
    world.run(0.006)
    for direction in ("to_client", "to_server"):
        pair.freeze(direction, seconds)
    layer(track, 2)
    _, late = world.desk(edge).subscribe()
    world.run(seconds + 1)
    for group in range(3, LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert normal(live) == ALL == normal(late)
    assert edge.context.counts["duplicates"] == 0


@pytest.mark.parametrize("away", [0.5, 5.0])
@pytest.mark.parametrize("at", range(4))
def test_the_session_upstream_dies_and_is_made_again(at: int, away: float) -> None:
    world = RelayWorld(latency=0.005, rate=300_000.0)
    edge = world.another()
    track = Track(NAME)
    world.publisher(track)
    pair = world.chain(edge, world.relay, SPACE[:1])
    _, live = world.desk(edge).subscribe()
    world.run(0.3)
    for group in range(3):
        layer(track, group)
    world.run(0.004 * at + 0.012)
    pair.kill()
    layer(track, 3)
    world.run(away)
    world.chain(edge, world.relay, SPACE[:1])
    _, late = world.desk(edge).subscribe()
    world.run(0.5)
    for group in range(4, LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert normal(live) == ALL == normal(late)
    for receiver in (live, late):
        assert receiver.end is not None
        assert receiver.end[0] == DoneCode.TRACK_ENDED


def test_two_relays_with_different_parts() -> None:
    world = RelayWorld()
    left, right = world.another(), world.another()
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    publisher = world.publisher(track)
    for relay in (left, right):
        world.chain(relay, world.relay, SPACE[:1])
    _, one = world.desk(left).fetch(NAME, all_of(2))
    asked = Parameters(location_filter=LocationFilter.groups(3, 5))
    _, two = world.desk(right).fetch(NAME, asked)
    world.run(1)
    publisher.kill()
    world.run(1)
    _, whole = world.desk(right).fetch(NAME, all_of(5))
    world.run(20)
    assert sorted({*normal(one), *normal(two)}) == ALL
    assert normal(whole) == ALL, "what the one lacks the root has"
    assert whole.fetches[0].gaps == []


def test_what_nobody_has_any_more_is_said() -> None:
    world = RelayWorld(RelayConfig(cache=ONE_TRACK + 9_000))
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    publisher = world.publisher(track)
    _, first = world.desk().fetch(NAME, all_of(5))
    world.run(5)
    assert normal(first) == ALL
    publisher.kill()
    world.run(10)
    _, late = world.desk().fetch(NAME, all_of(5))
    world.run(5)
    if late.error is None:
        (stream,) = late.fetches
        assert {gap.kind for gap in stream.gaps} == {GapKind.UNKNOWN}
        assert set(normal(late)) < set(ALL)
    else:
        assert isinstance(late.error, RequestFailed)
        assert late.error.code == RequestCode.DOES_NOT_EXIST


def test_a_thousand_consumers_of_one_track() -> None:
    world = RelayWorld()
    track = Track(NAME)
    publisher = world.publisher(track)
    desks = [world.desk() for _ in range(100)]
    receivers = [desks[number % 100].subscribe()[1] for number in range(500)]
    world.run(0.5)
    for group in range(3):
        layer(track, group)
    world.run(0.1)
    receivers += [desks[number % 100].subscribe()[1] for number in range(500)]
    world.run(0.1)
    layer(track, 3)
    end(track, 4)
    world.run(30)
    wanted = [at for at in ALL if at[0] < 4]
    assert all(normal(one) == wanted for one in receivers)
    assert world.relay.context.counts["octets_in"] == len(wanted) * 1400
    sent = publisher.session.counters().sent
    assert sent.octets == len(wanted) * 1400, "the origin sends it once"


def test_a_bad_line() -> None:
    world = RelayWorld(latency=0.05, loss=0.01, jitter=0.02, split=1200)
    track = Track(NAME)
    world.publisher(track)
    desks = [world.desk() for _ in range(5)]
    receivers = []
    for group in range(LAYERS):
        receivers.append(desks[group % 5].subscribe()[1])
        world.run(0.03)
        layer(track, group)
    end(track)
    world.run()
    assert all(normal(one) == ALL for one in receivers)


@pytest.mark.rule("M398", "M399")
def test_a_clock_that_moves_on() -> None:
    world = RelayWorld()
    track = Track(NAME)
    track._properties = bytes.fromhex("04 8bb8".replace(" ", ""))  # MAX_CACHE_DURATION 3,000 ms
    publisher = world.publisher(track)
    layer(track, 0)
    _, first = world.desk().fetch(NAME, all_of(0))
    world.run(1)
    publisher.kill()
    world.run(1)
    _, second = world.desk().fetch(NAME, all_of(0))
    world.run(0.5)
    assert normal(first) == ALL[:BLOCKS] == normal(second)
    world.run(5)
    world.relay.sweep()
    _, third = world.desk().fetch(NAME, all_of(0))
    world.run(1)
    assert normal(third) == []
    if third.error is None:
        assert [gap.kind for gap in third.fetches[0].gaps] == [GapKind.UNKNOWN]
    assert world.relay.cache.objects == 0
    world.run(6)
    assert world.relay.cache.octets == 0


def test_a_relay_that_is_killed_and_another_that_goes_on() -> None:
    world = RelayWorld(latency=0.002)
    other = world.another()
    track = Track(NAME)
    world.publisher(track)
    world.publisher(track, relay=other)
    desk = world.desk()
    _, first = desk.subscribe()
    world.run(0.3)
    for group in range(3):
        layer(track, group)
    world.run(0.004)
    desk.kill()
    had = {
        (head.group, head.object) for head, _ in first.objects if head.status is ObjectStatus.NORMAL
    }
    _, second = world.desk(other).subscribe()
    world.run(0.3)
    for group in range(3, LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert had <= set(ALL)
    assert normal(second) == ALL


@pytest.mark.parametrize("alive", [True, False], ids=["publisher there", "publisher gone"])
@pytest.mark.parametrize("fits", range(3))
def test_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int, alive: bool
) -> None:
    """From the nth write on: what it held is served, what it did not is fetched again, or named."""
    spill = Spill(tmp_path / "spill", 1 << 20)
    monkeypatch.setattr(spill, "_append", FullAfter(fits, spill._append))
    world = RelayWorld()
    budget = 30_000  # with what keeping them costs: three groups in memory, or heads of as many
    world.relay = Relay(RelayClock(world.clock), RelayConfig(cache=budget), spill)
    track = Track(NAME)
    publisher = world.publisher(track)
    _, live = world.desk().subscribe()
    world.run(0.2)
    for number in range(LAYERS):
        layer(track, number)
        world.run(0.1)
    end(track)
    world.run(1)
    assert normal(live) == ALL
    assert spill.failures > 0
    if not alive:
        publisher.kill()
        world.run(20)
    _, late = world.desk().fetch(NAME, all_of(LAYERS))
    world.run(5)
    found = normal(late)
    assert len(set(found)) == len(found)
    if alive:
        assert found == ALL
        assert late.fetches[0].gaps == []
    else:
        assert set(found) < set(ALL)
        assert len({at for at, _ in found}) >= fits
        assert {gap.kind for gap in late.fetches[0].gaps} == {GapKind.UNKNOWN}
    assert world.relay.cache.octets <= budget
    spill.close()
    assert list((tmp_path / "spill").iterdir()) == []


class FullAfter:
    """A disk with room for so many writes."""

    def __init__(self, writes: int, append: Callable[..., None]) -> None:
        self._left = writes
        self._append = append

    def __call__(self, *what: Any) -> None:
        if self._left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._left -= 1
        self._append(*what)


HOSTILE = [
    (b"..", b"..", b"etc"),
    (b"/etc/passwd",),
    (b"a\0b", b"\n\r\x1b[31m"),
    (b"a", b"b/c"),
    (b"a/b", b"c"),
    (b"a/b/c",),
    (b"*",),
    (b"%s%n", b"${HOME}"),
    (b"\xff" * 8,),
    tuple(bytes([at]) for at in range(32)),
    (b"x" * 4000,),
]


def test_hostile_names_and_prefixes(tmp_path: Path) -> None:
    """Each is served under its own name, told to who asks for its prefix, and names no file."""
    spill = Spill(tmp_path / "spill", 1 << 20)
    world = RelayWorld()
    world.relay = Relay(RelayClock(world.clock), RelayConfig(cache=9_000), spill)
    names = [FullTrackName(space, word) for space in HOSTILE for word in (b"", b"../x", b"\0")]
    tracks = {name: Track(name) for name in names}
    desk = world.desk()
    for name, track in tracks.items():
        writer = track.subgroup(0)
        writer.object(0, repr(name).encode())
        writer.finish()
        desk.catalog.add(track)
    for space in HOSTILE:
        desk.session.publish_namespace(space, Parameters(), lambda _: None)
    told = {space[:1]: Listener() for space in HOSTILE}
    reader = world.desk()
    for prefix, listener in told.items():
        reader.session.subscribe_namespace(prefix, Parameters(), listener)
    world.run(0.5)
    for prefix, listener in told.items():
        own = {space for space in HOSTILE if space[:1] == prefix}
        assert set(listener.names) == own
    fetched = {name: reader.fetch(name, all_of(0))[1] for name in names}
    world.run(5)
    for name, receiver in fetched.items():
        assert [octets for _, octets in receiver.objects] == [repr(name).encode()]
    assert world.relay.cache.spilled > 0
    assert {path.name[:11] for path in tmp_path.rglob("*") if path.is_file()} <= {"moqt-relay-"}
    spill.close()


def test_nothing_is_left_when_all_have_gone() -> None:
    world = RelayWorld(RelayConfig(linger=1.0))
    track = Track(NAME)
    track._properties = bytes.fromhex("0405")  # nothing is cached for longer than 5 ms
    publisher = world.publisher(track)
    desks = [world.desk() for _ in range(5)]
    waiting: list[Any] = [desk.subscribe() for desk in desks]
    waiting += [desk.fetch(NAME, all_of(3)) for desk in desks]
    world.run(0.2)
    layer(track, 0)
    world.run(0.001)
    for desk in (*desks, publisher):
        desk.kill()
    world.run(60)
    world.relay.sweep()
    assert not world.relay.tracks
    assert not world.relay.peers
    assert (world.relay.cache.octets, world.relay.context.waiting) == (0, set())
    assert all(not handler.admission.open.total() for handler in world.handlers)
