"""Objects into layers: checks, copies, conflicts, late manifests, what is missing."""

from __future__ import annotations

import hashlib
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcs.assembler import Assembly
from kvcs.errors import (
    IncompletePublication,
    InvalidInput,
    KvcsError,
    PublicationConflict,
    RejectReason,
)
from kvcs.names import Component, TrackName
from kvcs.payload import decode_header, digest_of, encode_header, header_of
from moqt.errors import MalformedTrack
from moqt.model import Gap, GapKind, Location, LocationRange, ObjectStatus
from tests.kvcs.blocks import KV, K, Segment, V, feed, head, small, status

PLACE = Location(0, 1)


@pytest.fixture
def segment() -> Segment:
    return small()


def fill(assembly: Assembly, segment: Segment, but: tuple[Location, ...] = ()) -> None:
    for track in assembly.tracks:
        sink = assembly.stream(track)
        for layer in range(segment.geometry.layers):
            for block in range(segment.geometry.blocks):
                place = Location(layer, block)
                if place not in but:
                    feed(sink, place, segment.payload(track, place))
        sink.finish()


def other(segment: Segment, track: TrackName, place: Location) -> bytes:
    """Another valid object for a place: what only a second production could give."""
    header = decode_header(segment.payload(track, place))
    data = bytes(octet ^ 1 for octet in segment.data(track, place))
    return encode_header(header._replace(digest=digest_of(data))) + data


@pytest.mark.parametrize("tracks", [(K, V), (V, K), (KV,)])
def test_layers_are_put_together(segment: Segment, tracks: tuple[TrackName, ...]) -> None:
    usable: list[int] = []
    assembly = Assembly(segment.geometry, tracks, on_layer=usable.append)
    fill(assembly, segment)
    assert usable == [0, 1]
    assert assembly.complete
    assert assembly.missing() == {}
    assert assembly.missing_count == 0
    assert assembly.counters.objects == 6 * len(tracks)
    assert assembly.counters.octets == 2 * 6 * segment.size
    for (component, layer), tensor in segment.tensors.items():
        view = assembly.layer_buffer(component, layer)
        assert view == tensor
        assert view.readonly


@pytest.mark.parametrize("tracks", [(K, V), (KV,)])
def test_layer_digest_is_the_same_for_both_forms(
    segment: Segment, tracks: tuple[TrackName, ...]
) -> None:
    # draft, Object Payload
    assembly = Assembly(segment.geometry, tracks)
    fill(assembly, segment)
    joined = segment.data(K, PLACE) + segment.data(V, PLACE)
    assert assembly.layer_digest(0, 1) == hashlib.sha256(joined).digest()
    assert assembly.layer_digest(0, 1) == decode_header(segment.payload(KV, PLACE)).digest


def test_every_single_cut_gives_the_same(segment: Segment) -> None:
    payload = segment.payload(KV, PLACE)
    for cut in range(1, len(payload)):
        assembly = Assembly(segment.geometry, [KV])
        feed(assembly.stream(KV), PLACE, payload, [cut])
        assert assembly.counters.objects == 1
    assembly = Assembly(segment.geometry, [KV])
    feed(assembly.stream(KV), PLACE, payload, range(len(payload)))
    assert assembly.counters.objects == 1


# ----------------------------------------------------------------------------------------- checks


def altered(segment: Segment, **change: Any) -> bytes:
    payload = segment.payload(K, PLACE)
    return encode_header(decode_header(payload)._replace(**change)) + payload[68:]


REJECTED: dict[RejectReason, Any] = {
    RejectReason.MAGIC: lambda s: b"KVO0" + s.payload(K, PLACE)[4:],
    RejectReason.VERSION: lambda s: b"KVO1\x00" + s.payload(K, PLACE)[5:],
    RejectReason.LAYER: lambda s: altered(s, layer=1),
    RejectReason.BLOCK: lambda s: altered(s, block=0),
    RejectReason.COMPONENT: lambda s: altered(s, component=2),
    RejectReason.CODEC: lambda s: altered(s, codec=0xFF01),
    RejectReason.TOKEN_START: lambda s: altered(s, token_start=2),
    RejectReason.TOKEN_COUNT: lambda s: altered(s, token_count=1),
    RejectReason.DECODED_LENGTH: lambda s: altered(s, data_length=5) + b"x",
    RejectReason.DIGEST: lambda s: s.payload(K, PLACE)[:-1] + b"\x00",
    RejectReason.MANIFEST_DIGEST: lambda s: other(s, K, PLACE),
}


@pytest.mark.parametrize("reason", REJECTED)
@pytest.mark.parametrize("cuts", [(), range(1000)])
def test_each_check_discards_the_object(
    segment: Segment, reason: RejectReason, cuts: tuple[int, ...]
) -> None:
    listed = segment.entry((K, V), 1) if reason is RejectReason.MANIFEST_DIGEST else None
    assembly = Assembly(segment.geometry, [K, V], entry=listed)
    sink = assembly.stream(K)
    feed(sink, PLACE, REJECTED[reason](segment), cuts)
    assert assembly.counters.rejected == {reason: 1}
    assert assembly.counters.objects == 0
    assert assembly.missing()[K] == (LocationRange(Location(0, 0), Location(1, 2)),)
    feed(sink, PLACE, segment.payload(K, PLACE), cuts)  # the stream goes on, the place is free
    assert assembly.counters.objects == 1
    assert assembly.counters.rejected == {reason: 1}


@pytest.mark.parametrize("length", [0, 1, 67, 68, 69, 71, 73, 500])
def test_payloads_of_another_length(segment: Segment, length: int) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    feed(assembly.stream(K), PLACE, (segment.payload(K, PLACE) + bytes(500))[:length])
    assert assembly.counters.rejected == {RejectReason.LENGTH: 1}
    assert assembly.counters.objects == 0


def test_a_sink_that_is_given_too_much_rejects(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    sink = assembly.stream(K)
    payload = segment.payload(K, PLACE)
    sink.begin(head(PLACE, len(payload)))
    sink.write(payload + b"more")
    sink.end()
    assert assembly.counters.rejected == {RejectReason.LENGTH: 1}
    feed(sink, PLACE, payload)
    assert assembly.counters.objects == 1


def test_one_flipped_bit_anywhere_is_found(segment: Segment) -> None:
    payload = segment.payload(K, PLACE)
    ignored = {6, 7, 30, 31}
    for at in range(len(payload)):
        broken = bytearray(payload)
        broken[at] ^= 0x10
        assembly = Assembly(segment.geometry, [K, V])
        feed(assembly.stream(K), PLACE, bytes(broken))
        assert assembly.counters.objects == (at in ignored)
        assert assembly.counters.rejected.total() == (at not in ignored)


def test_swapped_objects_are_found(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    feed(assembly.stream(K), Location(0, 0), segment.payload(K, Location(0, 1)))
    feed(assembly.stream(K), Location(0, 0), segment.payload(K, Location(1, 0)))
    feed(assembly.stream(K), Location(0, 0), segment.payload(V, Location(0, 0)))
    assert assembly.counters.rejected == {
        RejectReason.BLOCK: 1,
        RejectReason.LAYER: 1,
        RejectReason.COMPONENT: 1,
    }


# -------------------------------------------------------------------------------- partial interest


def test_a_range_of_layers_and_the_first_blocks(segment: Segment) -> None:
    segment = small(layers=4, blocks=3)
    assembly = Assembly(segment.geometry, [K, V], layers=(1, 2), blocks=2)
    fill(assembly, segment)
    assert assembly.complete
    assert assembly.counters.objects == 8
    assert assembly.counters.surplus == 16
    for layer in (1, 2):
        assert (
            assembly.layer_buffer(Component.K, layer)
            == (segment.tensors[Component.K, layer][: 2 * segment.size])
        )
    assert not assembly.usable(0)
    with pytest.raises(IncompletePublication):
        assembly.layer_buffer(Component.K, 0)


def test_padding_beyond_the_blocks_is_surplus(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    sink = assembly.stream(K)
    feed(sink, Location(0, 3), b"whatever", [2])
    feed(sink, Location(7, 0), b"")
    status(sink, ObjectStatus.END_OF_GROUP, 0, 8)
    assert assembly.counters.surplus == 2
    assert assembly.counters.objects == 0


def test_what_is_missing_comes_in_runs(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    fill(assembly, segment, but=(Location(0, 0), Location(0, 2), Location(1, 0)))
    runs = (
        LocationRange(Location(0, 0), Location(0, 0)),
        LocationRange(Location(0, 2), Location(1, 0)),
    )
    assert assembly.missing() == {K: runs, V: runs}
    assert assembly.missing_count == 6
    assert not assembly.complete


def test_leading_blocks_stay_usable(segment: Segment) -> None:
    # blocks 0, 1, 3 present: 2 can be reused
    segment = small(layers=2, blocks=4)
    assembly = Assembly(segment.geometry, [K, V])
    fill(assembly, segment, but=(Location(1, 2),))
    assert assembly.usable_blocks() == 2
    assert assembly.usable_blocks([0]) == 4
    assert (
        assembly.layer_buffer(Component.V, 1, blocks=2)
        == (segment.tensors[Component.V, 1][: 2 * segment.size])
    )
    for blocks in (3, 4, None):
        with pytest.raises(IncompletePublication, match="layer 1"):
            assembly.layer_buffer(Component.V, 1, blocks)
    for blocks in (0, 5):
        with pytest.raises(InvalidInput, match=f"first {blocks} blocks"):
            assembly.layer_buffer(Component.V, 1, blocks)
    assembly.layer_digest(1, 1)
    with pytest.raises(IncompletePublication, match="layer 1, block 2"):
        assembly.layer_digest(1, 2)


def test_one_track_of_two_is_not_enough(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    sink = assembly.stream(K)
    for block in range(3):
        feed(sink, Location(0, block), segment.payload(K, Location(0, block)))
    assert not assembly.usable(0)
    assert assembly.usable_blocks([0]) == 0


@pytest.mark.parametrize(
    ("tracks", "more", "message"),
    [
        ((), {}, "take k and v, or kv"),
        ((K,), {}, "take k and v, or kv"),
        ((K, K), {}, "take k and v, or kv"),
        ((K, V, KV), {}, "take k and v, or kv"),
        ((K, V._replace(segment=1)), {}, "one codec and one segment"),
        ((K, V._replace(codec="zstd")), {}, "one codec and one segment"),
        ((KV._replace(codec="zstd"),), {}, "only codec 'raw'"),
        ((K, V), {"layers": (0, 2)}, "layers 0 to 2: the model has 0 to 1"),
        ((K, V), {"layers": (1, 0)}, "layers 1 to 0"),
        ((K, V), {"blocks": 0}, "first 0 blocks: the segment has 1 to 3"),
        ((K, V), {"blocks": 4}, "first 4 blocks"),
        ((K, V), {"max_octets": 47}, "48 octets for 2 layers x 3 blocks: the limit is 47"),
    ],
)
def test_impossible_wishes(
    segment: Segment, tracks: tuple[TrackName, ...], more: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Assembly(segment.geometry, tracks, **more)


def test_wrong_questions(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    with pytest.raises(InvalidInput, match=r"track kv\.raw\.s0: this assembly takes k"):
        assembly.stream(KV)
    with pytest.raises(InvalidInput, match="ask for each"):
        assembly.layer_buffer(Component.KV, 0)
    with pytest.raises(InvalidInput, match="segment 1: not that of"):
        assembly.apply_manifest(replace(segment.entry((K, V), 0), segment=1))
    with pytest.raises(InvalidInput, match="not that of"):
        assembly.apply_manifest(replace(segment.entry((K, V), 0), blocks=4))


def resident() -> int:
    """Octets of memory that this process really holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_is_taken_as_octets_arrive(segment: Segment) -> None:
    geometry = replace(segment.geometry, layers=1024, blocks=1 << 16)
    before = resident()
    assembly = Assembly(geometry, [K, V])  # 512 MiB on the word of a manifest
    for layer in range(1024):
        place = Location(layer, 1)
        header = header_of(geometry, Component.K, *place, [b"data"])
        feed(assembly.stream(K), place, encode_header(header) + b"data")
    assert assembly.counters.objects == 1024
    assert resident() - before < 32 << 20


@pytest.mark.parametrize("head_dim", [1 << 10, 1 << 16])
def test_more_memory_than_there_is(segment: Segment, head_dim: int) -> None:
    blocks = (1 << 32) - 1
    geometry = replace(
        segment.geometry, layers=4096, blocks=blocks, head_dim=head_dim, kv_heads=1 << 10
    )
    with pytest.raises(InvalidInput, match="no memory for"):
        Assembly(geometry, [K, V], max_octets=1 << 80)


# ---------------------------------------------------------------------------------- status objects


def test_end_of_track(segment: Segment) -> None:
    for group, number in ((2, 0), (1, 3), (1, 4)):
        assembly = Assembly(segment.geometry, [K, V])
        assert not assembly.ended(K)
        status(assembly.stream(K), ObjectStatus.END_OF_TRACK, group, number)
        assert assembly.ended(K)
        assert not assembly.ended(V)


def test_a_relay_may_say_end_of_group_behind_the_last_layer(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    status(assembly.stream(K), ObjectStatus.END_OF_GROUP, 2, 0)
    assert assembly.ended(K)


@pytest.mark.parametrize(
    ("kind", "group", "number"),
    [
        (ObjectStatus.END_OF_GROUP, 0, 2),
        (ObjectStatus.END_OF_GROUP, 2, 3),
        (ObjectStatus.END_OF_TRACK, 0, 3),
        (ObjectStatus.END_OF_TRACK, 1, 2),
        (ObjectStatus.END_OF_TRACK, 2, 1),
        (ObjectStatus.END_OF_TRACK, 3, 0),
    ],
)
def test_ends_that_contradict_the_manifest(
    segment: Segment, kind: ObjectStatus, group: int, number: int
) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    with pytest.raises(MalformedTrack, match="but the manifest says 2 layers of 3 blocks"):
        status(assembly.stream(K), kind, group, number)
    assert not assembly.ended(K)


def test_gaps_are_counted(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    sink = assembly.stream(K)
    sink.gap(Gap(GapKind.UNKNOWN, Location(1, 2)))
    sink.finish()
    assert assembly.counters.gaps == 1
    assert assembly.missing_count == 12


# ------------------------------------------------------------------------------------------ copies


def half(payload: bytes) -> tuple[bytes, bytes]:
    return payload[:70], payload[70:]


@pytest.mark.parametrize("track", [K, KV])
def test_a_second_copy_is_a_duplicate(segment: Segment, track: TrackName) -> None:
    assembly = Assembly(segment.geometry, [KV] if track is KV else [K, V])
    sinks = [assembly.stream(track) for _ in range(3)]
    payload = segment.payload(track, PLACE)
    first, second = half(payload)
    feed(assembly.stream(track), Location(1, 1), segment.payload(track, Location(1, 1)))
    for sink in sinks:  # all three at once
        sink.begin(head(PLACE, len(payload)))
        sink.write(first)
    for sink in reversed(sinks):
        sink.write(second)
        sink.end()
    feed(sinks[0], PLACE, payload)
    assert assembly.counters.objects == 2
    assert assembly.counters.duplicates == 3


@pytest.mark.parametrize("track", [K, KV])
@pytest.mark.parametrize("failure", ["abort", "digest"])
def test_a_spare_copy_takes_the_place_of_a_failed_one(
    segment: Segment, track: TrackName, failure: str
) -> None:
    assembly = Assembly(segment.geometry, [KV] if track is KV else [K, V])
    owner, spare = assembly.stream(track), assembly.stream(track)
    payload = segment.payload(track, PLACE)
    owner.begin(head(PLACE, len(payload)))
    owner.write(payload[:70])
    feed(spare, PLACE, payload)
    assert assembly.counters.objects == 0
    if failure == "abort":
        owner.abort(0)
        assert assembly.counters.lost == 1
    else:
        owner.write(bytes(len(payload) - 70))
        owner.end()
        assert assembly.counters.rejected == {RejectReason.DIGEST: 1}
    assert assembly.counters.objects == 1
    assert assembly.counters.duplicates == 0
    feed(assembly.stream(track), PLACE, payload)
    assert assembly.counters.duplicates == 1


def test_the_first_copy_may_fail_before_the_second_is_whole(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    owner, spare = assembly.stream(K), assembly.stream(K)
    payload = segment.payload(K, PLACE)
    for sink in (owner, spare):
        sink.begin(head(PLACE, len(payload)))
        sink.write(payload[:70])
    owner.abort(0)
    spare.write(payload[70:])
    spare.end()
    assert assembly.counters.objects == 1


def test_a_bad_copy_never_touches_a_good_one(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    fill(assembly, segment)
    sink = assembly.stream(K)
    feed(sink, PLACE, segment.payload(K, PLACE)[:68] + bytes(4))
    sink.begin(head(PLACE, 72))
    sink.write(segment.payload(K, PLACE)[:68] + bytes(2))
    sink.abort(0)
    assert assembly.counters.rejected == {RejectReason.DIGEST: 1}
    assert assembly.layer_buffer(Component.K, 0) == segment.tensors[Component.K, 0]


def test_other_octets_at_a_place_end_the_track(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    fill(assembly, segment)
    with pytest.raises(PublicationConflict, match="group 0, object 1") as caught:
        feed(assembly.stream(K), PLACE, other(segment, K, PLACE))
    assert isinstance(caught.value, MalformedTrack)
    assert isinstance(caught.value, KvcsError)
    assert (caught.value.track, caught.value.location) == (K, PLACE)
    assert assembly.layer_buffer(Component.K, 0) == segment.tensors[Component.K, 0]


def test_two_copies_that_differ_while_both_arrive(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    owner, spare = assembly.stream(K), assembly.stream(K)
    payload = segment.payload(K, PLACE)
    owner.begin(head(PLACE, len(payload)))
    owner.write(payload[:70])
    feed(spare, PLACE, other(segment, K, PLACE))
    owner.write(payload[70:])
    with pytest.raises(PublicationConflict):
        owner.end()
    assert assembly.counters.objects == 0
    feed(spare, PLACE, payload)
    assert assembly.counters.objects == 1


def test_a_third_copy_that_differs_from_the_spare(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    owner = assembly.stream(K)
    payload = segment.payload(K, PLACE)
    owner.begin(head(PLACE, len(payload)))
    owner.write(payload[:70])
    feed(assembly.stream(K), PLACE, payload)
    with pytest.raises(PublicationConflict):
        feed(assembly.stream(K), PLACE, other(segment, K, PLACE))
    owner.write(payload[70:])
    owner.end()
    assert assembly.counters.objects == 1
    assert assembly.counters.duplicates == 1


# ---------------------------------------------------------------------------------- late manifests


def test_a_late_manifest_confirms(segment: Segment) -> None:
    usable: list[int] = []
    assembly = Assembly(segment.geometry, [K, V], require_listed=True, on_layer=usable.append)
    fill(assembly, segment)
    assert usable == []
    assert assembly.usable_blocks() == 0
    with pytest.raises(IncompletePublication):
        assembly.layer_buffer(Component.K, 0)
    assert assembly.apply_manifest(segment.entry((K, V), 1)) == ()
    assert usable == [0]
    assert assembly.apply_manifest(replace(segment.entry((K, V), 0), object_digests={})) == ()
    assert assembly.apply_manifest(segment.entry((K, V), 2)) == ()
    assert usable == [0, 1]
    assert assembly.complete


def test_a_late_manifest_takes_back(segment: Segment) -> None:
    usable: list[int] = []
    assembly = Assembly(segment.geometry, [K, V], on_layer=usable.append)
    fill(assembly, segment, but=(PLACE,))
    feed(assembly.stream(K), PLACE, other(segment, K, PLACE))
    feed(assembly.stream(V), PLACE, segment.payload(V, PLACE))
    assert usable == [1, 0]
    assert assembly.apply_manifest(segment.entry((K, V), 2)) == (0,)
    assert assembly.counters.rejected == {RejectReason.MANIFEST_DIGEST: 1}
    assert assembly.missing() == {K: (LocationRange(PLACE, PLACE),)}
    assert not assembly.usable(0)
    assert assembly.missing_count == 1
    feed(assembly.stream(K), PLACE, other(segment, K, PLACE))
    assert assembly.counters.rejected == {RejectReason.MANIFEST_DIGEST: 2}
    feed(assembly.stream(K), PLACE, segment.payload(K, PLACE))
    assert usable == [1, 0, 0]
    assert assembly.layer_buffer(Component.K, 0) == segment.tensors[Component.K, 0]


def test_a_place_that_was_taken_back_forgets_its_copies(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    owner = assembly.stream(K)
    wrong = other(segment, K, PLACE)
    owner.begin(head(PLACE, len(wrong)))
    owner.write(wrong[:70])
    feed(assembly.stream(K), PLACE, wrong)
    owner.write(wrong[70:])
    owner.end()
    assembly.apply_manifest(segment.entry((K, V), 1))
    assert assembly.counters.objects == 0
    feed(owner, PLACE, segment.payload(K, PLACE))
    assert assembly.counters.objects == 1


def test_a_manifest_that_comes_while_objects_arrive(segment: Segment) -> None:
    assembly = Assembly(segment.geometry, [K, V])
    owner = assembly.stream(K)
    wrong = other(segment, K, PLACE)
    owner.begin(head(PLACE, len(wrong)))
    owner.write(wrong[:70])
    feed(assembly.stream(K), PLACE, wrong)  # waits as a spare
    assembly.apply_manifest(segment.entry((K, V), 1))
    owner.write(wrong[70:])
    owner.end()
    assert assembly.counters.rejected == {RejectReason.MANIFEST_DIGEST: 2}
    assert assembly.counters.objects == 0
    feed(owner, PLACE, segment.payload(K, PLACE))
    assert assembly.counters.objects == 1
