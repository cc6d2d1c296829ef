"""Certificates of clients, good and bad, and handshakes in memory with real TLS."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from transport import _aioquic
from transport.authorities import ClientAuthorities
from transport.certificates import (
    KeyPair,
    make_authority,
    make_certificate,
    make_client_certificate,
)

DAY = datetime.timedelta(days=1)
START = 100.0


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def issue(
    subject: str,
    above: KeyPair | None = None,
    *,
    ca: bool = True,
    days: float = 10,
    usage: x509.KeyUsage | None = None,
    key: Any = None,
) -> KeyPair:
    """A certificate as others make them; without ``above`` it is self-signed."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    signer = key if above is None else above.private_key
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(subject) if above is None else above.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + days * DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if ca:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
    else:
        clients = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(clients, critical=False)
    if usage is not None:
        builder = builder.add_extension(usage, critical=True)
    return KeyPair(builder.sign(signer, hashes.SHA256()), key)


def signing(*, certificates: bool) -> x509.KeyUsage:
    """Of an authority that may, or may not, sign certificates."""
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class Site:
    """An authority, a server that asks for certificates of it, and clients of all kinds."""

    def __init__(self, folder: Path, *, required: bool = True) -> None:
        self.ca = make_authority("ca of clients")
        self.server = make_certificate(self.ca, ["localhost"])
        self.file = folder / "clients-ca.pem"
        self.file.write_bytes(self.ca.certificate_pem())
        #: Seconds by which the wall clock of the server is ahead.
        self.ahead = 0.0
        self.required = required
        self.authorities = self.read()

    def read(self, **more: Any) -> ClientAuthorities:
        return ClientAuthorities([self.file], required=self.required, wall=self.wall, **more)

    def wall(self) -> float:
        return datetime.datetime.now(datetime.UTC).timestamp() + self.ahead

    def client(self, subject: str = "site-a", **more: Any) -> KeyPair:
        return make_client_certificate(self.ca, subject, **more)

    def meet(
        self, pair: KeyPair | None, *above: x509.Certificate, **more: Any
    ) -> tuple[_aioquic.Connection, _aioquic.AskingConnection, list[events.QuicEvent]]:
        """A handshake; the client sends a stream at once when its side is done."""
        asked = QuicConfiguration(
            alpn_protocols=["x"], server_name="localhost", cadata=self.ca.certificate_pem(), **more
        )
        if pair is not None:
            asked.certificate, asked.private_key = pair.certificate, pair.private_key
            asked.certificate_chain = list(above)
        client = _aioquic.Connection(configuration=asked)
        server = self.accept(client)
        return client, server, join(client, server)

    def accept(self, client: _aioquic.Connection) -> _aioquic.AskingConnection:
        own = QuicConfiguration(is_client=False, alpn_protocols=["x"])
        own.certificate, own.private_key = self.server.certificate, self.server.private_key
        return _aioquic.AskingConnection(
            admit=self.authorities.admit,
            configuration=own,
            original_destination_connection_id=client.original_destination_connection_id,
        )


def join(client: Any, server: Any, rounds: int = 8, early: bytes = b"") -> list[events.QuicEvent]:
    """Let them talk; what the server has heard. The client sends at once when its side is done."""
    client.connect(("server", 1), START)
    if early:
        client.send_stream_data(0, early, True)
    heard: list[events.QuicEvent] = []
    sent = False
    now = START
    for _ in range(rounds):
        now += 0.002
        while (event := client.next_event()) is not None:
            if isinstance(event, events.HandshakeCompleted) and not sent:
                sent = True
                stream = client.get_next_available_stream_id()
                client.send_stream_data(stream, b"application data", True)
        for source, target, address in ((client, server, "client"), (server, client, "server")):
            for data, _ in source.datagrams_to_send(now):
                target.receive_datagram(data, (address, 1), now)
        while (event := server.next_event()) is not None:
            heard.append(event)
    return heard
