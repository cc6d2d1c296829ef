"""Hostile peers: whatever they send, a fault closes the session or nothing happens."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import SessionCode
from moqt.model import Location, LocationFilter
from moqt.publisher import Catalog, Track
from moqt.session.config import SessionConfig
from tests.vectors import draft22

from .test_fetch import published
from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Listener, Receiver

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIRST = ("Subscribe", "Fetch", "TrackStatus", "PublishNamespace", "SubscribeNamespace", "Publish",
         "SubscribeTracks")  # fmt: skip
#: Every control message of the vectors, as octets.
CONTROL = [
    (type(vector.message).__name__, draft22.octets(vector.hex)) for vector in draft22.MESSAGES
]


def busy(*, is_client: bool = False) -> tuple[Wire, list[int]]:
    """A session with something of everything going on; the streams the peer may write to."""
    catalog = Catalog()
    track = catalog.add(published())
    catalog.announce((b"live", b"room1"))
    wire = Wire(is_client=is_client, handler=catalog.handler(None))  # type: ignore[arg-type]
    session = wire.session
    streams = [wire.control]
    fill = Parameters(
        location_filter=LocationFilter.next_object(),
        fill=Parameters(location_filter=LocationFilter.since(0)),
    )
    requests = (
        m.Subscribe(wire.id(), NAME, fill),
        m.Fetch(wire.id(), NAME),
        m.SubscribeNamespace(wire.id(), ()),
        m.PublishNamespace(wire.id(), (b"x",)),
    )
    streams += [wire.bidi(message) for message in requests]
    track.subgroup(20).object(0, b"live")
    subscribe = session.subscribe(OTHER, fill, Receiver())
    largest = Parameters(largest_object=Location(3, 3))
    wire.send(subscribe.stream, m.SubscribeOk(7, largest))
    asked = [
        subscribe,
        session.subscribe(NAME, fill, Receiver()),
        session.fetch(OTHER, NO_PARAMETERS, Receiver()),
        session.subscribe_namespace((b"a",), NO_PARAMETERS, Listener()),
        session.track_status(OTHER, NO_PARAMETERS, lambda _: None),
        session.publish_namespace((b"a",), NO_PARAMETERS, lambda _: None),
    ]
    streams += [request.stream for request in asked]
    streams.append(wire.uni(bytes.fromhex("54 07 0c 01 64 00 02 41")))
    streams.append(wire.uni(bytes.fromhex("54 09 0c 01 64 00 02 41")))
    streams.append(wire.uni(bytes.fromhex("05") + bytes([subscribe.request_id]) + b"\x1c\x0a"))
    return wire, streams


def settle(wire: Wire) -> None:
    """Whatever happened: the end leaves nothing."""
    wire.wait(1000)
    wire.lose()


# -- cut and misplaced messages ------------------------------------------------------------------


@pytest.mark.rule("M255")
@pytest.mark.parametrize(("name", "octets"), [one for one in CONTROL if one[0] in FIRST])
def test_first_messages_cut_anywhere(name: str, octets: bytes) -> None:
    for cut in range(len(octets)):
        wire = Wire(is_client=bool(octets[3] & 1))
        wire.bidi(octets[:cut], fin=True)
        assert wire.fault is VIOLATION, cut
        assert not wire.handler.requests
        wire.lose()
    whole = Wire(is_client=bool(octets[3] & 1))
    whole.bidi(octets, fin=True)
    assert whole.fault is None
    whole.lose()


@pytest.mark.rule("M255")
@pytest.mark.parametrize(("name", "octets"), [one for one in CONTROL if one[0] in FIRST])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_length_that_is_wrong_by_one(name: str, octets: bytes, by: int) -> None:
    length = int.from_bytes(octets[1:3], "big") + by
    wrong = octets[:1] + length.to_bytes(2, "big") + (octets + bytes(1))[3:][:length]
    wire = Wire(is_client=bool(octets[3] & 1))
    wire.bidi(wrong)
    assert wire.fault is VIOLATION
    assert not wire.handler.requests
    settle(wire)


@pytest.mark.parametrize(("name", "octets"), CONTROL)
@pytest.mark.parametrize("is_client", [True, False])
def test_every_message_on_every_stream(name: str, octets: bytes, is_client: bool) -> None:
    _, streams = busy(is_client=is_client)
    for at in range(len(streams)):
        wire, again = busy(is_client=is_client)
        wire.send(again[at], octets)
        wire.send(again[at], octets, fin=True)
        settle(wire)


@pytest.mark.parametrize("is_client", [True, False])
@pytest.mark.parametrize("event", ["fin", "reset", "stop"])
def test_every_stream_ended_twice(is_client: bool, event: str) -> None:
    _, streams = busy(is_client=is_client)
    for at in range(len(streams)):
        wire, again = busy(is_client=is_client)
        for _ in range(2):
            if event == "fin":
                wire.send(again[at], fin=True)
            else:
                getattr(wire, event)(again[at], 3)
        settle(wire)


# -- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_client", [True, False])
@given(data=st.data())
def test_noise(is_client: bool, data: st.DataObject) -> None:
    """Octets that begin like something known, on any stream, cut anywhere."""
    wire, streams = busy(is_client=is_client)
    starts = [octets for _, octets in CONTROL]
    starts += [
        bytes.fromhex(one) for one in ("54070c0164", "0500", "05021c0a008001", "00070c05", "")
    ]
    octets = st.one_of(
        st.binary(max_size=60),
        st.sampled_from(starts),
        st.tuples(st.sampled_from(starts), st.binary(max_size=20)).map(b"".join),
    )
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["old", "uni", "bidi", "datagram", "stop", "reset"]))
        piece = data.draw(octets)
        if kind == "datagram":
            wire.datagram(piece)
        elif kind in ("uni", "bidi"):
            streams.append(getattr(wire, kind)())
        stream = data.draw(st.sampled_from(streams))
        if kind in ("stop", "reset"):
            getattr(wire, kind)(stream, data.draw(st.integers(0, (1 << 62) - 1)))
        cut = data.draw(st.integers(0, len(piece)))
        wire.send(stream, piece[:cut])
        wire.send(stream, piece[cut:], fin=data.draw(st.booleans()))
    settle(wire)


def test_mutated_messages() -> None:
    random = Random(22)
    for _ in range(2000):
        octets = bytearray(random.choice(CONTROL)[1])
        for _ in range(random.randint(1, 3)):
            octets[random.randrange(len(octets))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 0xC0))
        wire = Wire(is_client=random.random() < 0.5)
        stream = wire.bidi(bytes(octets))
        wire.send(stream, bytes(octets), fin=random.random() < 0.5)
        wire.lose()


@pytest.mark.parametrize("length", ["bfff", "efffffff", "ffffffffffffffffff"])
def test_lengths_are_checked_before_anything_is_kept(length: str) -> None:
    huge = bytes.fromhex(length)
    for body in (b"\x00" + huge, b"\x00\x01" + huge, b"\x00\x01\x01a" + huge):
        wire = Wire()
        wire.bidi(b"\x03" + len(body).to_bytes(2, "big") + body)
        assert wire.fault is not None


# -- floods --------------------------------------------------------------------------------------


def test_ten_thousand_streams_opened_and_reset() -> None:
    wire = Wire()
    octets = [b"", b"\x14", b"\x14\x07\x00\x00\x00\x00\x05a", b"\xf0", b"\x05\x09"]
    for number in range(10_000):
        one = wire.bidi(b"\x03" * (number % 2))
        two = wire.uni(octets[number % 5])
        wire.reset(one, number)
        wire.reset(two, number)
        wire.transport.take()
    assert wire.session.established
    assert not leftovers(wire.session)


def test_ten_thousand_requests_cancelled_at_once() -> None:
    catalog = Catalog()
    track = catalog.add(Track(NAME))
    writer = track.subgroup(0)
    wire = Wire(handler=catalog.handler(None))  # type: ignore[arg-type]
    for number in range(10_000):
        stream = wire.bidi(m.Subscribe(wire.id(), NAME))
        if number % 100 == 0:
            writer.object(number, b"x")
        wire.stop(stream)
        wire.transport.take()
        wire.transport.sources.clear()
    assert wire.session.established
    assert not leftovers(wire.session)
    assert not track._subscriptions
    assert not writer._sinks


def test_ten_thousand_open_requests() -> None:
    wire = Wire(config=SessionConfig(max_peer_requests=1000))
    kinds: list[Any] = [m.Subscribe, m.Fetch, m.TrackStatus, m.Publish]
    for number in range(10_000):
        kind = kinds[number % 4]
        rest = (number,) if kind is m.Publish else ()
        wire.bidi(kind(wire.id(), NAME, *rest))
        wire.transport.take()
    assert len(wire.session._context.owners) <= 1000 + 2
    assert len(wire.session._context.peer_requests) == 1000
    assert wire.session.established
    wire.lose()


def test_ids_cancelled_early_do_not_end_the_session() -> None:
    wire = Wire(config=SessionConfig(max_id_holes=16))
    for number in range(5000):
        request_id = wire.id()
        if number % 3:  # the others were reset before they arrived
            wire.reset(wire.bidi(m.Fetch(request_id, NAME)))
            wire.handler.requests.clear()
            wire.transport.take()
    assert wire.session.established
    assert wire.session._context.ids.holes == 16


@pytest.mark.parametrize("octets", [b"\x14", b"\x14\x07\x00\x00\x00", b"\x05\x09\x1c", b"\x03"])
def test_a_flood_before_setup(octets: bytes) -> None:
    wire = Wire(config=SessionConfig(early_streams=64, early_octets=4096), options=None)
    for _ in range(10_000):
        stream = wire.bidi(octets) if octets == b"\x03" else wire.uni(octets)
        for _ in range(3):
            wire.send(stream, b"\x00")
        wire.transport.take()
    context = wire.session._context
    assert len(context._held) == 64
    assert len(context.owners) <= 64 + 1
    assert context._held_octets <= 4096
    wire.uni(m.Setup())
    settle(wire)


def test_single_octets_before_setup_cost_what_they_weigh() -> None:
    wire = Wire(options=None)
    stream = wire.bidi(b"\x03")
    for _ in range(20_000):
        wire.send(stream, b"\x00")
    assert wire.session._context._held_octets == 20_001
    assert len(wire.session._context._held) == 1


def test_namespaces_announced_without_end() -> None:
    wire = Wire(handler=Catalog().handler(None))  # type: ignore[arg-type]
    for number in range(3000):
        wire.bidi(m.PublishNamespace(wire.id(), (b"%d" % number,)), fin=True)
        wire.transport.take()
    assert not leftovers(wire.session)
