"""Every private name of aioquic that we use, held against the installed version.

When one of these fails, aioquic has changed: mend ``transport/_aioquic.py`` and nothing else.
"""

from __future__ import annotations

import ast
from pathlib import Path

import aioquic
import pytest
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import Epoch

import transport
from tests.transport.client_chains import join
from transport import _aioquic
from transport.certificates import KeyPair, make_authority, make_client_certificate
from transport.errors import CertificateRefused

NOW = 100.0


def test_version():
    assert aioquic.__version__.startswith("1.7."), "the names below were checked with 1.7.2"


def test_what_a_stream_has_inside(joined):
    client, server, exchange = joined
    stream_id = client.get_next_available_stream_id(is_unidirectional=True)
    assert _aioquic.stream_of(client, stream_id) is None
    _aioquic.send(client, stream_id, memoryview(b"abcdef")[1:], False)
    stream = _aioquic.stream_of(client, stream_id)
    assert _aioquic.never_sent(stream) == 5
    assert _aioquic.unacknowledged(client) == 5
    assert _aioquic.stream_credit(stream) == 5000 - 5
    assert _aioquic.streams_alive(client) == 1
    seen = exchange()
    (event,) = [event for event in seen if isinstance(event, events.StreamDataReceived)]
    assert event.data == b"bcdef"
    assert _aioquic.never_sent(stream) == 0
    assert _aioquic.unacknowledged(client) == 0
    _aioquic.send(client, stream_id, b"", True)
    exchange()
    assert _aioquic.streams_alive(client) == _aioquic.streams_alive(server) == 0


def test_a_reset_stream_has_nothing_to_send(joined):
    client, _server, exchange = joined
    stream_id = client.get_next_available_stream_id()
    _aioquic.send(client, stream_id, bytes(4000), False)
    stream = _aioquic.stream_of(client, stream_id)
    client.reset_stream(stream_id, 1)
    assert _aioquic.never_sent(stream) == 0
    assert _aioquic.unacknowledged(client) == 0
    exchange()


def test_credit_and_slots(joined):
    client, server, exchange = joined
    assert _aioquic.initial_credit(client, unidirectional=True) == 5000
    assert _aioquic.initial_credit(client, unidirectional=False) == 5000
    assert _aioquic.initial_credit(server, unidirectional=False) == 1048576
    assert _aioquic.stream_slots(client, unidirectional=False) == 5
    assert _aioquic.stream_slots(client, unidirectional=True) == 7
    before = _aioquic.connection_credit(client)
    assert before == 1048576
    _aioquic.send(client, 2, bytes(100), False)
    exchange()
    assert _aioquic.connection_credit(client) == before - 100
    assert _aioquic.stream_slots(client, unidirectional=True) == 6


def test_the_path(joined):
    client, server, exchange = joined
    assert _aioquic.rate(client) > 0
    assert _aioquic.may_send(client)
    assert _aioquic.unanswered_probes(client) == 0
    assert 0 < _aioquic.probe_timeout(client) < 1
    assert _aioquic.peer_udp_payload(client) == 65527
    assert _aioquic.datagram_payload(client) == 1200 - _aioquic.DATAGRAM_OVERHEAD
    assert _aioquic.datagram_payload(server) == 1000 - _aioquic.DATAGRAM_FRAME_HEAD
    assert _aioquic.datagram_size(client) == 1200
    _aioquic.set_datagram_size(client, 5000)
    client.send_datagram_frame(bytes(1900))
    client.send_datagram_frame(b"small")
    assert _aioquic.datagrams_waiting(client) == 2
    _aioquic.set_datagram_size(client, 1200)
    assert _aioquic.datagrams_waiting(client) == 1
    seen = exchange()
    assert [e.data for e in seen if isinstance(e, events.DatagramFrameReceived)] == [b"small"]


def test_a_probe_goes_out_though_the_window_is_full(joined):
    client, server, _exchange = joined
    _aioquic.send(client, 2, bytes(5000), False)
    client._loss._cc.congestion_window = 0
    assert client.datagrams_to_send(NOW + 1) == []
    _aioquic.probe(client)
    ((data, _address),) = client.datagrams_to_send(NOW + 1)
    server.receive_datagram(data, ("client", 1), NOW + 1)
    assert server.datagrams_to_send(NOW + 2), "it asks for an acknowledgement"


def test_full_datagram_payloads_fit(joined):
    client, server, exchange = joined
    for side in (client, server):
        payload = bytes(_aioquic.datagram_payload(side))
        side.send_datagram_frame(payload)
        seen = exchange()
        assert [e.data for e in seen if isinstance(e, events.DatagramFrameReceived)] == [payload]


def test_a_peer_without_datagrams(joined):
    client, _server, _exchange = joined
    client._remote_max_datagram_frame_size = None
    assert _aioquic.datagram_payload(client) == 0


def test_before_the_first_round_trip():
    quic = QuicConnection(configuration=QuicConfiguration())
    assert _aioquic.rate(quic) is None
    assert _aioquic.close_event(quic) is None
    assert _aioquic.stream_slots(quic, unidirectional=True) == 0


def test_the_end_is_known_at_once(joined):
    client, server, exchange = joined
    client.close(error_code=7, reason_phrase="why")
    assert _aioquic.close_event(client).error_code == 7
    exchange(1)
    event = _aioquic.close_event(server)
    assert (event.error_code, event.frame_type, event.reason_phrase) == (7, None, "why")
    assert _aioquic.closed_by_peer(server)
    assert not _aioquic.closed_by_peer(client)


def test_headers_and_refusal():
    client = QuicConnection(
        configuration=QuicConfiguration(alpn_protocols=["x"], server_name="localhost")
    )
    client.connect(("server", 1), NOW)
    ((flight, _address),) = client.datagrams_to_send(NOW)
    header = _aioquic.read_header(flight, 8)
    assert header.destination_cid == client.original_destination_connection_id
    assert _aioquic.read_header(flight[:5], 8) is None
    client.receive_datagram(_aioquic.refusal(header), ("server", 1), NOW)
    event = _aioquic.close_event(client)
    assert event.error_code == QuicErrorCode.CONNECTION_REFUSED
    assert _aioquic.closed_by_peer(client)


def met(certificates, pair: KeyPair | None, admit) -> tuple[object, _aioquic.AskingConnection]:
    """A client, and a server that asks for its certificate."""
    asked = QuicConfiguration(
        alpn_protocols=["x"], server_name="localhost", cadata=certificates.ca.read_bytes()
    )
    if pair is not None:
        asked.certificate, asked.private_key = pair.certificate, pair.private_key
    client = _aioquic.Connection(configuration=asked)
    own = QuicConfiguration(is_client=False, alpn_protocols=["x"])
    own.load_cert_chain(certificates.certificate, certificates.private_key)
    server = _aioquic.AskingConnection(
        admit=admit,
        configuration=own,
        original_destination_connection_id=client.original_destination_connection_id,
    )
    join(client, server)
    return client, server


@pytest.mark.parametrize("given", [True, False])
def test_a_client_is_asked_for_its_certificate(certificates, given):
    """The private names work, and what ``admit`` gives is what the connection shows."""
    pair = make_client_certificate(make_authority(), "c") if given else None
    seen = []
    result = object()

    def admit(chain):
        seen.append(tuple(chain))
        return result

    client, server = met(certificates, pair, admit)
    assert seen == [(pair.certificate,) if given else ()]
    assert server.shown is result
    assert _aioquic.close_event(server) is _aioquic.close_event(client) is None


def test_nothing_is_read_before_a_client_is_admitted(certificates):
    """While ``admit`` runs there are no keys for what the client sends after its handshake."""

    def admit(chain):
        assert not server_of[0]._cryptos[Epoch.ONE_RTT].recv.is_valid()
        raise CertificateRefused(116, "why")

    server_of: list[QuicConnection] = []
    begin = _aioquic.AskingConnection._initialize

    def noted(self, peer_cid):
        server_of.append(self)
        begin(self, peer_cid)

    _aioquic.AskingConnection._initialize = noted
    try:
        client, server = met(certificates, None, admit)
    finally:
        _aioquic.AskingConnection._initialize = begin
    assert not server._cryptos[Epoch.ONE_RTT].recv.is_valid()
    for side in (server, client):
        event = _aioquic.close_event(side)
        assert (event.error_code, event.reason_phrase) == (0x174, "why")


@pytest.mark.parametrize("epoch", [Epoch.INITIAL, Epoch.ONE_RTT])
def test_a_handshake_message_without_end(certificates, epoch):
    """Of either side and at any time; aioquic alone would take 16 MiB, and copy it each time."""
    for hostile in (0, 1) if epoch is Epoch.ONE_RTT else (0,):
        client, server = fresh_pair(certificates)
        client.connect(("server", 1), NOW)
        if epoch is Epoch.ONE_RTT:
            talk(client, server)
        sender, victim = (client, server) if hostile == 0 else (server, client)
        message = b"\x01\xff\xff\xff" + bytes(2 * _aioquic.MAX_HANDSHAKE)
        sender._crypto_streams[epoch].sender.write(message)
        sender._loss._cc.congestion_window = 1 << 20  # all of it, whatever is answered
        for step in range(100):
            for data, _ in sender.datagrams_to_send(NOW + 1 + step / 100):
                victim.receive_datagram(data, (("client", "server")[hostile], 1), NOW + 1)
        event = _aioquic.close_event(victim)
        assert event.error_code == QuicErrorCode.CRYPTO_BUFFER_EXCEEDED
        assert "more than 65536 octets" in event.reason_phrase
        assert len(victim.tls._receive_buffer) <= _aioquic.MAX_HANDSHAKE


def fresh_pair(certificates):
    asked = QuicConfiguration(
        alpn_protocols=["x"], server_name="localhost", cadata=certificates.ca.read_bytes()
    )
    own = QuicConfiguration(is_client=False, alpn_protocols=["x"])
    own.load_cert_chain(certificates.certificate, certificates.private_key)
    client = _aioquic.Connection(configuration=asked)
    server = _aioquic.Connection(
        configuration=own,
        original_destination_connection_id=client.original_destination_connection_id,
    )
    return client, server


def talk(client, server, rounds: int = 8) -> None:
    now = NOW
    for _ in range(rounds):
        now += 0.01
        for source, target, address in ((client, server, "client"), (server, client, "server")):
            for data, _ in source.datagrams_to_send(now):
                target.receive_datagram(data, (address, 1), now)


def test_no_other_module_touches_private_names_of_aioquic():
    """Private attributes of ``quic`` or of streams appear in the quarantine alone."""
    for path in Path(transport.__file__).parent.glob("*.py"):
        if path.name == "_aioquic.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = node.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                assert name not in ("quic", "_quic", "connection", "configuration"), (
                    f"{path.name}:{node.lineno}: {name}.{node.attr}"
                )
