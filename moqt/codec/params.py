"""Message Parameters: one table says type, form, place and repetition (draft-22 §9.20)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moqt.codec.cursor import Reader, Writer
from moqt.codec.fields import Token, read_location, read_namespace, write_location, write_namespace
from moqt.codec.filters import (
    InvalidFilter,
    read_location_filter,
    read_range_filter,
    write_location_filter,
    write_range_filter,
)
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation
from moqt.model import MAX_VI64, GroupOrder, LocationFilter, RangeFilter, RangeFilterType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moqt.model import Location, TrackNamespace

#: No limit of its own: the message body bounds every length inside it.
_BODY: Final = 65_535


class Scope(Enum):
    """The request on whose stream a message travels."""

    SUBSCRIPTION = auto()
    FETCH = auto()
    TRACK_STATUS = auto()
    PUBLISH = auto()
    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()


class Place(Flag):
    """Where a parameter list may stand: a message, an update of, or an OK to, a request."""

    SUBSCRIBE = auto()
    PUBLISH = auto()
    FETCH = auto()
    TRACK_STATUS = auto()
    SUBSCRIBE_TRACKS = auto()
    SUBSCRIBE_NAMESPACE = auto()
    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_OK = auto()
    FETCH_OK = auto()
    PUBLISH_STATE_NOTIFY = auto()
    FILL = auto()
    UPDATE_SUBSCRIPTION = auto()
    UPDATE_FETCH = auto()
    UPDATE_PUBLISH_NAMESPACE = auto()
    UPDATE_SUBSCRIBE_NAMESPACE = auto()
    UPDATE_SUBSCRIBE_TRACKS = auto()
    OK_PUBLISH = auto()
    OK_TRACK_STATUS = auto()
    OK_PUBLISH_NAMESPACE = auto()
    OK_SUBSCRIBE_NAMESPACE = auto()
    OK_SUBSCRIBE_TRACKS = auto()
    OK_UPDATE = auto()
    NOWHERE = 0
    UPDATE_NAMESPACE = UPDATE_SUBSCRIBE_NAMESPACE | UPDATE_SUBSCRIBE_TRACKS
    UPDATE = UPDATE_SUBSCRIPTION | UPDATE_FETCH | UPDATE_PUBLISH_NAMESPACE | UPDATE_NAMESPACE
    OK_NAMESPACE = OK_PUBLISH_NAMESPACE | OK_SUBSCRIBE_NAMESPACE | OK_SUBSCRIBE_TRACKS
    OK = OK_PUBLISH | OK_TRACK_STATUS | OK_NAMESPACE | OK_UPDATE


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one message; None or empty is absent. Times are in milliseconds.

    ``invalid_filter`` says why a well-framed Range Filter of the peer is unusable: the request
    gets error(INVALID_FILTER), the session goes on (draft-22 §8.6).
    """

    object_delivery_timeout: int | None = None
    authorization_tokens: tuple[Token, ...] = ()
    rendezvous_timeout: int | None = None
    subgroup_delivery_timeout: int | None = None
    expires: int | None = None
    largest_object: Location | None = None
    fill_timeout: int | None = None
    forward: bool | None = None
    subscriber_priority: int | None = None
    location_filter: LocationFilter | None = None
    group_order: GroupOrder | None = None
    fill: Parameters | None = None
    range_filters: tuple[RangeFilter, ...] = ()
    new_group_request: int | None = None
    track_namespace_prefix: TrackNamespace | None = None
    include_properties: bool | None = None
    invalid_filter: str | None = None


NO_PARAMETERS: Final = Parameters()


class Form(NamedTuple):
    """How a value is read and written."""

    read: Callable[[Reader], Any]
    write: Callable[[Writer, Any], None]


class Row(NamedTuple):
    """One Message Parameter. ``tolerated`` places are accepted but never written by us."""

    code: int
    field: str
    form: Form
    places: Place
    tolerated: Place = Place.NOWHERE
    repeats: bool = False


def _read_flag(reader: Reader) -> bool:
    value = reader.u8()
    if value > 1:
        raise ProtocolViolation(f"parameter value {value}; only 0 and 1 are allowed")
    return value == 1


def _read_order(reader: Reader) -> GroupOrder:
    value = reader.u8()
    if value not in (1, 2):
        raise ProtocolViolation(f"GROUP_ORDER {value}; only 1 and 2 are allowed")
    return GroupOrder(value)


def _read_token(reader: Reader) -> Token:
    return Token.decode(reader.length_prefixed(_BODY, "authorization token"))


def _write_token(writer: Writer, token: Token) -> None:
    writer.length_prefixed(token.encode())


def _read_fill(reader: Reader) -> Parameters:
    """Length, then a count and parameters; a list without count is taken too (§9.20.15)."""
    inner = Reader(reader.length_prefixed(_BODY, "FILL_PARAMETERS"))
    if not inner.remaining:
        return NO_PARAMETERS
    count = inner.varint()
    try:
        found = _read_list(inner, Place.FILL, count, _BY_CODE)
        inner.expect_end("FILL_PARAMETERS")
    except (Incomplete, ProtocolViolation):
        # No type allowed inside is below 0x0a, so a smaller first integer is a count.
        if count < _FIRST_FILL_TYPE:
            raise
        inner.rewind(0)
        found = _read_list(inner, Place.FILL, None, _BY_CODE)
    return found


def _read_fill_without_length(reader: Reader) -> Parameters:
    return _read_list(reader, Place.FILL, reader.varint(), _BY_CODE)


def _write_fill(writer: Writer, fill: Parameters) -> None:
    inner = Writer()
    write_parameters(inner, fill, Place.FILL)
    writer.length_prefixed(inner.getvalue())


def _range_form(kind: RangeFilterType) -> Form:
    return Form(
        lambda reader: read_range_filter(
            kind, reader.length_prefixed(_BODY, f"{kind.name} filter")
        ),
        lambda writer, value: writer.length_prefixed(write_range_filter(value)),
    )


_VARINT: Final = Form(Reader.varint, Writer.varint)
_U8: Final = Form(Reader.u8, Writer.u8)
_FLAG: Final = Form(_read_flag, Writer.u8)
_ORDER: Final = Form(_read_order, Writer.u8)
_LOCATION: Final = Form(read_location, write_location)
_TOKEN: Final = Form(_read_token, _write_token)
_FILTER: Final = Form(read_location_filter, write_location_filter)
_FILL: Final = Form(_read_fill, _write_fill)
_PREFIX: Final = Form(read_namespace, write_namespace)

_REQUESTS: Final = (
    Place.SUBSCRIBE
    | Place.PUBLISH
    | Place.FETCH
    | Place.TRACK_STATUS
    | Place.SUBSCRIBE_TRACKS
    | Place.SUBSCRIBE_NAMESPACE
    | Place.PUBLISH_NAMESPACE
)
_SELECTS: Final = (
    Place.FETCH | Place.SUBSCRIBE | Place.SUBSCRIBE_TRACKS | Place.UPDATE_SUBSCRIPTION | Place.FILL
)
_TIMEOUT: Final = Place.SUBSCRIBE | Place.PUBLISH | Place.UPDATE_SUBSCRIPTION
_TRACKS: Final = Place.SUBSCRIBE_TRACKS

#: draft-22 §9.20 and §16.7, ascending by code. SUBSCRIBE_TRACKS: §3.6.2 lets every SUBSCRIBE
#: parameter in. TRACK_STATUS_OK: §9.13 promises what SUBSCRIBE_OK would carry, §9.20.16 omits it.
TABLE: Final = (
    Row(0x02, "object_delivery_timeout", _VARINT, _TIMEOUT, _TRACKS),
    Row(0x03, "authorization_tokens", _TOKEN, _REQUESTS | Place.UPDATE, repeats=True),
    Row(0x04, "rendezvous_timeout", _VARINT, Place.SUBSCRIBE, _TRACKS),
    Row(0x06, "subgroup_delivery_timeout", _VARINT, _TIMEOUT, _TRACKS),
    Row(
        0x08,
        "expires",
        _VARINT,
        Place.SUBSCRIBE_OK
        | Place.PUBLISH
        | Place.OK_PUBLISH
        | Place.OK_NAMESPACE
        | Place.OK_UPDATE,
        Place.OK_TRACK_STATUS,
    ),
    Row(
        0x09,
        "largest_object",
        _LOCATION,
        Place.SUBSCRIBE_OK
        | Place.PUBLISH
        | Place.OK_UPDATE
        | Place.OK_TRACK_STATUS
        | Place.PUBLISH_STATE_NOTIFY,
    ),
    Row(0x0A, "fill_timeout", _VARINT, Place.FETCH | Place.FILL),
    Row(
        0x10,
        "forward",
        _FLAG,
        Place.SUBSCRIBE
        | Place.PUBLISH
        | Place.SUBSCRIBE_TRACKS
        | Place.UPDATE_SUBSCRIPTION
        | Place.UPDATE_SUBSCRIBE_TRACKS
        | Place.PUBLISH_STATE_NOTIFY,
    ),
    Row(
        0x20,
        "subscriber_priority",
        _U8,
        Place.SUBSCRIBE
        | Place.PUBLISH
        | Place.FETCH
        | Place.UPDATE_SUBSCRIPTION
        | Place.UPDATE_FETCH
        | Place.FILL,
        _TRACKS,
    ),
    Row(0x21, "location_filter", _FILTER, _SELECTS | Place.PUBLISH | Place.PUBLISH_STATE_NOTIFY),
    Row(
        0x22,
        "group_order",
        _ORDER,
        Place.SUBSCRIBE | Place.PUBLISH | Place.SUBSCRIBE_TRACKS | Place.FETCH | Place.FILL,
    ),
    Row(0x23, "fill", _FILL, Place.SUBSCRIBE | Place.UPDATE_SUBSCRIPTION | Place.SUBSCRIBE_TRACKS),
    Row(0x25, "range_filters", _range_form(RangeFilterType.SUBGROUP), _SELECTS, repeats=True),
    Row(0x26, "range_filters", _range_form(RangeFilterType.OBJECT_ID), _SELECTS, repeats=True),
    Row(0x27, "range_filters", _range_form(RangeFilterType.PRIORITY), _SELECTS, repeats=True),
    Row(
        0x28, "range_filters", _range_form(RangeFilterType.OBJECT_PROPERTY), _SELECTS, repeats=True
    ),
    Row(
        0x29,
        "range_filters",
        _range_form(RangeFilterType.TRACK_PROPERTY),
        Place.SUBSCRIBE_TRACKS | Place.UPDATE_SUBSCRIBE_TRACKS,
        repeats=True,
    ),
    Row(0x32, "new_group_request", _VARINT, Place.SUBSCRIBE | Place.UPDATE_SUBSCRIPTION, _TRACKS),
    Row(0x34, "track_namespace_prefix", _PREFIX, Place.UPDATE_NAMESPACE),
    Row(
        0x35,
        "include_properties",
        _FLAG,
        Place.SUBSCRIBE | Place.TRACK_STATUS | Place.FETCH | Place.SUBSCRIBE_TRACKS,
    ),
)

_BY_CODE: Final = {row.code: row for row in TABLE}
#: The same with the form of FILL_PARAMETERS a later draft moves to: a count and no length.
_BY_CODE_LATER: Final = {
    code: row._replace(form=Form(_read_fill_without_length, _write_fill))
    if row.field == "fill"
    else row
    for code, row in _BY_CODE.items()
}
_FILL_PLACES: Final = next(row.places for row in TABLE if row.field == "fill")
_FIRST_FILL_TYPE: Final = min(row.code for row in TABLE if row.places & Place.FILL)


def read_parameters(reader: Reader, place: Place) -> Parameters:
    """Number of Parameters and the list; ProtocolViolation for what ``place`` does not allow.

    Where FILL_PARAMETERS may stand the list ends the message: when it does not, its other known
    form is tried (draft-22 §9.20.15 leaves the form open).
    """
    if not place & _FILL_PLACES:
        return _read_list(reader, place, reader.varint(), _BY_CODE)
    start = reader.at
    try:
        found = _read_list(reader, place, reader.varint(), _BY_CODE)
        reader.expect_end("parameter list")
    except (Incomplete, ProtocolViolation):
        reader.rewind(start)
        second = _retry(reader, place)
        if second is None:
            raise
        return second
    return found


def _retry(reader: Reader, place: Place) -> Parameters | None:
    try:
        found = _read_list(reader, place, reader.varint(), _BY_CODE_LATER)
    except (Incomplete, ProtocolViolation):
        return None
    return found if found.fill is not None and not reader.remaining else None


def _read_list(
    reader: Reader, place: Place, count: int | None, table: dict[int, Row]
) -> Parameters:
    """``count`` parameters, or as many as there are octets when None."""
    code = seen = 0
    row: Row | None = None
    values: dict[str, Any] = {}
    repeated: dict[str, list[Any]] = {}
    while reader.remaining if count is None else seen < count:
        delta = reader.varint()
        code += delta
        if row is None or delta:
            row = _allowed(code, place, table)
        seen += 1
        try:
            value = row.form.read(reader)
        except InvalidFilter as broken:
            values.setdefault("invalid_filter", f"{RangeFilterType(code).name} filter: {broken}")
            continue
        if row.repeats:
            repeated.setdefault(row.field, []).append(value)
        elif row.field in values:
            raise ProtocolViolation(f"parameter {code:#x} ({row.field}) appears twice")
        else:
            values[row.field] = value
    values.update((name, tuple(found)) for name, found in repeated.items())
    if not values:
        return NO_PARAMETERS
    if "range_filters" in values:
        _check_keys(values)
    return Parameters(**values)


def _allowed(code: int, place: Place, table: dict[int, Row]) -> Row:
    if code > MAX_VI64:
        raise ProtocolViolation("parameter type above 2^64-1")
    row = table.get(code)
    if row is None:
        raise ProtocolViolation(f"parameter {code:#x} is unknown")
    if not (row.places | row.tolerated) & place:
        raise ProtocolViolation(
            f"parameter {code:#x} ({row.field}) is not allowed in {place.name or place}"
        )
    return row


def _check_keys(values: dict[str, Any]) -> None:
    """A filter's (type, SetID, Property Type) must be unique in a message (§3.3.2)."""
    keys = [(f.type, f.set_id, f.property_type) for f in values["range_filters"]]
    if len(set(keys)) < len(keys):
        values.setdefault(
            "invalid_filter", "two range filters of one type, SetID and property type"
        )


def write_parameters(writer: Writer, parameters: Parameters, place: Place) -> None:
    """Number of Parameters and the list; Misuse for what ``place`` does not allow."""
    found = list(_present(parameters))
    writer.varint(len(found))
    previous = 0
    for row, value in found:
        if not row.places & place:
            raise Misuse(
                f"parameter {row.field} is not allowed in {place.name or place}: leave it out"
            )
        writer.varint(row.code - previous)
        previous = row.code
        row.form.write(writer, value)


def _present(parameters: Parameters) -> Iterator[tuple[Row, Any]]:
    for row in TABLE:
        value = getattr(parameters, row.field)
        if row.field == "range_filters":
            yield from ((row, item) for item in value if item.type == row.code)
        elif row.repeats:
            yield from ((row, item) for item in value)
        elif value is not None:
            yield row, value
