"""TRACK_STATUS at both ends (draft-22 §9.13)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import RequestCode, SessionCode
from moqt.model import Location
from moqt.publisher import Catalog, Track

from .wire import NAME, Wire, leftovers

FIN = "fin"


@pytest.mark.rule("M344", "M385", "M396")
@pytest.mark.parametrize("include", [None, False])
def test_what_subscribe_ok_would_say(include: bool | None) -> None:
    catalog = Catalog()
    track = catalog.add(Track(NAME, TrackProperties(max_cache_duration=7)))
    wire = Wire(handler=catalog.handler(None))  # type: ignore[arg-type]
    parameters = Parameters(include_properties=include)
    properties = b"" if include is False else track.properties
    first = wire.bidi(m.TrackStatus(0, NAME, parameters), fin=True)
    assert wire.answer(first) == ([m.RequestOk(NO_PARAMETERS, properties)], FIN)
    track.subgroup(3).object(4, b"x")
    second = wire.bidi(m.TrackStatus(2, NAME, parameters), fin=True)
    largest = Parameters(largest_object=Location(3, 4))
    assert wire.answer(second) == ([m.RequestOk(largest, properties)], FIN)
    track.end()
    assert wire.opened(unidirectional=True)[1:] == []
    assert not leftovers(wire.session)


@pytest.mark.rule("M344")
def test_of_a_track_that_does_not_exist() -> None:
    wire = Wire(handler=Catalog().handler(None))  # type: ignore[arg-type]
    answer = wire.answer(wire.bidi(m.TrackStatus(0, NAME)))
    assert answer == ([m.RequestError(RequestCode.DOES_NOT_EXIST, 0, "no such track")], FIN)


@pytest.mark.rule("M161", "M345")
def test_we_ask_and_have_no_more_to_say() -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = wire.session.track_status(NAME, NO_PARAMETERS, heard.append)
    assert wire.answer(request.stream) == ([m.TrackStatus(0, NAME)], FIN)
    ok = m.RequestOk(Parameters(largest_object=Location(3, 4)), bytes.fromhex("0e40"))
    wire.send(request.stream, ok, fin=True)
    assert heard == [ok]
    assert not leftovers(wire.session)


@pytest.mark.parametrize("second", [m.RequestOk(), m.RequestError(0), m.PublishDone(0, 0)])
def test_nothing_follows_the_answer(second: m.Message) -> None:
    wire = Wire(is_client=True)
    request = wire.session.track_status(NAME, NO_PARAMETERS, lambda _: None)
    wire.send(request.stream, m.RequestOk(), second)
    assert wire.fault is SessionCode.PROTOCOL_VIOLATION
