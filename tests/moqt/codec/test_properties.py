"""Setup Options, Track Properties, Object Properties."""

from __future__ import annotations

import pytest
from hypothesis import given

from moqt.codec.fields import AliasType, Token
from moqt.codec.properties import (
    IMMUTABLE_PROPERTIES,
    PRIOR_GROUP_ID_GAP,
    SetupOptions,
    TrackProperties,
    check_object_properties,
    find,
    read_properties,
)
from moqt.errors import MalformedTrack, Misuse, ProtocolViolation, SessionCode, SessionFault
from moqt.model import GroupOrder, Location
from tests.moqt.codec.strategies import known_track_properties, object_properties, setup_options
from tests.vectors.draft22 import octets


@given(setup_options)
def test_setup_options_round_trip(options: SetupOptions) -> None:
    assert SetupOptions.decode(options.encode()) == options


def test_an_empty_path_is_kept_apart_from_none() -> None:
    assert SetupOptions.decode(octets("01 00")).path == ""
    assert SetupOptions(path="").encode() == octets("01 00")
    assert SetupOptions.decode(b"").path is None


@pytest.mark.rule("M257", "M259")
def test_unknown_options_are_ignored_and_counted_even_when_repeated() -> None:
    # 0x02 twice, 0x04, then grease 0x9d twice and 0x11c.
    found = SetupOptions.decode(octets("02 05 00 06 02 10 8099 01 61 00 01 62 807f 07"))
    assert found == SetupOptions(max_auth_token_cache_size=16)
    assert found.unknown == 5


@pytest.mark.rule("M258")
@pytest.mark.parametrize(
    "wire",
    ["01 00 00 00", "04 05 00 05", "05 00 00 00", "07 00 00 00", "06 01 00 01", "08 01 00 01"],
)
def test_a_known_option_twice_is_a_violation(wire: str) -> None:
    with pytest.raises(ProtocolViolation, match="twice"):
        SetupOptions.decode(octets(wire))


def test_tokens_may_repeat_in_setup() -> None:
    found = SetupOptions.decode(octets("03 03 030061 00 04 01010062"))
    assert found.authorization_tokens == (
        Token.use_value(b"a"),
        Token(AliasType.REGISTER, 1, 0, b"b"),
    )


@pytest.mark.rule("M276")
@pytest.mark.parametrize("wire", ["03 02 0001", "03 02 0201"])
def test_deleting_or_using_an_alias_in_setup_is_a_violation(wire: str) -> None:
    with pytest.raises(ProtocolViolation, match="in SETUP"):
        SetupOptions.decode(octets(wire))


@pytest.mark.rule("M241")
def test_an_undecodable_token_in_setup_is_a_formatting_error() -> None:
    with pytest.raises(SessionFault) as caught:
        SetupOptions.decode(octets("03 01 04"))
    assert caught.value.code is SessionCode.KEY_VALUE_FORMATTING_ERROR


def test_text_that_is_not_utf8_arrives_marked() -> None:
    assert SetupOptions.decode(octets("01 02 2fff")).path == "/\ufffd"


def test_lone_surrogates_in_an_option_are_misuse() -> None:
    with pytest.raises(Misuse, match="path"):
        SetupOptions(path="/\ud800").encode()


@given(known_track_properties)
def test_track_properties_round_trip(value: TrackProperties) -> None:
    raw = value.encode()
    found = TrackProperties.decode(raw)
    assert found == value
    assert found.raw == raw


def test_track_property_defaults() -> None:
    found = TrackProperties.decode(b"")
    assert found == TrackProperties()
    assert found.default_publisher_priority == 128
    assert found.default_publisher_group_order is GroupOrder.ASCENDING
    assert found.dynamic_groups is False
    assert found.encode() == b""


@pytest.mark.rule("M400", "M401")
@pytest.mark.parametrize("wire", ["22 00", "22 03", "30 02", "30 ff00000000000001 00", "0e 8100"])
def test_track_property_values_out_of_range_are_violations(wire: str) -> None:
    with pytest.raises(ProtocolViolation):
        TrackProperties.decode(octets(wire))


@pytest.mark.rule("M407")
def test_track_properties_are_found_inside_the_immutable_list() -> None:
    found = TrackProperties.decode(octets("0b 04 0e40 1402"))
    assert found.default_publisher_priority == 64
    assert found.default_publisher_group_order is GroupOrder.DESCENDING
    assert found.immutable == octets("0e40 1402")


def test_the_outer_list_comes_first() -> None:
    assert TrackProperties.decode(octets("0b 02 0e40 03 07")).default_publisher_priority == 7


def test_values_inside_the_immutable_list_are_checked_too() -> None:
    with pytest.raises(ProtocolViolation, match="0x22"):
        TrackProperties.decode(octets("0b 02 2203"))


def test_unknown_mandatory_properties_are_reported_from_both_lists() -> None:
    found = TrackProperties.decode(octets("0b 04 c0400005 bff5 05 bfff 01 61"))
    assert found.unknown_mandatory == (0x4000, 0x7FFF, 0x4000)


@pytest.mark.rule("M500")
def test_unknown_and_provisional_track_properties_are_skipped() -> None:
    wire = octets("02 07 06 01 01 01 61 04 01 62 6b 09 25 01 63")
    found = TrackProperties.decode(wire)
    assert found == TrackProperties(object_delivery_timeout=7)
    assert found.raw == wire


@pytest.mark.rule("M408")
@pytest.mark.parametrize(
    "wire", ["0b 02 0b00", "0b 01 80", "0b 02 0104", "0b 04 01c10000", "0b 00 00 00"]
)
def test_a_bad_immutable_list_is_a_malformed_track(wire: str) -> None:
    for check in (TrackProperties.decode, check_object_properties):
        with pytest.raises(MalformedTrack, match="IMMUTABLE"):
            check(octets(wire))


def test_our_own_priority_out_of_range_is_misuse() -> None:
    with pytest.raises(Misuse):
        TrackProperties(default_publisher_priority=256).encode()


@pytest.mark.rule("M407")
def test_find_looks_in_both_lists() -> None:
    raw = octets("02 81f4 09 04 0e40 2e02")
    assert find(raw, 0x02) == 500
    assert find(raw, 0x0E) == 64
    assert find(raw, PRIOR_GROUP_ID_GAP) == 2
    assert find(raw, IMMUTABLE_PROPERTIES) == octets("0e40 2e02")
    assert find(raw, 0x3E) is None
    assert list(read_properties(raw)) == [(2, 500), (0x0B, octets("0e40 2e02"))]


@given(object_properties)
def test_ordinary_object_properties_pass(raw: bytes) -> None:
    check_object_properties(raw, Location(0, 0))


@pytest.mark.rule("M412", "M416", "M409")
@pytest.mark.parametrize(
    "wire",
    [
        "3c 01 00 01",
        "3e 01 00 01",
        "0b 02 3c01 31 01",
        "0b 00 00 00",
        "c04000 00",
        "c07fff 00",
        "0b 04 c0400005",
    ],
)
def test_what_no_object_may_carry_is_a_malformed_track(wire: str) -> None:
    with pytest.raises(MalformedTrack):
        check_object_properties(octets(wire))


@pytest.mark.rule("M412", "M416")
@pytest.mark.parametrize(("wire", "place"), [("3c 06", Location(5, 9)), ("3e 06", Location(9, 5))])
def test_a_gap_below_zero_is_a_malformed_track(wire: str, place: Location) -> None:
    with pytest.raises(MalformedTrack, match="before id 5"):
        check_object_properties(octets(wire), place)
    check_object_properties(octets(wire), Location(6, 6))
    check_object_properties(octets(wire))


@pytest.mark.parametrize("wire", ["80", "01 02 61", "01 c10000"])
def test_a_broken_outer_list_is_a_violation(wire: str) -> None:
    for check in (TrackProperties.decode, check_object_properties):
        with pytest.raises(ProtocolViolation):
            check(octets(wire))
