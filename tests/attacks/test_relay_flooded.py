"""A relay that is asked, told and sent too much: what it keeps and does stays bounded.

Threats 20 to 24, and what costs a peer little and could cost a relay much.
"""

from __future__ import annotations

import errno
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import RequestCode, RequestFailed
from moqt.model import (
    MAX_VI64,
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Track
from moqt.relay.admission import AdmissionLimits
from moqt.relay.cache import FINISHED_COST
from moqt.relay.config import RelayConfig
from moqt.relay.groups import Group
from moqt.relay.relay import Relay
from moqt.relay.spill import Spill
from moqt.relay.subgroups import FanOut
from tests.moqt.relay.test_relaying import layer, normal
from tests.moqt.relay.test_work import calls
from tests.moqt.relay.worlds import NAME, SPACE, Desk, RelayClock, RelayWorld
from tests.moqt.session.worlds import Listener

from .raw import sizes

MIB = 1 << 20


def unknown(number: int) -> FullTrackName:
    return FullTrackName((b"nowhere", b"%d" % number), b"t")


# -- 20, 21: groups without end --------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2], ids=["one after another", "every second one"])
def test_groups_of_one_object_without_end(step: int) -> None:
    """The cache is full early on; from then on nothing grows, and what is evicted is freed."""
    world = RelayWorld(RelayConfig(cache=MIB // 4, max_finished=64))
    track = Track(NAME)
    publisher = world.publisher(track)
    world.desk().subscribe(NAME, NO_PARAMETERS)[1].open_subgroup = lambda _: _Nothing()  # type: ignore[method-assign]
    world.run(0.1)
    publisher.catalog.track(NAME).objects = lambda *_: iter(())  # type: ignore[method-assign]
    stock = world.relay.tracks[NAME].stock
    number = 0

    def some(count: int) -> None:
        nonlocal number
        for _ in range(count):
            writer = track.subgroup(number * step)
            writer.object(0, b"x" * 10)
            writer.finish()
            number += 1
            if number % 50 == 0:
                world.run(0.01)
        world.run(0.1)
        assert world.relay.cache.octets <= MIB // 4

    some(600)
    evicted, kept = world.relay.cache.evictions, world.relay.cache.octets
    assert evicted > 300
    gc.collect()
    before = {kind: live(kind) for kind in (Group, FanOut)}
    some(600)
    gc.collect()
    assert world.relay.cache.evictions >= evicted + 590
    assert abs(world.relay.cache.octets - kept) < 10_000
    assert {kind: live(kind) for kind in (Group, FanOut)} == before
    assert live(Group) == len(stock.archive._groups)
    assert len(stock.archive.known) <= stock.archive.objects + 4096
    assert stock.account is not None
    assert world.relay.cache._extras <= 65 * FINISHED_COST + 4096 * 128


def live(kind: type[Any]) -> int:
    """Objects of a kind that the collector knows."""
    return sum(type(one) is kind for one in gc.get_objects())


class _Nothing:
    """An ObjectSink that keeps nothing."""

    def ignore(self, *what: object) -> None:
        """Nothing."""

    begin = write = end = gap = finish = abort = ignore


def test_memory_of_an_archive_that_is_full_is_flat() -> None:
    from tests.moqt.relay.tracks import archive, item

    known = archive(MIB)
    known.open()

    def some(first: int, count: int) -> int:
        for group in range(first, first + count):
            known.put(item(3 * group, 0, b"x" * 10), 0.0)
            known.absent((3 * group) << 64 | 1, ((3 * group + 1) << 64) - 1)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    some(0, 3000)
    full = some(3000, 1000)
    later = some(4000, 3000)
    tracemalloc.stop()
    assert later - full < 100_000, "3,000 more groups, each of which would cost 1,900 octets"


# -- 22: names without end -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["subscribe", "rendezvous", "fetch", "status", "interest"])
def test_unknown_names_without_end(how: str) -> None:
    world = RelayWorld()
    world.limits = AdmissionLimits(session_rate=1e9, session_burst=1e9, identity_rate=1e9,
                                   identity_burst=1e9)  # fmt: skip
    desk = world.desk()
    base = sizes(world.relay)
    refused: list[Any] = []
    for start in range(0, 1500, 250):
        for number in range(start, start + 250):
            ask_for(desk, how, number, refused)
        world.run(0.5)
    assert len(refused) == (0 if how == "interest" else 1500)
    world.run(10)
    assert sizes(world.relay) == base
    assert world.relay.cache.octets == 0
    for identity in world.gates[world.relay]._identities.values():
        assert not identity.open.total()
    assert not world.handlers[-1].admission.open.total()
    assert not world.relay._by_namespace._values
    assert world.relay.directory.interests.wanted == {}
    assert desk.session.established


def ask_for(desk: Desk, how: str, number: int, refused: list[Any]) -> None:
    name = unknown(number)
    if how == "status":
        desk.session.track_status(name, NO_PARAMETERS, refused.append)
    elif how == "interest":
        desk.session.subscribe_namespace(name.namespace, NO_PARAMETERS, Listener()).cancel()
    else:
        asked = Parameters(rendezvous_timeout=100) if how == "rendezvous" else NO_PARAMETERS
        ask = desk.fetch if how == "fetch" else desk.subscribe
        _, receiver = ask(name, asked)
        receiver.failed = refused.append  # type: ignore[method-assign]


# -- 24: rapid requests ----------------------------------------------------------------------------


@pytest.mark.rule("M487")
@pytest.mark.parametrize("how", ["subscribe", "fetch", "interest", "tracks", "announce"])
def test_asked_and_cancelled_at_once_and_again(how: str) -> None:
    """The rate of one session is bounded; another one is served as if nothing was."""
    world = RelayWorld()
    world.limits = AdmissionLimits(session_rate=50.0, session_burst=100.0)
    track = Track(NAME)
    layer(track, 0)
    world.publisher(track)
    noisy, honest = world.desk(), world.desk()
    base = sizes(world.relay)
    for number in range(1000):
        session = noisy.session
        request: Any = None
        if how == "subscribe":
            request, _ = noisy.subscribe(NAME)
        elif how == "fetch":
            request, _ = noisy.fetch(NAME)
        elif how == "interest":
            request = session.subscribe_namespace((b"%d" % number,), NO_PARAMETERS, Listener())
        elif how == "tracks":
            from tests.moqt.relay.test_publishers import Offers

            request = session.subscribe_tracks((b"%d" % number,), NO_PARAMETERS, Offers())
        else:
            request = session.publish_namespace((b"%d" % number,), NO_PARAMETERS, lambda _: None)
        world.run(0.0005)
        request.cancel()
        if number % 250 == 100:
            asked = Parameters(location_filter=LocationFilter.groups(0, 0))
            _, receiver = honest.fetch(NAME, asked)
            world.run(0.01)
            assert len(normal(receiver)) == 4
    assert world.relay.context.counts["requests_throttled"] > 700
    world.run(20)
    noisy.kill()
    world.run(20)
    assert sizes(world.relay)["tracks"] <= base["tracks"] + 1
    assert sizes(world.relay)["peers"] == base["peers"] - 1
    assert sizes(world.relay)["interests"] == sizes(world.relay)["readers"] == 0


# -- ranges without end ----------------------------------------------------------------------------

EVERYWHERE = (0, 1 << 20, 1 << 40, (1 << 62) - 1, MAX_VI64 - 1)
WHOLE = LocationFilter(LocationFilterType.ABSOLUTE_START_GROUP_END, Location(0, 0), MAX_VI64)


@pytest.mark.parametrize("order", GroupOrder)
@pytest.mark.parametrize("cached", [False, True])
def test_a_range_of_everything_costs_what_there_is_in_it(order: GroupOrder, cached: bool) -> None:
    world = RelayWorld(RelayConfig(fill_timeout=2.0, straggler=0.1))
    track = Track(NAME)
    for group in EVERYWHERE:
        writer = track.subgroup(group)
        for number in (0, 7, 1 << 40):
            writer.object(number, b"x")
        writer.finish()
    world.publisher(track)
    asked = Parameters(location_filter=WHOLE, group_order=order)
    if cached:
        world.desk().fetch(NAME, asked)
        world.run(5)
    desk = world.desk()
    _, receiver = desk.fetch(NAME, asked)
    assert calls(lambda: world.run(5)) < 100_000
    assert len(receiver.objects) == 3 * len(EVERYWHERE)
    assert receiver.error is None


@pytest.mark.parametrize("first", [0, 1 << 62])
def test_filters_of_everything(first: int) -> None:
    world = RelayWorld()
    track = Track(NAME)
    layer(track, 0)
    world.publisher(track)
    kinds = (RangeFilterType.OBJECT_ID, RangeFilterType.SUBGROUP)
    desk = world.desk()
    receivers = []
    for kind in kinds:
        wanted = RangeFilter(kind, (Span(first, MAX_VI64),))
        asked = Parameters(
            range_filters=(wanted,), fill=Parameters(location_filter=LocationFilter.since(0))
        )
        receivers.append(desk.subscribe(NAME, asked)[1])
    assert calls(lambda: world.run(2)) < 100_000
    for receiver in receivers:
        assert receiver.error is None or isinstance(receiver.error, RequestFailed)
        if receiver.error is None:
            assert len(normal(receiver)) == (0 if first else 4)
    assert desk.session.established


def test_many_subgroups_of_one_group_cost_what_each_has() -> None:
    """Objects of other subgroups are not looked at again for each object of one."""
    work = []
    for count in (100, 400):
        world = RelayWorld()
        track = Track(NAME)
        world.publisher(track)
        world.desk().subscribe(NAME, NO_PARAMETERS)
        world.run(0.1)
        ahead = track.subgroup(0, 1)
        for number in range(count):
            ahead.object(10_000 + number, b"x")
        world.run(0.5)
        behind = track.subgroup(0, 0)

        def write(writer: Any = behind, count: int = count, world: RelayWorld = world) -> None:
            for number in range(count):
                writer.object(number, b"x")
            world.run(0.5)

        work.append(calls(write) / count)
        assert world.relay.context.counts["objects_in"] == 2 * count
    assert work[1] < 2 * work[0]


# -- the disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("every", [1, 3])
def test_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, every: int
) -> None:
    """Everybody gets everything: what neither memory nor disk keeps is fetched again."""
    tries = 0
    append = Spill._append

    def full(self: Spill, file: Any, views: Any) -> None:
        nonlocal tries
        tries += 1
        if tries % every == 0:
            append(self, file, views[:1])
            raise OSError(code, "no room")
        append(self, file, views)

    monkeypatch.setattr(Spill, "_append", full)
    world = RelayWorld()
    spill = Spill(tmp_path / "spill", 1 << 30)
    relay = Relay(RelayClock(world.clock), RelayConfig(cache=40_000, straggler=0.1), spill)
    track = Track(NAME)
    world.publisher(track, relay=relay)
    _, live = world.desk(relay).subscribe()
    world.run(0.1)
    for group in range(30):
        layer(track, group)
        world.run(0.02)
    wanted = [(group, number) for group in range(30) for number in range(4)]
    for _ in range(2):
        _, past = world.desk(relay).fetch(
            NAME, Parameters(location_filter=LocationFilter.groups(0, 29))
        )
        world.run(10)
        assert normal(past) == wanted
        assert past.fetches[0].gaps == []
    assert normal(live) == wanted
    assert spill.failures > 0
    assert relay.cache.octets <= relay.cache.budget
    spill.close()
    assert not list((tmp_path / "spill").glob("*.spill"))


# -- wide prefixes ---------------------------------------------------------------------------------


@pytest.mark.rule("M496")
def test_wide_prefixes_where_they_are_not_allowed() -> None:
    world = RelayWorld()
    world.limits = AdmissionLimits(prefix_fields=3)
    world.publisher(Track(NAME))
    desk = world.desk()
    heard: list[Any] = []
    wide = [Listener(heard) for _ in range(3)]
    for fields, listener in enumerate(wide):
        desk.session.subscribe_namespace(SPACE[:fields], NO_PARAMETERS, listener)
    world.run(0.2)
    assert [error.code for error in heard] == [RequestCode.NAMESPACE_TOO_LARGE] * 3
    assert all(listener.names == [] for listener in wide)
    narrow = Listener()
    desk.session.subscribe_namespace(SPACE, NO_PARAMETERS, narrow)
    world.run(0.2)
    assert narrow.names == [SPACE]
