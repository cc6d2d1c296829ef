"""What two sessions count of each other agrees, and with what went over the wire."""

from __future__ import annotations

import json
from typing import Any

from moqt.codec import messages as m
from moqt.codec.params import Parameters
from moqt.counters import Counters, Traffic, code_name
from moqt.errors import RequestCode, StreamCode
from moqt.model import FullTrackName, LocationFilter, ObjectHead
from moqt.publisher import Track
from tests.moqt.session.worlds import Receiver, World

NAME = FullTrackName((b"example",), b"track")
PLAIN = Parameters()
PAST = Parameters(fill=Parameters(location_filter=LocationFilter.since(0)))


def worlds_with_objects() -> tuple[World, Track]:
    """A track of 3 groups with 2 objects of 700 octets each."""
    world = World()
    track = world.catalog.add(Track(NAME))
    for group in range(3):
        writer = track.subgroup(group)
        writer.object(0, bytes(700))
        writer.object(1, bytes(700))
        writer.finish()
    return world.run(), track


def agree(world: World) -> tuple[Counters, Counters]:
    """Both sides' counters; what one has sent the other has received."""
    client, server = world.client.session.counters(), world.server.session.counters()
    assert client.sent == server.received
    assert server.sent == client.received
    return client, server


def test_both_sides_count_the_same() -> None:
    world, track = worlds_with_objects()
    world.client.session.fetch(NAME, PLAIN, Receiver())
    world.client.session.subscribe(NAME, PAST, Receiver())
    world.run()
    track.subgroup(9).object(0, b"still open")
    world.run()
    client, server = agree(world)
    assert dict(client.sent.messages) == {"SETUP": 1, "FETCH": 1, "SUBSCRIBE": 1}
    assert dict(server.sent.messages) == {"SETUP": 1, "FETCH_OK": 1, "SUBSCRIBE_OK": 1}
    assert (client.received.objects, client.received.octets) == (13, 12 * 700 + 10)
    assert server.sent.streams == 1 + 3  # control, fetch, fill, subgroup
    assert client.sent.streams == 1 + 2
    assert client.streams_open == 2 + 1 + 1  # both control streams, the request, the subgroup
    assert not client.received.refused


def test_objects_of_running_streams_count_as_they_come() -> None:
    world = World(rate=100_000)
    track = world.catalog.add(Track(NAME))
    track.subgroup(0).object(0, bytes(50_000))
    world.run()
    world.client.session.fetch(NAME, PLAIN, Receiver())
    world.run(0.3)
    part = world.client.session.counters().received
    assert part.objects == 1
    assert 0 < part.octets < 50_000
    world.run()
    assert agree(world)[0].received.octets == 50_000


def test_datagrams() -> None:
    world, track = worlds_with_objects()
    receiver = Receiver()
    world.client.session.subscribe(NAME, PLAIN, receiver)
    world.run()
    (request,) = track._subscriptions
    request.datagram(ObjectHead(5, None, 0, 1, 3), b"abc")
    world.run()
    client, _ = agree(world)
    assert (client.received.datagrams, client.received.objects, client.received.octets) == (1, 1, 3)


def test_refusals_and_resets_by_code() -> None:
    world, track = worlds_with_objects()
    missing = FullTrackName((b"example",), b"no such")
    world.client.session.fetch(missing, PLAIN, Receiver())
    subscription = world.client.session.subscribe(NAME, PLAIN, Receiver())
    world.run()
    track.subgroup(4).object(0, b"x")
    world.run()
    subscription.cancel(StreamCode.TOO_FAR_BEHIND)
    world.run()
    client, server = world.client.session.counters(), world.server.session.counters()
    assert dict(client.received.refused) == dict(server.sent.refused) == {"DOES_NOT_EXIST": 1}
    assert client.sent.resets == server.received.resets == {"TOO_FAR_BEHIND": 1}
    assert client.sent.stops["TOO_FAR_BEHIND"] == 2  # of the request and of the data stream
    assert client.received.objects == 1


def test_a_stream_that_ends_itself_counts_its_reset() -> None:
    world, track = worlds_with_objects()
    subscription = world.client.session.subscribe(NAME, PLAIN, Receiver())
    world.run()
    writer = track.subgroup(4)
    writer.object(0, b"x")
    world.run()
    subscription.update(Parameters(forward=False))
    world.run()
    writer.object(1, b"left out")
    writer.finish()
    world.run()
    client, server = agree(world)
    assert dict(server.sent.resets) == dict(client.received.resets) == {"CANCELLED": 1}


def test_what_has_passed_stays_counted_after_the_end() -> None:
    world = World(rate=100_000)
    track = world.catalog.add(Track(NAME))
    track.subgroup(0).object(0, bytes(50_000))
    world.run()
    world.client.session.fetch(NAME, PLAIN, Receiver())
    world.run(0.3)
    before = world.client.session.counters().received
    world.client.session.close(0, "enough")
    world.run()
    after = world.client.session.counters()
    assert after.received.octets >= before.octets > 0
    assert after.streams_open == 0


def test_goaway_counts() -> None:
    world, _ = worlds_with_objects()
    world.server.session.goaway("moqt://elsewhere/", 0)
    world.run()
    client, _ = agree(world)
    assert client.received.messages["GOAWAY"] == 1


def test_sums_and_json() -> None:
    one, two = Traffic(), Traffic()
    one.message(m.RequestError(0x7777))
    one.message(m.RequestError(RequestCode.TIMEOUT))
    two.datagram(5)
    two.resets["CANCELLED"] += 2
    total = Counters(streams_open=1)
    for traffic in (one, two, two):
        total.add(Counters(received=traffic, streams_open=2))
    found: dict[str, Any] = json.loads(json.dumps(total.to_json()))
    assert found["streams_open"] == 7
    assert found["received"] == {
        "messages": {"REQUEST_ERROR": 2},
        "refused": {"INTERNAL_ERROR": 1, "TIMEOUT": 1},
        "resets": {"CANCELLED": 4},
        "stops": {},
        "streams": 0,
        "datagrams": 2,
        "objects": 2,
        "octets": 10,
    }
    assert found["sent"]["objects"] == 0
    assert two.datagrams == 1
    assert (code_name(5), code_name(0x99)) == ("TOO_FAR_BEHIND", "INTERNAL_ERROR")
