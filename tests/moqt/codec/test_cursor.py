"""Reader and Writer: bounds."""

from __future__ import annotations

import pytest

from moqt.codec.cursor import Reader, Writer
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation


def test_fields_in_order() -> None:
    reader = Reader(memoryview(bytes.fromhex("80 25 7f 0102 03 616263 6465")))
    assert reader.varint() == 37
    assert reader.u8() == 0x7F
    assert reader.u16() == 0x0102
    at = reader.at
    assert reader.length_prefixed(3, "word") == b"abc"
    assert reader.remaining == 2
    reader.rewind(at)
    assert reader.bytes(4) == b"\x03abc"
    assert reader.rest() == b"de"
    reader.expect_end("test")


@pytest.mark.parametrize("method", ["varint", "u8", "u16"])
def test_nothing_left_is_incomplete(method: str) -> None:
    with pytest.raises(Incomplete):
        getattr(Reader(b""), method)()


def test_half_a_u16_is_incomplete() -> None:
    with pytest.raises(Incomplete):
        Reader(b"\x01").u16()


@pytest.mark.parametrize("length", ["04", "bfff", "f040000000", "ff4000000000000000", "ff" * 9])
def test_a_length_beyond_the_data_allocates_nothing(length: str) -> None:
    with pytest.raises(Incomplete):
        Reader(bytes.fromhex(length) + b"abc").length_prefixed((1 << 64) - 1, "word")


def test_a_length_above_its_limit_is_a_violation_before_its_octets_came() -> None:
    with pytest.raises(ProtocolViolation, match="word of 3 octets"):
        Reader(b"\x03").length_prefixed(2, "word")


def test_leftover_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="leaves 1 octets"):
        Reader(b"x").expect_end("test")


def test_writer_mirrors_reader() -> None:
    writer = Writer()
    writer.varint(300)
    writer.u8(7)
    writer.u16(0x0102)
    writer.raw(memoryview(b"ab"))
    writer.length_prefixed(b"cde")
    assert writer.getvalue() == bytes.fromhex("812c 07 0102 6162 03 636465")
    assert len(writer) == 11


@pytest.mark.parametrize("value", [-1, 256])
def test_u8_out_of_range(value: int) -> None:
    with pytest.raises(Misuse):
        Writer().u8(value)


@pytest.mark.parametrize("value", [-1, 65_536])
def test_u16_out_of_range(value: int) -> None:
    with pytest.raises(Misuse):
        Writer().u16(value)
