"""COSE_Sign1: what is taken, and everything that must be refused, in both profiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cbor2
import ecdsa
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    derive_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st

from kvcs.cose import MANIFESTS, TOKENS, CoseRejected, Profile, PublicKey, key_id, sign, verify
from kvcs.errors import InvalidInput

EDDSA_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ES256_KEY = derive_private_key(0x1234567890ABCDEF << 120, SECP256R1())
EDDSA_ID = bytes.fromhex("a050837d85070582")
ES256_ID = bytes.fromhex("769d893cacaf54fc")
KEYS: dict[bytes, PublicKey] = {
    EDDSA_ID: EDDSA_KEY.public_key(),
    ES256_ID: ES256_KEY.public_key(),
}
PAYLOAD = bytes.fromhex("68656c6c6f203737")

EDDSA_TOKEN = bytes.fromhex(
    "d2844da201270448a050837d85070582a04868656c6c6f20373758401522917b23439aefedd77701d639d0a7"
    "40392d397e367823dae545d4bad070ca6c41550afef52e9c55d45c4bf66b2f8b4c4dcd1f83ea0fc24aaadc45"
    "196f6800"
)
EDDSA_MANIFEST = bytes.fromhex(
    "d2844da201270448a050837d85070582a04868656c6c6f2037375840a3b84de910964327df559e731ea37796"
    "6aecd160d33d1f084084d8d2f3ff417da82df1e1d8b615ac57d36235b27f2efc47fbe39322fcc1198f38c4d6"
    "79560f00"
)
ES256_TOKEN = bytes.fromhex(
    "d2844da201260448769d893cacaf54fca04868656c6c6f2037375840928cfcc8251095d6bf3d237846f84790"
    "6afd30777f9ba3860ece5147092956fc57b4595f6ad2db2d858ebf6c5c9f2eb71165063367fd63f74ef4cc4b"
    "895d0a83"
)
ES256_MANIFEST = bytes.fromhex(
    "d2844da201260448769d893cacaf54fca04868656c6c6f2037375840c606a3c3f588cf634fad3ce3bcce2afb"
    "697d03673eb1232fcd21f5287a0ffc7abd17496c4f380c0c6dab52e0c09b00c462a01c3978c473e48e649f52"
    "41ca9b0e"
)
VECTORS = [
    (EDDSA_TOKEN, EDDSA_ID, TOKENS),
    (EDDSA_MANIFEST, EDDSA_ID, MANIFESTS),
    (ES256_TOKEN, ES256_ID, TOKENS),
    (ES256_MANIFEST, ES256_ID, MANIFESTS),
]
EACH = pytest.mark.parametrize(
    ("data", "kid", "profile"), VECTORS, ids=["eddsa", "eddsa-manifest", "es256", "es256-manifest"]
)
BOTH = pytest.mark.parametrize("profile", [TOKENS, MANIFESTS], ids=["token", "manifest"])


@EACH
def test_what_is_taken(data: bytes, kid: bytes, profile: Profile) -> None:
    assert verify(data, KEYS, profile) == (PAYLOAD, kid)


@pytest.mark.parametrize(("data", "profile"), [(EDDSA_TOKEN, TOKENS), (EDDSA_MANIFEST, MANIFESTS)])
def test_what_is_written_with_ed25519(data: bytes, profile: Profile) -> None:
    assert sign(PAYLOAD, EDDSA_KEY, profile) == data


@BOTH
def test_what_is_written_on_p256(profile: Profile) -> None:
    data = sign(PAYLOAD, ES256_KEY, profile)
    assert data[:-64] == ES256_TOKEN[:-64]
    assert verify(data, KEYS, profile) == (PAYLOAD, ES256_ID)


def test_key_ids() -> None:
    assert [key_id(key) for key in KEYS.values()] == list(KEYS)


def test_ecdsa_the_package_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*_: object, **__: object) -> None:
        raise AssertionError("ecdsa does the arithmetic")

    for name in ("from_secret_exponent", "from_string", "from_der", "from_pem"):
        monkeypatch.setattr(ecdsa.SigningKey, name, used, raising=False)
    for name in ("from_string", "from_public_point", "from_der", "from_pem"):
        monkeypatch.setattr(ecdsa.VerifyingKey, name, used, raising=False)
    for key in (EDDSA_KEY, ES256_KEY):
        verify(sign(PAYLOAD, key, TOKENS), KEYS, TOKENS)


# ------------------------------------------------------------------------------------- bad messages

EDDSA_HEADER = {1: -8, 4: EDDSA_ID}
ES256_HEADER = {1: -7, 4: ES256_ID}


def forge(
    profile: Profile,
    *,
    protected: object = EDDSA_HEADER,
    unprotected: object = b"\xa0",
    payload: object = PAYLOAD,
    key: Any = EDDSA_KEY,
    cut: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """A message whose signature is right, whatever else is wrong with it.

    Octets given for a header stand as they are.
    """
    header = protected if isinstance(protected, bytes) else cbor2.dumps(protected)
    outer = unprotected if isinstance(unprotected, bytes) else cbor2.dumps(unprotected)
    signed = cbor2.dumps(["Signature1", header, profile.external_aad, payload])
    if key is EDDSA_KEY:
        signature = key.sign(signed)
    else:
        pair = decode_dss_signature(key.sign(signed, ECDSA(SHA256())))
        signature = b"".join(number.to_bytes(32, "big") for number in pair)
    parts = (cbor2.dumps(header), outer, cbor2.dumps(payload), cbor2.dumps(cut(signature)))
    return b"\xd2\x84" + b"".join(parts)


@BOTH
def test_the_forge_makes_good_ones(profile: Profile) -> None:
    assert verify(forge(profile), KEYS, profile) == (PAYLOAD, EDDSA_ID)
    good = forge(profile, protected=ES256_HEADER, key=ES256_KEY)
    assert verify(good, KEYS, profile) == (PAYLOAD, ES256_ID)


def refused(data: bytes, profile: Profile, why: str | None = None) -> None:
    with pytest.raises(CoseRejected, match=why):
        verify(data, KEYS, profile)


@BOTH
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"protected": {4: EDDSA_ID}}, "must say EdDSA or ES256"),
        ({"protected": {4: EDDSA_ID}, "unprotected": {1: -8}}, "must say EdDSA or ES256"),
        ({"unprotected": {1: -8}}, "no other may"),
        ({"protected": {1: -37, 4: EDDSA_ID}}, "must say EdDSA or ES256"),
        ({"protected": {1: "EdDSA", 4: EDDSA_ID}}, "must say EdDSA or ES256"),
        ({"protected": {1: -8.0, 4: EDDSA_ID}}, "must say EdDSA or ES256|canonical"),
        ({"protected": {1: -7, 4: EDDSA_ID}}, "its algorithm is not that of key"),
        ({"protected": {1: -8, 4: ES256_ID}}, "its algorithm is not that of key"),
        ({"protected": {1: -8, 2: [99], 4: EDDSA_ID, 99: 1}}, "crit"),
        ({"unprotected": {2: [1]}}, "crit"),
        ({"protected": {1: -8}}, "must name one key|holds alg and kid"),
        ({"protected": {1: -8, 4: b"other"}}, "key 6f74686572 is not known"),
        ({"protected": {1: -8, 4: "text"}}, "must be octets"),
        ({"unprotected": {4: ES256_ID}}, "must name one key|the other one nothing"),
        ({"protected": bytes.fromhex("a30127012704 48") + EDDSA_ID}, "occurs twice"),
        ({"protected": bytes.fromhex("a3012704 48") + EDDSA_ID + b"\x04\x40"}, "occurs twice"),
        ({"unprotected": bytes.fromhex("a2 182001 182002")}, "occurs twice"),
        ({"protected": b""}, "cut off"),
        ({"protected": b"\x80"}, "no map"),
        ({"protected": b"\xa0"}, "must say"),
        ({"protected": bytes.fromhex("a1")}, "cut off"),
        ({"unprotected": b"\x80"}, "no map"),
        ({"unprotected": b"\xf6"}, "no map"),
        ({"payload": None}, "must be octets"),
        ({"payload": "text"}, "must be octets"),
        ({"payload": [1]}, "must be octets"),
        ({"cut": lambda signature: signature[:63]}, "a signature of 63 octets"),
        ({"cut": lambda signature: signature + b"\0"}, "a signature of 65 octets"),
        ({"cut": lambda signature: b""}, "a signature of 0 octets"),
        ({"cut": lambda signature: bytes(64)}, "the signature is not that of key"),
    ],
)
def test_bad_parts(given: dict[str, Any], why: str, profile: Profile) -> None:
    refused(forge(profile, **given), profile, why)


@BOTH
@pytest.mark.parametrize("cut", [bytes, lambda _: bytes(64), lambda _: b"\xff" * 64])
def test_es256_under_the_name_of_an_ed25519_key(profile: Profile, cut: Any) -> None:
    crossed = forge(profile, protected={1: -7, 4: EDDSA_ID}, key=ES256_KEY, cut=cut)
    refused(crossed, profile, "its algorithm is not that of key")


@BOTH
@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, bytes(32) + b"\1" * 32])
def test_numbers_that_are_no_p256_signature(profile: Profile, signature: bytes) -> None:
    data = forge(profile, protected=ES256_HEADER, key=ES256_KEY, cut=lambda _: signature)
    refused(data, profile, "the signature is not that of key")


@BOTH
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda good: b"", "does not begin"),
        (lambda good: good + b"\0", "1 octets after the end"),
        (lambda good: good + good, "octets after the end"),
        (lambda good: good[1:], "does not begin"),
        (lambda good: b"\xd1" + good[1:], "does not begin"),
        (lambda good: b"\xd8\x12" + good[1:], "does not begin"),
        (lambda good: b"\xd8\x3d" + good, "does not begin"),
        (lambda good: b"\xd2\x83" + good[2:-66], "does not begin"),
        (lambda good: b"\xd2\x85" + good[2:] + b"\x40", "does not begin"),
        (lambda good: b"\xd2\x9f" + good[2:] + b"\xff", "does not begin"),
        (lambda good: good[:-1], "cut off"),
        (lambda good: good[:2], "cut off"),
        (lambda good: good[:1], "does not begin"),
        (lambda good: b"\xd2\x84" + b"\x81" * 1900, "nested deeper"),
        (lambda good: b"\xd2\x84\x5b" + (1 << 35).to_bytes(8, "big"), "cut off"),
        (lambda good: b"\xd2\x84\x9b" + (1 << 35).to_bytes(8, "big"), "cut off"),
        (lambda good: good[:2] + b"\xd8\x1c" + good[2:], "a tag"),
    ],
)
def test_bad_frames(change: Callable[[bytes], bytes], why: str, profile: Profile) -> None:
    refused(change(forge(profile)), profile, why)


@BOTH
def test_one_octet_over_the_cap(profile: Profile) -> None:
    small = profile._replace(max_octets=len(EDDSA_TOKEN))
    assert verify(forge(small), KEYS, small).payload == PAYLOAD
    refused(forge(small, payload=PAYLOAD + b"\0"), small, "93 octets: at most 92 are read")
    with pytest.raises(InvalidInput, match="93 octets: at most 92 are taken"):
        sign(PAYLOAD + b"\0", EDDSA_KEY, small)


def test_caps() -> None:
    assert TOKENS.max_octets == 2048
    assert MANIFESTS.max_octets == 64 << 20
    refused(b"\xd2\x84" + b"\x81" * 2047, TOKENS, "2049 octets: at most 2048")


def test_deep_nesting_in_a_large_message() -> None:
    refused(b"\xd2\x84" + b"\x81" * 200_000, MANIFESTS, "nested deeper than 16")


@EACH
def test_every_single_changed_bit_is_noticed(data: bytes, kid: bytes, profile: Profile) -> None:
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        refused(bytes(changed), profile)


@pytest.mark.parametrize(
    ("data", "other"),
    [
        (EDDSA_TOKEN, MANIFESTS),
        (EDDSA_MANIFEST, TOKENS),
        (ES256_TOKEN, MANIFESTS),
        (ES256_MANIFEST, TOKENS),
    ],
)
def test_what_was_signed_for_another_use(data: bytes, other: Profile) -> None:
    refused(data, other, "the signature is not that of key")


#: Only other people's manifests may be written in these ways: never a token.
LOOSE: list[dict[str, Any]] = [
    {"protected": {1: -8}, "unprotected": {4: EDDSA_ID}},
    {"unprotected": {4: EDDSA_ID}},
    {"unprotected": {99: 1}},
    {"protected": {1: -8, 3: "text/plain", 4: EDDSA_ID}},
    {"protected": {4: EDDSA_ID, 1: -8}},
    {"protected": bytes.fromhex("bf 01 27 04 48") + EDDSA_ID + b"\xff"},
    {"protected": bytes.fromhex("a2 1801 27 04 48") + EDDSA_ID},
    {"protected": bytes.fromhex("a2 01 27 04 58 08") + EDDSA_ID},
    {"unprotected": b"\xbf\xff"},
]


@pytest.mark.parametrize("given", LOOSE)
def test_what_only_manifests_may_do(given: dict[str, Any]) -> None:
    assert verify(forge(MANIFESTS, **given), KEYS, MANIFESTS) == (PAYLOAD, EDDSA_ID)
    refused(forge(TOKENS, **given), TOKENS, "canonical|the other one nothing|holds alg and kid")


def test_indefinite_payload_of_a_token() -> None:
    payload = b"\x5f" + cbor2.dumps(PAYLOAD) + b"\xff"
    good = forge(MANIFESTS)
    loose = good.replace(cbor2.dumps(PAYLOAD), payload)
    assert verify(loose, KEYS, MANIFESTS).payload == PAYLOAD
    good = forge(TOKENS)
    refused(good.replace(cbor2.dumps(PAYLOAD), payload), TOKENS, "not in canonical form")


@given(st.binary(max_size=200), st.sampled_from([TOKENS, MANIFESTS]))
def test_any_octets_are_refused_in_one_way(data: bytes, profile: Profile) -> None:
    for start in (b"", b"\xd2\x84", b"\xd2\x84" + EDDSA_TOKEN[2:16]):
        refused(start + data, profile)


@pytest.mark.parametrize("key", [derive_private_key(7, SECP384R1())])
def test_keys_of_other_kinds(key: Any) -> None:
    with pytest.raises(InvalidInput, match="use Ed25519"):
        sign(PAYLOAD, key, TOKENS)
    with pytest.raises(InvalidInput, match="use Ed25519"):
        key_id(key.public_key())
