"""The front door over real sockets: who owns a connection that never comes up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt.codec.profile import LATEST
from moqt.errors import SessionClosed
from moqt.session.config import SessionConfig
from transport.certificates import write_test_certificates
from transport.config import ClientTls, QuicOptions, ServerTls
from transport.listener import serve as serve_quic

if TYPE_CHECKING:
    from pathlib import Path

    from moqt.session.tokens import Claim
    from transport.api import TransportSession

pytestmark = pytest.mark.e2e


class Mute:
    """A peer that completes the handshake and never says SETUP."""

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def closed(self, code: int, reason: str, remote: bool) -> None:
        self.code.set_result(code)

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


async def test_a_connect_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    paths = write_test_certificates(tmp_path)
    met: asyncio.Future[Mute] = asyncio.get_running_loop().create_future()

    def factory(_: object) -> Mute:
        met.set_result(Mute())
        return met.result()

    listener = await serve_quic(
        "127.0.0.1",
        0,
        factory,  # type: ignore[arg-type]
        tls=ServerTls(certificate=paths.certificate, private_key=paths.private_key),
        options=QuicOptions(protocols=(LATEST.alpn,)),
    )
    url = f"moqt://127.0.0.1:{listener.port}/"
    dialling = asyncio.ensure_future(moqt.connect(url, tls=ClientTls(ca_file=paths.ca)))
    mute = await met
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
    assert await asyncio.wait_for(mute.code, 5) == 0
    await listener.close()


async def test_a_server_that_closes_says_so_to_who_dials(tmp_path: Path) -> None:
    paths = write_test_certificates(tmp_path)
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    server = await moqt.serve("127.0.0.1", 0, tls=tls)
    url = f"moqt://127.0.0.1:{server.port}/"
    connection = await moqt.connect(url, tls=ClientTls(ca_file=paths.ca))
    await server.close(3, "over")
    end = await asyncio.wait_for(connection.wait_closed(), 5)
    assert isinstance(end, SessionClosed)
    assert (end.code, end.reason) == (3, "over")


# Of the two ways to agree on a draft this is the one over raw QUIC.
@pytest.mark.rule("M140")
async def test_a_server_may_have_a_judge_for_each_session(tmp_path: Path) -> None:
    paths = write_test_certificates(tmp_path)
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    met: list[object] = []

    def config(transport: TransportSession) -> SessionConfig:
        def judge(claim: Claim, now: float) -> None:
            met.append(transport.peer.protocol)

        return SessionConfig(token_verifier=judge)

    async with await moqt.serve("127.0.0.1", 0, tls=tls, config=config) as server:
        url = f"moqt://127.0.0.1:{server.port}/"
        for _ in range(2):
            async with await moqt.connect(url, tls=ClientTls(ca_file=paths.ca)):
                pass
    assert met == [LATEST.alpn] * 2
