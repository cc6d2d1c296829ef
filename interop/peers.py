"""Peers as child processes: start them, wait until they answer, stop them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from transport.certificates import CertificatePaths

#: Where each peer is installed: the ``bin`` folder of its virtual environment.
HOMES: Final = {"aiomoqt": "KVCS_PEER_AIOMOQT", "caprid": "KVCS_PEER_CAPRID"}

#: A Python peer that imports its whole stack needs some seconds on a small machine.
START_TIMEOUT: Final = 15.0
#: From SIGTERM to SIGKILL.
STOP_TIMEOUT: Final = 3.0
_STEP: Final = 0.05

#: A long header with a version that is reserved to be unknown (RFC 9000 §15), padded to the least
#: size: every QUIC server answers it with Version Negotiation and keeps nothing of it.
_PROBE: Final = (
    bytes([0xC0]) + bytes.fromhex("1a2a3a4a") + bytes([8]) + b"probe-to" + bytes([8]) + b"probe-us"
).ljust(1200, b"\0")


class PeerMissing(Exception):
    """The peer is not installed where its environment variable says."""


class PeerDied(Exception):
    """The peer ended before it was told to."""


def executable(peer: str, name: str) -> str:
    """Path of a program of ``peer``; PeerMissing when there is none."""
    variable = HOMES[peer]
    home = os.environ.get(variable)
    if not home:
        raise PeerMissing(f"{variable} is not set: name the bin folder that has {name}")
    path = Path(home) / name
    if not path.exists():
        raise PeerMissing(f"{variable}={home} has no {name}")
    return str(path)


def free_port() -> int:
    """A UDP port that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Peer:
    """A running process; what it says is in ``log``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    @classmethod
    async def start(cls, log: Path, *command: str) -> Peer:
        """Start ``command`` in its own session, so that no signal of ours reaches it by chance."""
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        return cls(process, log)

    @property
    def alive(self) -> bool:
        """True until it ends."""
        return self.process.returncode is None

    def said(self) -> str:
        """All of its output so far."""
        return self.log.read_text(errors="replace")

    async def says(self, text: str) -> None:
        """Wait for ``text`` in its output; PeerDied, TimeoutError."""
        async with asyncio.timeout(START_TIMEOUT):
            while text not in self.said():
                self._check_alive()
                await asyncio.sleep(_STEP)

    async def answers(self, port: int) -> None:
        """Wait until a QUIC server answers on ``port`` of loopback; PeerDied, TimeoutError."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(("127.0.0.1", port))
            async with asyncio.timeout(START_TIMEOUT):
                while True:
                    self._check_alive()
                    with contextlib.suppress(OSError, TimeoutError):
                        await loop.sock_sendall(sock, _PROBE)
                        await asyncio.wait_for(loop.sock_recv(sock, 2048), _STEP)
                        return
                    await asyncio.sleep(_STEP)

    async def ended(self) -> int:
        """Wait for its own end; the exit code."""
        return await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to what does not heed it."""
        if not self.alive:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def _check_alive(self) -> None:
        if not self.alive:
            tail = self.said().strip().splitlines()[-1:]
            raise PeerDied(f"exit code {self.process.returncode}: {' '.join(tail)}")


@contextlib.asynccontextmanager
async def running(log: Path, *command: str) -> AsyncIterator[Peer]:
    """A peer for the length of a block."""
    peer = await Peer.start(log, *command)
    try:
        yield peer
    finally:
        await peer.stop()


@contextlib.asynccontextmanager
async def aiomoqt_relay(
    logs: Path, certificates: CertificatePaths, name: str = "relay"
) -> AsyncIterator[tuple[Peer, str]]:
    """aiomoqt's relay on raw QUIC, and its URL."""
    port = free_port()
    async with running(
        logs / f"aiomoqt-{name}.log",
        executable("aiomoqt", "moq-interop-relay"),
        *("--bind", "127.0.0.1", "--port", str(port), "--quic", "--draft", "22", "--debug"),
        *("--cert", str(certificates.certificate), "--key", str(certificates.private_key)),
    ) as relay:
        await relay.answers(port)
        yield relay, f"moqt://localhost:{port}"


@contextlib.asynccontextmanager
async def aiomoqt_origin(
    logs: Path, url: str, namespace: str, track: str, *options: str
) -> AsyncIterator[Peer]:
    """aiomoqt's publisher of a live track into ``url``: small objects, 3 a group, 20 a second."""
    async with running(
        logs / f"aiomoqt-origin-{namespace.replace('/', '-')}.log",
        executable("aiomoqt", "moq-pub-bench"),
        *(url, "-N", namespace, "-T", track, "-s", "16", "-g", "3", "-r", "20", "-t", "120"),
        *("-k", "--draft", "22", "--no-stats", *options),
    ) as origin:
        await origin.says("waiting for subscriber")
        yield origin
