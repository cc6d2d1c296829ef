"""Data streams on their way in: owners, early ones, stragglers, malformed tracks (draft-22 §11)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import DoneCode, MalformedTrack, SessionCode, StreamCode
from moqt.model import ObjectHead, ObjectStatus, SubgroupHead
from moqt.session.config import SessionConfig
from moqt.session.routes import MAX_RETIRED_ALIASES

from .test_subscribe_wire import subscribed
from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Receiver, Record

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
SUBGROUP = bytes.fromhex("54 07 0c 01 64")
OBJECTS = bytes.fromhex("00 02 4142  00 01 43  02 00 00  00 00 03")


def pending(config: SessionConfig | None = None) -> tuple[Wire, Any, Receiver]:
    """A SUBSCRIBE of ours that is not answered yet."""
    wire = Wire(is_client=True, config=config)
    receiver = Receiver()
    return wire, wire.session.subscribe(NAME, NO_PARAMETERS, receiver), receiver


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 100])
def test_any_cutting_of_a_subgroup_stream(cut: int) -> None:
    wire, _, receiver = subscribed()
    octets = SUBGROUP + OBJECTS
    stream = wire.uni()
    for at in range(0, len(octets), cut):
        wire.send(stream, octets[at : at + cut])
    wire.send(stream, fin=True)
    (record,) = receiver.streams
    assert record.what == SubgroupHead(12, 1, 100, first_object=True)
    assert [(h.object, h.status, data) for h, data in record.objects] == [
        (0, ObjectStatus.NORMAL, b"AB"),
        (1, ObjectStatus.NORMAL, b"C"),
        (4, ObjectStatus.NORMAL, b""),
        (5, ObjectStatus.END_OF_GROUP, b""),
    ]
    assert record.ended == FIN
    assert leftovers(wire.session).keys() == {"owners", "aliases"}


HEADERS = [
    pytest.param("30 07 0c", SubgroupHead(12, 0, 77), id="default-priority"),
    pytest.param("12 07 0c 05 04", SubgroupHead(12, 4, 5), id="id-of-the-first-object"),
    pytest.param("1c 07 0c 09 05", SubgroupHead(12, 9, 5, end_of_group=True), id="end-of-group"),
    pytest.param(
        "8014 07 0c 09 05",
        SubgroupHead(12, 9, 5),
        marks=pytest.mark.rule("M534", "M213"),
        id="wide",
    ),
    pytest.param("11 07 0c 05", SubgroupHead(12, 0, 5, has_properties=True), id="properties"),
]


@pytest.mark.parametrize(("octets", "head"), HEADERS)
@pytest.mark.parametrize("early", [False, True])
def test_headers(octets: str, head: SubgroupHead, early: bool) -> None:
    properties = TrackProperties(default_publisher_priority=77).encode()
    answer = m.SubscribeOk(7, NO_PARAMETERS, properties)
    if early:
        wire, request, receiver = pending()
        wire.uni(bytes.fromhex(octets))
        wire.send(request.stream, answer)
    else:
        wire, _, receiver = subscribed(answer=answer)
        wire.uni(bytes.fromhex(octets))
    assert [record.what for record in receiver.streams] == [head]


BROKEN = [
    pytest.param("16 07 0c", marks=pytest.mark.rule("M432"), id="reserved-mode"),
    pytest.param("07 07 0c", marks=pytest.mark.rule("M433"), id="bit-4-clear"),
    pytest.param("8094 07 0c", marks=pytest.mark.rule("M435"), id="128"),
    pytest.param("14 07 0c 00 00 00 00 05", marks=pytest.mark.rule("M420"), id="status"),
    pytest.param(
        "15 07 0c 00 00 00 02 3c01 00 03", marks=pytest.mark.rule("M422"), id="properties"
    ),
    pytest.param(
        "14 07 0c 00 00 ffffffffffffffffff 01 41 00 01 41",
        marks=pytest.mark.rule("M436"),
        id="object-id",
    ),
]


@pytest.mark.parametrize("octets", BROKEN)
def test_octets_that_close_the_session(octets: str) -> None:
    wire, _, _ = subscribed()
    wire.uni(bytes.fromhex(octets))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M430")
@pytest.mark.parametrize(
    "octets",
    [
        *("", "05", "54", "54 07", "54 07 0c 01", "54 07 0c 01 64 00"),
        *("54 07 0c 01 64 00 02 41", "12 07 0c 05 c0"),
    ],
)
def test_fin_in_the_middle(octets: str) -> None:
    wire, _, _ = subscribed()
    wire.uni(bytes.fromhex(octets), fin=True)
    assert wire.fault is VIOLATION


def test_a_stream_without_any_object_counts() -> None:
    wire, request, receiver = subscribed()
    wire.uni(bytes.fromhex("12 07 0c 05"), fin=True)
    wire.uni(bytes.fromhex("14 07 0d 00 05"), fin=True)
    assert [record.ended for record in receiver.streams] == [FIN]
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 2), fin=True)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)


@pytest.mark.rule("M535", "M483")
@pytest.mark.parametrize(("code", "seen"), [(2, 2), (0x9D, 0), (0x52E4A40FA8DC, 1)])
def test_a_reset_subgroup_affects_nothing_else(code: int, seen: int) -> None:
    wire, _, receiver = subscribed()
    first = wire.uni(SUBGROUP, b"\x00\x05ab")
    second = wire.uni(bytes.fromhex("14 07 0d 00 00"))
    wire.reset(first, code)
    wire.send(second, b"\x00\x01x", fin=True)
    assert [record.ended for record in receiver.streams] == [seen, FIN]
    assert receiver.locations == [(13, 0)]
    assert receiver.error is None


@pytest.mark.rule("M462")
def test_padding_is_thrown_away() -> None:
    wire = Wire()
    for fin in (True, False):
        stream = wire.uni(bytes.fromhex("f0132b3e28"))
        for _ in range(50):
            wire.send(stream, bytes(10_000))
        if fin:
            wire.send(stream, fin=True)
        else:
            wire.reset(stream)
    assert wire.fault is None
    assert not leftovers(wire.session)


# -- datagrams -----------------------------------------------------------------------------------


def test_a_datagram_object() -> None:
    properties = TrackProperties(default_publisher_priority=77).encode()
    wire, _, receiver = subscribed(answer=m.SubscribeOk(7, NO_PARAMETERS, properties))
    wire.datagram(bytes.fromhex("00 07 0c 05 80 6869"))
    wire.datagram(bytes.fromhex("0c 07 0c 6869"))
    wire.datagram(bytes.fromhex("28 07 0c 06 03"))
    assert receiver.datagrams == [
        (ObjectHead(12, None, 5, 128, 2), b"hi"),
        (ObjectHead(12, None, 0, 77, 2), b"hi"),
        (ObjectHead(12, None, 6, 77, 0, ObjectStatus.END_OF_GROUP), b""),
    ]


DATAGRAMS = [
    pytest.param("10 07 0c 05 80 68", marks=pytest.mark.rule("M425"), id="bit-4"),
    pytest.param("40 07 0c 05 80 68", marks=pytest.mark.rule("M426"), id="bit-6"),
    pytest.param("8080 07 0c 05 80 68", marks=pytest.mark.rule("M418"), id="unknown"),
    pytest.param("22 07 0c 05 80 03", marks=pytest.mark.rule("M427"), id="status-end"),
    pytest.param("01 07 0c 05 80 00 68", marks=pytest.mark.rule("M428"), id="no-properties"),
    pytest.param("21 07 0c 05 80 02 3c01 03", marks=pytest.mark.rule("M429"), id="status-with"),
    pytest.param("20 07 0c 05 80 03 68", marks=pytest.mark.rule("M421", "M532"), id="payload"),
    pytest.param("00 07", id="cut"),
    pytest.param("", id="empty"),
]


@pytest.mark.parametrize("octets", DATAGRAMS)
def test_datagrams_that_close_the_session(octets: str) -> None:
    wire, _, _ = subscribed()
    wire.datagram(bytes.fromhex(octets))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M464", "M037")
def test_datagrams_that_are_dropped() -> None:
    wire, _, receiver = subscribed()
    wire.datagram(bytes.fromhex("f0132b3e29 000000"))
    wire.datagram(bytes.fromhex("00 09 0c 05 80 6869"))
    early = Wire(options=None)
    early.datagram(bytes.fromhex("00 09 0c 05 80 6869"))
    assert not receiver.datagrams
    assert (wire.fault, early.fault) == (None, None)


def test_after_our_close_nothing_is_delivered() -> None:
    wire, _, receiver = subscribed()
    stream = wire.uni(SUBGROUP)
    wire.session.close()
    wire.send(stream, OBJECTS, fin=True)
    wire.uni(SUBGROUP + OBJECTS)
    wire.datagram(bytes.fromhex("00 07 0c 05 80 6869"))
    wire.reset(stream)
    assert receiver.objects == receiver.datagrams == []
    assert receiver.streams[0].ended is None
    wire.lose()
    assert receiver.streams[0].ended == -1


# -- aliases not known yet -----------------------------------------------------------------------


@pytest.mark.rule("M037")
@pytest.mark.parametrize("fin", [True, False])
def test_streams_may_come_before_their_alias(fin: bool) -> None:
    wire, request, receiver = pending()
    stream = wire.uni(SUBGROUP + OBJECTS[:3])
    wire.send(stream, OBJECTS[3:], fin=fin)
    assert not receiver.streams
    wire.wait(4)
    wire.send(request.stream, m.SubscribeOk(7))
    assert receiver.info is not None
    assert [head.object for head, _ in receiver.objects] == [0, 1, 4, 5]
    if not fin:
        wire.send(stream, fin=True)
    assert receiver.streams[0].ended == FIN
    wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 1), fin=True)
    assert receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M037")
def test_an_alias_that_never_comes() -> None:
    wire, request, _ = pending(SessionConfig(orphan_timeout=5))
    stream = wire.uni(SUBGROUP + OBJECTS)
    finished = wire.uni(SUBGROUP + OBJECTS, fin=True)
    assert leftovers(wire.session)["orphan_octets"] == 2 * len(OBJECTS)
    wire.wait(4.9)
    assert wire.stopped(stream) is None
    wire.wait(0.2)
    assert wire.stopped(stream) == wire.stopped(finished) == StreamCode.CANCELLED
    assert wire.fault is None
    request.cancel()
    assert not leftovers(wire.session)


@pytest.mark.rule("M037", "M495")
def test_early_streams_are_bounded() -> None:
    wire, request, _ = pending(SessionConfig(orphan_streams=3, orphan_octets=100))
    streams = [wire.uni(bytes([0x14, 7, group, 0, 0])) for group in range(5)]
    assert [wire.stopped(one) for one in streams] == [None] * 3 + [StreamCode.EXCESSIVE_LOAD] * 2
    wire.send(streams[0], bytes(60))
    wire.send(streams[1], bytes(40))
    assert leftovers(wire.session)["orphan_octets"] == 100
    wire.send(streams[1], bytes(1))
    assert wire.stopped(streams[1]) == StreamCode.EXCESSIVE_LOAD
    assert leftovers(wire.session)["orphan_octets"] == 60
    wire.reset(streams[0])
    big = wire.uni(bytes([0x14, 7, 9, 0, 0]), bytes(101))
    assert wire.stopped(big) == StreamCode.EXCESSIVE_LOAD
    assert leftovers(wire.session)["orphan_count"] == 1
    assert "orphan_octets" not in leftovers(wire.session)
    wire.reset(streams[2])
    request.cancel()
    assert not leftovers(wire.session)


def test_early_streams_of_several_aliases() -> None:
    wire, request, receiver = pending()
    other = Receiver()
    second = wire.session.subscribe(OTHER, NO_PARAMETERS, other)
    for alias in (7, 8, 7, 9):
        wire.uni(bytes([0x14, alias, 0, alias, 0, 0, 1, 65]), fin=True)
    wire.send(second.stream, m.SubscribeOk(8))
    wire.send(request.stream, m.SubscribeOk(7))
    assert [record.what.subgroup for record in receiver.streams] == [7, 7]
    assert [record.what.subgroup for record in other.streams] == [8]
    assert leftovers(wire.session)["orphan_octets"] == 3
    wire.wait(10)
    assert leftovers(wire.session) == {"owners": 2, "aliases": 2}


# -- aliases that are over -----------------------------------------------------------------------


@pytest.mark.rule("M035")
@pytest.mark.parametrize("how", ["cancelled", "done"])
def test_stragglers_are_stopped_at_once(how: str) -> None:
    wire, request, receiver = subscribed()
    if how == "cancelled":
        request.cancel()
    else:
        wire.send(request.stream, m.PublishDone(DoneCode.TRACK_ENDED, 0), fin=True)
    stream = wire.uni(SUBGROUP + OBJECTS)
    wire.datagram(bytes.fromhex("00 07 0c 05 80 6869"))
    assert wire.stopped(stream) == StreamCode.CANCELLED
    assert not receiver.streams
    assert not receiver.datagrams
    assert wire.fault is None
    assert not leftovers(wire.session)


def test_an_alias_that_is_over_may_come_back_for_a_new_subscription() -> None:
    wire, request, _ = subscribed()
    request.cancel()
    receiver = Receiver()
    again = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    wire.uni(SUBGROUP + OBJECTS, fin=True)  # it may belong to either
    wire.send(again.stream, m.SubscribeOk(7))
    assert len(receiver.objects) == 4
    again.cancel()
    assert wire.stopped(wire.uni(SUBGROUP)) == StreamCode.CANCELLED


def test_retired_aliases_are_bounded() -> None:
    wire = Wire(is_client=True)
    for alias in range(MAX_RETIRED_ALIASES + 10):
        _, request, _ = subscribed(wire, alias=alias)
        request.cancel()
    routes = wire.session._context.streams
    assert len(routes._retired) == MAX_RETIRED_ALIASES
    assert not routes.retired(0)
    assert routes.retired(MAX_RETIRED_ALIASES)


# -- malformed tracks ----------------------------------------------------------------------------


class Strict(Receiver):
    """Raises MalformedTrack where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def _check(self, here: str) -> None:
        if self.where == here:
            raise MalformedTrack(here)

    def open_subgroup(self, head: SubgroupHead) -> Record:
        self._check("open_subgroup")
        receiver = self

        class Checking(Record):
            def begin(self, head: ObjectHead) -> None:
                receiver._check("begin")
                super().begin(head)

            def end(self) -> None:
                super().end()
                receiver._check("end")

            def finish(self) -> None:
                receiver._check("finish")
                super().finish()

        self.streams.append(Checking(head))
        return self.streams[-1]

    def open_fetch(self, request_id: int) -> Record:
        self._check("open_fetch")
        return super().open_fetch(request_id)

    def datagram(self, head: ObjectHead, payload: Any) -> None:
        self._check("datagram")


@pytest.mark.rule("M465", "M467")
@pytest.mark.parametrize("where", ["open_subgroup", "begin", "end", "finish", "datagram"])
@pytest.mark.parametrize("early", [False, True])
def test_a_malformed_track_ends_its_subscription_only(where: str, early: bool) -> None:
    wire = Wire(is_client=True)
    receiver = Strict(where)
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    if not early:
        wire.send(request.stream, m.SubscribeOk(7))
    streams = [wire.uni(SUBGROUP + OBJECTS, fin=fin) for fin in (True, False)]
    if early:
        wire.send(request.stream, m.SubscribeOk(7))
    wire.datagram(bytes.fromhex("00 07 0c 05 80 6869"))
    assert isinstance(receiver.error, MalformedTrack)
    assert wire.answer(request.stream).end == StreamCode.MALFORMED_TRACK
    assert wire.stopped(request.stream) == StreamCode.MALFORMED_TRACK
    assert wire.stopped(streams[1]) is not None
    assert all(record.ended is not None for record in receiver.streams)
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.rule("M466", "M467")
def test_a_malformed_track_ends_its_fetch() -> None:
    wire = Wire(is_client=True)
    receiver = Strict("open_fetch")
    request = wire.session.fetch(NAME, NO_PARAMETERS, receiver)
    data = wire.uni(bytes.fromhex("05 00 1c 0a 00 80 01 61"))
    assert isinstance(receiver.error, MalformedTrack)
    assert wire.stopped(request.stream) == StreamCode.MALFORMED_TRACK
    assert wire.stopped(data) == StreamCode.MALFORMED_TRACK
    assert not leftovers(wire.session)


MALFORMED = [
    pytest.param("c04000 00", marks=pytest.mark.rule("M501", "M086"), id="mandatory"),
    pytest.param("0b 02 0b 00", marks=pytest.mark.rule("M408"), id="nested"),
    pytest.param("0b 01 02", marks=pytest.mark.rule("M408"), id="unparsable"),
    pytest.param("0b 00 00 00", marks=pytest.mark.rule("M409"), id="twice"),
    pytest.param("3c 01 00 01", marks=pytest.mark.rule("M412"), id="group-gap-twice"),
    pytest.param("3c 0d", marks=pytest.mark.rule("M412"), id="group-gap-too-large"),
    pytest.param("3e 01 00 01", marks=pytest.mark.rule("M416"), id="object-gap-twice"),
    pytest.param("3e 06", marks=pytest.mark.rule("M416"), id="object-gap-too-large"),
]


@pytest.mark.parametrize("properties", MALFORMED)
@pytest.mark.parametrize("how", ["stream", "datagram"])
def test_properties_no_object_may_carry(properties: str, how: str) -> None:
    raw = bytes.fromhex(properties)
    raw = bytes([len(raw)]) + raw
    wire, request, receiver = subscribed()
    if how == "stream":
        wire.uni(bytes.fromhex("15 07 0c 00 00"), b"\x05" + raw + b"\x01A")
    else:
        wire.datagram(bytes.fromhex("01 07 0c 05 80") + raw + b"A")
    assert isinstance(receiver.error, MalformedTrack)
    assert wire.stopped(request.stream) == StreamCode.MALFORMED_TRACK
    assert wire.fault is None


# -- receivers that cancel while they are told ---------------------------------------------------


class Leaving(Receiver):
    """Cancels its request from inside a call."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.request: Any = None

    def accepted(self, info: Any) -> None:
        super().accepted(info)
        if self.where == "accepted":
            self.request.cancel()

    def open_subgroup(self, head: SubgroupHead) -> Record:
        receiver = self
        if self.where == "open_subgroup":
            self.request.cancel()

        class Calling(Record):
            def end(self) -> None:
                super().end()
                if receiver.where == "end":
                    receiver.request.cancel()

            def finish(self) -> None:
                super().finish()
                if receiver.where == "finish":
                    receiver.request.cancel()

        self.streams.append(Calling(head))
        return self.streams[-1]


@pytest.mark.parametrize("where", ["accepted", "open_subgroup", "end", "finish"])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("fin", [False, True])
def test_cancelled_from_inside(where: str, early: bool, fin: bool) -> None:
    wire = Wire(is_client=True)
    receiver = Leaving(where)
    receiver.request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    stream = receiver.request.stream
    if not early:
        wire.send(stream, m.SubscribeOk(7))
    wire.uni(SUBGROUP + OBJECTS, fin=fin)
    if early:
        wire.send(stream, m.SubscribeOk(7))
    if where == "finish" and not fin:
        receiver.request.cancel()
    assert wire.stopped(stream) == StreamCode.CANCELLED
    assert receiver.error is None
    assert all(record.ended is not None for record in receiver.streams)  # each sink: one end
    assert wire.fault is None
    assert leftovers(wire.session).keys() <= {"owners", "orphans", "orphan_count",
                                              "orphan_octets", "timers"}  # fmt: skip
    wire.wait(10)
    assert not leftovers(wire.session)


def test_a_refused_publish_has_its_streams_stopped() -> None:
    """See test_refused: here only that nothing of ours is disturbed."""
    wire, _, receiver = subscribed()
    wire.bidi(m.Publish(1, NAME, 7, Parameters()))  # the alias that our subscription has
    wire.uni(SUBGROUP + OBJECTS, fin=True)
    assert len(receiver.objects) == 4
