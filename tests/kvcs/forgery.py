"""A publication put together by hand from bare Tracks, so that a test can make it wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcs.geometry import Geometry
from kvcs.identity import KVSP_PROFILE_0
from kvcs.manifest import ManifestBuilder, encode
from kvcs.names import Component, PublicationName, TrackName
from kvcs.payload import encode_header, header_of
from moqt import Catalog, FullTrackName, Track, serve
from moqt.model import Location, ObjectStatus
from tests.kvcs.endpoints import SCOPE_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.driver import HandlerFactory
    from tests.kvcs.endpoints import Cache, World

    #: What a test does to the payload at a place.
    Damage = Callable[[TrackName, Location, bytes], bytes]

K, V = (TrackName(component, "raw", 0) for component in (Component.K, Component.V))


def unharmed(track: TrackName, place: Location, payload: bytes) -> bytes:
    """No damage."""
    return payload


class Forgery:
    """``payload`` damages objects; ``version`` and ``layer`` publish what the test says, when."""

    def __init__(self, cache: Cache, payload: Damage = unharmed, number: int = 0) -> None:
        self.cache = cache
        self.payload = payload
        compat = cache.descriptor.to_json()
        compat_id = KVSP_PROFILE_0.compatibility_id(compat)
        tokens = cache.descriptor.block_tokens
        self.keys = KVSP_PROFILE_0.block_keys(SCOPE_KEY, compat_id, cache.tokens, tokens)
        scope_id = KVSP_PROFILE_0.scope_id(SCOPE_KEY)
        self.name = PublicationName(scope_id, compat_id, self.keys[-1], bytes(15) + bytes([number]))
        self.geometry = Geometry.of(cache.descriptor, cache.blocks)
        self.builder = ManifestBuilder(compat)
        self.builder.add_segment(self.keys, (Component.K, Component.V))
        self.catalog = Catalog()
        self.tracks = {name: self.track(name.wire) for name in (K, V)}
        self.manifest = self.track(b"manifest")
        self.versions = 0

    def track(self, name: bytes) -> Track:
        """Another track of the publication."""
        return self.catalog.add(Track(FullTrackName(self.name.namespace, name)))

    async def serve(self, world: World, handler: HandlerFactory | None = None) -> str:
        """Announce and listen; the URL."""
        self.catalog.announce(self.name.namespace)
        server = await serve(
            "127.0.0.1", 0, tls=world.server_tls, handler=handler or self.catalog.handler
        )
        self.server = server
        world.defer(server.close)
        return f"moqt://127.0.0.1:{server.port}/"

    def object(self, track: TrackName, place: Location) -> bytes:
        """The payload that belongs there, damaged."""
        tensor = (self.cache.k if track is K else self.cache.v)[place.group]
        at = place.object * self.cache.block_octets
        data = tensor[at : at + self.cache.block_octets]
        header = header_of(self.geometry, track.component, *place, (data,))
        return self.payload(track, place, encode_header(header) + data)

    def layer(self, layer: int, *, listed: bool = True) -> None:
        """Publish one layer of both tracks; the digests for the manifest are the undamaged ones."""
        for name, track in self.tracks.items():
            writer = track.subgroup(layer, priority=self.geometry.priority(layer))
            digests = []
            for block in range(self.cache.blocks):
                place = Location(layer, block)
                digests.append(self.digest(name, place))
                writer.object(block, self.object(name, place))
            writer.object(self.cache.blocks, status=ObjectStatus.END_OF_GROUP)
            writer.finish()
            if listed:
                self.builder.add_layer(name, layer, digests)

    def digest(self, track: TrackName, place: Location) -> bytes:
        """The data digest of the undamaged object."""
        damage, self.payload = self.payload, unharmed
        payload = self.object(track, place)
        self.payload = damage
        return payload[36:68]

    def end(self) -> None:
        """End of Track and PUBLISH_DONE for the data tracks."""
        for track in self.tracks.values():
            writer = track.subgroup(self.geometry.layers, priority=128)
            writer.object(0, status=ObjectStatus.END_OF_TRACK)
            writer.finish()
            track.end()

    def version(self, octets: bytes | None = None) -> None:
        """Publish a manifest, by default the builder's present one."""
        writer = self.manifest.subgroup(self.versions, priority=0)
        writer.object(0, encode(self.builder.build()) if octets is None else octets)
        writer.finish()
        self.versions += 1

    def all(self, *, listed: bool = True) -> None:
        """Everything, manifest first, as a publisher would."""
        self.version()
        for layer in range(self.cache.layers):
            self.layer(layer, listed=listed)
        self.end()
        self.version()
