"""A peer's client at a server of ours, message by message; each octet compared by SHA-256."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import moqt
from interop import peers
from interop.cases import Casebook, NotOffered, PeerFault, Stage, expect
from interop.recording import Collector, Namespaces
from moqt.codec.params import Parameters
from moqt.errors import RequestCode, RequestFailed, SessionClosed
from moqt.model import FullTrackName, LocationFilter
from moqt.publisher import Catalog, CatalogHandler, ServingLimits, Track

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from moqt.driver import Connection
    from moqt.session.namespaces import IncomingPublishNamespace
    from moqt.session.publications import IncomingSubscribe
    from moqt.session.publishing import IncomingPublish
    from moqt.session.tracks import IncomingSubscribeTracks

aiomoqt: Final = Casebook("aiomoqt", "its client at our server, by message")
caprid: Final = Casebook("caprid", "its client at our server, by message")

FIXED: Final = FullTrackName((b"fixed",), b"track")
#: What its client publishes, if it can.
THEIRS: Final = FullTrackName((b"theirs",), b"track")
GROUPS: Final = 6
OBJECTS: Final = 4
#: Octets of an object: some packets, and no round number.
SIZE: Final = 5_021
#: Seconds after which a group more is published to whoever is there by then.
LATER: Final = 0.5


def body(group: int, obj: int) -> bytes:
    """The payload of that Location, the same on both sides."""
    return hashlib.shake_128(b"%d.%d" % (group, obj)).digest(SIZE)


def digests(places: list[tuple[int, int]]) -> list[list[Any]]:
    """As the peers' scripts report objects."""
    return [[group, obj, hashlib.sha256(body(group, obj)).hexdigest()] for group, obj in places]


def groups(*numbers: int) -> list[tuple[int, int]]:
    """All Locations of these groups, in this order."""
    return [(group, obj) for group in numbers for obj in range(OBJECTS)]


class Meeting:
    """A server's application: one track with a past and a future; what the peer brings is kept."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.catalog.announce(FIXED.namespace)
        self.track = self.catalog.add(Track(FIXED))
        for group in range(GROUPS):
            self.publish(group)
        self.announced: list[IncomingPublishNamespace] = []
        self.subscribed: list[IncomingSubscribe] = []
        self.heard: list[Collector] = []
        self.connections: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def handler(self, connection: Connection) -> Guest:
        """One connection's side of it."""
        self.connections.append(connection)
        return Guest(self, connection)

    def publish(self, group: int) -> None:
        """One whole group."""
        writer = self.track.subgroup(group)
        for obj in range(OBJECTS):
            writer.object(obj, body(group, obj))
        writer.finish()

    def publish_later(self) -> None:
        """One group more, once the peer has had time to take the answer in."""

        async def publish() -> None:
            await asyncio.sleep(LATER)
            self.publish(GROUPS)

        if not self._tasks:
            self._tasks.add(asyncio.get_running_loop().create_task(publish()))


class Guest(CatalogHandler):
    """A Catalog's handler that also takes what the peer offers."""

    def __init__(self, meeting: Meeting, connection: Connection) -> None:
        super().__init__(meeting.catalog, connection, ServingLimits())
        self._meeting = meeting

    def on_subscribe(self, request: IncomingSubscribe) -> None:
        """From the catalog; a group more follows."""
        super().on_subscribe(request)
        self._meeting.subscribed.append(request)
        self._meeting.publish_later()

    def on_subscribe_tracks(self, request: IncomingSubscribeTracks) -> None:
        """From the catalog; a group more follows."""
        super().on_subscribe_tracks(request)
        self._meeting.publish_later()

    def on_publish_namespace(self, request: IncomingPublishNamespace) -> None:
        """Accept it."""
        request.accept()
        self._meeting.announced.append(request)

    def on_publish(self, request: IncomingPublish) -> None:
        """Take all of it."""
        self._meeting.heard.append(Collector())
        request.accept(self._meeting.heard[-1])


@contextlib.asynccontextmanager
async def met(stage: Stage, peer: str, case: str) -> AsyncIterator[tuple[Meeting, dict[str, Any]]]:
    """The meeting after one case of the peer's script, and what that reports."""
    meeting = Meeting()
    script = Path(__file__).with_name(f"{peer}_side.py")
    async with (
        stage.server(meeting.handler) as server,
        peers.running(
            stage.logs / f"{peer}-{case}.log",
            peers.executable(peer, "python"),
            *(str(script), case, str(server.port)),
        ) as client,
    ):
        code = await client.ended()
        lines = client.said().strip().splitlines() or ["it said nothing"]
        expect(code == 0, f"exit code {code}: {lines[-1]}")
        report: dict[str, Any] = json.loads(lines[-1])
        if "absent" in report:
            raise NotOffered(report["absent"])
        if "fault" in report:
            raise PeerFault(report["fault"])
        yield meeting, report


def register(book: Casebook, peer: str) -> None:  # noqa: C901 - a list of cases
    """The same cases for each peer."""

    async def objects(stage: Stage, case: str, wanted: list[tuple[int, int]]) -> str:
        async with met(stage, peer, case) as (_, report):
            came = report["objects"]
            expect(came == digests(wanted), f"came: {[one[:2] for one in came]}")
            return f"{len(came)} objects, SHA-256 right"

    @book.case(20.0)
    async def setup(stage: Stage) -> str:
        """SETUP both ways."""
        async with met(stage, peer, "setup") as (meeting, report):
            expect(report["alpn"] == "moqt-22", f"ALPN {report['alpn']}")
            (connection,) = meeting.connections
            return f"{report['alpn']}, {connection.peer_options.implementation}"

    @book.case(20.0)
    async def subscribe_namespace(stage: Stage) -> str:
        """NAMESPACE of what we have."""
        async with met(stage, peer, "subscribe-namespace") as (_, report):
            expect(report["namespaces"] == [["fixed"]], f"{report['namespaces']}")
            return "NAMESPACE came"

    @book.case(20.0)
    async def publish_namespace(stage: Stage) -> str:
        """PUBLISH_NAMESPACE, and its withdrawal."""
        async with met(stage, peer, "publish-namespace") as (meeting, _):
            (request,) = meeting.announced
            expect(request.namespace == THEIRS.namespace, f"{request.namespace}")
            expect(not request.active, "not withdrawn")
            return "accepted, withdrawn"

    @book.case(20.0)
    async def subscribe_with_fill(stage: Stage) -> str:
        """Groups 3 to 5 on the fill stream, group 6 live: none missing, none twice."""
        async with met(stage, peer, "subscribe-with-fill") as (_, report):
            expect(report["live"] == digests(groups(6)), f"live {report['live']}")
            if not report["fill"]:
                raise PeerFault("group 6 came live; its stack drops the fill stream")
            expect(report["fill"] == digests(groups(3, 4, 5)), f"fill {report['fill']}")
            return f"{len(report['fill'])} filled, {len(report['live'])} live, SHA-256 right"

    @book.case(20.0)
    async def fetch_ascending(stage: Stage) -> str:
        """Groups 1 to 4."""
        return await objects(stage, "fetch-ascending", groups(1, 2, 3, 4))

    @book.case(20.0)
    async def fetch_descending(stage: Stage) -> str:
        """Groups 4 to 1; objects of each rise."""
        return await objects(stage, "fetch-descending", groups(4, 3, 2, 1))

    @book.case(20.0)
    async def fetch_part(stage: Stage) -> str:
        """From the middle of one group to the middle of another."""
        return await objects(stage, "fetch-part", groups(1, 2, 3)[2:-1])

    @book.case(20.0)
    async def range_filter(stage: Stage) -> str:
        """OBJECTID_FILTER on FETCH: objects 0, 2 and 3 of each group."""
        wanted = [place for place in groups(1, 2) if place[1] != 1]
        return await objects(stage, "range-filter", wanted)

    @book.case(20.0)
    async def cancel(stage: Stage) -> str:
        """SUBSCRIBE and FETCH cancelled: both end here, and the session goes on."""
        async with met(stage, peer, "cancel") as (meeting, report):
            (request,) = meeting.subscribed
            expect(not request.active, "the subscription goes on")
            expect(report["after"], "nothing answered after")
            return "ended; a request after it was answered"

    @book.case(20.0)
    async def track_status(stage: Stage) -> str:
        """Largest Object of the track."""
        async with met(stage, peer, "track-status") as (_, report):
            largest = report["largest"]
            expect(largest == [GROUPS - 1, OBJECTS - 1], f"Largest {largest}")
            return f"Largest {largest}"

    @book.case(20.0)
    async def publish(stage: Stage) -> str:
        """PUBLISH of a track of its own, two groups, PUBLISH_DONE."""
        async with met(stage, peer, "publish") as (meeting, _):
            (heard,) = meeting.heard
            await heard.until(lambda: heard.end)
            check(heard, groups(0, 1))
            return f"{len(heard.payloads)} objects, octets right; PUBLISH_DONE {heard.end}"

    @book.case(20.0)
    async def subscribe_tracks(stage: Stage) -> str:
        """SUBSCRIBE_TRACKS: our PUBLISH is taken, a group comes."""
        return await objects(stage, "subscribe-tracks", groups(6))


# -- caprid's publisher, which dials us and waits to be asked ----------------------------------

publisher: Final = Casebook("caprid", "its publisher at our server")


@contextlib.asynccontextmanager
async def serving(stage: Stage) -> AsyncIterator[Connection]:
    """Our connection to caprid's publisher of theirs/track, once it is there."""
    arrived: asyncio.Queue[Connection] = asyncio.Queue()
    meeting = Meeting()

    def handler(connection: Connection) -> Guest:
        arrived.put_nowait(connection)
        return meeting.handler(connection)

    async with (
        stage.server(handler) as server,
        peers.running(
            stage.logs / "caprid-publisher.log",
            peers.executable("caprid", "python"),
            *(str(Path(__file__).with_name("caprid_side.py")), "serve", str(server.port)),
        ),
    ):
        connection = await arrived.get()
        await connection.ready()
        yield connection


@publisher.case(20.0)
async def setup(stage: Stage) -> str:
    """SETUP both ways."""
    async with serving(stage) as connection:
        return f"{connection.peer.protocol}, {connection.peer_options.implementation}"


@publisher.case(20.0)
async def subscribe_namespace(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE of ours brings NAMESPACE."""
    async with serving(stage) as connection:
        seen = Namespaces()
        connection.subscribe_namespace((), seen)
        await seen.until(lambda: THEIRS.namespace in seen.known)


@publisher.case(20.0)
async def subscribe(stage: Stage) -> str:
    """SUBSCRIBE: two groups, PUBLISH_DONE."""
    async with serving(stage) as connection:
        heard = Collector()
        connection.subscribe(THEIRS, heard)
        await heard.until(lambda: heard.end)
        check(heard, groups(0, 1))
        return f"{len(heard.payloads)} objects, octets right; PUBLISH_DONE {heard.end}"


@publisher.case(20.0)
async def subscribe_with_fill(stage: Stage) -> str:
    """SUBSCRIBE with fill: what is live comes; whether a fill does, SUBSCRIBE_OK says."""
    async with serving(stage) as connection:
        heard = Collector()
        fill = Parameters(location_filter=LocationFilter.since(0))
        connection.subscribe(THEIRS, heard, Parameters(fill=fill))
        await heard.until(lambda: heard.end)
        check(heard, groups(0, 1))
        if not heard.fetches:
            raise NotOffered("it takes FILL_PARAMETERS and opens no fill stream; live objects came")
        return f"{len(heard.fetches[0].objects)} filled"


@publisher.case(20.0)
async def cancel(stage: Stage) -> None:
    """SUBSCRIBE cancelled, and made again."""
    async with serving(stage) as connection:
        heard = Collector()
        request = connection.subscribe(THEIRS, heard)
        await heard.until(lambda: heard.info)
        request.cancel()
        again = Collector()
        connection.subscribe(THEIRS, again)
        await again.until(lambda: again.info)


async def refused(answer: Awaitable[object], message: str) -> None:
    """NotOffered when its publisher says NOT_SUPPORTED."""
    try:
        await answer
    except RequestFailed as error:
        if error.code == RequestCode.NOT_SUPPORTED:
            raise NotOffered(f"{message} is answered with {error}") from None
        raise


@publisher.case(20.0)
async def fetch(stage: Stage) -> None:
    """FETCH."""
    async with serving(stage) as connection:
        heard = Collector()
        connection.fetch(THEIRS, heard)
        await refused(heard.until(lambda: heard.end), "FETCH")


@publisher.case(20.0)
async def track_status(stage: Stage) -> None:
    """TRACK_STATUS."""
    async with serving(stage) as connection:
        await refused(connection.track_status(THEIRS), "TRACK_STATUS")


@publisher.case(20.0)
async def subscribe_tracks(stage: Stage) -> None:
    """SUBSCRIBE_TRACKS."""
    async with serving(stage) as connection:
        offers = moqt.tracks(connection, THEIRS.namespace)
        try:
            await refused(offers.accepted(), "SUBSCRIBE_TRACKS")
        except SessionClosed as end:
            raise PeerFault(f"a message of draft-22 ends its session: {end}") from None


@publisher.case(20.0)
async def publish(stage: Stage) -> str:
    """PUBLISH of ours."""
    async with serving(stage) as connection:
        catalog = Catalog()
        answers: asyncio.Queue[Any] = asyncio.Queue()
        catalog.publish(catalog.add(Track(FIXED)), connection, answer=answers.put_nowait)
        error = await answers.get()
        if error is None:
            return "accepted"
        raise NotOffered(f"PUBLISH is answered with {error}")


def check(heard: Collector, wanted: list[tuple[int, int]]) -> None:
    """These objects, each once, with their octets."""
    expect(heard.payloads == {place: body(*place) for place in wanted}, f"{sorted(heard.payloads)}")
    expect(not heard.twice, f"twice: {heard.twice}")


register(aiomoqt, "aiomoqt")
register(caprid, "caprid")
