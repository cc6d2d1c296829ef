"""vi64, MOQT's variable-length integer: leading 1 bits count the extra octets (draft-22 §8.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.errors import Misuse, MoqtError
from moqt.model import MAX_VI64

if TYPE_CHECKING:
    from transport.api import BytesLike

#: The longest encoding: 0xff and eight octets.
MAX_SIZE: Final = 9

_ONE: Final = tuple(bytes((value,)) for value in range(0x80))
#: Octets of an encoding, by its first octet.
_SIZES: Final = tuple(
    next((n for n in range(1, MAX_SIZE) if not first & (0x80 >> (n - 1))), MAX_SIZE)
    for first in range(256)
)
#: The value bits of an encoding, by its size.
_MASKS: Final = tuple((1 << 7 * n) - 1 if n < MAX_SIZE else MAX_VI64 for n in range(MAX_SIZE + 1))
#: The length prefix as added to a value, by size.
_PREFIXES: Final = tuple(
    ((0xFF << (9 - n)) & 0xFF) << 8 * (n - 1) if n > 1 else 0 for n in range(MAX_SIZE + 1)
)


class Incomplete(MoqtError):
    """More octets are needed. Never a fault by itself: what follows it depends on the reader."""


def size(value: int) -> int:
    """Octets of the shortest encoding of ``value``; Misuse outside 0 to 2^64-1."""
    if not 0 <= value <= MAX_VI64:
        raise Misuse(f"{value} does not fit a vi64: give 0 to 2^64-1")
    return min((max(value.bit_length(), 1) + 6) // 7, MAX_SIZE)


def encode(value: int) -> bytes:
    """The shortest encoding of ``value``; Misuse outside 0 to 2^64-1 (draft-22 §8.1)."""
    if 0 <= value < 0x80:
        return _ONE[value]
    if 0 <= value < 0x4000:
        return (0x8000 | value).to_bytes(2, "big")
    length = size(value)
    if length == MAX_SIZE:
        return b"\xff" + value.to_bytes(8, "big")
    return (_PREFIXES[length] | value).to_bytes(length, "big")


def decode(data: BytesLike, offset: int = 0) -> tuple[int, int]:
    """Value and next offset of the vi64 at ``offset``, in any length; Incomplete when cut."""
    try:
        first = data[offset]
        if first < 0x80:
            return first, offset + 1
        if first < 0xC0:
            return (first & 0x3F) << 8 | data[offset + 1], offset + 2
        if first < 0xE0:
            high = (first & 0x1F) << 16
            return high | data[offset + 1] << 8 | data[offset + 2], offset + 3
    except IndexError:
        raise Incomplete("cut inside a vi64") from None
    length = _SIZES[first]
    end = offset + length
    if end > len(data):
        raise Incomplete("cut inside a vi64")
    return int.from_bytes(data[offset:end], "big") & _MASKS[length], end
