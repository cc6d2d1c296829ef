"""Who meets a server or a relay in a soak: one that counts what comes, one that talks rubbish."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from moqt.endpoint import quic_options
from moqt.session.ports import TrackInfo
from transport.api import SendOrder, Tier, TransportSession
from transport.config import ClientTls
from transport.endpoint import connect as transport_connect
from transport.errors import TransportError
from transport.url import MoqtUrl


class Counter:
    """A TrackReceiver that counts whole objects and forgets them."""

    def __init__(self, over: asyncio.Event | None = None) -> None:
        self.objects = 0
        self.resets = 0
        self.ending: Any = None
        self.ready = asyncio.Event()
        self._over = over or asyncio.Event()

    def accepted(self, info: TrackInfo) -> None:
        """Objects may be published now."""
        self.ready.set()

    def open_subgroup(self, head: Any) -> Counter:
        """All streams end here."""
        return self

    def open_fetch(self, request_id: int) -> Counter:
        """The same."""
        return self

    def datagram(self, head: Any, payload: Any) -> None:
        """None are sent."""

    def begin(self, head: Any) -> None:
        """An object."""

    def write(self, view: Any) -> None:
        """Its octets."""

    def end(self) -> None:
        """It is whole."""
        self.objects += 1

    def gap(self, gap: Any) -> None:
        """None are sent."""

    def finish(self) -> None:
        """A stream is through."""

    def abort(self, code: int) -> None:
        """A stream was reset."""
        self.resets += 1

    def done(self, code: int, reason: str, complete: bool) -> None:
        """PUBLISH_DONE and all streams are in."""
        self.ending = "complete" if complete else "incomplete"
        self._over.set()

    def failed(self, error: Exception) -> None:
        """It ended otherwise."""
        self.ending = error
        self.ready.set()
        self._over.set()


class Hostile:
    """A peer that says what it must not; the fuzzer's inputs are its lines."""

    def __init__(self, transport: TransportSession, random: Random) -> None:
        self._transport = transport
        self._random = random
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(self) -> None:
        """Say it all."""
        open_ = self._transport.open
        random, order = self._random, SendOrder(Tier.REQUEST)
        if random.random() < 0.7:  # a SETUP that is right: path and authority
            control = open_(SendOrder(Tier.CONTROL), unidirectional=True)
            self._transport.write(control, bytes.fromhex("af00000a010178040978"))
        for _ in range(random.randrange(1, 40)):
            stream = open_(order, unidirectional=random.random() < 0.6)
            heads = (b"\x54\x01\x01\x00", b"\x05\x01", b"\x03\x00\x08\x00\x01\x01a", b"", b"\xff")
            self._transport.write(stream, random.choice(heads) + random.randbytes(300))
            if random.random() < 0.4:
                self._transport.finish(stream)
            elif random.random() < 0.3:
                self._transport.reset(stream, random.randrange(1 << 20))
        self._transport.send_datagram(random.randbytes(40))

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        """Not read."""

    def stream_data(self, stream: int, data: Any, fin: bool) -> None:
        """Not read."""

    def stream_reset(self, stream: int, code: int) -> None:
        """Not heard."""

    def stop_sending(self, stream: int, code: int) -> None:
        """Not heard."""

    def stream_sent(self, stream: int) -> None:
        """Not heard."""

    def datagram(self, data: bytes) -> None:
        """Not read."""

    def closed(self, code: int, reason: str, remote: bool) -> None:
        """How the server put up with it."""
        if not self.over.done():
            self.over.set_result(code if remote else -1)


async def hostile(url: MoqtUrl, tls: ClientTls, random: Random) -> int:
    """One bad session, which leaves when the server has nothing against it; how it ended."""
    made: list[tuple[Hostile, TransportSession]] = []

    def sink(transport: TransportSession) -> Hostile:
        made.append((Hostile(transport, random), transport))
        return made[-1][0]

    try:
        await transport_connect(url, sink, tls=tls, options=quic_options(None))
        peer, transport = made[0]
        try:
            return await asyncio.wait_for(asyncio.shield(peer.over), 0.5)
        except TimeoutError:
            transport.close(0)
            await peer.over
            return -2
    except TransportError:
        return -3
