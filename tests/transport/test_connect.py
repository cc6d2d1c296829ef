"""Connections that must not come up, and servers that must not mind."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import socket

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from tests.transport.relay import Relay
from tests.transport.sinks import MOQT, ORDER, Echo, Sink, until
from tests.transport.test_endpoint import client, server
from transport import endpoint
from transport.api import SendOrder, Tier
from transport.certificates import make_authority, make_certificate, write_test_certificates
from transport.config import ClientTls, QuicOptions, ServerTls
from transport.endpoint import connect, serve
from transport.errors import ConnectFailed, ConnectFault, TransportError
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


def never(session) -> Sink:
    raise AssertionError("no session must come of this")


async def failing(port: int, *, host: str = "127.0.0.1", tls=None, **options) -> ConnectFailed:
    with pytest.raises(ConnectFailed) as caught:
        await connect(
            MoqtUrl.parse(f"moqt://{host}:{port}/kv"),
            never,
            tls=tls or ClientTls(verify=False),
            options=QuicOptions(**{"protocols": ("moqt-22",), **options}),
        )
    return caught.value


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_certificates_that_are_not_accepted(run, certificates, tmp_path):
    async def scenario() -> None:
        other = write_test_certificates(tmp_path / "other")
        async with server(certificates) as (listener, sinks):
            for tls, words in (
                (ClientTls(), "ca_file"),
                (ClientTls(ca_file=other.ca), "ca_file"),
                (ClientTls(ca_file=certificates.ca, server_name="example.org"), "example.org"),
            ):
                error = await failing(listener.port, tls=tls)
                assert error.fault is ConnectFault.CERTIFICATE
                assert words in str(error)
                assert f"moqt://127.0.0.1:{listener.port}/kv" in str(error)
            await until(lambda: listener.entries == 0)
            assert not sinks
            session, _sink = await client(certificates, listener)
            session.close(0)

    run(scenario())


def test_an_expired_certificate(run, tmp_path):
    async def scenario() -> None:
        authority = make_authority()
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
        pair = make_certificate(authority, ["127.0.0.1"], now=past)
        for name, pem in (
            ("ca", authority.certificate_pem()),
            ("cert", pair.certificate_pem()),
            ("key", pair.private_key_pem()),
        ):
            (tmp_path / name).write_bytes(pem)
        tls = ServerTls(certificate=tmp_path / "cert", private_key=tmp_path / "key")
        listener = await serve("127.0.0.1", 0, never, tls=tls, options=MOQT)
        error = await failing(listener.port, tls=ClientTls(ca_file=tmp_path / "ca"))
        assert error.fault is ConnectFault.CERTIFICATE
        assert "no longer valid" in str(error)
        await listener.close()

    run(scenario())


def test_a_ca_file_that_cannot_be_used(run, tmp_path):
    async def scenario() -> None:
        (tmp_path / "text").write_text("no certificate")
        for name in ("missing", "text"):
            error = await failing(1, tls=ClientTls(ca_file=tmp_path / name))
            assert error.fault is ConnectFault.CERTIFICATE
            assert str(tmp_path / name) in str(error)

    run(scenario())


def test_no_protocol_in_common(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            for protocols in (("moqt-99",), ("h3", "hq-interop")):
                error = await failing(listener.port, protocols=protocols)
                assert error.fault is ConnectFault.PROTOCOL
                assert protocols[0] in str(error)
            await until(lambda: listener.entries == 0)
            session, _sink = await client(certificates, listener, protocols=("x", "moqt-22"))
            assert session.peer.protocol == "moqt-22"
            await until(lambda: len(sinks) == 1)
            session.close(0)

    run(scenario())


def test_nobody_there(run):
    async def scenario() -> None:
        error = await failing(free_port())
        assert error.fault is ConnectFault.UNREACHABLE
        assert "refused" in str(error)
        error = await failing(443, host="no-such-host.invalid")
        assert error.fault is ConnectFault.UNREACHABLE
        assert "no-such-host.invalid" in str(error)

    run(scenario())


def test_silence(run):
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
            mute.bind(("127.0.0.1", 0))
            error = await failing(mute.getsockname()[1], connect_timeout=0.3)
        assert error.fault is ConnectFault.TIMEOUT
        assert "firewall" in str(error)

    run(scenario())


def test_a_cancelled_connect_leaves_nothing(run):
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
            mute.bind(("127.0.0.1", 0))
            attempt = asyncio.ensure_future(failing(mute.getsockname()[1]))
            await asyncio.sleep(0.01)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt

    run(scenario())


def test_a_factory_that_raises_on_the_client(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            with pytest.raises(AssertionError, match="no session"):
                await connect(
                    MoqtUrl.parse(f"moqt://127.0.0.1:{listener.port}"),
                    never,
                    tls=ClientTls(ca_file=certificates.ca),
                    options=MOQT,
                )
            await until(lambda: listener.entries == 0)
            assert not [sink for sink in sinks if not sink.of("closed")]

    run(scenario())


def test_a_server_that_is_full_says_so(run, certificates):
    async def scenario() -> None:
        async with server(certificates, max_connections=1) as (listener, sinks):
            session, _sink = await client(certificates, listener)
            error = await failing(listener.port, tls=ClientTls(ca_file=certificates.ca))
            assert error.fault is ConnectFault.REFUSED
            session.close(0)
            await until(lambda: listener.entries == 0)
            session, _sink = await client(certificates, listener)
            session.close(0)
            await until(lambda: len(sinks) == 2)

    run(scenario())


def test_under_load_a_client_proves_its_address(run, certificates):
    async def scenario() -> None:
        async with server(certificates, Echo, retry_from=0) as (listener, _sinks):
            session, sink = await client(certificates, listener)
            stream = session.open(ORDER, unidirectional=False)
            session.write(stream, b"x")
            session.finish(stream)
            await until(lambda: sink.ended)
            session.close(0)

    run(scenario())


def first_flight() -> bytes:
    quic = QuicConnection(
        configuration=QuicConfiguration(alpn_protocols=["moqt-22"], server_name="localhost")
    )
    quic.connect(("127.0.0.1", 1), 0.0)
    return quic.datagrams_to_send(0.0)[0][0]


def test_half_open_connections_end_and_are_capped(run, certificates):
    async def scenario() -> None:
        limits = {"connect_timeout": 0.3, "max_half_open": 3}
        async with server(certificates, **limits) as (listener, _sinks):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
                for _ in range(10):
                    raw.sendto(first_flight(), ("127.0.0.1", listener.port))
                await until(lambda: listener.entries)
                await asyncio.sleep(0.05)
                assert listener.entries <= 3 * (1 + 1 + 2)
                await until(lambda: listener.entries == 0)
            session, _sink = await client(certificates, listener)
            session.close(0)

    run(scenario())


def test_garbage_and_version_probes(run, certificates):
    async def scenario() -> None:
        async with server(certificates, Echo) as (listener, _sinks):
            session, sink = await client(certificates, listener)
            random_octets = random.Random(5)
            flight = first_flight()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
                raw.connect(("127.0.0.1", listener.port))
                raw.setblocking(False)
                loop = asyncio.get_running_loop()
                for size in (0, 1, 20, 30, 1200, 1500):
                    for _ in range(10):
                        raw.send(random_octets.randbytes(size))
                for size in range(0, len(flight), 50):
                    raw.send(flight[:size])
                    raw.send(flight[:size] + random_octets.randbytes(len(flight) - size))
                probe = bytes([0xC0]) + bytes.fromhex("1a2a3a4a") + bytes([8]) + bytes(8)
                probe += bytes([8]) + b"\x07" * 8
                raw.send(probe)
                raw.send(probe + bytes(1200))
                while True:
                    answer = await loop.sock_recv(raw, 2000)
                    if answer[1:5] == bytes(4):
                        break
                assert answer[5:23] == bytes([8]) + b"\x07" * 8 + bytes([8]) + bytes(8)
                assert bytes.fromhex("00000001") in answer[23:]
            stream = session.open(ORDER, unidirectional=False)
            session.write(stream, b"alive")
            session.finish(stream)
            await until(lambda: sink.ended)
            session.close(0)

    run(scenario())


def test_a_peer_that_takes_only_small_datagrams(run, certificates, monkeypatch):
    monkeypatch.setattr(endpoint, "LARGE_FLIGHT_TIMEOUT", 0.2)

    async def scenario() -> None:
        async with server(certificates, Echo) as (listener, sinks):
            relay = await Relay.open(
                ("127.0.0.1", listener.port), lambda data, _to_server: len(data) > 1500
            )
            session, sink = await client(certificates, relay)
            stream = session.open(ORDER, unidirectional=False)
            session.write(stream, bytes(100_000))
            session.finish(stream)
            await until(lambda: sink.ended)
            assert session.peer.datagram_size < 1200
            assert sinks[0].session.peer.datagram_size < 1200
            session.close(0)
            await until(lambda: sink.of("closed"))
            relay.transport.close()

    run(scenario())


def test_loss_changes_nothing_but_time(run, certificates):
    async def scenario() -> None:
        async with server(certificates, Echo) as (listener, _sinks):
            dice = random.Random(11)
            relay = await Relay.open(
                ("127.0.0.1", listener.port), lambda _data, _to_server: dice.random() < 0.1
            )
            session, sink = await client(certificates, relay)
            data = os.urandom(200_000)
            for flow in range(4):
                order = ORDER._replace(flow=flow)
                stream = session.open(order, unidirectional=False)
                session.write(stream, data)
                session.finish(stream)
            await until(lambda: len(sink.ended) == 4)
            assert set(map(bytes, sink.data.values())) == {data}
            session.close(0)
            await until(lambda: sink.of("closed"))
            relay.transport.close()

    run(scenario())


def test_a_lost_close_is_repeated(run, certificates):
    async def scenario() -> None:
        async with server(certificates, Echo) as (listener, sinks):
            deaf, missed = False, 0

            def drop(_data: bytes, to_server: bool) -> bool:
                nonlocal missed
                missed += to_server and deaf
                return to_server and deaf

            relay = await Relay.open(("127.0.0.1", listener.port), drop)
            session, _sink = await client(certificates, relay, peer_timeout=None)
            await until(lambda: sinks and session.unacknowledged() == 0)
            deaf = True
            session.close(7, "lost at first")
            await until(lambda: missed)
            assert not sinks[0].of("closed")
            deaf = False
            far = sinks[0].session
            while not sinks[0].of("closed"):
                far.send_datagram(b"are you there?")
                await asyncio.sleep(0.01)
            assert sinks[0].of("closed") == [("closed", 7, "lost at first", True)]
            relay.transport.close()

    run(scenario())


def test_a_client_that_vanishes_is_noticed(run, certificates):
    async def scenario() -> None:
        async with server(certificates, idle_timeout=0.3) as (listener, sinks):
            session, _sink = await client(certificates, listener)
            await until(lambda: sinks)
            session._channel.close()  # its port now answers with ICMP errors
            stream = sinks[0].session.open(SendOrder(Tier.CONTROL), unidirectional=True)
            sinks[0].session.write(stream, bytes(50_000))
            await until(lambda: sinks[0].of("closed"))
            assert sinks[0].of("closed")[0][1] == -1
            session.close(0)
            assert listener.entries == 0

    run(scenario())


def test_listening_where_one_cannot(run, certificates, tmp_path):
    good = ServerTls(certificate=certificates.certificate, private_key=certificates.private_key)
    other = write_test_certificates(tmp_path)
    (tmp_path / "text").write_text("nothing")

    async def scenario() -> None:
        listener = await serve("127.0.0.1", 0, never, tls=good, options=MOQT)
        with pytest.raises(TransportError, match=f"port {listener.port} .*choose another"):
            await serve("127.0.0.1", listener.port, never, tls=good, options=MOQT)
        await listener.close()
        await listener.close()
        for certificate, key, words in (
            (tmp_path / "missing", good.private_key, "missing"),
            (tmp_path / "text", good.private_key, "text"),
            (good.certificate, tmp_path / "text", "text"),
            (good.certificate, other.private_key, "is not the key"),
        ):
            tls = ServerTls(certificate=certificate, private_key=key)
            with pytest.raises(TransportError, match=words):
                await serve("127.0.0.1", 0, never, tls=tls, options=MOQT)

    run(scenario())


def test_listening_everywhere_takes_both_families(run, certificates):
    async def scenario() -> None:
        tls = ServerTls(certificate=certificates.certificate, private_key=certificates.private_key)
        listener = await serve("", 0, Echo, tls=tls, options=MOQT)
        session = await connect(
            MoqtUrl.parse(f"moqt://localhost:{listener.port}/"),
            Sink,
            tls=ClientTls(ca_file=certificates.ca),
            options=MOQT,
        )
        session.close(0)
        session = await connect(
            MoqtUrl.parse(f"moqt://127.0.0.1:{listener.port}/"),
            Sink,
            tls=ClientTls(ca_file=certificates.ca),
            options=MOQT,
        )
        session.close(0)
        await listener.close()

    run(scenario())
