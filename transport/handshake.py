"""What both ends bring to the handshake, and what its failures mean."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription, CipherSuite
from cryptography.exceptions import UnsupportedAlgorithm
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


def client_configuration(url: MoqtUrl, tls: ClientTls, options: QuicOptions) -> QuicConfiguration:
    """ConnectFailed(CERTIFICATE) when the CA file cannot be used."""
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
    return configuration


def server_configuration(tls: ServerTls, options: QuicOptions) -> QuicConfiguration:
    """TransportError when the files cannot be read or do not belong together."""
    configuration = _configuration(options, is_client=False)
    try:
        _certificates(tls.certificate, "certificate")
        _check_key(tls.private_key)
        configuration.load_cert_chain(tls.certificate, tls.private_key)
    except _Unusable as error:
        raise TransportError(
            f"{error}; give a PEM certificate and its unencrypted PEM key"
        ) from None
    except (OSError, ValueError, IndexError):
        raise TransportError(
            f"the certificate file {tls.certificate} and the key file {tls.private_key} cannot be"
            " used; give a PEM certificate and its unencrypted PEM key"
        ) from None
    public, private = configuration.certificate.public_key(), configuration.private_key.public_key()
    der = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*der) != private.public_bytes(*der):
        raise TransportError(
            f"the key {tls.private_key} is not the key of the certificate {tls.certificate}; "
            "give the pair that was made together"
        )
    return configuration


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
        if alert in _CERTIFICATE_ALERTS:
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
