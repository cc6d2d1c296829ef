"""A peer's client at a server of ours, message by message; each octet compared by SHA-256."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interop import peers
from interop.cases import Casebook, NotOffered, PeerFault, Stage, expect
from interop.recording import Collector
from moqt.model import FullTrackName
from moqt.publisher import Catalog, CatalogHandler, ServingLimits, Track

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from moqt.driver import Connection
    from moqt.session.namespaces import IncomingPublishNamespace
    from moqt.session.publications import IncomingSubscribe
    from moqt.session.publishing import IncomingPublish
    from moqt.session.tracks import IncomingSubscribeTracks

    ForPeer = Callable[[str, Stage], Awaitable[str]]

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


def check(heard: Collector, wanted: list[tuple[int, int]]) -> None:
    """These objects, each once, with their octets."""
    expect(heard.payloads == {place: body(*place) for place in wanted}, f"{sorted(heard.payloads)}")
    expect(not heard.twice, f"twice: {heard.twice}")


PLAYS: Final[list[ForPeer]] = []


def played(play: ForPeer) -> ForPeer:
    """Decorator: a case of each peer, named like its function."""
    PLAYS.append(play)
    return play


async def objects(peer: str, stage: Stage, case: str, wanted: list[tuple[int, int]]) -> str:
    """A case whose script reports objects, in order."""
    async with met(stage, peer, case) as (_, report):
        came = report["objects"]
        expect(came == digests(wanted), f"came: {[one[:2] for one in came]}")
        return f"{len(came)} objects, SHA-256 right"


@played
async def setup(peer: str, stage: Stage) -> str:
    """SETUP both ways."""
    async with met(stage, peer, "setup") as (meeting, report):
        expect(report["alpn"] == "moqt-22", f"ALPN {report['alpn']}")
        (connection,) = meeting.connections
        return f"{report['alpn']}, {connection.peer_options.implementation}"


@played
async def subscribe_namespace(peer: str, stage: Stage) -> str:
    """NAMESPACE of what we have."""
    async with met(stage, peer, "subscribe-namespace") as (_, report):
        expect(report["namespaces"] == [["fixed"]], f"{report['namespaces']}")
        return "NAMESPACE came"


@played
async def publish_namespace(peer: str, stage: Stage) -> str:
    """PUBLISH_NAMESPACE, and its withdrawal."""
    async with met(stage, peer, "publish-namespace") as (meeting, _):
        (request,) = meeting.announced
        expect(request.namespace == THEIRS.namespace, f"{request.namespace}")
        expect(not request.active, "not withdrawn")
        return "accepted, withdrawn"


@played
async def subscribe_with_fill(peer: str, stage: Stage) -> str:
    """Groups 3 to 5 on the fill stream, group 6 live: none missing, none twice."""
    async with met(stage, peer, "subscribe-with-fill") as (_, report):
        expect(report["live"] == digests(groups(6)), f"live {report['live']}")
        if not report["fill"]:
            raise PeerFault("group 6 came live; its stack drops the fill stream")
        expect(report["fill"] == digests(groups(3, 4, 5)), f"fill {report['fill']}")
        return f"{len(report['fill'])} filled, {len(report['live'])} live, SHA-256 right"


@played
async def fetch_ascending(peer: str, stage: Stage) -> str:
    """Groups 1 to 4."""
    return await objects(peer, stage, "fetch-ascending", groups(1, 2, 3, 4))


@played
async def fetch_descending(peer: str, stage: Stage) -> str:
    """Groups 4 to 1; objects of each rise."""
    return await objects(peer, stage, "fetch-descending", groups(4, 3, 2, 1))


@played
async def fetch_part(peer: str, stage: Stage) -> str:
    """From the middle of one group to the middle of another."""
    return await objects(peer, stage, "fetch-part", groups(1, 2, 3)[2:-1])


@played
async def range_filter(peer: str, stage: Stage) -> str:
    """OBJECTID_FILTER on FETCH: objects 0, 2 and 3 of each group."""
    wanted = [place for place in groups(1, 2) if place[1] != 1]
    return await objects(peer, stage, "range-filter", wanted)


@played
async def cancel(peer: str, stage: Stage) -> str:
    """SUBSCRIBE and FETCH cancelled: both end here, and the session goes on."""
    async with met(stage, peer, "cancel") as (meeting, report):
        (request,) = meeting.subscribed
        expect(not request.active, "the subscription goes on")
        expect(report["after"], "nothing answered after")
        return "ended; a request after it was answered"


@played
async def track_status(peer: str, stage: Stage) -> str:
    """Largest Object of the track."""
    async with met(stage, peer, "track-status") as (_, report):
        largest = report["largest"]
        expect(largest == [GROUPS - 1, OBJECTS - 1], f"Largest {largest}")
        return f"Largest {largest}"


@played
async def publish(peer: str, stage: Stage) -> str:
    """PUBLISH of a track of its own, two groups, PUBLISH_DONE."""
    async with met(stage, peer, "publish") as (meeting, _):
        (heard,) = meeting.heard
        await heard.until(lambda: heard.end)
        check(heard, groups(0, 1))
        return f"{len(heard.payloads)} objects, octets right; PUBLISH_DONE {heard.end}"


@played
async def subscribe_tracks(peer: str, stage: Stage) -> str:
    """SUBSCRIBE_TRACKS: our PUBLISH is taken, a group comes."""
    return await objects(peer, stage, "subscribe-tracks", groups(6))


for _book, _peer in ((aiomoqt, "aiomoqt"), (caprid, "caprid")):
    for _play in PLAYS:
        _book.add(_play.__name__.replace("_", "-"), partial(_play, _peer), 20.0)
