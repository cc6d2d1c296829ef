"""A consumer with a hostile publisher or relay: every wait ends, nothing grows on its word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcs.assembler import Assembly
from kvcs.errors import IncompletePublication, UnknownPublication
from kvcs.geometry import Geometry
from kvcs.identity import DType
from kvcs.manifest import ManifestBuilder
from kvcs.names import Codec, Component, PublicationName
from kvcs.payload import PayloadHeader, encode_header
from kvcs.relays import MAX_MOVES
from kvcs.sources import MAX_ALTERNATIVES
from kvcs.strictjson import loads
from kvcs.track_assembler import ObjectStream
from moqt.model import Location
from moqt.publisher import CatalogHandler, ServingLimits
from tests.kvcs.blocks import K, V, head
from tests.kvcs.endpoints import Cache
from tests.kvcs.forgery import Forgery


class Handler(CatalogHandler):
    """Counts the names that are asked for."""

    asked: list[object]

    def on_subscribe(self, request) -> None:
        self.asked.append(request.name)
        super().on_subscribe(request)


@pytest.mark.e2e
async def test_sent_away_on_and_on(world) -> None:
    forgery = Forgery(Cache())
    hops: list[str] = []

    class Wandering(CatalogHandler):
        gone = False

        def on_subscribe(self, request) -> None:
            super().on_subscribe(request)
            if request.name.name != b"manifest" and not self.gone:
                self.gone = True
                hops.append(f"moqt://127.0.0.1:{forgery.server.port}/{len(hops)}")
                self._connection.goaway(hops[-1])

    url = await forgery.serve(world, lambda c: Wandering(forgery.catalog, c, ServingLimits()))
    forgery.version()
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, timeout=0.3)
    with pytest.raises(IncompletePublication):
        await retrieval.wait()
    assert len(hops) == MAX_MOVES + 1
    assert len(consumer._links.urls) <= MAX_MOVES + 1


@pytest.mark.e2e
async def test_others_of_the_prefix_without_end(world) -> None:
    forgery = Forgery(Cache(), payload=lambda track, place, payload: payload[:-1] + b"!")
    forgery.builder = ManifestBuilder(forgery.cache.descriptor.to_json(), deterministic=True)
    forgery.builder.add_segment(forgery.keys, (Component.K, Component.V))
    asked: list[object] = []

    def handler(connection) -> Handler:
        made = Handler(forgery.catalog, connection, ServingLimits())
        made.asked = asked
        return made

    url = await forgery.serve(world, handler)
    for number in range(1, 40):
        pub_id = bytes(15) + bytes([number])
        name = forgery.name
        other = PublicationName(name.scope_id, name.compat_id, name.anchor_key, pub_id)
        forgery.catalog.announce(other.namespace)
    forgery.all()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name, timeout=0.3)
    with pytest.raises(IncompletePublication, match="no more than 8 other publications"):
        await retrieval.wait()
    assert len({name.namespace for name in asked}) == MAX_ALTERNATIVES + 1


@pytest.mark.e2e
async def test_one_more_name_before_every_look(world, monkeypatch) -> None:
    monkeypatch.setattr("kvcs.discovery.MORE_AFTER", 0.02)
    monkeypatch.setattr("kvcs.discovery.ALL_AFTER", 0.1)
    forgery = Forgery(Cache())
    url = await forgery.serve(world)

    async def invent() -> None:
        for number in range(1, 1 << 16):
            name = PublicationName(
                forgery.name.scope_id,
                forgery.name.compat_id,
                forgery.name.anchor_key,
                number.to_bytes(16, "big"),
            )
            forgery.catalog.announce(name.namespace)
            await asyncio.sleep(0.002)

    inventing = asyncio.create_task(invent())
    consumer = await world.consumer(url)
    found = await consumer.discover(forgery.cache.descriptor, forgery.cache.tokens)
    assert found
    assert not inventing.done()
    inventing.cancel()


@pytest.mark.e2e
@pytest.mark.parametrize("what", ["nothing", "manifest"])
async def test_silence_ends(world, what) -> None:
    """SUBSCRIBE_OK never comes, or nothing behind it."""
    forgery = Forgery(Cache())

    class Silent(CatalogHandler):
        def on_subscribe(self, request) -> None:
            if what == "manifest" and request.name.name == b"manifest":
                super().on_subscribe(request)

        def on_fetch(self, request) -> None:
            pass

    url = await forgery.serve(world, lambda c: Silent(forgery.catalog, c, ServingLimits()))
    forgery.version()
    consumer = await world.consumer(url)
    with pytest.raises((UnknownPublication, IncompletePublication)):
        await (await consumer.retrieve(forgery.name, timeout=0.1)).wait()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_headers_of_large_objects_again_and_again() -> None:
    """68 octets each, on as many streams as one likes, take no room for what they announce."""
    geometry = Geometry(
        layers=1, blocks=1, block_tokens=1 << 12, kv_heads=64, head_dim=1 << 10, dtype=DType.UINT8
    )
    size = geometry.block_octets(Component.K)
    assert size == 256 << 20
    assembly = Assembly(geometry, (K, V))
    place = Location(0, 0)
    octets = encode_header(
        PayloadHeader(
            int(Component.K), 0, 0, 0, geometry.block_tokens, int(Codec.RAW), size, bytes(32)
        )
    )
    before = resident()
    streams = [assembly.stream(K) for _ in range(50)]
    for stream in streams:
        stream.begin(head(place, len(octets) + size))
        stream.write(octets)
        stream.write(b"x")
    assert resident() - before < 64 << 20
    assert assembly.counters.duplicates == len(streams) - 2
    taken = [stream for stream in streams if isinstance(stream, ObjectStream) and stream._places]
    assert taken == streams[:2]
    for stream in streams:
        stream.abort(0)
    assert assembly.counters.lost == 2
    # Nothing is remembered of a copy that was given up.
    again = [assembly.stream(K) for _ in range(3)]
    for stream in again:
        stream.begin(head(place, len(octets) + size))
        stream.write(octets)
        stream.write(b"x")
    assert [bool(stream._places) for stream in again] == [True, True, False]


def test_the_last_of_many_members_again() -> None:
    names = b",".join(b'"%06d":1' % number for number in range(200_000))
    with pytest.raises(ValueError, match="'199999' occurs twice"):
        loads(b"{" + names + b',"199999":1}', max_octets=1 << 23, max_values=1 << 20)
