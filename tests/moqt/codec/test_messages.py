"""Control messages: vectors decoded first, then encoded; truncation; what each message forbids."""

from __future__ import annotations

import pytest
from hypothesis import given

from moqt.codec import varint
from moqt.codec.control import MessageSplitter
from moqt.codec.messages import (
    Goaway,
    Message,
    Namespace,
    PublishDone,
    PublishNamespace,
    PublishSkipped,
    Redirect,
    RequestError,
    RequestOk,
    SubscribeOk,
    decode_message,
    encode_message,
)
from moqt.codec.params import Parameters, Scope
from moqt.codec.profile import LATEST
from moqt.errors import Misuse, ProtocolViolation, SessionFault
from moqt.model import FullTrackName, Location
from tests.moqt.codec.strategies import messages
from tests.vectors.draft22 import MESSAGES, NAME, NAME_HEX, MessageVector, octets

IDS = [f"{vector.section}:{vector.hex[:2]}:{index}" for index, vector in enumerate(MESSAGES)]
NAMESPACE_SCOPES = [Scope.PUBLISH_NAMESPACE, Scope.SUBSCRIBE_NAMESPACE, Scope.SUBSCRIBE_TRACKS]


def split(wire: bytes) -> tuple[int, bytes]:
    """The one message ``wire`` holds."""
    splitter = MessageSplitter()
    [message] = splitter.feed(wire)
    assert not splitter.pending
    return message


def body(text: str, code: int, scope: Scope | None = None, update: bool | None = None) -> Message:
    """The message of type ``code`` with a body in hex."""
    return decode_message(LATEST, code, octets(text), scope, answers_update=update)


@pytest.mark.parametrize("vector", MESSAGES, ids=IDS)
def test_vector_decodes_and_encodes(vector: MessageVector) -> None:
    wire = octets(vector.hex)
    code, found = split(wire)
    assert decode_message(LATEST, code, found, vector.scope) == vector.message
    assert decode_message(LATEST, code, found) == vector.message
    assert encode_message(vector.message) == wire


@pytest.mark.rule("M255")
@pytest.mark.parametrize("vector", MESSAGES, ids=IDS)
def test_a_body_cut_anywhere_is_a_violation_or_a_shorter_message(vector: MessageVector) -> None:
    code, found = split(octets(vector.hex))
    for end in range(len(found)):
        try:
            shorter = decode_message(LATEST, code, found[:end], vector.scope)
        except ProtocolViolation:
            continue
        # Only a list that fills the body may end early: options and track properties.
        assert encode_message(shorter)[-end:] == found[:end] or end == 0


@pytest.mark.rule("M255")
@pytest.mark.parametrize("vector", MESSAGES, ids=IDS)
def test_a_body_with_an_octet_more_is_a_violation(vector: MessageVector) -> None:
    code, found = split(octets(vector.hex))
    # 0xff is a cut integer, so no list of key-value pairs can take it either.
    with pytest.raises(ProtocolViolation):
        decode_message(LATEST, code, found + b"\xff", vector.scope)


@given(messages)
def test_round_trip(message: Message) -> None:
    code, found = split(encode_message(message))
    assert decode_message(LATEST, code, found) == message


@pytest.mark.rule("M254")
@pytest.mark.parametrize(
    "code", [0x00, 0x01, 0x09, 0x1E, 0x20, 0x21, 0x40, 0x41, 0x9D, (1 << 64) - 1]
)
def test_an_unknown_type_is_a_violation(code: int) -> None:
    with pytest.raises(ProtocolViolation, match="unknown"):
        decode_message(LATEST, code, b"")


def test_a_body_above_65535_octets_is_misuse() -> None:
    whole = SubscribeOk(0, properties=b"\x01" + varint.encode(65_529) + bytes(65_529))
    assert len(encode_message(whole)) == 3 + 65_535
    with pytest.raises(Misuse, match="65536"):
        encode_message(SubscribeOk(128, properties=whole.properties))


@pytest.mark.rule("M292")
@pytest.mark.parametrize("length", ["a001", "bfff", "f040000000", "ff4000000000000000", "ff" * 9])
def test_goaway_uri_above_8192_octets_is_a_violation(length: str) -> None:
    assert body("a000" + "61" * 8192 + "00", 0x10) == Goaway("a" * 8192)
    with pytest.raises(ProtocolViolation, match="URI"):
        body(length + "61" * 8193 + "00", 0x10)


@pytest.mark.rule("M523")
def test_our_own_long_goaway_uri_is_misuse() -> None:
    with pytest.raises(Misuse, match="8193"):
        encode_message(Goaway("a" * 8193))


@pytest.mark.rule("M231", "M519")
def test_reason_limits_in_messages() -> None:
    with pytest.raises(ProtocolViolation, match="reason phrase"):
        body("00 00 8401" + "61" * 1025, 0x05)
    with pytest.raises(Misuse):
        encode_message(PublishDone(0, 0, "a" * 1025))


@pytest.mark.rule("M302")
@pytest.mark.parametrize(
    ("scope", "update"),
    [
        (Scope.PUBLISH, False),
        (Scope.PUBLISH, None),
        (Scope.PUBLISH_NAMESPACE, False),
        (Scope.SUBSCRIBE_NAMESPACE, False),
        *((scope, True) for scope in Scope if scope is not Scope.TRACK_STATUS),
    ],
)
def test_properties_in_other_oks_are_violations(scope: Scope, update: bool | None) -> None:
    body("00", 0x07, scope, update)
    with pytest.raises(ProtocolViolation, match="track properties"):
        body("00 0e 40", 0x07, scope, update)


def test_properties_of_track_status_ok_are_kept() -> None:
    assert body("00 0e 40", 0x07, Scope.TRACK_STATUS) == RequestOk(properties=octets("0e 40"))


def test_properties_of_subscribe_tracks_ok_are_ignored() -> None:
    assert body("00 0e 40", 0x07, Scope.SUBSCRIBE_TRACKS) == RequestOk()
    assert body("00 0e 40", 0x07, Scope.SUBSCRIBE_TRACKS, False) == RequestOk()


@pytest.mark.rule("M524")
@pytest.mark.parametrize("scope", [Scope.SUBSCRIPTION, Scope.FETCH])
def test_subscribe_and_fetch_are_never_answered_with_request_ok(scope: Scope) -> None:
    # moq-dev/moq#3559: a FETCH answered with REQUEST_OK.
    with pytest.raises(ProtocolViolation, match="no place"):
        body("00", 0x07, scope, False)
    assert body("00", 0x07, scope, True) == RequestOk()


@pytest.mark.rule("M345")
def test_no_update_on_a_track_status_stream() -> None:
    with pytest.raises(ProtocolViolation, match="no place"):
        body("02 00", 0x02, Scope.TRACK_STATUS)
    with pytest.raises(ProtocolViolation, match="no place"):
        body("00", 0x07, Scope.TRACK_STATUS, True)


@pytest.mark.parametrize("code", [0x04, 0x1D, 0x18, 0x07], ids=hex)
@pytest.mark.parametrize("tail", ["80", "01 02 61", "01 c10000", f"{'ff' * 9} 00 02 05"])
def test_track_properties_must_be_well_formed(code: int, tail: str) -> None:
    before = {0x04: "07 00", 0x1D: f"00 {NAME_HEX} 07 00", 0x18: "00 01 02 00", 0x07: "00"}[code]
    with pytest.raises(ProtocolViolation):
        body(f"{before} {tail}", code, Scope.TRACK_STATUS if code == 0x07 else None, False)


@pytest.mark.rule("M307")
@pytest.mark.parametrize(
    "wire", ["34 00 00", f"10 00 00 00 {NAME_HEX}", "34 00 00 00", "34 00 00 00 00"]
)
def test_redirect_goes_with_its_code(wire: str) -> None:
    with pytest.raises(ProtocolViolation):
        body(wire, 0x05)


@pytest.mark.rule("M307")
def test_our_own_redirect_goes_with_its_code() -> None:
    with pytest.raises(Misuse):
        encode_message(RequestError(0x34))
    with pytest.raises(Misuse):
        encode_message(RequestError(0x10, redirect=Redirect("", NAME)))


@pytest.mark.rule("M306")
@pytest.mark.parametrize("scope", NAMESPACE_SCOPES)
def test_redirect_of_a_namespace_request_names_no_track(scope: Scope) -> None:
    with pytest.raises(ProtocolViolation, match="names a track"):
        body(f"34 00 00 00 {NAME_HEX}", 0x05, scope)
    found = body("34 00 00 00 01 04 6c697665 00", 0x05, scope)
    assert found == RequestError(0x34, 0, "", Redirect("", FullTrackName((b"live",), b"")))


@pytest.mark.rule("M484", "M485")
def test_unknown_error_codes_are_values_not_faults() -> None:
    assert body("809d 00 00", 0x05) == RequestError(0x9D)
    assert body("ff ffffffffffffffff 00 00", 0x0B) == PublishDone((1 << 64) - 1, 0)


def test_end_of_track_other_than_0_and_1_reads_as_1() -> None:
    for octet in ("01", "02", "ff"):
        found = body(f"{octet} 01 02 00", 0x18)
        assert encode_message(found) == octets("18 0004 01 01 02 00")


@pytest.mark.rule("M237")
def test_a_suffix_with_its_track_name_stays_within_4096_octets() -> None:
    suffix = "01 8fff" + "00" * 4095
    assert body(f"{suffix} 01 61", 0x0F) == PublishSkipped((bytes(4095),), b"a")
    with pytest.raises(ProtocolViolation, match="4097"):
        body(f"{suffix} 02 6161", 0x0F)
    with pytest.raises(Misuse):
        encode_message(PublishSkipped((bytes(4095),), b"aa"))


@pytest.mark.rule("M510")
def test_zero_fields_where_a_namespace_equals_the_prefix() -> None:
    assert body("00", 0x08) == Namespace(())
    assert body("00 00", 0x0F) == PublishSkipped((), b"")


@pytest.mark.parametrize("size", [64, 127, 128, 255, 256, 16_383, 16_384, 65_500])
def test_message_length_has_16_bits_whatever_its_value(size: int) -> None:
    # nttcom/moq-wasm#251: the length was read as a variable-length integer.
    properties = b"\x01" + varint.encode(size) + bytes(size)
    wire = encode_message(SubscribeOk(7, properties=properties))
    assert int.from_bytes(wire[1:3], "big") == len(wire) - 3
    code, found = split(wire)
    assert decode_message(LATEST, code, found) == SubscribeOk(7, properties=properties)


#: A body up to one length field, and what the field counts.
LENGTHS = {
    "namespace fields": (0x03, "00"),
    "namespace field": (0x03, "00 01"),
    "track name": (0x03, "00 00"),
    "parameter count": (0x03, f"00 {NAME_HEX}"),
    "token": (0x03, f"00 {NAME_HEX} 01 03"),
    "fill": (0x03, f"00 {NAME_HEX} 01 23"),
    "range filter": (0x03, f"00 {NAME_HEX} 01 25"),
    "goaway uri": (0x10, ""),
    "reason": (0x05, "00 00"),
    "done reason": (0x0B, "00 00"),
    "redirect uri": (0x05, "34 00 00"),
    "redirect name": (0x05, "34 00 00 00 00"),
    "suffix field": (0x08, "01"),
    "skipped name": (0x0F, "00"),
    "path": (0x2F00, "01"),
    "property": (0x04, "07 00 01"),
    "prefix field": (0x02, "00 01 34 01"),
}


@pytest.mark.rule("M255")
@pytest.mark.parametrize("field", LENGTHS)
@pytest.mark.parametrize("value", [1 << 14, 1 << 30, 1 << 62, (1 << 64) - 1])
def test_a_huge_length_is_a_fault_not_an_allocation(field: str, value: int) -> None:
    code, before = LENGTHS[field]
    with pytest.raises(SessionFault):
        decode_message(LATEST, code, octets(before) + varint.encode(value) + bytes(16))


def test_negative_and_oversized_integers_are_misuse() -> None:
    for bad in (-1, 1 << 64):
        with pytest.raises(Misuse):
            encode_message(PublishNamespace(bad, ()))
        with pytest.raises(Misuse):
            encode_message(RequestOk(Parameters(largest_object=Location(0, bad))))
