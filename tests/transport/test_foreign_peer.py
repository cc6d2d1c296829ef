"""Against aioquic's own asyncio server and client: peers that do what ours would not."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager

import pytest
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio import connect as stock_connect
from aioquic.asyncio import serve as stock_serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StopSendingReceived, StreamDataReceived

from tests.transport.sinks import MOQT, ORDER, Echo, Sink, until
from tests.transport.test_endpoint import server
from transport.config import ClientTls
from transport.endpoint import connect
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


class Stock(QuicConnectionProtocol):
    """A client that keeps its events."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.events = []

    def quic_event_received(self, event) -> None:
        self.events.append(event)

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]


class StockEcho(Stock):
    def quic_event_received(self, event) -> None:
        super().quic_event_received(event)
        if isinstance(event, StreamDataReceived):
            self._quic.send_stream_data(event.stream_id, event.data, event.end_stream)


@asynccontextmanager
async def stock_client(port: int, protocols=("moqt-22",), **options):
    configuration = QuicConfiguration(
        alpn_protocols=list(protocols) if protocols else None,
        verify_mode=ssl.CERT_NONE,
        **options,
    )
    async with stock_connect(
        "127.0.0.1",
        port,
        configuration=configuration,
        create_protocol=Stock,
        wait_connected=False,
    ) as protocol:
        protocol.transmit()
        yield protocol


def test_our_client_with_a_stock_server_without_datagrams(run, certificates):
    async def scenario() -> None:
        configuration = QuicConfiguration(is_client=False, alpn_protocols=["moqt-22"])
        configuration.load_cert_chain(certificates.certificate, certificates.private_key)
        stock = await stock_serve(
            "127.0.0.1", 0, configuration=configuration, create_protocol=StockEcho
        )
        port = stock._transport.get_extra_info("sockname")[1]
        sink = Sink()
        session = await connect(
            MoqtUrl.parse(f"moqt://127.0.0.1:{port}"),
            lambda _session: sink,
            tls=ClientTls(ca_file=certificates.ca),
            options=MOQT,
        )
        assert session.peer.datagram_size == 0
        assert not session.send_datagram(b"x")
        stream = session.open(ORDER, unidirectional=False)
        session.write(stream, bytes(300_000))
        session.finish(stream)
        await until(lambda: sink.ended)
        assert bytes(sink.data[stream]) == bytes(300_000)
        session.close(0)
        await until(lambda: sink.of("closed"))
        stock.close()

    run(scenario())


def test_a_stock_client_and_streams_in_any_order(run, certificates):
    async def scenario() -> None:
        async with (
            server(certificates, Echo) as (listener, sinks),
            stock_client(listener.port) as peer,
        ):
            await until(lambda: sinks)
            for stream in (8, 0, 4):
                peer._quic._local_next_stream_id_bidi = 0  # it would refuse lower ids
                peer._quic.send_stream_data(stream, b"%d" % stream, True)
                peer.transmit()
            await until(lambda: len(peer.of(StreamDataReceived)) == 3)
            echoes = {event.stream_id: event.data for event in peer.of(StreamDataReceived)}
            assert echoes == {0: b"0", 4: b"4", 8: b"8"}
            await until(lambda: sinks[0].session.streams == 0)

    run(scenario())


def test_resets_before_any_data_and_after_a_stop(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks), stock_client(listener.port) as peer:
            await until(lambda: sinks)
            (sink,) = sinks
            peer._quic.reset_stream(2, 5)
            peer._quic.send_stream_data(0, b"x")
            peer.transmit()
            await until(lambda: sink.of("reset") and sink.data)
            assert sink.of("opened") == [("opened", 0, True), ("opened", 1, False)]
            assert sink.of("reset") == [("reset", 0, 5)]
            sink.session.stop(1, 6)
            await until(lambda: peer.of(StopSendingReceived))
            assert peer.of(StopSendingReceived)[0].error_code == 6
            sink.session.finish(1)
            await until(lambda: sink.session.streams == 0)
            assert len(sink.of("reset")) == 1, "nothing is reported after stop"

    run(scenario())


def test_data_after_stop_is_swallowed(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks), stock_client(listener.port) as peer:
            await until(lambda: sinks)
            (sink,) = sinks
            peer._quic.send_stream_data(2, b"before")
            peer.transmit()
            await until(lambda: sink.data)
            sink.session.stop(0, 1)
            peer._quic.send_stream_data(2, b" and after")
            peer._quic.send_stream_data(6, b"other", True)
            peer.transmit()
            await until(lambda: sink.ended)
            await until(lambda: sink.session.streams == 0)
            assert bytes(sink.data[0]) == b"before"

    run(scenario())


def test_quic_violations_end_the_session_with_minus_one(run, certificates):
    async def scenario() -> None:
        async with (
            server(certificates, max_streams_uni=3) as (listener, sinks),
            stock_client(listener.port) as peer,
        ):
            await until(lambda: sinks)
            peer._quic._remote_max_streams_uni = 100
            peer._quic.send_stream_data(2 + 4 * 3, b"one too many")
            peer.transmit()
            await until(lambda: sinks[0].of("closed"))
            (closed,) = sinks[0].of("closed")
            assert closed[1] == -1
            assert "Too many streams open" in closed[2]
            await until(lambda: peer.of(ConnectionTerminated))
            assert peer.of(ConnectionTerminated)[0].error_code == 4

    run(scenario())


@pytest.mark.parametrize("protocols", [None, ("h3",)])
def test_clients_without_our_protocol_are_refused(run, certificates, protocols):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            async with stock_client(listener.port, protocols) as peer:
                await until(lambda: peer.of(ConnectionTerminated))
                assert peer.of(ConnectionTerminated)[0].error_code == 0x100 + 120
            await until(lambda: listener.entries == 0)
            assert not sinks

    run(scenario())


def test_a_client_that_changes_its_connection_id_and_address(run, certificates):
    async def scenario() -> None:
        async with (
            server(certificates, Echo) as (listener, sinks),
            stock_client(listener.port) as peer,
        ):
            await until(lambda: sinks)
            before = listener.entries
            for stream in range(0, 40, 4):
                peer.change_connection_id()
                peer._quic.send_stream_data(stream, b"x", True)
                peer.transmit()
                count = stream // 4 + 1
                await until(lambda count=count: len(peer.of(StreamDataReceived)) == count)
            assert listener.entries <= before + 8, "retired ids are forgotten"

    run(scenario())
