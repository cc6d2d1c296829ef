"""A track of our own: its objects, kept as references, and the subscriptions it serves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from moqt.codec.fields import check_name
from moqt.codec.properties import TrackProperties, check_object_properties
from moqt.errors import (
    DoneCode,
    MalformedTrack,
    Misuse,
    ProtocolViolation,
    StreamCode,
)
from moqt.model import (
    MAX_VI64,
    FullTrackName,
    GroupOrder,
    Location,
    LocationRange,
    ObjectHead,
    ObjectStatus,
    StoredObject,
    SubgroupHead,
)
from moqt.session.checks import check_own_namespace
from transport.errors import StreamAbort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moqt.model import ObjectSink
    from moqt.session.publications import IncomingSubscribe, PublisherHalf
    from moqt.session.publishing import OutgoingPublish
    from transport.api import BytesLike

_NO_PROPERTIES: Final = TrackProperties()
_LAST: Final = Location(MAX_VI64, MAX_VI64)


class Track:
    """A track of our own: keeps every object it has published, as references, and serves it.

    Payload views must not change while the track lives. A TrackSource.
    """

    def __init__(self, name: FullTrackName, properties: TrackProperties = _NO_PROPERTIES) -> None:
        check_name(name.namespace, name.name)
        check_own_namespace(name.namespace)
        self._name = name
        self._properties = properties.encode()
        self._order = properties.default_publisher_group_order
        self._default_priority = properties.default_publisher_priority
        self._groups: dict[int, list[StoredObject]] = {}
        self._opened: set[tuple[int, int]] = set()
        self._largest: Location | None = None
        self._final: Location | None = None
        self._done: tuple[DoneCode, str] | None = None
        self._discarded = False
        self._subscriptions: set[PublisherHalf] = set()
        self._dynamic_groups = properties.dynamic_groups
        #: Of a track with dynamic groups: a subscriber wants a new group, soon; the value is 0 or
        #: its largest known group plus one (draft-22 §3.5.1).
        self.on_new_group: Callable[[int], None] | None = None
        self._writers: set[SubgroupWriter] = set()

    # -- TrackSource -----------------------------------------------------------------------------

    @property
    def name(self) -> FullTrackName:
        """Full Track Name."""
        return self._name

    @property
    def properties(self) -> bytes:
        """Track Properties as octets."""
        return self._properties

    @property
    def largest(self) -> Location | None:
        """Largest Object."""
        return self._largest

    @property
    def ended(self) -> bool:
        """True when an End of Track object has been published."""
        return self._final is not None

    def last_within(self, within: LocationRange) -> Location | None:
        """The last object of the range that a fetch would deliver."""
        for group in sorted(self._groups, reverse=True):
            if within.start.group <= group <= (within.end or _LAST).group:
                for stored in reversed(self._groups[group]):
                    head = stored.head
                    if head.status is ObjectStatus.NORMAL and head.location in within:
                        return head.location
        return None

    def objects(
        self,
        within: LocationRange,
        order: GroupOrder,
        wake: Callable[[], None],
        fill_timeout: int | None = None,
    ) -> Iterator[StoredObject]:
        """Objects of the range, one by one; never "not yet", since all of it is here."""
        self._still_kept()
        start, end = within.start, within.end or _LAST
        groups = sorted(self._groups)
        chosen = groups[bisect_left(groups, start.group) : bisect_right(groups, end.group)]
        if order is GroupOrder.DESCENDING:
            chosen.reverse()
        for group in chosen:
            self._still_kept()
            for stored in tuple(self._groups[group]):
                self._still_kept()
                head = stored.head
                place = head.group, head.object
                if head.status is ObjectStatus.NORMAL and start <= place <= end:
                    yield stored

    # -- producing -------------------------------------------------------------------------------

    def subgroup(
        self,
        group: int,
        subgroup: int = 0,
        *,
        priority: int | None = None,
        has_properties: bool = False,
    ) -> SubgroupWriter:
        """Open a subgroup, once; its objects are written in ascending Object ID.

        ``priority`` None is the track's default. Raises Misuse for numbers outside their range.
        """
        self._still_open()
        chosen = self._default_priority if priority is None else priority
        if not (0 <= group <= MAX_VI64 and 0 <= subgroup <= MAX_VI64 and 0 <= chosen <= 255):
            raise Misuse(f"{group}, {subgroup}, {chosen}: ids end at 2^64-1, priorities at 255")
        if (group, subgroup) in self._opened:
            raise Misuse(f"subgroup {subgroup} of group {group} was opened before: a stream each")
        self._opened.add((group, subgroup))
        writer = SubgroupWriter(self, group, subgroup, chosen, has_properties)
        self._writers.add(writer)
        for request in self._subscriptions:
            writer.join(request)
        return writer

    def end(self, code: DoneCode = DoneCode.TRACK_ENDED, reason: str = "") -> None:
        """PUBLISH_DONE to every subscriber; FETCH is still served. Open subgroups are reset."""
        if self._done is None:
            self._done = (code, reason)
            for writer in tuple(self._writers):
                writer.abort(StreamCode.CANCELLED)
            for request in tuple(self._subscriptions):
                request.done(code, reason)

    def discard(self) -> None:
        """Let go of every object: running fetches are reset, subscriptions get what is queued."""
        self.end(DoneCode.INTERNAL_ERROR, "the track was withdrawn")
        self._discarded = True
        self._groups.clear()

    @property
    def octets(self) -> int:
        """Payload octets kept."""
        return sum(stored.head.length for group in self._groups.values() for stored in group)

    # -- serving ---------------------------------------------------------------------------------

    @property
    def order(self) -> GroupOrder:
        """DEFAULT_PUBLISHER_GROUP_ORDER."""
        return self._order

    def attach(self, request: IncomingSubscribe) -> None:
        """Accept a SUBSCRIBE; everything after Largest Object goes to it live."""
        self._listen(request)
        request.accept(self, self._order)
        self._serve(request)

    def offer(self, request: OutgoingPublish) -> None:
        """Serve a PUBLISH of this track."""
        self._listen(request)
        self._serve(request)

    def notify(self) -> None:
        """Tell every subscriber how far the track has come (draft-22 §9.10)."""
        for request in tuple(self._subscriptions):
            request.notify()

    def _listen(self, request: PublisherHalf) -> None:
        request.on_end = lambda: self._detach(request)
        if self._dynamic_groups:
            request.on_new_group = self._new_group

    def _new_group(self, wanted: int) -> None:
        """Only what the subscriber does not have yet is a request (draft-22 §3.5.1)."""
        current = -1 if self._largest is None else self._largest.group
        if self.on_new_group is not None and (not wanted or wanted > current):
            self.on_new_group(wanted)

    def _serve(self, request: PublisherHalf) -> None:
        if not request.active:
            return
        self._subscriptions.add(request)
        for writer in self._writers:
            writer.join(request)
        if self._done is not None:
            request.done(*self._done)

    def _detach(self, request: PublisherHalf) -> None:
        self._subscriptions.discard(request)
        for writer in self._writers:
            writer.leave(request)

    def _keep(self, stored: StoredObject) -> None:
        """Store one object; Misuse when it contradicts what was published before."""
        self._still_open()
        head = stored.head
        place = head.location
        kept = self._groups.get(head.group, [])
        at = len(kept)
        if kept and head.object <= kept[-1].head.object:
            at = bisect_left(kept, head.object, key=_object_id)
        if self._final is not None and place > self._final:
            raise Misuse(f"object {place} lies beyond the end of the track at {self._final}")
        if at < len(kept) and kept[at].head.object == head.object:
            raise Misuse(f"object {place} was published before: one payload for ever")
        if at and kept[at - 1].head.status is ObjectStatus.END_OF_GROUP:
            raise Misuse(f"object {place} lies beyond the end of its group")
        beyond = self._largest is not None and place < self._largest
        ends_group = head.status is ObjectStatus.END_OF_GROUP and at < len(kept)
        if ends_group or (head.status is ObjectStatus.END_OF_TRACK and beyond):
            raise Misuse(f"an end at {place}: objects beyond it have been published")
        kept.insert(at, stored)
        self._groups[head.group] = kept
        if head.status is ObjectStatus.END_OF_TRACK:
            self._final = place
        if self._largest is None or place > self._largest:
            self._largest = place

    def _still_kept(self) -> None:
        if self._discarded:
            raise StreamAbort(StreamCode.INTERNAL_ERROR)

    def _still_open(self) -> None:
        if self._done is not None or self._discarded:
            raise Misuse("the track has ended")


def _object_id(stored: StoredObject) -> int:
    return stored.head.object


def _octets(view: BytesLike) -> BytesLike:
    """``view`` counted in octets, not in items."""
    if isinstance(view, memoryview) and (view.ndim != 1 or view.itemsize != 1):
        if not view.c_contiguous:
            raise Misuse("a payload view must be C-contiguous: copy the array first")
        return view.cast("B")
    if not isinstance(view, bytes | bytearray | memoryview):
        raise Misuse(f"a payload of {type(view).__name__}: give bytes, bytearray or memoryview")
    return view


class SubgroupWriter:
    """One subgroup being produced; written to the store and to every subscription at once."""

    __slots__ = (
        *("_group", "_has_properties", "_last", "_over"),
        *("_priority", "_sinks", "_subgroup", "_track"),
    )

    def __init__(
        self, track: Track, group: int, subgroup: int, priority: int, has_properties: bool
    ) -> None:
        self._track = track
        self._group = group
        self._subgroup = subgroup
        self._priority = priority
        self._has_properties = has_properties
        self._sinks: dict[PublisherHalf, ObjectSink] = {}
        self._last = -1
        self._over = False

    def object(
        self,
        object_id: int,
        *views: BytesLike,
        status: ObjectStatus = ObjectStatus.NORMAL,
        properties: bytes = b"",
    ) -> None:
        """Publish a whole object; ``views`` are its payload, kept as references.

        Raises Misuse when ids do not rise or a status object has a payload (draft-22 §11.1.1).
        """
        payload = tuple(map(_octets, views))
        length = sum(map(len, payload))
        if self._over:
            raise Misuse("the subgroup is finished")
        if not self._last < object_id <= MAX_VI64:
            raise Misuse(f"object {object_id} after {self._last}: ids rise inside a subgroup")
        if status is not ObjectStatus.NORMAL and (length or properties):
            raise Misuse("a status object has neither payload nor properties")
        if properties:
            self._check_properties(properties, Location(self._group, object_id))
        head = ObjectHead(
            self._group, self._subgroup, object_id, self._priority, length, status, properties
        )
        self._track._keep(StoredObject(head, payload))
        self._last = object_id
        for sink in self._sinks.values():
            sink.begin(head)
            for view in payload:
                sink.write(view)
            sink.end()

    def finish(self) -> None:
        """All objects of the subgroup have been published."""
        if not self._over:
            for sink in self._close():
                sink.finish()

    def abort(self, code: int) -> None:
        """Give the subgroup up: subscribers see a reset."""
        if not self._over:
            for sink in self._close():
                sink.abort(code)

    def join(self, request: PublisherHalf) -> None:
        """A subscription takes part from the next object on."""
        head = SubgroupHead(
            self._group,
            self._subgroup,
            self._priority,
            first_object=self._last < 0,
            has_properties=self._has_properties,
        )
        after = None if self._last < 0 else Location(self._group, self._last)
        self._sinks[request] = request.subgroup(head, after)

    def leave(self, request: PublisherHalf) -> None:
        """A subscription is over."""
        self._sinks.pop(request, None)

    def _close(self) -> tuple[ObjectSink, ...]:
        self._over = True
        self._track._writers.discard(self)
        sinks = tuple(self._sinks.values())
        self._sinks.clear()
        return sinks

    def _check_properties(self, properties: bytes, place: Location) -> None:
        if not self._has_properties:
            raise Misuse("open the subgroup with has_properties to publish properties in it")
        try:
            check_object_properties(properties, place)
        except (MalformedTrack, ProtocolViolation) as fault:
            raise Misuse(f"properties of object {place}: {fault}") from None
