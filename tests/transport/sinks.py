"""Sinks for the tests of this folder: they keep what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from transport.api import BytesLike, SendOrder, Tier, TransportSession
from transport.config import QuicOptions

ORDER = SendOrder(Tier.OBJECT)


class Sink:
    """Keeps every event as a tuple, and the octets of each stream."""

    def __init__(self, session: TransportSession | None = None) -> None:
        self.session = session
        self.events: list[tuple] = []
        self.data: dict[int, bytearray] = {}
        self.ended: set[int] = set()

    def of(self, name: str) -> list[tuple]:
        return [event for event in self.events if event[0] == name]

    def connected(self) -> None:
        self.events.append(("connected",))

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        self.events.append(("opened", stream, unidirectional))

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        assert stream not in self.ended
        self.data.setdefault(stream, bytearray()).extend(data)
        if fin:
            self.ended.add(stream)
            self.events.append(("fin", stream))

    def stream_reset(self, stream: int, code: int) -> None:
        self.events.append(("reset", stream, code))

    def stop_sending(self, stream: int, code: int) -> None:
        self.events.append(("stop", stream, code))

    def stream_sent(self, stream: int) -> None:
        self.events.append(("sent", stream))

    def datagram(self, data: bytes) -> None:
        self.events.append(("datagram", data))

    def closed(self, code: int, reason: str, remote: bool) -> None:
        self.events.append(("closed", code, reason, remote))


class Echo(Sink):
    """Sends back what it gets: on the same stream, or on a new one for a unidirectional one."""

    def __init__(self, session: TransportSession) -> None:
        super().__init__(session)
        self.back: dict[int, int] = {}

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        super().stream_opened(stream, unidirectional)
        self.back[stream] = stream
        if unidirectional:
            self.back[stream] = self.session.open(ORDER, unidirectional=True)

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        super().stream_data(stream, data, fin)
        self.session.write(self.back[stream], data)
        if fin:
            self.session.finish(self.back[stream])

    def datagram(self, data: bytes) -> None:
        super().datagram(data)
        self.session.send_datagram(data)


async def until(condition: Callable[[], object]) -> None:
    """Wait for it; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0.002)


#: What a layer above would ask for.
MOQT = QuicOptions(protocols=("moqt-22",))
