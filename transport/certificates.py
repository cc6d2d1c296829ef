"""Self-made certificates: an authority of one's own, servers and clients, ECDSA P-256.

For tests, the demo and first steps. A real deployment takes its certificates from a real CA.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Browsers accept a certificate pinned by its hash only up to this lifetime (WebTransport).
SHORT_LIVED: Final = datetime.timedelta(days=14)

#: Clocks of two machines differ: valid a little before it was made.
BACKDATED: Final = datetime.timedelta(hours=1)


_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
#: Labels of letters, digits, underscores and hyphens, up to 63; the first may be a star.
_HOST: Final = re.compile(
    rf"(?=.{{1,253}}\Z)(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE
)
#: X.509's; names that count are the alternative ones.
_MAX_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key; ``repr`` shows neither."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"KeyPair({self.certificate.subject.rfc4514_string()!r})"

    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def private_key_pem(self) -> bytes:
        """The key as unencrypted PKCS #8 PEM."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


class CertificatePaths(NamedTuple):
    """What ``write_test_certificates`` wrote."""

    ca: Path
    certificate: Path
    private_key: Path


def make_authority(
    name: str = "Test authority", *, lifetime: datetime.timedelta = SHORT_LIVED
) -> KeyPair:
    """A certificate authority that signs certificates of servers and clients, no authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(name, key, lifetime)
        .issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(_identifier(key), critical=False)
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def make_certificate(
    authority: KeyPair,
    names: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
    *,
    lifetime: datetime.timedelta = SHORT_LIVED,
    now: datetime.datetime | None = None,
) -> KeyPair:
    """A server certificate for DNS names and IP addresses, valid ``lifetime`` from ``now`` on.

    ValueError when there is no name, or one that is neither.
    """
    if not names:
        raise ValueError("a server certificate needs a name: give a host name or an IP address")
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return _issued(authority, names[0][:_MAX_COMMON_NAME], usage, lifetime, now, alternatives)


def make_client_certificate(
    authority: KeyPair,
    name: str,
    *,
    lifetime: datetime.timedelta = SHORT_LIVED,
    now: datetime.datetime | None = None,
) -> KeyPair:
    """A client certificate with the subject ``CN=name``, valid ``lifetime`` from ``now`` on.

    ValueError for a name that no certificate can have.
    """
    return _issued(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, lifetime, now)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def write_private_key(path: Path, pem: bytes) -> None:
    """Write a key that only its owner can read, whatever the umask and an older file say."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)


def write_test_certificates(
    directory: Path, names: Sequence[str] = ("localhost", "127.0.0.1")
) -> CertificatePaths:
    """Make an authority and a server certificate in ``directory``; the authority's key is lost."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = CertificatePaths(
        directory / "ca.pem", directory / "server.pem", directory / "server.key"
    )
    authority = make_authority()
    server = make_certificate(authority, names)
    paths.ca.write_bytes(authority.certificate_pem())
    paths.certificate.write_bytes(server.certificate_pem())
    write_private_key(paths.private_key, server.private_key_pem())
    return paths


def _issued(
    authority: KeyPair,
    name: str,
    usage: x509.ObjectIdentifier,
    lifetime: datetime.timedelta,
    now: datetime.datetime | None,
    *more: x509.ExtensionType,
) -> KeyPair:
    """A certificate for ``usage``, and no authority, with a key of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.private_key
    extensions = (
        x509.ExtendedKeyUsage([usage]),
        *more,
        _identifier(key),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )
    builder = (
        _builder(name, key, lifetime, now)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return KeyPair(builder.sign(signer, hashes.SHA256()), key)


def _builder(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    lifetime: datetime.timedelta,
    now: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = now or datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now - BACKDATED + lifetime)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if _HOST.fullmatch(name) is None:
            raise ValueError(
                f"{name[:64]!r} is neither a host name nor an IP address: write one, such as"
                " relay.example or 192.0.2.7 (ASCII; other letters as xn--...)"
            ) from None
        return x509.DNSName(name)


def _identifier(key: ec.EllipticCurvePrivateKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key.public_key())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
