"""Loops, certificates and a server that keeps what it hears."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine

import pytest
import uvloop
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from transport import _aioquic
from transport.certificates import CertificatePaths, write_test_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> CertificatePaths:
    return write_test_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request) -> Callable[[Coroutine], object]:
    """Run a coroutine on plain asyncio and on uvloop; nothing may be left to the collector."""

    def runner(coroutine: Coroutine) -> object:
        with asyncio.Runner(loop_factory=request.param, debug=True) as loop:
            result = loop.run(coroutine)
        gc.collect()
        return result

    return runner


@pytest.fixture
def joined(certificates):
    """A client and a server connection with the handshake done, and a way to run them."""
    client = QuicConnection(
        configuration=QuicConfiguration(
            alpn_protocols=["x"],
            cadata=certificates.ca.read_bytes(),
            server_name="localhost",
            max_datagram_frame_size=1000,
        )
    )
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["x"], max_datagram_frame_size=2000, max_stream_data=5000
    )
    configuration.load_cert_chain(certificates.certificate, certificates.private_key)
    server = QuicConnection(
        configuration=configuration,
        original_destination_connection_id=client.original_destination_connection_id,
    )
    _aioquic.set_stream_limits(server, bidi=5, uni=7)
    client.connect(("server", 1), 100.0)

    clock = 100.0

    def exchange(rounds: int = 6) -> list[events.QuicEvent]:
        nonlocal clock
        seen = []
        for _ in range(rounds):
            clock += 0.002
            for source, target, name in ((client, server, "client"), (server, client, "server")):
                for data, _address in source.datagrams_to_send(clock):
                    target.receive_datagram(data, (name, 1), clock)
            for side in (client, server):
                while (event := side.next_event()) is not None:
                    seen.append(event)
        return seen

    exchange()
    return client, server, exchange
