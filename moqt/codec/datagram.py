"""Object datagrams and padding datagrams (draft-22 §11.2.1, §11.5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.codec.cursor import Reader, Writer
from moqt.codec.data import read_status
from moqt.codec.profile import LATEST, Profile
from moqt.codec.properties import check_object_properties, check_own_properties
from moqt.codec.records import DEFAULT_LIMITS, ReadLimits
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation
from moqt.model import Location, ObjectHead, ObjectStatus

if TYPE_CHECKING:
    from transport.api import BytesLike

_PROPERTIES: Final = 0x01
_END_OF_GROUP: Final = 0x02
_ZERO_OBJECT_ID: Final = 0x04
_DEFAULT_PRIORITY: Final = 0x08
_STATUS: Final = 0x20
_FLAGS: Final = _PROPERTIES | _END_OF_GROUP | _ZERO_OBJECT_ID | _DEFAULT_PRIORITY | _STATUS


@dataclass(frozen=True, slots=True)
class DatagramHead:
    """An object datagram without alias and payload; ``priority`` None is the track's default."""

    group: int
    object: int
    priority: int | None
    length: int
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: bytes = b""
    end_of_group: bool = False

    def resolve(self, default_priority: int) -> ObjectHead:
        """The object's head; ProtocolViolation or MalformedTrack for its properties."""
        if self.properties:
            check_object_properties(self.properties, Location(self.group, self.object))
        priority = default_priority if self.priority is None else self.priority
        return ObjectHead(
            self.group, None, self.object, priority, self.length, self.status, self.properties
        )


class Datagram(NamedTuple):
    """What an object datagram says; ``payload`` is a view of it."""

    track_alias: int
    head: DatagramHead
    payload: memoryview


def decode_datagram(
    data: BytesLike, profile: Profile = LATEST, limits: ReadLimits = DEFAULT_LIMITS
) -> Datagram | None:
    """An object datagram, None for padding; ProtocolViolation when malformed (draft-22 §11.2.1).

    Properties are not looked into before ``DatagramHead.resolve``, when the track is known.
    """
    reader = Reader(data)
    try:
        flags = reader.varint()
        if flags == profile.padding_datagram:
            return None
        return _object(flags, reader, memoryview(data), limits)
    except Incomplete:
        raise ProtocolViolation("datagram ends inside its header") from None


def _object(flags: int, reader: Reader, data: memoryview, limits: ReadLimits) -> Datagram:
    if flags & ~_FLAGS or flags & (_STATUS | _END_OF_GROUP) == _STATUS | _END_OF_GROUP:
        raise ProtocolViolation(f"datagram type flags {flags:#x} are invalid")
    alias = reader.varint()
    group = reader.varint()
    number = 0 if flags & _ZERO_OBJECT_ID else reader.varint()
    priority = None if flags & _DEFAULT_PRIORITY else reader.u8()
    properties = b""
    if flags & _PROPERTIES:
        properties = reader.length_prefixed(limits.properties, "datagram properties")
        if not properties:
            raise ProtocolViolation("datagram announces properties and has none")
    status = ObjectStatus.NORMAL
    if flags & _STATUS:
        status = read_status(reader.varint(), properties)
        reader.expect_end("status datagram")
    payload = data[reader.at :]
    ends = flags & _END_OF_GROUP != 0
    return Datagram(
        alias,
        DatagramHead(group, number, priority, len(payload), status, properties, ends),
        payload,
    )


def encode_datagram(
    track_alias: int,
    head: ObjectHead,
    payload: BytesLike = b"",
    *,
    end_of_group: bool = False,
    default_priority: int | None = None,
) -> bytes:
    """One object datagram; the priority is left out when it is ``default_priority``.

    Misuse when the payload is not ``head.length`` octets, or the status does not go with it.
    """
    if len(payload) != head.length:
        raise Misuse(f"payload of {len(payload)} octets under a head that says {head.length}")
    if head.status and (payload or head.properties or end_of_group):
        raise Misuse(
            f"datagram of status {head.status.name} with payload, properties or end_of_group"
        )
    if head.properties:
        check_own_properties(head.properties, head.location)
    inherits = head.priority == default_priority
    out = Writer()
    out.varint(
        bool(head.properties) * _PROPERTIES
        | end_of_group * _END_OF_GROUP
        | (head.object == 0) * _ZERO_OBJECT_ID
        | inherits * _DEFAULT_PRIORITY
        | bool(head.status) * _STATUS
    )
    out.varint(track_alias)
    out.varint(head.group)
    if head.object:
        out.varint(head.object)
    if not inherits:
        out.u8(head.priority)
    if head.properties:
        out.length_prefixed(head.properties)
    if head.status:
        out.varint(head.status)
    out.raw(payload)
    return out.getvalue()
