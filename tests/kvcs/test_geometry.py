"""Sizes, positions, priorities and advice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcs.errors import InvalidInput, ManifestTooLarge
from kvcs.geometry import MAX_MANIFEST_OCTETS, Geometry, manifest_octets, require_manifest_fits
from kvcs.identity import CompatibilityDescriptor, DType
from kvcs.names import Component

MODEL = CompatibilityDescriptor(
    model="m", layers=80, kv_heads=8, head_dim=128, dtype=DType.BFLOAT16, block_tokens=16
)
SHAPE = Geometry.of(MODEL, blocks=64, first_block=3)


def test_the_drafts_object_size() -> None:
    # draft, Operational Considerations: 16 tokens, 8 heads, 128 dimensions, two octets
    assert SHAPE.block_octets(Component.K) == 32 << 10
    assert SHAPE.block_octets(Component.V) == 32 << 10
    assert SHAPE.block_octets(Component.KV) == 64 << 10
    assert SHAPE.layer_octets(Component.K) == 64 * (32 << 10)
    assert SHAPE.tokens == 1024


def test_a_slice_has_its_own_heads() -> None:
    geometry = Geometry.of(replace(MODEL, heads=(2, 4)), 1)
    assert geometry.kv_heads == 4
    assert geometry.block_octets(Component.K) == 16 << 10


def test_token_start_counts_from_the_start_of_the_context() -> None:
    assert SHAPE.token_start(0) == 48
    assert SHAPE.token_start(63) == 66 * 16


def test_priorities_rise_with_the_layer() -> None:
    assert [SHAPE.priority(layer) for layer in (0, 1, 40, 79)] == [0, 1, 64, 126]
    assert Geometry.of(replace(MODEL, layers=1), 1).priority(0) == 0
    assert max(Geometry.of(replace(MODEL, layers=4096), 1).priority(n) for n in range(4096)) == 127


def test_other_kinds_of_layers_are_refused() -> None:
    kinds = ("full",) * 77 + ("sliding", "mamba", "sliding")
    with pytest.raises(InvalidInput, match="layer kinds mamba, sliding: only 'full'"):
        Geometry.of(replace(MODEL, layer_kinds=kinds), 1)
    assert Geometry.of(replace(MODEL, layer_kinds=("full",) * 80), 1).layers == 80


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 0},
        {"layers": 4097},
        {"blocks": 0},
        {"blocks": 1 << 32},
        {"block_tokens": 0},
        {"kv_heads": 65_537},
        {"head_dim": 0},
        {"first_block": -1},
        {"first_block": 1 << 32},
        {"block_tokens": 65_536, "kv_heads": 128, "head_dim": 256},
    ],
)
def test_impossible_shapes(change: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="geometry"):
        replace(SHAPE, **change)


def test_size_advice() -> None:
    assert SHAPE.size_advice(Component.K) is None
    small = replace(SHAPE, block_tokens=4).size_advice(Component.K)
    assert small is not None
    assert "objects of 8192 octets: block_tokens from 8 to 512 (now 4)" in small
    large = replace(SHAPE, block_tokens=1024).size_advice(Component.K)
    assert large is not None
    assert "(now 1024)" in large
    assert replace(SHAPE, block_tokens=8).size_advice(Component.K) is None
    assert replace(SHAPE, block_tokens=512).size_advice(Component.K) is None
    huge = replace(SHAPE, kv_heads=4096, head_dim=256).size_advice(Component.K)
    assert huge is not None
    assert "from 1 to 1 " in huge


def test_a_manifest_that_cannot_fit_is_refused_with_the_block_size_that_does() -> None:
    # kvcs.md §4: 128k tokens, 16-token blocks, 80 layers would be 89 MB
    assert manifest_octets(80, 8192, 2) == pytest.approx(89e6, rel=0.02)
    with pytest.raises(ManifestTooLarge, match="use block_tokens 32 or more"):
        require_manifest_fits(MODEL, 128 << 10)
    require_manifest_fits(replace(MODEL, block_tokens=32), 128 << 10)
    require_manifest_fits(MODEL, 128 << 10, tracks=1)
    assert manifest_octets(80, 4096, 2) <= MAX_MANIFEST_OCTETS
