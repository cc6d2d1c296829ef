"""Request streams: who opens them with what, ids, FIN, reset, what is left (draft-22 §6.4.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import (
    Misuse,
    RequestCode,
    RequestFailed,
    RequestRefused,
    SessionClosed,
    SessionCode,
    StreamCode,
)
from moqt.model import FullTrackName, Location
from moqt.session.config import SessionConfig
from moqt.session.core import Session
from moqt.session.ports import Unserved

from .wire import NAME, Wire, leftovers
from .worlds import Listener, Receiver

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"


def openings(request_id: int) -> list[m.Message]:
    """One of each of the seven requests."""
    return [
        m.Subscribe(request_id, NAME),
        m.Fetch(request_id, NAME),
        m.TrackStatus(request_id, NAME),
        m.PublishNamespace(request_id, (b"live",)),
        m.SubscribeNamespace(request_id, (b"live",)),
        m.Publish(request_id, NAME, 7),
        m.SubscribeTracks(request_id, (b"live",)),
    ]


def named(message: m.Message) -> str:
    """For test ids."""
    return type(message).__name__


# -- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("we_are_client", "first"),
    [
        pytest.param(True, 0, marks=pytest.mark.rule("M151", "M143")),
        pytest.param(False, 1, marks=pytest.mark.rule("M152")),
    ],
)
def test_our_ids(we_are_client: bool, first: int) -> None:
    wire = Wire(is_client=we_are_client)
    session = wire.session
    subscribe = session.subscribe(NAME, NO_PARAMETERS, Receiver())
    wire.send(subscribe.stream, m.SubscribeOk(1))
    subscribe.update(Parameters(forward=False))
    fetch = session.fetch(NAME, NO_PARAMETERS, Receiver())
    status = session.track_status(NAME, NO_PARAMETERS, lambda _: None)
    announce = session.publish_namespace((b"a",), NO_PARAMETERS, lambda _: None)
    interest = session.subscribe_namespace((b"a",), NO_PARAMETERS, Listener())
    sent: list[Any] = []
    for request in (subscribe, fetch, status, announce, interest):
        sent += wire.answer(request.stream).messages
    kinds = [m.Subscribe, m.RequestUpdate, m.Fetch, m.TrackStatus]
    kinds += [m.PublishNamespace, m.SubscribeNamespace]
    assert [type(message) for message in sent] == kinds
    assert [message.request_id for message in sent] == [first + 2 * i for i in range(6)]


@pytest.mark.rule("M153")
@pytest.mark.parametrize("message", openings(1), ids=named)
def test_an_id_of_the_wrong_parity(message: m.Message) -> None:
    wire = Wire()
    wire.bidi(message)
    assert wire.fault is SessionCode.INVALID_REQUEST_ID
    assert not wire.handler.requests


@pytest.mark.rule("M154")
@pytest.mark.parametrize("message", openings(0), ids=named)
def test_an_id_used_twice(message: m.Message) -> None:
    wire = Wire()
    wire.bidi(m.Fetch(0, NAME))
    assert wire.fault is None
    wire.bidi(message)
    assert wire.fault is SessionCode.INVALID_REQUEST_ID


@pytest.mark.rule("M153", "M154")
@pytest.mark.parametrize("used", [0, 1, 4])
def test_ids_of_updates_count(used: int) -> None:
    wire = Wire()
    wire.bidi(m.Fetch(4, NAME))
    stream = wire.bidi(m.Subscribe(0, NAME))
    wire.send(stream, m.RequestUpdate(used))
    assert wire.fault is SessionCode.INVALID_REQUEST_ID


@pytest.mark.rule("M155")
def test_ids_out_of_order() -> None:
    wire = Wire()
    for request_id in (6, 2, 0, 12, 4, 10, 8):
        wire.bidi(m.Fetch(request_id, NAME))
    assert wire.fault is None
    assert len(wire.handler.requests) == 7


# -- the first message ---------------------------------------------------------------------------


NO_OPENING = [
    m.Setup(),
    m.Goaway(),
    m.RequestOk(),
    m.RequestError(0),
    m.RequestUpdate(0),
    m.SubscribeOk(1),
    m.FetchOk(False, Location(0, 0)),
    m.PublishDone(0, 0),
    m.PublishStateNotify(),
    m.Namespace((b"a",)),
    m.NamespaceDone((b"a",)),
    m.PublishSkipped((b"a",), b"b"),
]


@pytest.mark.rule("M144", "M253")
@pytest.mark.parametrize("message", NO_OPENING, ids=named)
def test_other_messages_open_no_request_stream(message: m.Message) -> None:
    wire = Wire()
    wire.bidi(message)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M254")
@pytest.mark.parametrize("kind", ["01", "1e", "20", "21", "8040", "8041", "5f", "bfff"])
def test_unknown_messages(kind: str) -> None:
    wire = Wire()
    wire.bidi(bytes.fromhex(kind))
    assert wire.fault is VIOLATION
    later = Wire()
    stream = later.bidi(m.Subscribe(0, NAME))
    later.send(stream, bytes.fromhex(kind))
    assert later.fault is VIOLATION


@pytest.mark.rule("M253")
@pytest.mark.parametrize("message", openings(2), ids=named)
def test_first_messages_come_once(message: m.Message) -> None:
    wire = Wire()
    wire.bidi(m.Subscribe(0, NAME), message)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M001", "M162", "M157")
@pytest.mark.parametrize("message", openings(0), ids=named)
@pytest.mark.parametrize("fin", [True, False])
def test_what_is_not_served_is_answered(message: m.Message, fin: bool) -> None:
    wire = Wire(handler=Unserved())
    stream = wire.bidi(message, fin=fin)
    answer = wire.answer(stream)
    (error,) = answer.messages
    assert isinstance(error, m.RequestError)
    offered = isinstance(message, m.Publish)
    expected = RequestCode.UNINTERESTED if offered else RequestCode.NOT_SUPPORTED
    assert error.code == expected
    assert answer.end == FIN
    wire.send(stream, fin=True)
    assert wire.fault is None
    assert not leftovers(wire.session)


class Refusing(Unserved):
    """Refuses everything in a certain way."""

    def __init__(self, refusal: RequestRefused) -> None:
        self.refusal = refusal

    def on_subscribe(self, request: Any) -> None:
        raise self.refusal


@pytest.mark.parametrize(
    ("retry_after", "interval"),
    [(None, 0), (0, 1), pytest.param(499, 500, marks=pytest.mark.rule("M476"))],
)
def test_a_refusal_says_when_to_come_back(retry_after: int | None, interval: int) -> None:
    refusal = RequestRefused(RequestCode.EXCESSIVE_LOAD, "busy", retry_after)
    wire = Wire(handler=Refusing(refusal))
    assert wire.last(wire.bidi(m.Subscribe(0, NAME))) == m.RequestError(9, interval, "busy")


def test_requests_are_answered_once_and_late() -> None:
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME))
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    assert not wire.answer(stream).messages
    request.refuse(RequestCode.UNAUTHORIZED, "no")
    request.refuse(RequestCode.DOES_NOT_EXIST, "no")
    assert wire.answer(stream).messages == [m.RequestError(1, 0, "no")]
    wire.reset(stream)
    wire.lose()
    assert ends == ["end"]


# -- FIN and reset from the requester ------------------------------------------------------------


@pytest.mark.rule("M159", "M156")
@pytest.mark.parametrize("message", openings(0)[:5], ids=named)
def test_fin_cancels_nothing(message: m.Message) -> None:
    wire = Wire()
    stream = wire.bidi(message, fin=True)
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    assert not ends
    assert wire.answer(stream) == ([], None)
    request.refuse(RequestCode.DOES_NOT_EXIST)
    assert wire.answer(stream).end == FIN
    assert not leftovers(wire.session)


@pytest.mark.rule("M163", "M053")
@pytest.mark.parametrize("message", openings(0)[:5], ids=named)
@pytest.mark.parametrize("how", ["reset", "stop", "both"])
def test_cancelled_by_the_requester(message: m.Message, how: str) -> None:
    wire = Wire()
    stream = wire.bidi(message)
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    if how != "stop":
        wire.reset(stream)
    if how != "reset":
        wire.stop(stream)
    assert ends == ["end"]
    assert wire.answer(stream) == ([], StreamCode.CANCELLED)
    assert (wire.stopped(stream) is None) == (how != "stop")
    assert not leftovers(wire.session)
    request.refuse(RequestCode.DOES_NOT_EXIST)  # too late, and no mistake
    assert wire.answer(stream) == ([], StreamCode.CANCELLED)


@pytest.mark.parametrize("octets", [b"", b"\x03", b"\x03\x00\x14\x00\x02"])
@pytest.mark.parametrize("how", ["reset", "stop"])
def test_cancelled_before_the_first_message(octets: bytes, how: str) -> None:
    wire = Wire()
    stream = wire.bidi(octets)
    getattr(wire, how)(stream)
    assert wire.fault is None
    assert not leftovers(wire.session)
    assert wire.answer(stream).end == StreamCode.CANCELLED


@pytest.mark.parametrize("octets", [b"", b"\x03", b"\x03\x00\x14\x00\x02"])
def test_fin_before_the_first_message_is_whole(octets: bytes) -> None:
    wire = Wire()
    wire.bidi(octets, fin=True)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M255")
def test_fin_in_the_middle_of_a_later_message() -> None:
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME), b"\x02\x00")
    assert wire.fault is None
    wire.send(stream, fin=True)
    assert wire.fault is VIOLATION


# -- our requests --------------------------------------------------------------------------------

Ask = Callable[[Session, list[Any]], Any]


def _subscribe(session: Session, heard: list[Any]) -> Any:
    return session.subscribe(NAME, NO_PARAMETERS, Ear(heard))


def _fetch(session: Session, heard: list[Any]) -> Any:
    return session.fetch(NAME, NO_PARAMETERS, Ear(heard))


def _status(session: Session, heard: list[Any]) -> Any:
    return session.track_status(NAME, NO_PARAMETERS, heard.append)


def _announce(session: Session, heard: list[Any]) -> Any:
    return session.publish_namespace((b"live",), NO_PARAMETERS, heard.append)


def _interest(session: Session, heard: list[Any]) -> Any:
    return session.subscribe_namespace((b"live",), NO_PARAMETERS, Listener(heard))


class Ear(Receiver):
    """A Receiver that also writes failures into a list."""

    def __init__(self, heard: list[Any]) -> None:
        super().__init__()
        self.heard = heard

    def failed(self, error: Any) -> None:
        super().failed(error)
        self.heard.append(error)


ASKS: list[Ask] = [_subscribe, _fetch, _status, _announce, _interest]


@pytest.mark.rule("M517")
@pytest.mark.parametrize("ask", ASKS)
def test_fin_without_an_answer_fails_the_request_only(ask: Ask) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    wire.send(request.stream, fin=True)
    assert [type(error) for error in heard] == [RequestFailed]
    assert wire.fault is None
    assert wire.answer(request.stream).end == FIN
    assert not leftovers(wire.session)


@pytest.mark.rule("M160", "M484")
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("code", "interval", "seen", "retry"),
    [
        (RequestCode.DOES_NOT_EXIST, 0, RequestCode.DOES_NOT_EXIST, None),
        (RequestCode.EXCESSIVE_LOAD, 1, RequestCode.EXCESSIVE_LOAD, 0),
        pytest.param(
            0x9D, 2001, RequestCode.INTERNAL_ERROR, 2000, marks=pytest.mark.rule("M483", "M481")
        ),
    ],
)
def test_request_error(ask: Ask, code: int, interval: int, seen: int, retry: int | None) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    wire.send(request.stream, m.RequestError(code, interval, "why"), fin=True)
    (error,) = heard
    assert (error.code, error.retry_after) == (seen, retry)
    assert error.reason.startswith("why")
    assert wire.fault is None
    assert wire.answer(request.stream).end == FIN
    assert not leftovers(wire.session)


@pytest.mark.rule("M022", "M098", "M039")
@pytest.mark.parametrize("ask", ASKS)
def test_a_second_answer(ask: Ask) -> None:
    wire = Wire(is_client=True)
    request = ask(wire.session, [])
    wire.send(request.stream, m.RequestError(RequestCode.DOES_NOT_EXIST))
    assert wire.fault is None
    assert wire.answer(request.stream).end == FIN  # there is no more to say
    wire.send(request.stream, m.RequestError(RequestCode.DOES_NOT_EXIST))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M304")
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("is_client", "uri", "good"),
    [(False, "moqt://b/", False), (False, "", True), (True, "moqt://b/", True)],
)
def test_a_redirect_of_a_client_names_no_uri(
    ask: Ask, is_client: bool, uri: str, good: bool
) -> None:
    wire = Wire(is_client=is_client)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    name = FullTrackName((b"live",), b"")
    redirect = m.RequestError(RequestCode.REDIRECT, 0, "", m.Redirect(uri, name))
    wire.send(request.stream, redirect, fin=True)
    assert wire.fault is (None if good else VIOLATION)
    if good:
        assert [error.code for error in heard] == [RequestCode.REDIRECT]


@pytest.mark.rule("M306")
@pytest.mark.parametrize("ask", [_announce, _interest])
def test_a_redirect_of_a_namespace_names_no_track(ask: Ask) -> None:
    wire = Wire(is_client=True)
    request = ask(wire.session, [])
    redirect = m.Redirect("", FullTrackName((b"live",), b"video"))
    wire.send(request.stream, m.RequestError(RequestCode.REDIRECT, 0, "", redirect))
    assert wire.fault is VIOLATION


@pytest.mark.parametrize("ask", ASKS)
def test_reset_by_the_responder(ask: Ask) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    wire.reset(request.stream, 9)
    assert [type(error) for error in heard] == [RequestFailed]
    # TRACK_STATUS has finished its direction already.
    assert wire.answer(request.stream).end == (FIN if ask is _status else StreamCode.CANCELLED)
    assert wire.stopped(request.stream) is None
    assert not leftovers(wire.session)


@pytest.mark.parametrize("ask", ASKS)
def test_stop_sending_may_run_ahead_of_the_answer(ask: Ask) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    wire.stop(request.stream, 0)
    wire.wait(0.5)
    assert not heard
    wire.send(request.stream, m.RequestError(RequestCode.DOES_NOT_EXIST), fin=True)
    assert [error.code for error in heard] == [RequestCode.DOES_NOT_EXIST]
    assert not leftovers(wire.session)


@pytest.mark.parametrize("ask", ASKS)
def test_stop_sending_alone_ends_the_request_in_the_end(ask: Ask) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    wire.stop(request.stream, 0)
    wire.stop(request.stream, 0)
    wire.wait(2)
    assert len(heard) == 1
    assert wire.stopped(request.stream) == StreamCode.CANCELLED
    assert not leftovers(wire.session)


@pytest.mark.rule("M163", "M052")
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("answered", [False, True])
def test_cancelled_by_us(ask: Ask, answered: bool) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    if answered and ask is not _status:
        answers = {_subscribe: m.SubscribeOk(3), _fetch: m.FetchOk(False, Location(9, 9))}
        wire.send(request.stream, answers.get(ask, m.RequestOk()))
    heard.clear()
    request.cancel()
    request.cancel()
    assert not heard
    if ask is not _status:
        assert wire.answer(request.stream).end == StreamCode.CANCELLED
    assert wire.stopped(request.stream) == StreamCode.CANCELLED
    wire.send(request.stream, m.SubscribeOk(4))
    wire.reset(request.stream)
    assert not heard
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.parametrize("ask", ASKS)
def test_the_session_dies_under_a_request(ask: Ask) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    ask(wire.session, heard)
    wire.lose(-1)
    assert [type(error) for error in heard] == [SessionClosed]
    assert wire.handler.ended == (-1, "gone")
    with pytest.raises(SessionClosed):
        ask(wire.session, heard)


@pytest.mark.parametrize("ask", ASKS)
def test_our_own_close_ends_requests_when_the_transport_says_so(ask: Ask) -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = ask(wire.session, heard)
    wire.session.close(0, "bye")
    wire.session.close(1, "again")
    assert wire.calls("close") == [("close", 0, "bye")]
    wire.send(request.stream, m.RequestError(0))  # too late to matter
    assert not heard
    wire.lose(0, "bye")
    wire.session.transport_closed(wire.now, 0, "bye")
    assert [type(error) for error in heard] == [SessionClosed]


def test_what_cannot_be_written_opens_nothing() -> None:
    wire = Wire(is_client=True)
    wrong = Parameters(expires=1)
    with pytest.raises(Misuse):
        wire.session.subscribe(NAME, wrong, Receiver())
    with pytest.raises(Misuse):
        wire.session.fetch(NAME, Parameters(forward=True), Receiver())
    with pytest.raises(Misuse):
        wire.session.publish_namespace((b"",), NO_PARAMETERS, lambda _: None)
    assert not wire.opened(unidirectional=False)
    assert not leftovers(wire.session)
    assert wire.session.subscribe(NAME, NO_PARAMETERS, Receiver()).request_id == 0


# -- floods --------------------------------------------------------------------------------------


@pytest.mark.rule("M488", "M476")
def test_requests_open_at_once_are_bounded() -> None:
    wire = Wire(config=SessionConfig(max_peer_requests=10, retry_interval=250))
    streams = [wire.bidi(m.Subscribe(wire.id(), NAME)) for _ in range(100)]
    assert len(wire.handler.requests) == 10
    assert leftovers(wire.session) == {"owners": 10, "peer_requests": 10}
    assert wire.answer(streams[9]).messages == []
    refused = wire.answer(streams[10])
    assert refused == ([m.RequestError(9, 251, "too many open requests")], FIN)
    assert wire.stopped(streams[10]) == StreamCode.EXCESSIVE_LOAD
    wire.reset(streams[0])
    wire.bidi(m.Subscribe(wire.id(), NAME))
    assert len(wire.handler.requests) == 11
