"""GOAWAY on the control stream and on request streams (draft-22 §6.6.1, §9.2)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS
from moqt.errors import Misuse, RequestCode, RequestFailed, SessionCode, StreamCode
from moqt.publisher import Track

from .test_request_streams import ASKS
from .wire import NAME, Wire, leftovers
from .worlds import Receiver

VIOLATION = SessionCode.PROTOCOL_VIOLATION
URI = "moqt://b.example/app"


def goaway(length: int, octets: bytes = b"") -> bytes:
    """GOAWAY with a URI of a stated length."""
    body = (0xC0 << 16 | length).to_bytes(3, "big") + octets + b"\x00"
    return b"\x10" + len(body).to_bytes(2, "big") + body


# -- received ------------------------------------------------------------------------------------


def test_a_server_sends_us_away() -> None:
    wire = Wire(is_client=True)
    request = wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    wire.send(wire.control, m.Goaway(URI, 5000))
    assert wire.handler.goaways == [(URI, 5000)]
    wire.send(request.stream, m.SubscribeOk(7))
    request.update(NO_PARAMETERS)  # what stands goes on
    assert wire.fault is None


@pytest.mark.rule("M298")
@pytest.mark.parametrize("ask", ASKS)
def test_no_new_requests_after_goaway(ask: Any) -> None:
    wire = Wire(is_client=True)
    assert wire.session.may_request
    wire.send(wire.control, m.Goaway())
    assert not wire.session.may_request
    with pytest.raises(Misuse, match="GOAWAY"):
        ask(wire.session, [])
    assert not wire.opened(unidirectional=False)


@pytest.mark.rule("M290")
def test_a_second_goaway() -> None:
    wire = Wire(is_client=True)
    wire.send(wire.control, m.Goaway(), m.Goaway())
    assert wire.fault is VIOLATION


@pytest.mark.rule("M289")
@pytest.mark.parametrize("where", ["control", "request"])
def test_a_client_names_no_uri(where: str) -> None:
    wire = Wire()
    stream = wire.control if where == "control" else wire.bidi(m.Fetch(0, NAME))
    wire.send(stream, m.Goaway("moqt://x/"))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M292")
@pytest.mark.parametrize("where", ["control", "request"])
@pytest.mark.parametrize(("length", "good"), [(8192, True), (8193, False)])
def test_the_length_of_a_uri(where: str, length: int, good: bool) -> None:
    wire = Wire(is_client=True)
    request = wire.session.fetch(NAME, NO_PARAMETERS, Receiver())
    stream = wire.control if where == "control" else request.stream
    wire.send(stream, goaway(length, b"m" * length))
    assert wire.fault is (None if good else VIOLATION)


@pytest.mark.rule("M291")
def test_a_second_goaway_on_a_request_stream() -> None:
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME), m.Goaway())
    other = wire.bidi(m.Subscribe(2, NAME), m.Goaway())
    assert wire.fault is None
    wire.send(stream, m.Goaway())
    assert wire.fault is VIOLATION
    assert other


def test_one_request_is_to_be_moved() -> None:
    wire = Wire(is_client=True)
    receiver = Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    moves: list[Any] = []
    request.on_move = lambda uri, timeout: moves.append((uri, timeout))
    wire.send(request.stream, m.SubscribeOk(7), m.Goaway(URI, 300))
    assert moves == [(URI, 300)]
    assert wire.session.may_request
    wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    request.cancel()
    assert wire.fault is None


# -- sent ----------------------------------------------------------------------------------------


@pytest.mark.rule("M146", "M288", "M294", "M299", "M523")
def test_what_we_may_say() -> None:
    client, server = Wire(is_client=True), Wire()
    with pytest.raises(Misuse):
        client.session.goaway(URI)
    with pytest.raises(Misuse):
        server.session.goaway("moqt://" + "x" * 8192)
    client.session.goaway()
    server.session.goaway(URI, 700)
    for wire, message in ((client, m.Goaway()), (server, m.Goaway(URI, 700))):
        assert wire.last(wire.opened(unidirectional=True)[0]) == message
        with pytest.raises(Misuse):
            wire.session.goaway()
        assert wire.answer(wire.opened(unidirectional=True)[0]).end is None
        assert wire.fault is None


def test_goaway_needs_an_open_session() -> None:
    wire = Wire()
    wire.session.close()
    with pytest.raises(Misuse):
        wire.session.goaway()


@pytest.mark.rule("M168")
@pytest.mark.parametrize("open_request", ["ours", "theirs", None])
def test_the_session_is_closed_when_the_time_is_over(open_request: str | None) -> None:
    wire = Wire()
    wire.now += 1000  # long after the last event
    if open_request == "ours":
        wire.session.publish_namespace((b"a",), NO_PARAMETERS, lambda _: None)
    elif open_request == "theirs":
        wire.bidi(m.Subscribe(0, NAME))
    else:
        wire.bidi(m.SubscribeTracks(0, ()))  # refused, only its FIN is missing
    wire.session.goaway("", 5000)
    wire.wait(4.9)
    assert wire.fault is None
    wire.wait(0.2)
    assert wire.fault is (SessionCode.GOAWAY_TIMEOUT if open_request else None)


@pytest.mark.rule("M168")
def test_without_a_timeout_nothing_is_closed() -> None:
    wire = Wire()
    wire.bidi(m.Subscribe(0, NAME))
    wire.session.goaway()
    wire.wait(10_000)
    assert wire.fault is None


@pytest.mark.rule("M300")
@pytest.mark.parametrize("moved", [True, False])
def test_a_request_of_the_peer_is_moved_in_time_or_reset(moved: bool) -> None:
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME))
    (request,) = wire.handler.requests
    track = Track(NAME)
    track.attach(request)
    track.subgroup(0).object(0, b"x")
    request.goaway(URI, 2000)
    assert wire.last(stream) == m.Goaway(URI, 2000)
    with pytest.raises(Misuse):
        request.goaway()
    wire.wait(1.9)
    assert request.active
    if moved:
        wire.stop(stream)
    wire.wait(0.2)
    assert not request.active
    assert wire.answer(stream).end == (StreamCode.CANCELLED if moved else StreamCode.GOING_AWAY)
    assert isinstance(wire.data(wire.opened(unidirectional=True)[1])[1], int)
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.rule("M300")
def test_a_request_of_ours_is_moved_in_time_or_reset() -> None:
    wire = Wire(is_client=True)
    receiver = Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    with pytest.raises(Misuse):
        request.goaway(URI)
    request.goaway("", 1000)
    wire.wait(1.1)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.GOING_AWAY
    assert wire.answer(request.stream).end == StreamCode.GOING_AWAY
    assert not leftovers(wire.session)
