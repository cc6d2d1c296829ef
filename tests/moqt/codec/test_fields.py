"""Names, reasons, tokens, key-value pairs, and the text form of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec.cursor import Reader, Writer
from moqt.codec.fields import (
    Token,
    check_name,
    from_text,
    namespace_text,
    read_location,
    read_name,
    read_namespace,
    read_pairs,
    read_reason,
    text_octets,
    to_text,
    write_location,
    write_name,
    write_namespace,
    write_pairs,
    write_reason,
)
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation, SessionCode, SessionFault
from moqt.model import MAX_VI64, FullTrackName, Location
from tests.moqt.codec.strategies import locations, names, namespaces, pairs, tokens
from tests.vectors.draft22 import (
    KVCS_FIELDS,
    KVCS_NAMESPACE,
    NAME,
    NAME_HEX,
    PROPERTIES,
    TOKENS,
    octets,
)

#: Lengths at the borders of the longer integers, as a peer may claim them.
HUGE = ["bfff", "c04000", "f040000000", "ff4000000000000000", "ffffffffffffffffff"]


def written(write: object, value: object) -> bytes:
    writer = Writer()
    write(writer, value)  # type: ignore[operator]
    return writer.getvalue()


def test_name_vector() -> None:
    wire = octets(NAME_HEX)
    reader = Reader(wire)
    assert read_name(reader) == NAME
    reader.expect_end("name")
    assert written(write_name, NAME) == wire


def test_kvcs_namespace_is_108_octets() -> None:
    wire = octets(KVCS_NAMESPACE)
    assert len(wire) == 108
    assert read_namespace(Reader(wire)) == KVCS_FIELDS
    assert written(write_namespace, KVCS_FIELDS) == wire


@pytest.mark.rule("M510")
def test_empty_namespace() -> None:
    assert read_namespace(Reader(b"\x00")) == ()
    assert written(write_namespace, ()) == b"\x00"


@given(names, locations)
def test_names_and_locations_round_trip(name: FullTrackName, location: Location) -> None:
    assert read_name(Reader(written(write_name, name))) == name
    assert read_location(Reader(written(write_location, location))) == location


@pytest.mark.rule("M234")
def test_empty_field_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="length 0"):
        read_namespace(Reader(octets("02 01 61 00")))


@pytest.mark.rule("M235")
def test_33_fields_are_a_violation() -> None:
    assert len(read_namespace(Reader(b"\x20" + b"\x01a" * 32))) == 32
    with pytest.raises(ProtocolViolation, match="33 fields"):
        read_namespace(Reader(b"\x21" + b"\x01a" * 33))


@pytest.mark.parametrize("count", HUGE)
def test_a_huge_field_count_is_a_violation_at_once(count: str) -> None:
    with pytest.raises(ProtocolViolation):
        read_namespace(Reader(octets(count)))


@pytest.mark.rule("M236")
def test_namespace_of_4097_octets_is_a_violation() -> None:
    half = octets("02 8800") + bytes(2048)
    assert sum(map(len, read_namespace(Reader(half + octets("8800") + bytes(2048))))) == 4096
    with pytest.raises(ProtocolViolation, match="2049 octets"):
        read_namespace(Reader(half + octets("8801") + bytes(2049)))


@pytest.mark.rule("M237")
def test_full_name_of_4097_octets_is_a_violation() -> None:
    namespace = octets("01 8ffe") + bytes(4094)
    assert read_name(Reader(namespace + octets("02 6162"))).name == b"ab"
    with pytest.raises(ProtocolViolation, match="track name of 3"):
        read_name(Reader(namespace + octets("03 616263")))


@pytest.mark.rule("M233", "M520")
@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ((b"a", b""), b""),
        ((b"a",) * 33, b""),
        ((bytes(4097),), b""),
        ((bytes(4000), bytes(96)), b"x"),
    ],
)
def test_our_own_bad_name_is_misuse(namespace: tuple[bytes, ...], name: bytes) -> None:
    with pytest.raises(Misuse):
        check_name(namespace, name)
    with pytest.raises(Misuse):
        written(write_name, FullTrackName(namespace, name))
    if not name:
        with pytest.raises(Misuse):
            written(write_namespace, namespace)


def test_reason_phrase() -> None:
    assert read_reason(Reader(octets("03 656e64"))) == "end"
    assert written(write_reason, "end") == octets("03 656e64")
    assert read_reason(Reader(octets("04 61 ff fe 62"))) == "a\ufffd\ufffdb"


@pytest.mark.rule("M231")
@pytest.mark.parametrize("length", ["8401", *HUGE])
def test_reason_above_1024_octets_is_a_violation(length: str) -> None:
    assert len(read_reason(Reader(octets("8400") + b"a" * 1024))) == 1024
    with pytest.raises(ProtocolViolation, match="reason phrase"):
        read_reason(Reader(octets(length) + b"a" * 1025))


@pytest.mark.rule("M519")
def test_our_own_long_reason_is_misuse() -> None:
    with pytest.raises(Misuse, match="1026 octets"):
        written(write_reason, "\u00e9" * 513)


def test_text_that_is_not_utf8_is_misuse() -> None:
    with pytest.raises(Misuse, match="surrogates"):
        text_octets("\ud800", "reason")


@pytest.mark.parametrize(("wire", "token"), TOKENS)
def test_token_vector(wire: str, token: Token) -> None:
    assert Token.decode(octets(wire)) == token
    assert token.encode() == octets(wire)


@given(tokens)
def test_token_round_trip(token: Token) -> None:
    assert Token.decode(token.encode()) == token


@pytest.mark.rule("M241")
@pytest.mark.parametrize(
    "wire",
    ["", "00", "01", "01 01", "02", "03", "00 01 00", "02 01 00", "04 00", "7f", "01 ff", "80"],
)
def test_undecodable_token_is_a_formatting_error(wire: str) -> None:
    with pytest.raises(SessionFault) as caught:
        Token.decode(octets(wire))
    assert caught.value.code is SessionCode.KEY_VALUE_FORMATTING_ERROR


def test_token_value_stays_out_of_repr() -> None:
    assert "s3cr3t" not in repr(Token.use_value(b"s3cr3t"))


@pytest.mark.parametrize(("wire", "found"), PROPERTIES)
def test_pairs_vector(wire: str, found: tuple[tuple[int, int | bytes], ...]) -> None:
    assert tuple(read_pairs(octets(wire))) == found
    assert write_pairs(found) == octets(wire)


@given(pairs)
def test_pairs_round_trip(found: tuple[tuple[int, int | bytes], ...]) -> None:
    assert tuple(read_pairs(write_pairs(found))) == found


@pytest.mark.rule("M215")
def test_pair_type_overflow_is_a_violation() -> None:
    top = "fffffffffffffffffe"
    assert list(read_pairs(octets(f"{top} 05"))) == [(MAX_VI64 - 1, 5)]
    with pytest.raises(ProtocolViolation, match="2\\^64-1"):
        list(read_pairs(octets(f"{top} 05 02 05")))


@pytest.mark.rule("M216")
@pytest.mark.parametrize("length", ["c10000", *HUGE[2:]])
def test_pair_value_above_65535_octets_is_a_violation(length: str) -> None:
    assert list(read_pairs(octets("01 c0ffff") + bytes(65_535))) == [(1, bytes(65_535))]
    with pytest.raises(ProtocolViolation, match="value of key 0x1 of"):
        list(read_pairs(octets(f"01 {length}") + bytes(65_536)))


@pytest.mark.parametrize("wire", ["01", "01 02 61", "02", "02 80", "80", "02 05 01 05 61"])
def test_a_pair_past_its_sequence_is_a_violation(wire: str) -> None:
    with pytest.raises(ProtocolViolation, match="past its sequence"):
        list(read_pairs(octets(wire)))


@pytest.mark.rule("M500")
def test_unknown_types_are_skipped_by_parity() -> None:
    found = list(read_pairs(octets("809d 02 0000 05 9000 07 01 61")))
    assert found == [(0x9D, b"\x00\x00"), (0xA2, 4096), (0xA9, b"a")]


@pytest.mark.rule("M214", "M518")
@pytest.mark.parametrize(
    "bad",
    [
        [(4, 1), (2, 1)],
        [(1, 5)],
        [(2, b"x")],
        [(1, bytes(65_536))],
        [(-2, 1)],
        [(2, -1)],
        [(MAX_VI64 - 1, 0), (MAX_VI64 + 1, 0)],
        [(MAX_VI64 + 1, 0)],
    ],
)
def test_our_own_bad_pairs_are_misuse(bad: list[tuple[int, int | bytes]]) -> None:
    with pytest.raises(Misuse):
        write_pairs(bad)


@pytest.mark.rule("M506")
def test_text_form() -> None:
    name = FullTrackName((b"example.net", b"team2", b"project_x"), b"report")
    assert to_text(name) == "example.2enet-team2-project_x--report"
    assert from_text("example.2enet-team2-project_x--report") == name
    assert namespace_text((b"a-b", b"\x00\xff")) == "a.2db-.00.ff"
    assert to_text(FullTrackName((), b"")) == "--"


@pytest.mark.rule("M238")
@given(names)
def test_text_form_is_one_to_one(name: FullTrackName) -> None:
    assert from_text(to_text(name)) == name


@pytest.mark.rule("M238")
@given(st.text(alphabet="ab-._0129fF\u00e9 ", max_size=14))
def test_only_the_canonical_text_parses(text: str) -> None:
    try:
        name = from_text(text)
    except Misuse:
        return
    assert to_text(name) == text


@pytest.mark.rule("M238")
@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a-b", "a--.61", "a--.2E", "a--.2", "a--.", "a---b", "-a--b", "a---"),
        *("a--b--c", "a b--c", "\u00e9--a", "a--b\n", "a--" + "b" * 4096),
        "-".join("a" * 33) + "--b",
    ],
)
def test_text_that_is_not_canonical_is_misuse(text: str) -> None:
    with pytest.raises(Misuse):
        from_text(text)


@given(namespaces, st.integers(0, 200))
def test_a_cut_namespace_is_incomplete(namespace: tuple[bytes, ...], end: int) -> None:
    wire = written(write_namespace, namespace)
    if end < len(wire):
        with pytest.raises(Incomplete):
            read_namespace(Reader(wire[:end]))
