"""PUBLISH_NAMESPACE and SUBSCRIBE_NAMESPACE at both ends (draft-22 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import Misuse, RequestCode, RequestFailed, SessionClosed, SessionCode, StreamCode
from moqt.publisher import Catalog
from moqt.session.config import SessionConfig

from .wire import Wire, leftovers
from .worlds import Listener

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
LIVE = (b"live",)
ROOM1, ROOM2 = (b"live", b"room1"), (b"live", b"room2")
BY_ALIAS = Parameters(authorization_tokens=(Token(AliasType.USE_ALIAS, 3),))


# -- SUBSCRIBE_NAMESPACE as publisher ------------------------------------------------------------


def catalog_wire(catalog: Catalog) -> Wire:
    """A session that serves ``catalog``."""
    return Wire(handler=catalog.handler(None))  # type: ignore[arg-type]


@pytest.mark.rule("M102", "M104", "M105", "M108", "M510")
@pytest.mark.parametrize(
    ("prefix", "suffixes"),
    [
        (LIVE, [(b"room1",), (b"room2", b"a")]),
        ((), [ROOM1, (b"live", b"room2", b"a"), (b"other",)]),
        (ROOM1, [()]),
        ((b"liv",), []),
        ((b"live", b"room"), []),
    ],
)
def test_what_is_known_and_what_changes(prefix: Any, suffixes: list[Any]) -> None:
    catalog = Catalog()
    for namespace in (ROOM1, (*ROOM2, b"a"), (b"other",)):
        catalog.announce(namespace)
    wire = catalog_wire(catalog)
    stream = wire.bidi(m.SubscribeNamespace(0, prefix))
    assert wire.answer(stream).messages == [m.RequestOk(), *map(m.Namespace, suffixes)]
    catalog.announce(ROOM1)  # known already
    catalog.withdraw((*ROOM2, b"a"))
    catalog.withdraw((b"never",))
    catalog.withdraw((*ROOM2, b"a"))
    gone = [m.NamespaceDone(s) for s in suffixes if s[-2:] == (b"room2", b"a")]
    assert wire.answer(stream).messages[1 + len(suffixes) :] == gone
    catalog.announce((*ROOM2, b"a"))
    back = [m.Namespace(done.suffix) for done in gone]
    assert wire.answer(stream).messages[1 + len(suffixes) + len(gone) :] == back
    assert wire.answer(stream).end is None


OVERLAPS = [
    (LIVE, LIVE, True),
    (LIVE, ROOM1, True),
    (ROOM1, LIVE, True),
    (ROOM1, (), True),
    ((), ROOM1, True),
    (ROOM1, ROOM2, False),
    (LIVE, (b"liv",), False),
    (LIVE, (b"lively",), False),
]


@pytest.mark.rule("M107")
@pytest.mark.parametrize(("first", "second", "overlaps"), OVERLAPS)
def test_overlapping_prefixes(first: Any, second: Any, overlaps: bool) -> None:
    wire = catalog_wire(Catalog())
    wire.bidi(m.SubscribeNamespace(0, first))
    stream = wire.bidi(m.SubscribeNamespace(2, second))
    answer = wire.last(stream)
    assert isinstance(answer, m.RequestError) is overlaps
    if isinstance(answer, m.RequestError):
        assert answer.code == RequestCode.PREFIX_OVERLAP
        assert wire.answer(stream).end == FIN


@pytest.mark.rule("M107")
@pytest.mark.parametrize("end", ["stop", "reset", "error"])
def test_a_prefix_is_free_again_when_its_request_is_over(end: str) -> None:
    wire = catalog_wire(Catalog())
    first = wire.bidi(m.SubscribeNamespace(wire.id(), LIVE))
    refused = wire.bidi(m.SubscribeNamespace(wire.id(), LIVE), fin=True)
    wire.reset(refused)  # the end of the refused one frees nothing
    again = wire.bidi(m.SubscribeNamespace(wire.id(), LIVE))
    assert isinstance(wire.last(again), m.RequestError)
    if end == "error":
        wire.send(first, m.RequestUpdate(wire.id(), BY_ALIAS))
    else:
        getattr(wire, end)(first)
    third = wire.bidi(m.SubscribeNamespace(wire.id(), LIVE))
    assert wire.answer(third).messages == [m.RequestOk()]


@pytest.mark.rule("M107")
def test_nobody_is_asked_about_an_overlap() -> None:
    wire = Wire()
    wire.bidi(m.SubscribeNamespace(0, LIVE))
    wire.handler.requests[0].accept()
    wire.bidi(m.SubscribeNamespace(2, ROOM1))
    assert len(wire.handler.requests) == 1


@pytest.mark.rule("M107")
def test_of_two_that_wait_only_one_is_accepted() -> None:
    wire = Wire()
    streams = [wire.bidi(m.SubscribeNamespace(wire.id(), LIVE)) for _ in range(2)]
    for request in wire.handler.requests:
        request.accept()
    assert [type(wire.last(stream)) for stream in streams] == [m.RequestOk, m.RequestError]


@pytest.mark.parametrize("how", ["stop", "reset"])
def test_cancelled_interests_hear_no_more(how: str) -> None:
    catalog = Catalog()
    wire = catalog_wire(catalog)
    stream = wire.bidi(m.SubscribeNamespace(0, LIVE))
    getattr(wire, how)(stream)
    catalog.announce(ROOM1)
    assert wire.answer(stream).messages == [m.RequestOk()]
    assert not catalog._interests
    assert not leftovers(wire.session)


@pytest.mark.rule("M159")
def test_fin_of_the_subscriber_ends_nothing() -> None:
    catalog = Catalog()
    wire = catalog_wire(catalog)
    stream = wire.bidi(m.SubscribeNamespace(0, LIVE), fin=True)
    catalog.announce(ROOM1)
    assert wire.last(stream) == m.Namespace((b"room1",))


@pytest.mark.rule("M315", "M317", "M311")
@pytest.mark.parametrize(
    "opening", [m.SubscribeNamespace(0, LIVE), m.PublishNamespace(0, LIVE)], ids=["sub", "pub"]
)
def test_a_failed_update_closes_the_request(opening: m.Message) -> None:
    wire = Wire()
    stream = wire.bidi(opening)
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    request.accept()
    wire.send(stream, m.RequestUpdate(2))
    assert wire.last(stream) == m.RequestOk()
    wire.send(stream, m.RequestUpdate(4, BY_ALIAS))
    assert isinstance(wire.last(stream), m.RequestError)
    assert wire.answer(stream).end == FIN
    assert ends == ["end"]
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M321", "M395", "M105")
def test_the_prefix_is_changed() -> None:
    catalog = Catalog()
    for namespace in (ROOM1, (*ROOM2, b"a"), (b"other",)):
        catalog.announce(namespace)
    wire = catalog_wire(catalog)
    stream = wire.bidi(m.SubscribeNamespace(0, LIVE))
    before = len(wire.answer(stream).messages)
    wire.send(stream, bytes.fromhex("02 000f 08 01 34 02 04 6c697665 05 726f6f6d32"))
    assert wire.answer(stream).messages[before:] == [m.NamespaceDone((b"room1",)), m.RequestOk()]
    catalog.announce((*ROOM2, b"b"))
    assert wire.last(stream) == m.Namespace((b"b",))
    wire.send(stream, m.RequestUpdate(10, Parameters(track_namespace_prefix=(b"other",))))
    assert wire.answer(stream).messages[before + 3 :] == [
        m.NamespaceDone((b"a",)),
        m.NamespaceDone((b"b",)),
        m.RequestOk(),
        m.Namespace(()),
    ]
    free = wire.bidi(m.SubscribeNamespace(2, LIVE))
    assert isinstance(wire.answer(free).messages[0], m.RequestOk)
    taken = wire.bidi(m.SubscribeNamespace(4, (b"other", b"x")))
    assert isinstance(wire.last(taken), m.RequestError)


@pytest.mark.rule("M394", "M315")
@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        ((b"other", b"x"), RequestCode.PREFIX_OVERLAP),
        ((), RequestCode.PREFIX_OVERLAP),
        ((b".",), RequestCode.DOES_NOT_EXIST),
        ((b".session", b"x"), RequestCode.DOES_NOT_EXIST),
    ],
)
def test_a_prefix_it_cannot_be_changed_to(prefix: Any, code: RequestCode) -> None:
    wire = catalog_wire(Catalog())
    stream = wire.bidi(m.SubscribeNamespace(0, LIVE))
    wire.bidi(m.SubscribeNamespace(2, (b"other",)))
    wire.send(stream, m.RequestUpdate(8, Parameters(track_namespace_prefix=prefix)))
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == code
    assert wire.answer(stream).end == FIN
    again = wire.bidi(m.SubscribeNamespace(4, LIVE))
    assert isinstance(wire.last(again), m.RequestOk)


def test_only_namespaces_under_the_prefix_are_told() -> None:
    wire = Wire()
    stream = wire.bidi(m.SubscribeNamespace(0, ROOM1))
    (request,) = wire.handler.requests
    request.found(ROOM1)  # not accepted yet
    request.accept()
    with pytest.raises(Misuse):
        request.found(ROOM2)
    request.found(ROOM1)
    request.found(ROOM1)
    request.gone(ROOM2)
    request.gone(ROOM1)
    request.gone(ROOM1)
    kinds = [type(message) for message in wire.answer(stream).messages]
    assert kinds == [m.RequestOk, m.Namespace, m.NamespaceDone]


# -- SUBSCRIBE_NAMESPACE as subscriber -----------------------------------------------------------


def interested(config: SessionConfig | None = None) -> tuple[Wire, Any, Listener]:
    """An interest of ours in (live), not answered."""
    wire = Wire(is_client=True, config=config)
    listener = Listener()
    return wire, wire.session.subscribe_namespace(LIVE, NO_PARAMETERS, listener), listener


@pytest.mark.rule("M110")
def test_namespaces_come_and_go() -> None:
    wire, request, listener = interested()
    wire.send(request.stream, m.RequestOk(), m.Namespace((b"room1",)), m.Namespace(()))
    wire.send(request.stream, m.Namespace((b"room1",)))
    assert listener.accepts == 1
    assert listener.names == [ROOM1, LIVE]
    wire.send(request.stream, m.NamespaceDone((b"room1",)))
    wire.send(request.stream, m.Namespace((b"room1",)))
    assert listener.names == [LIVE, ROOM1]
    assert listener.lost == [ROOM1]
    wire.bidi(m.PublishNamespace(1, ROOM1))  # independent of it
    assert wire.fault is None
    assert len(wire.handler.requests) == 1


@pytest.mark.rule("M103")
@pytest.mark.parametrize(
    "first",
    [m.Namespace((b"a",)), m.NamespaceDone((b"a",)), m.SubscribeOk(1), m.PublishDone(0, 0)],
    ids=lambda message: type(message).__name__,
)
def test_another_first_answer(first: m.Message) -> None:
    wire, request, _ = interested()
    wire.send(request.stream, first)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M109")
@pytest.mark.parametrize("again", [False, True])
def test_done_before_found(again: bool) -> None:
    wire, request, _ = interested()
    wire.send(request.stream, m.RequestOk())
    if again:
        wire.send(request.stream, m.Namespace((b"a",)), m.NamespaceDone((b"a",)))
    assert wire.fault is None
    wire.send(request.stream, m.NamespaceDone((b"a",)))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M531")
@pytest.mark.parametrize("message", [m.PublishSkipped((b"a",), b"b"), m.RequestOk()])
def test_what_has_no_place_on_the_stream(message: m.Message) -> None:
    wire, request, _ = interested()
    wire.send(request.stream, m.RequestOk(), message)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M112")
@pytest.mark.parametrize("how", ["fin", "reset", "lost"])
def test_the_end_is_the_end_of_all_names(how: str) -> None:
    wire, request, listener = interested()
    wire.send(request.stream, m.RequestOk(), m.Namespace((b"room1",)))
    if how == "fin":
        wire.send(request.stream, fin=True)
        assert listener.heard == [None]
        assert wire.answer(request.stream).end == FIN
    elif how == "reset":
        wire.reset(request.stream)
        assert [type(error) for error in listener.heard] == [RequestFailed]
    else:
        wire.lose()
        assert [type(error) for error in listener.heard] == [SessionClosed]
    assert not listener.names
    assert not leftovers(wire.session)


@pytest.mark.rule("M236", "M235")
@pytest.mark.parametrize("suffix", [(b"x" * 4093,), (b"x",) * 32])
def test_prefix_and_suffix_together_are_one_name(suffix: Any) -> None:
    wire, request, _ = interested()
    wire.send(request.stream, m.RequestOk(), m.Namespace(suffix))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M302")
def test_properties_in_the_answer() -> None:
    wire, request, _ = interested()
    wire.send(request.stream, bytes.fromhex("07 0003 00 0e40"))
    assert wire.fault is VIOLATION


def test_names_are_bounded() -> None:
    wire, request, listener = interested(SessionConfig(namespace_octets=1000))
    wire.send(request.stream, m.RequestOk())
    for number in range(100):  # coming and going is no growth
        wire.send(
            request.stream, m.Namespace((b"%d" % number,)), m.NamespaceDone((b"%d" % number,))
        )
    for number in range(20):
        wire.send(request.stream, m.Namespace((b"%d" % number,)))
    (error,) = listener.heard
    assert error.code == RequestCode.EXCESSIVE_LOAD
    assert wire.stopped(request.stream) == StreamCode.EXCESSIVE_LOAD
    assert wire.fault is None
    assert not leftovers(wire.session)


# -- PUBLISH_NAMESPACE as publisher --------------------------------------------------------------


def announced() -> tuple[Wire, Any, list[Any]]:
    """An announcement of ours, not answered."""
    wire = Wire(is_client=True)
    answers: list[Any] = []
    return wire, wire.session.publish_namespace(LIVE, NO_PARAMETERS, answers.append), answers


@pytest.mark.rule("M099")
def test_an_announcement_stands_until_it_is_taken_back() -> None:
    wire, request, answers = announced()
    assert wire.answer(request.stream) == ([m.PublishNamespace(0, LIVE)], None)
    wire.send(request.stream, m.RequestOk(), fin=True)
    assert answers == [None]
    assert wire.answer(request.stream).end is None  # FIN of the responder revokes nothing
    request.cancel()
    assert wire.answer(request.stream).end == StreamCode.CANCELLED
    assert answers == [None]
    assert not leftovers(wire.session)


@pytest.mark.rule("M098")
@pytest.mark.parametrize("second", [m.RequestOk(), m.RequestError(0)])
def test_a_second_answer(second: m.Message) -> None:
    wire, request, _ = announced()
    wire.send(request.stream, m.RequestOk(), second)
    assert wire.fault is VIOLATION


def test_a_revoked_announcement() -> None:
    wire, request, answers = announced()
    wire.send(request.stream, m.RequestOk())
    wire.stop(request.stream)
    wire.reset(request.stream)
    assert [type(answer) for answer in answers] == [type(None), RequestFailed]
    assert not leftovers(wire.session)


# -- PUBLISH_NAMESPACE as subscriber -------------------------------------------------------------


@pytest.mark.rule("M097")
def test_an_announcement_of_the_peer() -> None:
    wire = Wire()
    stream = wire.bidi(m.PublishNamespace(0, LIVE))
    (request,) = wire.handler.requests
    assert request.namespace == LIVE
    request.accept()
    request.accept()
    request.refuse(RequestCode.UNINTERESTED)
    assert wire.answer(stream) == ([m.RequestOk()], None)


@pytest.mark.parametrize("how", ["stop", "reset", "both"])
def test_withdrawn_by_the_peer(how: str) -> None:
    wire = Wire()
    stream = wire.bidi(m.PublishNamespace(0, LIVE))
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    request.accept()
    if how != "stop":
        wire.reset(stream)
    if how != "reset":
        wire.stop(stream)
    assert ends == ["end"]
    assert not leftovers(wire.session)


def test_revoked_by_us() -> None:
    wire = Wire()
    stream = wire.bidi(m.PublishNamespace(0, LIVE))
    (request,) = wire.handler.requests
    ends: list[str] = []
    request.on_end = lambda: ends.append("end")
    request.accept()
    request.revoke(StreamCode.EXCESSIVE_LOAD)
    assert wire.answer(stream).end == StreamCode.EXCESSIVE_LOAD
    assert wire.stopped(stream) == StreamCode.EXCESSIVE_LOAD
    assert ends == ["end"]
    assert not leftovers(wire.session)


def test_revoked_before_it_was_accepted() -> None:
    wire = Wire()
    stream = wire.bidi(m.PublishNamespace(0, LIVE))
    (request,) = wire.handler.requests
    request.revoke(StreamCode.EXPIRED_AUTH_TOKEN)
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.UNAUTHORIZED
    request.accept()
    assert wire.answer(stream).end == "fin"
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)
