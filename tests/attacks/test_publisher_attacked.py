"""A publisher with one hostile consumer: what that makes it keep, and how the others fare."""

from __future__ import annotations

import asyncio

import pytest

from kvcs.names import MANIFEST
from kvcs.uplink import MAX_SESSIONS
from moqt.codec.params import Parameters
from moqt.driver import Connection
from moqt.endpoint import Server, connect, serve
from moqt.errors import DoneCode
from moqt.model import FullTrackName, LocationFilter
from moqt.session.ports import Unserved
from moqt.session.publications import IncomingSubscribe
from tests.kvcs.endpoints import Cache, check
from tests.transport.relay import Relay
from transport.config import QuicOptions
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e

FILL = Parameters(fill=Parameters(location_filter=LocationFilter.since(0)))


class Idle:
    """A TrackReceiver and ObjectSink that takes everything and wants nothing."""

    def __init__(self) -> None:
        self.ended: list[object] = []
        self.answered = 0

    def accepted(self, info) -> None:
        self.answered += 1

    def open_subgroup(self, head):
        return self

    def open_fetch(self, request_id):
        return self

    def done(self, *how) -> None:
        self.ended.append(how)

    def failed(self, error) -> None:
        self.ended.append(error)

    def ignore(self, *what) -> None:
        pass

    begin = write = end = gap = finish = abort = datagram = ignore


async def greedy(world, url: str) -> Connection:
    """A consumer that never gives credit for another stream than the control stream."""
    made = await connect(url, tls=world.client_tls, quic=QuicOptions(max_streams_uni=1))
    world.defer(made.close)
    return made


def held(publisher) -> list[IncomingSubscribe]:
    owners = (
        owner
        for server in publisher._servers
        for connection in server.connections
        for owner in connection.session._context.owners.values()
    )
    return [owner for owner in owners if isinstance(owner, IncomingSubscribe)]


async def test_fills_without_end_on_one_subscription(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    honest = [
        await (await world.consumer(url)).retrieve(publication.name, mode="live") for _ in range(2)
    ]
    attacker, idle = await greedy(world, url), Idle()
    track = FullTrackName(publication.name.namespace, MANIFEST)
    subscription = attacker.subscribe(track, idle, FILL)
    await world.until(lambda: idle.answered)
    asked = most = 1
    while not idle.ended and asked < 200:
        if subscription._own_updates._open:
            await asyncio.sleep(0)
            continue
        subscription.update(FILL)
        asked += 1
        most = max(most, *(len(one._fills) for one in held(publisher)))
    await world.until(lambda: idle.ended)
    ((code, reason, _),) = idle.ended
    assert (code, reason) == (DoneCode.UPDATE_FAILED, "64 fills are open")
    assert most <= 64 < asked <= 66
    await cache.put(publication)
    await publication.finish()
    for retrieval in honest:
        await check(retrieval, cache)


async def test_everything_subscribed_and_nothing_read(world) -> None:
    cache = Cache(layers=8, blocks=4)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    attacker, idle = await greedy(world, url), Idle()
    for name in (b"k.raw.s0", b"v.raw.s0") * 60:
        attacker.subscribe(FullTrackName(publication.name.namespace, name), idle, FILL)
    await world.until(lambda: idle.answered == 120)
    honest = await (await world.consumer(url)).retrieve(publication.name, mode="live")
    await cache.put(publication)
    await publication.finish()
    await check(honest, cache)
    attacker.sink.abandon()
    await world.until(lambda: publisher.consumers == 1)
    assert all(not track._subscriptions for track in publication._tracks if track.ended)


async def test_subscribed_and_cancelled_at_once(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    honest = await (await world.consumer(url)).retrieve(publication.name, mode="live")
    attacker, idle = await connect(url, tls=world.client_tls), Idle()
    world.defer(attacker.close)
    name = FullTrackName(publication.name.namespace, b"k.raw.s0")
    for _ in range(300):
        request = attacker.subscribe(name, idle, FILL)
        await asyncio.sleep(0)
        request.cancel()
    await cache.put(publication)
    await publication.finish()
    await check(honest, cache)
    assert attacker.is_open
    # One last answer: everything sent before it has been seen.
    attacker.subscribe(name, idle, FILL)
    await world.until(lambda: idle.ended)
    await world.until(lambda: len(held(publisher)) <= 3)


async def test_closing_does_not_wait_for_who_takes_nothing(world, monkeypatch) -> None:
    """Bounded even where each octet taken would earn another wait."""
    monkeypatch.setattr("moqt.driver.CLOSE_TIMEOUT", 1000.0)
    publisher, url = await world.publisher()
    publication = await Cache(layers=4, blocks=8).publish(publisher)
    deaf = False
    relay = await Relay.open(
        ("127.0.0.1", MoqtUrl.parse(url).port), lambda _, to_server: deaf and to_server
    )
    attacker = await connect(f"moqt://127.0.0.1:{relay.port}/", tls=world.client_tls)
    idle = Idle()
    track = FullTrackName(publication.name.namespace, b"k.raw.s0")
    attacker.subscribe(track, idle, FILL)
    (served,) = publisher._servers[0].connections
    await world.until(lambda: held(publisher))
    deaf = True
    await served.close(limit=0.05)
    assert not served.is_open
    attacker.sink.abandon()
    relay.transport.close()


async def test_a_relay_that_sends_away_on_and_on(world) -> None:
    """A publisher rests between two moves, and keeps few sessions and no places."""
    cache = Cache()
    hops: list[str] = []
    server: Server

    class Relaying(Unserved):
        def __init__(self, connection: Connection) -> None:
            self.connection = connection

        def on_publish_namespace(self, request) -> None:
            request.accept()
            hops.append(f"moqt://127.0.0.1:{server.port}/{len(hops)}")
            self.connection.goaway(hops[-1])

    server = await serve("127.0.0.1", 0, tls=world.server_tls, handler=Relaying)
    world.defer(server.close)
    publisher, _ = await world.publisher()
    publisher.open(cache.descriptor, tokens=cache.tokens)
    await publisher.dial(f"moqt://127.0.0.1:{server.port}/", tls=world.client_tls)
    (uplink,) = publisher._uplinks
    most = 0
    while len(hops) < 7:
        await asyncio.sleep(0.01)
        most = max(most, len(uplink.connections))
    assert most == MAX_SESSIONS
    assert len(uplink._urls) == 2
