"""Fields that several messages share: names, locations, reasons, tokens, key-value pairs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from moqt.codec.cursor import Reader, Writer
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation, SessionCode, SessionFault
from moqt.model import MAX_NAME_LENGTH, MAX_NAMESPACE_FIELDS, MAX_VI64, FullTrackName, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moqt.model import TrackNamespace
    from transport.api import BytesLike

#: draft-22 §8.5.
MAX_REASON: Final = 1024
#: draft-22 §8.3: octets of one Key-Value-Pair's value.
MAX_PAIR_VALUE: Final = 65_535

#: A Key-Value-Pair: an int under an even type, octets under an odd one.
Pair: TypeAlias = tuple[int, int | bytes]


def check_name(namespace: TrackNamespace, name: bytes = b"") -> None:
    """Misuse when our caller's name breaks draft-22 §2.4.1: 32 fields, none empty, 4096 octets."""
    if not isinstance(namespace, tuple):
        raise Misuse(f"namespace {namespace!r}: give a tuple of bytes, one for each field")
    for part in (*namespace, name):
        if not isinstance(part, bytes):
            raise Misuse(f"{part!r} in a name: names are bytes, so encode() text first")
    if len(namespace) > MAX_NAMESPACE_FIELDS:
        raise Misuse(
            f"namespace of {len(namespace)} fields: at most {MAX_NAMESPACE_FIELDS} are allowed"
        )
    if not all(namespace):
        raise Misuse("namespace with an empty field: give every field at least one octet")
    total = sum(map(len, namespace)) + len(name)
    if total > MAX_NAME_LENGTH:
        raise Misuse(
            f"name of {total} octets: namespace and name may hold {MAX_NAME_LENGTH} together"
        )


def read_namespace(reader: Reader) -> TrackNamespace:
    """A Track Namespace, prefix or suffix (draft-22 §8.7)."""
    count = reader.varint()
    if count > MAX_NAMESPACE_FIELDS:
        raise ProtocolViolation(
            f"namespace of {count} fields; at most {MAX_NAMESPACE_FIELDS} are allowed"
        )
    left = MAX_NAME_LENGTH
    parts = []
    for _ in range(count):
        part = reader.length_prefixed(left, "namespace field")
        if not part:
            raise ProtocolViolation("namespace field of length 0")
        left -= len(part)
        parts.append(part)
    return tuple(parts)


def write_namespace(writer: Writer, namespace: TrackNamespace) -> None:
    """A Track Namespace; Misuse when it breaks a limit."""
    check_name(namespace)
    writer.varint(len(namespace))
    for part in namespace:
        writer.length_prefixed(part)


def read_name(reader: Reader) -> FullTrackName:
    """Track Namespace and Track Name, 4096 octets together."""
    namespace = read_namespace(reader)
    left = MAX_NAME_LENGTH - sum(map(len, namespace))
    return FullTrackName(namespace, reader.length_prefixed(left, "track name"))


def write_name(writer: Writer, name: FullTrackName) -> None:
    """Track Namespace and Track Name; Misuse when they break a limit."""
    check_name(*name)
    write_namespace(writer, name.namespace)
    writer.length_prefixed(name.name)


def read_location(reader: Reader) -> Location:
    """Group, Object."""
    return Location(reader.varint(), reader.varint())


def write_location(writer: Writer, location: Location) -> None:
    """Group, Object."""
    writer.varint(location.group)
    writer.varint(location.object)


def text_octets(text: str, what: str) -> bytes:
    """UTF-8 of our own text; Misuse when it holds lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{what} cannot be written as UTF-8: remove the lone surrogates") from None


def read_reason(reader: Reader) -> str:
    """A Reason Phrase; octets that are not UTF-8 become U+FFFD (draft-22 §8.5)."""
    return reader.length_prefixed(MAX_REASON, "reason phrase").decode(errors="replace")


def write_reason(writer: Writer, reason: str) -> None:
    """A Reason Phrase; Misuse above 1024 octets."""
    octets = text_octets(reason, "reason phrase")
    if len(octets) > MAX_REASON:
        raise Misuse(f"reason phrase of {len(octets)} octets: at most {MAX_REASON} are allowed")
    writer.length_prefixed(octets)


def read_pairs(data: BytesLike) -> Iterator[Pair]:
    """Key-Value-Pairs filling ``data``; ProtocolViolation when malformed (draft-22 §8.3)."""
    reader = Reader(data)
    code = 0
    while reader.remaining:
        try:
            code += reader.varint()
            if code > MAX_VI64:
                raise ProtocolViolation("key-value type above 2^64-1")
            value = (
                reader.length_prefixed(MAX_PAIR_VALUE, f"value of key {code:#x}")
                if code & 1
                else reader.varint()
            )
        except Incomplete:
            raise ProtocolViolation(
                f"key-value pair after type {code:#x} runs past its sequence"
            ) from None
        yield code, value


def write_pairs(pairs: Iterable[Pair]) -> bytes:
    """Key-Value-Pairs of ascending type; Misuse for a wrong order, form or length."""
    writer = Writer()
    previous = 0
    for code, value in pairs:
        if code < previous:
            raise Misuse(
                f"key {code:#x} after {previous:#x}: give key-value pairs in ascending order"
            )
        writer.varint(code - previous)
        previous = code
        if isinstance(value, int):
            if code & 1:
                raise Misuse(f"key {code:#x} is odd: its value must be octets")
            writer.varint(value)
            continue
        if not code & 1:
            raise Misuse(f"key {code:#x} is even: its value must be an integer")
        if len(value) > MAX_PAIR_VALUE:
            raise Misuse(
                f"value of key {code:#x} has {len(value)} octets: at most {MAX_PAIR_VALUE} fit"
            )
        writer.length_prefixed(value)
    if previous > MAX_VI64:
        raise Misuse(f"key {previous:#x} does not fit a vi64")
    return writer.getvalue()


class AliasType(IntEnum):
    """How a Token names its value (draft-22 §8.9)."""

    DELETE = 0x0
    REGISTER = 0x1
    USE_ALIAS = 0x2
    USE_VALUE = 0x3


#: Which fields follow the Alias Type: alias, then type and value.
_HAS_ALIAS: Final = frozenset({AliasType.DELETE, AliasType.REGISTER, AliasType.USE_ALIAS})
_HAS_VALUE: Final = frozenset({AliasType.REGISTER, AliasType.USE_VALUE})


@dataclass(frozen=True, slots=True)
class Token:
    """An authorization token (draft-22 §8.9). Its value never shows in ``repr``.

    ``type`` 0 is agreed out of band. Fields an alias type does not carry stay at their default.
    """

    alias_type: AliasType
    alias: int = 0
    type: int = 0
    value: bytes = field(default=b"", repr=False)

    @classmethod
    def use_value(cls, value: bytes, type: int = 0) -> Self:
        """A token used once."""
        return cls(AliasType.USE_VALUE, 0, type, value)

    @classmethod
    def decode(cls, data: BytesLike) -> Self:
        """A Token filling ``data``; SessionFault KEY_VALUE_FORMATTING_ERROR when it is none."""
        reader = Reader(data)
        try:
            code = reader.varint()
            if code > AliasType.USE_VALUE:
                raise _token_fault(f"alias type {code:#x} is unknown")
            kind = AliasType(code)
            alias = reader.varint() if kind in _HAS_ALIAS else 0
            if kind in _HAS_VALUE:
                return cls(kind, alias, reader.varint(), reader.rest())
        except Incomplete:
            raise _token_fault("it ends inside a field") from None
        if reader.remaining:
            raise _token_fault(f"{reader.remaining} octets follow the alias")
        return cls(kind, alias)

    def encode(self) -> bytes:
        """The Token structure, without a length around it."""
        writer = Writer()
        writer.varint(self.alias_type)
        if self.alias_type in _HAS_ALIAS:
            writer.varint(self.alias)
        if self.alias_type in _HAS_VALUE:
            writer.varint(self.type)
            writer.raw(self.value)
        return writer.getvalue()


def _token_fault(why: str) -> SessionFault:
    return SessionFault(
        SessionCode.KEY_VALUE_FORMATTING_ERROR, f"authorization token cannot be decoded: {why}"
    )


_LITERAL: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_TEXT: Final = tuple(chr(octet) if octet in _LITERAL else f".{octet:02x}" for octet in range(256))
_OCTET: Final = {text: octet for octet, text in enumerate(_TEXT)}
_UNITS: Final = re.compile(r"\.[0-9a-f]{2}|[a-zA-Z0-9_]")


def namespace_text(namespace: TrackNamespace) -> str:
    """The canonical text of a namespace for logs and files (draft-22 §8.8)."""
    return "-".join("".join(_TEXT[octet] for octet in part) for part in namespace)


def to_text(name: FullTrackName) -> str:
    """The canonical text of a full track name, one to one (draft-22 §8.8)."""
    return f"{namespace_text(name.namespace)}--{namespace_text((name.name,))}"


def from_text(text: str) -> FullTrackName:
    """The full track name of a canonical text; Misuse for anything else (draft-22 §8.8)."""
    head, mark, tail = text.partition("--")
    if not mark:
        raise Misuse(f"{text!r} is no track name: put -- between namespace and name")
    name = FullTrackName(tuple(map(_octets, head.split("-"))) if head else (), _octets(tail))
    check_name(*name)
    return name


def _octets(text: str) -> bytes:
    units = _UNITS.findall(text)
    if "".join(units) != text or not all(unit in _OCTET for unit in units):
        raise Misuse(
            f"{text!r} is not canonical: write a-z A-Z 0-9 _ as they are, "
            "any other octet as . and two lowercase hex digits"
        )
    return bytes(_OCTET[unit] for unit in units)
