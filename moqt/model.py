"""The values every part of MOQT speaks in: names, places, objects, filters. No bytes, no state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.api import BytesLike

MAX_VI64: Final = (1 << 64) - 1
#: draft-22 §2.4.1: fields of a namespace, and octets of all fields plus the track name.
MAX_NAMESPACE_FIELDS: Final = 32
MAX_NAME_LENGTH: Final = 4096

#: A Track Namespace: its fields, each of at least one octet. ``codec.fields`` checks the wire,
#: ``check_name`` checks our callers.
TrackNamespace: TypeAlias = tuple[bytes, ...]


class FullTrackName(NamedTuple):
    """Namespace and name together identify a track within a scope (draft-22 §2.4.1)."""

    namespace: TrackNamespace
    name: bytes


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where to repeat a request (draft-22 §9.4.2); an empty ``uri`` is the current session's."""

    uri: str
    name: FullTrackName


class Location(NamedTuple):
    """A place in a track; orders by group, then object (draft-22 §8.2)."""

    group: int
    object: int


#: Where every track begins.
ORIGIN: Final = Location(0, 0)


class GroupOrder(IntEnum):
    """Order of groups in one subscription or fetch (draft-22 §9.20.8)."""

    ASCENDING = 1
    DESCENDING = 2


class ObjectStatus(IntEnum):
    """draft-22 §11.1.1; exists only in subscription delivery."""

    NORMAL = 0x0
    END_OF_GROUP = 0x3
    END_OF_TRACK = 0x4


class GapKind(IntEnum):
    """End-of-range records of a fetch stream (draft-22 §11.4.1.2), by serialization flags."""

    NON_EXISTENT = 0x8C
    UNKNOWN = 0x10C
    TIMED_OUT = 0x20C


class ObjectHead(NamedTuple):
    """Everything about an object except its payload.

    ``subgroup`` is None for Delivery Mode Datagram. ``properties`` are the raw key-value octets
    as they travelled. ``length`` is the payload length in octets.
    """

    group: int
    subgroup: int | None
    object: int
    priority: int
    length: int
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: bytes = b""

    @property
    def location(self) -> Location:
        """Group and object as one ordered value."""
        return Location(self.group, self.object)


class StoredObject(NamedTuple):
    """A whole object as a publisher or cache keeps it; the payload is never joined."""

    head: ObjectHead
    payload: tuple[BytesLike, ...]


class Gap(NamedTuple):
    """A stretch, up to and including ``location``, whose objects will not come on this stream."""

    kind: GapKind
    location: Location


class ObjectSink(Protocol):
    """One stream of objects: the same interface to write and to receive.

    Calls follow ``(begin write* end | gap)* (finish | [begin write*] abort)``. The views of one
    object add up to ``head.length``, are read-only and stay valid as long as they are referenced.
    """

    def begin(self, head: ObjectHead) -> None:
        """An object starts."""
        ...

    def write(self, view: BytesLike) -> None:
        """The next octets of its payload."""
        ...

    def end(self) -> None:
        """The object is whole."""
        ...

    def gap(self, gap: Gap) -> None:
        """Fetch streams only: a range is known not to come."""
        ...

    def finish(self) -> None:
        """The stream ended with FIN."""
        ...

    def abort(self, code: int) -> None:
        """The stream was reset, or its session died (code -1); a begun object is lost."""
        ...


class SubgroupHead(NamedTuple):
    """What a subgroup stream says of itself (draft-22 §11.3.1); priority is resolved."""

    group: int
    subgroup: int
    priority: int
    first_object: bool = False
    end_of_group: bool = False
    has_properties: bool = False


class LocationFilterType(IntEnum):
    """draft-22 §9.20.9."""

    NONE = 0x00
    RELATIVE_START = 0x01
    ABSOLUTE_START = 0x02
    ABSOLUTE_START_GROUP_END = 0x03
    ABSOLUTE_RANGE = 0x04
    NEXT_OBJECT = 0x05


class LocationRange(NamedTuple):
    """Both ends inclusive; ``end`` None is open."""

    start: Location
    end: Location | None

    def __contains__(self, place: object) -> bool:
        if not isinstance(place, tuple):
            return False
        return self.start <= place and (self.end is None or place <= self.end)

    @property
    def empty(self) -> bool:
        """True when no Location can pass."""
        return self.end is not None and self.end < self.start


@dataclass(frozen=True, slots=True)
class LocationFilter:
    """Which Locations pass; resolved once, against the Largest Object of that moment.

    ``start`` is the group count n for RELATIVE_START (object ignored), else a Location.
    """

    type: LocationFilterType
    start: Location = ORIGIN
    end_group_delta: int = 0
    end_object: int = 0

    def on_subscription(self, largest: Location | None) -> LocationRange:
        """Resolve for live delivery (draft-22 §3.3.1)."""
        kind = LocationFilterType
        if self.type is kind.NEXT_OBJECT:
            after = None if largest is None else Location(largest.group, largest.object + 1)
            return LocationRange(after or ORIGIN, None)
        if self.type is kind.RELATIVE_START:
            following = 0 if largest is None else largest.group + 1
            group = min(max(following - self.start.group, 0), MAX_VI64)
            return LocationRange(Location(group, 0), None)
        if self.type is kind.NONE:
            return LocationRange(ORIGIN, None)
        if self.type is kind.ABSOLUTE_START:
            return LocationRange(self.start, None)
        end_object = self.end_object if self.type is kind.ABSOLUTE_RANGE else MAX_VI64
        end = Location(self.start.group + self.end_group_delta, end_object)
        return LocationRange(self.start, end)

    def on_fetch(self, largest: Location | None) -> LocationRange | None:
        """Resolve for FETCH and fill: None when there is nothing to deliver."""
        if largest is None:
            return None
        live = self.on_subscription(largest)
        end = largest if live.end is None else min(live.end, largest)
        found = LocationRange(live.start, end)
        return None if found.empty else found

    @classmethod
    def next_object(cls) -> LocationFilter:
        """From the live edge on (``21 05``)."""
        return cls(LocationFilterType.NEXT_OBJECT)

    @classmethod
    def since(cls, group: int, obj: int = 0) -> LocationFilter:
        """From an absolute Location on."""
        return cls(LocationFilterType.ABSOLUTE_START, Location(group, obj))

    @classmethod
    def groups(cls, first: int, last: int) -> LocationFilter:
        """Whole groups ``first`` to ``last``, both inclusive."""
        return cls(LocationFilterType.ABSOLUTE_START_GROUP_END, Location(first, 0), last - first)

    @classmethod
    def back(cls, groups: int) -> LocationFilter:
        """Relative start: 0 next group, 1 current group, n-1 groups before it."""
        return cls(LocationFilterType.RELATIVE_START, Location(groups, 0))


class RangeFilterType(IntEnum):
    """draft-22 §3.3.2; the values are the parameter types."""

    SUBGROUP = 0x25
    OBJECT_ID = 0x26
    PRIORITY = 0x27
    OBJECT_PROPERTY = 0x28
    TRACK_PROPERTY = 0x29


class Span(NamedTuple):
    """Inclusive; ``last`` None is open upward."""

    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """One Range Filter parameter; no ``spans`` and ``remove`` True is Length 0."""

    type: RangeFilterType
    spans: tuple[Span, ...] = ()
    set_id: int = 0
    property_type: int | None = None
    remove: bool = False

    def admits(self, value: int | None) -> bool:
        """True when ``value`` lies in one of the spans; a missing value never does."""
        return value is not None and any(
            span.first <= value and (span.last is None or value <= span.last) for span in self.spans
        )


#: What a TrackSource hands out.
Piece: TypeAlias = "StoredObject | Gap | BytesLike | None"


class TrackSource(Protocol):
    """A track that can be served: a publisher's own, or a relay's cached one."""

    @property
    def name(self) -> FullTrackName:
        """Full Track Name."""
        ...

    @property
    def properties(self) -> bytes:
        """Track Properties, encoded key-value octets."""
        ...

    @property
    def largest(self) -> Location | None:
        """Largest Object as of now (draft-22 §3.1.4)."""
        ...

    @property
    def ended(self) -> bool:
        """True when ``largest`` is the track's final object."""
        ...

    def last_within(self, within: LocationRange) -> Location | None:
        """The last object of the range that a fetch would deliver; None when there is none."""
        ...

    def objects(
        self,
        within: LocationRange,
        order: GroupOrder,
        wake: Callable[[], None],
        fill_timeout: int | None = None,
    ) -> Iterator[Piece]:
        """Objects of the range in delivery order, status objects left out.

        The payload of an object may be shorter than its length: views of the rest follow. None
        means "not yet": ``wake`` is called when there may be more. ``fill_timeout``: ms to spend on
        what is not here (draft-22 §9.20.5). ``StreamAbort`` raised inside ends the stream with that
        code.
        """
        ...
