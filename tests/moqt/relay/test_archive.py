"""What an archive keeps, knows, refuses and forgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import MalformedTrack
from moqt.model import Location, ObjectHead, ObjectStatus, StoredObject
from moqt.relay import archive as archives
from moqt.relay.cache import Cache
from moqt.relay.spans import MAX_PLACE, last_of, place
from tests.moqt.relay.tracks import AMPLE, NAME, SIXTEEN_SECONDS, SetClock, archive, item

END_OF_GROUP = ObjectStatus.END_OF_GROUP
END_OF_TRACK = ObjectStatus.END_OF_TRACK
#: IMMUTABLE_PROPERTIES (0x0b), inside them 0x38 = 1 or 2.
IMMUTABLE_ONE = bytes.fromhex("0b023801")
IMMUTABLE_TWO = bytes.fromhex("0b023802")
#: Unknown properties that follow these: 0x38 = 1, or 0x3a = 2 and 0x3c = 3.
UNKNOWN_ONE = bytes.fromhex("2d01")
UNKNOWN_TWO = bytes.fromhex("2f020203")


# -- kept and given back --------------------------------------------------------------------------


@pytest.mark.rule("M173", "M220")
@pytest.mark.parametrize("subgroup", [None, 0, 7])
def test_every_field_of_an_object_is_kept(subgroup: int | None) -> None:
    known = archive()
    properties = IMMUTABLE_ONE + UNKNOWN_ONE
    stored = item(3, 5, b"payload", subgroup=subgroup, priority=9, properties=properties)
    assert known.put(stored, 1000.0)
    assert known.get(place((3, 5))) == stored
    assert known.after(0, MAX_PLACE) == stored


@pytest.mark.rule("M220", "M221", "M222")
def test_the_newest_track_properties_replace_all_earlier_ones() -> None:
    known = archive()
    first = SIXTEEN_SECONDS + bytes.fromhex("3401")  # and 0x38 = 1
    known.describe(first)
    assert known.properties == first
    assert known.max_age == 16.0
    newer = bytes.fromhex("3a02")  # 0x3a = 2
    known.describe(newer)
    assert known.properties == newer
    assert known.max_age is None


@pytest.mark.rule("M221", "M222")
def test_the_newest_object_properties_replace_all_earlier_ones() -> None:
    known = archive()
    known.put(item(0, 0, properties=IMMUTABLE_ONE + UNKNOWN_ONE), 1000.0)
    longer = item(0, 0, properties=IMMUTABLE_ONE + UNKNOWN_TWO)
    assert not known.put(longer, 1000.0)
    assert known.get(place((0, 0))) == longer
    shorter = item(0, 0, properties=IMMUTABLE_ONE)
    assert not known.put(shorter, 1000.0)
    assert known.get(place((0, 0))) == shorter
    known.clear()
    assert known.octets == 0


def test_views_are_joined_so_that_nothing_else_is_held() -> None:
    known = archive()
    buffer = bytearray(b"....abcdef....")
    views = (memoryview(buffer)[4:6], memoryview(buffer)[6:10])
    known.put(StoredObject(ObjectHead(0, 0, 0, 0, 6), views), 1000.0)
    buffer[:] = bytes(len(buffer))
    got = known.get(0)
    assert got is not None
    assert got.payload == (b"abcdef",)


def test_objects_come_in_order_however_they_arrived() -> None:
    known = archive()
    for at in [(2, 9), (0, 4), (2, 1), (1, 0), (0, 2)]:
        known.put(item(*at), 1000.0)
    found = []
    at = 0
    while (stored := known.after(at, last_of(2))) is not None:
        found.append(tuple(stored.head.location))
        at = place(stored.head.location) + 1
    assert found == [(0, 2), (0, 4), (1, 0), (2, 1), (2, 9)]
    assert known.groups(0, 1) == [0, 1]
    assert known.groups(1, 9) == [1, 2]
    assert known.after(place((1, 1)), place((2, 0))) is None
    assert known.after(place((2, 9)), place((2, 8))) is None


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=12),
    st.tuples(st.integers(0, 3), st.integers(0, 6)),
    st.tuples(st.integers(0, 3), st.integers(0, 6)),
)
def test_first_and_last_of_a_range(
    there: set[tuple[int, int]], start: tuple[int, int], end: tuple[int, int]
) -> None:
    known = archive()
    for at in there:
        known.put(item(*at), 1000.0)
    known.absent(0, MAX_PLACE)
    within = sorted(at for at in there if start <= at <= end)
    first = known.after(place(start), place(end))
    assert (first and first.head.location) == (within[0] if within else None)
    assert known.last(place(start), place(end)) == (within[-1] if within else None)


def test_the_last_of_a_range_is_not_known_while_something_behind_it_is_not() -> None:
    known = archive()
    known.put(item(0, 0), 1000.0)
    assert known.last(0, place((0, 1))) is None
    known.absent(place((0, 1)), place((0, 1)))
    assert known.last(0, place((0, 1))) == Location(0, 0)
    known.put(item(0, 3), 1000.0)
    assert known.last(0, place((0, 3))) == Location(0, 3)
    assert known.last(0, place((0, 2))) is None


# -- what is known --------------------------------------------------------------------------------


def test_the_end_of_a_group_makes_the_rest_of_it_known() -> None:
    known = archive()
    known.put(item(4, 0), 1000.0)
    assert known.put(item(4, 2, status=END_OF_GROUP), 1000.0)
    assert list(known.known) == [
        (place((4, 0)), place((4, 0))),
        (place((4, 2)), last_of(4)),
    ]
    assert known.final is None
    assert known.get(place((4, 2))) is None
    assert known.after(place((4, 1)), last_of(4)) is None
    told = known.after(place((4, 1)), last_of(4), statuses=True)
    assert told is not None
    assert told.head.status is END_OF_GROUP


def test_the_end_of_the_track_makes_all_beyond_known() -> None:
    known = archive()
    known.put(item(0, 0), 1000.0)
    known.put(item(0, 1, status=END_OF_TRACK), 1000.0)
    assert list(known.known) == [(0, MAX_PLACE)]
    assert known.final == Location(0, 1)
    assert known.complete


def test_complete_from_its_first_place_and_no_longer_once_a_group_went() -> None:
    known = archive()
    known.ends_at(Location(3, 0))
    assert not known.complete
    known.put(item(2, 0), 1000.0)
    known.put(item(3, 0), 1000.0)
    assert not known.complete
    known.absent(place((2, 1)), last_of(2))
    assert known.complete
    known.evict(2)
    assert not known.complete


def test_largest_only_advances_and_not_by_what_is_put() -> None:
    known = archive()
    known.put(item(9, 9), 1000.0)
    assert known.largest is None
    known.advance(Location(3, 1))
    known.advance(Location(2, 8))
    assert known.largest == Location(3, 1)


@pytest.mark.rule("M172")
def test_an_object_recorded_as_non_existent_is_not_taken() -> None:
    known = archive()
    known.absent(place((1, 0)), place((1, 9)))
    assert not known.put(item(1, 4), 1000.0)
    assert known.get(place((1, 4))) is None
    assert (known.refused, known.objects) == (1, 0)
    assert known.put(item(1, 10), 1000.0)


@pytest.mark.rule("M419")
def test_a_status_says_more_than_a_gap_and_is_kept_inside_one() -> None:
    known = archive()
    known.absent(place((1, 1)), last_of(1))
    assert known.put(item(1, 1, status=END_OF_GROUP), 1000.0)
    assert known.after(place((1, 0)), last_of(1), statuses=True) is not None


def test_an_object_that_exists_wins_over_a_gap() -> None:
    known = archive()
    known.put(item(1, 4), 1000.0)
    known.absent(place((1, 0)), last_of(1))
    assert not known.put(item(1, 4, status=END_OF_GROUP), 1000.0)
    assert known.get(place((1, 4))) == item(1, 4)


def test_gaps_beyond_reason_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_ABSENT", 3)
    known = archive()
    known.put(item(0, 0), 1000.0)
    for number in range(2, 40, 2):
        known.absent(place((0, number)), place((0, number)))
    assert len(known.known) == 4
    known.put(item(7, 0), 1000.0)
    known.evict(0)
    for number in range(2, 40, 2):
        known.absent(place((3, number)), place((3, number)))
        assert len(known.known) <= 4
    assert known.get(place((7, 0))) is not None


# -- malformed tracks -----------------------------------------------------------------------------


@pytest.mark.rule("M470")
@pytest.mark.parametrize(
    "other",
    [
        item(1, 1, b"abc", subgroup=2),
        item(1, 1, b"abc", subgroup=None),
        item(1, 1, b"abc", priority=2),
        item(1, 1, b"abd"),
        item(1, 1, b"abcd"),
        item(1, 1, b""),
        item(1, 1, b"abc", properties=IMMUTABLE_TWO),
    ],
    ids=["subgroup", "mode", "priority", "payload", "longer", "empty", "immutable"],
)
def test_a_contradicting_copy_is_not_kept(other: StoredObject) -> None:
    known = archive()
    first = item(1, 1, b"abc", properties=IMMUTABLE_ONE if other.head.properties else b"")
    known.put(first, 1000.0)
    with pytest.raises(MalformedTrack, match=r"object \(1, 1\) came before"):
        known.put(other, 1000.0)
    assert known.get(place((1, 1))) == first
    assert known.objects == 1


def test_the_same_copy_changes_nothing_however_it_is_cut() -> None:
    known = archive()
    known.put(item(1, 1, b"abc"), 1000.0)
    octets = known.octets
    cut = StoredObject(item(1, 1, b"abc").head, (b"a", memoryview(b"bc")))
    assert not known.put(cut, 1000.0)
    assert (known.octets, known.objects) == (octets, 1)


@pytest.mark.rule("M470")
def test_nothing_beyond_an_end_is_kept() -> None:
    known = archive()
    known.put(item(1, 3, status=END_OF_GROUP), 1000.0)
    known.put(item(2, 0, status=END_OF_TRACK), 1000.0)
    with pytest.raises(MalformedTrack, match="beyond the end of its group"):
        known.put(item(1, 4), 1000.0)
    with pytest.raises(MalformedTrack, match="beyond the end of the track"):
        known.put(item(2, 1), 1000.0)
    known.evict(2)
    with pytest.raises(MalformedTrack, match="beyond the end of the track"):
        known.put(item(2, 1), 1000.0)
    assert known.after(0, MAX_PLACE) is None


@pytest.mark.rule("M470")
@pytest.mark.parametrize("status", [END_OF_GROUP, END_OF_TRACK])
def test_an_end_before_what_is_stored_is_not_kept(status: ObjectStatus) -> None:
    known = archive()
    known.put(item(1, 4), 1000.0)
    with pytest.raises(MalformedTrack, match=r"before object \(1, 4\)"):
        known.put(item(1, 3, status=status), 1000.0)
    assert known.final is None
    assert not known.known.holds(place((1, 3)))
    known.put(item(1, 5, status=status), 1000.0)


def test_an_end_told_by_a_fetch_before_what_is_stored() -> None:
    known = archive()
    known.put(item(1, 4), 1000.0)
    with pytest.raises(MalformedTrack, match="an end of the track"):
        known.ends_at(Location(1, 3))
    known.ends_at(Location(1, 4))
    assert known.final == Location(1, 4)


# -- age ------------------------------------------------------------------------------------------


class Aging:
    """An archive whose objects last 16 seconds."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.known = archives.Archive(Cache(AMPLE), NAME, self.clock)
        self.known.describe(SIXTEEN_SECONDS)


@pytest.mark.rule("M398", "M399")
def test_an_object_too_old_is_unknown_not_absent() -> None:
    aging = Aging()
    known, clock = aging.known, aging.clock
    known.put(item(1, 0), 1000.0)
    known.put(item(1, 1), 1003.0)
    clock.now = 1015.9
    assert known.get(place((1, 0))) is not None
    clock.now = 1016.0
    assert known.get(place((1, 0))) is None
    assert known.after(0, place((1, 0))) is None
    assert known.known.missing(place((1, 0)), place((1, 1))) == [(place((1, 0)), place((1, 0)))]
    assert known.get(place((1, 1))) is not None
    assert known.put(item(1, 0), 1016.0), "it may come again, and is not refused as absent"
    clock.now = 1019.0
    assert known.groups(1, 1) == [1]
    clock.now = 1032.0
    assert known.groups(1, 1) == []
    assert (known.octets, known.objects) == (0, 0)


@pytest.mark.rule("M398")
def test_an_age_told_later_counts_for_what_is_here() -> None:
    aging = Aging()
    known, clock = aging.known, aging.clock
    known.describe(b"")
    known.put(item(1, 0), 1000.0)
    clock.now = 1020.0
    assert known.get(place((1, 0))) is not None
    known.describe(SIXTEEN_SECONDS)
    assert not known.known.holds(place((1, 0)))
    assert known.after(0, MAX_PLACE) is None


@pytest.mark.rule("M398")
def test_a_second_copy_does_not_make_an_object_younger() -> None:
    aging = Aging()
    aging.known.put(item(1, 0), 1000.0)
    aging.clock.now = 1010.0
    assert not aging.known.put(item(1, 0), 1010.0)
    aging.clock.now = 1017.0
    assert aging.known.get(place((1, 0))) is None


def test_what_was_evicted_leaves_no_trace_in_the_ages() -> None:
    aging = Aging()
    for group in range(1000):
        aging.known.put(item(group, 0), 1000.0)
        aging.known.evict(group)
    assert len(aging.known._aging) < 200
    aging.known.put(item(5, 0), 1010.0)
    aging.clock.now = 1017.0
    assert aging.known.get(place((5, 0))) is not None, "the age of its forerunner is not its own"


# -- forgetting -----------------------------------------------------------------------------------


def test_a_group_is_forgotten_whole_with_its_gaps() -> None:
    known = archive()
    known.put(item(1, 0), 1000.0)
    known.put(item(1, 2, status=END_OF_GROUP), 1000.0)
    known.put(item(2, 0), 1000.0)
    known.evict(1)
    assert list(known.known) == [(place((2, 0)), place((2, 0)))]
    assert known.groups(0, 9) == [2]
    assert known.put(item(1, 5), 1000.0), "where it ended is forgotten too"


def test_cleared() -> None:
    known = archive()
    known.absent(0, 10)
    known.put(item(1, 0), 1000.0)
    known.clear()
    assert list(known.known) == []
    assert (known.octets, known.objects) == (0, 0)
    known.evict(1)
