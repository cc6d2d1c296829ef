"""Message Parameters: which may stand where, and what their values may be."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec import varint
from moqt.codec.cursor import Reader, Writer
from moqt.codec.fields import Token
from moqt.codec.messages import (
    Publish,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeTracks,
    decode_message,
    encode_message,
)
from moqt.codec.params import (
    NO_PARAMETERS,
    TABLE,
    Parameters,
    Place,
    Scope,
    read_parameters,
    write_parameters,
)
from moqt.codec.profile import LATEST
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation, SessionCode, SessionFault
from moqt.model import (
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterType,
    Span,
)
from tests.moqt.codec.strategies import parameters
from tests.vectors.draft22 import NAME, NAME_HEX, octets

#: A legal value of each parameter, as octets after the type.
VALUES = {
    0x02: "05",
    0x03: "03 03 00 61",
    0x04: "05",
    0x06: "05",
    0x08: "05",
    0x09: "01 02",
    0x0A: "05",
    0x10: "01",
    0x20: "40",
    0x21: "05",
    0x22: "01",
    0x23: "01 00",
    0x25: "02 00 05",
    0x26: "02 00 05",
    0x27: "02 00 05",
    0x28: "03 00 10 05",
    0x29: "03 00 10 05",
    0x32: "05",
    0x34: "01 01 61",
    0x35: "00",
}
OBJECT_FILTERS = {0x25, 0x26, 0x27, 0x28}


class Spot(NamedTuple):
    """A parameter list: the message around it, and what the draft lists for that message."""

    type: int
    before: str
    allowed: set[int]
    scope: Scope | None = None
    update: bool | None = None


#: Transcribed from the message sections (§9.1 to §9.19), not from the parameter sections.
SPOTS = {
    "SUBSCRIBE": Spot(
        0x03,
        f"00 {NAME_HEX}",
        {0x02, 0x03, 0x04, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x32, 0x35} | OBJECT_FILTERS,
    ),
    "SUBSCRIBE_OK": Spot(0x04, "07", {0x08, 0x09}),
    "PUBLISH": Spot(
        0x1D,
        f"00 {NAME_HEX} 07",
        {0x02, 0x03, 0x06, 0x08, 0x09, 0x10, 0x20, 0x21, 0x22},
    ),
    "PUBLISH_STATE_NOTIFY": Spot(0x22, "", {0x09, 0x10, 0x21}),
    "FETCH": Spot(0x16, f"00 {NAME_HEX}", {0x03, 0x0A, 0x20, 0x21, 0x22, 0x35} | OBJECT_FILTERS),
    "FETCH_OK": Spot(0x18, "00 01 02", set()),
    "TRACK_STATUS": Spot(0x0D, f"00 {NAME_HEX}", {0x03, 0x35}),
    "PUBLISH_NAMESPACE": Spot(0x06, "00 00", {0x03}),
    "SUBSCRIBE_NAMESPACE": Spot(0x50, "00 00", {0x03}),
    # §9.18 lists some, §3.6.2 lets the rest of SUBSCRIBE's in.
    "SUBSCRIBE_TRACKS": Spot(
        0x51,
        "00 00",
        {0x03, 0x10, 0x22, 0x29, 0x35}
        | OBJECT_FILTERS
        | {0x21, 0x23}
        | {0x02, 0x04, 0x06, 0x20, 0x32},
    ),
    "update of SUBSCRIBE": Spot(
        0x02,
        "00",
        {0x02, 0x03, 0x06, 0x10, 0x20, 0x21, 0x23, 0x32} | OBJECT_FILTERS,
        Scope.SUBSCRIPTION,
    ),
    "update of PUBLISH": Spot(
        0x02,
        "00",
        {0x02, 0x03, 0x06, 0x10, 0x20, 0x21, 0x23, 0x32} | OBJECT_FILTERS,
        Scope.PUBLISH,
    ),
    "update of FETCH": Spot(0x02, "00", {0x03, 0x20}, Scope.FETCH),
    "update of PUBLISH_NAMESPACE": Spot(0x02, "00", {0x03}, Scope.PUBLISH_NAMESPACE),
    "update of SUBSCRIBE_NAMESPACE": Spot(0x02, "00", {0x03, 0x34}, Scope.SUBSCRIBE_NAMESPACE),
    "update of SUBSCRIBE_TRACKS": Spot(
        0x02, "00", {0x03, 0x10, 0x29, 0x34}, Scope.SUBSCRIBE_TRACKS
    ),
    "PUBLISH_OK": Spot(0x07, "", {0x08}, Scope.PUBLISH, False),
    "REQUEST_UPDATE_OK": Spot(0x07, "", {0x08, 0x09}, Scope.SUBSCRIPTION, True),
    # §9.13 promises what SUBSCRIBE_OK would carry.
    "TRACK_STATUS_OK": Spot(0x07, "", {0x08, 0x09}, Scope.TRACK_STATUS, False),
    "PUBLISH_NAMESPACE_OK": Spot(0x07, "", {0x08}, Scope.PUBLISH_NAMESPACE, False),
    "SUBSCRIBE_NAMESPACE_OK": Spot(0x07, "", {0x08}, Scope.SUBSCRIBE_NAMESPACE, False),
    "SUBSCRIBE_TRACKS_OK": Spot(0x07, "", {0x08}, Scope.SUBSCRIBE_TRACKS, False),
}
FILL_ALLOWED = {0x0A, 0x20, 0x21, 0x22} | OBJECT_FILTERS


def decoded(spot: Spot, listed: str) -> object:
    """The message of ``spot`` with the parameter list ``listed``, count included."""
    body = octets(f"{spot.before} {listed}")
    return decode_message(LATEST, spot.type, body, spot.scope, answers_update=spot.update)


def subscribe(listed: str) -> Parameters:
    """The parameters of a SUBSCRIBE with the list ``listed``."""
    found = decoded(SPOTS["SUBSCRIBE"], listed)
    assert isinstance(found, Subscribe)
    return found.parameters


@pytest.mark.rule("M354", "M367", "M380", "M343")
@pytest.mark.parametrize("spot", SPOTS)
@pytest.mark.parametrize("code", VALUES, ids=hex)
def test_allowed_exactly_where_the_draft_lists_it(spot: str, code: int) -> None:
    listed = f"01 {varint.encode(code).hex()} {VALUES[code]}"
    if code in SPOTS[spot].allowed:
        decoded(SPOTS[spot], listed)
    else:
        with pytest.raises(ProtocolViolation, match="not allowed in"):
            decoded(SPOTS[spot], listed)


@pytest.mark.rule("M381")
@pytest.mark.parametrize("code", VALUES, ids=hex)
@pytest.mark.parametrize("outer", ["SUBSCRIBE", "update of SUBSCRIBE"])
def test_allowed_inside_fill(outer: str, code: int) -> None:
    inner = octets(f"01 {varint.encode(code).hex()} {VALUES[code]}")
    listed = f"01 23 {varint.encode(len(inner)).hex()} {inner.hex()}"
    if code in FILL_ALLOWED:
        decoded(SPOTS[outer], listed)
    else:
        with pytest.raises(ProtocolViolation):
            decoded(SPOTS[outer], listed)


@pytest.mark.rule("M349")
@pytest.mark.parametrize("spot", SPOTS)
@pytest.mark.parametrize(
    "code", [0x00, 0x01, 0x05, 0x07, 0x11, 0x24, 0x2A, 0x33, 0x36, 0x9D, 1 << 62]
)
def test_an_unknown_parameter_is_a_violation(spot: str, code: int) -> None:
    with pytest.raises(ProtocolViolation, match="unknown"):
        decoded(SPOTS[spot], f"01 {varint.encode(code).hex()} 00")


@pytest.mark.rule("M346", "M350")
def test_the_list_is_written_in_ascending_order_with_deltas() -> None:
    writer = Writer()
    value = Parameters(include_properties=False, forward=True, object_delivery_timeout=9)
    write_parameters(writer, value, Place.SUBSCRIBE)
    assert writer.getvalue() == octets("03 02 09 0e 01 25 00")


@pytest.mark.rule("M347")
def test_type_overflow_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="2\\^64-1"):
        subscribe(f"02 02 05 {'ff' * 9} 00")


@pytest.mark.rule("M351")
@pytest.mark.parametrize("code", sorted(set(VALUES) - {0x03, 0x29, 0x34} - OBJECT_FILTERS))
def test_an_unexpected_duplicate_is_a_violation(code: int) -> None:
    spot = next(spot for spot in SPOTS.values() if code in spot.allowed)
    listed = f"02 {varint.encode(code).hex()} {VALUES[code]} 00 {VALUES[code]}"
    with pytest.raises(ProtocolViolation, match="twice"):
        decoded(spot, listed)


@pytest.mark.rule("M351")
def test_a_second_prefix_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="twice"):
        decoded(SPOTS["update of SUBSCRIBE_NAMESPACE"], "02 34 00 00 00")


def test_tokens_and_range_filters_repeat() -> None:
    found = subscribe("05 03 03 03 00 61 00 03 03 00 62 22 02 00 05 00 02 01 06 01 02 00 07")
    assert [token.value for token in found.authorization_tokens] == [b"a", b"b"]
    assert found.range_filters == (
        RangeFilter(RangeFilterType.SUBGROUP, (Span(5, None),), 0),
        RangeFilter(RangeFilterType.SUBGROUP, (Span(6, None),), 1),
        RangeFilter(RangeFilterType.OBJECT_ID, (Span(7, None),), 0),
    )
    assert found.invalid_filter is None


@pytest.mark.rule("M387", "M397", "M366")
@pytest.mark.parametrize(
    "listed", ["01 10 02", "01 10 ff", "01 35 02", "01 35 80", "01 22 00", "01 22 03", "01 22 ff"]
)
def test_one_octet_values_out_of_range_are_violations(listed: str) -> None:
    with pytest.raises(ProtocolViolation):
        subscribe(listed)


def test_one_octet_values() -> None:
    found = subscribe("04 10 00 10 ff 02 02 13 01")
    assert (found.forward, found.subscriber_priority) == (False, 255)
    assert found.group_order is GroupOrder.DESCENDING
    assert found.include_properties is True


@pytest.mark.rule("M369")
@pytest.mark.parametrize("wire", ["80fa", "06"])
def test_a_leaked_filter_type_is_a_violation(wire: str) -> None:
    # facebookexperimental/moxygen#225: an internal enum value reached the wire.
    with pytest.raises(ProtocolViolation, match="location filter type"):
        subscribe(f"01 21 {wire}")


def test_update_without_an_existing_request_id() -> None:
    # openmoq/moqx#440: a field dropped long ago was still read.
    found = decode_message(LATEST, 0x02, octets("01 02 10 01 11 05"), Scope.SUBSCRIPTION)
    expected = Parameters(forward=True, location_filter=LocationFilter.next_object())
    assert found == RequestUpdate(1, expected)


@pytest.mark.rule("M371")
def test_overflow_inside_fill_is_a_violation() -> None:
    inner = octets(f"01 21 03 {'ff' * 9} 00 01")
    with pytest.raises(ProtocolViolation, match="2\\^64-1"):
        subscribe(f"01 23 {len(inner):02x} {inner.hex()}")


@pytest.mark.rule("M383")
def test_fill_is_a_scope_of_its_own() -> None:
    found = subscribe("04 20 40 01 05 02 09 03 20 41 01 02 00 00 01 02 12 00")
    assert found.subscriber_priority == 64
    assert found.location_filter == LocationFilter.next_object()
    assert found.include_properties is False
    assert found.fill == Parameters(
        subscriber_priority=65,
        location_filter=LocationFilter(LocationFilterType.ABSOLUTE_START),
        group_order=GroupOrder.DESCENDING,
    )


FILL = Parameters(fill=Parameters(location_filter=LocationFilter.back(1)))


@pytest.mark.parametrize(
    ("form", "listed", "expected"),
    [
        ("length and count", "01 23 04 01 21 01 01", FILL),
        ("length, no count", "01 23 03 21 01 01", FILL),
        ("count, no length", "01 23 01 21 01 01", FILL),
        ("empty, counted", "01 23 01 00", Parameters(fill=NO_PARAMETERS)),
        ("empty", "01 23 00", Parameters(fill=NO_PARAMETERS)),
    ],
)
def test_fill_parameters_are_read_in_every_known_form(
    form: str, listed: str, expected: Parameters
) -> None:
    assert subscribe(listed) == expected


@pytest.mark.parametrize("many", [9, 10, 11, 0x25, 0x41])
def test_a_count_may_look_like_a_type(many: int) -> None:
    """Ten parameters and more: their number is one of the types, too (0x0a is FILL_TIMEOUT)."""
    spans = [("25" if one == 0 else "00") + f"03{one:02x}0005" for one in range(many)]
    inner = bytes.fromhex(f"{many:02x}" + "".join(spans))
    wire = f"01 23 {len(inner):02x}" if len(inner) < 128 else f"01 23 {0x8000 | len(inner):04x}"
    found = subscribe(f"{wire} {inner.hex()}").fill
    assert found is not None
    assert [one.set_id for one in found.range_filters] == list(range(many))


@pytest.mark.parametrize("listed", ["02 23 01 21 01 01 12 01", "02 23 04 01 21 01 01 12 01"])
def test_parameters_after_fill_in_either_form(listed: str) -> None:
    found = subscribe(listed)
    assert found.fill == FILL.fill
    assert found.include_properties is True


@pytest.mark.rule("M255")
@pytest.mark.parametrize(
    "listed",
    [
        "01 23 05 01 21 01 01 00",
        "01 23 04 02 21 01 01",
        "01 23 ff",
        "01 23 7f 01",
        "01 23 01 21 06",
    ],
)
def test_fill_that_no_form_explains_is_a_violation(listed: str) -> None:
    with pytest.raises(ProtocolViolation):
        subscribe(listed)


@pytest.mark.rule("M395")
def test_namespace_prefix_has_no_length_in_front() -> None:
    spot = SPOTS["update of SUBSCRIBE_NAMESPACE"]
    found = decoded(spot, "01 34 02 04 6c697665 02 6575")
    assert isinstance(found, RequestUpdate)
    assert found.parameters.track_namespace_prefix == (b"live", b"eu")
    with pytest.raises(ProtocolViolation):
        decoded(spot, "01 34 09 02 04 6c697665 02 6575")


@pytest.mark.rule("M241")
@pytest.mark.parametrize("wire", ["", "04", "80", "02 03 00"])
def test_undecodable_token_is_a_formatting_error(wire: str) -> None:
    value = octets(wire)
    with pytest.raises(SessionFault) as caught:
        subscribe(f"01 03 {len(value):02x} {value.hex()}")
    assert caught.value.code is SessionCode.KEY_VALUE_FORMATTING_ERROR


@pytest.mark.rule("M232", "M375", "M377")
@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (f"01 26 0b 00 {'ff' * 9} 01", "OBJECT_ID filter: a range ends above"),
        ("01 27 03 00 8100", "PRIORITY filter: a range ends above 255"),
        ("01 28 03 00 11 05", "OBJECT_PROPERTY filter: property type 0x11 is odd"),
        ("01 25 02 00 80", "SUBGROUP filter: its content ends inside a field"),
    ],
)
def test_a_malformed_range_filter_leaves_the_session_alone(listed: str, why: str) -> None:
    found = subscribe(listed)
    assert found.invalid_filter is not None
    assert found.invalid_filter.startswith(why)
    assert found.range_filters == ()


@pytest.mark.rule("M379")
def test_a_malformed_track_property_filter_leaves_the_session_alone() -> None:
    found = decoded(SPOTS["SUBSCRIBE_TRACKS"], "01 29 03 00 11 05")
    assert isinstance(found, SubscribeTracks)
    assert found.parameters.invalid_filter == "TRACK_PROPERTY filter: property type 0x11 is odd"


@pytest.mark.rule("M058")
@pytest.mark.parametrize(
    ("listed", "invalid"),
    [
        ("02 25 02 00 05 00 02 00 07", True),
        ("02 25 02 00 05 00 02 01 07", False),
        ("02 25 02 00 05 01 02 00 07", False),
        ("02 28 03 00 10 05 00 03 00 10 07", True),
        ("02 28 03 00 10 05 00 03 00 12 07", False),
    ],
)
def test_a_filter_key_must_be_unique(listed: str, invalid: bool) -> None:
    found = subscribe(listed)
    assert (found.invalid_filter is not None) is invalid
    assert len(found.range_filters) == 2


def test_a_range_filter_past_the_message_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        subscribe("01 25 05 00 05")


def test_a_malformed_range_filter_inside_fill() -> None:
    found = subscribe("01 23 06 01 27 03 00 8100")
    assert found.fill is not None
    assert found.fill.invalid_filter is not None


@pytest.mark.parametrize("count", ["02", "bfff", "f040000000", "ff4000000000000000", "ff" * 9])
def test_more_parameters_announced_than_there_are(count: str) -> None:
    with pytest.raises(ProtocolViolation):
        subscribe(f"{count} 10 01")


@pytest.mark.parametrize("code", [0x03, 0x23, 0x25, 0x28], ids=hex)
@pytest.mark.parametrize("length", ["bfff", "f040000000", "ff4000000000000000", "ff" * 9])
def test_a_huge_value_length_is_a_violation(code: int, length: str) -> None:
    with pytest.raises(ProtocolViolation):
        subscribe(f"01 {code:02x} {length} 00 00")


@pytest.mark.rule("M526")
def test_an_update_without_parameters() -> None:
    found = decode_message(LATEST, 0x02, octets("09 00"), Scope.SUBSCRIPTION)
    assert found == RequestUpdate(9)


@pytest.mark.parametrize("place", [each for each in Place if each is not Place.NOWHERE])
def test_what_a_place_does_not_allow_is_misuse(place: Place) -> None:
    sample = Parameters(
        object_delivery_timeout=1,
        authorization_tokens=(Token.use_value(b"x"),),
        rendezvous_timeout=1,
        subgroup_delivery_timeout=1,
        expires=1,
        largest_object=Location(0, 0),
        fill_timeout=1,
        forward=True,
        subscriber_priority=1,
        location_filter=LocationFilter.next_object(),
        group_order=GroupOrder.ASCENDING,
        fill=NO_PARAMETERS,
        new_group_request=1,
        track_namespace_prefix=(),
        include_properties=True,
    )
    for row in TABLE:
        if row.field == "range_filters":
            continue
        alone = Parameters(**{row.field: getattr(sample, row.field)})
        if row.places & place:
            write_parameters(Writer(), alone, place)
        else:
            with pytest.raises(Misuse, match="leave it out"):
                write_parameters(Writer(), alone, place)


@pytest.mark.rule("M348")
@pytest.mark.parametrize(
    "message",
    [
        RequestUpdate(0, Parameters(group_order=GroupOrder.ASCENDING)),
        SubscribeTracks(0, (), Parameters(object_delivery_timeout=5)),
        Publish(0, NAME, 7, Parameters(rendezvous_timeout=5)),
        RequestOk(Parameters(forward=True)),
        Subscribe(0, NAME, Parameters(fill=Parameters(forward=True))),
        Subscribe(0, NAME, Parameters(subscriber_priority=256)),
    ],
)
def test_we_send_only_what_the_draft_lists(message: Subscribe) -> None:
    with pytest.raises(Misuse):
        encode_message(message)


@given(
    st.sampled_from([p for p in Place if p is not Place.NOWHERE]).flatmap(
        lambda place: st.tuples(st.just(place), parameters(place))
    )
)
def test_round_trip_and_truncation(case: tuple[Place, Parameters]) -> None:
    place, value = case
    writer = Writer()
    write_parameters(writer, value, place)
    wire = writer.getvalue()
    reader = Reader(wire)
    assert read_parameters(reader, place) == value
    reader.expect_end("parameters")
    for end in range(len(wire)):
        with pytest.raises((Incomplete, ProtocolViolation)):
            read_parameters(Reader(wire[:end]), place)
