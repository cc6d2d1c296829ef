"""Our client at aiomoqt's relay, with aiomoqt's publisher behind it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import moqt
from interop import peers
from interop.cases import Casebook, PeerFault, Stage, expect
from interop.recording import Answer, Collector, Namespaces
from moqt.codec.params import Parameters
from moqt.errors import RequestCode, RequestFailed, SessionClosed
from moqt.model import (
    FullTrackName,
    GroupOrder,
    LocationFilter,
    RangeFilter,
    RangeFilterType,
    Span,
)
from transport.config import ClientTls

if TYPE_CHECKING:
    from moqt.driver import Connection

book: Final = Casebook("aiomoqt", "our client at its relay")

GROUP_SIZE: Final = 3
#: Groups that the origin holds as published before anyone came.
PREFILL: Final = 6
LIVE: Final = FullTrackName((b"hello",), b"events")
#: From the next object on. Unfiltered, aiomoqt's relay replays its cache as if it were live.
EDGE: Final = Parameters(location_filter=LocationFilter.next_object())
UNKNOWN: Final = FullTrackName((b"nonexistent", b"namespace"), b"test-track")


async def live(stage: Stage) -> None:
    """The live track exists."""
    await stage.origin("hello", "--prefill", str(PREFILL))


def whole_groups(first: int, last: int) -> list[tuple[int, int]]:
    """All Locations of these groups."""
    return [(group, obj) for group in range(first, last + 1) for obj in range(GROUP_SIZE)]


def check_payloads(heard: Collector) -> None:
    """moq-pub-bench writes the Location into the payload."""
    for (group, obj), payload in heard.payloads.items():
        expect(payload.startswith(b"%d.%d|" % (group, obj)), f"{group}.{obj} is {payload[:16]!r}")


async def refused(connection: Connection, code: RequestCode) -> None:
    """SUBSCRIBE and FETCH of an unknown track are refused with ``code``."""
    for ask in (connection.subscribe, connection.fetch):
        heard = Collector()
        ask(UNKNOWN, heard)
        try:
            await heard.until(partial(getattr, heard, "info"))
        except RequestFailed as error:
            expect(error.code == code, f"refused with {error}, not {code.name}")
        else:
            expect(False, "accepted")


async def still_works(connection: Connection) -> None:
    """The session answers another request."""
    await connection.track_status(LIVE)


@book.case()
async def setup(stage: Stage) -> str:
    """SETUP both ways."""
    async with stage.session() as connection:
        return f"{connection.peer.protocol}, {connection.peer_options.implementation}"


@book.case()
async def publish_namespace(stage: Stage) -> None:
    """PUBLISH_NAMESPACE, OK, withdrawn by reset; the session goes on."""
    async with stage.session() as connection:
        answer = Answer()
        request = connection.publish_namespace((b"moq-test", b"interop"), answer)
        await answer.until(lambda: answer.ok)
        request.cancel()
        again = Answer()
        connection.publish_namespace((b"moq-test", b"again"), again)
        await again.until(lambda: again.ok)


@book.case()
async def unknown_track(stage: Stage) -> None:
    """SUBSCRIBE and FETCH of what nobody has: REQUEST_ERROR, and the session goes on."""
    async with stage.session() as connection:
        await refused(connection, RequestCode.DOES_NOT_EXIST)


@book.case(20.0)
async def subscribe_live(stage: Stage) -> str:
    """Objects of a live track arrive whole, in order within their streams."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        request = connection.subscribe(LIVE, heard, EDGE)
        await heard.until(lambda: len(heard.live) >= 4 * GROUP_SIZE)
        check_payloads(heard)
        for stream in heard.subgroups:
            expect(stream.places == sorted(stream.places), f"out of order: {stream.places}")
        request.cancel()
        return f"{len(heard.subgroups)} streams, {len(heard.twice)} duplicates"


@book.case(20.0)
async def subscribe_unfiltered(stage: Stage) -> str:
    """Without a Location Filter: its relay replays what it has, then goes on live."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        connection.subscribe(LIVE, heard)
        await heard.until(lambda: len(heard.live) >= 4 * GROUP_SIZE)
        check_payloads(heard)
        resets = sum(isinstance(stream.over, int) for stream in heard.subgroups)
        return f"{len(heard.twice)} duplicates, {resets} resets"


@book.case(20.0)
async def subscribe_with_fill(stage: Stage) -> str:
    """Past groups on the fill stream, then live: no Location missing, none twice."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        parameters = Parameters(
            location_filter=LocationFilter.next_object(),
            fill=Parameters(location_filter=LocationFilter.back(3)),
        )
        request = connection.subscribe(LIVE, heard, parameters)
        await heard.until(lambda: heard.info)
        await heard.until(
            lambda: heard.fetches and heard.fetches[0].over and len(heard.live) >= 2 * GROUP_SIZE
        )
        request.cancel()
    check_payloads(heard)
    places = sorted(heard.payloads)
    missing = sorted(set(whole_groups(places[0][0], places[-1][0] - 1)) - set(places))
    expect(heard.fetches[0].over == "fin", f"fill ended with {heard.fetches[0].over}")
    expect(not missing, f"missing {missing}")
    if heard.twice:
        raise PeerFault(f"{heard.twice} twice: its relay resolves fill and live apart")
    return f"{len(heard.fetches[0].objects)} filled"


@book.case(20.0)
async def subscribe_with_object_filter(stage: Stage) -> None:
    """OBJECTID_FILTER on SUBSCRIBE: only the first object of each group."""
    await live(stage)
    first = RangeFilter(RangeFilterType.OBJECT_ID, (Span(0, 0),))
    async with stage.session() as connection:
        heard = Collector()
        connection.subscribe(LIVE, heard, replace(EDGE, range_filters=(first,)))
        await heard.until(lambda: len(heard.live) >= GROUP_SIZE)
        check_payloads(heard)
        expect({obj for _, obj in heard.payloads} == {0}, "objects that the filter excludes")


@book.case(20.0)
async def pause_and_resume(stage: Stage) -> None:
    """REQUEST_UPDATE with FORWARD 0, then 1."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        request = connection.subscribe(LIVE, heard, EDGE)
        await heard.until(lambda: heard.live)
        request.update(Parameters(forward=False))
        await connection.track_status(LIVE)
        await asyncio.sleep(1.0)  # nothing says when the last object has come: look for silence
        before = len(heard.live)
        await asyncio.sleep(1.0)
        paused = len(heard.live)
        request.update(Parameters(forward=True))
        await heard.until(lambda: len(heard.live) > paused + GROUP_SIZE)
        check_payloads(heard)
        expect(paused == before, f"{paused - before} objects while paused")


async def fetched(stage: Stage, parameters: Parameters) -> Collector:
    """All of one FETCH of the live track."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        connection.fetch(LIVE, heard, parameters)
        await heard.until(lambda: heard.end)
    check_payloads(heard)
    expect(heard.info is not None, "done without FETCH_OK")
    return heard


@book.case()
async def fetch_ascending(stage: Stage) -> str:
    """Groups 1 to 3, in order."""
    heard = await fetched(stage, Parameters(location_filter=LocationFilter.groups(1, 3)))
    places = heard.fetches[0].places
    expect(places == whole_groups(1, 3), f"came: {places}")
    return f"End {tuple(heard.info.end) if heard.info and heard.info.end else None}"


@book.case()
async def fetch_descending(stage: Stage) -> str:
    """Groups 3, 2, 1; objects of each rise."""
    parameters = Parameters(
        location_filter=LocationFilter.groups(1, 3), group_order=GroupOrder.DESCENDING
    )
    heard = await fetched(stage, parameters)
    places = heard.fetches[0].places
    wanted = [place for group in (3, 2, 1) for place in whole_groups(group, group)]
    expect(places == wanted, f"came: {places}")
    end = heard.info.end if heard.info else None
    if end != (3, GROUP_SIZE - 1):
        raise PeerFault(f"all objects came, but FETCH_OK ends at {tuple(end or ())}, not (3, 2)")
    return f"End {tuple(end)}"


@book.case()
async def fetch_with_object_filter(stage: Stage) -> None:
    """OBJECTID_FILTER on FETCH: the middle object of each group."""
    middle = RangeFilter(RangeFilterType.OBJECT_ID, (Span(1, 1),))
    heard = await fetched(
        stage,
        Parameters(location_filter=LocationFilter.groups(0, 4), range_filters=(middle,)),
    )
    places = heard.fetches[0].places
    expect(places == [(group, 1) for group in range(5)], f"came: {places}")


@book.case()
async def fetch_unfiltered(stage: Stage) -> None:
    """Without a Location Filter: everything up to Largest Object."""
    heard = await fetched(stage, Parameters())
    places = heard.fetches[0].places
    if places == whole_groups(0, 0):
        raise PeerFault("its relay reads a FETCH without LOCATION_FILTER as group 0 alone")
    expect(len(places) >= PREFILL * GROUP_SIZE, f"came: {places}")


@book.case()
async def track_status(stage: Stage) -> str:
    """Largest Object of the live track."""
    await live(stage)
    async with stage.session() as connection:
        answer = await connection.track_status(LIVE)
        largest = answer.parameters.largest_object
        expect(largest is not None and largest >= (PREFILL - 1, 2), f"Largest {largest}")
        try:
            await connection.track_status(UNKNOWN)
        except RequestFailed as error:
            return f"Largest {tuple(largest or ())}; unknown: {error}"
        expect(False, "status of an unknown track")
    return ""


@book.case()
async def subscribe_namespace(stage: Stage) -> None:
    """NAMESPACE for what is there, for what comes, NAMESPACE_DONE for what goes."""
    await live(stage)
    async with stage.session() as connection, stage.session() as other:
        seen = Namespaces()
        connection.subscribe_namespace((b"hello",), seen)
        await seen.until(lambda: (b"hello",) in seen.known)
        more = Namespaces()
        connection.subscribe_namespace((b"ours",), more)
        await more.until(lambda: more.ok)
        answer = Answer()
        announced = other.publish_namespace((b"ours", b"\xfe\xb4\x00"), answer)
        await more.until(lambda: (b"ours", b"\xfe\xb4\x00") in more.known)
        announced.cancel()
        await more.until(lambda: more.lost)


@book.case(20.0)
async def subscribe_tracks(stage: Stage) -> str:
    """SUBSCRIBE_TRACKS: the live track is offered, accepted, and read."""
    await live(stage)
    async with (
        stage.session() as connection,
        moqt.tracks(connection, LIVE.namespace) as offers,
    ):
        async for offer in offers:
            expect(offer.name == LIVE, f"offered {offer.name}")
            async with offer.accept() as objects:
                came = [await anext(objects) for _ in range(2 * GROUP_SIZE)]
            break
        for one in came:
            start = b"%d.%d|" % (one.group, one.object)
            expect(one.payload.startswith(start) or one.status, f"{one.location} is another")
        return f"{len(came)} objects of {'a PUBLISH' if offer.request else 'a track skipped'}"


@book.case(20.0)
async def cancel_subscribe(stage: Stage) -> str:
    """Cancelled in full flow: the session goes on and nothing more is reported."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        request = connection.subscribe(LIVE, heard, EDGE)
        await heard.until(lambda: heard.live)
        request.cancel()
        count = len(heard.live)
        await still_works(connection)
        await asyncio.sleep(0.5)  # the origin publishes 10 objects in this time
        expect(len(heard.live) == count, "objects after the cancellation")
        again = Collector()
        connection.subscribe(LIVE, again, EDGE)
        await again.until(lambda: again.live)
        return "subscribed again"


@book.case()
async def cancel_fetch(stage: Stage) -> None:
    """Cancelled at once."""
    await live(stage)
    async with stage.session() as connection:
        for filters in (LocationFilter.groups(0, 5), LocationFilter.groups(2, 3)):
            connection.fetch(LIVE, Collector(), Parameters(location_filter=filters)).cancel()
        await still_works(connection)
        heard = Collector()
        wanted = Parameters(location_filter=LocationFilter.groups(0, 1))
        connection.fetch(LIVE, heard, wanted)
        await heard.until(lambda: heard.end)
        expect(heard.fetches[0].places == whole_groups(0, 1), f"{heard.fetches[0].places}")


@book.case()
async def cancel_namespaces(stage: Stage) -> None:
    """SUBSCRIBE_NAMESPACE and PUBLISH_NAMESPACE cancelled before and after their answer."""
    async with stage.session() as connection:
        connection.subscribe_namespace((b"one",), Namespaces()).cancel()
        connection.publish_namespace((b"one", b"more"), Answer()).cancel()
        seen = Namespaces()
        request = connection.subscribe_namespace((b"two",), seen)
        await seen.until(lambda: seen.ok)
        request.cancel()
        again = Namespaces()
        connection.subscribe_namespace((b"two",), again)
        await again.until(lambda: again.ok)


@book.case(15.0)
async def our_goaway(stage: Stage) -> str:
    """Our GOAWAY: running subscriptions go on, the peer ends the session or leaves it to us."""
    await live(stage)
    async with stage.session() as connection:
        heard = Collector()
        connection.subscribe(LIVE, heard, EDGE)
        await heard.until(lambda: heard.live)
        connection.goaway()
        count = len(heard.live)
        await heard.until(lambda: len(heard.live) > count + GROUP_SIZE)
        await still_works(connection)
        return "subscription and new requests go on"


@book.case(20.0)
async def datagrams(stage: Stage) -> str:
    """A track whose objects are datagrams."""
    await stage.origin("datagrams", "-D")
    async with stage.session() as connection:
        heard = Collector()
        connection.subscribe(FullTrackName((b"datagrams",), b"events"), heard, EDGE)
        await heard.until(lambda: len(heard.datagrams) >= 2 * GROUP_SIZE)
        check_payloads(heard)
        expect(all(head.subgroup is None for head, _ in heard.datagrams), "a subgroup")
        return f"{len(heard.live)} on streams"


@book.case(20.0)
async def gaps_and_padding(stage: Stage) -> None:
    """Even ids only, gap properties on each object, PADDING before."""
    await stage.origin("gaps", "--gaps", "--padding", "100")
    async with stage.session() as connection:
        heard = Collector()
        connection.subscribe(FullTrackName((b"gaps",), b"events"), heard, EDGE)
        await heard.until(lambda: len(heard.live) >= 3 * GROUP_SIZE)
        odd = [place for place in heard.payloads if place[0] % 2 or place[1] % 2]
        expect(not odd, f"{odd}")
        expect(any(head.properties for head, _ in heard.live), "no properties")


@book.case(30.0)
async def relay_goes(stage: Stage) -> str:
    """The relay is told to end in full flow: the subscription hears of it."""
    async with peers.aiomoqt_relay(stage.logs, stage.certificates, "going") as (relay, url):
        async with peers.aiomoqt_origin(stage.logs, url, "going", "events", "--pub-both"):
            connection = await moqt.connect(url, tls=ClientTls(ca_file=stage.certificates.ca))
            heard = Collector()
            connection.subscribe(FullTrackName((b"going",), b"events"), heard, EDGE)
            await heard.until(lambda: heard.live)
            await relay.stop()
            ended = await connection.wait_closed()
        expect(isinstance(heard.error, SessionClosed), f"the subscription heard {heard.error}")
        expect(all(stream.over is not None for stream in heard.subgroups), "a stream left open")
        return str(ended)
