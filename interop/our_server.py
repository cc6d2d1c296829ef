"""aiomoqt's interop client, aiomoqt's publisher and caprid's client at a server of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interop import peers
from interop.cases import Casebook, NeedsRelay, PeerFault, Stage, expect
from interop.recording import Collector
from moqt.codec.params import Parameters
from moqt.errors import RequestCode, RequestRefused
from moqt.model import FullTrackName, LocationFilter
from moqt.publisher import Catalog, CatalogHandler, ServingLimits, Track

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.driver import Connection
    from moqt.model import TrackNamespace
    from moqt.session.fetches import IncomingFetch
    from moqt.session.namespaces import IncomingPublishNamespace
    from moqt.session.publications import IncomingSubscribe

tap: Final = Casebook("aiomoqt", "its interop client at our server")
dialling: Final = Casebook("aiomoqt", "its publisher at our server")
caprid: Final = Casebook("caprid", "its client at our server")

GROUP_SIZE: Final = 5
#: Objects a second of a live track.
RATE: Final = 50
#: Case of aiomoqt's interop client -> why our server cannot pass it yet. It is no relay.
FOR_RELAYS: Final = {
    "rendezvous-timeout": "SUBSCRIBE waits for a publisher",
    "announce-subscribe": "SUBSCRIBE is routed to the connection that announced",
    "data-subgroup-basic": "objects of one connection go to another",
    "namespace-discovery": "a track published on one connection is told to another",
    "subscribe-namespace-lifecycle": "a namespace of one connection is told to another",
    "publish-track-only": "PUBLISH",
    "publish-track-subscribe": "PUBLISH",
}
#: Cases that any server passes, and two that an origin of live tracks passes.
FOR_SERVERS: Final = (
    *("setup-only", "announce-only", "publish-namespace-done", "subscribe-error"),
    *("subscribe-before-announce", "fetch", "join"),
)
#: Namespaces under which a track exists as soon as somebody asks for it.
ON_DEMAND: Final = ((b"moq-test", b"fetch"), (b"moq-test", b"join"), (b"hello",))


class Origin:
    """A server's application: live tracks on demand, and announcements of peers."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        #: What peers have announced, and on which connection.
        self.announced: asyncio.Queue[tuple[TrackNamespace, Connection]] = asyncio.Queue()
        #: GOAWAYs that came.
        self.goaways: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._producers: set[asyncio.Task[None]] = set()

    def handler(self, connection: Connection) -> Host:
        """One connection's side of it."""
        return Host(self, connection)

    def demand(self, name: FullTrackName) -> None:
        """Make the live track ``name`` if it is one that exists on demand."""
        with contextlib.suppress(RequestRefused):
            self.catalog.track(name)
            return
        if any(name.namespace[: len(prefix)] == prefix for prefix in ON_DEMAND):
            track = self.catalog.add(Track(name))
            task = asyncio.get_running_loop().create_task(_produce(track))
            self._producers.add(task)

    async def close(self) -> None:
        """Stop producing."""
        for task in self._producers:
            task.cancel()
        await asyncio.gather(*self._producers, return_exceptions=True)


class Host(CatalogHandler):
    """A Catalog's handler that also takes announcements."""

    def __init__(self, origin: Origin, connection: Connection) -> None:
        super().__init__(origin.catalog, connection, ServingLimits())
        self._origin = origin
        self._host = connection

    def on_subscribe(self, request: IncomingSubscribe) -> None:
        """From the catalog; the track may come into being by this."""
        self._origin.demand(request.name)
        super().on_subscribe(request)

    def on_fetch(self, request: IncomingFetch) -> None:
        """From the catalog."""
        self._origin.demand(request.name)
        super().on_fetch(request)

    def on_publish_namespace(self, request: IncomingPublishNamespace) -> None:
        """Accept all but what is ours."""
        if request.namespace == (b"ours",):
            raise RequestRefused(RequestCode.UNINTERESTED, "nobody wants it")
        request.accept()
        self._origin.announced.put_nowait((request.namespace, self._host))

    def on_goaway(self, uri: str, timeout: int) -> None:
        """Remember it."""
        self._origin.goaways.put_nowait((uri, timeout))


async def _produce(track: Track) -> None:
    """GROUP_SIZE objects a group, RATE a second; two groups are there at once."""
    group = 0
    while True:
        writer = track.subgroup(group)
        for obj in range(GROUP_SIZE):
            writer.object(obj, b"%d.%d|ours" % (group, obj))
            if group >= 2:
                await asyncio.sleep(1 / RATE)
        writer.finish()
        group += 1


@contextlib.asynccontextmanager
async def open_origin(stage: Stage) -> AsyncIterator[tuple[Origin, str]]:
    """An Origin behind a server, and its URL."""
    origin = Origin()
    try:
        async with stage.server(origin.handler) as server:
            yield origin, f"moqt://localhost:{server.port}"
    finally:
        await origin.close()


# -- aiomoqt's interop client ------------------------------------------------------------------


async def tap_of(name: str, stage: Stage, url: str) -> str:
    """What aiomoqt's interop client says of one case against the server at ``url``."""
    async with peers.running(
        stage.logs / f"aiomoqt-client-{name}.log",
        peers.executable("aiomoqt", "moq-interop-client"),
        *("-r", url, "-t", name, "--draft", "22", "--tls-disable-verify"),
    ) as client:
        await client.ended()
        return client.said()


def passed(name: str, said: str) -> str:
    """The message of a case that passed; Failed otherwise."""
    message = tap_message(said)
    expect(f"\nok 1 - {name}" in said, message)
    return message


def at(url: str) -> Casebook:
    """Every case of aiomoqt's interop client against whatever answers at ``url``."""
    book = Casebook("aiomoqt", f"its interop client at {url}")

    async def play(name: str, stage: Stage) -> str:
        return passed(name, await tap_of(name, stage, url))

    for name in (*FOR_SERVERS, *FOR_RELAYS):
        book.add(name, partial(play, name), 20.0)
    return book


async def play_tap(name: str, stage: Stage) -> str:
    """One case of aiomoqt's interop client, judged by its TAP."""
    async with open_origin(stage) as (_, url):
        said = await tap_of(name, stage, url)
    message = tap_message(said)
    if f"\nok 1 - {name}" in said:
        return message
    if name in FOR_RELAYS:
        raise NeedsRelay(f"{FOR_RELAYS[name]} ({message})")
    expect(False, message)
    return ""


def tap_message(said: str) -> str:
    """``message`` of the only case in a TAP document, or its last line."""
    for line in said.splitlines():
        key, _, value = line.strip().partition(":")
        if key == "message":
            return value.strip().strip("'\"")
    return said.strip().splitlines()[-1] if said.strip() else "it said nothing"


for _name in (*FOR_SERVERS, *FOR_RELAYS):
    tap.add(_name, partial(play_tap, _name), 20.0)


# -- aiomoqt's publisher, which dials us -------------------------------------------------------

EVENTS: Final = FullTrackName((b"hello", b"you"), b"events")


@contextlib.asynccontextmanager
async def publisher(
    stage: Stage, origin: Origin, url: str, *options: str
) -> AsyncIterator[Connection]:
    """Our connection to moq-pub-bench, once it has announced its namespace."""
    async with peers.aiomoqt_origin(stage.logs, url, "hello/you", "events", "--pub-ns", *options):
        namespace, connection = await origin.announced.get()
        expect(namespace == EVENTS.namespace, f"announced {namespace}")
        yield connection


@dialling.case(20.0)
async def subscribe_and_fill(stage: Stage) -> str:
    """Straight from aiomoqt's publisher, no relay between: fill and live, none twice."""
    async with (
        open_origin(stage) as (origin, url),
        publisher(stage, origin, url, "--prefill", "4") as connection,
    ):
        heard = Collector()
        wanted = Parameters(
            location_filter=LocationFilter.next_object(),
            fill=Parameters(location_filter=LocationFilter.back(3)),
        )
        request = connection.subscribe(EVENTS, heard, wanted)
        await heard.until(lambda: heard.info and len(heard.live) >= 6)
        expect(heard.info is not None and heard.info.fill, "no fill announced")
        await heard.until(lambda: heard.fetches and heard.fetches[0].over)
        request.cancel()
        places = sorted(heard.payloads)
        whole = [(g, o) for g in range(places[0][0], places[-1][0] + 1) for o in range(3)]
        expect(places == whole[: len(places)], f"came: {places}")
        expect(not heard.twice, f"twice: {heard.twice}")
        expect(connection.is_open, "the session is gone")
        return f"{len(heard.fetches[0].objects)} filled, {len(heard.live)} live"


@dialling.case(20.0)
async def fetch(stage: Stage) -> None:
    """FETCH from aiomoqt's publisher."""
    async with (
        open_origin(stage) as (origin, url),
        publisher(stage, origin, url, "--prefill", "4") as connection,
    ):
        heard = Collector()
        connection.fetch(EVENTS, heard, Parameters(location_filter=LocationFilter.groups(1, 2)))
        await heard.until(lambda: heard.end)
        places = heard.fetches[0].places
        expect(places == [(g, o) for g in (1, 2) for o in range(3)], f"came: {places}")


@dialling.case(20.0)
async def its_goaway(stage: Stage) -> None:
    """GOAWAY of a client: we hear it, its running subscription goes on."""
    async with (
        open_origin(stage) as (origin, url),
        publisher(stage, origin, url, "--goaway-after", "1") as connection,
    ):
        heard = Collector()
        connection.subscribe(EVENTS, heard)
        uri, _ = await origin.goaways.get()
        expect(uri == "", f"a client's GOAWAY with URI {uri}")
        count = len(heard.live)
        await heard.until(lambda: len(heard.live) > count + 3)


@dialling.case(20.0)
async def its_end_of_track(stage: Stage) -> str:
    """PUBLISH_DONE after the last stream: the count is right."""
    async with (
        open_origin(stage) as (origin, url),
        publisher(stage, origin, url, "--end-after", "1.5") as connection,
    ):
        heard = Collector()
        connection.subscribe(EVENTS, heard)
        await heard.until(lambda: heard.end)
        code, _, complete = heard.end or (-1, "", False)
        if not complete:
            raise PeerFault(f"its PUBLISH_DONE (code {code:#x}) counts more streams than came")
        return f"code {code:#x} after {len(heard.subgroups)} streams"


# -- caprid's client ---------------------------------------------------------------------------


@caprid.case(20.0)
async def subscribe_then_fetch(stage: Stage) -> str:
    """Current group and live objects by SUBSCRIBE, past groups by FETCH."""
    script = Path(__file__).with_name("caprid_client.py")
    async with (
        open_origin(stage) as (_, url),
        peers.running(
            stage.logs / "caprid-client.log",
            peers.executable("caprid", "python"),
            *(str(script), url.replace("moqt:", "https:"), "hello", "events"),
        ) as client,
    ):
        code = await client.ended()
        said = client.said()
        expect(code == 0, said.strip().splitlines()[-1] if said.strip() else f"exit code {code}")
    report = json.loads(said.strip().splitlines()[-1])
    expect(report["alpn"] == "moqt-22", f"ALPN {report['alpn']}")
    for what in ("live", "fetched"):
        for group, obj, payload in report[what]:
            expect(payload == f"{group}.{obj}|ours", f"{what} {group}.{obj} is {payload!r}")
    places = [tuple(one[:2]) for one in report["fetched"]]
    expect(places == [(g, o) for g in range(2) for o in range(GROUP_SIZE)], f"fetched {places}")
    return f"{len(report['live'])} live, {len(places)} fetched, End {report['end']}"
