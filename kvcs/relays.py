"""The sessions of an endpoint: URLs tried in order, and who has announced what on which."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kvcs.bell import Bell
from kvcs.errors import InvalidInput
from kvcs.names import PublicationName
from moqt.endpoint import connect, serve
from moqt.errors import RequestCode, RequestFailed, RequestRefused, SessionClosed
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved
from transport.errors import ConnectFailed, ConnectFault, InvalidUrl
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from typing import TypeAlias

    from kvcs.discovery import Interest
    from kvcs.manifest_track import ManifestWatch
    from moqt.codec.fields import Token
    from moqt.codec.properties import SetupOptions
    from moqt.driver import Connection
    from moqt.endpoint import Server
    from moqt.errors import MoqtError
    from moqt.model import TrackNamespace
    from moqt.monitor import Monitor
    from moqt.session.namespaces import IncomingPublishNamespace
    from transport.config import ClientTls, QuicOptions, ServerTls

    #: What requests show on sessions that we dial, by value, asked anew for each.
    Credentials: TypeAlias = Callable[[], Iterable[Token]]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

#: Seconds between two rounds over all URLs while there is time left to wait: first, and at most.
ROUND_PAUSE: Final = 0.25
MAX_PAUSE: Final = 4.0
#: Publications one peer may tell us of: far more than a model has at a time, 30 MB of names.
MAX_OFFERS: Final = 1 << 16
#: A URL whose session has died is dialled once more in one retrieval, not for ever.
SESSIONS_PER_URL: Final = 2
#: GOAWAYs that one retrieval follows, and places they add that are remembered: who is sent on and
#: on does not arrive.
MAX_MOVES: Final = 16
#: Seconds that a consumer's last words may take: closing says what they say, its cancellations.
CLOSE_LIMIT: Final = 0.5
#: What another attempt may cure.
_PASSING: Final = (ConnectFault.UNREACHABLE, ConnectFault.TIMEOUT, ConnectFault.REFUSED)


def parse_urls(urls: str | MoqtUrl | Sequence[str | MoqtUrl]) -> tuple[MoqtUrl, ...]:
    """One URL or several, without their fragments; raises InvalidUrl, or InvalidInput for none."""
    several = (urls,) if isinstance(urls, str | MoqtUrl) else tuple(urls)
    if not several:
        raise InvalidInput("no URL to connect to: give at least one, moqt://host[:port]/path")
    parsed = (url if isinstance(url, MoqtUrl) else MoqtUrl.parse(url) for url in several)
    return tuple(replace(url, fragment=None) for url in parsed)


def showing(config: SessionConfig | None, credentials: Credentials | None) -> SessionConfig | None:
    """The settings of sessions that we dial: each of their requests shows ``credentials``.

    Who dials us is shown nothing.
    """
    if credentials is None:
        return config
    return replace(config or SessionConfig(), request_tokens=credentials)


def moved_to(uri: str) -> MoqtUrl | None:
    """The place that a GOAWAY names; None for the present one, or for one that is no URL."""
    if not uri:
        return None
    try:
        return replace(MoqtUrl.parse(uri), fragment=None)
    except InvalidUrl as error:
        _log.warning("GOAWAY to nowhere: %s", error)
        return None


async def staying(connection: Connection, url: MoqtUrl) -> Connection:
    """A new session that is not sent back to where it is at once; else ConnectFailed(REFUSED).

    So says GOAWAY whoever is about to end: its successor will answer there.
    """
    said = connection.session.told_to_go
    if said is not None and not said.uri:
        await connection.close(limit=0.0)
        raise ConnectFailed(ConnectFault.REFUSED, f"{url}: it is about to end; try later")
    return connection


async def dial_first(
    urls: Sequence[MoqtUrl], dial: Callable[[MoqtUrl], Awaitable[_T]], wait: float = 0.0
) -> tuple[MoqtUrl, _T]:
    """The first of ``urls`` that answers, and its session; for ``wait`` seconds, in rounds.

    Raises ConnectFailed: the error of the only URL, or one that names them all.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    pause = ROUND_PAUSE
    while True:
        failures: list[ConnectFailed] = []
        for url in urls:
            try:
                return url, await dial(url)
            except ConnectFailed as error:
                failures.append(error)
            except SessionClosed as error:
                failures.append(ConnectFailed(ConnectFault.REFUSED, f"{url}: {error}"))
            _log.info("no session with %s: %s", url, failures[-1])
        passing = any(failure.fault in _PASSING for failure in failures)
        if not passing or loop.time() + pause > deadline:
            break
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)
    if len(failures) == 1:
        raise failures[0]
    told = "; ".join(map(str, failures))
    raise ConnectFailed(failures[-1].fault, f"none of {len(urls)} URLs answers: {told}")


class Offers:
    """The publications that a peer has told of, by anchor key; bounded, whatever it tells."""

    __slots__ = ("_by_anchor", "_count")

    def __init__(self) -> None:
        self._by_anchor: dict[bytes, dict[PublicationName, None]] = {}
        self._count = 0

    def add(self, name: PublicationName) -> None:
        """Note one; beyond MAX_OFFERS it is not noted."""
        if name not in self and self._count < MAX_OFFERS:
            self._by_anchor.setdefault(name.anchor_key, {})[name] = None
            self._count += 1

    def discard(self, name: PublicationName) -> None:
        """It is offered no longer."""
        if name in self:
            names = self._by_anchor[name.anchor_key]
            del names[name]
            self._count -= 1
            if not names:
                del self._by_anchor[name.anchor_key]

    def clear(self) -> None:
        """None is offered."""
        self._by_anchor.clear()
        self._count = 0

    def under(self, anchor_key: bytes) -> Iterable[PublicationName]:
        """Those of one token prefix."""
        return self._by_anchor.get(anchor_key, ())

    def __contains__(self, name: PublicationName) -> bool:
        return name in self._by_anchor.get(name.anchor_key, ())


class Link(Unserved):
    """One session as a consumer uses it; the RequestHandler of its peer's requests.

    ``url`` is None when the peer dialled us. ``announced`` are the publications that it has
    offered with PUBLISH_NAMESPACE; everything else it may ask for is refused.
    """

    def __init__(
        self, connection: Connection, url: MoqtUrl | None, changed: Callable[[Link], None]
    ) -> None:
        self.connection = connection
        self.url = url
        self.ready = False
        self.over = False
        #: Requests met nothing but silence of late: it may be dead.
        self.silent = False
        #: The peer wants us elsewhere: what runs goes on, nothing new begins here.
        self.leaving = False
        #: Where the next session is to be; for no place, or none that is a URL, here again.
        self.moved_to: MoqtUrl | None = None
        #: Whom else to call when something changes here.
        self.listeners: set[Callable[[], None]] = set()
        self._users = 0
        self._closing: asyncio.Task[None] | None = None
        self.announced = Offers()
        self.interests: dict[TrackNamespace, Interest] = {}
        self.watches: dict[PublicationName, ManifestWatch] = {}
        self._changed = changed

    @property
    def open(self) -> bool:
        """True while requests can be made."""
        return self.ready and not self.over and not self.leaving

    def __str__(self) -> str:
        return "a publisher that connected" if self.url is None else str(self.url)

    def offers(self, name: PublicationName) -> bool:
        """True when the peer has said that it has this publication."""
        return name in self.announced or any(
            name in interest.offers for interest in self.interests.values()
        )

    def enter(self) -> None:
        """Something runs on this session; ``leave`` when it does no longer."""
        self._users += 1

    def leave(self) -> None:
        """After GOAWAY the last to leave closes the session (draft-22 §6.6.1)."""
        self._users -= 1
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self.leaving and not self._users and not self.over and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.connection.close())

    def told(self) -> None:
        """Something has changed on this session, or was learnt there."""
        self._changed(self)
        for listener in tuple(self.listeners):
            listener()

    def on_setup(self, options: SetupOptions) -> None:
        """The session is up."""
        self.ready = True
        self.told()

    def on_publish_namespace(self, request: IncomingPublishNamespace) -> None:
        """Note a publication; what is none interests nobody."""
        try:
            name = PublicationName.from_namespace(request.namespace)
        except InvalidInput as error:
            raise RequestRefused(RequestCode.UNINTERESTED, str(error)) from None
        self.announced.add(name)
        request.on_end = lambda: self._withdrawn(name)
        request.accept()
        self.told()

    def on_goaway(self, uri: str, timeout: int) -> None:
        """The next session is elsewhere; what runs here goes on until then (draft-22 §6.6.1)."""
        if not self.leaving or self.moved_to == self.url:
            self.leaving = True
            self.moved_to = moved_to(uri) or self.url
        self._close_if_left()
        self.told()

    def heard(self, error: MoqtError | None) -> None:
        """A request ended so: who refuses it because it is about to end has said GOAWAY, too."""
        if not isinstance(error, RequestFailed) or not error.refused:
            return
        if error.code == RequestCode.GOING_AWAY:
            self.on_goaway("", 0)

    @property
    def sent_back(self) -> bool:
        """True when the next session is to be where this one is."""
        return self.moved_to is not None and self.moved_to == self.url

    def on_closed(self, code: int, reason: str) -> None:
        """Nothing is announced any more."""
        self.announced.clear()
        self.over = True
        self.told()

    def _withdrawn(self, name: PublicationName) -> None:
        self.announced.discard(name)
        self.told()


class Links:
    """All sessions of one consumer, dialled and accepted; ``changed`` rings for each event."""

    def __init__(
        self,
        config: SessionConfig | None,
        quic: QuicOptions | None,
        monitor: Monitor,
        credentials: Credentials | None = None,
    ) -> None:
        self.changed = Bell()
        self._config = config
        self._dialled = showing(config, credentials)
        self._quic = quic
        self._monitor = monitor
        self._links: list[Link] = []
        self._places: dict[MoqtUrl, ClientTls] = {}
        #: Those among them that only a GOAWAY named, oldest first.
        self._moves: dict[MoqtUrl, None] = {}
        self._server: Server | None = None
        self._dialling = asyncio.Lock()

    @property
    def open(self) -> tuple[Link, ...]:
        """The sessions that can be used, oldest first."""
        return tuple(link for link in self._links if link.open)

    @property
    def listening(self) -> bool:
        """True when publishers may dial us."""
        return self._server is not None

    @property
    def urls(self) -> tuple[MoqtUrl, ...]:
        """Every URL that was given, and the latest that GOAWAYs named, in order."""
        return tuple(self._places)

    async def connect(self, urls: Sequence[MoqtUrl], tls: ClientTls, wait: float = 0.0) -> Link:
        """A session with the first URL that answers; raises ConnectFailed."""
        self._places |= dict.fromkeys(urls, tls)
        for url in urls:
            self._moves.pop(url, None)
        _, link = await dial_first(urls, self._dial, wait)
        return link

    async def listen(self, host: str, port: int, tls: ServerTls) -> int:
        """Accept sessions; returns the port. Raises TransportError."""
        if self._server is not None:
            raise InvalidInput("this consumer listens already: one address is enough")
        self._server = await serve(
            host,
            port,
            tls=tls,
            handler=self._accept,
            config=self._config,
            quic=self._quic,
            monitor=self._monitor,
        )
        return self._server.port

    async def another(
        self, tried: Collection[Link], note: Callable[[str], None], patience: float = 0.0
    ) -> Link | None:
        """A session that is not among ``tried``, opened if need be; None when none is left.

        A URL that sent us back to itself is dialled again for ``patience`` seconds: whoever ends
        there needs a moment to be back. ``note`` is told why a URL gave none.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        back = sum(link.sent_back for link in tried)
        if 0 < back <= MAX_MOVES:  # sent away on and on it rests longer and longer
            await asyncio.sleep(min(ROUND_PAUSE * 2 ** (back - 1), MAX_PAUSE, patience))
        pause = ROUND_PAUSE
        while True:
            link = await self._another(tried, note)
            again = 0 < back <= MAX_MOVES and loop.time() + pause < deadline
            if link is not None or not again:
                return link
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def close(self) -> None:
        """End every session, then stop listening."""
        await asyncio.gather(
            *(
                link.connection.close(limit=0.0 if link.silent else CLOSE_LIMIT)
                for link in self._links
                if link.connection.is_open
            )
        )
        self._links.clear()
        if self._server is not None:
            await self._server.close(limit=CLOSE_LIMIT)

    async def _another(self, tried: Collection[Link], note: Callable[[str], None]) -> Link | None:
        """One round over what is left."""
        async with self._dialling:
            for link in self.open:
                if link not in tried:
                    return link
            for url in self._untried(tried):
                if url not in self._places:
                    continue  # forgotten meanwhile
                try:
                    return await self._dial(url)
                except ConnectFailed as error:
                    note(str(error))  # it names the URL
                except SessionClosed as error:
                    note(f"{url}: {error}")
        return None

    def _untried(self, tried: Collection[Link]) -> list[MoqtUrl]:
        """Where a GOAWAY sent us first, then fresh URLs, then those whose one session has died."""
        if sum(link.moved_to is not None for link in tried) > MAX_MOVES:
            return []
        # Those that sent us back to where they are do not count.
        counts = {
            url: sum(link.url == url and not link.sent_back for link in tried)
            for url in self._places
        }
        alive = {link.url for link in self.open}
        left = [url for url, count in counts.items() if count < SESSIONS_PER_URL]
        named = {link.moved_to for link in tried}
        fresh = (url for url in left if url not in alive)
        return sorted(fresh, key=lambda url: (url not in named, counts[url]))

    async def _dial(self, url: MoqtUrl) -> Link:
        made: list[Link] = []

        def handler(connection: Connection) -> Link:
            made.append(self._accept(connection, url))
            return made[-1]

        tls = self._places[url]
        connection = await connect(
            url,
            handler=handler,
            tls=tls,
            config=self._dialled,
            quic=self._quic,
            monitor=self._monitor,
        )
        await staying(connection, url)
        return made[-1]

    def _accept(self, connection: Connection, url: MoqtUrl | None = None) -> Link:
        link = Link(connection, url, self._link_changed)
        self._links.append(link)
        return link

    def _link_changed(self, link: Link) -> None:
        if link.moved_to is not None and link.url is not None:
            self._remember(link.moved_to, self._places.get(link.url))
        if link.over and link in self._links:
            self._links.remove(link)
        self.changed.ring()

    def _remember(self, url: MoqtUrl, tls: ClientTls | None) -> None:
        """A place that a GOAWAY named; of many only the latest are kept."""
        if url in self._places or tls is None:
            return
        if len(self._moves) >= MAX_MOVES:
            oldest = next(iter(self._moves))
            del self._moves[oldest], self._places[oldest]
        self._places[url] = tls
        self._moves[url] = None
