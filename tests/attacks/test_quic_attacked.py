"""Frames that make QUIC itself keep things: that aioquic has its caps is held here."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch

from transport import _aioquic
from transport.certificates import CertificatePaths, write_test_certificates

NOW = 100.0
#: Octets of frames in one packet.
ROOM = 1100


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificatePaths:
    return write_test_certificates(tmp_path_factory.mktemp("certificates"))


class Attacked:
    """A server, and a client that has shaken hands and from then on sends what it likes."""

    def __init__(self, certificates: CertificatePaths) -> None:
        shared = {"alpn_protocols": ["x"]}
        asked = QuicConfiguration(
            **shared, server_name="localhost", cadata=certificates.ca.read_bytes()
        )
        own = QuicConfiguration(**shared, is_client=False)
        own.load_cert_chain(certificates.certificate, certificates.private_key)
        self.client = _aioquic.Connection(configuration=asked)
        self.server = _aioquic.Connection(
            configuration=own,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.client.connect(("server", 1), NOW)
        for _ in range(4):
            self._carry(self.client, self.server, "client")
            self._carry(self.server, self.client, "server")

    @property
    def closed_with(self) -> int | None:
        event = _aioquic.close_event(self.server)
        return None if event is None else event.error_code

    def send(self, kind: QuicFrameType, bodies: Iterator[bytes]) -> int:
        """Frames of one kind, as many in a packet as fit, until the server closes; how many.

        It hears no acknowledgement of what it answers.
        """
        client, sent = self.client, 0
        for body in bodies:
            builder = QuicPacketBuilder(
                host_cid=client.host_cid,
                peer_cid=client._peer_cid.cid,
                version=client._version,
                is_client=True,
                max_datagram_size=1200,
                packet_number=client._packet_number,
            )
            builder.start_packet(QuicPacketType.ONE_RTT, client._cryptos[Epoch.ONE_RTT])
            builder.start_frame(kind, capacity=len(body) + 1).push_bytes(body)
            sent += 1
            left = ROOM - len(body)
            while left > len(body) + 1 and (more := next(bodies, None)) is not None:
                builder.start_frame(kind, capacity=len(more) + 1).push_bytes(more)
                sent += 1
                left -= len(more) + 1
            (data,), _ = builder.flush()
            client._packet_number = builder.packet_number
            self.server.receive_datagram(data, ("client", 1), NOW + 1)
            self.server.datagrams_to_send(NOW + 1)
            if self.closed_with is not None:
                break
        return sent

    @staticmethod
    def _carry(source: _aioquic.Connection, target: _aioquic.Connection, name: str) -> None:
        for data, _ in source.datagrams_to_send(NOW):
            target.receive_datagram(data, (name, 1), NOW)


def test_handshake_octets_with_holes(certificates: CertificatePaths) -> None:
    """CRYPTO frames that leave a gap each (aioquic 501): closed at 64 KiB."""
    attacked = Attacked(certificates)
    frames = (
        encode_uint_var(at) + encode_uint_var(0x200) + bytes(0x200)
        for at in range(0x1000, 2 << 20, 0x1000)
    )
    assert attacked.send(QuicFrameType.CRYPTO, frames) <= 17
    assert attacked.closed_with == QuicErrorCode.CRYPTO_BUFFER_EXCEEDED


def test_path_challenges_without_end(certificates: CertificatePaths) -> None:
    """Twenty thousand, and no acknowledgement (aioquic 544)."""
    attacked = Attacked(certificates)
    tracemalloc.start()
    try:
        frames = (number.to_bytes(8, "big") for number in range(20_000))
        assert attacked.send(QuicFrameType.PATH_CHALLENGE, frames) == 20_000
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5 << 20
    (path,) = attacked.server._network_paths[:1]
    assert len(path.remote_challenges) <= 32


def test_connection_ids_that_are_retired_at_once(certificates: CertificatePaths) -> None:
    """NEW_CONNECTION_ID with a rising retire_prior_to (CVE-2024-22189)."""
    attacked = Attacked(certificates)
    frames = (
        encode_uint_var(number)
        + encode_uint_var(number)
        + b"\x08"
        + number.to_bytes(8, "big")
        + number.to_bytes(16, "big")
        for number in range(8, 10_000)
    )
    attacked.server._loss._cc.congestion_window = 0  # its RETIRE_CONNECTION_IDs wait
    assert attacked.send(QuicFrameType.NEW_CONNECTION_ID, frames) < 500
    assert attacked.closed_with == QuicErrorCode.CONNECTION_ID_LIMIT_ERROR
