"""Namespaces and track names against the draft's own example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import InvalidInput
from kvcs.names import (
    MANIFEST,
    MANIFEST_COSE,
    Codec,
    Component,
    PublicationName,
    TrackName,
    namespace_prefix,
)
from moqt.codec.cursor import Reader, Writer
from moqt.codec.fields import read_namespace, write_namespace

SCOPE = bytes.fromhex("6d1c6481cd428737da312c089db3832a")
COMPAT = bytes.fromhex("5ed5c2f238839655d7c4029e12b7f31caf9e7421f4edb4057feee6dab760ee0f")
ANCHOR = bytes.fromhex("653275884ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc1")
PUB = bytes.fromhex("0123456789abcdef0123456789abcdef")
NAME = PublicationName(SCOPE, COMPAT, ANCHOR, PUB)

#: draft, Encoding Examples.
WIRE = bytes.fromhex(
    "05 06 6b 76 63 73 2d 31"
    "10 6d 1c 64 81 cd 42 87 37 da 31 2c 08 9d b3 83 2a"
    "20 5e d5 c2 f2 38 83 96 55 d7 c4 02 9e 12 b7 f3 1c"
    "   af 9e 74 21 f4 ed b4 05 7f ee e6 da b7 60 ee 0f"
    "20 65 32 75 88 4c a4 4f 89 45 fd 4c 90 26 11 c4 67"
    "   39 4b 73 65 6e 64 c7 8d 85 22 64 8c b7 5a ef c1"
    "10 01 23 45 67 89 ab cd ef 01 23 45 67 89 ab cd ef"
)


def test_the_drafts_namespace_is_read() -> None:
    reader = Reader(WIRE)
    assert PublicationName.from_namespace(read_namespace(reader)) == NAME
    assert reader.remaining == 0


def test_the_drafts_namespace_is_written() -> None:
    writer = Writer()
    write_namespace(writer, NAME.namespace)
    assert len(WIRE) == 108
    assert writer.getvalue() == WIRE


@pytest.mark.parametrize(
    "namespace",
    [
        (),
        (b"kvcs-1",),
        NAME.namespace[:4],
        (*NAME.namespace, b"x"),
        (b"kvcs-2", *NAME.namespace[1:]),
        (b"KVCS-1", *NAME.namespace[1:]),
        (b"kvcs-1", SCOPE[:15], COMPAT, ANCHOR, PUB),
        (b"kvcs-1", SCOPE + b"x", COMPAT, ANCHOR, PUB),
        (b"kvcs-1", SCOPE.hex().encode(), COMPAT, ANCHOR, PUB),
        (b"kvcs-1", SCOPE, COMPAT[:31], ANCHOR, PUB),
        (b"kvcs-1", SCOPE, COMPAT, ANCHOR + b"x", PUB),
        (b"kvcs-1", SCOPE, COMPAT, ANCHOR, PUB[:15]),
    ],
)
def test_other_namespaces_are_refused(namespace: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"namespace|exactly"):
        PublicationName.from_namespace(namespace)


def test_prefixes() -> None:
    assert namespace_prefix(SCOPE) == (b"kvcs-1", SCOPE)
    assert namespace_prefix(SCOPE, COMPAT) == (b"kvcs-1", SCOPE, COMPAT)
    assert namespace_prefix(SCOPE, COMPAT, ANCHOR) == NAME.namespace[:4]
    with pytest.raises(InvalidInput, match="compatibility id before it"):
        namespace_prefix(SCOPE, anchor_key=ANCHOR)
    with pytest.raises(InvalidInput, match="scope id of 15 octets: exactly 16"):
        namespace_prefix(SCOPE[:15])


def test_hexadecimal_form() -> None:
    assert NAME.hex == (SCOPE.hex(), COMPAT.hex(), ANCHOR.hex(), PUB.hex())
    assert PublicationName.from_hex(*NAME.hex) == NAME
    with pytest.raises(InvalidInput, match="compatibility id 'xyz': not hexadecimal"):
        PublicationName.from_hex(SCOPE.hex(), "xyz", ANCHOR.hex(), PUB.hex())
    with pytest.raises(InvalidInput, match="publication id of 15 octets"):
        PublicationName.from_hex(SCOPE.hex(), COMPAT.hex(), ANCHOR.hex(), PUB.hex()[2:])


def test_fragment_of_a_uri() -> None:
    text = NAME.fragment
    assert text.startswith("kvcs:kvcs.2d1-m.1cd.81.cdB.877.da1.2c.08.9d.b3.83.2a-")
    assert text.endswith("-.01.23Eg.89.ab.cd.ef.01.23Eg.89.ab.cd.ef")
    assert PublicationName.from_fragment(text) == NAME


@given(st.binary(min_size=96, max_size=96))
def test_fragments_go_both_ways(octets: bytes) -> None:
    name = PublicationName(octets[:16], octets[16:48], octets[48:80], octets[80:])
    assert PublicationName.from_fragment(name.fragment) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kvcs:",
        NAME.fragment.removeprefix("kvcs:"),
        NAME.fragment + "--k.2eraw.2es0",
        NAME.fragment.replace(".2d", "."),
        NAME.fragment.replace(".2d", ".2D"),
        NAME.fragment[:-3],
        "kvcs:\ud800",
    ],
)
def test_other_fragments_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        PublicationName.from_fragment(text)


@pytest.mark.parametrize(
    ("wire", "track"),
    [
        (b"k.raw.s0", TrackName(Component.K, "raw", 0)),
        (b"v.raw.s17", TrackName(Component.V, "raw", 17)),
        (b"kv.expsplit-zstd.s1", TrackName(Component.KV, "expsplit-zstd", 1)),
        (b"k." + 32 * b"a" + b".s9999999999", TrackName(Component.K, 32 * "a", 9999999999)),
    ],
)
def test_track_names(wire: bytes, track: TrackName) -> None:
    assert TrackName.parse(wire) == track
    assert TrackName.parse(wire.decode()) == track
    assert track.wire == wire


@pytest.mark.parametrize(
    "name",
    [
        b"",
        MANIFEST,
        MANIFEST_COSE,
        b"k.raw",
        b"k.raw.s",
        b"k.raw.0",
        b"k.raw.s00",
        b"k.raw.s01",
        b"k.raw.s-1",
        b"k.raw.s0 ",
        b"k.raw.s0\n",
        b"K.raw.s0",
        b"vk.raw.s0",
        b"q.raw.s0",
        b"k.Raw.s0",
        b"k..s0",
        b"k.r_w.s0",
        b"k." + 33 * b"a" + b".s0",
        b"k.raw.s" + 11 * b"1",
        "k.raw.s\u0661".encode(),
        b"k.raw.s0\xff",
    ],
)
def test_other_track_names_are_refused(name: bytes) -> None:
    with pytest.raises(InvalidInput, match="data track"):
        TrackName.parse(name)


def test_codecs_have_the_names_of_the_registry() -> None:
    assert {codec.label: codec.value for codec in Codec} == {
        "raw": 1,
        "zstd": 0xFF01,
        "expsplit-zstd": 0xFF02,
        "fp8-e4m3": 0xFF10,
        "int8-token": 0xFF11,
        "int4-kivi": 0xFF12,
    }
    assert Codec.named("fp8-e4m3") is Codec.FP8_E4M3
    assert Codec.named("gzip") is None
    assert [(c.label, c.value) for c in Component] == [("k", 1), ("v", 2), ("kv", 3)]
