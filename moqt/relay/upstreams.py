"""Relays upstream of this one: dialled, dialled again, followed when they say GOAWAY."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from random import uniform
from typing import TYPE_CHECKING, Any, Final

from moqt.endpoint import connect
from moqt.errors import MoqtError
from moqt.relay.peers import Peer
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved
from transport.config import ClientTls
from transport.errors import InvalidUrl, TransportError
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from moqt.codec.fields import Token
    from moqt.driver import Connection
    from moqt.model import TrackNamespace
    from moqt.monitor import Monitor
    from moqt.relay.relay import Relay
    from moqt.session.ports import RequestHandler
    from transport.config import QuicOptions

_log = logging.getLogger(__name__)

#: Seconds until a relay that does not answer is dialled again, doubled up to the second value.
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 10.0
#: Seconds until one that leads back to this relay is dialled again, and up to as many more: two
#: relays of a circle that leave each other at once do not come back at once.
LOOP_PAUSE: Final = 60.0
#: After GOAWAY both sessions stay for so long, so that what runs on the old one can end there.
MOVE_TIME: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A relay to ask for what lies under ``prefixes``; one empty prefix is everything."""

    url: MoqtUrl
    prefixes: tuple[TrackNamespace, ...] = ((),)
    tls: ClientTls = field(default_factory=ClientTls)
    #: What we show there with every request, asked anew each time.
    credentials: Callable[[], Iterable[Token]] | None = None


class Uplinks:
    """Keeps one session to every upstream relay."""

    def __init__(
        self,
        relay: Relay,
        *,
        quic: QuicOptions | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self._relay = relay
        self._quic = quic
        self._monitor = monitor
        self._tasks: set[asyncio.Task[None]] = set()
        #: Open sessions by the URL that was configured.
        self.connections: dict[str, Connection] = {}

    def add(self, upstream: Upstream) -> None:
        """Dial it from now on."""
        self._spawn(self._keep(upstream))

    async def close(self) -> None:
        """End all sessions."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(one.close(limit=1.0) for one in self.connections.values()))

    async def _keep(self, upstream: Upstream) -> None:
        pause, url = FIRST_PAUSE, upstream.url
        while True:
            try:
                connection, peer, leaving = await self._dial(upstream, url)
            except (TransportError, MoqtError) as error:
                first = pause == FIRST_PAUSE  # told once, not for every attempt
                told = logging.WARNING if first else logging.INFO
                _log.log(told, "upstream %s does not answer, dialled again: %s", url, error)
                url = upstream.url
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if leaving.done():  # it ends, and says so to whoever comes: wait for the next one
                await connection.close(limit=0.0)
                url = _place(leaving.result()) or upstream.url
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self.connections[str(upstream.url)] = connection
            self._relay.upstream_came(peer, upstream.prefixes)
            _log.info("upstream %s is connected", url)
            try:
                url = await self._until_over(connection, leaving) or upstream.url
            finally:
                self._relay.upstream_gone(peer)
            if connection.is_open:
                self._spawn(self._let_go(connection, peer))
            if peer.leads_back:
                _log.warning("upstream %s leads back to this relay: left for a while", url)
                await asyncio.sleep(LOOP_PAUSE * uniform(1, 2))  # noqa: S311
            await asyncio.sleep(FIRST_PAUSE)  # or one that says GOAWAY at once keeps us dialling

    async def _dial(
        self, upstream: Upstream, url: MoqtUrl
    ) -> tuple[Connection, Peer, asyncio.Future[str]]:
        made: list[Peer] = []
        leaving: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def handler(connection: Connection) -> RequestHandler:
            made.append(Peer(connection, f"upstream {upstream.url}"))
            return Unserved()  # an upstream has nothing to ask of us

        connection = await connect(
            url,
            handler=handler,
            tls=upstream.tls,
            config=SessionConfig(request_tokens=upstream.credentials),
            quic=self._quic,
            monitor=self._monitor,
        )

        def goaway(uri: str, _: int) -> None:
            if not leaving.done():
                leaving.set_result(uri)

        connection.when_goaway(goaway)
        return connection, made[-1], leaving

    async def _until_over(
        self, connection: Connection, leaving: asyncio.Future[str]
    ) -> MoqtUrl | None:
        """Until it ends or says GOAWAY; where to dial next, None for where it was."""
        ended = asyncio.ensure_future(connection.wait_closed())
        either: set[asyncio.Future[Any]] = {ended, leaving}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        return _place(leaving.result()) if leaving.done() else None

    async def _let_go(self, connection: Connection, peer: Peer) -> None:
        """It said GOAWAY: once its successor serves what it served, end it."""
        await asyncio.sleep(MOVE_TIME)
        self._relay.let_go(peer)
        await connection.close(limit=1.0)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _place(uri: str) -> MoqtUrl | None:
    """Where a GOAWAY leads; None for where we are, or for what is no URL."""
    if not uri:
        return None
    try:
        return MoqtUrl.parse(uri)
    except InvalidUrl:
        _log.warning("an upstream names a place to move to that is no URL")
        return None
