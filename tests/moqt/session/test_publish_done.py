"""How a subscription ends: PUBLISH_DONE, cancel, FIN, loss, at both ends (draft-22 §3.1.2)."""

from __future__ import annotations

import gc
import weakref

import pytest

from moqt.codec import messages as m
from moqt.codec.data import SubgroupHeader, encode_subgroup_header
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, RequestFailed, SessionClosed, SessionCode, StreamCode
from moqt.model import LocationFilter
from moqt.publisher import Track
from moqt.session.config import SessionConfig

from .test_subscribe_wire import data_streams, read, served, subscribed
from .wire import NAME, Wire, leftovers
from .worlds import Receiver

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
OBJECT = bytes.fromhex("00 01 41")


# -- the end, as publisher -----------------------------------------------------------------------


@pytest.mark.rule("M029", "M072")
@pytest.mark.parametrize("how", ["stop", "reset"])
def test_the_subscriber_cancels(how: str) -> None:
    track = Track(NAME)
    track.subgroup(0).object(0, b"x")
    everything = Parameters(
        location_filter=LocationFilter.next_object(),
        fill=Parameters(location_filter=LocationFilter.since(0)),
    )
    wire, stream, request = served(track, everything)
    track.subgroup(1).object(0, b"x")
    streams = data_streams(wire)
    assert len(streams) == 2
    for one in streams:
        wire.transport.started_streams.add(one)
    getattr(wire, how)(stream)
    assert [wire.data(one)[1] for one in streams] == [StreamCode.CANCELLED] * 2
    assert wire.answer(stream).end == StreamCode.CANCELLED
    assert not leftovers(wire.session)
    track.subgroup(2).object(0, b"x")
    assert data_streams(wire) == streams
    assert not request.active


@pytest.mark.rule("M030", "M327", "M332", "M334", "M158", "M329")
def test_publish_done_waits_for_every_stream() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    writers = [track.subgroup(group) for group in range(3)]
    for writer in writers:
        writer.object(0, b"x")
        writer.finish()
    track.end(DoneCode.TRACK_ENDED, "all")
    for one in data_streams(wire):
        assert len(wire.answer(stream).messages) == 1
        wire.pulled(one)
    assert wire.answer(stream).messages[1:] == [m.PublishDone(DoneCode.TRACK_ENDED, 3, "all")]
    assert wire.answer(stream).end == FIN
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M334", "M030")
def test_what_never_reached_the_peer_is_not_counted() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    writers = [track.subgroup(group) for group in range(3)]
    for writer in writers:
        writer.object(0, b"x")
    wire.pulled(data_streams(wire)[0])  # two have not had their turn yet
    track.end()
    assert [wire.data(one)[1] for one in data_streams(wire)] == [StreamCode.CANCELLED] * 3
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 1)


@pytest.mark.rule("M535", "M447", "M448")
def test_one_stream_is_stopped_and_the_rest_goes_on() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    first, second = track.subgroup(0), track.subgroup(1)
    first.object(0, b"x")
    second.object(0, b"x")
    one, two = data_streams(wire)
    wire.pulled(one)
    wire.stop(one, StreamCode.CANCELLED)
    assert wire.data(one)[1] == StreamCode.CANCELLED
    first.object(1, b"more")
    first.finish()
    second.object(1, b"y")
    second.finish()
    assert data_streams(wire) == [one, two]
    assert len(read(wire.pulled(two)[0])[1].objects) == 2
    track.end()
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 2)


def test_a_subscription_that_is_over_does_not_pin_its_track() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    track.end()
    assert wire.answer(stream).end == FIN
    assert set(leftovers(wire.session)) == {"owners", "peer_requests"}  # the peer's FIN is missing
    alive = weakref.ref(track)
    del track
    gc.collect()
    assert alive() is None


# -- the end, as subscriber ----------------------------------------------------------------------


@pytest.mark.rule("M517", "M158")
def test_fin_without_publish_done() -> None:
    wire, request, receiver = subscribed()
    data = wire.uni(encode_subgroup_header(SubgroupHeader(7, 0, 0, 0)))
    wire.send(request.stream, fin=True)
    assert isinstance(receiver.error, RequestFailed)
    assert wire.answer(request.stream).end == FIN
    assert wire.stopped(data) == StreamCode.CANCELLED
    assert receiver.streams[0].ended == StreamCode.CANCELLED
    assert not leftovers(wire.session)


@pytest.mark.rule("M485", "M483")
def test_an_unknown_done_code_is_an_internal_error() -> None:
    wire, request, receiver = subscribed()
    wire.send(request.stream, m.PublishDone(0x9D, 0, "?"), fin=True)
    assert receiver.end == (DoneCode.INTERNAL_ERROR, "?", True)
    assert wire.fault is None


def test_nothing_follows_publish_done() -> None:
    wire, request, _ = subscribed()
    wire.send(request.stream, m.PublishDone(0, 1), m.RequestOk())
    assert wire.fault is VIOLATION


@pytest.mark.rule("M330")
@pytest.mark.parametrize("fin_first", [True, False])
def test_streams_may_come_after_publish_done(fin_first: bool) -> None:
    wire, request, receiver = subscribed()
    early = wire.uni(bytes.fromhex("14 07 00 00 00"), OBJECT)
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 2, "end"), fin=fin_first)
    assert receiver.end is None
    wire.wait(5)
    wire.send(early, fin=True)
    wire.uni(bytes.fromhex("14 07 01 00 00"), OBJECT, fin=True)
    assert receiver.end == (DoneCode.TRACK_ENDED, "end", True)
    assert receiver.locations == [(0, 0), (1, 0)]
    if not fin_first:
        wire.send(request.stream, fin=True)
    assert wire.answer(request.stream).end == FIN
    assert not leftovers(wire.session)


@pytest.mark.rule("M335", "M331", "M333")
@pytest.mark.parametrize("count", [3, (1 << 64) - 1])
def test_a_wrong_or_unknown_count_ends_in_time(count: int) -> None:
    config = SessionConfig(done_timeout=10)
    wire, request, receiver = subscribed(Wire(is_client=True, config=config))
    stalled = wire.uni(bytes.fromhex("14 07 00 00 00"), OBJECT)
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, count), fin=True)
    wire.wait(8)
    wire.send(stalled, OBJECT)  # what still brings something is waited for
    wire.wait(8)
    assert receiver.end is None
    wire.wait(3)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", False)
    assert wire.stopped(stalled) == StreamCode.CANCELLED
    assert receiver.streams[0].ended == StreamCode.CANCELLED
    assert not leftovers(wire.session)


def test_more_streams_than_announced_are_taken_while_it_drains() -> None:
    wire, request, receiver = subscribed()
    first = wire.uni(bytes.fromhex("14 07 00 00 00"))
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 1), fin=True)
    second = wire.uni(bytes.fromhex("14 07 01 00 00"), OBJECT)
    wire.send(first, fin=True)
    assert receiver.end is None
    wire.send(second, fin=True)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert wire.fault is None


def test_a_reset_behind_publish_done_changes_nothing() -> None:
    wire, request, receiver = subscribed()
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 1))
    wire.reset(request.stream)
    wire.stop(request.stream)
    wire.wait(5)
    assert receiver.end is None
    wire.uni(bytes.fromhex("14 07 01 00 00"), OBJECT, fin=True)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert not leftovers(wire.session)


@pytest.mark.parametrize("when", ["draining", "established"])
def test_the_session_dies(when: str) -> None:
    wire, request, receiver = subscribed()
    data = wire.uni(bytes.fromhex("14 07 00 00 00 00 05 41"))
    if when == "draining":
        wire.send(request.stream, m.PublishDone(0, 2), fin=True)
    wire.lose(-1)
    assert isinstance(receiver.error, SessionClosed)
    assert receiver.streams[0].ended == -1
    assert wire.stopped(data) is None
    with pytest.raises(SessionClosed):
        wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())


def test_cancelled_while_it_drains() -> None:
    wire, request, receiver = subscribed()
    data = wire.uni(bytes.fromhex("14 07 00 00 00"))
    wire.send(request.stream, m.PublishDone(0, 2), fin=True)
    request.cancel()
    wire.wait(100)
    assert receiver.end is None
    assert receiver.error is None
    assert wire.stopped(data) == StreamCode.CANCELLED
    assert not leftovers(wire.session)
