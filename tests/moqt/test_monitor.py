"""A monitor watches every session of an endpoint, over real sockets: while it lives and after."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

import moqt
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls
from transport.errors import ConnectFailed

pytestmark = pytest.mark.e2e

NAME = moqt.FullTrackName((b"example",), b"track")
SESSIONS = 3


async def test_sums_over_live_and_ended_sessions(tmp_path: Path) -> None:
    paths = write_test_certificates(tmp_path)
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    catalog, file = moqt.Catalog(), io.StringIO()
    catalog.add(moqt.Track(NAME)).subgroup(0).object(0, bytes(3000))
    clients = moqt.Monitor(moqt.Trace(file))
    async with await moqt.serve("127.0.0.1", 0, tls=tls, handler=catalog.handler) as server:
        url, trust = f"moqt://127.0.0.1:{server.port}/", ClientTls(ca_file=paths.ca)
        for _ in range(SESSIONS):
            async with (
                await moqt.connect(url, tls=trust, monitor=clients) as connection,
                moqt.fetch(connection, NAME) as past,
            ):
                assert [one.payload async for one in past] == [bytes(3000)]
                assert connection.counters.received.octets == 3000
        async with await moqt.connect(url, tls=trust, monitor=clients):
            while len(server.connections) > 1:  # noqa: ASYNC110 - the others' ends arrive
                await asyncio.sleep(0.001)
            told = server.monitor.to_json()
            assert (told["sessions"], told["sessions_open"]) == (SESSIONS + 1, 1)
            assert told["sent"]["objects"] == SESSIONS
            assert told["sent"]["octets"] == SESSIONS * 3000
            assert told["received"]["messages"] == {"FETCH": SESSIONS, "SETUP": SESSIONS + 1}
    assert clients.to_json()["received"]["octets"] == SESSIONS * 3000
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    assert {one["session"] for one in events} == {1, 2, 3, 4}
    assert sum(one["event"] == "object_end" for one in events) == SESSIONS
    assert sum(one["event"] == "end" for one in events) == SESSIONS + 1
    assert not [one for one in events if one["event"] == "undecodable"]
    assert [one["event"] for one in events if one["session"] == 1][:2] == ["begin", "connected"]
    assert server.monitor.to_json()["sessions_open"] == 0


async def test_a_session_that_never_was_leaves_nothing(tmp_path: Path) -> None:
    paths = write_test_certificates(tmp_path)
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    monitor = moqt.Monitor()
    async with await moqt.serve("127.0.0.1", 0, tls=tls) as server:
        url = f"moqt://127.0.0.1:{server.port}/"
        with pytest.raises(ConnectFailed, match="certificate"):
            await moqt.connect(url, monitor=monitor)
    await asyncio.sleep(0)
    assert monitor.to_json()["sessions_open"] == 0
