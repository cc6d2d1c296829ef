"""Malformed tracks: what a subscriber notices, and what it costs (draft-22 §12.1, §10.8, §10.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moqt.codec import messages as m
from moqt.codec.data import (
    FetchEncoder,
    FetchHeader,
    SubgroupEncoder,
    SubgroupHeader,
    encode_fetch_header,
    encode_subgroup_header,
)
from moqt.codec.datagram import encode_datagram
from moqt.codec.fields import write_pairs
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import (
    IMMUTABLE_PROPERTIES,
    PRIOR_GROUP_ID_GAP,
    PRIOR_OBJECT_ID_GAP,
    SetupOptions,
)
from moqt.errors import MalformedTrack, StreamCode
from moqt.model import (
    GroupOrder,
    Location,
    ObjectHead,
    ObjectStatus,
    RangeFilter,
    RangeFilterType,
    Span,
    SubgroupHead,
)
from moqt.session.integrity import MAX_ENTRIES, MAX_GAPS, MAX_GROUPS, TrackIntegrity

from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Receiver, Record

if TYPE_CHECKING:
    from collections.abc import Callable

ALIAS = 7
END_OF_GROUP, END_OF_TRACK = ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK


def gap(kind: int, size: int) -> bytes:
    return write_pairs([(kind, size)])


class Peer:
    """A subscription of ours, and what its publisher sends."""

    def __init__(self, parameters: Parameters = NO_PARAMETERS) -> None:
        self.wire = Wire(is_client=True, options=SetupOptions(max_filter_ranges=9))
        self.receiver = Receiver()
        self.request: Any = self.wire.session.subscribe(NAME, parameters, self.receiver)
        self.wire.send(self.request.stream, m.SubscribeOk(ALIAS))

    def stream(
        self,
        group: int,
        *objects: int | tuple[int, ObjectStatus | bytes],
        subgroup: int = 0,
        priority: int = 128,
        end_of_group: bool = False,
        fin: bool = True,
    ) -> int:
        """A whole subgroup stream; an object may have a status or properties."""
        header = SubgroupHeader(ALIAS, group, subgroup, priority, True, end_of_group)
        encoder = SubgroupEncoder(header)
        octets = encode_subgroup_header(header)
        for one in objects:
            number, more = one if isinstance(one, tuple) else (one, b"")
            status = more if isinstance(more, ObjectStatus) else ObjectStatus.NORMAL
            properties = more if isinstance(more, bytes) else b""
            length = 0 if status else 1
            head = ObjectHead(group, subgroup, number, priority, length, status, properties)
            octets += encoder.head(head) + b"x" * length
        return self.wire.uni(octets, fin=fin)

    def datagram(self, group: int, number: int, priority: int = 128, **more: Any) -> None:
        head = ObjectHead(group, None, number, priority, 1)
        self.wire.datagram(encode_datagram(ALIAS, head, b"x", **more))

    @property
    def malformed(self) -> bool:
        """True when the request has ended for it, in every way it should."""
        assert self.wire.fault is None
        if self.receiver.error is None:
            return False
        assert isinstance(self.receiver.error, MalformedTrack)
        assert self.wire.stopped(self.request.stream) == StreamCode.MALFORMED_TRACK
        assert self.wire.answer(self.request.stream).end == StreamCode.MALFORMED_TRACK
        self.wire.reset(self.request.stream)
        assert not leftovers(self.wire.session)
        return True


def priority(peer: Peer) -> None:
    peer.stream(0, 0, fin=False)
    peer.stream(0, 1, priority=5)


def beyond_subgroup(peer: Peer) -> None:
    peer.stream(0, 0, 1)
    peer.stream(0, 2, fin=False)


def other_end_of_subgroup(peer: Peer) -> None:
    peer.stream(0, 0, 1, 2, fin=False)
    peer.stream(0, 0, 1)


def beyond_group(peer: Peer) -> None:
    peer.stream(0, 0, (1, END_OF_GROUP))
    peer.stream(0, 2, subgroup=2, fin=False)


def beyond_group_of_a_stream(peer: Peer) -> None:
    peer.stream(0, 0, 3, end_of_group=True)
    peer.stream(0, 4, subgroup=2, fin=False)


def beyond_group_of_a_datagram(peer: Peer) -> None:
    peer.datagram(4, 3, end_of_group=True)
    peer.datagram(4, 4)


def group_ends_before_its_objects(peer: Peer) -> None:
    peer.stream(0, 5, fin=False)
    peer.stream(0, (4, END_OF_GROUP), subgroup=2)


def group_ends_twice(peer: Peer) -> None:
    peer.stream(0, (4, END_OF_GROUP), subgroup=2)
    peer.stream(0, (3, END_OF_GROUP), subgroup=1)


def beyond_track(peer: Peer) -> None:
    peer.stream(3, 0, (1, END_OF_TRACK))
    peer.stream(4, 0)


def track_ends_before_its_objects(peer: Peer) -> None:
    peer.stream(4, 0)
    peer.stream(3, (1, END_OF_TRACK))


def track_ends_twice(peer: Peer) -> None:
    peer.stream(4, (0, END_OF_TRACK))
    peer.stream(4, (1, END_OF_TRACK), subgroup=1)


def other_delivery_mode(peer: Peer) -> None:
    peer.stream(0, 0)
    peer.datagram(0, 0)


def other_subgroup(peer: Peer) -> None:
    peer.stream(0, 5, subgroup=1)
    peer.stream(0, 5, subgroup=2)


def other_priority_of_a_datagram(peer: Peer) -> None:
    peer.datagram(0, 1, 3)
    peer.datagram(0, 1, 4)


def group_gap_covers_a_known_group(peer: Peer) -> None:
    peer.stream(3, 0)
    peer.stream(5, (0, gap(PRIOR_GROUP_ID_GAP, 2)))


def group_inside_a_gap(peer: Peer) -> None:
    peer.stream(5, (0, gap(PRIOR_GROUP_ID_GAP, 2)))
    peer.stream(4, 0)


def two_gaps_in_a_group(peer: Peer) -> None:
    peer.stream(5, (0, gap(PRIOR_GROUP_ID_GAP, 2)), (1, gap(PRIOR_GROUP_ID_GAP, 1)))


def object_gap_covers_a_known_object(peer: Peer) -> None:
    peer.stream(0, 3, subgroup=1, fin=False)
    peer.stream(0, (5, gap(PRIOR_OBJECT_ID_GAP, 2)))


def object_inside_a_gap(peer: Peer) -> None:
    peer.stream(0, (5, gap(PRIOR_OBJECT_ID_GAP, 2)))
    peer.stream(0, 4, subgroup=1, fin=False)


def gap_that_is_immutable(peer: Peer) -> None:
    inner = gap(PRIOR_OBJECT_ID_GAP, 2)
    peer.stream(0, (5, write_pairs([(IMMUTABLE_PROPERTIES, inner)])))
    peer.stream(0, 3, subgroup=1, fin=False)


FAULTS = [
    pytest.param(priority, marks=pytest.mark.rule("M171", "M471")),
    pytest.param(beyond_subgroup, marks=pytest.mark.rule("M472")),
    pytest.param(other_end_of_subgroup, marks=pytest.mark.rule("M473")),
    pytest.param(beyond_group, marks=pytest.mark.rule("M472")),
    beyond_group_of_a_stream,
    beyond_group_of_a_datagram,
    group_ends_before_its_objects,
    group_ends_twice,
    pytest.param(beyond_track, marks=pytest.mark.rule("M472")),
    track_ends_before_its_objects,
    track_ends_twice,
    pytest.param(other_delivery_mode, marks=pytest.mark.rule("M171")),
    pytest.param(other_subgroup, marks=pytest.mark.rule("M171")),
    pytest.param(other_priority_of_a_datagram, marks=pytest.mark.rule("M171")),
    pytest.param(group_gap_covers_a_known_group, marks=pytest.mark.rule("M413")),
    pytest.param(group_inside_a_gap, marks=pytest.mark.rule("M413")),
    pytest.param(two_gaps_in_a_group, marks=pytest.mark.rule("M413")),
    pytest.param(object_gap_covers_a_known_object, marks=pytest.mark.rule("M417")),
    pytest.param(object_inside_a_gap, marks=pytest.mark.rule("M417")),
    pytest.param(gap_that_is_immutable, marks=pytest.mark.rule("M417")),
]


@pytest.mark.rule("M465", "M467")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_track_ends_its_subscription(fault: Callable[[Peer], None]) -> None:
    peer = Peer()
    fault(peer)
    assert peer.malformed
    assert all(record.ended is not None for record in peer.receiver.streams)


def test_a_track_that_is_well_formed() -> None:
    peer = Peer()
    peer.stream(5, (0, gap(PRIOR_GROUP_ID_GAP, 2)), (1, gap(PRIOR_GROUP_ID_GAP, 2)), 3, 4)
    peer.stream(5, 0, 1, 3, 4)  # the same again
    peer.stream(2, 1, (5, gap(PRIOR_OBJECT_ID_GAP, 3)), (7, END_OF_GROUP), priority=1)
    peer.stream(2, 6, subgroup=6, priority=9, end_of_group=True, fin=False)
    peer.stream(6, 8, end_of_group=True)
    peer.datagram(6, 0, end_of_group=False)
    peer.stream(7, 0, 9, subgroup=3)
    peer.stream(7, 8, subgroup=4)
    peer.stream(8, 1, (2, END_OF_TRACK))
    assert not peer.malformed


@pytest.mark.rule("M439")
def test_only_a_fin_makes_the_end_of_a_group() -> None:
    peer = Peer()
    stream = peer.stream(0, 3, end_of_group=True, fin=False)
    peer.stream(0, 4, subgroup=2)
    assert not peer.malformed
    peer.wire.reset(stream)
    peer.stream(0, 5, subgroup=3)
    assert not peer.malformed


@pytest.mark.parametrize("when", ["first", "later"])
def test_what_a_filter_left_out_is_no_end(when: str) -> None:
    filters = Parameters(
        range_filters=(RangeFilter(RangeFilterType.OBJECT_ID, (Span(0, 1),)),),
    )
    peer = Peer(filters if when == "first" else NO_PARAMETERS)
    if when == "later":
        peer.request.update(filters)
    peer.stream(0, 0, 1, end_of_group=True)
    peer.stream(0, 2)
    assert not peer.malformed


# -- fetches -------------------------------------------------------------------------------------


def fetch_stream(request_id: int, *heads: ObjectHead) -> bytes:
    encoder = FetchEncoder(GroupOrder.ASCENDING)
    octets = encode_fetch_header(FetchHeader(request_id))
    return octets + b"".join(encoder.head(head) + b"x" * head.length for head in heads)


def head(group: int, subgroup: int | None, number: int, priority: int = 128) -> ObjectHead:
    return ObjectHead(group, subgroup, number, priority, 1)


@pytest.mark.rule("M466", "M467")
@pytest.mark.parametrize(
    "heads",
    [
        (head(0, 0, 0), head(0, 0, 1, 7)),
        (head(0, 0, 0), head(3, 0, 3)),
    ],
    ids=["priority", "beyond-the-track"],
)
def test_a_malformed_track_ends_its_fetch(heads: tuple[ObjectHead, ...]) -> None:
    wire, receiver = Wire(is_client=True), Receiver()
    request = wire.session.fetch(NAME, NO_PARAMETERS, receiver)
    wire.send(request.stream, m.FetchOk(True, Location(3, 2)))
    stream = wire.uni(fetch_stream(request.request_id, *heads), fin=True)
    assert isinstance(receiver.error, MalformedTrack)
    assert wire.stopped(request.stream) == StreamCode.MALFORMED_TRACK
    assert wire.stopped(stream) == StreamCode.MALFORMED_TRACK
    assert wire.fault is None


def test_the_end_of_a_fetched_track_may_come_after_its_objects() -> None:
    wire, receiver = Wire(is_client=True), Receiver()
    request = wire.session.fetch(NAME, NO_PARAMETERS, receiver)
    wire.uni(fetch_stream(request.request_id, head(3, 0, 3)), fin=True)
    wire.send(request.stream, m.FetchOk(True, Location(3, 2)))
    assert isinstance(receiver.error, MalformedTrack)


@pytest.mark.rule("M465", "M466")
def test_everything_of_the_track_ends_and_nothing_else() -> None:
    peer = Peer()
    fetched, other = Receiver(), Receiver()
    peer.wire.session.fetch(NAME, NO_PARAMETERS, fetched)
    peer.wire.session.fetch(OTHER, NO_PARAMETERS, other)
    other_delivery_mode(peer)
    assert isinstance(peer.receiver.error, MalformedTrack)
    assert isinstance(fetched.error, MalformedTrack)
    assert other.error is None
    assert peer.wire.fault is None


@pytest.mark.rule("M508")
def test_an_object_that_a_fetch_left_out_may_come_late() -> None:
    fill = Parameters(fill=NO_PARAMETERS)
    wire, receiver = Wire(is_client=True), Receiver()
    request = wire.session.subscribe(NAME, fill, receiver)
    largest = Parameters(largest_object=Location(0, 4))
    wire.send(request.stream, m.SubscribeOk(ALIAS, largest))
    wire.uni(fetch_stream(request.request_id, head(0, 0, 1), head(0, 0, 4)), fin=True)
    header = SubgroupHeader(ALIAS, 0, 0, 128)
    late = SubgroupEncoder(header).head(head(0, 0, 2)) + b"x"
    wire.uni(encode_subgroup_header(header) + late)
    assert receiver.error is None
    assert [one.object for one, _ in receiver.objects] == [1, 4, 2]


# -- what it costs -------------------------------------------------------------------------------


def test_what_is_remembered_is_bounded() -> None:
    known = TrackIntegrity()
    for group in range(10 * MAX_GROUPS):
        sink = known.subgroup(SubgroupHead(group, 0, 1), Record)
        sink.begin(ObjectHead(group, 0, 0, 1, 0, properties=gap(PRIOR_OBJECT_ID_GAP, 0)))
    assert len(known._groups) == MAX_GROUPS
    assert len(known) == 2 * MAX_GROUPS
    sink = known.subgroup(SubgroupHead(9999, 0, 1), Record)
    for number in range(2 * MAX_ENTRIES):
        known.object(known._group(9999), ObjectHead(9999, 0, number, 1, 0))
    assert len(known) == MAX_ENTRIES
    for number in range(MAX_ENTRIES):
        known.subgroup(SubgroupHead(number + 10_000, 0, 1), Record)
    assert len(known) <= MAX_ENTRIES
    assert sink is not None


def test_gaps_remembered_are_bounded() -> None:
    known = TrackIntegrity()
    top = 1 << 40
    for step in range(3 * MAX_GAPS):
        group = known._group(top + 10 * step)
        known.object(
            group, ObjectHead(group.number, None, 9, 1, 0, properties=gap(PRIOR_GROUP_ID_GAP, 2))
        )
    assert len(known._gaps) == MAX_GAPS
    for step in range(3 * MAX_GAPS):
        number = 10 * step + 100
        properties = gap(PRIOR_OBJECT_ID_GAP, 2)
        known.object(group, ObjectHead(group.number, None, number, 1, 0, properties=properties))
    assert len(group.gaps) == MAX_GAPS


def test_payload_goes_past_the_checks() -> None:
    record = Record("sink")
    checked = TrackIntegrity().subgroup(SubgroupHead(0, 0, 1), lambda _: record)
    assert checked.write == record.write
    assert checked.end == record.end
