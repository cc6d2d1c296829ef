"""KVSP profile 0: who may share a cache with whom, as keyed identifiers (kvcs.md §7).

The KVSP text is not public; everything we had to settle is in this one module, behind
``Identities``. A site with its own KVSP passes its own object and changes nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, NoReturn, Protocol, SupportsIndex, TypeAlias

import rfc8785

from kvcs.errors import Difference, InvalidInput

JsonObject: TypeAlias = Mapping[str, object]

SCOPE_KEY_MIN: Final = 32
SCOPE_ID_LENGTH: Final = 16
COMPAT_ID_LENGTH: Final = 32
BLOCK_KEY_LENGTH: Final = 32

#: Dimensions of a descriptor: far above any model, small enough that products stay in 64 bits.
MAX_LAYERS: Final = 4096
MAX_DIMENSION: Final = 1 << 16
#: Texts of a descriptor travel in every manifest.
MAX_TEXT: Final = 1024

LAYOUT: Final = "token,head,dim"
POSITIONS_APPLIED: Final = "applied"

_HEX: Final = re.compile(r"(?:[0-9a-f]{2}){1,64}")


class DType(StrEnum):
    """Element types a tensor can have, under the names that numpy and torch share."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT8 = "int8"
    UINT8 = "uint8"

    @property
    def octets(self) -> int:
        """Octets of one element."""
        return _OCTETS.get(self, 1)


_OCTETS: Final = {DType.FLOAT64: 8, DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2}


@dataclass(frozen=True, slots=True)
class CompatibilityDescriptor:
    """What two parties must agree on before they may share tensors.

    ``kv_heads`` counts the heads of the whole model; ``heads`` (first, count) says which of them a
    tensor-parallel slice holds. ``layer_kinds`` has one text per layer, e.g. "full" or "sliding".
    ``unknown`` keeps members we do not know, so that the id is that of the original object.
    """

    model: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: DType
    block_tokens: int
    kvsp: int = 0
    layout: str = LAYOUT
    positions: str = POSITIONS_APPLIED
    model_digest: str | None = None
    adapter: str | None = None
    heads: tuple[int, int] | None = None
    layer_kinds: tuple[str, ...] | None = None
    unknown: JsonObject = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Raises InvalidInput naming the member, the rule and the value."""
        _number("kvsp", self.kvsp, 0, 0)
        _text("model", self.model)
        _number("layers", self.layers, 1, MAX_LAYERS)
        for name in ("kv_heads", "head_dim", "block_tokens"):
            _number(name, getattr(self, name), 1, MAX_DIMENSION)
        if not isinstance(self.dtype, str) or self.dtype not in DType._value2member_map_:
            _refuse("dtype", self.dtype, "must be one of " + ", ".join(DType))
        object.__setattr__(self, "dtype", DType(self.dtype))
        if self.layout != LAYOUT:
            _refuse("layout", self.layout, f"must be {LAYOUT!r}; convert before publishing")
        if self.positions != POSITIONS_APPLIED:
            _refuse("positions", self.positions, "must be 'applied' (keys after rotary embedding)")
        if self.model_digest is not None:
            _text("model_digest", self.model_digest)
            if not _HEX.fullmatch(self.model_digest):
                _refuse(
                    "model_digest", self.model_digest, "must be lower-case hex, up to 64 octets"
                )
        if self.adapter is not None:
            _text("adapter", self.adapter)
        self._check_heads()
        self._check_layer_kinds()

    def _check_heads(self) -> None:
        if self.heads is None:
            return
        if not isinstance(self.heads, list | tuple) or len(self.heads) != 2:
            _refuse("heads", self.heads, "must be [first, count]")
        first, count = self.heads
        _number("heads[0]", first, 0, self.kv_heads - 1)
        _number("heads[1]", count, 1, self.kv_heads - first)
        object.__setattr__(self, "heads", (first, count))

    def _check_layer_kinds(self) -> None:
        if self.layer_kinds is None:
            return
        if not isinstance(self.layer_kinds, list | tuple) or len(self.layer_kinds) != self.layers:
            _refuse(
                "layer_kinds",
                self.layer_kinds,
                f"must list one text for each of {self.layers} layers",
            )
        for kind in self.layer_kinds:
            _text("layer_kinds", kind)
        object.__setattr__(self, "layer_kinds", tuple(self.layer_kinds))

    @property
    def local_heads(self) -> int:
        """KV heads that the tensors of this descriptor hold."""
        return self.kv_heads if self.heads is None else self.heads[1]

    def to_json(self) -> dict[str, object]:
        """The JSON object, optional members only when set, unknown members as they came."""
        found: dict[str, object] = dict(self.unknown)
        for name in _MEMBERS:
            value = getattr(self, name)
            if value is not None:
                found[name] = list(value) if isinstance(value, tuple) else value
        return found | {"dtype": str(self.dtype)}

    @classmethod
    def from_json(cls, compat: JsonObject) -> CompatibilityDescriptor:
        """Read a descriptor; raises InvalidInput for missing members, wrong types or ranges."""
        for name in _REQUIRED:
            if name not in compat:
                raise InvalidInput(f"compatibility descriptor: member {name!r} is missing; add it")
        for name in _MEMBERS:
            if name in compat and compat[name] is None:
                _refuse(name, None, "must not be null; leave it out instead")
        known = {name: value for name, value in compat.items() if name in _MEMBERS}
        unknown = {name: value for name, value in compat.items() if name not in _MEMBERS}
        return cls(**known, unknown=unknown)  # type: ignore[arg-type]

    def differences(self, other: CompatibilityDescriptor) -> tuple[Difference, ...]:
        """Every member in which ``other`` differs, sorted by name; empty when the ids are equal."""
        ours, theirs = self.to_json(), other.to_json()
        return tuple(
            Difference(name, ours.get(name), theirs.get(name))
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        )


_MEMBERS: Final = tuple(f.name for f in fields(CompatibilityDescriptor) if f.name != "unknown")
_REQUIRED: Final = (
    *("kvsp", "model", "layers", "kv_heads", "head_dim"),
    *("dtype", "block_tokens", "layout", "positions"),
)


def _refuse(name: str, value: object, rule: str) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise InvalidInput(f"compatibility descriptor: {name} is {shown}, {rule}")


def _number(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        _refuse(name, value, f"must be an integer from {low} to {high}")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        _refuse(name, value, f"must be a text of 1 to {MAX_TEXT} characters")


class ScopeKey:
    """The secret of a scope: at least 32 octets, shown by nothing.

    Raises InvalidInput when shorter.
    """

    __slots__ = ("_octets",)

    def __init__(self, octets: bytes) -> None:
        if len(octets) < SCOPE_KEY_MIN:
            raise InvalidInput(
                f"scope key of {len(octets)} octets: at least {SCOPE_KEY_MIN} random octets are"
                " needed; make one with kvcs-keygen"
            )
        self._octets = bytes(octets)

    @property
    def octets(self) -> bytes:
        """The key itself, for an ``Identities``; never for logs."""
        return self._octets

    def __repr__(self) -> str:
        return "ScopeKey(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScopeKey) and hmac.compare_digest(self._octets, other._octets)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a scope key is not to be copied into files or other processes")


class Identities(Protocol):
    """Everything that depends on KVSP, pluggable as one object."""

    def describe(self, compat: JsonObject) -> CompatibilityDescriptor:
        """What a descriptor of this KVSP says; raises InvalidInput."""
        ...

    def compatibility_id(self, compat: JsonObject) -> bytes:
        """32 octets; raises InvalidInput for an object that has no canonical form."""
        ...

    def scope_id(self, scope_key: ScopeKey) -> bytes:
        """16 octets."""
        ...

    def block_keys(
        self,
        scope_key: ScopeKey,
        compat_id: bytes,
        tokens: Sequence[int],
        block_tokens: int,
        extras: JsonObject | None = None,
    ) -> tuple[bytes, ...]:
        """One key of 32 octets for each complete block, each bound to all tokens before it."""
        ...


class KvspProfile0:
    """Our own construction: HMAC-SHA256 over fixed-length fields, RFC 8785 for JSON."""

    def describe(self, compat: JsonObject) -> CompatibilityDescriptor:
        """See ``Identities``."""
        return CompatibilityDescriptor.from_json(compat)

    def compatibility_id(self, compat: JsonObject) -> bytes:
        """SHA-256 of the canonical form."""
        return hashlib.sha256(_canonical("compatibility descriptor", compat)).digest()

    def scope_id(self, scope_key: ScopeKey) -> bytes:
        """First 16 octets of HMAC(scope_key, "kvsp-0 scope")."""
        return hmac.digest(scope_key.octets, b"kvsp-0 scope", "sha256")[:SCOPE_ID_LENGTH]

    def block_keys(
        self,
        scope_key: ScopeKey,
        compat_id: bytes,
        tokens: Sequence[int],
        block_tokens: int,
        extras: JsonObject | None = None,
    ) -> tuple[bytes, ...]:
        """Chained HMACs; ``extras`` are the named request extras (cache salt, adapter, ...)."""
        if len(compat_id) != COMPAT_ID_LENGTH:
            raise InvalidInput(
                f"compatibility id of {len(compat_id)} octets: {COMPAT_ID_LENGTH} are needed"
            )
        if block_tokens < 1:
            raise InvalidInput(f"block_tokens is {block_tokens}: at least 1 is needed")
        octets = _pack_tokens(tokens)
        key = scope_key.octets
        extra = hashlib.sha256(_canonical("request extras", extras or {})).digest()
        parent = hmac.digest(key, b"kvsp-0 root" + compat_id + extra, "sha256")
        keys = []
        size = 4 * block_tokens
        for at in range(0, len(octets) - size + 1, size):
            parent = hmac.digest(key, b"kvsp-0 block" + parent + octets[at : at + size], "sha256")
            keys.append(parent)
        return tuple(keys)


#: What is used wherever no other ``Identities`` is given.
KVSP_PROFILE_0: Final = KvspProfile0()


def _canonical(what: str, value: JsonObject) -> bytes:
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what}: no canonical JSON (RFC 8785): {error}") from None


def _pack_tokens(tokens: Sequence[int]) -> bytes:
    try:
        return struct.pack(f">{len(tokens)}I", *tokens)
    except struct.error:
        index = next(n for n, token in enumerate(tokens) if not _is_token(token))
        raise InvalidInput(
            f"token {index} is {tokens[index]!r}: token ids are integers from 0 to {(1 << 32) - 1}"
        ) from None


def _is_token(token: object) -> bool:
    return isinstance(token, SupportsIndex) and 0 <= token.__index__() < 1 << 32
