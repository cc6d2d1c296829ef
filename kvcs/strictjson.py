"""JSON from strangers: UTF-8, no duplicate members, no NaN, bounded in octets, values and depth."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Final, NoReturn

#: The deepest thing we read is a manifest's object_digests, six levels down.
MAX_DEPTH: Final = 16


def loads(data: bytes, *, max_octets: int, max_values: int) -> object:
    """Parse one JSON text; raises ValueError with a reason fit for an error message.

    ``max_values`` bounds commas and brackets before parsing, and so the memory that short values
    can blow up to: a few octets of JSON become a Python object of more than fifty.
    """
    if len(data) > max_octets:
        raise ValueError(f"{len(data)} octets of JSON, at most {max_octets} are read")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > max_values:
        raise ValueError(f"more than {max_values} JSON values")
    try:
        value: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_members,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if _too_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"member {twice[:64]!r} occurs twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:32]} is out of range")
    return value


def _too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
