"""The names of a publication: its namespace of five raw fields, and its tracks (kvcs.md §1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcs.errors import InvalidInput
from kvcs.identity import BLOCK_KEY_LENGTH, COMPAT_ID_LENGTH, SCOPE_ID_LENGTH
from moqt.codec.fields import from_text, namespace_text

if TYPE_CHECKING:
    from moqt.model import TrackNamespace

PROTOCOL: Final = b"kvcs-1"
PUB_ID_LENGTH: Final = 16
#: A publication as the fragment of a MOQT URI; a fragment never leaves the client.
FRAGMENT: Final = "kvcs:"

#: Reason phrase of a production that was ended in good order before it was finished.
STOPPED: Final = "the producer stopped before the last layer"

MANIFEST: Final = b"manifest"
MANIFEST_COSE: Final = b"manifest.cose"

_LENGTHS: Final = {
    "scope id": SCOPE_ID_LENGTH,
    "compatibility id": COMPAT_ID_LENGTH,
    "anchor key": BLOCK_KEY_LENGTH,
    "publication id": PUB_ID_LENGTH,
}

#: The draft's ABNF; ten digits are more segments than a payload header can number blocks.
_TRACK: Final = re.compile(r"(k|v|kv)\.([a-z0-9-]{1,32})\.s(0|[1-9][0-9]{0,9})")


class Component(IntEnum):
    """The tensor kind of a track (draft: KVCS Components registry)."""

    K = 1
    V = 2
    KV = 3

    @property
    def label(self) -> str:
        """As it stands in a track name."""
        return self.name.lower()


class Codec(IntEnum):
    """Codec values; those from 0xFF00 on are ours until registered. Only RAW is implemented."""

    RAW = 0x0001
    ZSTD = 0xFF01
    EXPSPLIT_ZSTD = 0xFF02
    FP8_E4M3 = 0xFF10
    INT8_TOKEN = 0xFF11
    INT4_KIVI = 0xFF12

    @property
    def label(self) -> str:
        """As it stands in a track name."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def named(cls, label: str) -> Codec | None:
        """The codec of a track name; None when it is not one of ours."""
        return next((codec for codec in cls if codec.label == label), None)


class TrackName(NamedTuple):
    """A data track: component, codec name and segment, e.g. ``k.raw.s0``."""

    component: Component
    codec: str
    segment: int

    def __str__(self) -> str:
        return f"{self.component.label}.{self.codec}.s{self.segment}"

    @property
    def wire(self) -> bytes:
        """The MOQT Track Name."""
        return str(self).encode("ascii")

    @classmethod
    def parse(cls, name: bytes | str) -> TrackName:
        """Read a data track's name; raises InvalidInput for anything else, the manifests too."""
        text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
        found = _TRACK.fullmatch(text)
        if found is None:
            raise InvalidInput(
                f"track name {text[:64]!r}: a data track is component.codec.sN,"
                " component k, v or kv, N without leading zero, e.g. k.raw.s0"
            )
        component, codec, segment = found.groups()
        return cls(Component[component.upper()], codec, int(segment))


@dataclass(frozen=True, slots=True)
class PublicationName:
    """Fields 1 to 4 of a publication's namespace, raw octets.

    Raises InvalidInput when a field has not the draft's length (16, 32, 32, 16).
    """

    scope_id: bytes
    compat_id: bytes
    anchor_key: bytes
    pub_id: bytes

    def __post_init__(self) -> None:
        """Check the lengths."""
        _check_lengths(self.scope_id, self.compat_id, self.anchor_key, self.pub_id)

    @property
    def namespace(self) -> TrackNamespace:
        """The MOQT Track Namespace."""
        return (PROTOCOL, self.scope_id, self.compat_id, self.anchor_key, self.pub_id)

    @classmethod
    def from_namespace(cls, namespace: TrackNamespace) -> PublicationName:
        """Read a namespace; raises InvalidInput unless it is exactly a KVCS one."""
        if len(namespace) != 5 or namespace[0] != PROTOCOL:
            raise InvalidInput(
                f"namespace {namespace_text(namespace)[:64]}: a KVCS publication has five"
                f" fields, the first {PROTOCOL.decode()!r}"
            )
        return cls(*namespace[1:])

    @property
    def fragment(self) -> str:
        """``kvcs:<namespace in MOQT's text form>``, for a URI."""
        return FRAGMENT + namespace_text(self.namespace)

    @classmethod
    def from_fragment(cls, text: str) -> PublicationName:
        """Read what ``fragment`` writes; raises InvalidInput."""
        if not text.startswith(FRAGMENT):
            raise InvalidInput(f"publication {text[:64]!r}: it must begin with {FRAGMENT!r}")
        try:
            namespace = from_text(text.removeprefix(FRAGMENT) + "--").namespace
        except ValueError as error:
            raise InvalidInput(f"publication {text[:64]!r}: {error}") from None
        return cls.from_namespace(namespace)

    @property
    def hex(self) -> tuple[str, str, str, str]:
        """The four identifiers as hexadecimal text."""
        return (self.scope_id.hex(), self.compat_id.hex(), self.anchor_key.hex(), self.pub_id.hex())

    @classmethod
    def from_hex(
        cls, scope_id: str, compat_id: str, anchor_key: str, pub_id: str
    ) -> PublicationName:
        """Read hexadecimal identifiers; raises InvalidInput."""
        texts = zip(_LENGTHS, (scope_id, compat_id, anchor_key, pub_id), strict=True)
        return cls(*(octets_of_hex(name, text) for name, text in texts))


def namespace_prefix(
    scope_id: bytes, compat_id: bytes | None = None, anchor_key: bytes | None = None
) -> TrackNamespace:
    """A prefix of 2, 3 or 4 fields: a scope, one model in it, one token prefix of that model.

    Raises InvalidInput for wrong lengths, or an anchor key without a compatibility id.
    """
    if anchor_key is not None and compat_id is None:
        raise InvalidInput("namespace prefix: an anchor key needs a compatibility id before it")
    fields = tuple(part for part in (scope_id, compat_id, anchor_key) if part is not None)
    _check_lengths(*fields)
    return (PROTOCOL, *fields)


def octets_of_hex(name: str, text: str) -> bytes:
    """One identifier from hexadecimal text; raises InvalidInput naming it."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInput(f"{name} {text[:80]!r}: not hexadecimal") from None


def _check_lengths(*parts: bytes) -> None:
    for (name, length), part in zip(_LENGTHS.items(), parts, strict=False):
        if len(part) != length:
            raise InvalidInput(
                f"{name} of {len(part)} octets: exactly {length} raw octets are needed"
            )
