"""Delivery timeouts of objects and of subgroups (draft-22 §5.2)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import DoneCode, StreamCode
from moqt.model import ObjectHead, SubgroupHead
from moqt.track import Track

from .test_subscribe_wire import data_streams, read, served
from .wire import NAME, Wire, leftovers

FIN = "fin"
LATE = StreamCode.DELIVERY_TIMEOUT


def properties(kind: int, value: int) -> bytes:
    """One timeout as an Object Property: 0x02 object, 0x06 subgroup."""
    return bytes([kind, 0x80 | value >> 8, value & 0xFF])


def waiting(wire: Wire) -> int:
    """Timers that run."""
    return leftovers(wire.session).get("timers", 0)


#: the track's, the subscriber's, that of the first object: when an object is too late, in ms.
LIMITS: list[tuple[int | None, int | None, int | None, int | None]] = [
    (None, None, None, None),
    (0, 0, None, None),
    (300, None, None, 300),
    (None, 300, None, 300),
    (300, 200, None, 200),
    (200, 300, None, 200),
    (300, 0, None, 300),
    (0, 300, None, 300),
    (300, None, 100, 100),
    (100, None, 300, 300),
    (300, 200, 100, 100),
    (300, 200, 0, 200),
]


@pytest.mark.rule("M124", "M125", "M126", "M127")
@pytest.mark.parametrize(("track_says", "asked", "first_says", "limit"), LIMITS)
def test_an_object_that_waits_too_long(
    track_says: int | None, asked: int | None, first_says: int | None, limit: int | None
) -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=track_says))
    wire, stream, _ = served(track, Parameters(object_delivery_timeout=asked))
    writer = track.subgroup(0, has_properties=True)
    first = b"" if first_says is None else properties(2, first_says)
    wire.wait(1000)  # the last event is long ago
    writer.object(0, b"x", properties=first)
    data = data_streams(wire)[0]
    if limit is None:
        wire.wait(10_000)
        assert wire.data(data)[1] is None
        assert not waiting(wire)
        return
    wire.wait(limit / 1000 - 0.001)
    assert wire.data(data)[1] is None
    wire.wait(0.002)
    assert wire.data(data)[1] == LATE
    assert not waiting(wire)
    track.end()
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 0)


@pytest.mark.rule("M125", "M126")
def test_each_object_has_its_own_clock() -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1000))
    wire, _, _ = served(track)
    writer = track.subgroup(0, has_properties=True)
    writer.object(0, b"x")
    data = data_streams(wire)[0]
    first, _ = wire.pulled(data)
    assert not waiting(wire)  # it is through
    wire.wait(5)
    # Only the first object of a subgroup may say something of timeouts.
    writer.object(1, b"y", properties=properties(2, 1))
    wire.wait(0.9)
    writer.object(2, b"z")
    rest, end = wire.pulled(data)
    assert [head.object for head, _ in read(first + rest)[1].objects] == [0, 1, 2]
    assert end is None
    writer.object(3, b"late")
    wire.wait(1.1)
    assert wire.data(data)[1] == LATE


@pytest.mark.rule("M125")
@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_object_here_may_not_be_the_first_of_its_subgroup(is_first: bool) -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1000))
    wire, _, request = served(track)
    sink = request.subgroup(SubgroupHead(0, 0, 128, is_first, has_properties=True))
    wire.wait(1000)
    sink.begin(ObjectHead(0, 0, 5, 128, 1, properties=properties(2, 100)))
    sink.write(b"x")
    data = data_streams(wire)[0]
    wire.wait(0.5)
    assert wire.data(data)[1] == (LATE if is_first else None)


@pytest.mark.rule("M126")
def test_what_goes_in_time_is_not_late_whatever_waits_beside_it() -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1000))
    wire, _, _ = served(track)
    writer = track.subgroup(0)
    wire.wait(1000)
    writer.object(0, b"x")
    wire.wait(0.5)
    writer.object(1, b"y")
    data = data_streams(wire)[0]
    assert wire.pulled(data)[1] is None
    assert not waiting(wire)
    wire.wait(5)
    assert wire.data(data)[1] is None


@pytest.mark.rule("M127")
def test_the_turn_of_a_later_object_comes_too_late() -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1000))
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    data = data_streams(wire)[0]
    assert wire.pulled(data)[1] is None
    writer.object(1, b"y")
    wire.wait(0)  # the clock has begun
    wire.now += 2
    wire.send(stream, m.RequestUpdate(wire.id()))  # time passes; no tick has come yet
    assert wire.pulled(data)[1] == LATE
    assert not waiting(wire)


@pytest.mark.rule("M127", "M128")
def test_the_turn_that_comes_too_late() -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1000))
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    data = data_streams(wire)[0]
    wire.wait(0)  # the clock has begun
    wire.now += 2
    wire.send(stream, m.RequestUpdate(wire.id()))  # time passes; no tick has come yet
    assert wire.pulled(data) == (b"", LATE)
    writer.object(1, b"y")
    writer.finish()
    assert data_streams(wire) == [data]  # no other stream for that subgroup
    assert not waiting(wire)


@pytest.mark.rule("M133", "M134", "M124")
@pytest.mark.parametrize(
    ("track_says", "asked", "first_says"), [(500, None, None), (900, 500, None), (900, 700, 500)]
)
@pytest.mark.parametrize("sent", [False, True])
def test_a_subgroup_that_is_not_through_in_time(
    track_says: int, asked: int | None, first_says: int | None, sent: bool
) -> None:
    track = Track(NAME, TrackProperties(subgroup_delivery_timeout=track_says))
    wire, _, _ = served(track, Parameters(subgroup_delivery_timeout=asked))
    writer = track.subgroup(0, has_properties=True)
    writer.object(0, b"x", properties=b"" if first_says is None else properties(6, first_says))
    data = data_streams(wire)[0]
    wire.wait(100)  # not all objects are known yet
    assert not waiting(wire)
    writer.finish()
    wire.wait(0.4)
    if sent:
        assert wire.pulled(data)[1] == FIN
    wire.wait(0.2)
    assert wire.data(data)[1] == (FIN if sent else LATE)
    assert not waiting(wire)


def test_timeouts_change_with_an_update() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track, Parameters(object_delivery_timeout=100))
    writer = track.subgroup(0)
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters(object_delivery_timeout=0)))
    writer.object(0, b"x")
    wire.wait(5)
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters(subgroup_delivery_timeout=50)))
    writer.object(1, b"y")
    wire.wait(5)
    assert wire.data(data_streams(wire)[0])[1] is None
    writer.finish()
    wire.wait(0.1)
    assert wire.data(data_streams(wire)[0])[1] == LATE


@pytest.mark.rule("M312")
def test_timeouts_stay_when_an_update_says_nothing_of_them() -> None:
    track = Track(NAME)
    asked = Parameters(object_delivery_timeout=100, subgroup_delivery_timeout=100)
    wire, stream, request = served(track, asked)
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters(forward=True)))
    assert request.timeouts == (100, 100)


@pytest.mark.parametrize("how", ["stop", "cancel", "abort", "lost"])
def test_no_clock_runs_on_when_the_stream_is_over(how: str) -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=100, subgroup_delivery_timeout=100))
    wire, stream, _ = served(track)
    writer = track.subgroup(0)
    writer.object(0, b"x")
    writer.object(1, b"x")
    assert waiting(wire) == 2
    ends: dict[str, Any] = {
        "stop": lambda: wire.stop(data_streams(wire)[0]),
        "cancel": lambda: wire.stop(stream),
        "abort": lambda: writer.abort(1),
        "lost": wire.lose,
    }
    ends[how]()
    assert not waiting(wire)


def test_fetches_know_no_delivery_timeout() -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1, subgroup_delivery_timeout=1))
    track.subgroup(0).object(0, b"x")
    wire = Wire()
    wire.bidi(m.Fetch(0, NAME))
    wire.handler.requests[0].accept(track)
    wire.wait(1000)
    assert wire.pulled(data_streams(wire)[0])[1] == FIN


@pytest.mark.rule("M131", "M132")
def test_datagrams_go_at_once_or_never() -> None:
    track = Track(NAME, TrackProperties(object_delivery_timeout=1))
    wire, _, request = served(track)
    request.datagram(ObjectHead(0, None, 0, 128, 1), b"x")
    assert len(wire.calls("send_datagram")) == 1
    assert not waiting(wire)
