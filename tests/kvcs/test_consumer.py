"""What a consumer makes of faults: counted, recovered where possible, never shown as complete."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct

import pytest

from kvcs.consumer import Consumer
from kvcs.errors import (
    IdentityMismatch,
    IncompletePublication,
    InvalidInput,
    ManifestRejected,
    UnknownPublication,
)
from kvcs.manifest import encode
from kvcs.names import PublicationName
from kvcs.payload import HEADER_OCTETS
from moqt.model import Location, LocationRange, ObjectHead, ObjectStatus, SubgroupHead
from moqt.publisher import ServingLimits, Track
from tests.kvcs.endpoints import OTHER_KEY, Cache, check
from tests.kvcs.forgery import Forgery, K, V, unharmed

pytestmark = pytest.mark.e2e

#: Seconds without progress: enough for loopback, short enough for tests that wait for it.
SHORT = 0.3
HURT = Location(2, 1)


def patch(offset: int, octets: bytes):
    """Damage to the object at HURT of the k track: other octets from ``offset`` on."""

    def damage(track, place, payload: bytes) -> bytes:
        if (track, place) != (K, HURT):
            return payload
        return payload[:offset] + octets + payload[offset + len(octets) :]

    return damage


def resized(length: int):
    """Damage at HURT: another number of data octets, with a header that says so or not."""

    def damage(track, place, payload: bytes) -> bytes:
        if (track, place) != (K, HURT):
            return payload
        data = payload[HEADER_OCTETS:][:length]
        return payload[:32] + struct.pack(">I", length) + payload[36:HEADER_OCTETS] + data

    return damage


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (patch(0, b"KVO2"), "magic"),
        (patch(4, b"\x02"), "version"),
        (patch(5, b"\x02"), "component"),
        (patch(11, b"\x07"), "layer"),
        (patch(15, b"\x07"), "block"),
        (patch(23, b"\x07"), "token_start"),
        (patch(27, b"\x07"), "token_count"),
        (patch(28, b"\xff\x01"), "codec"),
        (patch(32, b"\x00\x00\x00\x07"), "length"),
        (resized(10), "decoded_length"),
        (patch(HEADER_OCTETS + 3, b"????"), "digest"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("mode", ["completed", "live"])
async def test_a_bad_object_is_counted_and_missing(world, damage, reason: str, mode) -> None:
    cache = Cache(layers=4, blocks=3)
    forgery = Forgery(cache, damage)
    url = await forgery.serve(world)
    forgery.all(listed=False)
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, mode=mode, timeout=SHORT)
    with pytest.raises(IncompletePublication, match="1 of 24 objects") as failure:
        await retrieval.wait()
    assert failure.value.missing == {K: (LocationRange(HURT, HURT),)}
    report = retrieval.report()
    assert report.rejected.keys() == {reason}
    assert (report.missing, report.objects, report.digest) == (1, 23, None)
    assert (await retrieval.layer(1)).buffers["k"] == cache.k[1]
    with pytest.raises(IncompletePublication):
        await retrieval.layer(HURT.group)


async def test_an_object_that_the_manifest_denies(world) -> None:
    cache = Cache(layers=4, blocks=3)
    other = Cache(layers=4, blocks=3, seed=1)

    def exchange(track, place, payload: bytes) -> bytes:
        if (track, place) != (K, HURT):
            return payload
        forgery.cache, kept = other, forgery.cache
        forgery.payload = unharmed
        found = forgery.object(track, place)
        forgery.cache, forgery.payload = kept, exchange
        return found

    forgery = Forgery(cache, exchange)
    url = await forgery.serve(world)
    forgery.all()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name, timeout=SHORT)
    with pytest.raises(IncompletePublication):
        await retrieval.wait()
    assert retrieval.report().rejected.keys() == {"manifest_digest"}


class Healing(Track):
    """Keeps good objects for FETCH, whatever it sent live."""

    good: Forgery

    def objects(self, within, order, wake, fill_timeout=None):
        for stored in super().objects(within, order, wake):
            track = K if self.name.name == K.wire else V
            payload = self.good.object(track, stored.head.location)
            yield stored._replace(payload=(payload,))


@pytest.mark.parametrize("late", [False, True])
async def test_a_bad_object_is_asked_for_again(world, late: bool) -> None:
    cache = Cache(layers=4, blocks=3)
    forgery = Forgery(cache, patch(HEADER_OCTETS, b"????"))
    for name, track in forgery.tracks.items():
        forgery.catalog.remove(track)
        forgery.tracks[name] = forgery.catalog.add(Healing(track.name))
        forgery.tracks[name].good = Forgery(cache)
    url = await forgery.serve(world)
    forgery.version()
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, timeout=5)
    await world.until(lambda: all(track._subscriptions for track in forgery.tracks.values()))
    for layer in range(4 if late else 3):
        forgery.layer(layer)
    # Not late: the repair comes while production goes on.
    assert (await retrieval.layer(2)).buffers["k"] == cache.k[2]
    if not late:
        forgery.layer(3)
    forgery.end()
    forgery.version()
    report = await retrieval.wait()
    assert report.digest == cache.digest()
    assert (report.rejected, report.missing, report.duplicates) == ({"digest": 1}, 0, 0)


# --------------------------------------------------------------------------------- the publisher


@pytest.mark.parametrize("published", [0, 1, 3])
async def test_the_publisher_dies(world, published: int) -> None:
    cache = Cache(layers=4, blocks=2)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(publication.name)
    await cache.put(publication, 0, published - 1)
    if published:
        await retrieval.layer(published - 1)
    (connection,) = publisher._servers[0].connections
    connection.session.close(1, "gone")
    await publisher._servers[0]._listener.close()
    with pytest.raises(IncompletePublication, match=f"{4 * (4 - published)} of 16 objects") as got:
        await retrieval.wait()
    missing = LocationRange(Location(published, 0), Location(3, 1))
    assert got.value.missing == {K: (missing,), V: (missing,)}
    assert [mark.layer for mark in retrieval.events] == list(range(published))
    assert retrieval.report().digest is None
    for layer in range(published):
        assert (await retrieval.layer(layer)).buffers["v"] == cache.v[layer]
    with pytest.raises(IncompletePublication):
        await retrieval.layer(published)


async def test_the_publisher_gives_up(world) -> None:
    cache = Cache(layers=4)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    waiting = asyncio.create_task(retrieval.layer(3))
    await cache.put(publication, 0, 1)
    await retrieval.layer(1)
    await publication.fail("out of memory")
    with pytest.raises(IncompletePublication, match="INTERNAL_ERROR out of memory"):
        await retrieval.wait()
    with pytest.raises(IncompletePublication):
        await waiting


async def test_silence_is_waited_for_within_bounds(world) -> None:
    cache = Cache(layers=4)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name, timeout=SHORT)
    await cache.put(publication, 0, 1)
    with pytest.raises(IncompletePublication, match=r"nothing came for 0.3 s"):
        await retrieval.wait()


async def test_completed_mode_takes_what_there_is(world) -> None:
    cache = Cache(layers=4)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    await cache.put(publication, 0, 1)
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(publication.name, mode="completed")
    with pytest.raises(IncompletePublication, match="12 of 24"):
        await retrieval.wait()
    part = await consumer.retrieve(publication.name, mode="completed", layers=(0, 1))
    await check(part, cache)


async def test_cancelled_and_the_neighbour_unharmed(world) -> None:
    cache = Cache(layers=6)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    retrievals = [await consumer.retrieve(publication.name) for _ in range(2)]
    other = await (await world.consumer(url)).retrieve(publication.name)
    await cache.put(publication, 0, 2)
    await retrievals[0].layer(2)
    async with retrievals[0]:
        waiting = asyncio.create_task(retrievals[0].layer(5))
        await asyncio.sleep(0)
    with pytest.raises(IncompletePublication, match="cancelled"):
        await waiting
    await cache.put(publication, 3)
    await publication.finish()
    await check(retrievals[1], cache)
    await check(other, cache)


async def test_more_fetches_than_the_publisher_serves(world) -> None:
    cache = Cache(layers=3, blocks=2)
    publisher, url = await world.publisher(limits=ServingLimits(fetches=1, retry_after=5))
    publication = await cache.publish(publisher)
    consumer = await world.consumer(url)
    retrievals = [await consumer.retrieve(publication.name) for _ in range(3)]
    for retrieval in retrievals:
        await check(retrieval, cache)


# ------------------------------------------------------------------------------------- manifests


async def test_manifests_that_are_none(world) -> None:
    cache = Cache()
    other = dataclasses.replace(Cache().descriptor, model="another")
    good = json.loads(encode(Forgery(cache).builder.build()))
    wrong = good | {"compat": other.to_json()}
    for number, (octets, error) in enumerate(
        [
            (b"{", ManifestRejected),
            (json.dumps(good | {"layers": 9}).encode(), ManifestRejected),
            (json.dumps(wrong).encode(), IdentityMismatch),
        ]
    ):
        forgery = Forgery(cache, number=number)
        consumer = await world.consumer(await forgery.serve(world))
        forgery.version(octets)
        with pytest.raises(error):
            await consumer.retrieve(forgery.name)


async def test_a_later_manifest_that_takes_back(world) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name)
    forgery.layer(0)
    await retrieval.layer(0)
    manifest = json.loads(encode(forgery.builder.build()))
    manifest["segments"][0]["blocks"] += 1
    manifest["segments"][0]["object_digests"] = {}
    forgery.version(json.dumps(manifest).encode())
    with pytest.raises(ManifestRejected, match="a later version changes 'blocks'"):
        await retrieval.wait()


@pytest.mark.parametrize("handed_out", [True, False])
async def test_a_later_manifest_that_denies_what_was_verified(world, handed_out: bool) -> None:
    cache, other = Cache(layers=3), Cache(layers=3, seed=1)
    forgery, lie = Forgery(cache), Forgery(other)
    forgery.payload = lambda track, place, payload: (
        lie.object(track, place) if place.group == 0 and not forgery.cured else payload
    )
    forgery.cured = False
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name, timeout=SHORT)
    forgery.layer(0)
    await world.until(lambda: retrieval.events)
    if handed_out:
        await retrieval.layer(0)
    for layer in (1, 2):
        forgery.layer(layer)
    forgery.end()
    forgery.version()
    error = ManifestRejected if handed_out else IncompletePublication
    with pytest.raises(error, match="do not use it" if handed_out else "6 of 18 objects"):
        await retrieval.wait()
    with pytest.raises(error):
        await retrieval.layer(0)


async def test_two_contents_of_one_manifest_version(world) -> None:
    forgery = Forgery(Cache())
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name)
    octets = encode(forgery.builder.build()) + b" "
    (request,) = forgery.manifest._subscriptions
    sink = request.subgroup(SubgroupHead(0, 0, 0))
    request.within = LocationRange(Location(0, 0), None)
    sink.begin(ObjectHead(0, 0, 0, 0, len(octets)))
    sink.write(octets)
    sink.end()
    sink.finish()
    with pytest.raises(ManifestRejected, match="two contents"):
        await retrieval.wait()


async def test_no_manifest_at_all(world) -> None:
    forgery = Forgery(Cache())
    consumer = await world.consumer(await forgery.serve(world))
    with pytest.raises(UnknownPublication, match=r"no manifest within 0.3 s"):
        await consumer.retrieve(forgery.name, timeout=SHORT)
    forgery.manifest.end()
    with pytest.raises(UnknownPublication, match="no manifest: INVALID_RANGE"):
        await consumer.retrieve(forgery.name, timeout=SHORT)


async def test_end_of_group_in_the_wrong_place_costs_nothing_but_a_fetch(world) -> None:
    cache = Cache(layers=3)
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name)
    await world.until(lambda: forgery.tracks[K]._subscriptions)
    forgery.layer(0)
    await retrieval.layer(0)
    broken = forgery.tracks[K].subgroup(7)
    broken.object(0, status=ObjectStatus.END_OF_GROUP)
    broken.finish()
    await world.until(lambda: not forgery.tracks[K]._subscriptions)
    forgery.layer(1)
    forgery.layer(2)
    forgery.version()
    forgery.tracks[V].end()
    await check(retrieval, cache)


# ------------------------------------------------------------------------------------- questions


async def test_an_unknown_publication(world) -> None:
    publisher, url = await world.publisher()
    publication = publisher.open(Cache().descriptor, tokens=Cache().tokens)
    consumer = await world.consumer(url)
    name = dataclasses.replace(publication.name, pub_id=bytes(16))
    with pytest.raises(UnknownPublication, match="no manifest: DOES_NOT_EXIST"):
        await consumer.retrieve(name)
    with pytest.raises(UnknownPublication, match="connect or listen first"):
        await (await world.consumer()).retrieve(name)


async def test_the_expected_model(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    other = dataclasses.replace(cache.descriptor, model="m", kv_heads=4)
    with pytest.raises(IdentityMismatch, match="kv_heads: 4 here, 2 there; model: 'm' here"):
        await consumer.retrieve(publication.name, expect=other)
    retrieval = await consumer.retrieve(publication.name, expect=cache.descriptor.to_json())
    assert retrieval.manifest.descriptor == cache.descriptor


async def test_questions_that_make_no_sense(world) -> None:
    cache = Cache(layers=4, blocks=3)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    for options, text in (
        ({"layers": (2, 4)}, "layers 2 to 4: the model has 0 to 3"),
        ({"blocks": 4}, "first 4 blocks: the segment has 1 to 3"),
        ({"codec": "zstd"}, "codec 'zstd': the publication has k.raw.s0, v.raw.s0"),
        ({"max_octets": 100}, "the limit is 100"),
    ):
        with pytest.raises(InvalidInput, match=text):
            await consumer.retrieve(publication.name, **options)
    retrieval = await consumer.retrieve(publication.name, layers=(1, 2))
    with pytest.raises(InvalidInput, match="layer 0: layers 1 to 2 were asked for"):
        await retrieval.layer(0)
    with pytest.raises(UnknownPublication, match="lists 1 segments, not segment 1"):
        await consumer.retrieve(publication.name, segment=1, timeout=SHORT)
    for name in ("scope_id", "block_keys"):
        ready = {"scope_id": bytes(16)} if name == "block_keys" else {}
        with pytest.raises(InvalidInput, match=f"scope_key to the Consumer, or {name} here"):
            await Consumer().discover(cache.descriptor, cache.tokens, **ready)


async def test_another_scope_key_finds_nothing(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    stranger = await world.consumer(url, scope_key=OTHER_KEY)
    with pytest.raises(UnknownPublication, match="scope key, descriptor, token ids") as failure:
        await stranger.discover(cache.descriptor, cache.tokens)
    assert publication.name.compat_id.hex()[:8] in str(failure.value)
    assert publication.name.scope_id.hex()[:8] not in str(failure.value)


async def test_a_consumer_without_any_key(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = await cache.publish(publisher)
    consumer = await world.consumer(url, scope_key=None)
    name = PublicationName.from_fragment(publication.name.fragment)
    await check(await consumer.retrieve(name), cache)


async def test_block_keys_of_another_prompt(world) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    manifest = json.loads(encode(forgery.builder.build()))
    manifest["segments"][0]["block_keys_sha256"] = "ab" * 32
    forgery.version(json.dumps(manifest).encode())
    (found,) = await consumer.discover(cache.descriptor, cache.tokens)
    with pytest.raises(IdentityMismatch, match="covers other tokens"):
        await consumer.retrieve(found)
    retrieval = await consumer.retrieve(found.name)
    assert retrieval.name == forgery.name


async def test_more_objects_than_any_manifest_lists(world) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    manifest = json.loads(encode(forgery.builder.build()))
    manifest["segments"][0]["blocks"] = 1 << 30
    forgery.version(json.dumps(manifest).encode())
    with pytest.raises(ManifestRejected, match="do not fit into 64 MiB"):
        await consumer.retrieve(forgery.name)


async def test_a_manifest_too_large_to_be_taken(world, monkeypatch) -> None:
    forgery = Forgery(Cache())
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    monkeypatch.setattr("kvcs.manifest_track.MAX_MANIFEST_OCTETS", 100)
    with pytest.raises(ManifestRejected, match="at most 100 are taken"):
        await consumer.retrieve(forgery.name)


async def test_versions_out_of_order_and_cut_off(world) -> None:
    """Streams may overtake one another, and end in the middle."""
    cache = Cache()
    forgery = Forgery(cache)
    url = await forgery.serve(world)
    consumer = await world.consumer(url)
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name)
    early = encode(forgery.builder.build())
    for layer in range(cache.layers):
        forgery.layer(layer)
    last = encode(forgery.builder.build())
    (request,) = forgery.manifest._subscriptions
    cut = request.subgroup(SubgroupHead(9, 0, 0))
    cut.begin(ObjectHead(9, 0, 0, 0, 1000))
    cut.write(bytes(10))
    for group, octets in ((2, last), (1, early)):
        sink = request.subgroup(SubgroupHead(group, 0, 0))
        sink.begin(ObjectHead(group, 0, 0, 0, len(octets)))
        sink.write(octets)
        sink.end()
        sink.finish()
    await world.until(lambda: retrieval.manifest.segments[0].complete)
    cut.abort(1)
    forgery.end()
    await check(retrieval, cache)
    assert retrieval.manifest.segments[0].object_digests[K]


async def test_two_retrievals_share_a_manifest(world) -> None:
    cache = Cache(layers=2)
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrievals = [await consumer.retrieve(forgery.name, layers=(n, n)) for n in range(2)]
    assert len(forgery.manifest._subscriptions) == 1
    (link,) = consumer._links.open
    for layer in range(2):
        forgery.layer(layer)
    forgery.end()
    forgery.version()
    for retrieval in retrievals:
        await check(retrieval, cache)
    await world.until(lambda: not link.watches)


async def test_a_retrieval_that_never_began(world) -> None:
    """Cancelled before its first step it still tells whoever waits."""
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(publication.name)
    retrieval.cancel()
    with pytest.raises(IncompletePublication, match="cancelled"):
        await retrieval.wait()
    (link,) = consumer._links.open
    assert not link.watches


async def test_an_error_of_ours_is_not_hidden(world, monkeypatch) -> None:
    def broken(self, leg):
        raise RuntimeError("a bug")

    monkeypatch.setattr("kvcs.pursuit.Pursuit._progress", broken)
    told: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    with pytest.raises(RuntimeError, match="a bug"):
        await retrieval.wait()
    assert [context["message"] for context in told] == ["a retrieval has failed"]
