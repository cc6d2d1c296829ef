"""PUBLISH and SUBSCRIBE_TRACKS, reserved names, tokens: what is answered without asking anybody."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, Misuse, RequestCode, SessionCode, StreamCode
from moqt.model import FullTrackName
from moqt.publisher import Catalog, Track
from moqt.session.ports import Unserved

from .wire import NAME, Wire, leftovers
from .worlds import Listener, Receiver

FIN = "fin"
STREAM = bytes.fromhex("14 07 0c 00 00 00 01 41")


# -- PUBLISH and SUBSCRIBE_TRACKS ----------------------------------------------------------------


@pytest.mark.rule("M001", "M528", "M021", "M077")
@pytest.mark.parametrize("message", [m.Publish(0, NAME, 7), m.SubscribeTracks(0, (b"live",))])
def test_never_silence(message: m.Message) -> None:
    wire = Wire(handler=Unserved())
    stream = wire.bidi(message)
    (error,) = wire.answer(stream).messages
    assert isinstance(error, m.RequestError)
    assert error.code in (RequestCode.NOT_SUPPORTED, RequestCode.UNINTERESTED)
    assert wire.answer(stream).end == FIN
    wire.send(stream, m.RequestUpdate(2), fin=True)
    assert len(wire.answer(stream).messages) == 1
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.rule("M325", "M512")
@pytest.mark.parametrize("first", ["publish", "data"])
def test_data_of_a_refused_publish_is_stopped(first: str) -> None:
    wire = Wire()
    streams = []
    if first == "data":
        streams.append(wire.uni(STREAM))
        assert wire.stopped(streams[0]) is None
    wire.bidi(m.Publish(0, NAME, 7))
    streams.append(wire.uni(STREAM))
    wire.datagram(bytes.fromhex("00 07 0c 05 80 6869"))
    assert [wire.stopped(stream) for stream in streams] == [StreamCode.CANCELLED] * len(streams)
    assert wire.fault is None
    assert leftovers(wire.session).keys() == {"owners", "peer_requests"}


def test_its_alias_may_yet_be_that_of_a_subscribe_of_ours() -> None:
    wire = Wire(is_client=True)
    receiver = Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    wire.bidi(m.Publish(1, NAME, 7))
    wire.uni(STREAM, fin=True)
    wire.send(request.stream, m.SubscribeOk(7))
    assert receiver.locations == [(12, 0)]


def test_more_of_a_publish_than_it_could_know() -> None:
    wire = Wire()
    stream = wire.bidi(
        m.Publish(0, NAME, 7),
        m.PublishStateNotify(Parameters(forward=False)),
        m.RequestUpdate(2),
        m.PublishDone(DoneCode.TRACK_ENDED, 0),
        fin=True,
    )
    assert len(wire.answer(stream).messages) == 1
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.rule("M088", "M087")
def test_a_mandatory_property_we_do_not_know() -> None:
    wire = Wire()
    stream = wire.bidi(m.Publish(0, NAME, 7, NO_PARAMETERS, bytes.fromhex("c04000 01")))
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.UNSUPPORTED_EXTENSION


def test_a_malformed_publish() -> None:
    wire = Wire()
    error = wire.last(wire.bidi(m.Publish(0, NAME, 7, NO_PARAMETERS, bytes.fromhex("0b 02 0b 00"))))
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.MALFORMED_TRACK
    broken = Wire()
    broken.bidi(m.Publish(0, NAME, 7, NO_PARAMETERS, bytes.fromhex("22 03")))
    assert broken.fault is SessionCode.PROTOCOL_VIOLATION


# -- reserved names ------------------------------------------------------------------------------


def naming(namespace: Any, name: bytes) -> list[m.Message]:
    """Each request, naming something."""
    full = FullTrackName(namespace, name)
    return [
        m.Subscribe(0, full),
        m.Fetch(0, full),
        m.TrackStatus(0, full),
        m.Publish(0, full, 7),
        m.PublishNamespace(0, namespace),
        m.SubscribeNamespace(0, namespace),
        m.SubscribeTracks(0, namespace),
    ]


@pytest.mark.rule("M018", "M166", "M167")
@pytest.mark.parametrize("first", [b".", b".session"])
@pytest.mark.parametrize("rest", [(), (b"x",)])
@pytest.mark.parametrize("name", [b"", b"video"])
@pytest.mark.parametrize("which", range(7))
def test_names_nobody_publishes(first: bytes, rest: Any, name: bytes, which: int) -> None:
    wire = Wire()
    stream = wire.bidi(naming((first, *rest), name)[which])
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.DOES_NOT_EXIST
    assert not wire.handler.requests
    assert wire.fault is None


@pytest.mark.rule("M015", "M510")
@pytest.mark.parametrize("namespace", [(b".other",), (b"..",), (b".sessions",), (b"a", b"."), ()])
@pytest.mark.parametrize("which", [0, 1, 2, 4, 5])
def test_other_names_are_the_applications_matter(namespace: Any, which: int) -> None:
    wire = Wire()
    wire.bidi(naming(namespace, b"video")[which])
    assert len(wire.handler.requests) == 1


@pytest.mark.rule("M014", "M016", "M017", "M164")
@pytest.mark.parametrize("first", [b".", b".session"])
def test_we_use_none_of_them_ourselves(first: bytes) -> None:
    wire = Wire(is_client=True)
    namespace = (first, b"x")
    name = FullTrackName(namespace, b"video")
    session = wire.session
    for ask in (
        lambda: session.subscribe(name, NO_PARAMETERS, Receiver()),
        lambda: session.fetch(name, NO_PARAMETERS, Receiver()),
        lambda: session.track_status(name, NO_PARAMETERS, lambda _: None),
        lambda: session.publish_namespace(namespace, NO_PARAMETERS, lambda _: None),
        lambda: session.subscribe_namespace(namespace, NO_PARAMETERS, Listener()),
        lambda: Track(name),
        lambda: Catalog().announce(namespace),
    ):
        with pytest.raises(Misuse, match="reserved"):
            ask()
    assert not wire.opened(unidirectional=False)


# -- tokens --------------------------------------------------------------------------------------


def with_token(token: Token) -> list[m.Message]:
    """Each request, with a token."""
    parameters = Parameters(authorization_tokens=(token,))
    return [
        m.Subscribe(0, NAME, parameters),
        m.Fetch(0, NAME, parameters),
        m.TrackStatus(0, NAME, parameters),
        m.PublishNamespace(0, (b"live",), parameters),
        m.SubscribeNamespace(0, (b"live",), parameters),
        m.Publish(0, NAME, 7, parameters),
        m.SubscribeTracks(0, (b"live",), parameters),
    ]


@pytest.mark.rule("M248", "M275")
@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("value", [b"", b"secret"])
def test_no_token_can_be_registered(which: int, value: bytes) -> None:
    wire = Wire()
    wire.bidi(with_token(Token(AliasType.REGISTER, 1, 0, value))[which])
    assert wire.fault is SessionCode.AUTH_TOKEN_CACHE_OVERFLOW


@pytest.mark.rule("M243")
@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("kind", [AliasType.USE_ALIAS, AliasType.DELETE])
def test_no_alias_is_known(which: int, kind: AliasType) -> None:
    wire = Wire()
    stream = wire.bidi(with_token(Token(kind, 1))[which])
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == 0x17
    assert not wire.handler.requests
    assert wire.fault is None


@pytest.mark.rule("M482")
@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("kind", [0, 5, 0x9D])
def test_a_token_by_value_is_handed_on(which: int, kind: int) -> None:
    wire = Wire()
    token = Token.use_value(b"secret", kind)
    wire.bidi(with_token(token)[which])
    (request,) = wire.handler.requests
    assert request.parameters.authorization_tokens == (token,)


@pytest.mark.rule("M217", "M241")
@pytest.mark.parametrize("octets", ["01 04", "01 01", "02 02 c0", "03 00 01 02", "00"])
def test_a_token_that_cannot_be_read(octets: str) -> None:
    wire = Wire()
    body = bytes.fromhex("00 01 04 6c697665 01 03" + octets)
    wire.bidi(b"\x06" + len(body).to_bytes(2, "big") + body)
    assert wire.fault is SessionCode.KEY_VALUE_FORMATTING_ERROR


@pytest.mark.rule("M248", "M243")
@pytest.mark.parametrize(
    ("token", "fault"),
    [
        (Token(AliasType.REGISTER, 1, 0, b"x"), SessionCode.AUTH_TOKEN_CACHE_OVERFLOW),
        (Token(AliasType.DELETE, 1), None),
    ],
)
def test_tokens_in_an_update(token: Token, fault: SessionCode | None) -> None:
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME))
    Track(NAME).attach(wire.handler.requests[0])
    wire.send(stream, m.RequestUpdate(2, Parameters(authorization_tokens=(token,))))
    assert wire.fault is fault
    if fault is None:
        error, done = wire.answer(stream).messages[1:]
        assert isinstance(error, m.RequestError)
        assert error.code == 0x17
        assert isinstance(done, m.PublishDone)
        assert done.status == DoneCode.UPDATE_FAILED


@pytest.mark.rule("M279", "M249", "M250", "M251", "M252")
@pytest.mark.parametrize("kind", [AliasType.REGISTER, AliasType.USE_ALIAS, AliasType.DELETE])
def test_we_send_tokens_by_value_only(kind: AliasType) -> None:
    wire = Wire(is_client=True)
    with pytest.raises(Misuse, match="by value"):
        wire.session.fetch(
            NAME, Parameters(authorization_tokens=(Token(kind, 1, 0, b""),)), Receiver()
        )
    twice = Parameters(authorization_tokens=(Token.use_value(b"secret"),) * 2)
    with pytest.raises(Misuse, match="twice"):
        wire.session.fetch(NAME, twice, Receiver())
    sealed = Parameters(authorization_tokens=(Token.use_value(b"secret"),))
    request = wire.session.fetch(NAME, sealed, Receiver())
    assert wire.answer(request.stream).messages == [m.Fetch(0, NAME, sealed)]
    assert b"secret" not in repr(sealed).encode()
