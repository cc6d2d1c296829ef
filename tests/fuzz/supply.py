"""Octets of a fuzzer as choices: an input that runs out goes on as zeros."""

from __future__ import annotations


class Supply:
    """Takes numbers and pieces off the front of ``data``."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """True while there is input left."""
        return self._at < len(self._data)

    def octet(self) -> int:
        """0 to 255."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, limit: int) -> int:
        """0 to ``limit`` - 1, for limits up to 256."""
        return self.octet() % limit

    def piece(self) -> bytes:
        """A length octet and that many octets."""
        size = self.octet()
        return self.take(size)

    def take(self, size: int) -> bytes:
        """Up to ``size`` octets."""
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def rest(self) -> bytes:
        """All that remains."""
        return self.take(len(self._data))


def cut(data: bytes, seed: int) -> list[bytes]:
    """``data`` in pieces; ``seed`` 0 is one piece, 1 single octets."""
    if not seed:
        return [data]
    step = seed if seed < 8 else 1 + seed % 61
    return [data[at : at + step] for at in range(0, len(data), step)] or [b""]
