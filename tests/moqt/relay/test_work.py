"""What a relay does for one event depends on whom it concerns, not on how many others there are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.model import (
    FullTrackName,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    ObjectStatus,
    SubgroupHead,
)
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from moqt.relay.namespaces import ByNamespace
from moqt.relay.reading import Reader
from tests.moqt.session.worlds import Listener, Receiver

from .test_fidelity import Upstream
from .test_publishers import Offers, offer
from .worlds import NAME, SPACE, RelayWorld

if TYPE_CHECKING:
    from collections.abc import Callable

READERS = 120


@pytest.fixture
def stirs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of readers, each time that one is woken by what has happened elsewhere."""
    found: list[int] = []
    before = Reader.stirred

    def counted(self: Reader, *what: Any) -> None:
        found.append(self.at or 0)
        before(self, *what)

    monkeypatch.setattr(Reader, "stirred", counted)
    return found


def calls(work: Callable[[], object]) -> int:
    """Functions called by ``work``, those written in C included."""
    count = 0

    def note(frame: object, event: str, what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def fetch_group(group: int, order: GroupOrder = GroupOrder.ASCENDING) -> Parameters:
    return Parameters(location_filter=LocationFilter.groups(group, group), group_order=order)


def sparse(track: Track, groups: int) -> None:
    """Objects 1 and 5 of every second group: everything else does not exist."""
    for group in range(0, groups, 2):
        writer = track.subgroup(group)
        for number in (1, 5):
            writer.object(number, b"x")
        writer.finish()


@pytest.mark.parametrize("order", GroupOrder)
def test_fetches_that_wait_are_woken_by_what_concerns_them(
    stirs: list[int], order: GroupOrder
) -> None:
    """Each waits for another group; one of them waits for all groups."""
    world = RelayWorld(RelayConfig(max_fetches=4), latency=0.001)
    track = Track(NAME)
    sparse(track, 2 * READERS)
    world.publisher(track)
    everything = Parameters(
        location_filter=LocationFilter.groups(0, 2 * READERS - 1), group_order=order
    )
    receivers = [world.desk().fetch(NAME, everything)[1]]
    desk = world.desk()
    groups = range(0, 2 * READERS, 2)
    receivers += [desk.fetch(NAME, fetch_group(group, order))[1] for group in groups]
    world.run(5)
    assert [len(one.objects) for one in receivers] == [2 * READERS] + [2] * READERS
    assert all(one.fetches[0].gaps == [] for one in receivers)
    assert len(stirs) < 12 * READERS


def test_a_group_that_ends_wakes_nobody_who_waits_for_another(stirs: list[int]) -> None:
    world = RelayWorld(RelayConfig(max_fetches=4), latency=0.001)
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    world.desk().subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    track = Track(NAME)
    track.subgroup(1000).object(0, b"x")
    upstream.requests[0].accept(track)
    world.run(0.1)
    readers = world.desk()
    for group in range(READERS):
        readers.fetch(NAME, fetch_group(group))
    world.run(0.2)
    stirs.clear()
    for group in range(2000, 2000 + READERS):
        writer = upstream.requests[0]
        sink = writer.subgroup(SubgroupHead(group, 0, 128))
        sink.begin(ObjectHead(group, 0, 0, 128, 0, ObjectStatus.END_OF_GROUP))
        sink.end()
        sink.finish()
    world.run(0.2)
    assert world.relay.context.counts["objects_in"] == READERS
    assert stirs == []


@pytest.mark.parametrize("kind", [GapKind.UNKNOWN, GapKind.TIMED_OUT])
def test_gaps_wake_those_who_wait_in_them(stirs: list[int], kind: GapKind) -> None:
    """An upstream that has nothing answers every place with a marker of its own."""
    world = RelayWorld(RelayConfig(max_fetches=4, fill_timeout=3.0), latency=0.001)
    track = Track(NAME)
    sparse(track, 2 * READERS)
    publisher = world.publisher(track)
    served = publisher.catalog.track(NAME)

    def nothing(within: Any, *_: Any) -> Any:
        for group in range(within.start.group, within.end.group + 1):
            yield Gap(kind, Location(group, (1 << 64) - 1))

    served.objects = nothing  # type: ignore[method-assign]
    everything = Parameters(location_filter=LocationFilter.groups(0, 2 * READERS - 1))
    receivers: list[Receiver] = [world.desk().fetch(NAME, everything)[1]]
    desk = world.desk()
    groups = range(0, 2 * READERS, 2)
    receivers += [desk.fetch(NAME, fetch_group(group))[1] for group in groups]
    world.run(10)
    assert all(one.fetches[0].ended == "fin" for one in receivers)
    assert all(one.objects == [] for one in receivers)
    assert len(stirs) < 12 * READERS


def test_who_waits_for_a_turn_gets_it_though_others_leave() -> None:
    """One fetch upstream at a time; those before in the queue are cancelled, or are served live."""
    world = RelayWorld(RelayConfig(max_fetches=1, fill_timeout=30.0), latency=0.001)
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    world.desk().subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    track = Track(NAME)
    for group in range(10):
        writer = track.subgroup(group)
        writer.object(0, b"x")
        writer.finish()
    upstream.requests[0].accept(track)
    world.run(0.1)
    readers = [world.desk() for _ in range(6)]
    asked = [one.fetch(NAME, fetch_group(at)) for at, one in enumerate(readers)]
    world.run(0.1)
    assert len(upstream.fetches) == 1
    asked[1][0].cancel()
    readers[2].kill()
    asked[4][0].cancel()
    world.run(0.1)
    for turn in range(3):
        upstream.fetches[turn].accept(track)
        world.run(0.2)
    assert len(upstream.fetches) == 3
    for at in (0, 3, 5):
        assert [head.group for head, _ in asked[at][1].objects] == [at]
        assert asked[at][1].fetches[0].ended == "fin"
    (known,) = world.relay.tracks.values()
    assert len(known.stock.filler) == 0
    assert not known.stock.filler._waiting
    assert not known.stock.waits


# -- namespaces ----------------------------------------------------------------------------------


def test_what_lies_under_a_prefix() -> None:
    index: ByNamespace[int] = ByNamespace()
    spaces = [(), (b"a",), (b"a", b"b"), (b"a", b"b", b"c"), (b"ab",), (b"a\0",), (b"b",)]
    for number, space in enumerate(spaces):
        index.add(space, number)
        index.add(space, number)
        index.add(space, 100 + number)
    for prefix in (*spaces, (b"a", b"x"), (b"",), (b"c",)):
        below = {at for at, one in enumerate(spaces) if one[: len(prefix)] == prefix}
        assert sorted(index.under(prefix)) == sorted(below | {100 + at for at in below})
        over = {at for at, one in enumerate(spaces) if prefix[: len(one)] == one}
        assert sorted(index.above(prefix)) == sorted(over | {100 + at for at in over})
    for number, space in enumerate(spaces):
        index.discard(space, number)
        index.discard(space, 100 + number)
        index.discard(space, number)
    assert len(index) == 0
    assert index.under(()) == []


def with_tracks(count: int) -> RelayWorld:
    """A relay with so many tracks elsewhere, and one under SPACE that somebody follows."""
    world = RelayWorld()
    world.publisher(Track(NAME))
    world.desk().subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    for number in range(count):
        world.relay.track(FullTrackName((b"else", b"%d" % number), b"t"))
    return world


def test_an_announcement_concerns_the_tracks_under_it() -> None:
    work = []
    for count in (10, 1000):
        world = with_tracks(count)
        peer = next(iter(world.relay.peers))
        work.append(calls(lambda w=world, p=peer: w.relay.announced((b"else", b"none"), p)))
    assert work[0] == work[1]


def test_an_interest_is_told_of_what_lies_under_it() -> None:
    work = []
    for count in (10, 1000):
        world = with_tracks(0)
        peer = next(iter(world.relay.peers))
        for number in range(count):
            world.relay.announced((b"else", b"%d" % number), peer)
        handler = world.handlers[-1]
        world.desk().session.subscribe_namespace(SPACE, NO_PARAMETERS, heard := Listener())
        world.run(0.1)
        assert heard.names == [SPACE]
        (interest,) = world.relay.directory.interests._standing
        admission = handler.admission
        directory = world.relay.directory
        work.append(calls(lambda d=directory, i=interest, a=admission: d.interested(i, a)))
    assert work[0] == work[1]


def test_an_offer_concerns_those_who_asked_for_it() -> None:
    came, gone = [], []
    for count in (5, 200):
        world = RelayWorld()
        desk = world.desk()
        for number in range(count):
            desk.session.subscribe_tracks((b"%d" % number,), NO_PARAMETERS, Offers())
        wants = Offers()
        world.desk().session.subscribe_tracks(SPACE[:1], NO_PARAMETERS, wants)
        world.run(0.1)
        offer(world, Track(NAME))
        assert len(wants.requests) == 1
        relayed = world.relay.tracks[NAME]
        offers = world.relay.offers
        gone.append(calls(lambda o=offers, t=relayed: o.gone(t)))
        came.append(calls(lambda o=offers, t=relayed: o.came(t, ())))
    assert came[0] == came[1]
    assert gone[0] == gone[1]


def test_who_asks_elsewhere_and_comes_back_is_offered_once_and_anew() -> None:
    world = RelayWorld()
    wants = Offers()
    asked = world.desk().session.subscribe_tracks(SPACE[:1], NO_PARAMETERS, wants)
    world.run(0.1)
    first = offer(world, Track(NAME))
    assert len(wants.requests) == 1
    asked.update(Parameters(track_namespace_prefix=(b"elsewhere",)))
    world.run(0.1)
    asked.update(Parameters(track_namespace_prefix=SPACE[:1]))
    world.run(0.1)
    assert len(wants.requests) == 1, "it has that track already"
    asked.update(Parameters(track_namespace_prefix=(b"elsewhere",)))
    world.run(0.1)
    first.kill()
    wants.receivers.clear()
    world.run(30)
    assert not world.relay.tracks
    asked.update(Parameters(track_namespace_prefix=SPACE[:1]))
    world.run(0.1)
    offer(world, Track(NAME))
    assert len(wants.requests) == 2
