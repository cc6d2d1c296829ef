"""KV caches in safetensors files: the demo file, faults that name both tensors, writing back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from kvcs.errors import InvalidInput
from kvcs.identity import CompatibilityDescriptor, DType
from kvcs.names import Component
from kvcs.tensorfile import KvCacheFile, TensorFileWriter

DEMO = Path(__file__).parents[2] / "examples" / "data" / "smollm2-135m-kv-256.safetensors"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


def cache(layers: int = 2, shape: tuple[int, ...] = (4, 3, 2), dtype: Any = "float16") -> Any:
    return {
        f"{component}.{layer}": np.full(shape, layer + (component == "v") / 2, dtype)
        for component in "kv"
        for layer in range(layers)
    }


def test_the_demo_file() -> None:
    with KvCacheFile(DEMO) as file:
        assert (file.layers, file.tokens, file.kv_heads, file.head_dim) == (30, 256, 3, 64)
        assert file.dtype is DType.BFLOAT16
        assert file.token_ids is not None
        assert len(file.token_ids) == 256
        assert all(0 <= token < 49_152 for token in file.token_ids)
        assert file.descriptor(16) == CompatibilityDescriptor(
            model="SmolLM2-135M-Instruct (Q4_1 dequantised to bfloat16)",
            layers=30,
            kv_heads=3,
            head_dim=64,
            dtype=DType.BFLOAT16,
            block_tokens=16,
        )
        assert file.descriptor(16, "other").model == "other"
        library = dict(safetensors.deserialize(DEMO.read_bytes()))
        for layer in range(30):
            for component in (Component.K, Component.V):
                view = file.layer(component, layer)
                assert view.nbytes == 256 * 3 * 64 * 2
                assert view == library[f"{component.label}.{layer}"]["data"]


def test_the_demo_file_written_back_is_the_same_cache(path: Path) -> None:
    with KvCacheFile(DEMO) as file:
        writer = TensorFileWriter.for_kv_cache(
            path,
            file.descriptor(16),
            file.tokens,
            token_ids=file.token_ids,
            metadata={"licence": "Apache-2.0"},
        )
        with writer:
            for layer in reversed(range(file.layers)):
                for component in (Component.K, Component.V):
                    writer.write(f"{component.label}.{layer}", file.layer(component, layer))
            writer.commit()
        with KvCacheFile(path) as copy:
            assert copy.token_ids == file.token_ids
            assert copy.descriptor(16) == file.descriptor(16)
            assert copy.metadata["licence"] == "Apache-2.0"
            for layer in range(file.layers):
                for component in (Component.K, Component.V):
                    assert copy.layer(component, layer) == file.layer(component, layer)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint8"])
def test_each_dtype(path: Path, dtype: str) -> None:
    safetensors.numpy.save_file(cache(dtype=dtype), path)
    with KvCacheFile(path) as file:
        assert file.dtype == dtype
        assert file.token_ids is None
        with pytest.raises(InvalidInput, match="its metadata names no model"):
            file.descriptor(2)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_token_ids_of_each_integer_type(path: Path, dtype: str) -> None:
    tokens = np.array([0, 1, 2, 49_151], dtype)
    safetensors.numpy.save_file(cache() | {"tokens": tokens}, path)
    with KvCacheFile(path) as file:
        assert file.token_ids == (0, 1, 2, 49_151)


def _without(name: str) -> Any:
    return {other: tensor for other, tensor in cache().items() if other != name}


FAULTS: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "it has no tensor k.0"),
    "only tokens": ({"tokens": np.zeros(4, "int32")}, "it has no tensor k.0"),
    "k.0 missing": (_without("k.0"), "tensor 'k.0' is missing"),
    "v.1 missing": (_without("v.1"), "tensor 'v.1' is missing"),
    "other name": (cache() | {"q.0": np.zeros(1)}, "tensor 'q.0': only k.<layer>, v.<layer>"),
    "leading zero": (cache() | {"k.01": np.zeros(1)}, "tensor 'k.01'"),
    "far layer": (cache() | {"k.7": cache()["k.0"]}, "tensor 'k.2' is missing"),
    "vllm name": ({"model.layers.0.self_attn.attn": np.zeros(1)}, "only k.<layer>"),
    "dtype": (
        cache() | {"v.1": np.zeros((4, 3, 2), "float32")},
        r"tensors 'k.0' and 'v.1' differ: F16 \[4, 3, 2\] and F32 \[4, 3, 2\]",
    ),
    "tokens": (
        cache() | {"k.1": np.zeros((5, 3, 2), "float16")},
        r"tensors 'k.0' and 'k.1' differ: F16 \[4, 3, 2\] and F16 \[5, 3, 2\]",
    ),
    "1-D": (cache(shape=(24,)), r"'k.0' has shape \[24\]: it must be \[token, head, dim\]"),
    "2-D": (cache(shape=(4, 6)), r"give latent caches \(MLA\) one head"),
    "4-D": (cache(shape=(1, 4, 3, 2)), r"'k.0' has shape \[1, 4, 3, 2\]"),
    "no token": (cache(shape=(0, 3, 2)), r"'k.0' has shape \[0, 3, 2\]"),
    "integers": (cache(dtype="int32"), "dtype I32 is not one of F64, F32"),
    "token count": (
        cache() | {"tokens": np.zeros(5, "int32")},
        r"tensors 'tokens' and 'k.0' differ: I32 \[5\] token ids for 4 tokens",
    ),
    "token type": (cache() | {"tokens": np.zeros(4, "float32")}, "integers of 32 or 64 bits"),
    "token negative": (cache() | {"tokens": -np.ones(4, "int32")}, "ids outside 0 to 4294967295"),
    "token large": (cache() | {"tokens": np.full(4, 1 << 32)}, "ids outside 0 to 4294967295"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(path: Path, fault: str) -> None:
    tensors, message = FAULTS[fault]
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(InvalidInput, match=message) as caught:
        KvCacheFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"dtype": "bfloat16"}, "metadata says dtype 'bfloat16', its tensors have 'float16'"),
        ({"layers": "3"}, "metadata says layers '3', its tensors have '2'"),
        ({"kv_heads": "2"}, "metadata says kv_heads '2'"),
        ({"head_dim": "3"}, "metadata says head_dim '3'"),
        ({"layout": "head,token,dim"}, "layout 'head,token,dim': convert it"),
    ],
)
def test_metadata_must_agree(path: Path, metadata: dict[str, str], message: str) -> None:
    # the same octets under another dtype are fluent nonsense
    safetensors.numpy.save_file(cache(), path, metadata)
    with pytest.raises(InvalidInput, match=message):
        KvCacheFile(path)


def test_a_slice_is_written_with_its_own_heads(path: Path) -> None:
    descriptor = CompatibilityDescriptor(
        model="m",
        layers=1,
        kv_heads=8,
        head_dim=2,
        dtype=DType.FLOAT8_E4M3FN,
        block_tokens=2,
        heads=(2, 3),
    )
    with TensorFileWriter.for_kv_cache(path, descriptor, 2) as writer:
        writer.write("k.0", bytes(12))
        writer.write("v.0", bytes(12))
        writer.commit()
    with KvCacheFile(path) as file:
        assert file.kv_heads == 3
        assert file.dtype is DType.FLOAT8_E4M3FN


def test_token_ids_that_do_not_fit(path: Path) -> None:
    with KvCacheFile(DEMO) as file:
        descriptor = file.descriptor(16)
    with pytest.raises(InvalidInput, match="3 token ids for 4 tokens"):
        TensorFileWriter.for_kv_cache(path, descriptor, 4, token_ids=[1, 2, 3])
    with pytest.raises(InvalidInput, match="token ids must be integers"):
        TensorFileWriter.for_kv_cache(path, descriptor, 1, token_ids=[-1])
    assert list(path.parent.iterdir()) == []
