"""Setup Options, Track Properties and Object Properties: what lives in key-value pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from moqt.codec.fields import AliasType, Token, read_pairs, text_octets, write_pairs
from moqt.errors import MalformedTrack, Misuse, ProtocolViolation
from moqt.model import GroupOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moqt.codec.fields import Pair
    from moqt.model import Location
    from transport.api import BytesLike

#: Setup Options (draft-22 §9.1, §16.4).
_PATH: Final = 0x01
_AUTHORIZATION_TOKEN: Final = 0x03
_MAX_AUTH_TOKEN_CACHE_SIZE: Final = 0x04
_AUTHORITY: Final = 0x05
_MAX_FILTER_RANGES: Final = 0x06
_IMPLEMENTATION: Final = 0x07
_MAX_REQUEST_UPDATES: Final = 0x08

#: Properties (draft-22 §10, §16.8).
OBJECT_DELIVERY_TIMEOUT: Final = 0x02
MAX_CACHE_DURATION: Final = 0x04
SUBGROUP_DELIVERY_TIMEOUT: Final = 0x06
IMMUTABLE_PROPERTIES: Final = 0x0B
DEFAULT_PUBLISHER_PRIORITY: Final = 0x0E
DEFAULT_PUBLISHER_GROUP_ORDER: Final = 0x22
DYNAMIC_GROUPS: Final = 0x30
PRIOR_GROUP_ID_GAP: Final = 0x3C
PRIOR_OBJECT_ID_GAP: Final = 0x3E
#: draft-22 §3.7: a track that carries one we do not know must not be processed.
MANDATORY: Final = range(0x4000, 0x8000)

_OPTION_FIELDS: Final = {
    _PATH: "path",
    _MAX_AUTH_TOKEN_CACHE_SIZE: "max_auth_token_cache_size",
    _AUTHORITY: "authority",
    _MAX_FILTER_RANGES: "max_filter_ranges",
    _IMPLEMENTATION: "implementation",
    _MAX_REQUEST_UPDATES: "max_request_updates",
}


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """The options of one SETUP (draft-22 §9.1). None is absent; limits default to 0.

    Text that is not UTF-8 arrives with U+FFFD in it. ``unknown`` counts ignored options.
    """

    path: str | None = None
    authority: str | None = None
    authorization_tokens: tuple[Token, ...] = ()
    max_auth_token_cache_size: int = 0
    max_filter_ranges: int = 0
    implementation: str | None = None
    max_request_updates: int = 0
    unknown: int = field(default=0, compare=False)

    @classmethod
    def decode(cls, data: BytesLike) -> Self:
        """Options filling ``data``; SessionFault when malformed, repeated or with a bad token."""
        values: dict[str, Any] = {}
        tokens = []
        unknown = 0
        for code, value in read_pairs(data):
            if isinstance(value, bytes) and code == _AUTHORIZATION_TOKEN:
                tokens.append(_setup_token(value))
            elif (name := _OPTION_FIELDS.get(code)) is None:
                unknown += 1
            elif name in values:
                raise ProtocolViolation(f"setup option {code:#x} ({name}) appears twice")
            else:
                values[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        return cls(**values, authorization_tokens=tuple(tokens), unknown=unknown)

    def encode(self) -> bytes:
        """The options as key-value pairs; limits of 0 are left out."""
        pairs: list[Pair] = [
            (_AUTHORIZATION_TOKEN, token.encode()) for token in self.authorization_tokens
        ]
        for code, name in _OPTION_FIELDS.items():
            value = getattr(self, name)
            if value or value == "":
                pairs.append((code, text_octets(value, name) if isinstance(value, str) else value))
        return write_pairs(sorted(pairs, key=_by_code))


NO_OPTIONS: Final = SetupOptions()


def _by_code(pair: Pair) -> int:
    return pair[0]


def _setup_token(value: bytes) -> Token:
    token = Token.decode(value)
    if token.alias_type in (AliasType.DELETE, AliasType.USE_ALIAS):
        raise ProtocolViolation(
            f"authorization token with alias type {token.alias_type.name} in SETUP"
        )
    return token


@dataclass(frozen=True, slots=True)
class TrackProperties:
    """The properties of a track that we know (draft-22 §10); None is absent, times in ms.

    ``immutable`` holds the octets inside IMMUTABLE_PROPERTIES, ``unknown_mandatory`` the types of
    mandatory properties, none of which we understand, ``raw`` all octets as they arrived.
    """

    object_delivery_timeout: int | None = None
    max_cache_duration: int | None = None
    subgroup_delivery_timeout: int | None = None
    default_publisher_priority: int = 128
    default_publisher_group_order: GroupOrder = GroupOrder.ASCENDING
    dynamic_groups: bool = False
    immutable: bytes | None = None
    unknown_mandatory: tuple[int, ...] = ()
    raw: bytes = field(default=b"", compare=False)

    @classmethod
    def decode(cls, raw: BytesLike) -> Self:
        """Look in the list, then inside IMMUTABLE_PROPERTIES; of two values the first counts.

        ProtocolViolation for bad pairs or values, MalformedTrack for a bad immutable list.
        """
        values: dict[str, Any] = {}
        mandatory = []
        outer, immutable = _both_lists(raw)
        for code, value in (*outer, *read_pairs(immutable or b"")):
            if code in MANDATORY:
                mandatory.append(code)
            elif isinstance(value, int) and (name := _TRACK_FIELDS.get(code)) is not None:
                values.setdefault(name, _checked(code, value))
        return cls(
            **values, immutable=immutable, unknown_mandatory=tuple(mandatory), raw=bytes(raw)
        )

    def encode(self) -> bytes:
        """Octets of the known fields, defaults left out. A relay forwards ``raw`` instead."""
        if self.default_publisher_priority not in range(256):
            raise Misuse(f"default priority {self.default_publisher_priority}: give 0 to 255")
        pairs: list[Pair] = []
        for code, name in _TRACK_FIELDS.items():
            value = getattr(self, name)
            if value is not None and value != _TRACK_DEFAULTS.get(name):
                pairs.append((code, int(value)))
        if self.immutable is not None:
            pairs.append((IMMUTABLE_PROPERTIES, self.immutable))
        return write_pairs(sorted(pairs, key=_by_code))


_TRACK_FIELDS: Final = {
    OBJECT_DELIVERY_TIMEOUT: "object_delivery_timeout",
    MAX_CACHE_DURATION: "max_cache_duration",
    SUBGROUP_DELIVERY_TIMEOUT: "subgroup_delivery_timeout",
    DEFAULT_PUBLISHER_PRIORITY: "default_publisher_priority",
    DEFAULT_PUBLISHER_GROUP_ORDER: "default_publisher_group_order",
    DYNAMIC_GROUPS: "dynamic_groups",
}
_TRACK_DEFAULTS: Final = {
    "default_publisher_priority": 128,
    "default_publisher_group_order": GroupOrder.ASCENDING,
    "dynamic_groups": False,
}
#: Allowed values (draft-22 §10.4 to §10.6).
_RANGES: Final = {
    DEFAULT_PUBLISHER_PRIORITY: range(256),
    DEFAULT_PUBLISHER_GROUP_ORDER: range(1, 3),
    DYNAMIC_GROUPS: range(2),
}
#: What a value in range becomes.
_KINDS: Final[dict[int, Callable[[int], int]]] = {
    DEFAULT_PUBLISHER_GROUP_ORDER: GroupOrder,
    DYNAMIC_GROUPS: bool,
}


def _checked(code: int, value: int) -> int:
    allowed = _RANGES.get(code)
    if allowed is not None and value not in allowed:
        raise ProtocolViolation(
            f"track property {code:#x} is {value}; {allowed[0]} to {allowed[-1]} are allowed"
        )
    return _KINDS.get(code, int)(value)


def read_properties(raw: BytesLike) -> Iterator[Pair]:
    """Type and value of each property, in order; ProtocolViolation when malformed."""
    return read_pairs(raw)


def find(raw: BytesLike, type: int) -> int | bytes | None:
    """The first value of ``type``, in the list itself, else inside IMMUTABLE_PROPERTIES."""
    outer, immutable = _both_lists(raw)
    for code, value in (*outer, *read_pairs(immutable or b"")):
        if code == type:
            return value
    return None


def check_object_properties(raw: BytesLike, location: Location | None = None) -> None:
    """ProtocolViolation for bad pairs; MalformedTrack for what no object may carry.

    That is: a mandatory track property, a second or broken IMMUTABLE_PROPERTIES, a second prior
    gap, or one that reaches below zero from ``location`` (draft-22 §10.7 to §10.9, §3.7).
    """
    outer, immutable = _both_lists(raw)
    gaps: set[int] = set()
    for code, value in (*outer, *read_pairs(immutable or b"")):
        if code in MANDATORY:
            raise MalformedTrack(f"mandatory track property {code:#x} on an object")
        if code not in (PRIOR_GROUP_ID_GAP, PRIOR_OBJECT_ID_GAP):
            continue
        if code in gaps:
            raise MalformedTrack(f"prior gap property {code:#x} twice on an object")
        gaps.add(code)
        if location is None:
            continue
        limit = location.group if code == PRIOR_GROUP_ID_GAP else location.object
        if isinstance(value, int) and value > limit:
            raise MalformedTrack(f"prior gap {code:#x} of {value} before id {limit}")


def check_own_properties(raw: BytesLike, location: Location) -> None:
    """Misuse for object properties of our caller's that a peer would have to refuse."""
    try:
        check_object_properties(raw, location)
    except (ProtocolViolation, MalformedTrack) as fault:
        raise Misuse(f"properties of object {tuple(location)}: {fault}") from None


def _both_lists(raw: BytesLike) -> tuple[list[Pair], bytes | None]:
    """The outer pairs and the octets of IMMUTABLE_PROPERTIES, proven to be well formed."""
    outer = list(read_pairs(raw))
    found = [
        value for code, value in outer if code == IMMUTABLE_PROPERTIES and isinstance(value, bytes)
    ]
    if not found:
        return outer, None
    if len(found) > 1:
        raise MalformedTrack("IMMUTABLE_PROPERTIES appears twice")
    try:
        nested = any(code == IMMUTABLE_PROPERTIES for code, _ in read_pairs(found[0]))
    except ProtocolViolation as fault:
        raise MalformedTrack(f"IMMUTABLE_PROPERTIES cannot be parsed: {fault.reason}") from None
    if nested:
        raise MalformedTrack("IMMUTABLE_PROPERTIES inside IMMUTABLE_PROPERTIES")
    return outer, found[0]
