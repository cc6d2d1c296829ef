"""vi64: literal octets, borders, cuts, and what our callers may not encode."""

from __future__ import annotations

import pytest
from hypothesis import given

from moqt.codec import varint
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse
from moqt.model import MAX_VI64
from tests.moqt.codec.strategies import integers
from tests.vectors.draft22 import VARINTS, WIDE_VARINTS


@pytest.mark.parametrize(("wire", "value"), VARINTS)
def test_vector_decodes_and_encodes(wire: str, value: int) -> None:
    data = bytes.fromhex(wire)
    assert varint.decode(data) == (value, len(data))
    assert varint.encode(value) == data
    assert varint.size(value) == len(data)


@pytest.mark.rule("M213")
@pytest.mark.parametrize(("wire", "value"), WIDE_VARINTS)
def test_longer_forms_are_accepted(wire: str, value: int) -> None:
    data = bytes.fromhex(wire)
    assert varint.decode(data) == (value, len(data))


@pytest.mark.rule("M213")
@pytest.mark.parametrize("length", range(1, 10))
def test_every_length_holds_every_smaller_value(length: int) -> None:
    prefix = {1: 0x00, 2: 0x80, 3: 0xC0, 4: 0xE0, 5: 0xF0, 6: 0xF8, 7: 0xFC, 8: 0xFE, 9: 0xFF}
    for value in (0, 1, 0x7F, (1 << 7 * min(length, 8)) - 1):
        tail = value.to_bytes(length if length < 9 else 8, "big")
        data = (
            bytes((prefix[9],)) + tail
            if length == 9
            else bytes((tail[0] | prefix[length],)) + tail[1:]
        )
        assert varint.decode(data) == (value, length)


@pytest.mark.parametrize(("wire", "value"), [*VARINTS, *WIDE_VARINTS])
def test_cut_anywhere_is_incomplete(wire: str, value: int) -> None:
    data = bytes.fromhex(wire)
    for end in range(len(data)):
        with pytest.raises(Incomplete):
            varint.decode(data[:end])


@given(integers)
def test_round_trip_with_neighbours(value: int) -> None:
    data = b"\x25" + varint.encode(value) + b"\x25"
    for view in (data, bytearray(data), memoryview(data)):
        assert varint.decode(view, 1) == (value, len(data) - 1)
    assert varint.size(value) == len(data) - 2


@pytest.mark.parametrize("value", [-1, -128, MAX_VI64 + 1])
def test_what_does_not_fit_is_misuse(value: int) -> None:
    with pytest.raises(Misuse):
        varint.encode(value)
    with pytest.raises(Misuse):
        varint.size(value)


def test_an_offset_past_the_end_is_incomplete() -> None:
    with pytest.raises(Incomplete):
        varint.decode(b"\x00", 1)
