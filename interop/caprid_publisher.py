"""caprid's publisher, which dials a server of ours and waits to be asked."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import moqt
from interop import peers
from interop.cases import Casebook, NotOffered, PeerFault, Stage
from interop.meeting import FIXED, THEIRS, Guest, Meeting, check, groups
from interop.recording import Collector, Namespaces
from moqt.codec.params import Parameters
from moqt.errors import RequestCode, RequestFailed, SessionClosed
from moqt.model import LocationFilter
from moqt.publisher import Catalog, Track

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from moqt.driver import Connection

book: Final = Casebook("caprid", "its publisher at our server")


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


@book.case(20.0)
async def setup(stage: Stage) -> str:
    """SETUP both ways."""
    async with serving(stage) as connection:
        return f"{connection.peer.protocol}, {connection.peer_options.implementation}"


@book.case(20.0)
async def subscribe_namespace(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE of ours brings NAMESPACE."""
    async with serving(stage) as connection:
        seen = Namespaces()
        connection.subscribe_namespace((), seen)
        await seen.until(lambda: THEIRS.namespace in seen.known)


@book.case(20.0)
async def subscribe(stage: Stage) -> str:
    """SUBSCRIBE: two groups, PUBLISH_DONE."""
    async with serving(stage) as connection:
        heard = Collector()
        connection.subscribe(THEIRS, heard)
        await heard.until(lambda: heard.end)
        check(heard, groups(0, 1))
        return f"{len(heard.payloads)} objects, octets right; PUBLISH_DONE {heard.end}"


@book.case(20.0)
async def subscribe_with_fill(stage: Stage) -> str:
    """SUBSCRIBE with fill of what an earlier subscription has brought."""
    async with serving(stage) as connection:
        before = Collector()
        request = connection.subscribe(THEIRS, before)
        await before.until(lambda: len(before.payloads) == len(groups(0, 1)))
        request.cancel()
        heard = Collector()
        fill = Parameters(location_filter=LocationFilter.since(0))
        connection.subscribe(THEIRS, heard, Parameters(fill=fill))
        await heard.until(lambda: heard.end)
        if not heard.fetches:
            largest = heard.info.largest if heard.info else None
            raise NotOffered(
                f"after {len(before.payloads)} objects its SUBSCRIBE_OK says Largest Object"
                f" {largest}, and no fill stream comes before PUBLISH_DONE"
            )
        check(heard, groups(0, 1))
        return f"{len(heard.fetches[0].objects)} filled"


@book.case(20.0)
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


@book.case(20.0)
async def fetch(stage: Stage) -> None:
    """FETCH."""
    async with serving(stage) as connection:
        heard = Collector()
        connection.fetch(THEIRS, heard)
        await refused(heard.until(lambda: heard.end), "FETCH")


@book.case(20.0)
async def track_status(stage: Stage) -> None:
    """TRACK_STATUS."""
    async with serving(stage) as connection:
        await refused(connection.track_status(THEIRS), "TRACK_STATUS")


@book.case(20.0)
async def subscribe_tracks(stage: Stage) -> None:
    """SUBSCRIBE_TRACKS."""
    async with serving(stage) as connection:
        offers = moqt.tracks(connection, THEIRS.namespace)
        try:
            await refused(offers.accepted(), "SUBSCRIBE_TRACKS")
        except SessionClosed as end:
            raise PeerFault(f"a message of draft-22 ends its session: {end}") from None


@book.case(20.0)
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
