"""Peers that stall, and what a server serves: each wait has a limit of its own."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.datagram import encode_datagram
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import SetupOptions
from moqt.errors import RequestCode, RequestFailed, SessionCode, StreamCode
from moqt.model import ObjectHead
from moqt.session.config import SessionConfig

from .test_request_streams import ASKS
from .wire import NAME, Wire, leftovers
from .worlds import Receiver

STALL = SessionConfig(stall_timeout=5.0, request_timeout=20.0)


def wire(*, is_client: bool = False) -> Wire:
    return Wire(is_client=is_client, config=STALL)


# -- control messages ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["control", "first", "update", "answer"])
def test_a_control_message_must_be_finished(where: str) -> None:
    peer = wire(is_client=where == "answer")
    octets = m.encode_message(m.Goaway() if where == "control" else m.RequestUpdate(2))
    if where == "control":
        stream = peer.control
    elif where == "first":
        octets = m.encode_message(m.Fetch(0, NAME))
        stream = peer.bidi(octets[:1])
        octets = octets[1:]
    elif where == "update":
        stream = peer.bidi(m.Fetch(0, NAME))
    else:
        stream = peer.session.fetch(NAME, NO_PARAMETERS, Receiver()).stream
        octets = m.encode_message(m.RequestError(0, 0, "x"))
    for octet in octets[:3]:
        peer.wait(1)
        peer.send(stream, bytes([octet]))
    assert peer.fault is None
    peer.wait(3.5)
    assert peer.fault is SessionCode.CONTROL_MESSAGE_TIMEOUT


def test_what_is_finished_in_time_starts_no_clock() -> None:
    peer = wire()
    octets = m.encode_message(m.Fetch(0, NAME))
    stream = peer.bidi(octets[:4])
    peer.wait(4)
    peer.send(stream, octets[4:])
    other = peer.bidi(octets[:4])
    peer.reset(other)
    peer.wait(100)
    assert peer.fault is None
    assert len(peer.handler.requests) == 1


# -- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ASKS)
def test_a_request_that_nobody_answers(ask: Any) -> None:
    peer = wire(is_client=True)
    heard: list[Any] = []
    peer.now += 500  # long after the last event
    ask(peer.session, heard)
    (stream,) = peer.opened(unidirectional=False)
    peer.wait(19.9)
    assert peer.answer(stream).end in (None, "fin")
    peer.wait(0.2)
    assert peer.stopped(stream) == StreamCode.CANCELLED
    assert peer.fault is None
    peer.reset(stream)
    assert not leftovers(peer.session)


def test_it_fails_with_timeout() -> None:
    peer, receiver = wire(is_client=True), Receiver()
    peer.session.subscribe(NAME, Parameters(rendezvous_timeout=30_000), receiver)
    peer.wait(49)  # the peer may wait for a publisher
    assert receiver.error is None
    peer.wait(2)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.TIMEOUT


@pytest.mark.parametrize("limit", [20.0, 0.0])
def test_an_answer_or_no_limit_ends_the_waiting(limit: float) -> None:
    peer = Wire(is_client=True, config=SessionConfig(request_timeout=limit))
    receiver = Receiver()
    request = peer.session.subscribe(NAME, NO_PARAMETERS, receiver)
    if limit:
        peer.send(request.stream, m.SubscribeOk(7))
    peer.wait(10_000)
    assert receiver.error is None
    assert not leftovers(peer.session).get("timers")


# -- data streams --------------------------------------------------------------------------------


def subscribed() -> tuple[Wire, Receiver]:
    peer, receiver = wire(is_client=True), Receiver()
    request = peer.session.subscribe(NAME, NO_PARAMETERS, receiver)
    peer.send(request.stream, m.SubscribeOk(7))
    return peer, receiver


@pytest.mark.parametrize(
    "octets", ["14", "14 07 0c", "54 07 0c 01 64  00", "54 07 0c 01 64 0001ff 01"]
)
def test_a_header_that_stays_unfinished_stops_its_stream_alone(octets: str) -> None:
    peer, receiver = subscribed()
    stream = peer.uni(bytes.fromhex(octets))
    peer.wait(4.9)
    assert peer.stopped(stream) is None
    peer.wait(0.2)
    assert peer.stopped(stream) == StreamCode.CANCELLED
    assert peer.fault is None
    assert receiver.error is None
    assert all(record.ended == StreamCode.CANCELLED for record in receiver.streams)


def test_between_objects_and_inside_a_payload_a_stream_may_rest() -> None:
    peer, receiver = subscribed()
    resting = peer.uni(bytes.fromhex("54 07 0c 01 64  00 01 41"))
    inside = peer.uni(bytes.fromhex("54 07 0d 01 64  00 02 41"))
    peer.wait(1000)
    assert peer.stopped(resting) is None
    assert peer.stopped(inside) is None
    assert len(receiver.streams) == 2


# -- early datagrams -----------------------------------------------------------------------------


def early(number: int, size: int = 1, alias: int = 7) -> bytes:
    return encode_datagram(alias, ObjectHead(0, None, number, 128, size), b"x" * size)


@pytest.mark.rule("M037")
def test_datagrams_wait_shortly_for_their_alias() -> None:
    peer, receiver = wire(is_client=True), Receiver()
    request = peer.session.subscribe(NAME, NO_PARAMETERS, receiver)
    peer.datagram(early(0))
    peer.wait(4)
    peer.datagram(early(1))
    peer.datagram(early(2, alias=9))
    peer.wait(2)  # the first has waited too long
    assert not receiver.datagrams
    peer.send(request.stream, m.SubscribeOk(7))
    assert [head.object for head, _ in receiver.datagrams] == [1]


@pytest.mark.parametrize(("size", "kept"), [(1, 64), (1000, 50)])
def test_they_are_few(size: int, kept: int) -> None:
    config = SessionConfig(orphan_datagram_octets=50_000)
    peer, receiver = Wire(is_client=True, config=config), Receiver()
    request = peer.session.subscribe(NAME, NO_PARAMETERS, receiver)
    for number in range(200):
        peer.datagram(early(number, size))
    peer.send(request.stream, m.SubscribeOk(7))
    assert [head.object for head, _ in receiver.datagrams] == list(range(200 - kept, 200))
    late = subscribed()[0]
    late.datagram(early(0, alias=9))  # nothing is awaited
    assert not late.session._context.streams._datagrams


# -- what a server serves ------------------------------------------------------------------------


@pytest.mark.rule("M271", "M264")
@pytest.mark.parametrize(
    ("path", "authority", "code"),
    [
        ("/app", "Relay.example", None),
        ("/app?token=1", "relay.example:443", None),
        ("/app", "me@relay.example", None),
        ("/app", "[::1]:4433", None),
        ("/other", "relay.example", SessionCode.INVALID_PATH),
        ("/app/", "relay.example", SessionCode.INVALID_PATH),
        (None, "relay.example", SessionCode.INVALID_PATH),
        ("/app", "relay.example:444", SessionCode.INVALID_AUTHORITY),
        ("/app", "[::1]", SessionCode.INVALID_AUTHORITY),
        ("/app", None, SessionCode.INVALID_AUTHORITY),
    ],
)
def test_only_what_is_served(
    path: str | None, authority: str | None, code: SessionCode | None
) -> None:
    config = SessionConfig(
        served_paths=("/app",), served_authorities=("relay.example", "[::1]:4433")
    )
    server = Wire(config=config, options=SetupOptions(path=path, authority=authority))
    assert server.fault is code


def test_no_path_is_the_root() -> None:
    for path in (None, "", "/"):
        server = Wire(config=SessionConfig(served_paths=("",)), options=SetupOptions(path=path))
        assert server.fault is None
