"""Small random caches as files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from kvcs.identity import CompatibilityDescriptor, DType
from kvcs.tensorfile import TensorFileWriter

BLOCK_TOKENS = 8
HEADS = 2
DIM = 16


def descriptor(layers: int) -> CompatibilityDescriptor:
    return CompatibilityDescriptor(
        model="test",
        layers=layers,
        kv_heads=HEADS,
        head_dim=DIM,
        dtype=DType.BFLOAT16,
        block_tokens=BLOCK_TOKENS,
    )


def write_cache(
    path: Path, layers: int = 4, tokens: int = 3 * BLOCK_TOKENS, ids: Sequence[int] | None = ()
) -> Path:
    """Random K and V; ``ids`` None leaves the token ids out, () makes them up."""
    chance = random.Random(7)
    made = [chance.randrange(1 << 16) for _ in range(tokens)] if ids == () else ids
    with TensorFileWriter.for_kv_cache(path, descriptor(layers), tokens, token_ids=made) as file:
        for layer in range(layers):
            for component in "kv":
                file.write(f"{component}.{layer}", chance.randbytes(tokens * HEADS * DIM * 2))
        file.commit()
    return path
