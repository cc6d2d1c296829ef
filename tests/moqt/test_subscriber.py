"""Subscriptions and fetches read with ``async for``: whole, bounded, ended by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import moqt
from moqt.codec.properties import write_pairs
from moqt.errors import (
    DoneCode,
    Misuse,
    RequestCode,
    RequestFailed,
    SessionClosed,
    StreamCode,
    StreamReset,
    SubscriptionEnded,
    TooFarBehind,
)
from moqt.model import GapKind, Location, ObjectHead, ObjectStatus, SubgroupHead
from moqt.reading import ITEM_COST, Inbox
from moqt.session.ports import Unserved
from tests.moqt.played import ALL, NAME, Played, read
from tests.moqt.session.worlds import World
from transport.errors import StreamAbort

# -------------------------------------------------------------------------------- subscription


async def test_whole_objects_in_order_and_the_end_of_the_track() -> None:
    played = Played()
    subscription = played.subscribe()
    assert (await subscription.accepted()).largest is None
    played.put(0, b"a", b"", b"c" * 5000)
    played.put(1, b"d")
    played.end()
    assert subscription.buffered == 4 * ITEM_COST + 5002
    assert await read(subscription) == [
        (0, 0, b"a"),
        (0, 1, b""),
        (0, 2, b"c" * 5000),
        (1, 0, b"d"),
    ]
    assert subscription.buffered == 0
    assert subscription.resets == 0
    assert await read(subscription) == []  # it stays over
    assert not played.world.client.leftovers()


async def test_what_an_object_says_of_itself() -> None:
    played = Played()
    subscription = played.subscribe()
    writer = played.track.subgroup(7, 3, priority=9, has_properties=True)
    properties = write_pairs([(0x3C, 1)])
    writer.object(2, b"x", properties=properties)
    writer.object(5, status=ObjectStatus.END_OF_GROUP)
    played.world.run()
    first, second = await anext(subscription), await anext(subscription)
    assert first == (7, 3, 2, 9, ObjectStatus.NORMAL, properties, b"x")
    assert first.location == Location(7, 2)
    assert (second.status, second.payload) == (ObjectStatus.END_OF_GROUP, b"")


async def test_a_fill_and_what_is_new_are_read_together() -> None:
    played = Played()
    played.put(0, b"old")
    subscription = played.subscribe(ALL)
    assert (await subscription.accepted()).fill
    played.put(1, b"new")
    played.end()
    assert await read(subscription) == [(0, 0, b"old"), (1, 0, b"new")]


async def test_datagrams_are_objects_too() -> None:
    played = Played()
    subscription = played.subscribe()
    (request,) = played.track._subscriptions
    request.datagram(ObjectHead(4, None, 0, 3, 2), b"hi")
    played.world.run()
    found = await anext(subscription)
    assert (found.subgroup, found.location, found.payload) == (None, (4, 0), b"hi")


async def test_with_waits_for_the_answer_and_cancels_at_its_end() -> None:
    played = Played()
    subscription = moqt.subscribe(played.connection, NAME)
    with pytest.raises(Misuse, match="no answer"):
        _ = subscription.info
    entering = asyncio.ensure_future(subscription.__aenter__())
    await asyncio.sleep(0)
    assert not entering.done()
    played.world.run()
    async with await entering as entered:
        assert entered is subscription
        played.put(0, b"unread")
        assert subscription.buffered
    played.world.run()
    assert subscription.buffered == 0
    assert await read(subscription) == []
    assert not played.track._subscriptions
    assert not played.world.client.leftovers()


async def test_update_pauses_and_goes_on() -> None:
    played = Played()
    subscription = played.subscribe()
    subscription.update(moqt.Parameters(forward=False))
    played.world.run()
    played.put(0, b"not sent")
    subscription.update(moqt.Parameters(forward=True))
    played.world.run()
    played.put(1, b"sent")
    played.end()
    assert await read(subscription) == [(1, 0, b"sent")]
    with pytest.raises(Misuse):
        subscription.update(moqt.Parameters(forward=True))


async def test_a_waiting_reader_is_woken() -> None:
    played = Played()
    subscription = played.subscribe()
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0)
    played.put(0, b"a")
    assert (await waiting).payload == b"a"
    waiting = asyncio.ensure_future(read(subscription))  # type: ignore[assignment]
    await asyncio.sleep(0)
    subscription.cancel()
    assert await waiting == []


# ------------------------------------------------------------------------------- how it can end


async def test_refused() -> None:
    played = Played(World(server_handler=Unserved()))
    subscription = played.subscribe()
    for _ in range(2):
        with pytest.raises(RequestFailed) as failed:
            await subscription.accepted()
        assert failed.value.code == RequestCode.NOT_SUPPORTED
        with pytest.raises(RequestFailed):
            await anext(subscription)
    with pytest.raises(RequestFailed):
        async with subscription:
            pytest.fail("not reached")


async def test_another_end_than_that_of_the_track_is_an_error() -> None:
    played = Played()
    subscription = played.subscribe()
    played.put(0, b"a")
    played.track.end(DoneCode.GOING_AWAY, "maintenance")
    played.world.run()
    assert (await anext(subscription)).payload == b"a"
    with pytest.raises(SubscriptionEnded, match="GOING_AWAY: maintenance") as ended:
        await anext(subscription)
    assert (ended.value.code, ended.value.complete) == (DoneCode.GOING_AWAY, True)


async def test_the_end_of_the_session_is_an_error_after_what_came() -> None:
    played = Played()
    subscription = played.subscribe()
    played.put(0, b"a")
    played.world.server.session.close(0, "bye")
    played.world.run()
    assert (await anext(subscription)).payload == b"a"
    with pytest.raises(SessionClosed, match="bye"):
        await anext(subscription)


async def test_a_reset_stream_loses_its_begun_object_and_is_counted() -> None:
    played = Played()
    subscription = played.subscribe()
    writer = played.track.subgroup(0)
    writer.object(0, b"a")
    played.world.run()
    writer.abort(StreamCode.DELIVERY_TIMEOUT)
    played.end()
    assert await read(subscription) == [(0, 0, b"a")]
    assert subscription.resets == 1


async def test_cancelled_before_the_answer() -> None:
    played = Played()
    subscription = moqt.subscribe(played.connection, NAME)
    waiting = asyncio.ensure_future(subscription.accepted())
    await asyncio.sleep(0)
    subscription.cancel()
    with pytest.raises(Misuse, match="cancelled"):
        await waiting


async def test_entering_can_be_cancelled() -> None:
    played = Played()
    subscription = moqt.subscribe(played.connection, NAME)
    entering = asyncio.ensure_future(subscription.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    played.world.run()
    assert not played.world.client.leftovers()


# ------------------------------------------------------------------------------------- bounded


async def test_too_far_behind_cancels_and_loses_nothing_silently() -> None:
    played = Played()
    subscription = played.subscribe(limit=3 * ITEM_COST + 2500)
    (request,) = played.track._subscriptions
    codes: list[int] = []
    request.on_end = lambda: codes.append(1)
    for group in range(4):
        played.put(group, bytes([group]) * 1000)
    assert codes == [1]  # the publisher has been told
    assert subscription.buffered <= subscription._inbox.limit
    assert [(await anext(subscription)).group for _ in range(2)] == [0, 1]
    with pytest.raises(TooFarBehind, match="octets wait"):
        await anext(subscription)
    assert subscription.buffered == 0
    assert not played.world.client.leftovers()


async def test_the_code_on_the_wire_is_too_far_behind() -> None:
    played = Played()
    codes: list[int] = []
    reset = played.world.server.stream_reset

    def noted(stream: int, code: int) -> None:
        codes.append(code)
        reset(stream, code)

    played.world.server.stream_reset = noted  # type: ignore[method-assign]
    subscription = played.subscribe(limit=ITEM_COST + 10)
    played.put(0, b"12345678901")
    assert codes == [StreamCode.TOO_FAR_BEHIND]  # of the request stream
    with pytest.raises(TooFarBehind, match="object 0, 0 of 11 octets"):
        await anext(subscription)


async def test_a_reader_that_keeps_up_reads_more_than_the_limit() -> None:
    played = Played()
    subscription = played.subscribe(limit=ITEM_COST + 1000)
    for group in range(20):
        played.put(group, bytes(1000))
        assert (await anext(subscription)).group == group


async def test_begun_objects_count_and_are_let_go() -> None:
    inbox: Inbox[Any] = Inbox(4 * ITEM_COST, lambda: None)
    assert inbox.reserve(4 * ITEM_COST)
    assert not inbox.reserve(1)
    assert inbox.over
    inbox.put("late", 1)
    inbox.end()
    with pytest.raises(TooFarBehind):
        await inbox.next()
    with pytest.raises(Misuse, match="limit of 3 octets"):
        Inbox(3, lambda: None)


async def test_a_sink_that_is_being_written_to_when_it_is_over() -> None:
    played = Played()
    subscription = played.subscribe(limit=2 * ITEM_COST + 100)
    arrivals = subscription._arrivals
    one, two = (arrivals.open_subgroup(SubgroupHead(g, 0, 1)) for g in (8, 9))
    one.begin(ObjectHead(8, 0, 0, 1, 100))
    two.begin(ObjectHead(9, 0, 0, 1, 100))
    one.write(bytes(60))
    two.write(bytes(60))  # beyond the limit
    two.write(bytes(40))
    two.end()
    one.abort(StreamCode.TOO_FAR_BEHIND)
    one.finish()
    one.begin(ObjectHead(8, 0, 1, 1, 999))
    arrivals.datagram(ObjectHead(8, None, 2, 1, 1), b"x")
    assert subscription.buffered == 0
    with pytest.raises(TooFarBehind):
        await anext(subscription)


# ------------------------------------------------------------------------------------- PUBLISH


class Curious(Unserved):
    """Accepts what it is offered, or keeps the offer."""

    def __init__(self) -> None:
        self.offers: list[Any] = []

    def on_publish(self, request: Any) -> None:
        self.offers.append(request)


def offered() -> tuple[Played, Curious]:
    """The server has offered its track; data waits for the answer some seconds only."""
    curious = Curious()
    played = Played(World(client_handler=curious))
    request = played.world.server.session.publish(
        played.track, moqt.Parameters(), moqt.GroupOrder.ASCENDING, lambda _: None
    )
    played.track.offer(request)
    played.world.run(0.1)
    return played, curious


async def test_a_publish_accepted_reads_like_a_subscription() -> None:
    played, curious = offered()
    played.put(0, b"sent before it was accepted", seconds=0.1)
    subscription = moqt.accept(curious.offers[0])
    played.world.run()
    assert await subscription.accepted() is subscription.info
    subscription.update(moqt.Parameters(subscriber_priority=3))
    played.put(1, b"and after")
    played.end()
    assert await read(subscription) == [
        (0, 0, b"sent before it was accepted"),
        (1, 0, b"and after"),
    ]
    assert not played.world.client.leftovers()


async def test_a_publish_that_is_too_much_from_the_start() -> None:
    played, curious = offered()
    played.put(0, bytes(5000), seconds=0.1)
    subscription = moqt.accept(curious.offers[0], limit=1000)
    played.world.run()
    with pytest.raises(TooFarBehind):
        await anext(subscription)
    assert not played.world.client.leftovers()


async def test_a_publish_withdrawn_before_it_is_accepted() -> None:
    played, curious = offered()
    played.world.server.session.close(0, "")
    played.world.run()
    subscription = moqt.accept(curious.offers[0])
    with pytest.raises(RequestFailed, match="withdrawn"):
        await subscription.accepted()


# ---------------------------------------------------------------------------------------- fetch


@pytest.mark.parametrize(
    ("order", "groups"),
    [(moqt.GroupOrder.ASCENDING, [1, 1, 2]), (moqt.GroupOrder.DESCENDING, [2, 1, 1])],
)
async def test_fetch_in_both_orders(order: moqt.GroupOrder, groups: list[int]) -> None:
    played = Played()
    for group in range(4):
        played.put(group, b"a", b"b") if group == 1 else played.put(group, b"a")
    wanted = moqt.Parameters(location_filter=moqt.LocationFilter.groups(1, 2), group_order=order)
    fetch = played.fetch(wanted)
    assert [one.group async for one in fetch] == groups
    assert fetch.info.end == Location(2, 0)
    assert fetch.gaps == ()


async def test_gaps_are_kept_and_bounded() -> None:
    played = Played()
    fetch = moqt.fetch(played.connection, NAME, limit=2 * ITEM_COST)
    sink = fetch._arrivals.open_fetch(0)
    gap = moqt.model.Gap(GapKind.UNKNOWN, Location(3, 4))
    sink.gap(gap)
    sink.gap(gap)
    assert fetch.gaps == (gap, gap)
    sink.gap(gap)
    with pytest.raises(TooFarBehind):
        await anext(fetch)


async def test_a_fetch_whose_stream_is_reset() -> None:
    played = Played()
    played.put(0, b"a", b"b")
    whole, wakes = played.track.objects, []

    def broken(within: Any, order: Any, wake: Any, _: Any) -> Iterator[Any]:
        yield next(iter(whole(within, order, wake)))
        wakes.append(wake)
        yield None
        raise StreamAbort(StreamCode.EXCESSIVE_LOAD)

    played.track.objects = broken  # type: ignore[method-assign]
    fetch = played.fetch()
    assert (await anext(fetch)).payload == b"a"
    wakes[0]()
    played.world.run()
    with pytest.raises(StreamReset) as failed:
        await anext(fetch)
    assert failed.value.code == StreamCode.EXCESSIVE_LOAD


async def test_a_fetch_of_nothing_is_refused() -> None:
    played = Played()
    with pytest.raises(RequestFailed) as failed:
        async with played.fetch():
            pytest.fail("not reached")
    assert failed.value.code == RequestCode.INVALID_RANGE
