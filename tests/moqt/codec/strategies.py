"""Hypothesis strategies for every value the codec knows."""

from __future__ import annotations

from hypothesis import strategies as st

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token, write_pairs
from moqt.codec.params import TABLE, Parameters, Place
from moqt.codec.properties import MANDATORY, SetupOptions, TrackProperties
from moqt.errors import RequestCode
from moqt.model import (
    MAX_VI64,
    FullTrackName,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    ObjectHead,
    ObjectStatus,
    RangeFilter,
    RangeFilterType,
    Span,
)

#: Every length of a vi64 is as likely as any other.
integers = st.integers(0, 64).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
octet = st.integers(0, 255)
text = st.text(max_size=40)
namespaces = st.lists(st.binary(min_size=1, max_size=20), max_size=32).map(tuple)
names = st.builds(FullTrackName, namespaces, st.binary(max_size=20))
locations = st.builds(Location, integers, integers)
orders = st.sampled_from(GroupOrder)
cuts = st.lists(st.integers(0, 400), max_size=12)


def _token(kind: AliasType, alias: int, code: int, value: bytes) -> Token:
    if kind is AliasType.REGISTER:
        return Token(kind, alias, code, value)
    return Token.use_value(value, code) if kind is AliasType.USE_VALUE else Token(kind, alias)


tokens = st.builds(_token, st.sampled_from(AliasType), integers, integers, st.binary(max_size=30))


def _location_filter(kind: LocationFilterType, values: list[int]) -> LocationFilter:
    fields = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 0}[kind]
    group, obj, delta, end = values[:fields] + [0] * (4 - fields)
    return LocationFilter(kind, Location(group, obj), min(delta, MAX_VI64 - group), end)


location_filters = st.builds(
    _location_filter,
    st.sampled_from(LocationFilterType),
    st.lists(integers, min_size=4, max_size=4),
)


@st.composite
def range_filters(draw: st.DrawFn, kind: RangeFilterType, set_id: int) -> RangeFilter:
    """A usable filter of one kind and set."""
    if draw(st.booleans()):
        return RangeFilter(kind, remove=True)
    limit = 255 if kind is RangeFilterType.PRIORITY else MAX_VI64
    bounds = sorted(draw(st.lists(st.integers(0, limit), max_size=8)))
    spans = [Span(first, last) for first, last in zip(bounds[::2], bounds[1::2], strict=False)]
    if len(bounds) % 2:
        spans.append(Span(bounds[-1], None))
    by_property = kind in (RangeFilterType.OBJECT_PROPERTY, RangeFilterType.TRACK_PROPERTY)
    code = draw(integers) & ~1 if by_property else None
    return RangeFilter(kind, tuple(spans), set_id, code)


@st.composite
def parameters(draw: st.DrawFn, place: Place) -> Parameters:
    """Any set of parameters that may stand in ``place``."""
    simple = {
        "forward": st.booleans(),
        "include_properties": st.booleans(),
        "subscriber_priority": octet,
        "largest_object": locations,
        "location_filter": location_filters,
        "group_order": orders,
        "track_namespace_prefix": namespaces,
    }
    values: dict[str, object] = {}
    filters: list[RangeFilter] = []
    for row in TABLE:
        if not row.places & place or not draw(st.booleans()):
            continue
        if row.field == "range_filters":
            kind = RangeFilterType(row.code)
            ids = draw(st.lists(octet, unique=True, min_size=1, max_size=2))
            found = [draw(range_filters(kind, set_id)) for set_id in ids]
            # A removal has no SetID: two of them would be one key twice.
            filters += found if not all(each.remove for each in found) else found[:1]
        elif row.field == "authorization_tokens":
            values[row.field] = tuple(draw(st.lists(tokens, max_size=3)))
        elif row.field == "fill":
            values[row.field] = draw(parameters(Place.FILL))
        else:
            values[row.field] = draw(simple.get(row.field, integers))
    keys = [(each.type, each.set_id, each.property_type) for each in filters]
    unique = dict(zip(keys, filters, strict=True))
    return Parameters(**values, range_filters=tuple(unique.values()))  # type: ignore[arg-type]


_pairs = st.lists(
    st.one_of(
        st.tuples(integers.map(lambda code: code & ~1), integers),
        st.tuples(integers.map(lambda code: code | 1), st.binary(max_size=30)),
    ),
    max_size=5,
)
#: Key-value pairs in wire order.
pairs = _pairs.map(lambda found: tuple(sorted(found, key=lambda pair: pair[0])))
track_properties = pairs.map(write_pairs)
#: Octets that may stand on an object: no gap, no immutable list, nothing mandatory.
object_properties = pairs.map(
    lambda found: write_pairs(
        pair for pair in found if pair[0] not in (0x0B, 0x3C, 0x3E) and pair[0] not in MANDATORY
    )
)
known_track_properties = st.builds(
    TrackProperties,
    object_delivery_timeout=st.none() | integers,
    max_cache_duration=st.none() | integers,
    subgroup_delivery_timeout=st.none() | integers,
    default_publisher_priority=octet,
    default_publisher_group_order=orders,
    dynamic_groups=st.booleans(),
    immutable=st.none() | st.just(b"\x40\x00"),
)
_setup_tokens = tokens.filter(
    lambda token: token.alias_type in (AliasType.REGISTER, AliasType.USE_VALUE)
)
setup_options = st.builds(
    SetupOptions,
    path=st.none() | text,
    authority=st.none() | text,
    authorization_tokens=st.lists(_setup_tokens, max_size=2).map(tuple),
    max_auth_token_cache_size=integers,
    max_filter_ranges=integers,
    implementation=st.none() | text,
    max_request_updates=integers,
)
_errors = st.one_of(
    st.builds(
        m.RequestError, integers.filter(lambda code: code != RequestCode.REDIRECT), integers, text
    ),
    st.builds(
        m.RequestError,
        st.just(0x34),
        integers,
        text,
        st.builds(m.Redirect, text, names),
    ),
)
_subscribe = parameters(Place.SUBSCRIBE)
messages: st.SearchStrategy[m.Message] = st.one_of(
    st.builds(m.Setup, setup_options),
    st.builds(m.Goaway, text, integers),
    st.builds(m.RequestOk, parameters(Place.OK), track_properties),
    _errors,
    st.builds(m.RequestUpdate, integers, parameters(Place.UPDATE)),
    st.builds(m.Subscribe, integers, names, _subscribe),
    st.builds(m.SubscribeOk, integers, parameters(Place.SUBSCRIBE_OK), track_properties),
    st.builds(m.Publish, integers, names, integers, parameters(Place.PUBLISH), track_properties),
    st.builds(m.PublishDone, integers, integers, text),
    st.builds(m.PublishStateNotify, parameters(Place.PUBLISH_STATE_NOTIFY)),
    st.builds(m.Fetch, integers, names, parameters(Place.FETCH)),
    st.builds(m.FetchOk, st.booleans(), locations, parameters(Place.FETCH_OK), track_properties),
    st.builds(m.TrackStatus, integers, names, parameters(Place.TRACK_STATUS)),
    st.builds(m.PublishNamespace, integers, namespaces, parameters(Place.PUBLISH_NAMESPACE)),
    st.builds(m.SubscribeNamespace, integers, namespaces, parameters(Place.SUBSCRIBE_NAMESPACE)),
    st.builds(m.Namespace, namespaces),
    st.builds(m.NamespaceDone, namespaces),
    st.builds(m.SubscribeTracks, integers, namespaces, parameters(Place.SUBSCRIBE_TRACKS)),
    st.builds(m.PublishSkipped, namespaces, st.binary(max_size=20)),
)


@st.composite
def subgroup_objects(
    draw: st.DrawFn, group: int, subgroup: int | None, *, priority: int, with_properties: bool
) -> list[tuple[ObjectHead, bytes]]:
    """Objects of one subgroup stream, IDs rising; ``subgroup`` None is the first Object ID."""
    numbers = sorted(draw(st.sets(integers, max_size=8)))
    owner = subgroup if subgroup is not None or not numbers else numbers[0]
    found = []
    for number in numbers:
        payload = draw(st.binary(max_size=60))
        properties = draw(object_properties) if with_properties else b""
        status = ObjectStatus.NORMAL
        if not payload and not properties:
            status = draw(st.sampled_from(ObjectStatus))
        head = ObjectHead(group, owner, number, priority, len(payload), status, properties)
        found.append((head, payload))
    return found


@st.composite
def fetch_records(draw: st.DrawFn, order: GroupOrder) -> list[object]:
    """Objects and gaps of one fetch stream, in its order."""
    places = sorted(draw(st.sets(locations, max_size=8)))
    if order is GroupOrder.DESCENDING:
        places.sort(key=lambda place: (-place.group, place.object))
    found: list[object] = []
    for place in places:
        if draw(st.integers(0, 4)) == 0:
            found.append(Gap(draw(st.sampled_from(GapKind)), place))
            continue
        payload = draw(st.binary(max_size=60))
        subgroup = draw(st.none() | st.integers(0, 3) | integers)
        found.append(
            (
                ObjectHead(
                    place.group,
                    subgroup,
                    place.object,
                    draw(st.sampled_from((0, 128, 255))),
                    len(payload),
                    properties=draw(object_properties),
                ),
                payload,
            )
        )
    return found
