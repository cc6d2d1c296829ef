"""What both ends bring to the handshake, and what its failures mean."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription, CipherSuite
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificates

from transport import congestion
from transport.errors import ConnectFailed, ConnectFault, TransportError

if TYPE_CHECKING:
    from transport.config import ClientTls, QuicOptions, ServerTls
    from transport.quic import End
    from transport.udp import Address
    from transport.url import MoqtUrl

#: Fastest first: AES-128 costs least where the processor knows it.
CIPHERS: Final = (
    CipherSuite.AES_128_GCM_SHA256,
    CipherSuite.CHACHA20_POLY1305_SHA256,
    CipherSuite.AES_256_GCM_SHA384,
)

#: Octets of our own certificates: aioquic has 16 KiB for them, a signature, and what goes with it.
LONGEST_CHAIN: Final = 14 << 10

_CERTIFICATE_ALERTS: Final = frozenset(
    {
        AlertDescription.bad_certificate,
        AlertDescription.unsupported_certificate,
        AlertDescription.certificate_revoked,
        AlertDescription.certificate_expired,
        AlertDescription.certificate_unknown,
        AlertDescription.unknown_ca,
    }
)


#: Alerts that a server ends a session with for want of a client certificate that it accepts.
_CLIENT_ALERTS: Final = _CERTIFICATE_ALERTS | {
    AlertDescription.certificate_required,
    AlertDescription.access_denied,
}


def client_configuration(url: MoqtUrl, tls: ClientTls, options: QuicOptions) -> QuicConfiguration:
    """ConnectFailed(CERTIFICATE) when the CA file, or our own certificate, cannot be used."""
    configuration = _configuration(options, is_client=True)
    configuration.server_name = tls.server_name or url.host
    if not tls.verify:
        configuration.verify_mode = 0
    if tls.ca_file is not None:
        try:
            configuration.cadata = _certificates(tls.ca_file, "CA")
        except _Unusable as error:
            raise ConnectFailed(
                ConnectFault.CERTIFICATE,
                f"{error}; give a PEM file with the certificate of the CA",
            ) from None
    try:
        if tls.certificate is not None and tls.private_key is not None:
            _load_pair(configuration, tls.certificate, tls.private_key)
        elif tls.certificate is not None or tls.private_key is not None:
            raise TransportError(
                "a client certificate and its private key belong together: give both, or neither"
            )
    except TransportError as error:
        raise ConnectFailed(ConnectFault.CERTIFICATE, str(error)) from error
    return configuration


def server_configuration(tls: ServerTls, options: QuicOptions) -> QuicConfiguration:
    """TransportError when the files cannot be read or do not belong together."""
    configuration = _configuration(options, is_client=False)
    _load_pair(configuration, tls.certificate, tls.private_key)
    return configuration


def _load_pair(configuration: QuicConfiguration, certificate: Path, private_key: Path) -> None:
    try:
        _certificates(certificate, "certificate")
        _check_key(private_key)
        configuration.load_cert_chain(certificate, private_key)
        public = configuration.certificate.public_key()
    except _Unusable as error:
        raise TransportError(
            f"{error}; give a PEM certificate and its unencrypted PEM key"
        ) from None
    except (OSError, ValueError, TypeError, IndexError, UnsupportedAlgorithm):
        raise TransportError(
            f"the certificate file {certificate} and the key file {private_key} cannot be"
            " used; give a PEM certificate and its unencrypted PEM key"
        ) from None
    chain = (configuration.certificate, *configuration.certificate_chain)
    if sum(len(one.public_bytes(Encoding.DER)) for one in chain) > LONGEST_CHAIN:
        raise TransportError(
            f"the certificates in {certificate} take more than {LONGEST_CHAIN} octets; leave only "
            "the certificate and the CAs between it and the one that is trusted"
        )
    private = configuration.private_key.public_key()
    der = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*der) != private.public_bytes(*der):
        raise TransportError(
            f"the key {private_key} is not the key of the certificate {certificate}; "
            "give the pair that was made together"
        )
    curve = public.curve if isinstance(public, EllipticCurvePublicKey) else None
    if curve is not None and not isinstance(curve, SECP256R1 | SECP384R1):
        raise TransportError(
            f"the key {private_key} cannot be used: it is of curve {curve.name}; make an ECDSA key "
            "of P-256 or P-384, an Ed25519 key, or an RSA key"
        )


class _Unusable(Exception):
    """A file is not what it should be: which, and why."""


def _certificates(path: Path, what: str) -> bytes:
    """A PEM file with certificates in it; raises _Unusable."""
    octets = _content(path, what)
    try:
        load_pem_x509_certificates(octets)
    except ValueError:
        raise _Unusable(f"the {what} file {path} holds no certificate in PEM") from None
    return octets


def _check_key(path: Path) -> None:
    try:
        load_pem_private_key(_content(path, "key"), None)
    except TypeError:
        raise _Unusable(f"the key file {path} is encrypted") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _Unusable(f"the key file {path} holds no private key in PEM") from None


def _content(path: Path, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _Unusable(f"the {what} file {path} cannot be read: {error.strerror}") from None


def with_datagram_size(configuration: QuicConfiguration, size: int) -> QuicConfiguration:
    """A copy: the size is a matter of each path."""
    configuration = copy(configuration)
    configuration.max_datagram_size = size
    return configuration


def connect_failed(
    url: MoqtUrl, address: Address, protocols: tuple[str, ...], end: End
) -> ConnectFailed:
    """The end of a connection that never came up, as its caller should hear it."""
    code = end.quic_code
    where = f"{url} ({address[0]} port {address[1]})"
    if code is not None and code & ~0xFF == QuicErrorCode.CRYPTO_ERROR:
        alert = code & 0xFF
        if alert in _CERTIFICATE_ALERTS and not end.remote:
            return ConnectFailed(
                ConnectFault.CERTIFICATE,
                f"{where}: the server's certificate is not accepted: {end.reason}; trust the CA "
                "that signed it (ca_file), connect by a name it was made for, or renew it",
            )
        if alert == AlertDescription.no_application_protocol:
            return ConnectFailed(
                ConnectFault.PROTOCOL,
                f"{where}: no protocol in common ({end.reason}); this client offers "
                f"{', '.join(protocols)}: connect to a server that speaks one of them",
            )
    if code == QuicErrorCode.CONNECTION_REFUSED and end.remote:
        return ConnectFailed(
            ConnectFault.REFUSED, f"{where}: the server takes no more connections; try later"
        )
    if code == QuicErrorCode.INTERNAL_ERROR and not end.remote and "dle timeout" in end.reason:
        return ConnectFailed(ConnectFault.TIMEOUT, f"{where}: the server fell silent")
    return ConnectFailed(ConnectFault.PROTOCOL, f"{where}: the handshake failed: {end.reason}")


def alert_name(code: int) -> str:
    """For a QUIC error that is a TLS alert: a comma and its name (RFC 9001 §4.8); else nothing."""
    alert = code & 0xFF
    if code & ~0xFF != QuicErrorCode.CRYPTO_ERROR or alert not in set(AlertDescription):
        return ""
    return f", {AlertDescription(alert).name}"


def certificate_advice(code: int) -> str:
    """What a client can do when the server ends the session with this QUIC error."""
    if code & ~0xFF != QuicErrorCode.CRYPTO_ERROR or code & 0xFF not in _CLIENT_ALERTS:
        return ""
    return "; give a client certificate of a CA that the server trusts (ClientTls.certificate)"


def _configuration(options: QuicOptions, *, is_client: bool) -> QuicConfiguration:
    if not options.protocols:
        raise ValueError("QuicOptions.protocols is empty: name the ALPN protocols to speak")
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=list(options.protocols),
        cipher_suites=list(CIPHERS),
        congestion_control_algorithm=congestion.NAME,
        idle_timeout=options.idle_timeout,
        max_data=options.max_data,
        max_stream_data=options.max_stream_data,
        max_datagram_frame_size=options.max_datagram_frame_size,
    )
