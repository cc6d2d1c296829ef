"""CBOR from strangers: one item, no tags, no duplicate keys, bounded in octets and depth."""

from __future__ import annotations

from typing import Final

import cbor2

#: The deepest thing we read is the match of a scope in the claims of a token, five levels down.
MAX_DEPTH: Final = 16
#: Head octet that ends an item of indefinite length.
_BREAK: Final = 0xFF
_STRINGS: Final = (2, 3)
_ARRAY, _MAP, _TAG, _SIMPLE = 4, 5, 6, 7


def loads(data: bytes, *, max_octets: int, canonical: bool) -> object:
    """Decode exactly one item; raises ValueError with a reason fit for an error message.

    ``canonical``: only the one encoding is taken that RFC 8949 §4.2.1 has for the value. Keys of
    maps are integers, octets or text. What comes out: int, float, bytes, str, list, dict, bool,
    None and cbor2's values for the rest of the simple ones.
    """
    if len(data) > max_octets:
        raise ValueError(f"{len(data)} octets of CBOR, at most {max_octets} are read")
    walk = _Walk(data)
    end = walk.item(0, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} octets after the end")
    try:
        value: object = cbor2.loads(data)
        again = cbor2.dumps(value, canonical=True) if canonical else data
    except Exception as error:  # of many kinds: whatever it is, these octets are not taken
        raise ValueError(f"not CBOR: {error}") from None
    if _pairs(value) != walk.pairs:
        raise ValueError("a key occurs twice in a map")
    if again != data:
        raise ValueError("not in canonical form")
    return value


def dumps(value: object) -> bytes:
    """The canonical encoding."""
    return cbor2.dumps(value, canonical=True)


class _Walk:
    """Finds where items end, before anything is built of them; counts the pairs of all maps."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.pairs = 0

    def item(self, at: int, depth: int) -> int:
        """Where the item that starts at ``at`` ends."""
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        major, length, at = self._head(at)
        if major == _TAG:
            raise ValueError("a tag where none is expected")
        if major in _STRINGS:
            return self._chunks(at, major) if length is None else self._within(at, length)
        if major in (_ARRAY, _MAP):
            return self._items(at, length, depth + 1, is_map=major == _MAP)
        if length is None:
            raise ValueError("a head that does not exist")
        return at

    def _items(self, at: int, count: int | None, depth: int, *, is_map: bool) -> int:
        """Those of an array or map; each takes an octet, so a huge count runs into the end."""
        done = 0
        while done != count:
            if count is None and self._octet(at) == _BREAK:
                return at + 1
            if is_map:
                self.pairs += 1
                if self._octet(at) >> 5 >= _ARRAY:
                    raise ValueError("a key of a map is neither integer, octets nor text")
                at = self.item(at, depth)
            at = self.item(at, depth)
            done += 1
        return at

    def _chunks(self, at: int, major: int) -> int:
        while self._octet(at) != _BREAK:
            kind, length, at = self._head(at)
            if kind != major or length is None:
                raise ValueError("a string of indefinite length holds something else")
            at = self._within(at, length)
        return at + 1

    def _head(self, at: int) -> tuple[int, int | None, int]:
        """Major type, argument (None: indefinite, or a break), where the content starts."""
        first = self._octet(at)
        major, info = first >> 5, first & 31
        if info < 24:
            return major, info, at + 1
        if info < 28:
            end = self._within(at + 1, 1 << (info - 24))
            return major, int.from_bytes(self._data[at + 1 : end], "big"), end
        if info < 31 or major in (0, 1):
            raise ValueError("a head that does not exist")
        return major, None, at + 1

    def _octet(self, at: int) -> int:
        return self._data[self._within(at, 1) - 1]

    def _within(self, at: int, length: int) -> int:
        if length > len(self._data) - at:
            raise ValueError("cut off")
        return at + length


def _pairs(value: object) -> int:
    """Pairs in all maps; no tags, so nothing is shared or goes in circles."""
    if isinstance(value, list):
        return sum(map(_pairs, value))
    if isinstance(value, dict):
        return len(value) + sum(map(_pairs, value.values()))
    return 0
