"""Groups that go to disk and come back, and disks that fail."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moqt.errors import Misuse
from moqt.model import ObjectStatus
from moqt.relay import spill as spills
from moqt.relay.archive import Archive
from moqt.relay.cache import GROUP_COST, OBJECT_COST, Cache
from moqt.relay.spans import MAX_PLACE, place
from moqt.relay.spill import Spill
from tests.moqt.relay.tracks import NAME, SIXTEEN_SECONDS, SetClock, archive, item

KIB = bytes(range(256)) * 64
LONE = len(KIB) + OBJECT_COST + GROUP_COST


class World:
    """A track whose cache has room for ``room`` groups of one object in memory."""

    def __init__(self, directory: Path, room: int, budget: int = 1 << 20) -> None:
        self.directory = directory
        self.spill = Spill(directory, budget)
        self.cache = Cache(room * LONE, self.spill)
        self.clock = SetClock()
        self.known = Archive(self.cache, NAME, self.clock)

    def files(self) -> list[Path]:
        """What lies in the directory."""
        return sorted(self.directory.iterdir())


def test_what_memory_has_no_room_for_comes_back_mapped(tmp_path: Path) -> None:
    world = World(tmp_path, room=6)
    for group in range(8):
        world.known.put(item(group, 0, KIB + bytes([group]), properties=b"\x38\x01"), 1000.0)
        world.known.put(item(group, 1, status=ObjectStatus.END_OF_GROUP), 1000.0)
    assert world.cache.spilled > 0
    assert world.cache.evictions == 0
    for group in range(8):
        stored = world.known.get(place((group, 0)))
        assert stored is not None
        assert b"".join(stored.payload) == KIB + bytes([group])
        assert stored.head.properties == b"\x38\x01"
        assert world.known.after(place((group, 1)), MAX_PLACE, statuses=True) is not None
    mapped = world.known.get(0)
    assert mapped is not None
    assert isinstance(mapped.payload[0], memoryview)
    assert mapped.payload[0].readonly
    assert world.cache.octets <= world.cache.budget


def test_one_group_larger_than_memory_stays_whole(tmp_path: Path) -> None:
    world = World(tmp_path, room=8)
    big = KIB * 2
    for number in range(10):
        world.known.put(item(0, number, big + bytes([number])), 1000.0)
        assert world.cache.octets <= world.cache.budget
    assert world.cache.evictions == 0
    assert len(world.files()) == 1, "all of a group is in one file"
    for number in range(10):
        stored = world.known.get(place((0, number)))
        assert stored is not None
        assert b"".join(stored.payload) == big + bytes([number])
        assert not world.known.put(item(0, number, big + bytes([number])), 1000.0)


def test_a_view_in_use_outlives_its_file(tmp_path: Path) -> None:
    world = World(tmp_path, room=3)
    for group in range(4):
        world.known.put(item(group, 0, KIB), 1000.0)
    stored = world.known.get(0)
    assert stored is not None
    world.known.clear()
    assert world.files() == []
    world.spill.close()
    assert bytes(stored.payload[0]) == KIB


def test_files_are_private_and_removed_at_start_and_close(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "spill"
    world = World(directory, room=2)
    for group in range(3):
        world.known.put(item(group, 0, KIB), 1000.0)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in world.files()] == [0o600] * 2
    left = directory / "moqt-relay-99.spill"
    left.write_bytes(b"of a relay that was killed")
    other = directory / "notes.txt"
    other.write_text("not ours")
    world.spill.close()
    again = Spill(directory, 1)
    assert list(directory.iterdir()) == [other]
    again.close()
    again.close()


def test_two_relays_do_not_share_a_directory(tmp_path: Path) -> None:
    first = Spill(tmp_path, 1)
    with pytest.raises(Misuse, match="in use by another relay"):
        Spill(tmp_path, 1)
    first.close()
    Spill(tmp_path, 1).close()


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(Misuse, match="cannot be used"):
        Spill(file, 1)


# -- full and failing disks -----------------------------------------------------------------------


def test_a_full_directory_forgets_the_oldest(tmp_path: Path) -> None:
    world = World(tmp_path, room=6, budget=2 * len(KIB))
    for group in range(12):
        world.known.put(item(group, 0, KIB), 1000.0)
        assert world.spill.octets <= world.spill.budget
    assert world.cache.evictions > 0
    assert len(world.files()) == 2
    assert world.known.get(0) is None
    assert not world.known.known.holds(0)
    assert world.known.get(place((11, 0))) is not None


def test_a_group_that_no_directory_could_hold_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, room=2, budget=len(KIB) - 1)
    for group in range(3):
        world.known.put(item(group, 0, KIB), 1000.0)
    assert world.files() == []
    assert world.cache.evictions == 1
    assert world.known.groups(0, 9) == [1, 2]


def test_a_directory_that_is_gone_is_survived_and_counted(tmp_path: Path) -> None:
    directory = tmp_path / "spill"
    world = World(directory, room=2)
    directory.rmdir()
    for group in range(4):
        world.known.put(item(group, 0, KIB), 1000.0)
    assert world.spill.failures == 2
    assert world.cache.evictions == 2
    assert world.known.groups(0, 9) == [2, 3]


def test_a_write_that_fails_half_way_keeps_what_was_there(tmp_path: Path) -> None:
    world = World(tmp_path, room=1)
    one, two = item(0, 0, KIB), item(0, 1, KIB[::-1])
    key = (world.known, 0)
    assert world.spill.store(key, [one])
    with _FileSizeLimit(len(KIB) + 100):
        assert not world.spill.store(key, [two])
    assert (world.spill.failures, world.spill.octets) == (1, len(KIB))
    view = world.spill.load(key, 0)
    assert view is not None
    assert bytes(view) == KIB
    assert world.spill.load(key, 1) is None
    assert world.spill.store(key, [two])
    again = world.spill.load(key, 1)
    assert again is not None
    assert bytes(again) == KIB[::-1]


def test_a_first_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    world = World(tmp_path, room=1)
    with _FileSizeLimit(100):
        world.known.put(item(0, 0, KIB), 1000.0)
        world.known.put(item(1, 0, KIB), 1000.0)
    assert world.files() == []
    assert (world.spill.failures, world.spill.octets, world.cache.evictions) == (1, 0, 1)
    assert world.known.groups(0, 9) == [1]


class _FileSizeLimit:
    """The kernel refuses to write beyond ``octets``, as it does on a full disk."""

    def __init__(self, octets: int) -> None:
        self._octets = octets

    def __enter__(self) -> None:
        import resource
        import signal

        self._handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._octets, self._before[1]))

    def __exit__(self, *error: object) -> None:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
        signal.signal(signal.SIGXFSZ, self._handler)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 10)])
def test_a_file_that_is_gone_or_cut_makes_its_objects_unknown(tmp_path: Path, damage) -> None:
    world = World(tmp_path, room=3)
    for number in range(2):
        world.known.put(item(0, number, KIB), 1000.0)
    for group in range(1, 4):
        world.known.put(item(group, 0, KIB), 1000.0)
    damage(next(path for path in world.files() if path.stat().st_size == 2 * len(KIB)))
    found = world.known.after(0, MAX_PLACE)
    assert found is not None
    assert found.head.group > 0
    assert world.spill.failures == 2
    assert not world.known.known.holds(0)
    assert world.known.groups(0, 0) == []


def test_few_files_are_mapped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spills, "MAX_MAPPED", 2)
    world = World(tmp_path, room=10)
    for group in range(14):
        world.known.put(item(group, 0, KIB), 1000.0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for group in range(14):
            assert world.known.get(place((group, 0))) is not None
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_what_is_on_disk_expires_too(tmp_path: Path) -> None:
    world = World(tmp_path, room=3)
    world.known.describe(SIXTEEN_SECONDS)
    for group in range(4):
        world.known.put(item(group, 0, KIB), 1000.0 + group)
    assert len(world.files()) == 2
    world.clock.now = 1016.5
    assert world.known.get(0) is None
    assert len(world.files()) == 1
    world.clock.now = 1030.0
    assert world.known.groups(0, 9) == []
    assert (world.cache.octets, world.spill.octets) == (0, 0)


Step = tuple[str, int, int]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "get", "evict", "old"]),
            st.integers(0, 4),
            st.integers(0, 4),
        ),
        max_size=50,
    ),
    st.integers(1, 6),
    st.integers(0, 6),
)
def test_no_budget_is_overrun_and_nothing_is_mixed_up(
    tmp_path: Path, steps: list[Step], room: int, disk: int
) -> None:
    world = World(Path(tempfile.mkdtemp(dir=tmp_path)), room, disk * len(KIB))
    world.known.describe(bytes.fromhex("0405"))
    for what, group, number in steps:
        payload = bytes([group, number]) * (group * 100 + number)
        if what == "put":
            world.known.put(item(group, number, payload), world.clock.now)
        elif what == "get":
            stored = world.known.get(place((group, number)))
            assert stored is None or b"".join(stored.payload) == payload
        elif what == "evict":
            world.known.evict(group)
        else:
            world.clock.now += number / 1000
        assert world.cache.octets <= world.cache.budget
        assert world.spill.octets <= world.spill.budget
        assert world.spill.octets == sum(path.stat().st_size for path in world.files())
    world.known.clear()
    assert (world.cache.octets, world.cache.objects, world.spill.octets) == (0, 0, 0)
    assert world.files() == []
    world.spill.close()


def test_without_a_spill_nothing_changes() -> None:
    known = archive(2 * LONE)
    for group in range(3):
        known.put(item(group, 0, KIB), 1000.0)
    assert known.groups(0, 9) == [1, 2]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_may_write_to_is_not_taken(tmp_path: Path, mode: int) -> None:
    """A file that is exchanged would be served; one that is cut would end the process."""
    place_of = tmp_path / "spill"
    place_of.mkdir()
    place_of.chmod(mode)
    with pytest.raises(Misuse, match="mode 0700"):
        Spill(place_of, 1 << 20)


def test_what_is_no_file_any_more_is_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, room=6)
    for group in range(8):
        world.known.put(item(group, 0, KIB), 1000.0)
    assert world.cache.spilled > 0
    for path in world.files():
        path.unlink()
        os.mkfifo(path)
    assert world.known.get(place((0, 0))) is None
    assert world.spill.failures == 1
