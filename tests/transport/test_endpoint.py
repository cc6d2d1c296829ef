"""Sessions over real sockets on loopback, on plain asyncio and on uvloop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.transport.sinks import ORDER, Echo, Sink, until
from transport import _aioquic
from transport.api import Chunk, SendOrder, Tier
from transport.config import ClientTls, QuicOptions, ServerTls
from transport.endpoint import connect, serve
from transport.errors import StreamAbort
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def server(certificates, make=Sink, **options):
    """A listener, and the sinks of its sessions."""
    sinks: list[Sink] = []

    def factory(session):
        sinks.append(make(session))
        return sinks[-1]

    listener = await serve(
        "127.0.0.1",
        0,
        factory,
        tls=ServerTls(certificate=certificates.certificate, private_key=certificates.private_key),
        options=QuicOptions(**{"protocols": ("moqt-22",), **options}),
    )
    try:
        yield listener, sinks
    finally:
        await listener.close()
        assert listener.entries == 0


async def client(certificates, listener, make=Sink, **options):
    sinks = []

    def factory(session):
        sinks.append(make(session))
        return sinks[-1]

    session = await connect(
        MoqtUrl.parse(f"moqt://127.0.0.1:{listener.port}/"),
        factory,
        tls=ClientTls(ca_file=certificates.ca),
        options=QuicOptions(**{"protocols": ("moqt-22",), **options}),
    )
    return session, sinks[0]


@pytest.mark.parametrize("options", [{}, {"max_datagram_size": 1200}], ids=["large", "small"])
def test_echo_on_both_kinds_of_streams(run, certificates, options):
    async def scenario() -> None:
        async with server(certificates, Echo, **options) as (listener, sinks):
            session, sink = await client(certificates, listener, **options)
            assert session.is_client
            assert session.peer.protocol == "moqt-22"
            assert sink.events == [("connected",)]
            sent = {}
            for size in (0, 1, 1199, 65_536, 1_000_000):
                for unidirectional in (False, True):
                    stream = session.open(ORDER, unidirectional=unidirectional)
                    data = bytes(size // 7 * [1, 2, 3, 4, 5, 6, 7])
                    session.write(stream, data[:100], memoryview(data)[100:])
                    session.finish(stream)
                    sent[stream] = data
            await until(lambda: len(sink.ended) == len(sent))
            assert sorted(map(bytes, sink.data.values())) == sorted(sent.values())
            assert {event[1] for event in sink.of("sent")} == set(sent)
            (other,) = sinks
            await until(lambda: session.unacknowledged() == 0)
            assert session.streams == other.session.streams == 0
            assert session.unsent() == 0
            session.close(0)

    run(scenario())


def test_a_thousand_streams_leave_nothing(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            session, _sink = await client(certificates, listener)
            for number in range(1000):
                order = SendOrder(Tier.OBJECT, 128, 128, number % 7, (number,))
                stream = session.open(order, unidirectional=True)
                session.write(stream, number.to_bytes(2), bytes(500))
                session.finish(stream)
            await until(lambda: sinks and len(sinks[0].ended) == 1000)
            numbers = {int.from_bytes(data[:2]) for data in sinks[0].data.values()}
            assert numbers == set(range(1000))
            await until(lambda: session.unacknowledged() == 0)
            assert session.streams == sinks[0].session.streams == 0
            for side in (session, sinks[0].session):
                side.send_datagram(b"x")  # the next packet discards what has finished
            await until(lambda: _aioquic.streams_alive(session._quic) == 0)
            await until(lambda: _aioquic.streams_alive(sinks[0].session._quic) == 0)
            session.close(0)

    run(scenario())


def test_resets_and_stops_in_both_directions(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            session, sink = await client(certificates, listener)
            streams = [session.open(ORDER, unidirectional=False) for _ in range(4)]
            for number, stream in enumerate(streams):
                session.write(stream, bytes([number]))
            await until(lambda: sinks and len(sinks[0].data) == 4)
            theirs = {data[0]: stream for stream, data in sinks[0].data.items()}
            far = sinks[0].session

            session.reset(streams[0], 10)
            session.reset(streams[0], 11)
            far.reset(theirs[1], (1 << 62) - 1)
            session.stop(streams[2], 12)
            far.stop(theirs[3], 13)
            await until(lambda: sink.of("reset") and sink.of("stop"))
            await until(lambda: sinks[0].of("reset") and sinks[0].of("stop"))
            assert sinks[0].of("reset") == [("reset", theirs[0], 10)]
            assert sink.of("reset") == [("reset", streams[1], (1 << 62) - 1)]
            assert sinks[0].of("stop") == [("stop", theirs[2], 12)]
            assert sink.of("stop") == [("stop", streams[3], 13)]

            for number, stream in enumerate(streams):
                session.write(stream, b"late")
                session.finish(stream)
                session.stop(stream, 1)
                far.stop(theirs[number], 1)
                far.reset(theirs[number], 1)
            session.stop(999, 1)
            session.reset(999, 1)
            await until(lambda: session.streams == far.streams == 0)
            session.close(0)

    run(scenario())


def test_a_stream_reset_before_its_first_octet_takes_no_id(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            session, _sink = await client(certificates, listener)
            never = session.open(ORDER, unidirectional=True)
            session.write(never, b"never")
            assert not session.started(never)
            session.reset(never, 1)
            stream = session.open(ORDER, unidirectional=True)
            session.write(stream, b"first")
            session.finish(stream)
            await until(lambda: sinks and sinks[0].ended)
            assert session.started(stream)
            assert [bytes(data) for data in sinks[0].data.values()] == [b"first"]
            assert session._quic.get_next_available_stream_id(is_unidirectional=True) == 6
            session.close(0)

    run(scenario())


def test_sources_and_stream_abort(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            session, _sink = await client(certificates, listener)

            def source(end):
                for number in range(100):
                    yield Chunk((b"head", bytes([number]) * 32768))
                    if number == 50:
                        yield None
                if end is not None:
                    raise end

            whole = session.open(ORDER, unidirectional=True)
            session.feed(whole, source(None))
            cut = session.open(ORDER._replace(flow=1), unidirectional=True)
            session.feed(cut, source(StreamAbort(5)))
            await until(lambda: sinks and len(sinks[0].data) == 2)
            await until(lambda: session.unacknowledged() == 0)
            session.wake(whole)
            session.wake(cut)
            await until(lambda: sinks[0].ended and sinks[0].of("reset"))
            assert sinks[0].of("reset")[0][2] == 5
            (ended,) = sinks[0].ended
            assert len(sinks[0].data[ended]) == 100 * (4 + 32768)
            session.close(0)

    run(scenario())


@pytest.mark.rule("M138")
def test_datagrams(run, certificates):
    async def scenario() -> None:
        async with server(certificates, Echo) as (listener, _sinks):
            session, sink = await client(certificates, listener)
            assert not session.send_datagram(bytes(session.peer.datagram_size + 1))
            assert session.send_datagram(bytes(session.peer.datagram_size))
            assert session.send_datagram(b"small")
            await until(lambda: len(sink.of("datagram")) == 2)
            assert sink.of("datagram")[1] == ("datagram", b"small")
            accepted = [session.send_datagram(bytes(1000)) for _ in range(1000)]
            assert not all(accepted), "what cannot leave soon is refused, not queued for ever"
            session.close(0)

    run(scenario())


@pytest.mark.parametrize("by_client", [True, False])
def test_close_codes(run, certificates, by_client):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            session, sink = await client(certificates, listener)
            await until(lambda: sinks)
            near, far = (session, sinks[0]) if by_client else (sinks[0].session, sink)
            own = sink if by_client else sinks[0]
            stream = near.open(ORDER, unidirectional=True)
            near.write(stream, bytes(5_000_000))
            near.close(0x3, "r\u00e9ason " * 500)
            near.close(0x4)
            assert not own.of("closed"), "no sink method runs inside a call"
            await until(lambda: sink.of("closed") and sinks[0].of("closed"))
            assert own.of("closed")[0][1::2] == (0x3, False)
            assert far.of("closed")[0][1::2] == (0x3, True)
            assert far.of("closed")[0][2].startswith("r\u00e9ason r\u00e9ason")
            for side in (session, sinks[0].session):
                late = side.open(ORDER, unidirectional=True)
                side.write(late, b"late")
                side.finish(late)
                side.close(9)
                assert not side.send_datagram(b"late")
                assert side.unacknowledged() == side.unsent() == side.streams == 0
            await until(lambda: listener.entries == 0)
            assert len(sink.of("closed")) == len(sinks[0].of("closed")) == 1

    run(scenario())


def test_connect_and_close_cycles_leave_no_entries(run, certificates):
    async def scenario() -> None:
        async with server(certificates, Echo) as (listener, sinks):
            for cycle in range(10):
                session, sink = await client(certificates, listener)
                assert len(listener.sessions) <= cycle + 1
                stream = session.open(ORDER, unidirectional=False)
                session.write(stream, b"ping")
                session.finish(stream)
                await until(lambda sink=sink: sink.ended)
                session.close(0)
            await until(lambda: listener.entries == 0)
            assert not listener.sessions
            assert len(sinks) == 10

    run(scenario())


def test_a_listener_tells_all_its_clients(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            clients = [await client(certificates, listener) for _ in range(3)]
            await until(lambda: len(listener.sessions) == 3)
            await listener.close(0x4, "over")
            assert listener.entries == 0
            await until(lambda: all(sink.of("closed") for _session, sink in clients))
            for _session, sink in clients:
                assert sink.of("closed") == [("closed", 0x4, "over", True)]
            assert all(sink.of("closed") == [("closed", 0x4, "over", False)] for sink in sinks)

    run(scenario())


@pytest.mark.rule("M130")
def test_unsent_octets_inside_quic_are_bounded(run, certificates):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            options = {"unsent_budget": 64 << 10, "piece": 16 << 10}
            session, _sink = await client(certificates, listener, **options)
            worst = 0
            written = _aioquic.send

            def watched(quic, stream_id, data, fin):
                nonlocal worst
                written(quic, stream_id, data, fin)
                inside = sum(map(_aioquic.never_sent, quic._streams.values()))
                worst = max(worst, inside)

            _aioquic.send = watched
            try:
                for flow in range(32):
                    stream = session.open(ORDER._replace(flow=flow), unidirectional=True)
                    session.write(stream, bytes(100_000))
                    session.finish(stream)
                await until(lambda: sinks and len(sinks[0].ended) == 32)
            finally:
                _aioquic.send = written
            assert 0 < worst <= (64 << 10) + (16 << 10)
            session.close(0)

    run(scenario())


def test_small_windows_and_few_stream_slots_only_slow_down(run, certificates):
    async def scenario() -> None:
        limits = {"max_stream_data": 3000, "max_data": 8000, "max_streams_uni": 2}
        async with server(certificates, **limits) as (listener, sinks):
            session, _sink = await client(certificates, listener)
            for flow in range(12):
                stream = session.open(ORDER._replace(flow=flow), unidirectional=True)
                session.write(stream, bytes([flow]) * 40_000)
                session.finish(stream)
            await until(lambda: sinks and len(sinks[0].ended) == 12)
            assert sorted(bytes(data) for data in sinks[0].data.values()) == [
                bytes([flow]) * 40_000 for flow in range(12)
            ]
            session.close(0)

    run(scenario())


class Breaking(Echo):
    """Raises when told a certain thing."""

    def stream_data(self, stream, data, fin):
        if bytes(data) == b"break":
            raise KeyError("a bug of the owner")
        super().stream_data(stream, data, fin)


def test_a_sink_that_raises_loses_its_session_alone(run, certificates, caplog):
    async def scenario() -> None:
        async with server(certificates, Breaking) as (listener, sinks):
            good, good_sink = await client(certificates, listener)
            bad, bad_sink = await client(certificates, listener)
            stream = bad.open(ORDER, unidirectional=False)
            bad.write(stream, b"break")
            await until(lambda: bad_sink.of("closed"))
            assert bad_sink.of("closed") == [("closed", 0x1, "internal error", True)]
            stream = good.open(ORDER, unidirectional=False)
            good.write(stream, b"fine")
            good.finish(stream)
            await until(lambda: good_sink.ended)
            (failed,) = [sink for sink in sinks if sink.of("closed")]
            assert failed.of("closed") == [("closed", 0x1, "internal error", False)]
            good.close(0)

    run(scenario())
    (record,) = [record for record in caplog.records if record.name == "transport.quic"]
    assert "a bug of the owner" in str(record.exc_info[1])


def test_a_source_that_raises_closes_the_session(run, certificates, caplog):
    async def scenario() -> None:
        async with server(certificates) as (listener, sinks):
            session, sink = await client(certificates, listener)

            def source():
                yield Chunk((b"x",))
                raise ZeroDivisionError

            session.feed(session.open(ORDER, unidirectional=True), source())
            await until(lambda: sink.of("closed") and sinks[0].of("closed"))
            assert sink.of("closed") == [("closed", 0x1, "internal error", False)]
            assert sinks[0].of("closed") == [("closed", 0x1, "internal error", True)]

    run(scenario())


def test_idle_sessions_live_by_pings_and_dead_ones_are_noticed(run, certificates):
    async def scenario() -> None:
        async with server(certificates, idle_timeout=0.4, peer_timeout=None) as (listener, sinks):
            living, living_sink = await client(certificates, listener, peer_timeout=0.15)
            dead, dead_sink = await client(certificates, listener, peer_timeout=None)
            await until(lambda: dead_sink.of("closed"))
            assert dead_sink.of("closed")[0][1] == -1
            assert "dle timeout" in dead_sink.of("closed")[0][2]
            await until(lambda: any(sink.of("closed") for sink in sinks))
            assert not living_sink.of("closed")
            assert dead not in listener.sessions
            living.close(0)

    run(scenario())


def test_calls_are_legal_before_connected(run, certificates):
    class Early(Sink):
        def __init__(self, session):
            super().__init__(session)
            self.stream = session.open(SendOrder(Tier.CONTROL), unidirectional=True)
            session.write(self.stream, b"setup")

    async def scenario() -> None:
        async with server(certificates, Early) as (listener, sinks):
            session, sink = await client(certificates, listener, Early)
            await until(lambda: sink.data and sinks and sinks[0].data)
            assert sink.events[0] == sinks[0].events[0] == ("connected",)
            session.close(0)
            await asyncio.sleep(0)

    run(scenario())
