"""Relays in a circle: found at once, opened, and nothing of it stays."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed
from moqt.model import FullTrackName, LocationFilter
from moqt.publisher import Track
from moqt.relay.loops import LEFT
from moqt.relay.relay import Relay
from moqt.session.ports import Unserved
from tests.moqt.session.worlds import Listener

from .test_relaying import ALL, end, layer, normal
from .worlds import LIVE, NAME, SPACE, RelayWorld

PATIENT = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0, 0)),
    rendezvous_timeout=30_000,
)
CIRCLES = pytest.mark.parametrize("count", [1, 2, 3])
SERVED = pytest.mark.parametrize("served", [SPACE, SPACE[:1], ()], ids=["all", "some", "none"])


def circle(world: RelayWorld, count: int, served: tuple[bytes, ...] = SPACE[:1]) -> list[Relay]:
    """Relays of which each has the next one upstream, and the last one the first."""
    relays = [world.relay, *(world.another() for _ in range(count - 1))]
    for number, relay in enumerate(relays):
        world.chain(relay, relays[(number + 1) % count], served)
    return relays


def loops(relays: list[Relay]) -> int:
    """How often a circle was found."""
    return sum(relay.context.counts["loops"] for relay in relays)


def check_empty(relays: list[Relay]) -> None:
    for relay in relays:
        assert relay.tracks == {}
        assert len(relay.directory) == 0
        assert len(relay.directory.interests) == len(relay.offers.interests) == 0
        assert not relay.context.waiting
        assert not relay.loops._sent
        assert not relay.loops._planned


@CIRCLES
@SERVED
@pytest.mark.parametrize("kind", ["subscribe", "fetch"])
def test_what_nobody_publishes_does_not_exist(
    count: int, kind: str, served: tuple[bytes, ...]
) -> None:
    world = RelayWorld()
    relays = circle(world, count, served)
    desk = world.desk(relays[0])
    _, receiver = desk.subscribe(NAME, LIVE) if kind == "subscribe" else desk.fetch()
    world.run(0.5)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.DOES_NOT_EXIST
    world.run(20)
    assert loops(relays) == 1
    check_empty(relays)


@CIRCLES
def test_who_waits_for_a_track_waits_as_long_as_it_said(count: int) -> None:
    world = RelayWorld()
    relays = circle(world, count)
    asked = Parameters(location_filter=LocationFilter.next_object(), rendezvous_timeout=5000)
    _, receiver = world.desk(relays[-1]).subscribe(NAME, asked)
    world.run(6)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.TIMEOUT
    world.run(20)
    check_empty(relays)


@CIRCLES
def test_a_track_that_appears_reaches_everybody_once_and_ends(count: int) -> None:
    world = RelayWorld()
    relays = circle(world, count)
    receivers = []
    for relay in relays:
        receivers.append(world.desk(relay).subscribe(NAME, PATIENT)[1])
        world.run(0.5)
    assert loops(relays) == 1
    (opened,) = [relay for relay in relays if not relay.upstreams]
    track = Track(NAME)
    layer(track, 0)
    desk = world.publisher(track, relay=opened)
    layer(track, 1)
    world.run(1)
    end(track, 2)
    world.run(1)
    for receiver in receivers:
        assert normal(receiver) == ALL[:8]
        assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    desk.kill()
    world.run(30)
    assert all(not track.busy for relay in relays for track in relay.tracks.values())


@CIRCLES
def test_a_circle_that_closes_around_a_track_does_not_keep_it(count: int) -> None:
    world = RelayWorld()
    relays = [world.relay, *(world.another() for _ in range(count - 1))]
    for lower, upper in zip(relays[1:], relays, strict=False):
        world.chain(lower, upper, SPACE[:1])
    track = Track(NAME)
    desk = world.publisher(track)
    receivers = [world.desk(relay).subscribe()[1] for relay in relays]
    world.run(0.5)
    layer(track, 0)
    world.run(0.5)
    world.chain(relays[0], relays[-1], SPACE[:1])
    world.run(1)
    assert loops(relays) == 1
    layer(track, 1)
    world.run(0.5)
    assert [normal(receiver) for receiver in receivers] == [ALL[:8]] * count
    desk.kill()
    world.run(60)
    assert all(receiver.end is not None for receiver in receivers), "nobody stands on a circle"


@CIRCLES
def test_namespaces_and_interests_do_not_keep_each_other(count: int) -> None:
    world = RelayWorld()
    relays = circle(world, count)
    listeners, asked = [Listener() for _ in relays], []
    for relay, listener in zip(relays, listeners, strict=True):
        session = world.desk(relay).session
        asked.append(session.subscribe_namespace(SPACE[:1], NO_PARAMETERS, listener))
        world.run(0.5)
    assert loops(relays) == 1
    (opened,) = [relay for relay in relays if not relay.upstreams]
    desk = world.publisher(Track(NAME), relay=opened)
    world.run(1)
    assert all(SPACE in listener.names for listener in listeners)
    desk.kill()
    world.run(2)
    assert not any(listener.names for listener in listeners)
    for one in asked:
        one.cancel()
    world.run(20)
    check_empty(relays)


def test_two_ways_to_one_relay_are_no_circle() -> None:
    world = RelayWorld()
    left, right, edge = (world.another() for _ in range(3))
    for upper in (left, right):
        world.chain(upper, world.relay, SPACE[:1])
        world.chain(edge, upper, SPACE[:1])
    track = Track(NAME)
    world.publisher(track)
    desk = world.desk(edge)
    receivers = [desk.subscribe()[1] for _ in range(20)]
    desk.session.subscribe_namespace(SPACE[:1], NO_PARAMETERS, Listener())
    world.run(1)
    layer(track, 0)
    end(track, 1)
    world.run(30)
    assert all(normal(receiver) == ALL[:4] for receiver in receivers)
    assert loops([world.relay, left, right, edge]) == 0
    assert len(edge.upstreams) == 2


def test_an_upstream_is_looked_at_now_and_then() -> None:
    world = RelayWorld()
    edge = world.another()
    pair = world.chain(edge, world.relay, SPACE[:1])
    world.publisher(Track(NAME))
    desk = world.desk(edge)
    for _ in range(100):
        desk.subscribe()
        world.run(0.29)
    (upstream,) = edge.upstreams
    looks = upstream.session.counters().sent.messages["TRACK_STATUS"]
    assert 3 <= looks <= 4, "29 s: one at once, and one every 10 s"
    pair.kill()
    world.run(30)
    assert not edge.loops._due
    assert not edge.loops._planned
    assert not edge.loops._sent


class Spy(Unserved):
    """A publisher that learns what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[FullTrackName] = []

    def on_subscribe(self, request: Any) -> None:
        if len(request.name.name) == 16:  # not what the client wants, but a look
            self.asked.append(request.name)


MINE = (*SPACE[:1], b"mine")


@pytest.mark.parametrize("served", [SPACE[:1], ()])
def test_who_publishes_in_a_namespace_cuts_off_no_other(served: tuple[bytes, ...]) -> None:
    """It brings back here what it was asked for there; others go on, and its own does later."""
    world = RelayWorld()
    edge = world.another()
    world.chain(edge, world.relay, served)
    track, spy, wanted = Track(NAME), Spy(), FullTrackName((*MINE, b"model"), b"k")
    world.publisher(track)
    hostile = world.desk(world.relay, spy)
    hostile.session.publish_namespace(MINE, NO_PARAMETERS, lambda _: None)
    client, second, hostile = world.desk(edge), world.desk(edge), world.desk(edge)
    _, standing = client.subscribe()
    client.subscribe(wanted)
    second.subscribe(wanted)
    world.run(0.1)
    assert len(spy.asked) == 1
    for wider in range(8):  # and so with every question that this brings
        if wider < len(spy.asked):
            hostile.session.track_status(spy.asked[wider], NO_PARAMETERS, lambda _: None)
            world.run(0.1)
    assert [one.namespace for one in spy.asked] == [wanted.namespace, MINE]
    assert edge.context.counts["loops"] == 1
    assert len(edge.upstreams) == 1
    layer(track, 0)
    world.run(0.1)
    assert len(normal(standing)) == 4
    _, refused = client.subscribe(FullTrackName((*MINE, b"x"), b"k"))
    _, fetched = second.fetch()
    world.run(0.1)
    assert isinstance(refused.error, RequestFailed)
    assert refused.error.code == RequestCode.DOES_NOT_EXIST
    assert len(normal(fetched)) == 4
    world.run(LEFT)
    asked = len(spy.asked)
    client.subscribe(wanted)
    second.subscribe(wanted)
    world.run(0.1)
    assert len(spy.asked) == asked + 1, "it is asked for there again"


def test_looks_that_nobody_answers_are_few() -> None:
    """An upstream that says nothing: a question ends after a minute, and is asked every 10 s."""
    world = RelayWorld()
    edge = world.another()
    world.chain(edge, world.relay)
    silent = world.desk(world.relay, Spy())
    silent.session.publish_namespace(MINE, NO_PARAMETERS, lambda _: None)
    desk, most = world.desk(edge), 0
    for number in range(120):
        for _ in range(2):
            desk.subscribe(FullTrackName((*MINE, b"%d" % number), b"k"))
        world.run(5)
        most = max(most, len(edge.loops._sent))
        assert len(edge.loops._planned) <= len(edge.loops._due) == 1
    assert 6 <= most <= 7
    assert edge.context.counts["loops"] == 0
