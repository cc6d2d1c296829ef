"""The shape of one segment: how many objects, of how many octets, in which order of urgency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcs.errors import InvalidInput, ManifestTooLarge
from kvcs.identity import MAX_DIMENSION, MAX_LAYERS, CompatibilityDescriptor, DType
from kvcs.names import Component

#: The data length of a payload header is 32 bits wide.
MAX_OBJECT_OCTETS: Final = (1 << 32) - 1
#: A block index is 32 bits wide; an Object ID after the last is still needed for End of Group.
MAX_BLOCKS: Final = (1 << 32) - 1
#: Object sizes that balance overhead against granularity (draft, Operational Considerations).
ADVISED_MIN: Final = 16 << 10
ADVISED_MAX: Final = 1 << 20

#: kvcs.md §4: a manifest has every digest, so this bounds layers x blocks of a publication.
MAX_MANIFEST_OCTETS: Final = 64 << 20
#: One digest in JSON: 64 hex digits, two quotes, a comma.
DIGEST_OCTETS: Final = 67
#: Everything else in a manifest, generously: descriptor, members, brackets.
MANIFEST_FIXED_OCTETS: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layers x blocks of one segment, and the tensor ``[token, kv_head, dim]`` of each block.

    Raises InvalidInput when a dimension is out of range or an object would pass 32 bits.
    """

    layers: int
    blocks: int
    block_tokens: int
    kv_heads: int
    head_dim: int
    dtype: DType
    first_block: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        limits = {"layers": MAX_LAYERS, "blocks": MAX_BLOCKS}
        for name in ("layers", "blocks", "block_tokens", "kv_heads", "head_dim"):
            value, most = getattr(self, name), limits.get(name, MAX_DIMENSION)
            if not 1 <= value <= most:
                raise InvalidInput(f"geometry: {name} is {value}, it must be 1 to {most}")
        if not 0 <= self.first_block <= MAX_BLOCKS:
            raise InvalidInput(
                f"geometry: first_block is {self.first_block}, it must be 0 to {MAX_BLOCKS}"
            )
        if (size := self.block_octets(Component.KV)) > MAX_OBJECT_OCTETS:
            raise InvalidInput(
                f"geometry: {size} octets a block; use fewer block_tokens, at most 4 GiB fit"
            )

    @classmethod
    def of(cls, descriptor: CompatibilityDescriptor, blocks: int, first_block: int = 0) -> Geometry:
        """Shape of ``blocks`` blocks under a descriptor; raises InvalidInput for layer kinds that
        are not full attention, whose state is not one tensor row a token.
        """
        kinds = {kind for kind in descriptor.layer_kinds or () if kind != "full"}
        if kinds:
            raise InvalidInput(
                f"layer kinds {', '.join(sorted(kinds))[:80]}: only 'full' attention layers can be"
                " streamed; this model needs recomputation"
            )
        return cls(
            layers=descriptor.layers,
            blocks=blocks,
            block_tokens=descriptor.block_tokens,
            kv_heads=descriptor.local_heads,
            head_dim=descriptor.head_dim,
            dtype=descriptor.dtype,
            first_block=first_block,
        )

    @property
    def tokens(self) -> int:
        """Tokens of the segment."""
        return self.blocks * self.block_tokens

    def block_octets(self, component: Component) -> int:
        """Octets of the data of one raw object; a kv object holds K, then V."""
        size = self.block_tokens * self.kv_heads * self.head_dim * self.dtype.octets
        return 2 * size if component is Component.KV else size

    def layer_octets(self, component: Component) -> int:
        """Octets of one layer's tensor: the concatenation of its blocks."""
        return self.blocks * self.block_octets(component)

    def token_start(self, block: int) -> int:
        """Absolute position of the first token of a block of this segment."""
        return (self.first_block + block) * self.block_tokens

    def priority(self, layer: int) -> int:
        """Publisher Priority of a group: earlier layers first (kvcs.md §2)."""
        return 128 * layer // self.layers

    def size_advice(self, component: Component) -> str | None:
        """A warning when objects lie outside 16 KiB to 1 MiB, with the block sizes that do not."""
        size = self.block_octets(component)
        if ADVISED_MIN <= size <= ADVISED_MAX:
            return None
        token = size // self.block_tokens
        low, high = -(-ADVISED_MIN // token), max(ADVISED_MAX // token, 1)
        return (
            f"objects of {size} octets: block_tokens from {low} to {high}"
            f" (now {self.block_tokens}) would give 16 KiB to 1 MiB"
        )


def manifest_octets(layers: int, blocks: int, tracks: int) -> int:
    """Upper estimate of a manifest that lists the digests of all objects of a publication."""
    return MANIFEST_FIXED_OCTETS + tracks * layers * (blocks * DIGEST_OCTETS + 3)


def require_manifest_fits(
    descriptor: CompatibilityDescriptor, tokens: int, tracks: int = 2
) -> None:
    """Refuse at the start what could not be listed at the end.

    ``tracks`` is the number of data tracks a segment has. Raises ManifestTooLarge, naming the
    smallest power of two for block_tokens that fits.
    """
    size = manifest_octets(descriptor.layers, tokens // descriptor.block_tokens, tracks)
    if size <= MAX_MANIFEST_OCTETS:
        return
    fitting = 1
    while manifest_octets(descriptor.layers, tokens // fitting, tracks) > MAX_MANIFEST_OCTETS:
        fitting *= 2
    raise ManifestTooLarge(
        f"manifest of about {size >> 20} MiB for {tokens} tokens in blocks of"
        f" {descriptor.block_tokens}: the limit is {MAX_MANIFEST_OCTETS >> 20} MiB;"
        f" use block_tokens {fitting} or more"
    )
