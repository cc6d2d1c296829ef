"""Small segments for the assembler's tests: tensors, their payloads, and how to feed them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random

from kvcs.geometry import Geometry
from kvcs.identity import DType
from kvcs.manifest import SegmentEntry
from kvcs.names import Component, TrackName
from kvcs.payload import encode_header, header_of
from moqt.model import Location, ObjectHead, ObjectSink, ObjectStatus

K, V, KV = (TrackName(component, "raw", 0) for component in Component)


class Segment:
    """Random K and V of a geometry, and the payload of every object in them."""

    def __init__(self, geometry: Geometry, seed: int = 0) -> None:
        random = Random(seed)
        self.geometry = geometry
        self.size = geometry.block_octets(Component.K)
        self.tensors = {
            (component, layer): random.randbytes(geometry.layer_octets(component))
            for component in (Component.K, Component.V)
            for layer in range(geometry.layers)
        }

    def data(self, track: TrackName, place: Location) -> bytes:
        sections = [Component.K, Component.V] if track is KV else [track.component]
        at = place.object * self.size
        return b"".join(self.tensors[one, place.group][at : at + self.size] for one in sections)

    def payload(self, track: TrackName, place: Location) -> bytes:
        data = self.data(track, place)
        return encode_header(header_of(self.geometry, track.component, *place, [data])) + data

    def digests(self, track: TrackName, layers: int) -> tuple[bytes, ...]:
        blocks = range(self.geometry.blocks)
        return tuple(
            b"".join(
                header_of(
                    self.geometry,
                    track.component,
                    layer,
                    block,
                    [self.data(track, Location(layer, block))],
                ).digest
                for block in blocks
            )
            for layer in range(layers)
        )

    def entry(self, tracks: Sequence[TrackName], layers: int) -> SegmentEntry:
        """A manifest's entry that lists the first ``layers`` layers."""
        return SegmentEntry(
            segment=0,
            first_block=self.geometry.first_block,
            blocks=self.geometry.blocks,
            block_keys_sha256=bytes(32),
            tracks=tuple(tracks),
            object_digests={track: self.digests(track, layers) for track in tracks},
        )


def small(layers: int = 2, blocks: int = 3) -> Segment:
    return Segment(
        Geometry(
            layers=layers,
            blocks=blocks,
            block_tokens=2,
            kv_heads=1,
            head_dim=2,
            dtype=DType.UINT8,
            first_block=5,
        )
    )


def head(place: Location, length: int, status: ObjectStatus = ObjectStatus.NORMAL) -> ObjectHead:
    return ObjectHead(place.group, 0, place.object, 0, length, status)


def pieces(payload: bytes, cuts: Iterable[int]) -> list[memoryview]:
    at = [0, *sorted(cut for cut in cuts if 0 < cut < len(payload)), len(payload)]
    view = memoryview(payload)
    return [view[a:b] for a, b in pairwise(at)]


def feed(sink: ObjectSink, place: Location, payload: bytes, cuts: Iterable[int] = ()) -> None:
    """One whole object."""
    sink.begin(head(place, len(payload)))
    for piece in pieces(payload, cuts):
        sink.write(piece)
    sink.end()


def status(sink: ObjectSink, kind: ObjectStatus, group: int, number: int) -> None:
    sink.begin(head(Location(group, number), 0, kind))
    sink.end()
