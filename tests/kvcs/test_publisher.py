"""What a publisher puts on the wire, and how it ends; seen by a bare MOQT subscriber."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvcs.errors import IdentityMismatch, InvalidInput, ManifestTooLarge, UnknownPublication
from kvcs.identity import KVSP_PROFILE_0, DType
from kvcs.manifest import decode
from kvcs.names import PublicationName, TrackName
from kvcs.publisher import Publisher
from moqt import FullTrackName, GroupOrder, LocationFilter, connect
from moqt.codec.params import Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed
from moqt.model import ObjectStatus
from tests.kvcs.endpoints import OTHER_KEY, SCOPE_KEY, Cache

pytestmark = pytest.mark.e2e

LIVE = Parameters(
    location_filter=LocationFilter.next_object(),
    group_order=GroupOrder.ASCENDING,
    fill=Parameters(location_filter=LocationFilter.since(0)),
)


class Recorder:
    """A TrackReceiver that keeps everything; ``over`` resolves with how it ended."""

    def __init__(self) -> None:
        self.info: Any = None
        self.heads: list[Any] = []
        self.objects: list[tuple[Any, bytes]] = []
        self.fetched: list[tuple[Any, bytes]] = []
        self.over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def accepted(self, info) -> None:
        self.info = info

    def open_subgroup(self, head) -> Sink:
        self.heads.append(head)
        return Sink(self.objects)

    def open_fetch(self, request_id) -> Sink:
        return Sink(self.fetched)

    def datagram(self, head, payload) -> None:
        pytest.fail("an object as datagram")

    def done(self, code, reason, complete) -> None:
        self.over.set_result((code, reason, complete))

    def failed(self, error) -> None:
        self.over.set_result(error)


class Sink:
    """Joins the octets of each object."""

    def __init__(self, objects: list[tuple[Any, bytes]]) -> None:
        self._objects = objects

    def begin(self, head) -> None:
        self._head, self._octets = head, b""

    def write(self, view) -> None:
        self._octets += view

    def end(self) -> None:
        self._objects.append((self._head, self._octets))

    def gap(self, gap) -> None:
        pytest.fail(f"{gap}")

    def finish(self) -> None:
        pass

    def abort(self, code) -> None:
        pass


async def subscribe(world, url: str, name: PublicationName, *tracks: str) -> list[Recorder]:
    """A connection of its own for these tracks."""
    connection = await connect(url, tls=world.client_tls)
    world.defer(connection.close)
    recorders = []
    for track in tracks:
        recorders.append(Recorder())
        full = FullTrackName(name.namespace, track.encode())
        connection.subscribe(full, recorders[-1], LIVE)
    return recorders


@pytest.mark.rule("M008", "M012", "M423", "M446")
async def test_objects_groups_priorities_and_ends(world) -> None:
    cache = Cache(layers=5, blocks=2)
    publisher, url = await world.publisher(retention=12.5)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    k, manifest = await subscribe(world, url, publication.name, "k.raw.s0", "manifest")
    await world.until(lambda: k.info and manifest.fetched)
    await cache.put(publication)
    await publication.finish()
    assert await k.over == (DoneCode.TRACK_ENDED, "", True)

    assert k.info.properties.max_cache_duration == 12500
    assert k.info.properties.object_delivery_timeout is None
    assert k.info.properties.subgroup_delivery_timeout is None
    assert manifest.info.properties.max_cache_duration == 12500
    heads = sorted(k.heads)
    assert [(h.group, h.subgroup, h.priority, h.first_object) for h in heads] == [
        *((layer, 0, 128 * layer // 5, True) for layer in range(5)),
        (5, 0, 128, True),
    ]
    places = sorted((h.group, h.object, h.status) for h, _ in k.objects)
    normal, end = ObjectStatus.NORMAL, ObjectStatus.END_OF_GROUP
    assert places == sorted(
        [
            *((layer, block, normal) for layer in range(5) for block in range(2)),
            *((layer, 2, end) for layer in range(5)),
            (5, 0, ObjectStatus.END_OF_TRACK),
        ]
    )
    payloads = {(h.group, h.object): octets for h, octets in k.objects if octets}
    assert payloads[3, 1][68:] == cache.k[3][cache.block_octets :]


async def test_a_manifest_at_least_every_eight_layers(world) -> None:
    cache = Cache(layers=20, blocks=1, head_dim=2)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    (manifest,) = await subscribe(world, url, publication.name, "manifest")
    await world.until(lambda: manifest.fetched)
    await cache.put(publication)
    await publication.finish()
    publication.withdraw()
    assert await manifest.over == (DoneCode.TRACK_ENDED, "", True)

    found = sorted(manifest.fetched + manifest.objects)
    status = ObjectStatus.END_OF_TRACK
    versions = [decode(octets) for _, octets in found[:-1]]
    assert [(h.group, h.object, h.priority) for h, _ in found] == [(n, 0, 0) for n in range(5)]
    assert found[-1][0].status is status
    track = TrackName.parse("k.raw.s0")
    listed = [len(v.segments[0].object_digests.get(track, ())) for v in versions]
    assert listed == [0, 8, 16, 20]
    assert [v.segments[0].complete for v in versions] == [False, False, False, True]
    assert json.loads(found[0][1])["segments"][0]["tracks"] == ["k.raw.s0", "v.raw.s0"]


async def test_fail_tells_subscribers_and_withdraws(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    recorders = await subscribe(world, url, publication.name, "k.raw.s0", "manifest")
    await world.until(lambda: all(recorder.info for recorder in recorders))
    await cache.put(publication, 0, 1)
    await publication.fail("out of memory")
    await publication.fail("again")
    for recorder in recorders:
        assert await recorder.over == (DoneCode.INTERNAL_ERROR, "out of memory", True)
    (late,) = await subscribe(world, url, publication.name, "k.raw.s0")
    error = await late.over
    assert isinstance(error, RequestFailed)
    assert error.code == RequestCode.DOES_NOT_EXIST
    with pytest.raises(InvalidInput, match="out of memory"):
        await publication.put_layer(2, cache.k[2], cache.v[2])


async def test_withdrawn_after_the_retention(world) -> None:
    cache = Cache(layers=1, blocks=1)
    publisher, url = await world.publisher(retention=0.05)
    publication = await cache.publish(publisher)
    assert publication.octets > 0
    await world.until(lambda: publication.octets == 0)
    (late,) = await subscribe(world, url, publication.name, "manifest")
    assert (await late.over).code == RequestCode.DOES_NOT_EXIST


async def test_close_delivers_what_was_asked_for(world) -> None:
    cache = Cache(layers=4, blocks=4, block_tokens=64, kv_heads=8, head_dim=64)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    k, v = await subscribe(world, url, publication.name, "k.raw.s0", "v.raw.s0")
    await world.until(lambda: k.info and v.info)
    await cache.put(publication)
    await publisher.close()
    for recorder, tensors in ((k, cache.k), (v, cache.v)):
        assert await recorder.over == (DoneCode.TRACK_ENDED, "", True)
        got = b"".join(octets[68:] for _, octets in sorted(recorder.objects))
        assert got == b"".join(tensors)


@pytest.mark.parametrize("mode", ["live", "completed"])
async def test_close_takes_the_time_that_delivery_takes(world, monkeypatch, mode) -> None:
    """Only a peer that takes nothing more is cut off; nobody can begin anything new."""
    cache = Cache(layers=32, blocks=8, block_tokens=64, kv_heads=8, head_dim=64)
    publisher, url = await world.publisher()
    publication = await cache.publish(publisher)
    retrieval = await (await world.consumer(url)).retrieve(publication.name, mode=mode)
    stranger = await world.consumer(url)
    await world.until(lambda: retrieval.counters.objects)
    monkeypatch.setattr("moqt.driver.CLOSE_TIMEOUT", 0.4)
    closing = asyncio.create_task(publisher.close())
    with pytest.raises(UnknownPublication, match=r"GOING_AWAY|session ended|session closed"):
        await stranger.retrieve(publication.name)
    await closing
    report = await retrieval.wait()
    assert (report.digest, report.setbacks) == (cache.digest(), ())


async def test_close_ends_an_unfinished_publication_as_failed(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    (k,) = await subscribe(world, url, publication.name, "k.raw.s0")
    await world.until(lambda: k.info)
    await cache.put(publication, 0, 0)
    assert (publisher.sessions, publisher.consumers) == (1, 1)
    await publisher.close()
    code, reason, _ = await k.over
    assert code == DoneCode.INTERNAL_ERROR
    assert "before the last layer" in reason


# ---------------------------------------------------------------------------- without any consumer


@pytest.fixture
def publisher() -> Publisher:
    return Publisher(scope_key=SCOPE_KEY)


async def test_every_production_has_its_own_id(publisher) -> None:
    cache = Cache()
    names = [publisher.open(cache.descriptor, tokens=cache.tokens).name for _ in range(2)]
    assert names[0].namespace[:4] == names[1].namespace[:4]
    assert names[0].pub_id != names[1].pub_id
    keys = KVSP_PROFILE_0.block_keys(SCOPE_KEY, names[0].compat_id, cache.tokens, 4)
    assert names[0].anchor_key == keys[-1]


async def test_uri(publisher) -> None:
    cache = Cache()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    fragment = publication.name.fragment
    assert publication.uri("host.example", 4443) == f"moqt://host.example:4443/#{fragment}"
    assert publication.uri("::1", 443) == f"moqt://[::1]/#{fragment}"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": [1, 2, 3]}, "0 complete blocks of 4"),
        ({"blocks": 9}, "a segment of 9 blocks: 3 complete"),
        ({"tokens": None}, "give their tokens or block keys"),
        ({"tokens": None, "blocks": 3}, "no prompt"),
        ({"block_keys": [b"short"], "tokens": None}, "has 5 octets"),
        ({"components": ("k",)}, "publish k and v, or kv"),
        ({"components": ("q", "v")}, "there are k, v and kv"),
        ({"production": "xyz"}, "32 lower-case hex"),
    ],
)
async def test_open_says_what_is_wrong(publisher, change: dict[str, Any], text: str) -> None:
    cache = Cache()
    with pytest.raises(InvalidInput, match=text):
        publisher.open(cache.descriptor, **{"tokens": cache.tokens} | change)


async def test_open_without_a_scope() -> None:
    cache = Cache()
    with pytest.raises(InvalidInput, match="scope_key"):
        Publisher().open(cache.descriptor, block_keys=[bytes(32)])


async def test_a_manifest_that_could_not_be_published_is_refused_at_once(publisher) -> None:
    cache = Cache(layers=4096, blocks=1, block_tokens=1, kv_heads=1, head_dim=1)
    with pytest.raises(ManifestTooLarge, match="use block_tokens"):
        publisher.open(cache.descriptor, tokens=list(range(1000)))


async def test_ready_made_names() -> None:
    cache = Cache(blocks=3)
    compat_id = KVSP_PROFILE_0.compatibility_id(cache.descriptor.to_json())
    keys = [bytes([n]) * 32 for n in range(3)]
    name = PublicationName(bytes(16), compat_id, keys[-1], bytes(16))
    publisher = Publisher()
    assert publisher.open(cache.descriptor, name=name, block_keys=keys).name == name
    other = PublicationName(bytes(16), compat_id, keys[-1], bytes(15) + b"1")
    counted = publisher.open(cache.descriptor.to_json(), name=other, blocks=3)
    assert (counted.name, counted.geometry.blocks) == (other, 3)
    wrong = PublicationName(bytes(16), compat_id, keys[0], bytes(15) + b"2")
    with pytest.raises(IdentityMismatch, match="anchor key"):
        publisher.open(cache.descriptor, name=wrong, block_keys=keys)
    wrong = PublicationName(bytes(16), bytes(32), keys[-1], bytes(15) + b"2")
    with pytest.raises(IdentityMismatch, match="compatibility id"):
        publisher.open(cache.descriptor, name=wrong, block_keys=keys)


async def test_what_cannot_follow(publisher) -> None:
    cache = Cache(layers=1)
    keys = [bytes([n]) * 32 for n in range(3)]
    publication = publisher.open(cache.descriptor, block_keys=keys[:1])
    with pytest.raises(InvalidInput, match="tokens after ready-made block keys"):
        await publication.add_segment(tokens=cache.tokens)
    assert await publication.add_segment(block_keys=keys[1:]) == 1
    assert publication.descriptor == cache.descriptor
    counted = Publisher().open(
        cache.descriptor,
        name=dataclasses.replace(publication.name, pub_id=bytes(16)),
        tokens=cache.tokens[:6],
    )
    assert await counted.add_segment(tokens=cache.tokens[6:]) == 1
    assert await counted.add_segment(blocks=2) == 2
    assert [segment.blocks for segment in counted.segments] == [1, 2, 2]
    with pytest.raises(InvalidInput, match="negative"):
        Publisher(retention=-1.0)


async def test_a_cancelled_version_of_the_manifest_is_made_up_for(publisher, monkeypatch) -> None:
    """The cancellation hits while the version is encoded, after its layer was published."""
    cache = Cache(layers=8, blocks=1)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    await cache.put(publication, 0, 6)
    never = asyncio.get_running_loop().create_future()

    async def hangs(octets, call):
        return call() if octets != 8 * 2 * 32 * 2 else await never

    monkeypatch.setattr("kvcs.publication.off_loop", hangs)
    putting = asyncio.create_task(publication.put_layer(7, cache.k[7], cache.v[7]))
    await asyncio.sleep(0.01)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    monkeypatch.undo()
    assert not decode(b"".join(newest_version(publication))).segments[0].complete
    await publication.finish()
    assert decode(b"".join(newest_version(publication))).segments[0].complete


def newest_version(publication):
    """The payload of the newest manifest."""
    track = publication._manifest
    return track._groups[max(track._groups)][0].payload


async def test_layers_in_turn(publisher) -> None:
    cache = Cache(layers=3)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    with pytest.raises(InvalidInput, match="layer 1 of segment 0 out of turn: layer 0 of 3"):
        await publication.put_layer(1, cache.k[1], cache.v[1])
    with pytest.raises(InvalidInput, match="0 of 3 layers"):
        await publication.finish()
    with pytest.raises(InvalidInput, match="give k and v"):
        await publication.put_layer(0, cache.k[0])
    with pytest.raises(InvalidInput, match="segment 1: this publication has 0 to 0"):
        await publication.put_layer(0, cache.k[0], cache.v[0], segment=1)
    await asyncio.gather(*(publication.put_layer(n, cache.k[n], cache.v[n]) for n in range(3)))
    with pytest.raises(InvalidInput, match="layer 3 of segment 0 out of turn"):
        await publication.put_layer(3, cache.k[0], cache.v[0])
    await publication.finish()


SHAPE = (12, 2, 16)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (bytes(100), "100 octets, but 12 tokens x 2 heads x 16 of float16 take 768"),
        (bytes(768 + 256), "take 768"),
        (np.zeros(SHAPE, "f4"), "elements are float32, the descriptor says float16"),
        (np.zeros((2, 12, 16), "f2"), "shape .2, 12, 16., but .token, 2, 16."),
        (np.zeros(SHAPE, ">f2"), "big-endian"),
        (np.zeros((12, 4, 16), "f2")[:, ::2], "not contiguous"),
        (None, "NoneType lends no contiguous octets"),
        ([1.0], "list lends no contiguous octets"),
    ],
)
async def test_tensors_that_do_not_fit(publisher, tensor: object, text: str) -> None:
    cache = Cache(layers=1)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    with pytest.raises(InvalidInput, match=text):
        await publication.put_layer(0, tensor, cache.v[0])
    await publication.put_layer(0, np.zeros(SHAPE, "f2"), bytearray(768))


async def test_tokens_that_fill_no_block_are_left_off(publisher) -> None:
    cache = Cache(layers=1)
    publication = publisher.open(cache.descriptor, tokens=[*cache.tokens, 1, 2, 3])
    assert publication.geometry.tokens == 12
    await publication.put_layer(0, np.zeros((15, 2, 16), "f2"), np.zeros((15, 2, 16), "f2"))


async def test_arrays_of_bfloat16(publisher) -> None:
    cache = Cache(layers=1, dtype=DType.BFLOAT16)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    array = np.frombuffer(cache.k[0], ml_dtypes.bfloat16).reshape(SHAPE)
    with pytest.raises(InvalidInput, match="elements are float16"):
        await publication.put_layer(0, np.zeros(SHAPE, "f2"), array)
    await publication.put_layer(0, array, np.frombuffer(cache.v[0], "u2").reshape(SHAPE))


async def test_segments_carry_tokens_over(publisher) -> None:
    cache = Cache(layers=1, blocks=5)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens[:7], blocks=1)
    with pytest.raises(InvalidInput, match="0 complete blocks"):
        await publication.add_segment()
    assert await publication.add_segment(tokens=cache.tokens[7:13]) == 1
    assert await publication.add_segment(tokens=cache.tokens[13:]) == 2
    assert [(s.first_block, s.blocks) for s in publication.segments] == [(0, 1), (1, 2), (3, 2)]
    keys = KVSP_PROFILE_0.block_keys(SCOPE_KEY, publication.name.compat_id, cache.tokens, 4)
    assert publication.name.anchor_key == keys[0]
    with pytest.raises(InvalidInput, match="0 of 1 layers"):
        await publication.finish()
    for segment, (first, last) in enumerate([(0, 1), (1, 3), (3, 5)]):
        part = slice(first * cache.block_octets, last * cache.block_octets)
        await publication.put_layer(0, cache.k[0][part], cache.v[0][part], segment=segment)
    await publication.finish()


async def test_extras_and_scope_keys_give_other_anchors() -> None:
    cache = Cache()
    anchors = set()
    for key in (SCOPE_KEY, OTHER_KEY):
        for extras in (None, {"salt": "a"}):
            publisher = Publisher(scope_key=key)
            made = publisher.open(cache.descriptor, tokens=cache.tokens, extras=extras)
            anchors.add(made.name.anchor_key)
    assert len(anchors) == 4
