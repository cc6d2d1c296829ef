"""A session that a publisher dials: announced on, and dialled again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from kvcs.relays import ROUND_PAUSE, dial_first, moved_to, staying
from moqt.endpoint import connect
from moqt.publisher import CatalogHandler
from transport.errors import ConnectFailed

if TYPE_CHECKING:
    from moqt.driver import Connection
    from moqt.monitor import Monitor
    from moqt.publisher import Catalog, ServingLimits
    from moqt.session.config import SessionConfig
    from transport.config import ClientTls, QuicOptions
    from transport.url import MoqtUrl

_log = logging.getLogger(__name__)

#: A lost relay is dialled again for so many seconds: time enough to start another machine.
REDIAL_WINDOW: Final = 300.0
#: Sessions kept for what still runs on them after GOAWAY; the oldest is closed for one more.
MAX_SESSIONS: Final = 4


class Uplink:
    """One relay, or listening consumer, at a time: the first of ``urls`` that answers.

    When it is lost, or sends GOAWAY, the next session is made and everything announced there;
    what runs on an old session goes on (draft-22 §6.6.1).
    """

    def __init__(
        self,
        catalog: Catalog,
        urls: tuple[MoqtUrl, ...],
        tls: ClientTls,
        limits: ServingLimits,
        config: SessionConfig | None,
        quic: QuicOptions | None,
        monitor: Monitor | None = None,
    ) -> None:
        #: Open sessions, oldest first.
        self.connections: dict[Connection, None] = {}
        self._catalog = catalog
        self._given = urls
        self._urls = urls
        self._ready_at = 0.0
        self._evicting: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._limits = limits
        self._config = config
        self._quic = quic
        self._monitor = monitor
        self._redialling: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self, wait: float) -> str:
        """The first session; returns its URL, raises ConnectFailed."""
        url, connection = await dial_first(self._urls, self._dial, wait)
        self._up(connection)
        return str(url)

    async def close(self) -> None:
        """Deliver what is queued, then end."""
        self._closing = True
        if self._redialling is not None:
            self._redialling.cancel()
        await asyncio.gather(*(one.close() for one in self.connections), *self._evicting)

    def sent_away(self, uri: str) -> None:
        """GOAWAY: the next session is at ``uri``; where we are when it is empty."""
        target = moved_to(uri)
        if target is not None:
            others = (url for url in self._given if url != target)
            self._urls = (target, *others)
        self._redial()

    def _handler(self, connection: Connection) -> CatalogHandler:
        return _UplinkHandler(self, self._catalog, connection, self._limits)

    async def _dial(self, url: MoqtUrl) -> Connection:
        connection = await connect(
            url,
            handler=self._handler,
            tls=self._tls,
            config=self._config,
            quic=self._quic,
            monitor=self._monitor,
        )
        return await staying(connection, url)

    def _up(self, connection: Connection) -> None:
        if len(self.connections) >= MAX_SESSIONS:
            self._evict(next(iter(self.connections)))
        self._ready_at = asyncio.get_running_loop().time() + ROUND_PAUSE
        self.connections[connection] = None
        connection.when_closed(lambda: self._down(connection))
        self._catalog.announce_on(connection)

    def _evict(self, oldest: Connection) -> None:
        """Close a session that a relay left open after one GOAWAY too many."""
        del self.connections[oldest]
        task = asyncio.get_running_loop().create_task(oldest.close())
        self._evicting.add(task)
        task.add_done_callback(self._evicting.discard)

    def _down(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if not self.connections:
            self._redial()

    def _redial(self) -> None:
        if self._redialling is None and not self._closing:
            self._redialling = asyncio.get_running_loop().create_task(self._dial_again())

    async def _dial_again(self) -> None:
        try:
            # A relay that sends us away at once must not make us dial without rest.
            await asyncio.sleep(self._ready_at - asyncio.get_running_loop().time())
            url, connection = await dial_first(self._urls, self._dial, REDIAL_WINDOW)
        except ConnectFailed as error:
            moved = False
            _log.error("nothing is announced any more: %s", error)
        else:
            _log.warning("announced again on %s", url)
            self._up(connection)
            moved = not connection.may_request
        finally:
            self._redialling = None
        if moved:  # it named another place at once, while we were still dialling
            self._redial()


class _UplinkHandler(CatalogHandler):
    """Serves the catalog; tells the uplink to move."""

    def __init__(
        self, uplink: Uplink, catalog: Catalog, connection: Connection, limits: ServingLimits
    ) -> None:
        super().__init__(catalog, connection, limits)
        self._uplink = uplink

    def on_goaway(self, uri: str, timeout: int) -> None:
        """GOAWAY."""
        self._uplink.sent_away(uri)
