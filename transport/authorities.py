"""Whose certificates clients may show: CAs of clients, and what they vouch for (RFC 5280).

QUIC's TLS proves that a client holds the key of the certificate it shows; whose certificate that is
is decided here, before anything that the client sends counts.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aioquic.tls import AlertDescription
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import (
    AuthorityKeyIdentifier,
    BasicConstraints,
    Certificate,
    ExtendedKeyUsage,
    ExtensionNotFound,
    KeyUsage,
    SubjectAlternativeName,
    SubjectKeyIdentifier,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from transport.errors import CertificateRefused, TransportError
from transport.watch import Watch, file_mark

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from cryptography.x509.verification import Policy

#: Certificates that one client may show: its own and three above it. No two of them have the same
#: name, so there is one way up and no more signatures to check than certificates.
MAX_CHAIN: Final = 4
#: Octets of a file of CAs: a thousand of them, and no file of another kind.
MAX_FILE: Final = 1 << 20
#: Bits of a client's RSA key; of the keys above it the verifier says the same.
SMALLEST_RSA: Final = 2048
#: Characters of a reason that are told to the client: they must fit its smallest datagram.
MAX_REASON: Final = 200


class ClientAuthorities:
    """CAs whose certificates clients may show, from PEM files that are read again when they change.

    With ``required`` a client without a certificate is turned away. ``wall`` is Unix time. Raises
    TransportError for files that cannot be used. A CA that is no longer there vouches for nobody.
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        *,
        required: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._files = tuple(map(Path, files))
        if not self._files:
            raise TransportError("no CA of clients: give PEM files with their certificates")
        self.required = required
        self._wall = wall
        #: Goes up whenever other CAs count.
        self.generation = 0
        self._watch = Watch("CAs of clients", self._marks, self._load, (TransportError,))

    def __repr__(self) -> str:
        return f"<ClientAuthorities: {len(self._trusted)}>"

    def refresh(self) -> None:
        """Look at the files again, now and then; what cannot be read then changes nothing."""
        self._watch.look(self._wall())

    def admit(self, chain: Sequence[Certificate]) -> Shown | None:
        """What a client has shown, its own certificate first; None for one that shows nothing.

        Raises CertificateRefused.
        """
        self.refresh()
        if chain:
            return Shown(self, tuple(chain))
        if self.required:
            raise CertificateRefused(
                AlertDescription.certificate_required, "a client certificate is required"
            )
        return None

    def verify(self, chain: Sequence[Certificate]) -> Verified:
        """The first of ``chain``, when a CA vouches for it now; raises CertificateRefused."""
        now = datetime.datetime.fromtimestamp(self._wall(), datetime.UTC)
        try:
            path = self._path(chain, now)
        except CertificateRefused:
            raise
        except Exception:  # parsed when looked at, with errors of all kinds
            raise CertificateRefused(
                AlertDescription.bad_certificate, "the client certificate cannot be read"
            ) from None
        ends = min(one.not_valid_after_utc for one in path)
        return Verified(chain[0].public_bytes(Encoding.DER), ends.timestamp())

    # -- inside ----------------------------------------------------------------------------------

    def _path(self, chain: Sequence[Certificate], now: datetime.datetime) -> list[Certificate]:
        """From the client's own to one that is trusted."""
        own, *above = chain
        if len(chain) > MAX_CHAIN or len({one.subject for one in above}) < len(above):
            raise CertificateRefused(
                AlertDescription.bad_certificate,
                f"more than {MAX_CHAIN} certificates, or two of one name above the client's",
            )
        _check_own(own, now)
        verifier = (
            PolicyBuilder()
            .store(self._store)
            .time(now)
            .max_chain_depth(MAX_CHAIN - 1)
            .extension_policies(ca_policy=_CA, ee_policy=_CLIENT)
            .build_client_verifier()
        )
        try:
            return verifier.verify(own, above).chain
        except VerificationError as error:
            if any(_issued(ca, one) for one in chain for ca in self._trusted):
                alert, told = AlertDescription.bad_certificate, _told(error)
            else:
                alert, told = AlertDescription.unknown_ca, "no CA that is trusted has issued it"
            raise CertificateRefused(alert, f"the client certificate is refused: {told}") from None

    def _marks(self) -> list[tuple[int, ...]]:
        try:
            return [file_mark(file) for file in self._files]
        except OSError as error:
            raise _unusable(error.filename, error.strerror or error) from None

    def _load(self) -> None:
        trusted = [ca for file in self._files for ca in _authorities(file)]
        self._trusted = trusted
        self._store = Store(trusted)
        self.generation += 1


class Verified(NamedTuple):
    """A certificate (DER) that counts now, and Unix time when it, or one above it, ends."""

    der: bytes
    ends: float


class Shown:
    """A ``transport.api.PeerCertificate``: verified, and again whenever the authorities change.

    Raises CertificateRefused at first.
    """

    __slots__ = ("_authorities", "_chain", "_ends", "_generation", "der")

    def __init__(self, authorities: ClientAuthorities, chain: tuple[Certificate, ...]) -> None:
        self._authorities = authorities
        self._chain = chain
        self._generation = authorities.generation
        self.der, self._ends = authorities.verify(chain)

    @property
    def ends(self) -> float:
        """0 once no authority vouches for it any more."""
        if self._generation != self._authorities.generation:
            self._generation = self._authorities.generation
            try:
                self._ends = self._authorities.verify(self._chain).ends
            except CertificateRefused:
                self._ends = 0.0
        return self._ends


def _signs(_policy: Policy, _certificate: Certificate, usage: KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("a CA that may not sign certificates")


#: As for the Web, but CAs made by hand often have no key usage, and clients no alternative name.
_CA: Final = ExtensionPolicy.webpki_defaults_ca().may_be_present(
    KeyUsage, Criticality.AGNOSTIC, _signs
)
_CLIENT: Final = ExtensionPolicy.webpki_defaults_ee().may_be_present(
    SubjectAlternativeName, Criticality.AGNOSTIC, None
)


def _check_own(own: Certificate, now: datetime.datetime) -> None:
    """What TLS has alerts of its own for."""
    if now < own.not_valid_before_utc:
        raise CertificateRefused(
            AlertDescription.certificate_expired, "the client certificate is not valid yet"
        )
    if now > own.not_valid_after_utc:
        raise CertificateRefused(
            AlertDescription.certificate_expired, "the client certificate has expired"
        )
    key = own.public_key()
    if isinstance(key, RSAPublicKey) and key.key_size < SMALLEST_RSA:
        raise CertificateRefused(
            AlertDescription.bad_certificate, f"an RSA key has {SMALLEST_RSA} bits or more"
        )
    try:
        usage = own.extensions.get_extension_for_class(ExtendedKeyUsage).value
    except ExtensionNotFound:
        return
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise CertificateRefused(
            AlertDescription.unsupported_certificate,
            "the certificate is not for clients (extended key usage)",
        )


def _issued(ca: Certificate, one: Certificate) -> bool:
    """Whether ``one`` names ``ca`` as its issuer; nothing is proven by that."""
    if one.issuer != ca.subject:
        return False
    try:
        extensions = one.extensions
        named = extensions.get_extension_for_class(AuthorityKeyIdentifier).value.key_identifier
        own = ca.extensions.get_extension_for_class(SubjectKeyIdentifier).value.key_identifier
    except ExtensionNotFound:
        return True
    return named is None or named == own


def _told(error: VerificationError) -> str:
    """Why, without what the client has written into its certificate."""
    why = str(error).partition(" (encountered")[0].removeprefix("validation failed: ")
    return "".join(filter(str.isprintable, why.removeprefix("candidates exhausted: ")))[:MAX_REASON]


def _authorities(file: Path) -> list[Certificate]:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ValueError(f"more than {MAX_FILE} octets")
        found = load_pem_x509_certificates(content)
        for one in found:
            if not _is_authority(one):
                raise ValueError(f"{one.subject.rfc4514_string()} is no CA")
        return found
    except OSError as error:
        raise _unusable(file, error.strerror or error) from None
    except ValueError as error:
        raise _unusable(file, error) from None


def _is_authority(one: Certificate) -> bool:
    try:
        return one.extensions.get_extension_for_class(BasicConstraints).value.ca
    except ExtensionNotFound:
        return False


def _unusable(file: object, why: object) -> TransportError:
    return TransportError(
        f"the file {file} with CAs of clients cannot be used ({why}); give a PEM file with the"
        " certificates of those CAs"
    )
