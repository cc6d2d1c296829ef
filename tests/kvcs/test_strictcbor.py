"""CBOR from strangers: what is read, and everything that is not."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs import strictcbor

WHOLE = [
    ("00", 0),
    ("1818", 24),
    ("3903e7", -1000),
    ("43010203", b"\x01\x02\x03"),
    ("62c3bc", "\u00fc"),
    ("83010203", [1, 2, 3]),
    ("a201020304", {1: 2, 3: 4}),
    ("a1614101", {"A": 1}),
    ("f95cb0", 300.0),
    ("f5", True),
    ("f6", None),
    ("80", []),
]
#: Well-formed, but not the one form that is canonical.
LOOSE = [
    ("1800", 0),
    ("1900ff", 255),
    ("9f0102ff", [1, 2]),
    ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
    ("7f61616162ff", "ab"),
    ("bf0102ff", {1: 2}),
    ("a203040102", {3: 4, 1: 2}),
    ("fa43960000", 300.0),
    ("b80101 02", {1: 2}),
]
BAD = [
    ("", "cut off"),
    ("18", "cut off"),
    ("43 0102", "cut off"),
    ("8201", "cut off"),
    ("9f01", "cut off"),
    ("5b0000000800000000", "cut off"),
    ("9b0000000800000000", "cut off"),
    ("bb0000000800000000", "cut off"),
    ("0000", "1 octets after the end"),
    ("c100", "a tag"),
    ("d81c80", "a tag"),
    ("81d81d00", "a tag"),
    ("c24101", "a tag"),
    ("a201020103", "a key occurs twice"),
    ("bf01020103ff", "a key occurs twice"),
    ("81a201020103", "a key occurs twice"),
    ("a20102180103", "a key occurs twice"),
    ("a18001", "a key of a map"),
    ("a1a001", "a key of a map"),
    ("a1f500", "a key of a map"),
    ("ff", "does not exist"),
    ("1c", "does not exist"),
    ("1f", "does not exist"),
    ("fc", "does not exist"),
    ("81ff", "does not exist"),
    ("5f6161ff", "holds something else"),
    ("5f5fffff", "holds something else"),
    ("61ff", "not CBOR"),
    ("81" * 17 + "00", "nested deeper than 16"),
    ("81" * 200, "nested deeper than 16"),
]


@pytest.mark.parametrize(("octets", "value"), WHOLE)
@pytest.mark.parametrize("canonical", [True, False])
def test_what_is_read(octets: str, value: object, canonical: bool) -> None:
    found = strictcbor.loads(bytes.fromhex(octets), max_octets=64, canonical=canonical)
    assert found == value
    assert type(found) is type(value)
    assert strictcbor.dumps(value).hex() == octets


@pytest.mark.parametrize(("octets", "value"), LOOSE)
def test_other_forms_are_read_only_where_allowed(octets: str, value: object) -> None:
    data = bytes.fromhex(octets)
    assert strictcbor.loads(data, max_octets=64, canonical=False) == value
    with pytest.raises(ValueError, match="not in canonical form"):
        strictcbor.loads(data, max_octets=64, canonical=True)


@pytest.mark.parametrize(("octets", "reason"), BAD)
@pytest.mark.parametrize("canonical", [True, False])
def test_what_is_not_read(octets: str, reason: str, canonical: bool) -> None:
    with pytest.raises(ValueError, match=reason):
        strictcbor.loads(bytes.fromhex(octets), max_octets=1000, canonical=canonical)


def test_size_comes_first() -> None:
    with pytest.raises(ValueError, match="65 octets of CBOR, at most 64"):
        strictcbor.loads(b"\x40" * 65, max_octets=64, canonical=False)


PLAIN = st.recursive(
    st.integers(-(1 << 64), (1 << 64) - 1) | st.binary(max_size=9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(0, 99) | st.binary(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_round_trip(value: object) -> None:
    data = strictcbor.dumps(value)
    assert strictcbor.loads(data, max_octets=1 << 16, canonical=True) == value


@given(st.binary(max_size=40), st.booleans())
def test_any_octets_are_read_whole_or_refused(data: bytes, canonical: bool) -> None:
    try:
        value = strictcbor.loads(data, max_octets=64, canonical=canonical)
    except ValueError:
        return
    if canonical:
        assert cbor2.dumps(value, canonical=True) == data
