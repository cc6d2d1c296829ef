"""The byte budget over the archives of all tracks."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from moqt.relay.archive import Archive
    from moqt.relay.spill import Spill

#: Octets that an object costs beside payload and properties, and a group beside its objects.
#: tracemalloc over 10,000 objects that expire (CPython 3.11, 64 bit): 506 each in one group, 1,288
#: in a group each, 551 in a subgroup each; rounded up, since the numbers in their
#: heads were partly shared.
OBJECT_COST: Final = 640
GROUP_COST: Final = 1024
#: Octets that a track costs beside its name and its objects (2,930 with one upstream, measured so),
#: properties up to ``PROPERTIES`` and the requests for it included.
TRACK_COST: Final = 4096
PROPERTIES: Final = 512
#: A finished subgroup that is remembered (760), an interval of places that hold nothing (97).
FINISHED_COST: Final = 768
GAP_COST: Final = 128
#: What tracks keep that they could do without takes this part of the budget (a quarter), or this.
EXTRAS: Final = 4
EXTRAS_LEAST: Final = 1 << 20
#: Heads of groups on disk stay in memory: at most this part of the budget (one half).
DISK_HEADS: Final = 2

Key: TypeAlias = "tuple[Archive, int]"


class Cache:
    """Knows what each group costs and who was used last; forgets whole groups, oldest first.

    ``budget`` in octets. An object is charged before it is kept, so that only one that is larger
    than the budget by itself, or tracks without any object, can exceed it.
    """

    def __init__(self, budget: int, spill: Spill | None = None) -> None:
        self.budget = budget
        self.spill = spill
        #: Charged, in memory.
        self.octets = 0
        self.objects = 0
        #: Groups forgotten for want of room.
        self.evictions = 0
        #: Groups moved to disk.
        self.spilled = 0
        self._groups: OrderedDict[Key, int] = OrderedDict()
        self._on_disk: OrderedDict[Key, int] = OrderedDict()
        self._disk_heads = 0
        self._extras = 0

    def hold(self, octets: int) -> None:
        """A track costs so much, whatever is cached of it; less than 0 when it does no longer."""
        self.octets += octets
        if octets > 0:
            self._make_room(0, None)

    def spare(self, octets: int) -> bool:
        """The same, for what it can do without: False when tracks keep too much of that."""
        limit = max(self.budget // EXTRAS, EXTRAS_LEAST)
        if octets > 0 and self._extras + octets > limit:
            return False
        self._extras += octets
        self.hold(octets)
        return True

    def charge(self, archive: Archive, group: int, octets: int) -> None:
        """Make room for ``octets`` more of a group, which becomes the last to be evicted.

        Its own earlier objects are forgotten when nothing else is left to forget.
        """
        key = (archive, group)
        groups = self._groups
        charged = groups.get(key)
        more = octets
        if charged is None:
            more += GROUP_COST
        else:
            groups.move_to_end(key)
        if self.octets + more > self.budget:
            self._make_room(more, key)
            charged = groups.get(key)
        if charged is None:
            octets += GROUP_COST
            charged = 0
        groups[key] = charged + octets
        self.octets += octets

    def touch(self, archive: Archive, group: int) -> None:
        """The group has been used."""
        key = (archive, group)
        if key in self._groups:
            self._groups.move_to_end(key)
        if self._on_disk and key in self._on_disk:
            self._on_disk.move_to_end(key)

    def refund(self, archive: Archive, group: int, octets: int) -> None:
        """An object of a group that stays is gone."""
        key = (archive, group)
        for table in (self._groups, self._on_disk):
            charged = table.get(key, 0)
            part = min(charged, octets)
            if part:
                table[key] = charged - part
                octets -= part
                self.octets -= part
                if table is self._on_disk:
                    self._disk_heads -= part

    def release(self, archive: Archive, group: int) -> None:
        """Nothing of the group is kept any more."""
        key = (archive, group)
        self.octets -= self._groups.pop(key, 0)
        heads = self._on_disk.pop(key, None)
        if heads is not None:
            self.octets -= heads
            self._disk_heads -= heads
            if self.spill is not None:
                self.spill.drop(key)

    # -- inside ----------------------------------------------------------------------------------

    def _make_room(self, octets: int, current: Key | None) -> None:
        while self.octets + octets > self.budget:
            key = self._victim(current)
            if key is None:
                return
            if key not in self._groups or not self._to_disk(key):
                self.evictions += 1
                key[0].evict(key[1])

    def _victim(self, current: Key | None) -> Key | None:
        """The group to go next: in memory, then on disk, then what is being written itself."""
        groups, on_disk = self._groups, self._on_disk
        oldest = next(iter(on_disk), None)
        if oldest is not None and self._disk_heads * DISK_HEADS > self.budget:
            return oldest
        first = next(iter(groups), None)
        if first is not None and first != current:
            return first
        if current is not None and current in groups:
            return current
        return oldest

    def _to_disk(self, key: Key) -> bool:
        """Move what a group has in memory to the spill, heads excepted; False when it cannot."""
        spill = self.spill
        if spill is None:
            return False
        archive, group = key
        octets = archive.resident(group)
        if not 0 < octets <= spill.budget:
            return False
        while not spill.room(octets):
            oldest = next((k for k in self._on_disk if k != key), None)
            if oldest is None:
                return False
            self.evictions += 1
            oldest[0].evict(oldest[1])
        if not archive.spill(group, spill, key):
            return False
        self.spilled += 1
        charged = self._groups.pop(key)
        heads = charged - octets
        self.octets -= octets
        self._on_disk[key] = self._on_disk.pop(key, 0) + heads
        self._disk_heads += heads
        return True
