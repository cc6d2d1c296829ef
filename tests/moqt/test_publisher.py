"""Track, SubgroupWriter, Catalog: what a producer may publish, keep, announce (draft-22 §2, §4)."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.data import SubgroupHeader
from moqt.codec.params import NO_PARAMETERS
from moqt.codec.properties import TrackProperties
from moqt.errors import (
    DoneCode,
    Misuse,
    RequestCode,
    RequestRefused,
    SessionClosed,
    StreamCode,
)
from moqt.model import (
    FullTrackName,
    GroupOrder,
    Location,
    LocationRange,
    ObjectStatus,
)
from moqt.publisher import Catalog, Track
from moqt.session.ports import Unserved
from tests.moqt.session.test_subscribe_wire import data_streams, read, served
from tests.moqt.session.wire import NAME, OTHER, Wire, leftovers
from tests.moqt.session.worlds import Listener, World
from transport.errors import StreamAbort

ALL = LocationRange(Location(0, 0), None)
MAX = (1 << 64) - 1
END_OF_GROUP, END_OF_TRACK = ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK


def kept(track: Track, within: LocationRange = ALL, order: Any = GroupOrder.ASCENDING) -> list[Any]:
    """Locations that a fetch would deliver, in order."""
    found = track.objects(within, order, lambda: None)
    return [tuple(stored.head.location) for stored in found]  # type: ignore[union-attr]


# -- tracks --------------------------------------------------------------------------------------


def test_a_track_keeps_references() -> None:
    track = Track(NAME)
    payload = bytearray(b"abc")
    view = memoryview(payload)
    track.subgroup(0).object(0, b"head", view)
    (stored,) = track.objects(ALL, GroupOrder.ASCENDING, lambda: None)
    assert stored.payload[1] is view  # type: ignore[union-attr]
    assert stored.head.length == track.octets == 7  # type: ignore[union-attr]


def test_views_count_in_octets() -> None:
    track = Track(NAME)
    floats = memoryview(array("f", range(6)))
    square = floats.cast("B").cast("f", (2, 3))
    track.subgroup(0).object(0, floats, square)
    assert track.octets == 48
    wire, _, _ = served(track)
    track.subgroup(1).object(0, square)
    ((_, data),) = read(wire.pulled(data_streams(wire)[0])[0])[1].objects
    assert data == floats.tobytes()
    with pytest.raises(Misuse, match="contiguous"):
        track.subgroup(2).object(0, floats[::2])


@pytest.mark.rule("M038")
def test_largest_object() -> None:
    track = Track(NAME)
    assert track.largest is None
    assert track.last_within(ALL) is None
    late, early = track.subgroup(5), track.subgroup(3)
    late.object(1, b"")
    early.object(7, b"")
    assert track.largest == Location(5, 1)
    late.object(2, status=END_OF_GROUP)
    assert track.largest == Location(5, 2)
    assert track.last_within(ALL) == Location(5, 1)
    assert track.last_within(LocationRange(Location(0, 0), Location(4, MAX))) == Location(3, 7)
    assert track.last_within(LocationRange(Location(6, 0), None)) is None
    assert not track.ended
    track.subgroup(6).object(0, status=END_OF_TRACK)
    assert track.ended


RANGES = [
    (ALL, [(1, 0), (1, 2), (2, 0), (3, 0), (3, 1)]),
    (LocationRange(Location(1, 1), Location(2, MAX)), [(1, 2), (2, 0)]),
    (LocationRange(Location(3, 1), None), [(3, 1)]),
    (LocationRange(Location(4, 0), None), []),
    (LocationRange(Location(1, 1), Location(1, 1)), []),
    (LocationRange(Location(0, 0), Location(0, MAX)), []),
]


@pytest.mark.parametrize(("within", "expected"), RANGES)
def test_objects_of_a_range(within: LocationRange, expected: Any) -> None:
    track = Track(NAME)
    for group, number in ((3, 0), (1, 0), (2, 0), (1, 2), (3, 1)):
        track.subgroup(group, number).object(number, b"x")
    assert kept(track, within) == expected
    down = sorted(expected, key=lambda place: (-place[0], place[1]))
    assert kept(track, within, GroupOrder.DESCENDING) == down


def test_a_discarded_track_gives_nothing_more() -> None:
    track = Track(NAME)
    track.subgroup(0).object(0, b"x")
    track.subgroup(1).object(0, b"x")
    track.subgroup(1, 1).object(1, b"x")
    running = track.objects(ALL, GroupOrder.ASCENDING, lambda: None)
    inside = track.objects(ALL, GroupOrder.DESCENDING, lambda: None)
    next(running)
    next(inside)
    track.discard()
    for generator in (running, inside, track.objects(ALL, GroupOrder.ASCENDING, lambda: None)):
        with pytest.raises(StreamAbort) as abort:
            next(generator)
        assert abort.value.code == StreamCode.INTERNAL_ERROR
    assert track.octets == 0
    with pytest.raises(Misuse, match="ended"):
        track.subgroup(2)
    track.discard()


@pytest.mark.rule("M503", "M504", "M505")
def test_every_delivery_has_the_same_octets() -> None:
    track = Track(NAME, TrackProperties(immutable=bytes.fromhex("0e40")))
    properties = bytes.fromhex("0b 02 0e 40 31 02 02 01")  # 0x0b, 0x3c, 0x3e
    writer = track.subgroup(5, has_properties=True)
    writer.object(3, b"x", properties=properties)
    heads = [stored.head for _ in range(3) for stored in track.objects(ALL, 1, lambda: None)]  # type: ignore[arg-type, union-attr]
    assert [head.properties for head in heads] == [properties] * 3


# -- what cannot be published --------------------------------------------------------------------


@pytest.mark.rule("M520", "M014", "M017", "M164", "M019")
def test_names_that_cannot_be_served() -> None:
    for namespace, name in (
        ((b"",), b"x"),
        ((b"a",) * 33, b"x"),
        ((b"a" * 4000,), b"x" * 97),
        ((b".",), b"x"),
        ((b".session", b"a"), b"x"),
    ):
        with pytest.raises(Misuse):
            Track(FullTrackName(namespace, name))
    catalog = Catalog()
    catalog.add(Track(NAME))
    with pytest.raises(Misuse, match="served already"):
        catalog.add(Track(NAME))


@pytest.mark.parametrize(
    ("group", "subgroup", "priority"),
    [(-1, 0, 0), (MAX + 1, 0, 0), (0, -1, 0), (0, MAX + 1, 0), (0, 0, -1), (0, 0, 256)],
)
def test_numbers_out_of_range(group: int, subgroup: int, priority: int) -> None:
    with pytest.raises(Misuse):
        Track(NAME).subgroup(group, subgroup, priority=priority)


@pytest.mark.rule("M007", "M431")
def test_a_subgroup_is_opened_once() -> None:
    track = Track(NAME)
    writer = track.subgroup(0, 3)
    track.subgroup(0, 4)
    for _ in range(2):
        with pytest.raises(Misuse, match="opened before"):
            track.subgroup(0, 3)
        writer.finish()


@pytest.mark.parametrize("number", [-1, 2, 1, MAX + 1])
def test_object_ids_rise(number: int) -> None:
    writer = Track(NAME).subgroup(0)
    writer.object(2, b"x")
    with pytest.raises(Misuse):
        writer.object(number, b"x")
    writer.object(MAX, b"x")


@pytest.mark.rule("M004", "M019")
def test_a_location_has_one_payload() -> None:
    track = Track(NAME)
    track.subgroup(0, 0).object(5, b"x")
    with pytest.raises(Misuse, match="one payload"):
        track.subgroup(0, 1).object(5, b"x")
    assert track.octets == 1


@pytest.mark.rule("M421", "M422")
def test_a_status_object_has_nothing_else() -> None:
    writer = Track(NAME).subgroup(0, has_properties=True)
    with pytest.raises(Misuse):
        writer.object(0, b"x", status=END_OF_GROUP)
    with pytest.raises(Misuse):
        writer.object(0, status=END_OF_TRACK, properties=bytes.fromhex("0e40"))


@pytest.mark.rule("M501", "M409", "M412", "M416", "M086")
@pytest.mark.parametrize(
    "properties", ["0e", "c04000 00", "0b 00 00 00", "3c 06", "3e 04", "3c 01 00 01", "0b 01 02"]
)
def test_properties_no_object_may_carry(properties: str) -> None:
    writer = Track(NAME).subgroup(5, has_properties=True)
    with pytest.raises(Misuse, match="properties"):
        writer.object(3, b"x", properties=bytes.fromhex(properties))
    with pytest.raises(Misuse, match="has_properties"):
        Track(NAME).subgroup(0).object(0, properties=bytes.fromhex("3c00"))


def test_nothing_lies_beyond_an_end() -> None:
    track = Track(NAME)
    first = track.subgroup(0)
    first.object(3, b"x")
    other = track.subgroup(0, 1)
    with pytest.raises(Misuse, match="beyond it"):
        other.object(2, status=END_OF_GROUP)
    first.object(4, status=END_OF_GROUP)
    with pytest.raises(Misuse, match="end of its group"):
        other.object(5, b"x")
    other.object(2, b"late, but within")
    track.subgroup(7).object(0, b"x")
    with pytest.raises(Misuse, match="beyond it"):
        track.subgroup(6).object(0, status=END_OF_TRACK)
    track.subgroup(7, 1).object(1, status=END_OF_TRACK)
    with pytest.raises(Misuse, match="end of the track"):
        track.subgroup(8).object(0, b"x")
    track.subgroup(2).object(0, b"an earlier group may still come")


def test_after_finish_and_after_the_end() -> None:
    track = Track(NAME)
    writer, aborted = track.subgroup(0), track.subgroup(1)
    writer.finish()
    writer.finish()
    writer.abort(1)
    aborted.abort(1)
    for one in (writer, aborted):
        with pytest.raises(Misuse, match="finished"):
            one.object(0, b"x")
    track.end()
    track.end(DoneCode.INTERNAL_ERROR)
    with pytest.raises(Misuse, match="ended"):
        track.subgroup(2)


# -- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_after_the_end_is_told_at_once() -> None:
    track = Track(NAME)
    track.end(DoneCode.EXPIRED, "old")
    wire, stream, request = served(track)
    assert wire.last(stream) == m.PublishDone(DoneCode.EXPIRED, 0, "old")
    assert not request.active
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)
    assert not track._subscriptions


@pytest.mark.rule("M441", "M329")
def test_the_end_cuts_open_subgroups() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    cut, whole = track.subgroup(0), track.subgroup(1)
    cut.object(0, b"x")
    whole.object(0, b"x")
    whole.finish()
    one, two = data_streams(wire)
    wire.pulled(one)
    track.end()
    assert wire.data(one)[1] == StreamCode.CANCELLED
    assert wire.pulled(two)[1] == "fin"
    assert wire.last(stream) == m.PublishDone(DoneCode.TRACK_ENDED, 2)


def test_a_withdrawn_track_ends_its_subscriptions() -> None:
    catalog = Catalog()
    track = catalog.add(Track(NAME))
    wire = Wire(handler=catalog.handler(None))  # type: ignore[arg-type]
    stream = wire.bidi(m.Subscribe(0, NAME))
    catalog.remove(track)
    done = wire.last(stream)
    assert isinstance(done, m.PublishDone)
    assert done.status == DoneCode.INTERNAL_ERROR
    assert isinstance(wire.last(wire.bidi(m.Subscribe(2, NAME))), m.RequestError)
    fresh = catalog.add(Track(NAME))
    catalog.remove(track)  # another one of that name is not touched
    assert catalog.track(NAME) is fresh


def test_a_header_for_every_property_stream() -> None:
    track = Track(NAME)
    wire, _, _ = served(track)
    track.subgroup(0, priority=7, has_properties=True).object(0, b"")
    header, _ = SubgroupHeader.decode(wire.pulled(data_streams(wire)[0])[0])
    assert (header.priority, header.has_properties) == (7, True)
    default = Track(OTHER, TrackProperties(default_publisher_priority=9))
    other, _, _ = served(default)
    default.subgroup(0).object(0, b"")
    header, _ = SubgroupHeader.decode(other.pulled(data_streams(other)[0])[0])
    assert header.priority == 9


# -- catalogs ------------------------------------------------------------------------------------


def test_unknown_tracks() -> None:
    with pytest.raises(RequestRefused) as refused:
        Catalog().track(NAME)
    assert refused.value.code is RequestCode.DOES_NOT_EXIST


@pytest.mark.rule("M190")
def test_announcing_on_a_connection() -> None:
    world = World(server_handler=Catalog().handler(None))  # type: ignore[arg-type]
    catalog = Catalog()
    refused: list[Any] = []
    catalog.on_refused = lambda namespace, error: refused.append((namespace, error.code))
    world.run(1)
    catalog.announce((b"a",))
    catalog.announce_on(world.server)  # type: ignore[arg-type]
    catalog.announce((b"b",))
    catalog.announce((b"b",))
    assert len(catalog._announced[world.server]) == 2  # type: ignore[index]
    world.run()
    # The peer takes no announcements.
    assert refused == [((b"a",), RequestCode.NOT_SUPPORTED), ((b"b",), RequestCode.NOT_SUPPORTED)]
    assert not catalog._announced[world.server]  # type: ignore[index]
    catalog.withdraw((b"a",))
    catalog.withdraw((b"never",))
    catalog.forget(world.server)  # type: ignore[arg-type]
    catalog.announce((b"c",))
    assert not catalog._announced


def test_announcements_stop_when_the_peer_goes_away() -> None:
    catalog = Catalog()
    world = World()
    world.run(1)
    catalog.announce_on(world.server)  # type: ignore[arg-type]
    world.client.session.goaway()
    world.run(1)
    catalog.announce((b"a",))  # says nothing on that session, and breaks nothing
    assert not catalog._announced[world.server]  # type: ignore[index]
    world.pair.kill()
    world.run()
    catalog.announce((b"b",))
    assert not catalog._announced[world.server]  # type: ignore[index]


def test_a_withdrawn_announcement_is_taken_back() -> None:
    class Accepting(Unserved):
        """Accepts announcements and counts those that stand."""

        def __init__(self) -> None:
            self.standing: list[Any] = []

        def on_publish_namespace(self, request: Any) -> None:
            self.standing.append(request.namespace)
            request.on_end = lambda: self.standing.remove(request.namespace)
            request.accept()

    handler = Accepting()
    world = World(client_handler=handler)
    catalog = Catalog()
    world.run(1)
    catalog.announce((b"a",))
    catalog.announce((b"b",))
    catalog.announce_on(world.server)  # type: ignore[arg-type]
    world.run(1)
    assert sorted(handler.standing) == [(b"a",), (b"b",)]
    catalog.withdraw((b"a",))
    world.run(1)
    assert handler.standing == [(b"b",)]
    world.pair.kill()
    world.run()
    assert not handler.standing
    assert not world.client.leftovers()
    assert not world.server.leftovers()


@pytest.mark.rule("M104", "M105", "M112")
def test_interests_between_two_sessions() -> None:
    world = World()
    world.catalog.announce((b"live", b"1"))
    world.run(1)
    listener = Listener()
    request = world.client.session.subscribe_namespace((b"live",), NO_PARAMETERS, listener)
    world.run(1)
    world.catalog.announce((b"live", b"2"))
    world.catalog.withdraw((b"live", b"1"))
    world.run(1)
    assert listener.names == [(b"live", b"2")]
    assert listener.lost == [(b"live", b"1")]
    request.cancel()
    world.run(1)
    assert not world.catalog._interests
    again = Listener()
    world.client.session.subscribe_namespace((b"live",), NO_PARAMETERS, again)
    world.run(1)
    assert again.names == [(b"live", b"2")]
    world.pair.kill()
    world.run()
    assert [type(error) for error in again.heard] == [SessionClosed]
    assert not world.catalog._interests


@pytest.mark.parametrize("payload", ["text", 7, None, [b"x"]])
def test_a_payload_that_is_not_octets_is_refused_where_it_is_given(payload: Any) -> None:
    """Given on, it would end the session of whoever reads it."""
    subgroup = Track(FullTrackName((b"a",), b"b")).subgroup(0)
    with pytest.raises(Misuse, match=f"payload of {type(payload).__name__}"):
        subgroup.object(0, payload)


@pytest.mark.parametrize(
    ("namespace", "name", "match"),
    [
        (("a",), b"b", "'a' in a name"),
        ((b"a",), "b", "'b' in a name"),
        (b"abc", b"b", "give a tuple"),
        ("abc", b"b", "give a tuple"),
        ((b"a", 7), b"b", "7 in a name"),
    ],
)
def test_names_that_are_not_octets_are_refused_where_they_are_given(
    namespace: Any, name: Any, match: str
) -> None:
    """Kept, they would end the session of whoever asks for what is there."""
    with pytest.raises(Misuse, match=match):
        Track(FullTrackName(namespace, name))
    if name == b"b":
        with pytest.raises(Misuse, match=match):
            Catalog().announce(namespace)
