"""Sinks for the tests of this folder: they keep what they are told."""

from __future__ import annotations

from transport.api import BytesLike


class Sink:
    """Keeps every event as a tuple, and the octets of each stream."""

    def __init__(self) -> None:
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
