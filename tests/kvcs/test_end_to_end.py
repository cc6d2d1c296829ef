"""A publisher and its consumers on loopback: whatever the moment, every octet, once."""

from __future__ import annotations

import asyncio

import ml_dtypes
import numpy as np
import pytest

from kvcs.errors import InvalidInput
from kvcs.identity import DType
from kvcs.tensorfile import KvCacheFile, TensorFileWriter
from tests.kvcs.endpoints import Cache, check

pytestmark = pytest.mark.e2e


@pytest.mark.rule("M010", "M011")
async def test_before_during_after_and_part(world) -> None:
    cache = Cache(layers=6, blocks=3)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    early = await world.consumer(url)
    (found,) = await early.discover(cache.descriptor, cache.tokens)
    assert (found.name, found.blocks, found.tokens) == (publication.name, 3, 12)
    before = await early.retrieve(found)
    await cache.put(publication, 0, 2)
    middle = await (await world.consumer(url)).retrieve(publication.name)
    assert (await middle.layer(1)).buffers["k"] == cache.k[1]
    await cache.put(publication, 3)
    await publication.finish()
    late = await (await world.consumer(url)).retrieve(publication.name)
    part = await (await world.consumer(url)).retrieve(publication.name, layers=(2, 4), blocks=2)
    for retrieval, mode in (
        (before, "live"),
        (middle, "live"),
        (late, "completed"),
        (part, "completed"),
    ):
        await check(retrieval, cache)
        assert retrieval.report().mode == mode
    assert (late.counters.surplus, part.counters.surplus) == (0, 0)


@pytest.mark.parametrize("kv", [False, True])
@pytest.mark.parametrize("mode", ["auto", "live", "completed"])
async def test_every_mode_once_it_is_complete(world, kv: bool, mode) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    components = ("kv",) if kv else ("k", "v")
    publication = await cache.publish(publisher, components=components)
    retrieval = await (await world.consumer(url)).retrieve(publication.name, mode=mode)
    await check(retrieval, cache)
    report = retrieval.report()
    assert report.objects == (1 if kv else 2) * cache.layers * cache.blocks
    assert report.octets == 2 * sum(map(len, cache.k))
    assert report.listed


@pytest.mark.parametrize(
    "part", [{"layers": (1, 3)}, {"blocks": 2}, {"layers": (4, 5), "blocks": 1}]
)
@pytest.mark.parametrize("produced", [0, 3])
async def test_a_part_while_it_is_produced(world, part: dict, produced: int) -> None:
    cache = Cache(layers=6, blocks=3)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    await cache.put(publication, 0, produced - 1)
    retrieval = await (await world.consumer(url)).retrieve(publication.name, **part)
    await cache.put(publication, produced)
    await publication.finish()
    await check(retrieval, cache)
    if "blocks" not in part:
        assert retrieval.counters.surplus == 0


async def test_a_part_is_complete_before_the_whole(world) -> None:
    cache = Cache(layers=6)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name, layers=(0, 2))
    await cache.put(publication, 0, 2)
    await check(retrieval, cache)
    assert not publication.finished


async def test_kv_while_it_is_produced(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens, components=("kv",))
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    await cache.put(publication)
    await check(retrieval, cache)


async def test_layers_in_order_with_their_times(world) -> None:
    cache = Cache(layers=5)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    called: list[int] = []
    retrieval.on_layer(lambda layer: called.append(layer.index))
    await cache.put(publication, 0, 1)
    seen = []
    async for layer in retrieval.layers():
        seen.append(layer.index)
        if layer.index + 2 < cache.layers:
            await cache.put(publication, layer.index + 2, layer.index + 2)
        assert layer.received_at <= layer.verified_at
    await retrieval.wait()
    assert seen == called == [0, 1, 2, 3, 4]
    marks = retrieval.events
    assert [mark.layer for mark in marks] == seen
    assert [m.verified_at for m in marks] == sorted(m.verified_at for m in marks)
    again: list[int] = []
    retrieval.on_layer(lambda layer: again.append(layer.index))
    await world.until(lambda: again == seen)


async def test_chunked_prefill(world) -> None:
    whole = Cache(layers=3, blocks=5)
    size = whole.block_octets
    publisher, url = await world.publisher()
    publication = publisher.open(whole.descriptor, tokens=whole.tokens[:8])
    consumer = await world.consumer(url)
    (found,) = await consumer.discover(whole.descriptor, whole.tokens)
    assert found.blocks == 2
    first = await consumer.retrieve(found)
    second = asyncio.create_task(consumer.retrieve(found, segment=1))
    for layer in range(3):
        await publication.put_layer(layer, whole.k[layer][: 2 * size], whole.v[layer][: 2 * size])
    await first.wait()
    assert await publication.add_segment(tokens=whole.tokens[8:]) == 1
    chunk = await second
    for layer in range(3):
        await publication.put_layer(layer, whole.k[layer][2 * size :], whole.v[layer][2 * size :])
    await publication.finish()
    await chunk.wait()
    assert chunk.geometry.first_block == 2
    late = await consumer.retrieve(found, segment=1)
    await late.wait()
    for layer in range(3):
        parts = [await one.layer(layer) for one in (first, chunk)]
        assert b"".join(part.buffers["k"] for part in parts) == whole.k[layer]
        assert (await late.layer(layer)).buffers["v"] == whole.v[layer][2 * size :]
    for one in (first, chunk, late):
        assert (one.counters.duplicates, one.report().missing) == (0, 0)


async def test_a_publisher_dials_a_listening_consumer(world) -> None:
    cache = Cache()
    publisher, _ = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer()
    port = await consumer.listen("127.0.0.1", 0, tls=world.server_tls)
    with pytest.raises(InvalidInput, match="listens already"):
        await consumer.listen("127.0.0.1", 0, tls=world.server_tls)
    finding = asyncio.create_task(consumer.discover(cache.descriptor, cache.tokens, wait=10))
    await asyncio.sleep(0)
    urls = ["moqt://127.0.0.1:9/", f"moqt://127.0.0.1:{port}/"]
    assert await publisher.dial(urls, tls=world.client_tls) == urls[1]
    (found,) = await finding
    assert found.name == publication.name
    assert (publisher.sessions, publisher.consumers) == (1, 0)
    retrieval = await consumer.retrieve(found)
    await cache.put(publication)
    await publication.finish()
    await check(retrieval, cache)
    later = await Cache(seed=2).publish(publisher)
    (found,) = await consumer.discover(Cache(seed=2).descriptor, Cache(seed=2).tokens, wait=10)
    assert found.name == later.name
    assert retrieval.report().sources == ("a publisher that connected",)


async def test_dialling_waits_for_who_is_not_there_yet(world) -> None:
    cache = Cache()
    publisher, _ = await world.publisher()
    consumer = await world.consumer()
    port = await consumer.listen("127.0.0.1", 0, tls=world.server_tls)
    await consumer.close()
    url = f"moqt://127.0.0.1:{port}/"
    dialling = asyncio.create_task(publisher.dial(url, tls=world.client_tls, wait=10))
    await asyncio.sleep(0.05)
    consumer = await world.consumer()
    await consumer.listen("127.0.0.1", port, tls=world.server_tls)
    assert await dialling == url
    publication = await cache.publish(publisher)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens, wait=10)
    assert found.name == publication.name


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT8_E4M3FN])
async def test_arrays_in_and_out(world, dtype: DType) -> None:
    cache = Cache(layers=1, dtype=dtype)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    kind = np.dtype(getattr(ml_dtypes, dtype.value, dtype.value))
    k, v = (np.frombuffer(one[0], kind).reshape(12, 2, 16) for one in (cache.k, cache.v))
    await publication.put_layer(0, k, v)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    layer = await retrieval.layer(0)
    array = layer.array("k")
    assert (array.shape, array.dtype, array.flags.writeable) == ((12, 2, 16), kind, False)
    assert array.tobytes() == k.tobytes()
    assert layer.array("v").tobytes() == cache.v[0]
    with pytest.raises(InvalidInput, match="a layer has k and v"):
        layer.array("kv")


async def test_from_a_mapped_file(world, tmp_path) -> None:
    cache = Cache(layers=3)
    path = tmp_path / "cache.safetensors"
    with TensorFileWriter.for_kv_cache(path, cache.descriptor, len(cache.tokens)) as writer:
        for layer in range(3):
            writer.write(f"k.{layer}", cache.k[layer])
            writer.write(f"v.{layer}", cache.v[layer])
        writer.commit()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    with KvCacheFile(path) as file:
        for layer in range(3):
            views = (file.layer(component, layer) for component in publication.components)
            await publication.put_layer(layer, *views)
    await publication.finish()
    await check(await (await world.consumer(url)).retrieve(publication.name), cache)


async def test_large_layers_are_hashed_off_the_loop(world) -> None:
    cache = Cache(layers=2, blocks=8, block_tokens=64, kv_heads=8, head_dim=64)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await publication.put_layer(0, cache.k[0], cache.v[0])
    assert turns > 2
    counting.cancel()
    await publication.put_layer(1, cache.k[1], cache.v[1])
    await check(await (await world.consumer(url)).retrieve(publication.name), cache)


async def test_many_consumers_at_once(world) -> None:
    cache = Cache(layers=8, blocks=4)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumers = [await world.consumer(url) for _ in range(4)]
    retrievals = [await consumer.retrieve(publication.name) for consumer in consumers]
    await cache.put(publication)
    await publication.finish()
    for retrieval in retrievals:
        await check(retrieval, cache)
    assert publisher.consumers == 4
