"""The payload header against the draft's example, and each of its checks."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import InvalidInput, ObjectRejected, RejectReason
from kvcs.geometry import Geometry
from kvcs.identity import DType
from kvcs.names import Codec, Component
from kvcs.payload import (
    HEADER_OCTETS,
    Expectation,
    PayloadHeader,
    check_header,
    decode_header,
    digest_of,
    encode_header,
    header_of,
)

#: draft, Encoding Examples: group 0, object 1, token start 4, token count 4, data 00 to 0f.
WIRE = bytes.fromhex(
    "4b 56 4f 31 01 01 00 00 00 00 00 00 00 00 00 01"
    "00 00 00 00 00 00 00 04 00 00 00 04 00 01 00 00"
    "00 00 00 10 be 45 cb 26 05 bf 36 be bd e6 84 84"
    "1a 28 f0 fd 43 c6 98 50 a3 dc e5 fe db a6 99 28"
    "ee 3a 89 91"
)
DATA = bytes(range(16))
HEADER = PayloadHeader(
    component=1,
    layer=0,
    block=1,
    token_start=4,
    token_count=4,
    codec=1,
    data_length=16,
    digest=bytes.fromhex("be45cb2605bf36bebde684841a28f0fd43c69850a3dce5fedba69928ee3a8991"),
)
EXPECTED = Expectation(
    component=Component.K,
    codec=Codec.RAW,
    layer=0,
    block=1,
    token_start=4,
    token_count=4,
    payload_length=68 + 16,
    data_length=16,
)


def test_the_drafts_header_is_read() -> None:
    assert decode_header(WIRE) == HEADER
    assert decode_header(memoryview(WIRE + DATA)) == HEADER
    check_header(HEADER, EXPECTED)
    check_header(HEADER, EXPECTED._replace(digest=HEADER.digest))


def test_the_drafts_header_is_written() -> None:
    assert encode_header(HEADER) == WIRE
    assert HEADER_OCTETS == len(WIRE) == 68
    assert digest_of(DATA) == HEADER.digest


def test_flags_and_reserved_octets_are_ignored() -> None:
    other = bytearray(WIRE)
    other[6:8] = b"\xff\xff"
    other[30:32] = b"\xff\xff"
    assert decode_header(other) == HEADER


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"", RejectReason.LENGTH),
        (WIRE[:67], RejectReason.LENGTH),
        (b"KVO2" + WIRE[4:], RejectReason.MAGIC),
        (WIRE[:4] + b"\x02" + WIRE[5:], RejectReason.VERSION),
    ],
)
def test_what_is_no_header_is_rejected(octets: bytes, reason: RejectReason) -> None:
    with pytest.raises(ObjectRejected) as caught:
        decode_header(octets)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"component": 2}, RejectReason.COMPONENT),
        ({"component": 0}, RejectReason.COMPONENT),
        ({"layer": 1}, RejectReason.LAYER),
        ({"block": 2}, RejectReason.BLOCK),
        ({"token_start": 5}, RejectReason.TOKEN_START),
        ({"token_count": 3}, RejectReason.TOKEN_COUNT),
        ({"codec": 0xFF01}, RejectReason.CODEC),
        ({"data_length": 15}, RejectReason.LENGTH),
        ({"data_length": 17}, RejectReason.LENGTH),
        ({"digest": bytes(32)}, RejectReason.MANIFEST_DIGEST),
    ],
)
def test_each_field_is_compared(change: dict[str, Any], reason: RejectReason) -> None:
    with pytest.raises(ObjectRejected, match=str(reason)) as caught:
        check_header(HEADER._replace(**change), EXPECTED._replace(digest=HEADER.digest))
    assert caught.value.reason is reason


def test_a_raw_object_has_the_octets_of_its_block() -> None:
    longer = EXPECTED._replace(data_length=8192)
    with pytest.raises(ObjectRejected) as caught:
        check_header(HEADER, longer)
    assert caught.value.reason is RejectReason.DECODED_LENGTH


@given(
    st.builds(
        PayloadHeader,
        component=st.integers(0, 255),
        layer=st.integers(0, (1 << 32) - 1),
        block=st.integers(0, (1 << 32) - 1),
        token_start=st.integers(0, (1 << 64) - 1),
        token_count=st.integers(0, (1 << 32) - 1),
        codec=st.integers(0, (1 << 16) - 1),
        data_length=st.integers(0, (1 << 32) - 1),
        digest=st.binary(min_size=32, max_size=32),
    )
)
def test_every_header_goes_both_ways(header: PayloadHeader) -> None:
    assert decode_header(encode_header(header)) == header


@pytest.mark.parametrize("change", [{"layer": 1 << 32}, {"block": -1}, {"component": 256}])
def test_a_value_that_does_not_fit_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="payload header"):
        encode_header(HEADER._replace(**change))


def test_header_of_a_block() -> None:
    geometry = Geometry(
        layers=3,
        blocks=2,
        block_tokens=4,
        kv_heads=1,
        head_dim=2,
        dtype=DType.FLOAT16,
        first_block=10,
    )
    found = header_of(geometry, Component.K, 2, 1, [DATA])
    assert found == PayloadHeader(1, 2, 1, 44, 4, 1, 16, HEADER.digest)
    with pytest.raises(InvalidInput, match="layer 2, block 1 of v: 15 octets, but 4 tokens"):
        header_of(geometry, Component.V, 2, 1, [DATA[1:]])


def test_layer_digest_both_ways() -> None:
    # draft, Object Payload: SHA-256(K || V) is the data digest of the kv object
    geometry = Geometry(
        layers=1, blocks=1, block_tokens=4, kv_heads=1, head_dim=2, dtype=DType.FLOAT16
    )
    k, v = DATA, bytes(16)
    joint = header_of(geometry, Component.KV, 0, 0, [k, v])
    assert joint.digest == digest_of(k, v) == hashlib.sha256(k + v).digest()
    assert joint.data_length == 32
    assert header_of(geometry, Component.KV, 0, 0, [k + v]) == joint
