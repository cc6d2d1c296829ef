"""A segment put together from its tracks: which layers can be used already (kvcs.md §5).

An ``Assembly`` holds what is wanted and what has come; each MOQT stream of it writes through a
sink of its own. Whatever order, cutting, repetition or loss the streams bring, every object is
taken once and verified, or it is missing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kvcs.errors import IncompletePublication, InvalidInput
from kvcs.names import Codec, Component, TrackName
from kvcs.payload import digest_of
from kvcs.track_assembler import Counters, ObjectStream, Plane, TrackAssembler, Wanted
from moqt.model import Location, LocationRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcs.geometry import Geometry
    from kvcs.manifest import SegmentEntry
    from moqt.model import ObjectSink

#: What one assembly may come to hold: a 32k-token cache of a 70B-class model takes 10 GiB.
MAX_OCTETS: Final = 16 << 30


class Assembly:
    """The wanted part of one segment: its tracks, ``layers`` (first, last), first n ``blocks``.

    ``on_layer`` is called when a layer becomes usable. With ``require_listed`` a layer is usable
    only when the manifest lists, and so vouches for, each of its objects. Raises InvalidInput.
    """

    def __init__(
        self,
        geometry: Geometry,
        tracks: Sequence[TrackName],
        *,
        layers: tuple[int, int] | None = None,
        blocks: int | None = None,
        entry: SegmentEntry | None = None,
        require_listed: bool = False,
        on_layer: Callable[[int], None] | None = None,
        max_octets: int = MAX_OCTETS,
    ) -> None:
        _check_tracks(tracks)
        self.wanted = _wanted(geometry, layers, blocks, max_octets)
        self.counters = Counters()
        k, v = Plane(self.wanted), Plane(self.wanted)
        self._planes = {Component.K: (k,), Component.V: (v,), Component.KV: (k, v)}
        self._tracks = {name: self._track_assembler(name) for name in tracks}
        self._per_layer = len(self._tracks) * self.wanted.blocks
        self._on_layer = on_layer
        self._require_listed = require_listed
        self._arrived: Counter[int] = Counter()
        self._usable: set[int] = set()
        if entry is not None:
            self.apply_manifest(entry)

    @property
    def tracks(self) -> tuple[TrackName, ...]:
        """The selected tracks."""
        return tuple(self._tracks)

    @property
    def complete(self) -> bool:
        """True when every wanted layer is usable."""
        return len(self._usable) == len(self.wanted.layers)

    @property
    def missing_count(self) -> int:
        """Wanted objects that are not verified."""
        return self._per_layer * len(self.wanted.layers) - self.counters.objects

    def missing(self) -> dict[TrackName, tuple[LocationRange, ...]]:
        """What each track lacks, in runs that may span layers; tracks that lack none left out."""
        found = {name: tuple(track.runs_missing()) for name, track in self._tracks.items()}
        return {name: runs for name, runs in found.items() if runs}

    def usable(self, layer: int) -> bool:
        """True when all wanted objects of the layer, in all tracks, are verified."""
        return layer in self._usable

    def usable_blocks(self, layers: Iterable[int] | None = None) -> int:
        """How many leading blocks are verified in all of ``layers`` (default: all wanted)."""
        count = self.wanted.blocks
        for layer in self.wanted.layers if layers is None else layers:
            if layer not in self._usable:
                bad = (n for n in range(count) if not self._accepted(Location(layer, n)))
                count = next(bad, count)
        return count

    def ended(self, track: TrackName) -> bool:
        """True when End of Track has come."""
        return self._track(track).ended

    def layer_buffer(
        self, component: Component, layer: int, blocks: int | None = None
    ) -> memoryview:
        """The layer's K or V, octets of ``[token, kv_head, dim]``, read-only, not copied.

        ``blocks`` takes only so many leading blocks. Raises IncompletePublication while they are
        not all verified.
        """
        if component is Component.KV:
            raise InvalidInput("layer_buffer gives K or V: ask for each")
        count = self.wanted.blocks if blocks is None else blocks
        if not 1 <= count <= self.wanted.blocks:
            raise InvalidInput(f"first {count} blocks: 1 to {self.wanted.blocks} are assembled")
        if not self.usable(layer) and self.usable_blocks((layer,)) < count:
            raise IncompletePublication(f"layer {layer}, blocks 0 to {count - 1}: not usable")
        size = count * self.wanted.geometry.block_octets(component)
        return self._planes[component][0].layer(layer)[:size].toreadonly()

    def layer_digest(self, layer: int, block: int) -> bytes:
        """KVSP layer digest of one block, SHA-256 of its K, then its V.

        Raises IncompletePublication while the block is not verified in all tracks.
        """
        place = Location(layer, block)
        if not self._accepted(place):
            raise IncompletePublication(f"layer {layer}, block {block} is not usable")
        return digest_of(*(plane.place(place) for plane in self._planes[Component.KV]))

    def stream(self, track: TrackName) -> ObjectSink:
        """A sink for one subgroup or fetch stream of a selected track.

        It raises PublicationConflict or MalformedTrack when the track contradicts itself or the
        manifest; a bad object is only counted.
        """
        return ObjectStream(self._track(track))

    def apply_manifest(self, entry: SegmentEntry) -> tuple[int, ...]:
        """Take the digests of a newer version; what is verified already is checked against them.

        Returns layers that were usable and are no longer: their octets must not be used.
        """
        name = self.tracks[0]
        if (entry.segment, entry.blocks) != (name.segment, self.wanted.geometry.blocks):
            raise InvalidInput(f"manifest entry of segment {entry.segment}: not that of {name}")
        before = set(self._usable)
        for track in self._tracks.values():
            track.list_digests(entry.object_digests.get(track.name, ()))
        revoked = before - self._usable
        for layer in self.wanted.layers:
            self._settle(layer)
        return tuple(sorted(revoked))

    def _track_assembler(self, name: TrackName) -> TrackAssembler:
        planes = self._planes[name.component]
        return TrackAssembler(name, self.wanted, planes, self.counters, self._changed)

    def _track(self, name: TrackName) -> TrackAssembler:
        try:
            return self._tracks[name]
        except KeyError:
            chosen = ", ".join(map(str, self._tracks))
            raise InvalidInput(f"track {name}: this assembly takes {chosen}") from None

    def _changed(self, layer: int, by: int) -> None:
        self._arrived[layer] += by
        if by < 0:
            self._usable.discard(layer)
        else:
            self._settle(layer)

    def _settle(self, layer: int) -> None:
        if layer in self._usable or self._arrived[layer] < self._per_layer:
            return
        if self._require_listed and not self._vouched(layer):
            return
        self._usable.add(layer)
        if self._on_layer is not None:
            self._on_layer(layer)

    def _vouched(self, layer: int) -> bool:
        return all(layer < len(track.listed) for track in self._tracks.values())

    def _accepted(self, place: Location) -> bool:
        if self._require_listed and not self._vouched(place.group):
            return False
        return all(place in track.verified for track in self._tracks.values())


def _check_tracks(tracks: Sequence[TrackName]) -> None:
    shown = ", ".join(map(str, tracks))
    chosen = sorted(track.component for track in tracks)
    if chosen not in ([Component.K, Component.V], [Component.KV]):
        raise InvalidInput(f"tracks {shown}: take k and v, or kv")
    if len({(track.codec, track.segment) for track in tracks}) != 1:
        raise InvalidInput(f"tracks {shown}: they must be of one codec and one segment")
    if tracks[0].codec != Codec.RAW.label:
        raise InvalidInput(f"tracks {shown}: only codec 'raw' can be decoded")


def _wanted(
    geometry: Geometry, layers: tuple[int, int] | None, blocks: int | None, max_octets: int
) -> Wanted:
    first, last = layers or (0, geometry.layers - 1)
    if not 0 <= first <= last < geometry.layers:
        raise InvalidInput(f"layers {first} to {last}: the model has 0 to {geometry.layers - 1}")
    count = geometry.blocks if blocks is None else blocks
    if not 1 <= count <= geometry.blocks:
        raise InvalidInput(f"first {count} blocks: the segment has 1 to {geometry.blocks}")
    wanted = Wanted(geometry, range(first, last + 1), count)
    total = len(wanted.layers) * count * geometry.block_octets(Component.KV)
    if total > max_octets:
        raise InvalidInput(
            f"{total} octets for {len(wanted.layers)} layers x {count} blocks: the limit is"
            f" {max_octets}; take fewer layers at a time, or raise the limit"
        )
    return wanted
