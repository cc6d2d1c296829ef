"""Connection: a Session on an event loop; waiting, closing, timers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import AliasType
from moqt.codec.params import Parameters
from moqt.codec.properties import SetupOptions
from moqt.driver import CLOSE_TIMEOUT, Connection
from moqt.errors import RequestCode, RequestFailed, SessionClosed, SessionCode
from moqt.model import Location
from moqt.session.config import SessionConfig
from tests.moqt.session.wire import NAME, Asked
from transport.testing import RecordingSession


class Transport(RecordingSession):
    """A recorder that reports its end like a real session, and has octets in flight."""

    def __init__(self, *, is_client: bool = True) -> None:
        super().__init__(is_client=is_client)
        self.flying: list[int] = []
        self.sink: Any = None
        self.silent = False

    def unacknowledged(self) -> int:
        return self.flying.pop(0) if self.flying else 0

    def close(self, code: int, reason: str = "") -> None:
        super().close(code, reason)
        if not self.silent:
            asyncio.get_running_loop().call_soon(self.sink.closed, code, reason, False)


def connection(config: SessionConfig | None = None) -> tuple[Connection, Transport]:
    """A client's connection, its handshake done."""
    transport = Transport()
    made = Connection(transport, lambda _: Asked(), config or SessionConfig())
    transport.sink = made.sink
    made.sink.connected()
    return made, transport


def arrive(transport: Transport, *parts: m.Message, fin: bool = False) -> int:
    """A unidirectional stream of the peer."""
    stream = transport.arrive()
    transport.sink.stream_opened(stream, True)
    transport.sink.stream_data(stream, b"".join(map(m.encode_message, parts)), fin)
    return stream


async def test_ready_with_the_peers_setup() -> None:
    made, transport = connection()
    waiting = asyncio.ensure_future(made.ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert made.is_open
    arrive(transport, m.Setup())
    await waiting
    await made.ready()
    assert made.may_request


async def test_a_session_that_ends_before_it_is_ready() -> None:
    made, transport = connection()
    ended: list[str] = []
    made.when_closed(lambda: ended.append("end"))
    transport.sink.closed(-1, "timeout", False)
    with pytest.raises(SessionClosed, match="timeout"):
        await made.ready()
    assert (await made.wait_closed()).code == -1
    assert not made.is_open
    assert not made.may_request
    assert ended == ["end"]
    transport.sink.closed(-1, "again", False)
    assert made.handler.ended == (-1, "timeout")  # type: ignore[attr-defined]


async def test_a_fault_of_the_peer_closes_the_transport() -> None:
    made, transport = connection()
    control = arrive(transport, m.Setup())
    transport.sink.stream_reset(control, 1)
    end = await made.wait_closed()
    assert end.code == SessionCode.PROTOCOL_VIOLATION
    transport.sink.stream_data(control, b"\x10", False)  # nothing more is looked at
    transport.sink.stop_sending(0, 1)
    transport.sink.stream_sent(0)
    transport.sink.datagram(b"\xff")


async def test_timers_run_by_themselves() -> None:
    made, transport = connection(SessionConfig(setup_timeout=0.01))
    end = await made.wait_closed()
    assert end.code == SessionCode.CONTROL_MESSAGE_TIMEOUT
    assert transport.take()[-1][0] == "close"
    made, transport = connection(SessionConfig(setup_timeout=1000))
    arrive(transport, m.Setup())
    made.publish_namespace((b"a",), lambda _: None)
    made.goaway("", 10)  # a nearer deadline, made outside any event
    assert (await made.wait_closed()).code == SessionCode.GOAWAY_TIMEOUT


async def test_close_waits_for_what_is_in_flight() -> None:
    made, transport = connection()
    arrive(transport, m.Setup())
    transport.flying = [30, 20, 10, 0]
    await made.close(SessionCode.NO_ERROR, "bye")
    assert not transport.flying
    assert transport.take()[-1] == ("close", 0, "bye")
    assert not made.is_open
    await made.close()


async def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moqt.driver.CLOSE_TIMEOUT", 0.02)
    assert CLOSE_TIMEOUT > 0.02
    made, transport = connection()
    transport.flying = [7] * 100_000  # nothing is acknowledged any more
    transport.silent = True  # and the transport never says that it is over
    await made.close(SessionCode.NO_ERROR, "bye")
    assert not made.is_open
    assert (await made.wait_closed()).reason == "bye"


async def test_a_token_is_registered_once() -> None:
    made, transport = connection()
    arrive(transport, m.Setup(SetupOptions(max_auth_token_cache_size=100)))
    for kind in (AliasType.REGISTER, AliasType.USE_VALUE):
        token = made.token(b"secret", 5)
        assert token.alias_type is kind
        made.publish_namespace((b"a",), lambda _: None, Parameters(authorization_tokens=(token,)))
    (first, *_) = [call[1] for call in transport.take() if call[0] == "open" and not call[3]]
    transport.sink.stream_data(first, m.encode_message(m.RequestOk()), False)
    assert made.token(b"secret", 5).alias_type is AliasType.USE_ALIAS


async def test_track_status_is_awaited() -> None:
    made, transport = connection()
    arrive(transport, m.Setup())
    asked = asyncio.ensure_future(made.track_status(NAME))
    await asyncio.sleep(0)
    stream = next(call[1] for call in transport.take() if call[0] == "finish")
    ok = m.RequestOk(Parameters(largest_object=Location(1, 2)))
    transport.sink.stream_data(stream, m.encode_message(ok), True)
    assert await asked == ok
    asked = asyncio.ensure_future(made.track_status(NAME))
    await asyncio.sleep(0)
    stream = next(call[1] for call in transport.take() if call[0] == "finish")
    error = m.RequestError(RequestCode.DOES_NOT_EXIST)
    transport.sink.stream_data(stream, m.encode_message(error), True)
    with pytest.raises(RequestFailed):
        await asked
    asked = asyncio.ensure_future(made.track_status(NAME))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert ("stop", 4, 1) in transport.take()
    asked = asyncio.ensure_future(made.track_status(NAME))
    await asyncio.sleep(0)
    transport.sink.closed(-1, "gone", False)
    with pytest.raises(SessionClosed):
        await asked


async def test_the_peers_goaway_and_options_show() -> None:
    made, transport = connection()
    assert made.peer_options.max_request_updates == 0
    control = arrive(transport, m.Setup())
    transport.sink.stream_data(control, m.encode_message(m.Goaway()), False)
    assert made.is_open
    assert not made.may_request
    assert made.peer is transport.peer
