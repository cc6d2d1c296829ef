"""Short visits that a relay should not remember: come and go, flicker, ask, push, be denied."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Collection
from random import Random

from kvcs.names import PROTOCOL, PublicationName
from moqt.codec.params import Parameters
from moqt.codec.properties import TrackProperties
from moqt.driver import Connection
from moqt.endpoint import connect
from moqt.errors import MoqtError
from moqt.model import FullTrackName
from moqt.publisher import Catalog, Track
from moqt.session.config import SessionConfig
from tests.soak.peers import Counter, hostile
from tests.soak.relays import Keys, Relay, showing
from transport.errors import TransportError
from transport.quic import End

#: Requests of one visit: more than anybody needs, fewer than the rate limits refuse at once.
MOST = 300
#: What is pushed leaves the cache by itself, so that nothing is left at the end.
SHORT_LIVED = TrackProperties(max_cache_duration=10_000)


class Told:
    """A NamespaceListener, and whoever waits for an answer, that does not listen."""

    def accepted(self) -> None:
        """Fine."""

    def found(self, namespace: object) -> None:
        """Fine."""

    gone = ended = found


class Strangers:
    """Visits of one kind after the other; ``known`` are the publications that live just now."""

    def __init__(self, keys: Keys, random: Random, known: Collection[PublicationName]) -> None:
        #: Visits by kind.
        self.visits: Tally[str] = Tally()
        self._keys = keys
        self._random = random
        self._known = known
        self._kinds: tuple[Callable[[Relay], Awaitable[None]], ...] = (
            *(self.come_and_go, self.flicker, self.ask_for_nothing, self.denied),
            *(self.announce, self.push, self.rubbish, self.expire),
        )

    async def visit(self, relay: Relay) -> None:
        """One of them."""
        kind = self._random.choice(self._kinds)
        self.visits[kind.__name__] += 1
        try:
            await kind(relay)
        except (MoqtError, TransportError):
            self.visits["cut off"] += 1

    async def come_and_go(self, relay: Relay) -> None:
        """Nothing is asked for."""
        await self._leave(await self._connect(relay))

    async def flicker(self, relay: Relay) -> None:
        """Rapid SUBSCRIBE and cancel of tracks that live."""
        connection = await self._connect(relay)
        names = self._few() or [self._unknown()]
        for number in range(self._random.randrange(20, MOST)):
            request = connection.subscribe(self._random.choice(names), Counter())
            if self._random.random() < 0.8:
                request.cancel()
            if number % 32 == 0:
                await asyncio.sleep(0.01)
        await self._leave(connection)

    async def ask_for_nothing(self, relay: Relay) -> None:
        """SUBSCRIBE, FETCH and SUBSCRIBE_NAMESPACE of what does not exist."""
        connection = await self._connect(relay)
        for _ in range(self._random.randrange(1, 50)):
            name = self._unknown()
            waits = self._random.choice((None, 500, 60_000))
            connection.subscribe(name, Counter(), Parameters(rendezvous_timeout=waits))
            connection.fetch(name, Counter())
            connection.subscribe_namespace(name.namespace[:3], Told())
        await asyncio.sleep(self._random.random())
        await self._leave(connection)

    async def denied(self, relay: Relay) -> None:
        """The same and more with tokens that are forged, of another right, or missing."""
        forged = bytearray(self._keys.token("nobody"))
        forged[-1 - self._random.randrange(32)] ^= 1 + self._random.randrange(255)
        token = self._random.choice((bytes(forged), self._random.randbytes(200), None))
        connection = await self._connect(relay, token, default=False)
        for name in (self._unknown(), *self._few()):
            connection.subscribe(name, Counter())
            connection.fetch(name, Counter())
            connection.subscribe_namespace(name.namespace[:2], Told())
            connection.publish_namespace(name.namespace, lambda _: None)
            connection.publish(Track(name), lambda _: None)
        await asyncio.sleep(0.1)
        await self._leave(connection)

    async def announce(self, relay: Relay) -> None:
        """Namespaces that come and go, with nothing in them."""
        connection = await self._connect(relay, self._keys.token("writer 1", writes=True))
        for _ in range(self._random.randrange(1, MOST)):
            made = connection.publish_namespace(self._unknown().namespace, lambda _: None)
            if self._random.random() < 0.5:
                made.cancel()
        await asyncio.sleep(0.1)
        await self._leave(connection)

    async def push(self, relay: Relay) -> None:
        """PUBLISH of tracks that are never finished, objects and streams cut off in the middle."""
        connection = await self._connect(relay, self._keys.token("writer 2", writes=True))
        catalog = Catalog()
        for _ in range(self._random.randrange(1, 20)):
            track = catalog.add(Track(self._unknown(), SHORT_LIVED))
            catalog.publish(track, connection)
            for group in range(3):
                writer = track.subgroup(group)
                writer.object(0, self._random.randbytes(self._random.randrange(1 << 15)))
                if self._random.random() < 0.3:
                    writer.abort(1)
        await asyncio.sleep(0.2 * self._random.random())
        await self._leave(connection)

    async def rubbish(self, relay: Relay) -> None:
        """What no peer may say."""
        ended = await hostile(relay.url, self._keys.tls, self._random)
        self.visits[f"rubbish ended with {ended:#x}"] += 1

    async def expire(self, relay: Relay) -> None:
        """A grant that ends while it is in use."""
        connection = await self._connect(relay, self._keys.token("reader 3", lasts=1.0))
        for name in self._few():
            connection.subscribe(name, Counter())
        connection.subscribe_namespace((PROTOCOL, self._keys.scope), Told())
        await asyncio.sleep(2.0)
        await self._leave(connection)

    # -- inside ----------------------------------------------------------------------------------

    async def _connect(
        self, relay: Relay, token: bytes | None = None, *, default: bool = True
    ) -> Connection:
        shown = self._keys.reader() if token is None else showing(token)
        if token is None and not default:
            return await connect(relay.url, tls=self._keys.tls)
        config = SessionConfig(request_tokens=shown)
        return await connect(relay.url, tls=self._keys.tls, config=config)

    async def _leave(self, connection: Connection) -> None:
        """Well, at once, or without a word: that one the relay notices after 30 s."""
        how = self._random.random()
        if how < 0.4:
            await connection.close()
        elif how < 0.9:
            connection.sink.abandon()
        else:
            connection._transport.abandon(End(-1, "gone", remote=False))

    def _few(self) -> list[FullTrackName]:
        """Tracks that live just now."""
        return [FullTrackName(one.namespace, b"k.raw.s0") for one in list(self._known)[:3]]

    def _unknown(self) -> FullTrackName:
        fields = self._random.randbytes(32), self._random.randbytes(32), self._random.randbytes(16)
        return FullTrackName((PROTOCOL, self._keys.scope, *fields), b"k.raw.s0")
