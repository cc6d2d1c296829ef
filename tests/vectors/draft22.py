"""Octets of draft-22 as literal hex with the values they mean: checked against a second codec.

Spaces in the hex are for the eye. ``section`` names the place in the reference they come from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from moqt.codec.data import FetchHeader, SubgroupHeader
from moqt.codec.fields import AliasType, Token
from moqt.codec.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Message,
    Namespace,
    NamespaceDone,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishSkipped,
    PublishStateNotify,
    Redirect,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)
from moqt.codec.params import Parameters, Scope
from moqt.codec.properties import SetupOptions
from moqt.model import (
    FullTrackName,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    ObjectHead,
    ObjectStatus,
    RangeFilter,
    RangeFilterType,
    Span,
)

UNKNOWN_COUNT = (1 << 64) - 1
NAME = FullTrackName((b"live", b"room1"), b"video")
NAME_HEX = "02 04 6c697665 05 726f6f6d31  05 766964656f"
WHOLE = LocationFilter(LocationFilterType.ABSOLUTE_START)


def octets(text: str) -> bytes:
    """Hex with spaces and bars between the parts."""
    return bytes.fromhex(text.replace("|", " "))


class MessageVector(NamedTuple):
    """One control message; ``scope`` is the request it may travel with."""

    section: str
    hex: str
    message: Message
    scope: Scope | None = None


#: §8.1: every length, and both sides of every border between lengths.
VARINTS = (
    ("25", 37),
    ("bbbd", 15_293),
    ("ed7f3e7d", 226_442_877),
    ("faa1a0e403d8", 2_893_212_287_960),
    ("fc8998abc66bc0", 151_288_809_941_952),
    ("fefa318fa8e3ca11", 70_423_237_261_249_041),
    ("ffffffffffffffffff", (1 << 64) - 1),
    ("af00", 0x2F00),
    ("808c", 0x8C),
    ("810c", 0x10C),
    ("820c", 0x20C),
    ("f0132b3e28", 0x132B3E28),
    ("00", 0),
    ("7f", 127),
    ("8080", 128),
    ("bfff", 16_383),
    ("c04000", 16_384),
    ("dfffff", 2_097_151),
    ("e0200000", 2_097_152),
    ("efffffff", (1 << 28) - 1),
    ("f010000000", 1 << 28),
    ("f7ffffffff", (1 << 35) - 1),
    ("f80800000000", 1 << 35),
    ("fbffffffffff", (1 << 42) - 1),
    ("fc040000000000", 1 << 42),
    ("fdffffffffffff", (1 << 49) - 1),
    ("fe02000000000000", 1 << 49),
    ("feffffffffffffff", (1 << 56) - 1),
    ("ff0100000000000000", 1 << 56),
)
#: Longer than need be, and legal.
WIDE_VARINTS = (("8025", 37), ("8000", 0), ("c00000", 0), ("ff0000000000000005", 5))

MESSAGES = (
    MessageVector(
        "15.1",
        "af00 002d 01 08 2f6170703f783d31 03 9000 01 12 72656c61792e6578616d706c653a34343333"
        " 01 10 01 06 64656d6f2f31 01 08",
        Setup(
            SetupOptions(
                path="/app?x=1",
                authority="relay.example:4433",
                max_auth_token_cache_size=4096,
                max_filter_ranges=16,
                implementation="demo/1",
                max_request_updates=8,
            )
        ),
    ),
    MessageVector(
        "15.1",
        "af00 000d 04 9000 02 10 01 06 64656d6f2f31",
        Setup(
            SetupOptions(
                max_auth_token_cache_size=4096, max_filter_ranges=16, implementation="demo/1"
            )
        ),
    ),
    MessageVector("15.1", "af00 0000", Setup()),
    MessageVector(
        "15.2",
        "10 0017 14 6d6f71743a2f2f622e6578616d706c652f617070 9388",
        Goaway("moqt://b.example/app", 5000),
    ),
    MessageVector("15.2", "10 0002 00 00", Goaway()),
    MessageVector("15.3", f"03 0014 00 {NAME_HEX} 00", Subscribe(0, NAME)),
    MessageVector(
        "15.3",
        f"03 001f 00 {NAME_HEX} 03 20 40 01 05 02 05 01 21 02 00 00",
        Subscribe(
            0,
            NAME,
            Parameters(
                subscriber_priority=64,
                location_filter=LocationFilter.next_object(),
                fill=Parameters(location_filter=WHOLE),
            ),
        ),
    ),
    MessageVector(
        "15.3",
        f"03 001c 02 {NAME_HEX} 02 21 05 02 04 01 21 01 01",
        Subscribe(
            2,
            NAME,
            Parameters(
                location_filter=LocationFilter.next_object(),
                fill=Parameters(location_filter=LocationFilter.back(1)),
            ),
        ),
    ),
    MessageVector(
        "15.4",
        "04 000d 07 02 08 c0ea60 01 0c 03 0e 64 14 02",
        SubscribeOk(
            7,
            Parameters(expires=60_000, largest_object=Location(12, 3)),
            bytes.fromhex("0e641402"),
        ),
    ),
    MessageVector("15.4", "07 0001 00", RequestOk(), Scope.PUBLISH_NAMESPACE),
    MessageVector(
        "15.4",
        "07 0004 01 09 0c 09",
        RequestOk(Parameters(largest_object=Location(12, 9))),
        Scope.SUBSCRIPTION,
    ),
    MessageVector(
        "15.4",
        "05 0010 10 00 0d 6e6f207375636820747261636b",
        RequestError(0x10, 0, "no such track"),
    ),
    MessageVector("15.4", "05 0004 09 87d1 00", RequestError(0x9, 2001)),
    MessageVector(
        "15.4",
        f"05 002a 34 00 00 14 6d6f71743a2f2f622e6578616d706c652f617070 {NAME_HEX}",
        RequestError(0x34, 0, "", Redirect("moqt://b.example/app", NAME)),
        Scope.SUBSCRIPTION,
    ),
    MessageVector(
        "15.5",
        "02 0004 02 01 10 00",
        RequestUpdate(2, Parameters(forward=False)),
        Scope.SUBSCRIPTION,
    ),
    MessageVector(
        "15.5",
        "02 0006 04 02 21 00 04 00",
        RequestUpdate(
            4,
            Parameters(
                location_filter=LocationFilter(LocationFilterType.NONE),
                range_filters=(RangeFilter(RangeFilterType.SUBGROUP, remove=True),),
            ),
        ),
        Scope.SUBSCRIPTION,
    ),
    MessageVector(
        "15.5",
        "02 000c 08 01 34 02 04 6c697665 02 6575",
        RequestUpdate(8, Parameters(track_namespace_prefix=(b"live", b"eu"))),
        Scope.SUBSCRIBE_NAMESPACE,
    ),
    MessageVector(
        "15.6",
        f"1d 001e 01 {NAME_HEX} 07 02 09 03 00 07 01 04 c07530",
        Publish(
            1,
            NAME,
            7,
            Parameters(largest_object=Location(3, 0), forward=True),
            bytes.fromhex("04c07530"),
        ),
    ),
    MessageVector("15.6", "0b 0006 02 05 03 656e64", PublishDone(0x2, 5, "end")),
    MessageVector("15.6", "0b 000b 00 ffffffffffffffffff 00", PublishDone(0x0, UNKNOWN_COUNT)),
    MessageVector(
        "15.6",
        "22 0006 02 09 14 04 07 00",
        PublishStateNotify(Parameters(largest_object=Location(20, 4), forward=False)),
    ),
    MessageVector(
        "15.7",
        f"16 001c 04 {NAME_HEX} 02 21 04 0a 00 02 07 01 02",
        Fetch(
            4,
            NAME,
            Parameters(
                location_filter=LocationFilter(
                    LocationFilterType.ABSOLUTE_RANGE, Location(10, 0), 2, 7
                ),
                group_order=GroupOrder.DESCENDING,
            ),
        ),
    ),
    MessageVector("15.7", f"16 0014 04 {NAME_HEX} 00", Fetch(4, NAME)),
    MessageVector("15.7", "18 0004 00 0c 07 00", FetchOk(False, Location(12, 7))),
    MessageVector("15.7", f"0d 0014 06 {NAME_HEX} 00", TrackStatus(6, NAME)),
    MessageVector("15.8", "06 0008 01 01 04 6c697665 00", PublishNamespace(1, (b"live",))),
    MessageVector(
        "15.8",
        "06 000f 01 01 04 6c697665 01 03 05 03 00 746f6b",
        PublishNamespace(
            1, (b"live",), Parameters(authorization_tokens=(Token.use_value(b"tok"),))
        ),
    ),
    MessageVector("15.8", "50 0008 00 01 04 6c697665 00", SubscribeNamespace(0, (b"live",))),
    MessageVector("15.8", "50 0003 00 00 00", SubscribeNamespace(0, ())),
    MessageVector("15.8", "08 0007 01 05 726f6f6d31", Namespace((b"room1",))),
    MessageVector("15.8", "0e 0007 01 05 726f6f6d31", NamespaceDone((b"room1",))),
    MessageVector(
        "15.8",
        "51 000a 02 01 04 6c697665 01 10 00",
        SubscribeTracks(2, (b"live",), Parameters(forward=False)),
    ),
    MessageVector(
        "15.8", "0f 000d 01 05 726f6f6d31 05 766964656f", PublishSkipped((b"room1",), b"video")
    ),
)

#: §15.9, values after the type delta.
LOCATION_FILTERS = (
    ("00", LocationFilter(LocationFilterType.NONE)),
    ("0100", LocationFilter.back(0)),
    ("0101", LocationFilter.back(1)),
    ("02812c00", LocationFilter.since(300)),
    ("030a0002", LocationFilter.groups(10, 12)),
    (
        "040a040009",
        LocationFilter(LocationFilterType.ABSOLUTE_RANGE, Location(10, 4), 0, 9),
    ),
    ("05", LocationFilter.next_object()),
)
RANGE_FILTERS = (
    (
        "05 00 03 02 05 05",
        RangeFilter(RangeFilterType.OBJECT_ID, (Span(3, 5), Span(10, 15))),
    ),
    (
        "04 00 03 02 05",
        RangeFilter(RangeFilterType.OBJECT_ID, (Span(3, 5), Span(10, None))),
    ),
    (
        "03 01 10 64",
        RangeFilter(RangeFilterType.OBJECT_PROPERTY, (Span(100, None),), 1, 0x10),
    ),
    ("00", RangeFilter(RangeFilterType.OBJECT_ID, remove=True)),
)
#: §8.9, the structure without a length around it.
TOKENS = (
    ("00 01", Token(AliasType.DELETE, 1)),
    ("01 01 00 736563726574", Token(AliasType.REGISTER, 1, 0, b"secret")),
    ("02 01", Token(AliasType.USE_ALIAS, 1)),
    ("03 00 736563726574", Token.use_value(b"secret")),
)
#: §15.10 and §10.
PROPERTIES = (
    ("02 81f4 3a 02 02 01", ((0x02, 500), (0x3C, 2), (0x3E, 1))),
    ("0b 02 0e 40", ((0x0B, bytes.fromhex("0e40")),)),
)


class StreamVector(NamedTuple):
    """A data stream: its header, then heads with their payload, and gaps."""

    section: str
    hex: str
    header: SubgroupHeader | FetchHeader
    records: tuple[Any, ...]
    order: GroupOrder = GroupOrder.ASCENDING


def _fetched(group: int, number: int, payload: bytes) -> tuple[ObjectHead, bytes]:
    return ObjectHead(group, 0, number, 128, len(payload)), payload


SUBGROUPS = (
    StreamVector(
        "15.10",
        "54 07 0c 01 64 | 00 02 4142 | 00 01 43 | 02 00 00 | 00 00 03",
        SubgroupHeader(7, 12, 1, 100, first_object=True),
        (
            (ObjectHead(12, 1, 0, 100, 2), b"AB"),
            (ObjectHead(12, 1, 1, 100, 1), b"C"),
            (ObjectHead(12, 1, 4, 100, 0), b""),
            (ObjectHead(12, 1, 5, 100, 0, ObjectStatus.END_OF_GROUP), b""),
        ),
    ),
    StreamVector(
        "15.10",
        "71 07 0c | 00 02 3c02 02 4142 | 00 00 01 43",
        SubgroupHeader(7, 12, 0, None, has_properties=True, first_object=True),
        (
            (ObjectHead(12, 0, 0, 128, 2, properties=bytes.fromhex("3c02")), b"AB"),
            (ObjectHead(12, 0, 1, 128, 1), b"C"),
        ),
    ),
)
FETCHES = (
    StreamVector(
        "15.10",
        "05 04 | 1c 0a 00 80 01 61 | 00 01 62 | 04 03 01 63 | 0c 00 00 01 64",
        FetchHeader(4),
        (
            _fetched(10, 0, b"a"),
            _fetched(10, 1, b"b"),
            _fetched(10, 4, b"c"),
            _fetched(11, 0, b"d"),
        ),
    ),
    StreamVector(
        "15.10",
        "05 04 | 1c 0c 00 80 01 61 | 0c 01 00 01 62",
        FetchHeader(4),
        (_fetched(12, 0, b"a"), _fetched(10, 0, b"b")),
        GroupOrder.DESCENDING,
    ),
    StreamVector(
        "15.10",
        "05 04 | 1c 0a 00 80 01 61 | 810c 0a 05 | 00 01 62",
        FetchHeader(4),
        (_fetched(10, 0, b"a"), Gap(GapKind.UNKNOWN, Location(10, 5)), _fetched(10, 6, b"b")),
    ),
    StreamVector(
        "15.10",
        "05 04 | 820c 0b 09",
        FetchHeader(4),
        (Gap(GapKind.TIMED_OUT, Location(11, 9)),),
    ),
    StreamVector(
        "moq-transport#1861",
        "05 04 | 1c 05 00 80 01 aa | 820c 06 09 | 00 02 cafe",
        FetchHeader(4),
        (
            _fetched(5, 0, b"\xaa"),
            Gap(GapKind.TIMED_OUT, Location(6, 9)),
            _fetched(6, 10, b"\xca\xfe"),
        ),
    ),
)


class DatagramVector(NamedTuple):
    """An object datagram on alias 7 of a track whose default priority is 100."""

    section: str
    hex: str
    head: ObjectHead
    payload: bytes = b""
    end_of_group: bool = False


DATAGRAMS = (
    DatagramVector("15.10", "00 07 0c 05 80 6869", ObjectHead(12, None, 5, 128, 2), b"hi"),
    DatagramVector("15.10", "0c 07 0c 6869", ObjectHead(12, None, 0, 100, 2), b"hi"),
    DatagramVector(
        "15.10", "28 07 0c 06 03", ObjectHead(12, None, 6, 100, 0, ObjectStatus.END_OF_GROUP)
    ),
)
PADDING_STREAM = "f0132b3e28 000000"
PADDING_DATAGRAM = "f0132b3e29 000000"

#: The namespace example of the KVCS draft, 108 octets.
KVCS_NAMESPACE = (
    "05 06 6b7663732d31 10 6d1c6481cd428737da312c089db3832a"
    " 20 5ed5c2f238839655d7c4029e12b7f31caf9e7421f4edb4057feee6dab760ee0f"
    " 20 65327588 4ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc1"
    " 10 0123456789abcdef0123456789abcdef"
)
KVCS_FIELDS = (
    b"kvcs-1",
    bytes.fromhex("6d1c6481cd428737da312c089db3832a"),
    bytes.fromhex("5ed5c2f238839655d7c4029e12b7f31caf9e7421f4edb4057feee6dab760ee0f"),
    bytes.fromhex("653275884ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc1"),
    bytes.fromhex("0123456789abcdef0123456789abcdef"),
)
