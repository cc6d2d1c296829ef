"""A UDP relay between a client and a server that does to datagrams what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random


class Relay(asyncio.DatagramProtocol):
    """Passes datagrams on unless ``drop(data, to_server)`` says otherwise."""

    def __init__(self, server: tuple[str, int], drop: Callable[[bytes, bool], bool]) -> None:
        self.server = server
        self.drop = drop
        self.client: tuple[str, int] | None = None
        self.transport: asyncio.DatagramTransport

    @classmethod
    async def open(cls, server: tuple[str, int], drop: Callable[[bytes, bool], bool]) -> Relay:
        loop = asyncio.get_running_loop()
        _transport, relay = await loop.create_datagram_endpoint(
            lambda: cls(server, drop), local_addr=("127.0.0.1", 0)
        )
        return relay

    @property
    def port(self) -> int:
        return self.transport.get_extra_info("sockname")[1]

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        to_server = addr != self.server
        if to_server:
            self.client = addr
        if not self.drop(data, to_server):
            self.transport.sendto(data, self.server if to_server else self.client)

    def error_received(self, exc: Exception) -> None:
        """An end has gone: what a test does on purpose."""


class Line(Relay):
    """A relay that is a bad line: late, with losses by a seed, and cut as long as a test wants."""

    def __init__(
        self, server: tuple[str, int], delay: float = 0.0, loss: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(server, self._refuses)
        self.delay = delay  #: seconds, each way
        self.loss = loss
        self.cut = False
        self.passed = 0
        self.lost = 0
        self._random = Random(seed)

    @classmethod
    async def lay(cls, port: int, **faults: float) -> Line:
        """To a server on this machine."""
        loop = asyncio.get_running_loop()
        server = ("127.0.0.1", port)
        _transport, line = await loop.create_datagram_endpoint(
            lambda: cls(server, **faults), local_addr=("127.0.0.1", 0)
        )
        return line

    @property
    def url(self) -> str:
        return f"moqt://127.0.0.1:{self.port}/"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self.delay, self._arrives, data, addr)

    def _arrives(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self.transport.is_closing():
            super().datagram_received(data, addr)

    def _refuses(self, _data: bytes, _to_server: bool) -> bool:
        refused = self.cut or self._random.random() < self.loss
        self.lost += refused
        self.passed += not refused
        return refused
