"""Framing: any cutting gives the same messages, unknown types are known at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec import varint
from moqt.codec.control import MessageSplitter, StreamType, read_stream_type
from moqt.codec.messages import Message, encode_message
from moqt.codec.varint import Incomplete
from moqt.errors import ProtocolViolation
from tests.moqt.codec.strategies import cuts, messages
from tests.vectors.draft22 import FETCHES, MESSAGES, PADDING_STREAM, SUBGROUPS, octets

KNOWN = {0x2F00, 0x10, *range(2, 9), 0x0B, 0x0D, 0x0E, 0x0F, 0x16, 0x18, 0x1D, 0x22, 0x50, 0x51}
ALL = b"".join(octets(vector.hex) for vector in MESSAGES)


def test_all_vectors_whole() -> None:
    splitter = MessageSplitter()
    found = splitter.feed(ALL)
    assert len(found) == len(MESSAGES)
    assert not splitter.pending


def test_all_vectors_byte_by_byte() -> None:
    # mengelbart/moqtransport#230, nttcom/moq-wasm#418: one read is not one message.
    splitter = MessageSplitter()
    found = []
    for at in range(len(ALL)):
        found += splitter.feed(ALL[at : at + 1])
    assert found == MessageSplitter().feed(ALL)
    assert not splitter.pending


@given(st.lists(messages, max_size=4), cuts)
def test_cutting_is_invisible(sent: list[Message], places: list[int]) -> None:
    wire = b"".join(map(encode_message, sent))
    ends = sorted({place for place in places if place < len(wire)} | {len(wire)})
    splitter = MessageSplitter()
    found = []
    start = 0
    for end in ends:
        found += splitter.feed(memoryview(wire)[start:end])
        start = end
    assert found == MessageSplitter().feed(wire)
    assert len(found) == len(sent)
    assert not splitter.pending


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda vector: vector.hex[:12])
def test_truncated_anywhere_nothing_is_decided(vector: object) -> None:
    wire = octets(vector.hex)  # type: ignore[attr-defined]
    for end in range(len(wire)):
        splitter = MessageSplitter()
        assert splitter.feed(wire[:end]) == []
        assert splitter.pending is (end > 0)
        assert len(splitter.feed(wire[end:])) == 1


@pytest.mark.rule("M254")
@pytest.mark.parametrize(
    "code", [code for code in range(0x60) if code not in KNOWN] + [0x9D, 0x2F01, 1 << 62]
)
def test_an_unknown_type_is_a_violation_as_soon_as_it_is_known(code: int) -> None:
    wire = varint.encode(code)
    splitter = MessageSplitter()
    assert splitter.feed(wire[:-1]) == []
    with pytest.raises(ProtocolViolation, match="unknown"):
        splitter.feed(wire[-1:])


@pytest.mark.rule("M254")
def test_an_unknown_type_behind_a_whole_message() -> None:
    with pytest.raises(ProtocolViolation):
        MessageSplitter().feed(octets("07 0001 00 40"))


@pytest.mark.parametrize("code", sorted(KNOWN))
def test_every_known_type_is_framed(code: int) -> None:
    wire = varint.encode(code) + b"\x00\x02ab"
    assert MessageSplitter().feed(wire) == [(code, b"ab")]


def test_the_largest_message_is_held_and_given() -> None:
    splitter = MessageSplitter()
    assert splitter.feed(b"\x04\xff\xff" + bytes(65_534)) == []
    assert splitter.feed(b"\x00\x07") == [(4, bytes(65_535))]
    assert splitter.pending


@pytest.mark.parametrize(
    ("wire", "kind"),
    [
        ("af00 0000", StreamType.CONTROL),
        (PADDING_STREAM, StreamType.PADDING),
        *((vector.hex, StreamType.SUBGROUP) for vector in SUBGROUPS),
        *((vector.hex, StreamType.FETCH) for vector in FETCHES),
        ("8054 07", StreamType.SUBGROUP),
        ("c00005", StreamType.FETCH),
    ],
)
def test_stream_types(wire: str, kind: StreamType) -> None:
    data = octets(wire)
    assert read_stream_type(data) is kind
    first = varint.decode(data)[1]
    for end in range(first):
        with pytest.raises(Incomplete):
            read_stream_type(data[:end])


@pytest.mark.rule("M150", "M433", "M435")
@pytest.mark.parametrize(
    "code",
    [
        0x00,
        0x01,
        0x02,
        0x04,
        0x06,
        0x0F,
        0x20,
        0x2F,
        0x40,
        0x6F,
        0x80,
        0x90,
        0x9D,
        0x132B3E29,
        1 << 62,
    ],
)
def test_an_unknown_stream_type_is_a_violation(code: int) -> None:
    with pytest.raises(ProtocolViolation, match="stream type"):
        read_stream_type(varint.encode(code))
