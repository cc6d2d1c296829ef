"""One publication as its producer holds it: tracks, manifest versions, and how it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kvcs.bell import off_loop
from kvcs.block_keys import UNKNOWN
from kvcs.errors import InvalidInput
from kvcs.geometry import Geometry, require_manifest_fits
from kvcs.manifest import encode
from kvcs.names import MANIFEST, STOPPED, Component, TrackName
from kvcs.payload import encode_header, header_of
from kvcs.tensors import octets_of
from moqt.codec.properties import TrackProperties
from moqt.errors import DoneCode
from moqt.model import FullTrackName, ObjectStatus
from moqt.publisher import Track
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcs.block_keys import BlockKeys
    from kvcs.identity import CompatibilityDescriptor
    from kvcs.manifest import ManifestBuilder
    from kvcs.names import PublicationName
    from moqt.publisher import Catalog
    from transport.api import BytesLike

#: kvcs.md §2: priority of manifest objects, and of the stream that carries End of Track alone.
MANIFEST_PRIORITY: Final = 0
LAST_PRIORITY: Final = 128
#: Path of a publication's URI; our publishers serve one thing and do not look at it.
_PATH: Final = "/"


class Segment:
    """One segment being produced: a track for each component, layers in turn."""

    def __init__(self, number: int, geometry: Geometry, tracks: dict[Component, Track]) -> None:
        self.number = number
        self.geometry = geometry
        self.tracks = tracks
        self.next_layer = 0

    @property
    def complete(self) -> bool:
        """True when every layer has been published."""
        return self.next_layer == self.geometry.layers

    def name(self, component: Component) -> TrackName:
        """The data track of a component."""
        return TrackName(component, "raw", self.number)

    def end(self) -> None:
        """End of Track at {L, 0} on a stream of its own, then PUBLISH_DONE (kvcs.md §2)."""
        for track in self.tracks.values():
            last = track.subgroup(self.geometry.layers, priority=LAST_PRIORITY)
            last.object(0, status=ObjectStatus.END_OF_TRACK)
            last.finish()
            track.end()


class Publication:
    """A publication in production, made by ``Publisher.open``: layers in, objects out.

    Tensors are kept as references and must not change while the publication is served.
    """

    def __init__(
        self,
        name: PublicationName,
        builder: ManifestBuilder,
        keys: BlockKeys,
        components: Sequence[Component],
        catalog: Catalog,
        retention: float,
    ) -> None:
        self._name = name
        self._builder = builder
        self._keys = keys
        self._components = tuple(components)
        self._catalog = catalog
        self._retention = retention
        self._properties = TrackProperties(max_cache_duration=round(retention * 1000))
        self._segments: list[Segment] = []
        self._blocks = 0
        self._version = 0
        self._turn = asyncio.Lock()
        self._over: str | None = None
        self._manifest_over = False
        #: A version was built and, because of a cancellation, not published.
        self._stale = False
        self._expiry: asyncio.TimerHandle | None = None
        #: Called once when nothing of it is served any more.
        self.on_withdrawn: Callable[[], None] | None = None
        self._manifest = self._track(MANIFEST)

    @property
    def name(self) -> PublicationName:
        """Scope, model, prefix, and this production."""
        return self._name

    @property
    def geometry(self) -> Geometry:
        """Shape of segment 0."""
        return self._segments[0].geometry

    @property
    def segments(self) -> tuple[Geometry, ...]:
        """Shapes of all segments so far."""
        return tuple(segment.geometry for segment in self._segments)

    @property
    def descriptor(self) -> CompatibilityDescriptor:
        """What the tensors are."""
        return self._builder.descriptor

    @property
    def components(self) -> tuple[Component, ...]:
        """K and V, or KV."""
        return self._components

    @property
    def octets(self) -> int:
        """Payload octets kept, manifests included."""
        tracks = [t for segment in self._segments for t in segment.tracks.values()]
        return sum(track.octets for track in (self._manifest, *tracks))

    def uri(self, host: str, port: int) -> str:
        """Where a consumer finds it: the URL of an endpoint, and the name as its fragment."""
        place = MoqtUrl("moqt", host.strip("[]"), port, _PATH, fragment=self._name.fragment)
        return str(place)

    # -- producing -------------------------------------------------------------------------------

    def start(self, blocks: int | None) -> None:
        """Segment 0 and the first manifest; for ``Publisher.open``."""
        self._add(blocks)
        self._publish_version(encode(self._builder.build()))

    async def add_segment(
        self,
        *,
        tokens: Sequence[int] | None = None,
        block_keys: Sequence[bytes] | None = None,
        blocks: int | None = None,
    ) -> int:
        """Another segment, e.g. the next chunk of a chunked prefill; returns its number.

        ``tokens`` or ``block_keys`` follow those given so far; ``blocks`` None takes all that are
        complete. Raises InvalidInput.
        """
        async with self._turn:
            self._still_open()
            self._keys.add(tokens, block_keys, blocks)
            self._add(blocks)
            await self._publish_manifest()
            return self._segments[-1].number

    async def put_layer(
        self, layer: int, k: object, v: object = None, *, segment: int | None = None
    ) -> None:
        """Publish one layer of a segment (default: the newest), layers in order.

        ``k`` and ``v`` are C-contiguous ``[token, kv_head, dim]`` arrays or their octets; tokens
        that fill no block are left off. Raises InvalidInput; nothing is published then.
        """
        async with self._turn:
            self._still_open()
            chosen = self._segment(segment)
            if layer != chosen.next_layer or chosen.complete:
                raise InvalidInput(
                    f"layer {layer} of segment {chosen.number} out of turn: layer"
                    f" {chosen.next_layer} of {chosen.geometry.layers} is next"
                )
            if v is None:
                raise InvalidInput(f"layer {layer}: give k and v; a kv track needs both, too")
            where = f"layer {layer} of segment {chosen.number}"
            tensors = {
                Component.K: octets_of(k, chosen.geometry, f"{where}, k"),
                Component.V: octets_of(v, chosen.geometry, f"{where}, v"),
            }
            size = chosen.geometry.layer_octets(Component.KV)
            objects = await off_loop(size, lambda: _objects(chosen, layer, tensors))
            self._still_open()
            self._publish_layer(chosen, layer, objects)
            if self._builder.due or self._stale:
                await self._publish_manifest()
        # A producer that never waits must not keep the sessions from sending.
        await asyncio.sleep(0)

    async def finish(self) -> None:
        """Nothing more will be produced; retention begins.

        Raises InvalidInput while layers are missing: use ``fail`` to give up.
        """
        async with self._turn:
            self._still_open()
            for segment in self._segments:
                if not segment.complete:
                    raise InvalidInput(
                        f"segment {segment.number} has {segment.next_layer} of"
                        f" {segment.geometry.layers} layers: publish the others, or fail()"
                    )
            if self._stale:
                await self._publish_manifest()
            self._over = "it is finished"
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(self._retention, self.withdraw)

    # -- endings ---------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True once no layer can be added."""
        return self._over is not None

    async def fail(self, reason: str) -> None:
        """Give it up: PUBLISH_DONE with INTERNAL_ERROR, withdrawn, and its id never used again.

        Does nothing when it is over already.
        """
        if self._over is None:
            self._abandon(reason)
            self.withdraw()

    def withdraw(self) -> None:
        """Serve it no longer and let its tensors go; ``finish`` plans this after the retention."""
        self.end()
        for track in self._tracks:
            self._catalog.remove(track)
        callback, self.on_withdrawn = self.on_withdrawn, None
        if callback is not None:
            callback()

    def end(self) -> None:
        """End of the manifest track, and of the announcement; what was asked for is still sent."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._over is None:
            if all(segment.complete for segment in self._segments):
                self._over = "it is over"
            else:
                self._abandon(STOPPED)
        if not self._manifest_over:
            self._manifest_over = True
            last = self._manifest.subgroup(self._version, priority=MANIFEST_PRIORITY)
            last.object(0, status=ObjectStatus.END_OF_TRACK)
            last.finish()
            self._manifest.end()
        self._catalog.withdraw(self._name.namespace)

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _tracks(self) -> list[Track]:
        data = (track for segment in self._segments for track in segment.tracks.values())
        return [self._manifest, *data]

    def _abandon(self, reason: str) -> None:
        """End as failed whatever has not ended well."""
        self._over = reason
        self._manifest_over = True
        for track in self._tracks:
            track.end(DoneCode.INTERNAL_ERROR, reason)

    def _still_open(self) -> None:
        if self._over is not None:
            raise InvalidInput(f"publication {self._name.pub_id.hex()[:8]}: {self._over}")

    def _segment(self, number: int | None) -> Segment:
        known = len(self._segments)
        if number is not None and not 0 <= number < known:
            raise InvalidInput(f"segment {number}: this publication has 0 to {known - 1}")
        return self._segments[-1 if number is None else number]

    def _add(self, blocks: int | None) -> None:
        keys = self._keys.take(blocks)
        descriptor = self._builder.descriptor
        total = (self._blocks + len(keys)) * descriptor.block_tokens
        require_manifest_fits(descriptor, total, len(self._components))
        geometry = Geometry.of(descriptor, len(keys), self._blocks)
        known = len(keys) if UNKNOWN in keys else keys
        entry = self._builder.add_segment(known, self._components)
        tracks = {name.component: self._track(name.wire) for name in entry.tracks}
        self._segments.append(Segment(entry.segment, geometry, tracks))
        self._blocks += len(keys)

    def _track(self, name: bytes) -> Track:
        full = FullTrackName(self._name.namespace, name)
        return self._catalog.add(Track(full, self._properties))

    def _publish_layer(
        self, segment: Segment, layer: int, objects: dict[Component, list[_Object]]
    ) -> None:
        """One subgroup a track: blocks, End of Group, FIN."""
        priority = segment.geometry.priority(layer)
        for component, track in segment.tracks.items():
            writer = track.subgroup(layer, priority=priority)
            for block, one in enumerate(objects[component]):
                writer.object(block, *one.views)
            writer.object(segment.geometry.blocks, status=ObjectStatus.END_OF_GROUP)
            writer.finish()
            digests = [one.digest for one in objects[component]]
            self._builder.add_layer(segment.name(component), layer, digests)
        segment.next_layer += 1
        if segment.complete:
            segment.end()

    async def _publish_manifest(self) -> None:
        self._stale = True
        manifest = self._builder.build()
        listed = sum(
            len(layer)
            for entry in manifest.segments
            for layers in entry.object_digests.values()
            for layer in layers
        )
        octets = await off_loop(2 * listed, lambda: encode(manifest))
        if not self._manifest_over:
            self._publish_version(octets)

    def _publish_version(self, octets: bytes) -> None:
        writer = self._manifest.subgroup(self._version, priority=MANIFEST_PRIORITY)
        writer.object(0, octets)
        writer.finish()
        self._version += 1
        self._stale = False


class _Object:
    """What one object carries."""

    __slots__ = ("digest", "views")

    def __init__(self, digest: bytes, views: tuple[BytesLike, ...]) -> None:
        self.digest = digest
        self.views = views


def _objects(
    segment: Segment, layer: int, tensors: dict[Component, memoryview]
) -> dict[Component, list[_Object]]:
    """Headers and views of all objects of a layer; the hashing is done here."""
    size = segment.geometry.block_octets(Component.K)
    found: dict[Component, list[_Object]] = {}
    for component in segment.tracks:
        parts = list(tensors.values()) if component is Component.KV else [tensors[component]]
        made = found[component] = []
        for block in range(segment.geometry.blocks):
            data = tuple(part[block * size : (block + 1) * size] for part in parts)
            header = header_of(segment.geometry, component, layer, block, data)
            made.append(_Object(header.digest, (encode_header(header), *data)))
    return found
