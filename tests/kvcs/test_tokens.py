"""Claims of tokens: what is issued, and everything that is not taken."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcs import cose, strictcbor
from kvcs.errors import InvalidInput
from kvcs.scopes import kvcs_scopes
from kvcs.tokens import (
    Claims,
    TokenExpired,
    TokenInvalid,
    TokenMisplaced,
    check,
    decode,
    encode,
    issue,
)

ID = bytes(range(16))
SCOPES = kvcs_scopes(ID, publish=True, read=True)
FULL = bytes.fromhex(
    "a5016e6973737565722e6578616d706c6503746d6f71743a2f2f72656c61792e6578616d706c65041a6b49d2"
    "000748000000000000000019014782828302050682466b7663732d3150000102030405060708090a0b0c0d0e"
    "0f8285030405070882466b7663732d3150000102030405060708090a0b0c0d0e0f"
)
CLAIMS = Claims(
    "issuer.example", ("moqt://relay.example",), 1_800_000_000, SCOPES, token_id=bytes(8)
)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def test_what_a_token_says() -> None:
    assert decode(FULL) == CLAIMS
    assert encode(CLAIMS) == FULL
    assert CLAIMS.holder == "issuer.example/0000000000000000"
    assert CLAIMS._replace(token_id=None).holder == "issuer.example"
    assert CLAIMS._replace(subject="site-a").holder == "issuer.example/site-a"


def test_everything_that_a_token_can_say() -> None:
    every = CLAIMS._replace(
        audience=("a", "b"), subject="s", not_before=1.5, issued_at=2, reval=300.0
    )
    assert decode(encode(every)) == every
    half = bytes.fromhex("a5 01 6161 03 6162 04 01 190147 81818104 190148 f95cb0")
    assert decode(half).reval == 300.0


def test_a_token_of_our_own() -> None:
    token = issue(CLAIMS, KEY)
    keys = {cose.key_id(KEY.public_key()): KEY.public_key()}
    assert decode(cose.verify(token, keys, cose.TOKENS).payload) == CLAIMS
    assert len(token) == len(FULL) + 85


BASE: dict[Any, Any] = {1: "i", 3: "a", 4: 5, 327: [[[4]]]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({1: None}, "a name is text"),
        ({1: ""}, "a name is text"),
        ({1: "x" * 257}, "a name is text"),
        ({1: "a\nb"}, "a name is text"),
        ({1: b"i"}, "a name is text"),
        ({2: 7}, "a name is text"),
        ({3: []}, "a name is text"),
        ({3: ["a", 1]}, "a name is text"),
        ({4: "5"}, "number of seconds"),
        ({4: True}, "number of seconds"),
        ({4: None}, "number of seconds"),
        ({4: float("nan")}, "finite"),
        ({4: float("inf")}, "finite"),
        ({5: float("-inf")}, "finite"),
        ({4: 1e300}, "between 1970 and 9999"),
        ({4: 1 << 63}, "between 1970 and 9999"),
        ({4: -1}, "between 1970 and 9999"),
        ({5: -0.5}, "between 1970 and 9999"),
        ({6: 253_402_300_800}, "between 1970 and 9999"),
        ({6: b""}, "number of seconds"),
        ({7: "id"}, "the id of a token"),
        ({7: b""}, "the id of a token"),
        ({8: {3: b"thumb"}}, "claim 8 is not one that is enforced"),
        ({308: 1}, "claim 308 is not"),
        ({321: {0: 1}}, "claim 321 is not"),
        ({"iss": "i"}, "claim iss is not"),
        ({b"\1": "i"}, "is not one that is enforced"),
        ({327: []}, "must be a list that is not empty"),
        ({327: {0: b"x"}}, "must be a list that is not empty"),
        ({327: [[[4]], [[4], [{0: b"a"}]]]}, "a match is"),
        ({328: 0.5}, "moqt-reval of 0.5 s"),
        ({328: 86401}, "moqt-reval of 86401 s"),
        ({328: -1}, "moqt-reval of -1 s"),
        ({328: float("nan")}, "finite"),
        ({328: "60"}, "number of seconds"),
    ],
)
def test_a_claim_that_is_wrong(change: dict[Any, Any], why: str) -> None:
    with pytest.raises(TokenInvalid, match=why):
        decode(strictcbor.dumps(BASE | change))


@pytest.mark.parametrize(
    ("key", "what"), [(1, "issuer"), (3, "audience"), (4, "end"), (327, "moqt claim")]
)
def test_a_claim_that_is_missing(key: int, what: str) -> None:
    decode(strictcbor.dumps(BASE))
    with pytest.raises(TokenInvalid, match=f"it has no {what}"):
        decode(strictcbor.dumps({k: v for k, v in BASE.items() if k != key}))


@pytest.mark.parametrize("octets", ["", "80", "a0ff", "bf01616103616204050019014781818104ff", "c0"])
def test_what_is_no_map_of_claims(octets: str) -> None:
    with pytest.raises(TokenInvalid):
        decode(bytes.fromhex(octets))


def test_reval_of_nought_is_never() -> None:
    assert decode(strictcbor.dumps(BASE | {328: 0})).reval is None


def test_nothing_is_issued_that_nobody_takes() -> None:
    for wrong in ({"issuer": ""}, {"audience": ()}, {"scopes": ()}, {"expires": float("nan")}):
        with pytest.raises(InvalidInput):
            issue(CLAIMS._replace(**wrong), KEY)
    with pytest.raises(InvalidInput, match="at most 2048"):
        issue(CLAIMS._replace(scopes=SCOPES * 35), KEY)


@pytest.mark.parametrize(
    ("now", "error"),
    [
        (969.9, TokenMisplaced),
        (970.0, None),
        (2000.0, None),
        (2029.9, None),
        (2030.0, TokenExpired),
        (9999.0, TokenExpired),
    ],
)
def test_times(now: float, error: type[Exception] | None) -> None:
    claims = CLAIMS._replace(expires=2000.0, not_before=1000.0)
    if error is None:
        check(claims, claims.audience, now)
    else:
        with pytest.raises(error):
            check(claims, claims.audience, now)


@pytest.mark.parametrize(
    ("audience", "ours", "fits"),
    [
        (("a",), {"a"}, True),
        (("b", "a"), {"a", "c"}, True),
        (("b",), {"a"}, False),
        (("A",), {"a"}, False),
        (("a",), set(), False),
    ],
)
def test_audiences(audience: tuple[str, ...], ours: set[str], fits: bool) -> None:
    claims = CLAIMS._replace(audience=audience)
    if fits:
        check(claims, ours, 0)
    else:
        with pytest.raises(TokenMisplaced, match="another audience"):
            check(claims, ours, 0)
