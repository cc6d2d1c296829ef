"""Subgroup and fetch streams: headers of every type, records, what each forbids."""

from __future__ import annotations

import pytest

from moqt.codec import varint
from moqt.codec.data import (
    MAX_STREAM_HEADER,
    FetchEncoder,
    FetchHeader,
    SubgroupEncoder,
    SubgroupHeader,
    SubgroupReader,
    encode_fetch_header,
    encode_subgroup_header,
)
from moqt.codec.varint import Incomplete
from moqt.errors import MalformedTrack, Misuse, ProtocolViolation
from moqt.model import MAX_VI64, Gap, GapKind, GroupOrder, Location, ObjectHead, ObjectStatus
from tests.moqt.codec.recording import FIN, Recorder, read_fetch, read_subgroup
from tests.vectors.draft22 import FETCHES, SUBGROUPS, StreamVector, octets

TOP = "ff" * 9
VALID = [h << 4 | n for h in (1, 3, 5, 7) for n in (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)]
DOWN = GroupOrder.DESCENDING


def heads(sink: Recorder) -> list[ObjectHead]:
    """The heads of the whole objects."""
    return [head for head, _ in sink.objects]


def places(sink: Recorder) -> list[tuple[int, int]]:
    """Group and object of each record but FIN."""
    records = [record for record in sink.records if record != FIN]
    return [each.location if isinstance(each, Gap) else each[0].location for each in records]


def test_there_are_48_subgroup_types() -> None:
    assert len(set(VALID)) == 48


@pytest.mark.rule("M434")
@pytest.mark.parametrize("flags", VALID, ids=hex)
def test_every_valid_subgroup_type_decodes_and_encodes(flags: int) -> None:
    mode = flags >> 1 & 3
    wire = bytes((flags, 7, 12)) + b"\x05" * (mode == 2) + b"\x64" * (not flags & 0x20)
    header, at = SubgroupHeader.decode(wire)
    assert at == len(wire)
    assert header == SubgroupHeader(
        track_alias=7,
        group=12,
        subgroup={0: 0, 1: None, 2: 5}[mode],
        priority=None if flags & 0x20 else 100,
        has_properties=bool(flags & 1),
        end_of_group=bool(flags & 8),
        first_object=bool(flags & 0x40),
    )
    assert encode_subgroup_header(header) == wire


@pytest.mark.rule("M432", "M433", "M435")
@pytest.mark.parametrize("flags", sorted(set(range(256)) - set(VALID)), ids=hex)
def test_every_other_subgroup_type_is_a_violation(flags: int) -> None:
    with pytest.raises(ProtocolViolation, match="invalid"):
        SubgroupHeader.decode(varint.encode(flags) + bytes(8))


@pytest.mark.rule("M534")
def test_type_flags_in_a_longer_form() -> None:
    header, at = SubgroupHeader.decode(octets("c00054 07 0c 01 64"))
    assert (header.subgroup, header.priority, at) == (1, 100, 7)


@pytest.mark.parametrize("vector", [*SUBGROUPS, *FETCHES], ids=lambda vector: vector.hex[:16])
def test_a_cut_header_is_incomplete(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    kind = type(vector.header)
    header, at = kind.decode(wire)
    assert header == vector.header
    assert at <= MAX_STREAM_HEADER
    for end in range(at):
        with pytest.raises(Incomplete):
            kind.decode(wire[:end])


def test_fetch_header_of_another_stream_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="FETCH_HEADER"):
        FetchHeader.decode(octets("54 07"))


@pytest.mark.rule("M437", "M438")
@pytest.mark.parametrize("vector", SUBGROUPS, ids=lambda vector: vector.hex[:16])
def test_subgroup_vector(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    assert read_subgroup(wire).records == [*vector.records, FIN]
    assert isinstance(vector.header, SubgroupHeader)
    encoder = SubgroupEncoder(vector.header)
    out = encode_subgroup_header(vector.header)
    for head, payload in vector.records:
        out += encoder.head(head) + payload
    assert out == wire


@pytest.mark.parametrize("vector", FETCHES, ids=lambda vector: vector.hex[:40])
def test_fetch_vector(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    assert read_fetch(wire, order=vector.order).records == [*vector.records, FIN]
    assert isinstance(vector.header, FetchHeader)
    encoder = FetchEncoder(vector.order)
    out = encode_fetch_header(vector.header)
    for record in vector.records:
        if isinstance(record, Gap):
            out += encoder.gap(record)
        else:
            out += encoder.head(record[0]) + record[1]
    assert out == wire


def test_the_subgroup_id_of_the_first_object() -> None:
    wire = octets("12 07 0c 64 | 05 01 61 | 00 01 62")
    header, at = SubgroupHeader.decode(wire)
    assert header.subgroup is None
    assert header.subgroup_id(wire, at) == 5
    with pytest.raises(Incomplete):
        header.subgroup_id(wire[:at], at)
    assert [(head.subgroup, head.object) for head in heads(read_subgroup(wire))] == [(5, 5), (5, 6)]
    encoder = SubgroupEncoder(header)
    assert encoder.head(ObjectHead(12, 5, 5, 100, 1)) == octets("05 01")
    assert encoder.head(ObjectHead(12, 5, 6, 100, 1)) == octets("00 01")
    assert SubgroupHeader(7, 12, 3).subgroup_id(b"", 0) == 3


def test_the_default_priority_is_the_tracks() -> None:
    sink = read_subgroup(octets("30 07 0c | 00 01 61"), default_priority=99)
    assert heads(sink)[0].priority == 99


def test_a_header_alone_is_a_whole_stream() -> None:
    assert read_subgroup(octets("10 07 0c 64")).records == [FIN]
    assert read_fetch(octets("05 04")).records == [FIN]


@pytest.mark.rule("M430")
@pytest.mark.parametrize("vector", SUBGROUPS, ids=lambda vector: vector.hex[:16])
def test_fin_inside_a_subgroup_object_is_a_violation(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    _, start = SubgroupHeader.decode(wire)
    ends = {start}
    for end in range(start, len(wire) + 1):
        sink = Recorder()
        try:
            sink = read_subgroup(wire[:end])
        except ProtocolViolation:
            continue
        assert sink.records[-1] == FIN
        ends.add(end)
    assert len(ends) == len(vector.records) + 1


@pytest.mark.rule("M430")
@pytest.mark.parametrize("vector", FETCHES, ids=lambda vector: vector.hex[:40])
def test_fin_inside_a_fetch_record_is_a_violation(vector: StreamVector) -> None:
    wire = octets(vector.hex)
    whole = 0
    for end in range(2, len(wire) + 1):
        try:
            read_fetch(wire[:end], order=vector.order)
        except ProtocolViolation:
            continue
        whole += 1
    assert whole == len(vector.records) + 1


@pytest.mark.rule("M430")
def test_a_fin_without_octets_inside_a_payload() -> None:
    sink = Recorder()
    reader = SubgroupReader(SubgroupHeader(7, 12, 0, 1), 128, sink)
    reader.feed(octets("00 02 61"))
    with pytest.raises(ProtocolViolation, match="inside an object"):
        reader.feed(b"", True)
    assert sink.records == []
    assert sink.begun is not None


@pytest.mark.rule("M436")
def test_object_id_above_the_top_of_a_subgroup_is_a_violation() -> None:
    header = "10 07 0c 64"
    assert heads(read_subgroup(octets(f"{header} {TOP} 01 61")))[0].object == MAX_VI64
    for more in (f"{TOP} 01 61 | 00 01 62", f"00 01 61 | {TOP} 01 62"):
        with pytest.raises(ProtocolViolation, match="object id"):
            read_subgroup(octets(f"{header} {more}"))


@pytest.mark.rule("M420")
@pytest.mark.parametrize("status", ["01", "02", "05", "07", "809d", TOP])
def test_an_unknown_object_status_is_a_violation(status: str) -> None:
    # nttcom/moq-wasm#339 dropped it in silence.
    with pytest.raises(ProtocolViolation, match="status"):
        read_subgroup(octets(f"10 01 00 80 00 00 {status}"))


@pytest.mark.rule("M422")
@pytest.mark.parametrize("status", ["03", "04"])
def test_properties_on_a_status_object_are_a_violation(status: str) -> None:
    with pytest.raises(ProtocolViolation, match="properties on an object"):
        read_subgroup(octets(f"11 01 00 80 00 02 3c00 00 {status}"))
    assert heads(read_subgroup(octets(f"11 01 00 80 00 00 00 {status}")))[0].properties == b""


@pytest.mark.rule("M437", "M438")
def test_a_normal_object_of_length_0_may_have_properties() -> None:
    [head] = heads(read_subgroup(octets("11 01 09 80 00 02 3c01 00 00")))
    assert (head.status, head.properties) == (ObjectStatus.NORMAL, octets("3c01"))


@pytest.mark.rule("M408", "M412", "M416")
@pytest.mark.parametrize("properties", ["0b 01 80", "0b 02 0b00", "3c 01 00 01", "3c 0a", "3e 01"])
def test_properties_no_object_may_carry_make_the_track_malformed(properties: str) -> None:
    raw = octets(properties)
    with pytest.raises(MalformedTrack):
        read_subgroup(octets("11 01 09 80 00") + bytes((len(raw),)) + raw + octets("01 61"))
    with pytest.raises(MalformedTrack):
        read_fetch(octets("05 04 3c 09 00 80") + bytes((len(raw),)) + raw + octets("01 61"))


@pytest.mark.parametrize("length", ["c10000", "f040000000", "ff4000000000000000", TOP])
def test_huge_properties_are_a_violation_before_they_come(length: str) -> None:
    with pytest.raises(ProtocolViolation, match="properties of"):
        read_subgroup(octets(f"11 01 00 80 00 {length}"))
    with pytest.raises(ProtocolViolation, match="properties of"):
        read_fetch(octets(f"05 04 3c 00 00 80 {length}"))


@pytest.mark.parametrize("length", [1 << 14, 1 << 30, 1 << 62, MAX_VI64])
def test_a_huge_payload_is_streamed_not_allocated(length: int) -> None:
    sink = Recorder()
    reader = SubgroupReader(SubgroupHeader(7, 12, 0, 1), 128, sink)
    reader.feed(b"\x00" + varint.encode(length) + bytes(100))
    reader.feed(bytes(1000))
    assert sink.begun is not None
    assert sink.begun.length == length
    assert [len(view) for view in sink.views] == [100, 1000]


def test_payload_views_are_slices_of_what_was_fed() -> None:
    sink = Recorder()
    reader = SubgroupReader(SubgroupHeader(7, 12, 0, 1), 128, sink)
    first = octets("00 06 6162 ")
    second = octets("6364")
    third = octets("6566 00 02 67")
    fourth = octets("68")
    for data in (first, second, third, fourth):
        reader.feed(data)
    assert sink.views[1] is second
    assert sink.views[4] is fourth
    assert [view.obj for view in (sink.views[0], sink.views[2], sink.views[3])] == [
        first,
        third,
        third,
    ]  # type: ignore[union-attr]


# Fetch streams.


@pytest.mark.rule("M452")
@pytest.mark.parametrize(
    "flags", ["00", "10", "14", "18", "04", "08", "0c", "1d", "1e", "4c", "58", "54"]
)
def test_the_first_record_must_not_refer_to_a_prior_one(flags: str) -> None:
    with pytest.raises(ProtocolViolation):
        read_fetch(octets(f"05 04 {flags} 01 01 01 01 01 01"))


@pytest.mark.rule("M451")
@pytest.mark.parametrize("flags", ["1c", "1f", "5c", "5d", "5e", "5f"])
def test_the_first_record_is_absolute(flags: str) -> None:
    subgroup = "07" if flags == "1f" else ""
    sink = read_fetch(octets(f"05 04 {flags} 0a {subgroup} 03 80 01 61"), order=DOWN)
    [head] = heads(sink)
    assert head.location == (10, 3)
    assert head.subgroup == {"1c": 0, "1f": 7}.get(flags)
    out = encode_fetch_header(FetchHeader(4)) + FetchEncoder(DOWN).head(head)
    if flags in ("1c", "1f", "5c"):
        assert out + b"a" == octets(f"05 04 {flags} 0a {subgroup} 03 80 01 61")


@pytest.mark.rule("M450")
@pytest.mark.parametrize(
    "flags", ["8080", "808b", "808d", "80ff", "810b", "810d", "8200", "820d", "830c", "a08c", TOP]
)
def test_unknown_serialization_flags_are_a_violation(flags: str) -> None:
    with pytest.raises(ProtocolViolation, match="serialization flags"):
        read_fetch(octets(f"05 04 {flags} 01 01"))


def test_a_group_delta_counts_from_the_next_group() -> None:
    # meetecho/imquic#36: the +1 was forgotten.
    first, second = "1c 05 00 80 01 61", "0c 00 00 01 62"
    up = read_fetch(octets(f"05 04 {first} {second}"))
    assert places(up) == [(5, 0), (6, 0)]
    down = read_fetch(octets(f"05 04 {first} {second}"), order=DOWN)
    assert places(down) == [(5, 0), (4, 0)]


def test_an_object_delta_in_the_same_group_has_no_extra_one() -> None:
    sink = read_fetch(octets("05 04 1c 05 07 80 01 61 | 04 03 01 62 | 00 01 63"))
    assert places(sink) == [(5, 7), (5, 10), (5, 11)]


def test_a_group_change_without_object_delta_still_adds_one() -> None:
    sink = read_fetch(octets("05 04 1c 05 07 80 01 61 | 08 00 01 62"))
    assert places(sink) == [(5, 7), (6, 8)]


@pytest.mark.rule("M453")
def test_a_group_outside_its_range_is_a_violation() -> None:
    assert places(read_fetch(octets("05 04 1c 05 00 80 00 | 0c 04 00 00"), order=DOWN)) == [
        (5, 0),
        (0, 0),
    ]
    with pytest.raises(ProtocolViolation, match="group id"):
        read_fetch(octets("05 04 1c 05 00 80 00 | 0c 05 00 00"), order=DOWN)
    with pytest.raises(ProtocolViolation, match="group id"):
        read_fetch(octets(f"05 04 1c {TOP} 00 80 00 | 0c 00 00 00"))
    with pytest.raises(ProtocolViolation, match="group id"):
        read_fetch(octets(f"05 04 1c 00 00 80 00 | 0c {TOP} 00 00"))


@pytest.mark.rule("M454")
@pytest.mark.parametrize("second", ["00 00", "04 01 00", f"04 {TOP} 00", "08 00 00"])
def test_an_object_id_above_the_top_of_a_fetch_is_a_violation(second: str) -> None:
    with pytest.raises(ProtocolViolation, match="object id"):
        read_fetch(octets(f"05 04 1c 05 {TOP} 80 00 | {second}"))


def test_subgroup_modes() -> None:
    sink = read_fetch(
        octets("05 04 1f 05 09 00 80 00 | 01 00 | 02 00 | 00 00 | 01 00 | 03 07 00 | 02 00")
    )
    assert [head.subgroup for head in heads(sink)] == [9, 9, 10, 0, 0, 7, 8]


def test_a_subgroup_above_the_top_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="subgroup"):
        read_fetch(octets(f"05 04 1f 05 {TOP} 00 80 00 | 02 00"))


@pytest.mark.rule("M455", "M457")
def test_datagram_objects_have_no_subgroup_and_leave_the_prior_one() -> None:
    sink = read_fetch(octets("05 04 1f 05 09 00 80 00 | 43 00 | 40 00 | 01 00"))
    assert [head.subgroup for head in heads(sink)] == [9, None, None, 9]
    with pytest.raises(ProtocolViolation, match="subgroup"):
        read_fetch(octets("05 04 5c 05 00 80 00 | 01 00"))


@pytest.mark.rule("M455", "M456")
def test_after_a_datagram_object_we_write_the_subgroup_out() -> None:
    encoder = FetchEncoder(GroupOrder.ASCENDING)
    assert encoder.head(ObjectHead(5, 9, 0, 128, 0)) == octets("1f 05 09 00 80 00")
    assert encoder.head(ObjectHead(5, None, 1, 128, 0)) == octets("40 00")
    assert encoder.head(ObjectHead(5, 9, 2, 128, 0)) == octets("03 09 00")
    assert encoder.head(ObjectHead(5, 9, 3, 128, 0)) == octets("01 00")
    assert encoder.head(ObjectHead(5, 10, 4, 7, 0)) == octets("12 07 00")


@pytest.mark.rule("M458")
@pytest.mark.parametrize("record", ["00 00", "0c 00 00 00", "11 80 00", "12 80 00", "40 00"])
def test_after_a_leading_marker_nothing_prior_but_ids_exists(record: str) -> None:
    with pytest.raises(ProtocolViolation, match="refers to"):
        read_fetch(octets(f"05 04 810c 0a 05 | {record}"))


@pytest.mark.rule("M459")
def test_a_marker_is_the_prior_of_ids_only() -> None:
    # Quicr/libquicr#910: a flag left uninitialised by a marker.
    sink = read_fetch(octets("05 04 810c 0a 05 | 10 80 01 61 | 5c 00 00 07 01 62"))
    assert places(sink) == [(10, 5), (10, 6), (11, 0)]
    sink = read_fetch(octets("05 04 1f 0a 09 00 40 01 61 | 820c 0b 09 | 01 01 62"))
    assert heads(sink)[-1] == ObjectHead(11, 9, 10, 64, 1)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [("808c", GapKind.NON_EXISTENT), ("810c", GapKind.UNKNOWN), ("820c", GapKind.TIMED_OUT)],
)
def test_markers_have_absolute_ids_and_no_payload_length(flags: str, kind: GapKind) -> None:
    wire = octets(f"05 04 1c 0a 00 80 00 | {flags} 0a 05 | 00 01 62")
    sink = read_fetch(wire)
    assert sink.records[1] == Gap(kind, Location(10, 5))
    encoder = FetchEncoder(GroupOrder.ASCENDING)
    encoder.head(ObjectHead(10, 0, 0, 128, 0))
    assert encoder.gap(Gap(kind, Location(10, 5))) == octets(f"{flags} 0a 05")


@pytest.mark.rule("M536")
def test_no_status_on_fetch_streams() -> None:
    sink = read_fetch(octets("05 04 1c 0a 00 80 00 | 00 01 61"))
    assert [head.length for head in heads(sink)] == [0, 1]
    with pytest.raises(Misuse, match="END_OF_GROUP"):
        FetchEncoder(GroupOrder.ASCENDING).head(
            ObjectHead(10, 0, 0, 128, 0, ObjectStatus.END_OF_GROUP)
        )


# What our own callers may not write.


@pytest.mark.parametrize(
    "head",
    [
        ObjectHead(12, 1, 5, 100, 1),
        ObjectHead(12, 1, 4, 100, 1),
        ObjectHead(13, 1, 6, 100, 1),
        ObjectHead(12, 2, 6, 100, 1),
        ObjectHead(12, None, 6, 100, 1),
        ObjectHead(12, 1, MAX_VI64 + 1, 100, 1),
        ObjectHead(12, 1, 6, 100, 1, properties=b"\x02\x05"),
        ObjectHead(12, 1, 6, 100, 1, ObjectStatus.END_OF_GROUP),
    ],
)
@pytest.mark.rule("M421")
def test_an_object_that_does_not_belong_on_the_stream_is_misuse(head: ObjectHead) -> None:
    encoder = SubgroupEncoder(SubgroupHeader(7, 12, 1, 100))
    encoder.head(ObjectHead(12, 1, 5, 100, 1))
    with pytest.raises(Misuse):
        encoder.head(head)
    assert encoder.head(ObjectHead(12, 1, 6, 100, 1)) == octets("00 01")


@pytest.mark.rule("M422")
def test_our_own_status_object_has_no_properties() -> None:
    encoder = SubgroupEncoder(SubgroupHeader(7, 12, 1, 100, has_properties=True))
    with pytest.raises(Misuse):
        encoder.head(ObjectHead(12, 1, 0, 100, 0, ObjectStatus.END_OF_TRACK, b"\x02\x05"))


@pytest.mark.parametrize(
    ("order", "place"),
    [
        (GroupOrder.ASCENDING, (10, 5)),
        (GroupOrder.ASCENDING, (10, 4)),
        (GroupOrder.ASCENDING, (9, 9)),
        (DOWN, (10, 5)),
        (DOWN, (11, 0)),
        (GroupOrder.ASCENDING, (MAX_VI64 + 1, 0)),
        (GroupOrder.ASCENDING, (10, MAX_VI64 + 1)),
    ],
)
def test_fetch_records_out_of_order_are_misuse(order: GroupOrder, place: tuple[int, int]) -> None:
    encoder = FetchEncoder(order)
    encoder.head(ObjectHead(10, 0, 5, 128, 1))
    with pytest.raises(Misuse):
        encoder.head(ObjectHead(place[0], 0, place[1], 128, 1))
    with pytest.raises(Misuse):
        encoder.gap(Gap(GapKind.UNKNOWN, Location(*place)))


@pytest.mark.rule("M086", "M409", "M412", "M416", "M501")
@pytest.mark.parametrize("properties", ["c04000 00", "0b 00 00 00", "3c 00 00 00", "3e 06", "80"])
def test_our_own_bad_object_properties_are_misuse(properties: str) -> None:
    head = ObjectHead(12, 0, 5, 100, 1, properties=octets(properties))
    header = SubgroupHeader(7, 12, 0, 100, has_properties=True)
    with pytest.raises(Misuse, match="properties of object"):
        SubgroupEncoder(header).head(head)
    with pytest.raises(Misuse, match="properties of object"):
        FetchEncoder(GroupOrder.ASCENDING).head(head)


def test_a_priority_out_of_range_is_misuse() -> None:
    with pytest.raises(Misuse):
        encode_subgroup_header(SubgroupHeader(7, 12, 0, 256))
    with pytest.raises(Misuse):
        FetchEncoder(GroupOrder.ASCENDING).head(ObjectHead(1, 0, 0, -1, 0))
