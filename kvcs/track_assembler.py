"""One track of a segment: objects from any number of streams, each taken once (kvcs.md §3, §5)."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcs.errors import InvalidInput, ObjectRejected, PublicationConflict, RejectReason
from kvcs.names import Codec, Component, TrackName
from kvcs.payload import HEADER_OCTETS, Expectation, check_header, decode_header, digest_of
from moqt.errors import MalformedTrack
from moqt.model import Location, LocationRange, ObjectHead, ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcs.geometry import Geometry
    from moqt.model import Gap
    from transport.api import BytesLike
#: Members of an enum are slow to look up; these are needed for every object.
_NORMAL: Final = ObjectStatus.NORMAL
_RAW: Final = int(Codec.RAW)


@dataclass(slots=True)
class Counters:
    """What has happened so far; ``objects`` and ``octets`` count verified data.

    ``surplus`` are objects outside the wanted layers and blocks, ``lost`` those cut off by a
    reset, ``gaps`` the ranges that a fetch reported as not coming.
    """

    objects: int = 0
    octets: int = 0
    duplicates: int = 0
    surplus: int = 0
    lost: int = 0
    gaps: int = 0
    rejected: Counter[RejectReason] = field(default_factory=Counter)


class Wanted(NamedTuple):
    """The part of a segment to assemble: which layers, and how many leading blocks of each."""

    geometry: Geometry
    layers: range
    blocks: int


class Plane:
    """K, or V, of all wanted layers.

    Anonymous memory takes pages only as octets arrive; a ``bytearray`` would take all at once, on
    the word of a manifest. Raises InvalidInput when the system has not that much.
    """

    __slots__ = ("_first", "_layer_octets", "_memory", "_size")

    def __init__(self, wanted: Wanted) -> None:
        self._first = wanted.layers[0]
        self._size = wanted.geometry.block_octets(Component.K)
        self._layer_octets = wanted.blocks * self._size
        total = len(wanted.layers) * self._layer_octets
        self._memory = _aside(total)

    def layer(self, layer: int) -> memoryview:
        """The layer's tensor."""
        at = (layer - self._first) * self._layer_octets
        return self._memory[at : at + self._layer_octets]

    def place(self, place: Location) -> memoryview:
        """Where one block of it goes."""
        at = (place.group - self._first) * self._layer_octets + place.object * self._size
        return self._memory[at : at + self._size]


def _aside(octets: int) -> memoryview:
    """Room for a copy that takes pages only as octets arrive; InvalidInput without memory."""
    try:
        return memoryview(mmap.mmap(-1, octets, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"no memory for {octets} octets: {error}") from None


class _Spare(NamedTuple):
    """A verified second copy of an object whose first copy is still arriving."""

    data: memoryview
    digest: bytes


class TrackAssembler:
    """Which objects of a track are verified, which are being written, and by which stream.

    ``planes`` take the sections of an object's data in turn. ``on_change(layer, by)`` reports
    that a layer has gained (1) or lost (-n) verified objects.
    """

    def __init__(
        self,
        name: TrackName,
        wanted: Wanted,
        planes: tuple[Plane, ...],
        counters: Counters,
        on_change: Callable[[int, int], None],
    ) -> None:
        self.name = name
        self.wanted = wanted
        self.counters = counters
        self.verified: dict[Location, bytes] = {}
        #: Per layer from 0 on, the digests that the manifest lists, joined.
        self.listed: tuple[bytes, ...] = ()
        self.ended = False
        self._planes = planes
        self._on_change = on_change
        self._component = int(name.component)
        self._octets = wanted.geometry.block_octets(name.component)
        self._writing: dict[Location, ObjectStream] = {}
        self._copying: dict[Location, ObjectStream] = {}
        self._spares: dict[Location, _Spare] = {}

    def wants(self, place: Location) -> bool:
        """True inside the wanted layers and blocks."""
        return place.group in self.wanted.layers and place.object < self.wanted.blocks

    def expect(self, place: Location, payload_length: int) -> Expectation:
        """What the object at ``place`` must say of itself."""
        return Expectation(
            self._component,
            place.group,
            place.object,
            self.wanted.geometry.token_start(place.object),
            self.wanted.geometry.block_tokens,
            _RAW,
            self._octets,
            payload_length,
            self._listed_digest(place),
        )

    def claim(self, stream: ObjectStream, place: Location) -> list[memoryview]:
        """Where the data of ``place`` go: into the layer, or aside if another copy was first.

        Nowhere (empty) while one is coming in aside: a peer may send any number at once.
        """
        if place in self.verified or place in self._writing:
            if place in self._copying:
                return []
            try:
                aside = _aside(self._octets)
            except InvalidInput:
                return []
            self._copying[place] = stream
            return [aside]
        self._writing[place] = stream
        return [plane.place(place) for plane in self._planes]

    def take(
        self, stream: ObjectStream, place: Location, data: list[memoryview], digest: bytes
    ) -> None:
        """All data of ``place`` have come; their header says ``digest``.

        Raises PublicationConflict when another copy, as whole and as valid, has other octets.
        """
        if not (self._vouched(place, digest) and self._sound(data, digest)):
            self.give_up(stream, place)
            return
        if self._copying.get(place) is stream:
            del self._copying[place]
        owner = self._writing.get(place)
        spare = self._spares.get(place)
        known = self.verified.get(place) if spare is None else spare.digest
        if known is not None and known != digest:
            if owner is stream:
                del self._writing[place], self._spares[place]
            raise PublicationConflict(self.name, place)
        self.counters.duplicates += known is not None
        if owner is stream:
            self._spares.pop(place, None)
            self._accept(place, digest)
        elif owner is not None:
            self._spares[place] = _Spare(data[0], digest)
        elif known is None:
            self._promote(place, _Spare(data[0], digest))

    def give_up(self, stream: ObjectStream, place: Location) -> None:
        """This copy will not be whole: the place is free again, or a spare copy takes it."""
        if self._copying.get(place) is stream:
            del self._copying[place]
        if self._writing.get(place) is not stream:
            return
        del self._writing[place]
        spare = self._spares.pop(place, None)
        if spare is not None and self._vouched(place, spare.digest):
            self._promote(place, spare)

    def list_digests(self, listed: tuple[bytes, ...]) -> None:
        """A newer manifest lists more layers: drop what it contradicts."""
        known, self.listed = len(self.listed), max(self.listed, listed, key=len)
        for layer in range(known, len(self.listed)):
            bad = 0
            for block in range(self.wanted.blocks):
                place = Location(layer, block)
                digest = self.verified.get(place)
                if digest is not None and not self._vouched(place, digest):
                    del self.verified[place]
                    bad += 1
            if bad:
                self.counters.objects -= bad
                self.counters.octets -= bad * self._octets
                self._on_change(layer, -bad)

    def end_of(self, status: ObjectStatus, place: Location) -> None:
        """End of Group at N or after it; End of Track at {L, 0} or in group L-1 (kvcs.md §2).

        A relay may turn End of Track at {L, 0} into End of Group there: the empty group says the
        same. Raises MalformedTrack when the manifest says otherwise.
        """
        layers, blocks = self.wanted.geometry.layers, self.wanted.geometry.blocks
        beyond = place.object >= blocks
        if status is ObjectStatus.END_OF_TRACK:
            fits = place == (layers, 0) or (place.group == layers - 1 and beyond)
            self.ended |= fits
        else:
            fits = (place.group < layers and beyond) or place == (layers, 0)
            self.ended |= place == (layers, 0)
        if not fits:
            raise MalformedTrack(
                f"track {self.name}: {status.name} at group {place.group}, object {place.object},"
                f" but the manifest says {layers} layers of {blocks} blocks"
            )

    def runs_missing(self) -> Iterator[LocationRange]:
        """Runs of missing objects; one that reaches a layer's last block goes on in the next."""
        start: Location | None = None
        end = Location(0, 0)
        for layer in self.wanted.layers:
            for block in range(self.wanted.blocks):
                place = Location(layer, block)
                if place not in self.verified:
                    start, end = start or place, place
                elif start is not None:
                    yield LocationRange(start, end)
                    start = None
        if start is not None:
            yield LocationRange(start, end)

    def _listed_digest(self, place: Location) -> bytes | None:
        if place.group >= len(self.listed):
            return None
        return self.listed[place.group][32 * place.object : 32 * place.object + 32]

    def _vouched(self, place: Location, digest: bytes) -> bool:
        """False, and counted, when the manifest lists another digest."""
        if self._listed_digest(place) in (None, digest):
            return True
        self.counters.rejected[RejectReason.MANIFEST_DIGEST] += 1
        return False

    def _sound(self, data: list[memoryview], digest: bytes) -> bool:
        """False, and counted, when the data are not those that were sent."""
        if digest_of(*data) == digest:
            return True
        self.counters.rejected[RejectReason.DIGEST] += 1
        return False

    def _promote(self, place: Location, spare: _Spare) -> None:
        at = 0
        for plane in self._planes:
            view = plane.place(place)
            view[:] = spare.data[at : at + len(view)]
            at += len(view)
        self._accept(place, spare.digest)

    def _accept(self, place: Location, digest: bytes) -> None:
        self._writing.pop(place, None)
        self.verified[place] = digest
        self.counters.objects += 1
        self.counters.octets += self._octets
        self._on_change(place.group, 1)


class ObjectStream:
    """The sink of one stream: fills the header, then the places of the data, then hands over."""

    __slots__ = (
        *("_at", "_digest", "_header", "_length", "_place", "_places", "_queue"),
        *("_region", "_room", "_track"),
    )

    def __init__(self, track: TrackAssembler) -> None:
        self._track = track
        self._header = memoryview(bytearray(HEADER_OCTETS))
        #: The object that is coming, None between objects and when it is not taken.
        self._place: Location | None = None
        self._length = 0
        self._digest = b""
        #: Where the current octets go, how far it is filled, and where those after it go.
        self._region: memoryview | None = None
        self._at = 0
        self._room = 0
        self._queue: list[memoryview] = []
        #: Where all data of the object go; empty until its header is checked.
        self._places: list[memoryview] = []

    def begin(self, head: ObjectHead) -> None:
        """An object starts; raises MalformedTrack for a status the manifest rules out."""
        place = head.location
        if head.status != _NORMAL:
            self._track.end_of(head.status, place)
        elif not self._track.wants(place):
            self._track.counters.surplus += 1
        else:
            self._place, self._length = place, head.length
            self._fill(self._header)

    def write(self, view: BytesLike) -> None:
        """The next octets; this is the only copy."""
        region = self._region
        if region is None:
            return
        end = self._at + len(view)
        if end <= self._room:
            region[self._at : end] = view
            self._at = end
        else:
            self._cross(memoryview(view))

    def end(self) -> None:
        """The object is whole: verify it; raises PublicationConflict."""
        if not self._places:
            self._check()
        places = self._places
        place = self._drop()
        if place is not None:
            self._track.take(self, place, places, self._digest)

    def gap(self, gap: Gap) -> None:
        """A fetch says that a range will not come: it simply stays missing."""
        self._track.counters.gaps += 1

    def finish(self) -> None:
        """Nothing is open between objects."""

    def abort(self, code: int) -> None:
        """A begun object is lost."""
        place = self._drop()
        if place is not None:
            self._track.counters.lost += 1
            self._track.give_up(self, place)

    def _fill(self, region: memoryview) -> None:
        self._region, self._at, self._room = region, 0, len(region)

    def _drop(self) -> Location | None:
        """Forget the object that is coming."""
        place = self._place
        self._place, self._region, self._places, self._queue = None, None, [], []
        return place

    def _reject(self, reason: RejectReason) -> None:
        self._track.counters.rejected[reason] += 1
        place = self._drop()
        if place is not None:
            self._track.give_up(self, place)

    def _cross(self, view: memoryview) -> None:
        """The view does not end in the current region: fill that one, then the next."""
        while (region := self._region) is not None:
            part = view[: self._room - self._at]
            region[self._at : self._at + len(part)] = part
            self._at += len(part)
            view = view[len(part) :]
            if not view:
                return
            if not self._places:
                self._check()
            elif self._queue:
                self._fill(self._queue.pop())
            else:
                self._reject(RejectReason.LENGTH)

    def _check(self) -> None:
        """The header is whole: its data get their places, or the object is given up."""
        place = self._place
        if place is None:
            return
        try:
            header = decode_header(self._header[: self._at])
            check_header(header, self._track.expect(place, self._length))
        except ObjectRejected as rejected:
            self._reject(rejected.reason)
            return
        self._digest = header.digest
        self._places = self._track.claim(self, place)
        if not self._places:
            self._track.counters.duplicates += 1
            self._drop()
            return
        self._queue = self._places[:0:-1]
        self._fill(self._places[0])
