"""KVSP profile 0, every value computed a second time from its definition."""

from __future__ import annotations

import copy
import hashlib
import hmac
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import Difference, IdentityMismatch, InvalidInput
from kvcs.identity import KVSP_PROFILE_0, CompatibilityDescriptor, DType, ScopeKey

SECRET = bytes(range(32))
KEY = ScopeKey(SECRET)

COMPAT: dict[str, Any] = {
    "kvsp": 0,
    "model": "SmolLM2-135M-Instruct",
    "layers": 30,
    "kv_heads": 3,
    "head_dim": 64,
    "dtype": "bfloat16",
    "block_tokens": 16,
    "layout": "token,head,dim",
    "positions": "applied",
}
CANONICAL = (
    b'{"block_tokens":16,"dtype":"bfloat16","head_dim":64,"kv_heads":3,"kvsp":0,"layers":30,'
    b'"layout":"token,head,dim","model":"SmolLM2-135M-Instruct","positions":"applied"}'
)
COMPAT_ID = hashlib.sha256(CANONICAL).digest()


def mac(message: bytes) -> bytes:
    return hmac.new(SECRET, message, hashlib.sha256).digest()


def test_scope_id() -> None:
    assert KVSP_PROFILE_0.scope_id(KEY) == mac(b"kvsp-0 scope")[:16]
    assert KVSP_PROFILE_0.scope_id(KEY).hex() == "7aa1983bef8f1bd1c38a3f834803341f"


def test_compatibility_id_is_of_the_canonical_form() -> None:
    assert KVSP_PROFILE_0.compatibility_id(COMPAT) == COMPAT_ID
    assert KVSP_PROFILE_0.compatibility_id(dict(reversed(COMPAT.items()))) == COMPAT_ID
    described = CompatibilityDescriptor.from_json(COMPAT)
    assert KVSP_PROFILE_0.compatibility_id(described.to_json()) == COMPAT_ID


def test_block_keys_are_a_chain_of_complete_blocks() -> None:
    tokens = [0, 1, 49_151, (1 << 32) - 1, 7, 7, 7, 7, 5]
    root = mac(b"kvsp-0 root" + COMPAT_ID + hashlib.sha256(b"{}").digest())
    first = mac(b"kvsp-0 block" + root + bytes.fromhex("00000000 00000001 0000bfff ffffffff"))
    second = mac(b"kvsp-0 block" + first + 4 * bytes.fromhex("00000007"))
    assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens, 4) == (first, second)
    assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens[:8], 4) == (first, second)
    assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens[:7], 4) == (first,)
    assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens[:3], 4) == ()
    assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [], 4) == ()


def test_golden_values() -> None:
    """Made with the openssl command, for other implementations to compare with."""
    assert COMPAT_ID.hex() == "dd9e703ec34d209b0a7d98e78787e494572a8923c944ef29e29dc9b134ba773c"
    tokens = [0, 1, 49_151, (1 << 32) - 1, 7, 7, 7, 7]
    assert [key.hex() for key in KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens, 4)] == [
        "bd63262230af57dd1e6da896dff64ed3abca5fea8afa4bc71a80a63eb0d897a2",
        "1f727119cfed95c566bf32e5cc54822653087ae163787cf7299cbdc5e43229ad",
    ]


def test_block_keys_depend_on_extras() -> None:
    extras = {"cache_salt": "tenant-a", "adapter": "x"}
    root = mac(
        b"kvsp-0 root"
        + COMPAT_ID
        + hashlib.sha256(b'{"adapter":"x","cache_salt":"tenant-a"}').digest()
    )
    expected = mac(b"kvsp-0 block" + root + bytes.fromhex("00000001 00000002"))
    assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [1, 2], 2, extras) == (expected,)


def test_named_extras_never_collide() -> None:
    forms: list[dict[str, object]] = [
        {},
        {"cache_salt": "x"},
        {"adapter": "x"},
        {"cache_salt": "ab", "adapter": "c"},
        {"cache_salt": "a", "adapter": "bc"},
        {"cache_salt": "org_1", "user": "2345"},
        {"cache_salt": "org_12345", "user": ""},
        {"cache_salt": None},
    ]
    keys = {KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [1], 1, form) for form in forms}
    assert len(keys) == len(forms)


def test_token_ids_of_any_integer_type_are_taken() -> None:
    expected = KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [1, 2, 3], 1)
    for dtype in (np.int32, np.uint32, np.int64):
        tokens: Any = np.array([1, 2, 3], dtype)
        assert KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens, 1) == expected


@pytest.mark.parametrize("bad", [-1, 1 << 32, 1 << 70, 1.5, "7", None])
def test_other_token_ids_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match=f"token 1 is {bad!r}: token ids are integers"):
        KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [np.uint32(1), bad, 3], 1)


def test_wrong_arguments_of_block_keys() -> None:
    with pytest.raises(InvalidInput, match="31 octets"):
        KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID[1:], [1], 1)
    with pytest.raises(InvalidInput, match="block_tokens is 0"):
        KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [1], 0)
    with pytest.raises(InvalidInput, match="request extras: no canonical JSON"):
        KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [1], 1, {"salt": b"octets"})


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=40), st.integers(1, 9))
def test_a_longer_prompt_extends_the_chain(tokens: list[int], block_tokens: int) -> None:
    keys = KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, tokens, block_tokens)
    assert len(keys) == len(tokens) // block_tokens
    longer = KVSP_PROFILE_0.block_keys(KEY, COMPAT_ID, [*tokens, *range(20)], block_tokens)
    assert longer[: len(keys)] == keys
    assert len(set(longer)) == len(longer)


# ------------------------------------------------------------------------------------- scope keys


def test_a_scope_key_needs_32_octets() -> None:
    with pytest.raises(InvalidInput, match=r"31 octets.*kvcs-keygen") as caught:
        ScopeKey(SECRET[:31])
    assert SECRET[:31].hex() not in str(caught.value)
    assert ScopeKey(SECRET + b"more").octets == SECRET + b"more"


def test_a_scope_key_does_not_show() -> None:
    assert repr(KEY) == str(KEY) == f"{KEY}" == "ScopeKey(hidden)"
    with pytest.raises(TypeError):
        copy.copy(KEY)
    with pytest.raises(TypeError):
        hash(KEY)
    assert ScopeKey(SECRET) == KEY
    assert ScopeKey(bytes(32)) != KEY
    assert KEY != SECRET


# ------------------------------------------------------------------------------------ descriptors


def test_a_descriptor_goes_both_ways() -> None:
    full = COMPAT | {
        "model_digest": "00ff",
        "adapter": "lora-1",
        "heads": [1, 2],
        "layer_kinds": ["full"] * 29 + ["sliding"],
        "x-site": {"unknown": [1, None]},
    }
    descriptor = CompatibilityDescriptor.from_json(full)
    assert descriptor.to_json() == full
    assert descriptor.dtype is DType.BFLOAT16
    assert descriptor.heads == (1, 2)
    assert descriptor.local_heads == 2
    assert CompatibilityDescriptor.from_json(COMPAT).local_heads == 3
    assert CompatibilityDescriptor.from_json(COMPAT).to_json() == COMPAT
    assert KVSP_PROFILE_0.describe(COMPAT) == CompatibilityDescriptor.from_json(COMPAT)


@pytest.mark.parametrize("name", sorted(COMPAT))
def test_required_members(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"member '{name}' is missing"):
        CompatibilityDescriptor.from_json({k: v for k, v in COMPAT.items() if k != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kvsp", 1),
        ("kvsp", False),
        ("model", ""),
        ("model", 7),
        ("model", "m" * 1025),
        ("model", None),
        ("layers", 0),
        ("layers", 4097),
        ("layers", 30.0),
        ("layers", True),
        ("layers", "30"),
        ("layers", -1),
        ("kv_heads", 0),
        ("head_dim", 65_537),
        ("block_tokens", 0),
        ("dtype", "float12"),
        ("dtype", ["float32"]),
        ("dtype", None),
        ("layout", "head,token,dim"),
        ("layout", ["token", "head", "dim"]),
        ("positions", "raw"),
        ("model_digest", "XY"),
        ("model_digest", "AB"),
        ("model_digest", "abc"),
        ("model_digest", None),
        ("adapter", ""),
        ("adapter", 1),
        ("adapter", None),
        ("heads", [0]),
        ("heads", [0, 4]),
        ("heads", [3, 1]),
        ("heads", [2, 2]),
        ("heads", [0, 0]),
        ("heads", [-1, 1]),
        ("heads", [True, 1]),
        ("heads", "01"),
        ("heads", 5),
        ("layer_kinds", ["full"] * 29),
        ("layer_kinds", ["full"] * 29 + [1]),
        ("layer_kinds", "f" * 30),
    ],
)
def test_a_wrong_member_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"compatibility descriptor: {name}"):
        CompatibilityDescriptor.from_json(COMPAT | {name: value})


@pytest.mark.parametrize("value", [1 << 53, float("nan"), "\ud800", object(), {1: 2}])
def test_what_has_no_canonical_form_has_no_id(value: object) -> None:
    with pytest.raises(InvalidInput, match="no canonical JSON"):
        KVSP_PROFILE_0.compatibility_id(COMPAT | {"x": value})


def test_deep_nesting_has_no_id() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidInput, match="no canonical JSON"):
        KVSP_PROFILE_0.compatibility_id({"x": value})
    while value:
        value = value.pop()


def test_differences_name_the_members() -> None:
    ours = CompatibilityDescriptor.from_json(COMPAT)
    theirs = CompatibilityDescriptor.from_json(
        COMPAT | {"dtype": "float16", "adapter": "a", "x-site": 1}
    )
    found = ours.differences(theirs)
    assert found == (
        Difference("adapter", None, "a"),
        Difference("dtype", "bfloat16", "float16"),
        Difference("x-site", None, 1),
    )
    assert ours.differences(ours) == ()
    error = IdentityMismatch("wrong model", found)
    assert "dtype: 'bfloat16' here, 'float16' there" in str(error)
    assert error.differences == found


@pytest.mark.parametrize("dtype", DType)
def test_element_sizes(dtype: DType) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = getattr(ml_dtypes, dtype, None) or getattr(np, dtype)
    assert dtype.octets == np.dtype(kind).itemsize
