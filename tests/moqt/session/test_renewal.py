"""What stands shows a fresh token as soon as there is one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import Misuse
from moqt.model import GroupOrder
from moqt.publisher import Track
from moqt.session.config import SessionConfig
from moqt.session.renewal import LOOK

from .wire import NAME, Wire
from .worlds import Listener, Receiver

OLD, NEW = (Token.use_value(value, 1) for value in (b"old", b"new"))


@pytest.mark.rule("M384")
def test_every_standing_request_is_updated_once() -> None:
    shown = [OLD]
    config = SessionConfig(request_tokens=lambda: tuple(shown))
    wire = Wire(is_client=True, config=config)
    session = wire.session
    session.subscribe(NAME, NO_PARAMETERS, Receiver())
    session.publish_namespace((b"mine",), NO_PARAMETERS, lambda _: None)
    session.subscribe_namespace((b"theirs",), NO_PARAMETERS, Listener())
    session.publish(Track(NAME), NO_PARAMETERS, GroupOrder.ASCENDING, lambda _: None)
    session.subscribe(replace_name(), NO_PARAMETERS, Receiver())  # stays unanswered
    streams = wire.opened(unidirectional=False)
    wire.send(streams[0], m.SubscribeOk(7, Parameters(), b""))
    for stream in streams[1:4]:
        wire.send(stream, m.RequestOk())
    assert [len(wire.answer(stream).messages) for stream in streams] == [1] * 5
    for _ in range(2):
        wire.now += LOOK
        session.tick(wire.now)
    assert [len(wire.answer(stream).messages) for stream in streams] == [1] * 5
    shown[0] = NEW
    for _ in range(3):
        wire.now += LOOK
        session.tick(wire.now)
    for stream in streams[:4]:
        update = wire.last(stream)
        assert isinstance(update, m.RequestUpdate)
        assert update.parameters == Parameters(authorization_tokens=(NEW,))
        assert len(wire.answer(stream).messages) == 2
    assert len(wire.answer(streams[4]).messages) == 1
    assert wire.fault is None


def replace_name() -> object:
    return NAME._replace(name=b"other")


def test_without_tokens_nothing_is_planned() -> None:
    wire = Wire(is_client=True, config=replace(SessionConfig(), request_tokens=None))
    assert wire.session.next_deadline() is None


def test_a_request_that_is_answered_after_the_change() -> None:
    shown = [OLD]
    wire = Wire(is_client=True, config=SessionConfig(request_tokens=lambda: tuple(shown)))
    wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    (stream,) = wire.opened(unidirectional=False)
    shown[0] = NEW
    wire.now += LOOK
    wire.session.tick(wire.now)
    assert len(wire.answer(stream).messages) == 1
    wire.send(stream, m.SubscribeOk(7, Parameters(), b""))
    for _ in range(3):
        wire.now += LOOK
        wire.session.tick(wire.now)
    assert wire.last(stream).parameters == Parameters(authorization_tokens=(NEW,))
    assert len(wire.answer(stream).messages) == 2


def test_a_request_that_is_owed_answers_at_the_change() -> None:
    shown = [OLD]
    wire = Wire(is_client=True, config=SessionConfig(request_tokens=lambda: tuple(shown)))
    subscription = wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    (stream,) = wire.opened(unidirectional=False)
    wire.send(stream, m.SubscribeOk(7, Parameters(), b""))
    with suppress(Misuse):  # as many as it may be owed
        while True:
            subscription.update(NO_PARAMETERS)
    owed = len(wire.answer(stream).messages) - 1
    shown[0] = NEW
    wire.now += LOOK
    wire.session.tick(wire.now)
    assert len(wire.answer(stream).messages) == 1 + owed
    for _ in range(owed):
        wire.send(stream, m.RequestOk())
    for _ in range(3):
        wire.now += LOOK
        wire.session.tick(wire.now)
    assert wire.last(stream).parameters == Parameters(authorization_tokens=(NEW,))
    assert len(wire.answer(stream).messages) == 2 + owed


def test_tokens_of_requests_come_from_a_function() -> None:
    with pytest.raises(Misuse, match="give a function"):
        SessionConfig(request_tokens=(Token.use_value(b"t"),))  # type: ignore[arg-type]
