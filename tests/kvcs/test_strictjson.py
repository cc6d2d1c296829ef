"""JSON from strangers."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs import strictjson


def loads(data: bytes) -> object:
    return strictjson.loads(data, max_octets=1 << 20, max_values=1000)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # a lone surrogate is JSON when escaped; whoever uses the text must refuse it
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(VALUES)
def test_honest_json_is_read(value: object) -> None:
    assert loads(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting"),
        (b"{} {}", "Extra data"),
        (b'{"a":1,"b":{"c":1,"c":2}}', "member 'c' occurs twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[1e999]", "number 1e999 is out of range"),
        (b"[" + b"9" * 5000 + b"]", "[Ee]xceeds the limit"),
        (b'["\xff"]', "not UTF-8"),
        (b'["\xed\xa0\x80"]', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ("[]".encode("utf-16"), "not UTF-8|Expecting"),
        (b"[" * 17 + b"]" * 17, "nested deeper than 16"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "nested deeper than 16"),
        (b"[" * 999 + b"]" * 999, "nested deeper than 16"),
        (b"[" + b"0," * 1000 + b"0]", "more than 1000 JSON values"),
        (b"[" * 1001, "more than 1000 JSON values"),
        (b" " * (1 << 20) + b"1", "1048577 octets of JSON, at most 1048576"),
    ],
)
def test_hostile_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loads(data)


def test_nesting_far_beyond_the_interpreters_stack() -> None:
    for data in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(ValueError, match=r"nested deeper than 16|Expecting"):
            strictjson.loads(data, max_octets=1 << 20, max_values=1 << 20)


def test_sixteen_levels_are_read() -> None:
    loads(b"[" * 16 + b"]" * 16)


@given(st.binary(max_size=200))
def test_anything_else_is_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        loads(data)


def test_a_hundred_thousand_members_and_one_of_them_twice() -> None:
    """Linear: what grows with the square of the members ends in the test's time limit."""
    members = ",".join(f'"{number}":0' for number in range(100_000))
    with pytest.raises(ValueError, match="member '99999' occurs twice"):
        strictjson.loads(
            f'{{{members},"99999":0}}'.encode(), max_octets=1 << 22, max_values=1 << 20
        )
