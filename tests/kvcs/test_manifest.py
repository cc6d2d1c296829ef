"""Manifests: both ways, every fault, versions that only add, and the builder."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcs.errors import IdentityMismatch, InvalidInput, ManifestRejected, ManifestTooLarge
from kvcs.geometry import MAX_MANIFEST_OCTETS
from kvcs.identity import KVSP_PROFILE_0, CompatibilityDescriptor
from kvcs.manifest import (
    Manifest,
    ManifestBuilder,
    SegmentEntry,
    block_keys_sha256,
    check_successor,
    decode,
    encode,
    verify_identity,
)
from kvcs.names import Component, PublicationName, TrackName

COMPAT: dict[str, Any] = {
    "kvsp": 0,
    "model": "m",
    "layers": 2,
    "kv_heads": 3,
    "head_dim": 64,
    "dtype": "bfloat16",
    "block_tokens": 16,
    "layout": "token,head,dim",
    "positions": "applied",
    "x-site": "kept",
}
K0, V0, KV1 = TrackName.parse("k.raw.s0"), TrackName.parse("v.raw.s0"), TrackName.parse("kv.raw.s1")
A, B, C, D = (bytes([n]) * 32 for n in (0xAA, 0xBB, 0xCC, 0xDD))

TEXT: dict[str, Any] = {
    "kvcs": 1,
    "compat": COMPAT,
    "layers": 2,
    "block_tokens": 16,
    "deterministic": False,
    "segments": [
        {
            "segment": 0,
            "first_block": 0,
            "blocks": 2,
            "block_keys_sha256": A.hex(),
            "tracks": ["k.raw.s0", "v.raw.s0"],
            "complete": True,
            "object_digests": {
                "k.raw.s0": [[A.hex(), B.hex()], [C.hex(), D.hex()]],
                "v.raw.s0": [[D.hex(), C.hex()], [B.hex(), A.hex()]],
            },
        },
        {
            "segment": 1,
            "first_block": 2,
            "blocks": 1,
            "block_keys_sha256": B.hex(),
            "tracks": ["kv.raw.s1"],
            "complete": False,
        },
    ],
}
WIRE = json.dumps(TEXT, separators=(",", ":")).encode()
MANIFEST = Manifest(
    compat=COMPAT,
    descriptor=CompatibilityDescriptor.from_json(COMPAT),
    segments=(
        SegmentEntry(0, 0, 2, A, (K0, V0), True, {K0: (A + B, C + D), V0: (D + C, B + A)}),
        SegmentEntry(1, 2, 1, B, (KV1,)),
    ),
)


def test_a_manifest_is_read() -> None:
    assert decode(WIRE) == MANIFEST


def test_a_manifest_is_written() -> None:
    assert encode(MANIFEST) == WIRE


def test_unknown_members_are_ignored() -> None:
    extended = TEXT | {"x": [{}], "segments": [TEXT["segments"][0] | {"y": None}]}
    found = decode(json.dumps(extended).encode())
    assert found == replace(MANIFEST, segments=MANIFEST.segments[:1])


def test_digests_are_looked_up_by_place() -> None:
    first, second = MANIFEST.segments
    assert [first.digest(K0, n // 2, n % 2) for n in range(4)] == [A, B, C, D]
    assert first.digest(V0, 1, 0) == B
    assert first.digest(K0, 2, 0) is None
    assert first.digest(K0, 0, 2) is None
    assert second.digest(KV1, 0, 0) is None


def test_tracks_are_chosen_as_a_pair_or_jointly() -> None:
    first, second = MANIFEST.segments
    assert first.choose() == (K0, V0)
    assert second.choose() == (KV1,)
    assert first.choose("zstd") == ()
    assert replace(first, tracks=(K0,)).choose() == ()


def test_geometry_and_segment() -> None:
    assert MANIFEST.segment(1) is MANIFEST.segments[1]
    assert MANIFEST.segment(2) is None
    geometry = MANIFEST.geometry(MANIFEST.segments[1])
    assert (geometry.first_block, geometry.blocks, geometry.layers) == (2, 1, 2)


# ----------------------------------------------------------------------------------------- faults


def _member(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(text: Any) -> None:
        for step in path[:-1]:
            text = text[step]
        text[path[-1]] = value

    return change


def _without(*path: str | int) -> Callable[[Any], None]:
    def change(text: Any) -> None:
        for step in path[:-1]:
            text = text[step]
        del text[path[-1]]

    return change


S0 = ("segments", 0)
FAULTS = {
    "kvcs missing": (_without("kvcs"), "'kvcs' is missing"),
    "kvcs 2": (_member("kvcs", value=2), "'kvcs' must be 1"),
    "kvcs true": (_member("kvcs", value=True), "'kvcs' must be of type int"),
    "compat missing": (_without("compat"), "'compat' is missing"),
    "compat list": (_member("compat", value=[]), "'compat' must be of type dict"),
    "compat dtype": (_member("compat", "dtype", value="f"), "compatibility descriptor: dtype"),
    "compat big number": (_member("compat", "z", value=1 << 53), "no canonical JSON"),
    "compat surrogate": (_member("compat", "z", value="\ud800"), "no canonical JSON"),
    "compat surrogate name": (_member("compat", "\ud800", value=1), "no canonical JSON"),
    "layers missing": (_without("layers"), "'layers' is missing"),
    "layers differ": (_member("layers", value=3), r"'layers' differs from compat \(2\)"),
    "layers float": (_member("layers", value=2.0), "'layers' must be of type int"),
    "layers huge": (_member("layers", value=10**400), "'layers' must be from"),
    "block_tokens differ": (_member("block_tokens", value=32), "'block_tokens' differs"),
    "deterministic missing": (_without("deterministic"), "'deterministic' is missing"),
    "deterministic 0": (_member("deterministic", value=0), "must be of type bool"),
    "production": (_member("production", value="XY"), "'production' must be 32"),
    "production null": (_member("production", value=None), "'production' must be of type str"),
    "segments missing": (_without("segments"), "'segments' is missing"),
    "segments object": (_member("segments", value={}), "'segments' must be of type list"),
    "segment no object": (_member(*S0, value=1), r"segments\[0\]: must be a JSON object"),
    "first id 1": (_member(*S0, "segment", value=1), "not of segment 1"),
    "id string": (_member(*S0, "segment", value="0"), "'segment' must be of type int"),
    "ids do not rise": (
        _member("segments", 1, value=TEXT["segments"][0]),
        r"segments\[1\]: segments must",
    ),
    "first_block": (_member(*S0, "first_block", value=1), "segments must start with segment 0"),
    "first_block -1": (_member(*S0, "first_block", value=-1), "'first_block' must be from 0"),
    "gap": (_member("segments", 1, "first_block", value=3), "without gap"),
    "overlap": (_member("segments", 1, "first_block", value=1), "without gap"),
    "blocks 0": (_member(*S0, "blocks", value=0), "'blocks' must be from 1"),
    "blocks 2^32": (_member(*S0, "blocks", value=1 << 32), "'blocks' must be from 1"),
    "blocks null": (_member(*S0, "blocks", value=None), "'blocks' must be of type int"),
    "keys short": (_member(*S0, "block_keys_sha256", value="aa"), "'block_keys_sha256' must be 64"),
    "keys not hex": (_member(*S0, "block_keys_sha256", value="x" * 64), "must be 64 hex"),
    "keys blanks": (_member(*S0, "block_keys_sha256", value=" " * 64), "must be 64 hex"),
    "keys gap": (_member(*S0, "block_keys_sha256", value="aa  " * 16), "must be 64 hex"),
    "keys surrogates": (_member(*S0, "block_keys_sha256", value="\ud800" * 64), "must be 64 hex"),
    "keys missing": (_without(*S0, "block_keys_sha256"), "'block_keys_sha256' is missing"),
    "tracks empty": (_member(*S0, "tracks", value=[]), "'tracks' must name at least one"),
    "tracks twice": (_member(*S0, "tracks", value=["k.raw.s0"] * 2), "each once"),
    "track number": (_member(*S0, "tracks", value=[1]), "track name ''"),
    "track name": (_member(*S0, "tracks", value=["k.raw.s00"]), "track name 'k.raw.s00'"),
    "track manifest": (_member(*S0, "tracks", value=["manifest"]), "track name 'manifest'"),
    "track surrogate": (_member(*S0, "tracks", value=["\ud800"]), "track name"),
    "track of another": (_member(*S0, "tracks", value=["k.raw.s1"]), "not of segment 0"),
    "complete missing": (_without(*S0, "complete"), "'complete' is missing"),
    "complete text": (_member(*S0, "complete", value="true"), "'complete' must be of type bool"),
    "digests list": (_member(*S0, "object_digests", value=[]), "must be of type dict"),
    "digests unlisted": (
        _member(*S0, "object_digests", "kv.raw.s0", value=[]),
        "lists kv.raw.s0, which 'tracks' does not",
    ),
    "digests no list": (_member(*S0, "object_digests", "k.raw.s0", value={}), "at most 2 layers"),
    "digests layers": (
        _member(*S0, "object_digests", "k.raw.s0", value=[[A.hex()] * 2] * 3),
        "at most 2 layers",
    ),
    "digests few": (
        _member(*S0, "object_digests", "k.raw.s0", 0, value=[A.hex()]),
        "must have 2 digests a layer",
    ),
    "digests many": (
        _member(*S0, "object_digests", "k.raw.s0", 0, value=[A.hex()] * 3),
        "must have 2 digests a layer",
    ),
    "digests text": (
        _member(*S0, "object_digests", "k.raw.s0", 0, value="ab"),
        "must have 2 digests a layer",
    ),
    "digest number": (
        _member(*S0, "object_digests", "k.raw.s0", 0, 1, value=7),
        "'object_digests' must be 64 hex",
    ),
    "digest shifted": (
        _member(*S0, "object_digests", "k.raw.s0", 0, value=["a" * 65, "a" * 63]),
        "'object_digests' must be 64 hex",
    ),
    "complete without all digests": (
        _without(*S0, "object_digests", "k.raw.s0", 1),
        "of k.raw.s0 must list all 2 layers",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    change, message = FAULTS[fault]
    text = json.loads(WIRE)
    change(text)
    with pytest.raises(ManifestRejected, match=message) as caught:
        decode(json.dumps(text).encode())
    str(caught.value).encode()  # no lone surrogate reaches a log


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "manifest: must be a JSON object"),
        (WIRE[:-1] + b',"kvcs":1}', "member 'kvcs' occurs twice"),
        (WIRE.replace(b'"x-site":"kept"', b'"z":NaN'), "NaN is not JSON"),
        (WIRE.replace(b'"x-site":"kept"', b'"z":1e999'), "out of range"),
        (WIRE.replace(b'"x-site":"kept"', b'"z":' + b"[" * 17 + b"]" * 17), "nested deeper"),
        (WIRE[:-1] + b',"z":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested deeper"),
        (WIRE.replace(b"kept", b"\xff"), "not UTF-8"),
    ],
)
def test_hostile_json_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(ManifestRejected, match=message):
        decode(data)


def test_too_much_json_is_rejected_unread() -> None:
    with pytest.raises(ManifestRejected, match="at most 67108864"):
        decode(bytes(MAX_MANIFEST_OCTETS + 1))
    with pytest.raises(ManifestRejected, match="more than 2000000 JSON values"):
        decode(b"[" + b"0," * 2_000_000 + b"0]")


def test_another_kvsp_is_pluggable() -> None:
    class Site:
        """A KVSP with other member names and another id."""

        def describe(self, compat: Any) -> CompatibilityDescriptor:
            return CompatibilityDescriptor.from_json(COMPAT | {"layers": compat["depth"]})

        def compatibility_id(self, compat: Any) -> bytes:
            return hashlib.sha256(repr(compat).encode()).digest()

        scope_id = KVSP_PROFILE_0.scope_id
        block_keys = KVSP_PROFILE_0.block_keys

    site = Site()
    text = TEXT | {"compat": {"depth": 2}}
    found = decode(json.dumps(text).encode(), site)
    assert found.compat == {"depth": 2}
    assert found.descriptor.layers == 2
    name = PublicationName(bytes(16), site.compatibility_id({"depth": 2}), A, bytes(16))
    verify_identity(found, name, site)
    with pytest.raises(IdentityMismatch):
        verify_identity(found, name)


def test_identity_is_that_of_the_original_object() -> None:
    name = PublicationName(bytes(16), KVSP_PROFILE_0.compatibility_id(COMPAT), A, bytes(16))
    verify_identity(decode(WIRE), name)
    flipped = decode(WIRE.replace(b'"kept"', b'"lost"'))
    with pytest.raises(IdentityMismatch, match="another model than its namespace names"):
        verify_identity(flipped, name)


# --------------------------------------------------------------------------------------- versions


def test_a_later_version_may_add() -> None:
    first, second = MANIFEST.segments
    started = replace(first, complete=False, object_digests={K0: (A + B,)})
    growing = [
        replace(MANIFEST, segments=()),
        replace(MANIFEST, segments=(replace(first, complete=False, object_digests={}),)),
        replace(MANIFEST, segments=(started,)),
        replace(MANIFEST, segments=(first,)),
        MANIFEST,
        replace(MANIFEST, segments=(first, replace(second, complete=True))),
    ]
    for index, old in enumerate(growing):
        for new in growing[index:]:
            check_successor(old, new)
        for newer in growing[index + 1 :]:
            with pytest.raises(ManifestRejected):
                check_successor(newer, old)
    more = replace(first, tracks=(K0, V0, TrackName(Component.KV, "zstd", 0)))
    check_successor(MANIFEST, replace(MANIFEST, segments=(more, second)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment": 5}, "changes 'segment'"),
        ({"first_block": 1}, "changes 'first_block'"),
        ({"blocks": 3}, "changes 'blocks'"),
        ({"block_keys_sha256": D}, "changes 'block_keys_sha256'"),
        ({"tracks": (K0,)}, "drops a track"),
        ({"complete": False}, "takes 'complete' back"),
        ({"object_digests": {K0: (A + A, C + D), V0: (D + C, B + A)}}, "digests of k.raw.s0"),
        ({"object_digests": {K0: (A + B, C + D)}}, "digests of v.raw.s0"),
        ({"object_digests": {K0: (A + B,), V0: (D + C, B + A)}}, "digests of k.raw.s0"),
    ],
)
def test_a_later_version_must_not_change(change: dict[str, Any], message: str) -> None:
    first, second = MANIFEST.segments
    with pytest.raises(ManifestRejected, match=message):
        check_successor(MANIFEST, replace(MANIFEST, segments=(replace(first, **change), second)))


@pytest.mark.parametrize(
    "change",
    [{"compat": COMPAT | {"x-site": "new"}}, {"deterministic": True}, {"production": "0" * 32}],
)
def test_a_later_version_is_of_the_same_publication(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestRejected, match=f"changes '{next(iter(change))}'"):
        check_successor(MANIFEST, replace(MANIFEST, **change))


# ---------------------------------------------------------------------------------------- builder


def test_a_builder_builds_what_decodes() -> None:
    builder = ManifestBuilder(COMPAT, deterministic=True, production="0123456789abcdef" * 2)
    assert not builder.due
    keys = [A, B]
    entry = builder.add_segment(keys, (Component.K, Component.V))
    assert entry.tracks == (K0, V0)
    assert entry.block_keys_sha256 == hashlib.sha256(A + B).digest() == block_keys_sha256(keys)
    assert builder.due
    versions = [builder.build()]
    assert not builder.due
    for layer in (0, 1):
        builder.add_layer(K0, layer, [A, B])
        assert not builder.due
        builder.add_layer(V0, layer, [C, D])
    assert builder.due  # the segment is complete
    versions.append(builder.build())
    assert builder.add_segment([C], (Component.KV,)).first_block == 2
    versions.append(builder.build())
    builder.add_layer(KV1, 0, [D])
    versions.append(builder.build())
    assert [[entry.complete for entry in version.segments] for version in versions] == [
        [False],
        [True],
        [True, False],
        [True, False],
    ]
    assert versions[-1].segments[1].object_digests == {KV1: (D,)}
    for old, new in itertools.pairwise(versions):
        check_successor(old, new)
    for version in versions:
        assert decode(encode(version)) == version
        assert version.production == "0123456789abcdef" * 2


def test_a_version_is_due_every_eight_layers() -> None:
    builder = ManifestBuilder(COMPAT | {"layers": 30})
    builder.add_segment([A], (Component.K, Component.V))
    builder.build()
    due = []
    for layer in range(30):
        builder.add_layer(K0, layer, [A])
        assert not builder.due
        builder.add_layer(V0, layer, [B])
        if builder.due:
            due.append(layer)
            builder.build()
    assert due == [7, 15, 23, 29]


def test_a_builder_refuses_what_it_could_not_list() -> None:
    with pytest.raises(InvalidInput, match="compatibility descriptor"):
        ManifestBuilder(COMPAT | {"layers": 0})
    with pytest.raises(InvalidInput, match="production 'x'"):
        ManifestBuilder(COMPAT, production="x")
    builder = ManifestBuilder(COMPAT)
    with pytest.raises(InvalidInput, match="segment 0 was not added"):
        builder.add_layer(K0, 0, [A])
    with pytest.raises(InvalidInput, match="without a complete block"):
        builder.add_segment([], (Component.KV,))
    with pytest.raises(InvalidInput, match="each of its components once"):
        builder.add_segment([A], ())
    with pytest.raises(InvalidInput, match="each of its components once"):
        builder.add_segment([A], (Component.K, Component.K))
    builder.add_segment([A, B], (Component.K, Component.V))
    with pytest.raises(InvalidInput, match="not one of its segment"):
        builder.add_layer(TrackName(Component.KV, "raw", 0), 0, [A, B])
    with pytest.raises(InvalidInput, match="layer 1 out of turn, layer 0 of 2 is next"):
        builder.add_layer(K0, 1, [A, B])
    with pytest.raises(InvalidInput, match="give 2 digests of 32 octets"):
        builder.add_layer(K0, 0, [A])
    with pytest.raises(InvalidInput, match="give 2 digests of 32 octets"):
        builder.add_layer(K0, 0, [A, B[1:]])
    builder.add_layer(K0, 0, [A, B])
    builder.add_layer(K0, 1, [A, B])
    with pytest.raises(InvalidInput, match="layer 2 out of turn"):
        builder.add_layer(K0, 2, [A, B])


def test_a_manifest_beyond_the_cap_is_not_written() -> None:
    blocks = MAX_MANIFEST_OCTETS // 67
    first = SegmentEntry(0, 0, blocks, A, (K0,), False, {K0: (A * blocks,)})
    with pytest.raises(ManifestTooLarge, match="use larger blocks"):
        encode(replace(MANIFEST, segments=(first,)))
