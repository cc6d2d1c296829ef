"""Signatures: COSE_Sign1 (RFC 9052) with EdDSA or ES256, in the strictest form, behind two calls.

pycose is used here and nowhere else. It takes more than it should and fails in many ways, so every
message is checked before it sees one, and whatever it raises is a ``CoseRejected``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import cbor2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pycose.algorithms import EdDSA, Es256
from pycose.headers import KID, Algorithm
from pycose.keys.curves import Ed25519
from pycose.keys.okp import OKPKey
from pycose.messages.sign1message import Sign1Message

from kvcs import strictcbor
from kvcs.errors import InvalidInput, KvcsError
from kvcs.geometry import MAX_MANIFEST_OCTETS

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Ed25519, or ECDSA on P-256; ``check_public_key`` refuses other curves.
PrivateKey: TypeAlias = Ed25519PrivateKey | EllipticCurvePrivateKey
PublicKey: TypeAlias = Ed25519PublicKey | EllipticCurvePublicKey

#: Octets of the key id that ``key_id`` makes.
KEY_ID_LENGTH: Final = 8
SIGNATURE_LENGTH: Final = 64

#: COSE algorithms (RFC 9053 §2) and header labels (RFC 9052 §3.1).
_EDDSA: Final = -8
_ES256: Final = -7
_ALG, _CRIT, _KID = 1, 2, 4
#: Tag 18 and an array of four.
_START: Final = bytes.fromhex("d284")
_HALF: Final = SIGNATURE_LENGTH // 2


class CoseRejected(KvcsError):
    """A signed message is not taken: it breaks a rule, its key is unknown, or it was changed."""


class Profile(NamedTuple):
    """What one use of COSE_Sign1 allows; ``canonical``: one encoding, headers ``{1, 4}`` alone."""

    what: str
    max_octets: int
    external_aad: bytes
    canonical: bool


#: Ours on both ends; bound to their purpose, so that no other signature passes as a token.
TOKENS: Final = Profile("token", 2048, b"kvcs-1 token", canonical=True)
#: Other publishers sign too, and the draft fixes no more than COSE.
MANIFESTS: Final = Profile("manifest signature", MAX_MANIFEST_OCTETS, b"", canonical=False)


class Signed(NamedTuple):
    """A payload and the id of the key that signed it."""

    payload: bytes
    kid: bytes


def key_id(key: PublicKey) -> bytes:
    """The first 8 octets of SHA-256 over the key as SubjectPublicKeyInfo (DER)."""
    check_public_key(key)
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest()[:KEY_ID_LENGTH]


def check_public_key(key: object) -> PublicKey:
    """The key itself; raises InvalidInput for anything but Ed25519 and P-256."""
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return key
    if isinstance(key, Ed25519PublicKey):
        return key
    raise InvalidInput("a key of another kind: use Ed25519 (EdDSA), or EC on P-256 (ES256)")


def sign(payload: bytes, key: PrivateKey, profile: Profile) -> bytes:
    """``d2 84 | bstr{1: alg, 4: kid} | a0 | bstr payload | bstr signature``, kid by ``key_id``.

    Raises InvalidInput for a key of another kind, or more octets than the profile takes.
    """
    algorithm = EdDSA if isinstance(key, Ed25519PrivateKey) else Es256
    message = Sign1Message(
        phdr={Algorithm: algorithm, KID: key_id(key.public_key())},  # canonical in this order
        payload=payload,
        external_aad=profile.external_aad,
    )
    if isinstance(key, Ed25519PrivateKey):
        x, d = key.public_key().public_bytes_raw(), key.private_bytes_raw()
        message.key = OKPKey(crv=Ed25519, x=x, d=d)
        octets = bytes(message.encode())
    else:
        # Not by pycose: its ecdsa leaks the key through timing (CVE-2024-23342).
        pair = decode_dss_signature(
            key.sign(_to_be_signed(message.phdr_encoded, payload, profile), ECDSA(SHA256()))
        )
        message.signature = b"".join(number.to_bytes(_HALF, "big") for number in pair)
        octets = bytes(message.encode(sign=False))
    if len(octets) > profile.max_octets:
        raise InvalidInput(
            f"{profile.what} of {len(octets)} octets: at most {profile.max_octets} are taken"
        )
    return octets


def verify(data: bytes, keys: Mapping[bytes, PublicKey], profile: Profile) -> Signed:
    """The payload, if one of ``keys`` (by key id) signed exactly this; raises CoseRejected."""
    message = _Message.parse(data, profile)
    key = keys.get(message.kid)
    if key is None:
        raise CoseRejected(f"{profile.what}: key {message.kid[:16].hex()} is not known here")
    expected = _EDDSA if isinstance(key, Ed25519PublicKey) else _ES256
    if message.algorithm != expected:
        raise CoseRejected(f"{profile.what}: its algorithm is not that of key {message.kid.hex()}")
    if isinstance(key, Ed25519PublicKey):
        genuine = _verified_by_pycose(message, key, profile)
    else:
        genuine = _verified_on_p256(message, key, profile)
    if not genuine:
        raise CoseRejected(f"{profile.what}: the signature is not that of key {message.kid.hex()}")
    return Signed(message.payload, message.kid)


def peek(data: bytes, profile: Profile) -> Signed:
    """What a message claims to be, its signature NOT verified: for people; raises CoseRejected."""
    message = _Message.parse(data, profile)
    return Signed(message.payload, message.kid)


class _Message(NamedTuple):
    """A message that keeps all rules; its signature is not checked yet."""

    protected: bytes
    payload: bytes
    signature: bytes
    algorithm: int
    kid: bytes

    @classmethod
    def parse(cls, data: bytes, profile: Profile) -> _Message:
        """Everything but the signature; raises CoseRejected."""
        if len(data) > profile.max_octets:
            raise CoseRejected(
                f"{profile.what} of {len(data)} octets: at most {profile.max_octets} are read"
            )
        if data[: len(_START)] != _START:
            raise CoseRejected(f"{profile.what}: it does not begin as COSE_Sign1 does (d2 84)")
        try:
            return cls._of(_load(data[1:], profile), profile)
        except ValueError as error:
            raise CoseRejected(f"{profile.what}: {error}") from None

    @classmethod
    def _of(cls, parts: object, profile: Profile) -> _Message:
        if not isinstance(parts, list) or len(parts) != 4:
            raise ValueError("COSE_Sign1 has four parts")
        protected, payload, signature = (_octets(parts[place]) for place in (0, 2, 3))
        if len(signature) != SIGNATURE_LENGTH:
            raise ValueError(f"a signature of {len(signature)} octets, not {SIGNATURE_LENGTH}")
        inner, outer = _header(_load(protected, profile)), _header(parts[1])
        if _CRIT in inner or _CRIT in outer:
            raise ValueError("it demands extensions (crit); none are known here")
        algorithm = inner.get(_ALG)
        if _ALG in outer or type(algorithm) is not int or algorithm not in (_EDDSA, _ES256):
            raise ValueError("its protected header must say EdDSA or ES256, and no other may")
        if profile.canonical and (outer or inner.keys() != {_ALG, _KID}):
            raise ValueError("its protected header holds alg and kid, the other one nothing")
        kids = {_octets(header[_KID]) for header in (inner, outer) if _KID in header}
        if len(kids) != 1:
            raise ValueError("it must name one key (kid)")
        return cls(protected, payload, signature, algorithm, kids.pop())


def _load(data: bytes, profile: Profile) -> object:
    return strictcbor.loads(data, max_octets=profile.max_octets, canonical=profile.canonical)


def _octets(value: object) -> bytes:
    if type(value) is not bytes:
        raise ValueError("protected header, payload, signature and kid must be octets")
    return value


def _header(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ValueError("a header that is no map")
    return value


def _to_be_signed(protected: bytes, payload: bytes, profile: Profile) -> bytes:
    """The Sig_structure (RFC 9052 §4.4)."""
    return cbor2.dumps(["Signature1", protected, profile.external_aad, payload])


def _verified_by_pycose(message: _Message, key: Ed25519PublicKey, profile: Profile) -> bool:
    try:
        found = Sign1Message(
            phdr_encoded=message.protected,
            payload=message.payload,
            external_aad=profile.external_aad,
            key=OKPKey(crv=Ed25519, x=key.public_bytes_raw()),
        )
        found.signature = message.signature
        return found.verify_signature() is True
    except Exception as error:  # a zoo of them, all about these octets
        raise CoseRejected(f"{profile.what}: {error}") from None


def _verified_on_p256(message: _Message, key: EllipticCurvePublicKey, profile: Profile) -> bool:
    r, s = (
        int.from_bytes(half, "big")
        for half in (message.signature[:_HALF], message.signature[_HALF:])
    )
    try:
        key.verify(
            encode_dss_signature(r, s),
            _to_be_signed(message.protected, message.payload, profile),
            ECDSA(SHA256()),
        )
    except InvalidSignature:
        return False
    return True
