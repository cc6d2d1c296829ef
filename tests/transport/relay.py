"""A UDP relay between a client and a server that does to datagrams what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


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
