"""All that a relay knows of one track: its objects, what does not exist, where it ends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from moqt.codec.properties import IMMUTABLE_PROPERTIES, MAX_CACHE_DURATION, find
from moqt.errors import MalformedTrack
from moqt.model import MAX_VI64, ObjectStatus, StoredObject
from moqt.relay.cache import GAP_COST, OBJECT_COST, PROPERTIES, TRACK_COST
from moqt.relay.groups import Group
from moqt.relay.spans import MAX_PLACE, Spans, last_of, location, place

if TYPE_CHECKING:
    from moqt.model import FullTrackName, Location, ObjectHead
    from moqt.relay.cache import Cache, Key
    from moqt.relay.clock import Clock
    from moqt.relay.spill import Spill

#: Intervals of known places that an archive holds beyond its objects: a peer that declares more
#: gaps than this is not believed, and what it declared is asked for again.
MAX_ABSENT: Final = 4096
#: Entries of the expiry heap beyond the objects there are, before it is rebuilt.
_SLACK: Final = 64

_NORMAL: Final = ObjectStatus.NORMAL


class Archive:
    """The cached part of a track; places are integers as in ``spans``.

    What is not known (neither stored nor known not to exist) has to be asked for upstream.
    """

    def __init__(self, cache: Cache, name: FullTrackName, clock: Clock) -> None:
        self.name = name
        #: Track Properties as they came last (draft-22 §8.4).
        self.properties = b""
        #: MAX_CACHE_DURATION in seconds (draft-22 §10.3); None is as long as there is room.
        self.max_age: float | None = None
        #: Largest Object of what was received or told on subscriptions, not on fetches.
        self.largest: Location | None = None
        #: The track's final object: nothing exists beyond.
        self.final: Location | None = None
        #: The last place of the groups that were here and were forgotten: not what was never here.
        self.forgotten = -1
        self.octets = 0
        self.objects = 0
        #: Objects not taken since they were known not to exist (draft-22 §7.1).
        self.refused = 0
        self._cache = cache
        self._clock = clock
        self._known = Spans()
        self._first = MAX_PLACE
        self._groups: dict[int, Group] = {}
        self._order: list[int] = []
        self._aging: list[tuple[float, int]] = []
        #: Octets that it has been given by ``spare``.
        self.extras = 0
        self._gaps = 0
        self._cost = 0

    @property
    def known(self) -> Spans:
        """Places whose status is known; what has expired is not."""
        if self.max_age is not None:
            self._expire()
        return self._known

    @property
    def complete(self) -> bool:
        """True when everything from the first place ever known to the final one is known."""
        final = self.final
        return (
            final is not None
            and self._first <= place(final)
            and self.known.covers(self._first, place(final))
        )

    # -- what it costs beside its objects ---------------------------------------------------------

    def open(self) -> None:
        """The track is kept by the relay from now on."""
        fields = self.name.namespace
        self._cost = TRACK_COST + len(self.name.name) + sum(map(len, fields)) + 48 * len(fields)
        self._cache.hold(self._cost)

    def close(self) -> None:
        """It is no longer."""
        self.clear()
        self._cache.spare(-self.extras)
        self._cache.hold(-self._cost)
        self.extras = self._cost = self._gaps = 0

    def spare(self, octets: int) -> bool:
        """Keep so much more, or less, of what could be done without; False when that is too much.

        Of a track that the relay does not keep nothing is counted.
        """
        if not self._cost:
            return True
        if not self._cache.spare(octets):
            return False
        self.extras += octets
        return True

    # -- what the track says of itself -----------------------------------------------------------

    def describe(self, properties: bytes) -> bool:
        """The latest Track Properties replace all earlier ones (draft-22 §8.4).

        False, and nothing has changed, when tracks have too many that are long.
        """
        more = max(len(properties), PROPERTIES) - max(len(self.properties), PROPERTIES)
        if not self.spare(more):
            return False
        self.properties = properties
        age = find(properties, MAX_CACHE_DURATION)
        self.max_age = age / 1000 if isinstance(age, int) else None
        self._age()
        return True

    def advance(self, to: Location) -> None:
        """``to`` exists or has existed."""
        if self.largest is None or to > self.largest:
            self.largest = to

    def ends_at(self, final: Location) -> None:
        """Nothing exists beyond ``final``; MalformedTrack when something is stored there."""
        self._none_beyond(place(final) + 1, MAX_PLACE, "track")
        if self.final is None or final < self.final:
            self.final = final
        self._know(place(final) + 1, MAX_PLACE)

    # -- objects in ------------------------------------------------------------------------------

    def put(self, stored: StoredObject, born: float) -> bool:
        """Keep a whole object whose first octet came at ``born``; False when there is no need.

        Its payload is joined. MalformedTrack when it contradicts what is stored (draft-22 §12.1):
        the object is then not kept.
        """
        head = stored.head
        number, at, special = head.group, head.group << 64 | head.object, head.status is not _NORMAL
        if self.max_age is not None:
            self._expire()
        if self._known.holds(at):
            group = self._groups.get(number)
            had = None if group is None else group.objects.get(head.object)
            if had is not None:
                return self._again(had, stored)
            if not special:
                return self._refuse(group, head)
        elif self.final is not None and not special:
            self._beyond(None, head)
        if special:
            self._ends(head, at)
        payload = b"".join(stored.payload)
        cost = len(payload) + len(head.properties) + OBJECT_COST
        self._cache.charge(self, number, cost)  # may evict, even this group
        self._insert(StoredObject(head, (payload,) if payload else ()), born)
        self.octets += cost
        self.objects += 1
        self._cache.objects += 1
        if at < self._first:
            self._first = at
        self._known.add(at, at)
        if special:
            self._end(head, at)
        if self.max_age is not None:
            heappush(self._aging, (born, at))
        return True

    def absent(self, first: int, last: int) -> None:
        """Known not to exist; an object that is stored there stays (it does exist)."""
        if not self._takes_gap():
            oldest = self._order[0] << 64 if self._order else first
            self._known.remove(0, oldest - 1)
            if not self._takes_gap():
                return
        self._know(first, last)

    def _takes_gap(self) -> bool:
        """True when one more interval of known places is within reason."""
        gaps = max(len(self._known) + 1 - self.objects, 0)
        if gaps > MAX_ABSENT or not self.spare((gaps - self._gaps) * GAP_COST):
            return False
        self._gaps = gaps
        return True

    # -- objects out -----------------------------------------------------------------------------

    def get(self, place: int) -> StoredObject | None:
        """The object, status objects excepted; None when it is not here or no longer fresh."""
        if self.max_age is not None:
            self._expire()
        number = place >> 64
        group = self._groups.get(number)
        stored = None if group is None else group.objects.get(place & MAX_VI64)
        if stored is None or stored.head.status is not _NORMAL:
            return None
        self._cache.touch(self, number)
        return self._whole(stored)

    def after(self, place: int, last: int, *, statuses: bool = False) -> StoredObject | None:
        """The first object stored from ``place`` to ``last``, both inclusive."""
        if self.max_age is not None:
            self._expire()
        group = self._groups.get(place >> 64)
        if group is not None and place <= last:
            stored = group.objects.get(place & MAX_VI64)  # whoever reads in order finds it here
            if stored is not None and (statuses or stored.head.status is _NORMAL):
                self._cache.touch(self, place >> 64)
                if stored.payload or not stored.head.length:
                    return stored
        order, at = self._order, bisect_left(self._order, place >> 64)
        while at < len(order) and order[at] << 64 <= last:
            number = order[at]
            stored = self._first_in(number, place - (number << 64), last, statuses=statuses)
            if stored is not None:
                return stored
            at = bisect_right(order, number)
        return None

    def after_in(self, subgroup: int | None, at: int, last: int) -> StoredObject | None:
        """The first object of a subgroup from ``at`` to ``last``, places of its group.

        Statuses included.
        """
        number = at >> 64
        while (group := self._groups.get(number)) is not None:
            ids = group.of(subgroup)
            index = bisect_left(ids, at & MAX_VI64)
            if index == len(ids) or number << 64 | ids[index] > last:
                return None
            self._cache.touch(self, number)
            found = self._whole(group.objects[ids[index]])
            if found is not None:
                return found
        return None

    def last(self, first: int, last: int) -> Location | None:
        """The last object, status objects excepted, from ``first`` to ``last``.

        None when there is none, and while something behind it is not known.
        """
        known = self.known
        since = max(known.since(last), first)
        groups = self._order
        for at in range(bisect_right(groups, last >> 64) - 1, -1, -1):
            number = groups[at]
            if last_of(number) < since:
                break
            group = self._groups[number]
            for index in range(bisect_right(group.ids, last - (number << 64)) - 1, -1, -1):
                found = group.ids[index]
                if number << 64 | found < since:
                    return None
                if group.objects[found].head.status is _NORMAL:
                    return location(number << 64 | found)
        return None

    def groups(self, first_group: int, last_group: int) -> list[int]:
        """The groups in the range, both inclusive, of which something is stored; ascending."""
        if self.max_age is not None:
            self._expire()
        order = self._order
        return order[bisect_left(order, first_group) : bisect_right(order, last_group)]

    # -- objects gone ----------------------------------------------------------------------------

    def evict(self, group: int) -> None:
        """Forget a group: its objects, and what was known not to exist, become unknown."""
        gone = self._groups.pop(group, None)
        if gone is not None:
            self.forgotten = max(self.forgotten, last_of(group))
            del self._order[bisect_left(self._order, group)]
            for stored in gone.objects.values():
                self._count_out(stored.head)
        self._known.remove(group << 64, last_of(group))
        self._cache.release(self, group)

    def clear(self) -> None:
        """Forget everything that is stored or known not to exist."""
        for group in tuple(self._order):
            self.evict(group)
        self._known.clear()
        self._aging.clear()

    # -- for the cache ---------------------------------------------------------------------------

    def resident(self, group: int) -> int:
        """Octets of payload that the group has in memory."""
        objects = self._groups[group].objects.values()
        return sum(len(view) for stored in objects for view in stored.payload)

    def spill(self, group: int, spill: Spill, key: Key) -> bool:
        """Move the payloads of a group to ``spill``; False when they stay here."""
        objects = self._groups[group].objects
        here = [stored for stored in objects.values() if stored.payload]
        if not spill.store(key, here):
            return False
        for stored in here:
            objects[stored.head.object] = StoredObject(stored.head, ())
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _insert(self, stored: StoredObject, born: float) -> None:
        head = stored.head
        number = head.group
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = Group()
            if not self._order or number > self._order[-1]:
                self._order.append(number)
            else:
                insort(self._order, number)
        group.add(stored, born)

    def _know(self, first: int, last: int) -> None:
        if first < self._first:
            self._first = first
        self._known.add(first, last)

    def _first_in(self, number: int, at: int, last: int, *, statuses: bool) -> StoredObject | None:
        """The first object of group ``number`` with an ID of at least ``at``."""
        while (group := self._groups.get(number)) is not None:
            ids, objects = group.ids, group.objects
            index = bisect_left(ids, at)
            if not statuses:
                while index < len(ids) and objects[ids[index]].head.status is not _NORMAL:
                    index += 1
            if index == len(ids) or number << 64 | ids[index] > last:
                return None
            self._cache.touch(self, number)
            found = self._whole(objects[ids[index]])
            if found is not None:
                return found  # else it could not be read back and is forgotten: the next one
        return None

    def _whole(self, stored: StoredObject) -> StoredObject | None:
        """With its payload, from disk if it must be."""
        head = stored.head
        if stored.payload or not head.length:
            return stored
        spill = self._cache.spill
        view = None if spill is None else spill.load((self, head.group), head.object)
        if view is None:
            self._drop(place(head.location))
            return None
        return StoredObject(head, (view,))

    def _again(self, had: StoredObject, new: StoredObject) -> bool:
        """A second copy must be the same, mutable properties excepted (draft-22 §7.1)."""
        old, head = had.head, new.head
        if head.status is not old.status:
            # It has ceased to exist, or comes after its end: what is here stays.
            self.refused += 1
            return False
        where = tuple(head.location)
        if head.subgroup != old.subgroup:
            raise MalformedTrack(f"object {where} came before in another subgroup or mode")
        if head.priority != old.priority:
            raise MalformedTrack(f"object {where} came before with another priority")
        if head.length != old.length or self._differs(had, new):
            raise MalformedTrack(f"object {where} came before with another payload")
        if head.properties != old.properties:
            self._renew(had, head)
        return False

    def _differs(self, had: StoredObject, new: StoredObject) -> bool:
        whole = self._whole(had)
        return whole is not None and b"".join(whole.payload) != b"".join(new.payload)

    def _renew(self, had: StoredObject, head: ObjectHead) -> None:
        """The newest properties replace the stored ones (draft-22 §8.4)."""
        old = had.head.properties
        if find(old, IMMUTABLE_PROPERTIES) != find(head.properties, IMMUTABLE_PROPERTIES):
            raise MalformedTrack(
                f"object {tuple(head.location)} came before with other immutable properties"
            )
        more = len(head.properties) - len(old)
        if more > 0:
            self._cache.charge(self, head.group, more)
        group = self._groups.get(head.group)
        if group is None:  # it had to go to make room for them
            self._cache.release(self, head.group)
            return
        if more < 0:
            self._cache.refund(self, head.group, -more)
        self.octets += more
        group.objects[head.object] = StoredObject(head, group.objects[head.object].payload)

    def _refuse(self, group: Group | None, head: ObjectHead) -> bool:
        """What is known not to exist is not taken (draft-22 §7.1)."""
        self._beyond(group, head)
        self.refused += 1
        return False

    def _beyond(self, group: Group | None, head: ObjectHead) -> None:
        """MalformedTrack for an object beyond the end of its group or track."""
        where = head.location
        if self.final is not None and where > self.final:
            raise MalformedTrack(f"object {tuple(where)} beyond the end of the track")
        if group is not None and group.end is not None and head.object > group.end:
            raise MalformedTrack(f"object {tuple(where)} beyond the end of its group")

    def _ends(self, head: ObjectHead, at: int) -> None:
        """MalformedTrack when something is stored beyond the end that ``head`` declares."""
        if head.status is ObjectStatus.END_OF_TRACK:
            self._none_beyond(at, MAX_PLACE, "track")
        else:
            self._none_beyond(at, last_of(head.group), "group")

    def _none_beyond(self, first: int, last: int, what: str) -> None:
        order, at = self._order, bisect_left(self._order, first >> 64)
        while at < len(order) and order[at] << 64 <= last:
            number = order[at]
            group = self._groups[number]
            for found in group.ids[bisect_left(group.ids, first - (number << 64)) :]:
                if group.objects[found].head.status is _NORMAL:
                    raise MalformedTrack(
                        f"an end of the {what} at {tuple(location(first))}, "
                        f"before object {(number, found)}"
                    )
            at += 1

    def _end(self, head: ObjectHead, at: int) -> None:
        if head.status is ObjectStatus.END_OF_TRACK:
            self.final = head.location
            self._know(at, MAX_PLACE)
        else:
            self._groups[head.group].end = head.object
            self._know(at, last_of(head.group))

    def _age(self) -> None:
        """Build the expiry heap anew."""
        self._aging.clear()
        if self.max_age is None:
            return
        for number, group in self._groups.items():
            self._aging += [(born, number << 64 | found) for found, born in group.born.items()]
        heapify(self._aging)

    def _expire(self) -> None:
        aging, age = self._aging, self.max_age
        if not aging or age is None:
            return
        if len(aging) > 2 * self.objects + _SLACK:
            self._age()
        now = self._clock.time()
        while aging and aging[0][0] + age <= now:
            born, at = heappop(aging)
            group = self._groups.get(at >> 64)
            if group is not None and group.born.get(at & MAX_VI64) == born:
                self._drop(at)

    def _drop(self, at: int) -> None:
        """One object becomes unknown; with the last one of a group all that is known of it."""
        number, found = at >> 64, at & MAX_VI64
        group = self._groups[number]
        if len(group.ids) == 1:
            self.evict(number)
            return
        head, payload = group.remove(found)
        self._known.remove(at, at)
        self._count_out(head)
        held = sum(map(len, payload)) + len(head.properties) + OBJECT_COST
        self._cache.refund(self, number, held)

    def _count_out(self, head: ObjectHead) -> None:
        self.octets -= head.length + len(head.properties) + OBJECT_COST
        self.objects -= 1
        self._cache.objects -= 1
