"""Framing: stream types, and any cutting of a control stream into whole messages (draft-22 §9)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from moqt.codec import varint
from moqt.codec.data import is_subgroup_type
from moqt.codec.profile import LATEST, Profile
from moqt.codec.varint import Incomplete
from moqt.errors import ProtocolViolation

if TYPE_CHECKING:
    from transport.api import BytesLike


class StreamType(Enum):
    """What a unidirectional stream carries (draft-22 §6.4.1)."""

    CONTROL = auto()
    FETCH = auto()
    SUBGROUP = auto()
    PADDING = auto()


def read_stream_type(data: BytesLike, profile: Profile = LATEST) -> StreamType:
    """What the stream that starts with ``data`` carries; nothing is consumed.

    The same octets then go to MessageSplitter (the type belongs to SETUP), SubgroupHeader.decode
    or FetchHeader.decode. Incomplete when cut, ProtocolViolation when unknown.
    """
    code, _ = varint.decode(data)
    if is_subgroup_type(code):
        return StreamType.SUBGROUP
    if code == profile.fetch_stream:
        return StreamType.FETCH
    if code == profile.control_stream:
        return StreamType.CONTROL
    if code == profile.padding_stream:
        return StreamType.PADDING
    raise ProtocolViolation(f"unidirectional stream type {code:#x} is unknown")


class MessageSplitter:
    """Cuts one control or request stream into (message type, body), however its octets arrive.

    Holds at most one message between calls.
    """

    __slots__ = ("_held", "_messages")

    def __init__(self, profile: Profile = LATEST) -> None:
        self._messages = profile.messages
        self._held = bytearray()

    @property
    def pending(self) -> bool:
        """True in mid-message: a FIN now would cut it."""
        return bool(self._held)

    def feed(self, data: BytesLike) -> list[tuple[int, bytes]]:
        """The messages completed by ``data``; ProtocolViolation at the first unknown type.

        The fault ends the session, so whole messages before it in ``data`` are not reported.
        """
        self._held += data
        held = memoryview(self._held)
        found = []
        at = 0
        try:
            while at < len(held):
                code, body = varint.decode(held, at)
                if code not in self._messages:
                    raise ProtocolViolation(f"message type {code:#x} is unknown")
                body += 2
                if body > len(held):
                    break
                end = body + int.from_bytes(held[body - 2 : body], "big")
                if end > len(held):
                    break
                found.append((code, bytes(held[body:end])))
                at = end
        except Incomplete:
            pass
        finally:
            held.release()
        del self._held[:at]
        return found
