"""Octets of arrays, and arrays of octets; the refusals of publishing are in test_publisher."""

from __future__ import annotations

import sys

import pytest

from kvcs.errors import KvcsError
from kvcs.geometry import Geometry
from kvcs.identity import DType
from kvcs.tensors import to_numpy


def geometry(dtype: DType) -> Geometry:
    return Geometry(layers=1, blocks=2, block_tokens=3, kv_heads=2, head_dim=4, dtype=dtype)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_dtype_becomes_an_array(dtype: DType) -> None:
    octets = bytes(range(256))[: 6 * 8 * dtype.octets] * 2
    array = to_numpy(octets[: 6 * 8 * dtype.octets], geometry(dtype))
    assert (array.shape, array.dtype.name) == ((6, 2, 4), dtype.value)
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("package", "dtype"), [("numpy", DType.FLOAT32), ("ml_dtypes", DType.BFLOAT16)]
)
def test_what_is_not_installed_is_named(monkeypatch, package: str, dtype: DType) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        KvcsError, match=rf"need the package {package}: pip install 'kvcs\[numpy\]'"
    ):
        to_numpy(bytes(6 * 8 * 4), geometry(dtype))
