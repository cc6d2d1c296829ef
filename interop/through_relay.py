"""Our publisher, aiomoqt's relay, our subscriber: octets compared, duplicates counted."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import moqt
from interop.cases import Casebook, PeerFault, Stage, expect
from interop.recording import Answer, Collector, Namespaces
from moqt.codec.params import Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import DoneCode, RequestFailed
from moqt.model import FullTrackName, GroupOrder, LocationFilter, RangeFilter, RangeFilterType, Span
from moqt.publisher import Catalog, Track

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.driver import Connection

book: Final = Casebook("aiomoqt", "ours through its relay")

GROUPS: Final = 6
OBJECTS: Final = 4
#: Octets of an object: many packets, and no round number.
SIZE: Final = 50_021


def body(group: int, obj: int) -> bytes:
    """The payload of that Location, the same on both sides."""
    return hashlib.shake_128(b"%d.%d" % (group, obj)).digest(SIZE)


def publish(track: Track, *groups: int) -> None:
    """Whole groups, a subgroup each."""
    for group in groups:
        writer = track.subgroup(group)
        for obj in range(OBJECTS):
            writer.object(obj, body(group, obj))
        writer.finish()


def places(first: int, last: int) -> list[tuple[int, int]]:
    """All Locations of these groups."""
    return [(group, obj) for group in range(first, last + 1) for obj in range(OBJECTS)]


def check_octets(heard: Collector, wanted: list[tuple[int, int]]) -> None:
    """Each wanted object came whole, and nothing else."""
    came = heard.payloads
    missing = sorted(set(wanted) - set(came))
    more = sorted(set(came) - set(wanted))
    expect(not missing, f"missing {missing}")
    expect(not more, f"not asked for: {more}")
    for head, octets in heard.objects:
        right = head.status or octets == body(*head.location)
        expect(right, f"other octets at {head.location}")


def check_twice(heard: Collector, newest: int) -> str:
    """Only the group that was newest at the SUBSCRIBE may come twice, and by the relay's fault."""
    expect({group for group, _ in heard.twice} <= {newest}, f"twice: {heard.twice}")
    if heard.twice:
        raise PeerFault(
            f"complete, but {len(heard.twice)} objects of the newest group come on the fill and "
            "again live: its relay resolves the two apart"
        )
    return f"{len(heard.fetches[0].objects)} on the fill"


@contextlib.asynccontextmanager
async def published(
    stage: Stage, name: str, *, groups: int = GROUPS
) -> AsyncIterator[tuple[Track, Connection]]:
    """A track of ours announced to the relay, ``groups`` groups of it published; a consumer."""
    catalog = Catalog()
    properties = TrackProperties(default_publisher_priority=100, max_cache_duration=60_000)
    namespace = (b"ours", b"\xfe\xb4\x00", name.encode())
    track = catalog.add(Track(FullTrackName(namespace, b"\x00track"), properties))
    publish(track, *range(groups))
    refusals: list[RequestFailed] = []
    catalog.on_refused = lambda _, error: refusals.append(error)
    async with stage.session(catalog.handler) as producer, stage.session() as consumer:
        catalog.announce(namespace)
        catalog.announce_on(producer)
        await announced(consumer, track.name)
        expect(not refusals, f"refused: {refusals}")
        yield track, consumer
        expect(producer.is_open, "the publisher's session is gone")


async def announced(consumer: Connection, name: FullTrackName) -> None:
    """Wait until the relay knows the namespace."""
    seen = Namespaces()
    request = consumer.subscribe_namespace(name.namespace, seen)
    await seen.until(lambda: name.namespace in seen.known)
    request.cancel()


@book.case(20.0)
async def live(stage: Stage) -> None:
    """SUBSCRIBE from the next object, then two groups."""
    async with published(stage, "live", groups=0) as (track, consumer):
        heard = Collector()
        consumer.subscribe(track.name, heard)
        await heard.until(lambda: heard.info)
        publish(track, 0, 1)
        await heard.until(lambda: len(heard.payloads) >= 2 * OBJECTS)
        check_octets(heard, places(0, 1))
        priorities = {stream.head.priority for stream in heard.subgroups if stream.head}
        expect(priorities == {100}, f"priorities {priorities}")
        expect(not heard.twice, f"twice: {heard.twice}")


@book.case(20.0)
async def fill_then_live(stage: Stage) -> str:
    """SUBSCRIBE with fill of everything, then one group more."""
    async with published(stage, "fill") as (track, consumer):
        heard = Collector()
        wanted = Parameters(
            location_filter=LocationFilter.next_object(),
            fill=Parameters(location_filter=LocationFilter.since(0)),
        )
        consumer.subscribe(track.name, heard, wanted)
        await heard.until(lambda: heard.info)
        await heard.until(lambda: len(heard.payloads) >= GROUPS * OBJECTS)
        publish(track, GROUPS)
        await heard.until(lambda: len(heard.payloads) >= (GROUPS + 1) * OBJECTS)
        check_octets(heard, places(0, GROUPS))
        return check_twice(heard, GROUPS - 1)


@book.case(20.0)
async def fill_without_live(stage: Stage) -> str:
    """SUBSCRIBE with fill of everything and nothing new: what KVCS asks of a finished track."""
    async with published(stage, "backfill") as (track, consumer):
        track.end(DoneCode.TRACK_ENDED)
        heard = Collector()
        wanted = Parameters(
            location_filter=LocationFilter.next_object(),
            fill=Parameters(location_filter=LocationFilter.since(0)),
        )
        consumer.subscribe(track.name, heard, wanted)
        await heard.until(lambda: heard.fetches and heard.fetches[0].over)
        check_octets(heard, places(0, GROUPS - 1))
        try:
            async with asyncio.timeout(1.0):
                await heard.until(lambda: heard.end)
        except TimeoutError:
            raise PeerFault(
                f"complete ({len(heard.twice)} twice), but its relay loses a PUBLISH_DONE that "
                "comes in one read with SUBSCRIBE_OK"
            ) from None
        return f"PUBLISH_DONE {heard.end}"


async def fetch(stage: Stage, name: str, parameters: Parameters) -> Collector:
    """All of one FETCH."""
    async with published(stage, name) as (track, consumer):
        heard = Collector()
        consumer.fetch(track.name, heard, parameters)
        await heard.until(lambda: heard.end)
        return heard


WHOLE: Final = Parameters(location_filter=LocationFilter.groups(0, GROUPS - 1))


@book.case(20.0)
async def fetch_whole(stage: Stage) -> str:
    """Every group, ascending; Track Properties come along."""
    heard = await fetch(stage, "fetch", WHOLE)
    check_octets(heard, places(0, GROUPS - 1))
    expect(heard.fetches[0].places == places(0, GROUPS - 1), "order")
    info = heard.info
    if info is None or info.properties.max_cache_duration != 60_000:
        raise PeerFault("the objects came, the Track Properties did not")
    return f"End {tuple(info.end or ())}, end of track {info.end_of_track}"


@book.case(20.0)
async def fetch_descending(stage: Stage) -> str:
    """Every group, descending."""
    heard = await fetch(stage, "down", replace(WHOLE, group_order=GroupOrder.DESCENDING))
    check_octets(heard, places(0, GROUPS - 1))
    wanted = [place for group in reversed(range(GROUPS)) for place in places(group, group)]
    expect(heard.fetches[0].places == wanted, "order")
    end = tuple(heard.info.end or ()) if heard.info else ()
    if end != (GROUPS - 1, OBJECTS - 1):
        raise PeerFault(f"all objects came, but FETCH_OK ends at {end}")
    return f"End {end}"


@book.case(20.0)
async def fetch_objects(stage: Stage) -> None:
    """OBJECTID_FILTER: two ranges."""
    ids = RangeFilter(RangeFilterType.OBJECT_ID, (Span(0, 0), Span(2, None)))
    heard = await fetch(stage, "objects", replace(WHOLE, range_filters=(ids,)))
    check_octets(heard, [place for place in places(0, GROUPS - 1) if place[1] != 1])


@book.case(20.0)
async def two_subscribers(stage: Stage) -> str:
    """A second one, later: both have every object."""
    async with (
        published(stage, "two", groups=1) as (track, first_consumer),
        stage.session() as second_consumer,
    ):
        heard = [Collector(), Collector()]
        wanted = Parameters(
            location_filter=LocationFilter.next_object(),
            fill=Parameters(location_filter=LocationFilter.since(0)),
        )
        first_consumer.subscribe(track.name, heard[0], wanted)
        await heard[0].until(lambda: len(heard[0].payloads) >= OBJECTS)
        publish(track, 1)
        second_consumer.subscribe(track.name, heard[1], wanted)
        await heard[1].until(lambda: heard[1].info)
        publish(track, 2)
        await heard[0].until(lambda: len(heard[0].payloads) >= 3 * OBJECTS)
        await heard[1].until(lambda: len(heard[1].payloads) >= 3 * OBJECTS)
        for one in heard:
            check_octets(one, places(0, 2))
        expect(not heard[1].twice, f"the second has twice: {heard[1].twice}")
        return check_twice(heard[0], 0)


@book.case(20.0)
async def published_unasked(stage: Stage) -> str:
    """PUBLISH of ours, accepted by the relay; whoever subscribes has it from there."""
    catalog = Catalog()
    track = catalog.add(Track(FullTrackName((b"ours", b"offered"), b"track")))
    answer = Answer()
    async with stage.session(catalog.handler) as producer, stage.session() as consumer:
        catalog.publish(track, producer, answer=answer)
        await answer.until(lambda: answer.ok)
        heard = Collector()
        consumer.subscribe(track.name, heard)
        await heard.until(lambda: heard.info)
        await asyncio.sleep(0.5)  # it says SUBSCRIBE_OK before it has resumed us (FORWARD 1)
        publish(track, 0, 1)
        await heard.until(lambda: len(heard.payloads) >= 2 * OBJECTS)
        check_octets(heard, places(0, 1))
        expect(not heard.twice, f"twice: {heard.twice}")
        return f"{len(heard.payloads)} objects"


@book.case(20.0)
async def tracks_found(stage: Stage) -> str:
    """SUBSCRIBE_TRACKS at the relay offers a track that we announce later with PUBLISH."""
    catalog = Catalog()
    track = catalog.add(Track(FullTrackName((b"ours", b"found"), b"track")))
    async with stage.session(catalog.handler) as producer, stage.session() as consumer:
        async with moqt.tracks(consumer, track.name.namespace) as offers:
            catalog.publish(track, producer)
            offer = await anext(offers)
            expect(offer.name == track.name, f"offered {offer.name}")
            async with offer.accept() as objects:
                publish(track, 0)
                came = [await anext(objects) for _ in range(OBJECTS)]
        for one in came:
            expect(one.payload == body(one.group, one.object), f"other octets at {one.location}")
        return f"{len(came)} objects"


@book.case(20.0)
async def end_of_track(stage: Stage) -> str:
    """PUBLISH_DONE after the last group."""
    async with published(stage, "end", groups=0) as (track, consumer):
        heard = Collector()
        consumer.subscribe(track.name, heard)
        await heard.until(lambda: heard.info)
        publish(track, 0)
        await heard.until(lambda: len(heard.payloads) >= OBJECTS)
        track.end(DoneCode.TRACK_ENDED, "all said")
        await heard.until(lambda: heard.end)
        check_octets(heard, places(0, 0))
        code, reason, complete = heard.end or (-1, "", False)
        expect(code == DoneCode.TRACK_ENDED, f"code {code:#x}")
        if not complete:
            raise PeerFault("its PUBLISH_DONE counts more streams than came")
        return f"{reason!r}"


@book.case(20.0)
async def withdrawn(stage: Stage) -> None:
    """After the withdrawal of the namespace a new SUBSCRIBE is refused."""
    async with published(stage, "gone", groups=1) as (track, consumer):
        pass
    async with stage.session() as consumer:
        heard = Collector()
        consumer.subscribe(track.name, heard)
        try:
            await heard.until(lambda: heard.info)
        except RequestFailed:
            return
        expect(False, "still served")
