"""What we do not do: repeat, send elsewhere out of turn, mark what needs no mark."""

from __future__ import annotations

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import Misuse, RequestCode, RequestRefused
from moqt.model import GroupOrder, LocationFilter, Redirect
from moqt.publisher import Track
from moqt.session.config import SessionConfig
from moqt.session.tokens import Claim

from .wire import NAME, Wire
from .worlds import Listener, Receiver, World

ELSEWHERE = Redirect("moqt://other.example/", NAME)


@pytest.mark.rule("M308", "M309", "M478")
@pytest.mark.parametrize("retry", [0, 1, 500])
@pytest.mark.parametrize("code", [RequestCode.EXCESSIVE_LOAD, RequestCode.REDIRECT])
def test_nothing_refused_is_repeated(code: RequestCode, retry: int) -> None:
    wire = Wire(is_client=True)
    receiver = Receiver()
    wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    (stream,) = wire.opened(unidirectional=False)
    redirect = ELSEWHERE if code is RequestCode.REDIRECT else None
    wire.send(stream, m.RequestError(code, retry, "", redirect))
    assert receiver.error is not None
    wire.now += 3600
    wire.session.tick(wire.now)
    assert wire.opened(unidirectional=False) == [stream]


@pytest.mark.rule("M525")
def test_a_client_sends_nobody_to_another_place() -> None:
    wire = Wire(is_client=True)
    wire.bidi(m.Subscribe(1, NAME))
    (request,) = wire.handler.requests
    with pytest.raises(Misuse, match="no URI"):
        request.refuse(RequestCode.REDIRECT, redirect=ELSEWHERE)


@pytest.mark.rule("M537")
def test_no_update_is_answered_with_a_redirect() -> None:
    def judge(claim: Claim, now: float) -> RequestRefused | None:
        if claim.update:
            return RequestRefused(RequestCode.REDIRECT, "", redirect=ELSEWHERE)
        return None

    wire = Wire(config=SessionConfig(token_verifier=judge))
    stream = wire.bidi(m.SubscribeNamespace(wire.id(), (b"live",)))
    wire.handler.requests[0].accept()
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters()))
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert (error.code, error.redirect) == (RequestCode.INTERNAL_ERROR, None)


@pytest.mark.rule("M320")
def test_our_prefixes_do_not_move_onto_each_other() -> None:
    wire = Wire(is_client=True)
    requests = [
        wire.session.subscribe_namespace(prefix, NO_PARAMETERS, Listener())
        for prefix in ((b"a",), (b"b",))
    ]
    for wanted in ((b"a",), (b"a", b"x"), ()):
        with pytest.raises(Misuse, match="overlaps"):
            requests[1].update(Parameters(track_namespace_prefix=wanted))
    requests[1].update(Parameters(track_namespace_prefix=(b"b", b"x")))
    requests[0].cancel()
    requests[1].update(Parameters(track_namespace_prefix=(b"a",)))


@pytest.mark.rule("M299")
def test_whoever_says_goaway_asks_for_nothing_more() -> None:
    wire = Wire()
    assert wire.session.may_request
    wire.session.goaway()
    assert not wire.session.may_request


@pytest.mark.rule("M294")
def test_goaway_names_a_place_that_this_session_could_move_to() -> None:
    with pytest.raises(Misuse, match="moqt://"):
        Wire().session.goaway("https://relay.example/")
    wire = Wire(config=SessionConfig(webtransport=True))
    with pytest.raises(Misuse, match="https://"):
        wire.session.goaway("moqt://relay.example/")
    wire.session.goaway("https://relay.example/")


@pytest.mark.rule("M049")
@pytest.mark.parametrize("order", GroupOrder)
def test_what_does_not_exist_needs_no_marker(order: GroupOrder) -> None:
    world = World()
    track = world.catalog.add(Track(NAME))
    for group in (1, 2, 5):
        writer = track.subgroup(group)
        for number in (0, 3, 4):
            writer.object(number, b"x")
        writer.finish()
    receiver = Receiver()
    asked = Parameters(location_filter=LocationFilter.since(0, 0), group_order=order)
    world.run(0.1)
    world.client.session.fetch(NAME, asked, receiver)
    world.run()
    (stream,) = receiver.fetches
    assert len(stream.objects) == 9
    assert stream.gaps == []
    assert stream.ended == "fin"
