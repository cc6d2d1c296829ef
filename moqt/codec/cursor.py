"""Reader and Writer: the only owners of bounds checks."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from moqt.codec import varint
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation

if TYPE_CHECKING:
    from transport.api import BytesLike


class Reader:
    """Takes fields off the front of ``data``; Incomplete when it ends inside one."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: BytesLike) -> None:
        self._data = data
        self._at = 0
        self._end = len(data)

    @property
    def at(self) -> int:
        """Offset of the next octet."""
        return self._at

    @property
    def remaining(self) -> int:
        """Octets not yet taken."""
        return self._end - self._at

    def rewind(self, at: int) -> None:
        """Go back to an offset got from ``at``."""
        self._at = at

    def varint(self) -> int:
        """A vi64."""
        value, self._at = varint.decode(self._data, self._at)
        return value

    def u8(self) -> int:
        """One octet."""
        if self._at >= self._end:
            raise Incomplete("cut before an octet")
        self._at += 1
        return self._data[self._at - 1]

    def u16(self) -> int:
        """Two octets, big-endian."""
        return int.from_bytes(self.bytes(2), "big")

    def bytes(self, count: int) -> builtins.bytes:
        """``count`` octets; nothing is allocated when they are not there."""
        end = self._at + count
        if end > self._end:
            raise Incomplete(f"cut inside {count} octets")
        start, self._at = self._at, end
        return builtins.bytes(self._data[start:end])

    def rest(self) -> builtins.bytes:
        """All that remains."""
        return self.bytes(self.remaining)

    def length_prefixed(self, limit: int, what: str) -> builtins.bytes:
        """A vi64 length, then that many octets; ProtocolViolation when above ``limit``."""
        length = self.varint()
        if length > limit:
            raise ProtocolViolation(f"{what} of {length} octets; at most {limit} are allowed")
        return self.bytes(length)

    def expect_end(self, what: str) -> None:
        """ProtocolViolation when octets are left over."""
        if self.remaining:
            raise ProtocolViolation(
                f"{what} leaves {self.remaining} octets over: its length and its fields differ"
            )


class Writer:
    """Collects fields; Misuse when a value does not fit its field."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def __len__(self) -> int:
        return len(self._out)

    def varint(self, value: int) -> None:
        """A vi64 in its shortest form."""
        self._out += varint.encode(value)

    def u8(self, value: int) -> None:
        """One octet."""
        if not 0 <= value <= 0xFF:
            raise Misuse(f"{value} does not fit one octet: give 0 to 255")
        self._out.append(value)

    def u16(self, value: int) -> None:
        """Two octets, big-endian."""
        if not 0 <= value <= 0xFFFF:
            raise Misuse(f"{value} does not fit two octets: give 0 to 65535")
        self._out += value.to_bytes(2, "big")

    def raw(self, data: BytesLike) -> None:
        """Octets as they are."""
        self._out += data

    def length_prefixed(self, data: BytesLike) -> None:
        """Their vi64 length, then the octets."""
        self._out += varint.encode(len(data))
        self._out += data

    def getvalue(self) -> builtins.bytes:
        """All octets so far."""
        return builtins.bytes(self._out)
