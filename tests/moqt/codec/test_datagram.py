"""Object datagrams of all 256 types, padding, and what is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec import varint
from moqt.codec.datagram import DatagramHead, decode_datagram, encode_datagram
from moqt.errors import MalformedTrack, Misuse, ProtocolViolation
from moqt.model import ObjectHead, ObjectStatus
from tests.moqt.codec.strategies import integers, object_properties
from tests.vectors.draft22 import DATAGRAMS, PADDING_DATAGRAM, DatagramVector, octets

VALID = [*range(0x10), 0x20, 0x21, 0x24, 0x25, 0x28, 0x29, 0x2C, 0x2D]
TOP = "ff" * 9


@pytest.mark.parametrize("vector", DATAGRAMS, ids=lambda vector: vector.hex)
def test_vector(vector: DatagramVector) -> None:
    wire = octets(vector.hex)
    found = decode_datagram(wire)
    assert found is not None
    alias, head, payload = found
    assert (alias, bytes(payload)) == (7, vector.payload)
    assert head.resolve(100) == vector.head
    assert head.end_of_group is vector.end_of_group
    assert encode_datagram(7, vector.head, vector.payload, default_priority=100) == wire


@pytest.mark.rule("M464")
def test_padding_is_discarded() -> None:
    assert decode_datagram(octets(PADDING_DATAGRAM)) is None
    assert decode_datagram(octets("f0132b3e29 01ff")) is None


def datagram(flags: int) -> bytes:
    """A well-formed datagram of a valid type."""
    status = flags & 0x20
    return (
        varint.encode(flags)
        + b"\x07\x0c"
        + b"\x05" * (not flags & 0x04)
        + b"\x40" * (not flags & 0x08)
        + b"\x02\x02\x05" * (flags & 0x01)
        + (b"\x00" if status else b"hi")
    )


@pytest.mark.rule("M502", "M533")
@pytest.mark.parametrize("flags", VALID, ids=hex)
def test_every_valid_type_decodes(flags: int) -> None:
    found = decode_datagram(datagram(flags))
    assert found is not None
    status = flags & 0x20
    assert found.track_alias == 7
    assert found.head == DatagramHead(
        group=12,
        object=0 if flags & 0x04 else 5,
        priority=None if flags & 0x08 else 64,
        length=0 if status else 2,
        properties=b"\x02\x05" if flags & 0x01 else b"",
        end_of_group=bool(flags & 0x02),
    )
    assert bytes(found.payload) == (b"" if status else b"hi")
    if not status:
        head = found.head.resolve(100)
        again = encode_datagram(7, head, b"hi", end_of_group=bool(flags & 2), default_priority=100)
        assert again == datagram(flags)


@pytest.mark.rule("M418", "M425", "M426", "M427")
@pytest.mark.parametrize("flags", sorted(set(range(256)) - set(VALID)), ids=hex)
def test_every_other_type_is_a_violation(flags: int) -> None:
    # cloudflare/moq-rs#225 counted the 24 valid ones.
    with pytest.raises(ProtocolViolation, match="invalid"):
        decode_datagram(datagram(flags))


def test_there_are_24_valid_types() -> None:
    assert len(set(VALID)) == 24


@pytest.mark.rule("M418")
@pytest.mark.parametrize("wire", ["af00 00", "f0132b3e28 00", "f0132b3e2a 00", TOP])
def test_larger_unknown_types_are_violations(wire: str) -> None:
    with pytest.raises(ProtocolViolation, match="invalid"):
        decode_datagram(octets(wire))


@pytest.mark.parametrize("wire", [datagram(flags) for flags in VALID])
def test_truncated_anywhere_is_a_violation_or_a_shorter_payload(wire: bytes) -> None:
    for end in range(len(wire)):
        try:
            found = decode_datagram(wire[:end])
        except ProtocolViolation:
            continue
        assert found is not None
        assert bytes(found.payload) == b"hi"[: len(found.payload)]


@pytest.mark.rule("M428")
@pytest.mark.parametrize("flags", [flags for flags in VALID if flags & 1], ids=hex)
def test_properties_of_length_0_are_a_violation(flags: int) -> None:
    wire = datagram(flags).replace(b"\x02\x02\x05", b"\x00")
    with pytest.raises(ProtocolViolation, match="properties"):
        decode_datagram(wire)


@pytest.mark.rule("M429", "M422")
@pytest.mark.parametrize("status", ["03", "04"])
def test_status_with_properties_must_be_normal(status: str) -> None:
    with pytest.raises(ProtocolViolation, match="properties"):
        decode_datagram(octets(f"2d 07 0c 02 0205 {status}"))


@pytest.mark.rule("M420")
@pytest.mark.parametrize("status", ["01", "02", "05", "809d", TOP])
def test_an_unknown_status_is_a_violation(status: str) -> None:
    with pytest.raises(ProtocolViolation, match="status"):
        decode_datagram(octets(f"2c 07 0c {status}"))


@pytest.mark.rule("M532", "M421")
@pytest.mark.parametrize("status", ["00", "03", "04"])
def test_octets_after_a_status_are_a_violation(status: str) -> None:
    with pytest.raises(ProtocolViolation, match="over"):
        decode_datagram(octets(f"2c 07 0c {status} 61"))


@pytest.mark.parametrize("length", ["c10000", "f040000000", "ff4000000000000000", TOP])
def test_a_huge_properties_length_is_a_violation(length: str) -> None:
    with pytest.raises(ProtocolViolation, match="datagram properties"):
        decode_datagram(octets(f"0d 07 0c {length} 00"))


@pytest.mark.rule("M408", "M412")
@pytest.mark.parametrize("properties", ["0b 01 80", "3c 0d", "3e 01", "c04000 00"])
def test_properties_are_judged_when_the_track_is_known(properties: str) -> None:
    raw = octets(properties)
    found = decode_datagram(octets("0d 07 0c") + bytes((len(raw),)) + raw)
    assert found is not None
    with pytest.raises(MalformedTrack):
        found.head.resolve(100)


def test_broken_properties_are_a_violation_when_resolved() -> None:
    found = decode_datagram(octets("0d 07 0c 01 80"))
    assert found is not None
    with pytest.raises(ProtocolViolation):
        found.head.resolve(100)


def test_an_empty_payload_is_a_normal_object() -> None:
    found = decode_datagram(octets("0c 07 0c"))
    assert found is not None
    assert found.head.resolve(9) == ObjectHead(12, None, 0, 9, 0)


@given(
    integers,
    st.builds(ObjectHead, integers, st.none(), integers, st.integers(0, 255), st.just(0)),
    object_properties,
    st.binary(max_size=50),
    st.booleans(),
    st.none() | st.integers(0, 255),
)
def test_round_trip(
    alias: int,
    place: ObjectHead,
    properties: bytes,
    payload: bytes,
    ends: bool,
    default: int | None,
) -> None:
    head = ObjectHead(
        place.group, None, place.object, place.priority, len(payload), properties=properties
    )
    wire = encode_datagram(alias, head, payload, end_of_group=ends, default_priority=default)
    found = decode_datagram(wire)
    assert found is not None
    assert found.track_alias == alias
    assert found.head.resolve(255 if default is None else default) == head
    assert found.head.end_of_group is ends
    assert bytes(found.payload) == payload


@pytest.mark.rule("M421", "M422", "M532")
@pytest.mark.parametrize(
    ("head", "payload", "ends"),
    [
        (ObjectHead(1, None, 1, 0, 2), b"abc", False),
        (ObjectHead(1, None, 1, 0, 1, ObjectStatus.END_OF_GROUP), b"a", False),
        (ObjectHead(1, None, 1, 0, 0, ObjectStatus.END_OF_GROUP, b"\x02\x05"), b"", False),
        (ObjectHead(1, None, 1, 0, 0, ObjectStatus.END_OF_TRACK), b"", True),
        (ObjectHead(1, None, 1, 256, 0), b"", False),
        (ObjectHead(1, None, 1, 0, 0, properties=b"\x3e\x06"), b"", False),
    ],
)
def test_our_own_bad_datagram_is_misuse(head: ObjectHead, payload: bytes, ends: bool) -> None:
    with pytest.raises(Misuse):
        encode_datagram(7, head, payload, end_of_group=ends)
