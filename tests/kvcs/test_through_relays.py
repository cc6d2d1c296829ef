"""KVCS through our relay, and through two in a chain, over real sockets: nothing beyond MOQT."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import moqt
from moqt.relay.upstreams import Upstream
from tests.kvcs.endpoints import Cache, World, check, relay
from transport.errors import ConnectFailed, ConnectFault
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


async def publisher(world: World, url: str) -> Any:
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    return made


@pytest.mark.parametrize("depth", [1, 2])
async def test_before_during_after_and_a_part(world, depth) -> None:
    cache = Cache(layers=8)
    origin, url = await relay(world)
    made = await publisher(world, url)
    services = [origin]
    for _ in range(depth - 1):
        service, url = await relay(world, url)
        services.append(service)
        await world.until(lambda: services[-1].relay.upstreams)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    early = await world.consumer(url)
    (found,) = await early.discover(cache.descriptor, cache.tokens, wait=5)
    before = await early.retrieve(found)
    await cache.put(publication, 0, 3)
    middle = await (await world.consumer(url)).retrieve(publication.name)
    assert (await middle.layer(1)).buffers["k"] == cache.k[1]
    await cache.put(publication, 4)
    await publication.finish()
    late = await (await world.consumer(url)).retrieve(publication.name)
    part = await (await world.consumer(url)).retrieve(publication.name, layers=(2, 4), blocks=2)
    for retrieval, mode in (
        (before, "live"),
        (middle, "live"),
        (late, "completed"),
        (part, "completed"),
    ):
        await check(retrieval, cache)
        assert retrieval.report().mode == mode
    for service in services:
        assert service.relay.context.counts["duplicates"] == 0


@pytest.mark.rule("M169")
async def test_a_relay_that_leaves_says_so_before_it_lets_go_of_upstream(world) -> None:
    cache = Cache(layers=4)
    service, url = await relay(world)
    other, elsewhere = await relay(world)
    made = await publisher(world, url)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens, wait=5)
    retrieval = await consumer.retrieve(found)
    await cache.put(publication, 0, 1)
    await retrieval.layer(1)
    clients = len(service.connections)
    leaving = asyncio.ensure_future(service.leave(limit=1.0))
    await world.until(lambda: service.monitor.counters.sent.messages["GOAWAY"] >= clients)
    assert any(track.standing for track in service.relay.tracks.values())
    await leaving
    assert elsewhere != url
    assert other.relay.tracks == {}


async def test_a_relay_that_leaves_takes_nobody_new(world) -> None:
    service, url = await relay(world)
    staying = await moqt.connect(url, tls=world.client_tls)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    staying.when_goaway(lambda uri, _: told.set_result(uri))
    leaving = asyncio.ensure_future(service.leave(limit=5.0))
    await told
    for _ in range(2):
        with pytest.raises(ConnectFailed) as failure:
            await moqt.connect(url, tls=world.client_tls)
        assert failure.value.fault is ConnectFault.REFUSED
    assert len(service.connections) == 1
    assert not leaving.done(), "who is here has the time to go"
    await staying.close()
    await leaving


async def test_who_was_just_connecting_to_a_relay_that_leaves_is_told(world) -> None:
    service, url = await relay(world)
    service._listening.goaway()  # between the first packet and the end of the handshake
    late = await moqt.connect(url, tls=world.client_tls)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    late.when_goaway(lambda uri, _: told.set_result(uri))
    if late.may_request:
        await asyncio.wait_for(told, 5)
    assert not late.may_request
    await late.close()


async def test_two_relays_that_dial_each_other_open_the_circle(world) -> None:
    cache = Cache(layers=4)
    upper, url = await relay(world)
    lower, below = await relay(world, url)
    await world.until(lambda: lower.relay.upstreams)
    made = await publisher(world, url)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    early = await (await world.consumer(below)).retrieve(publication.name)
    await cache.put(publication, 0, 2)
    await early.layer(1)
    upper.uplinks.add(Upstream(url=MoqtUrl.parse(below), tls=world.client_tls))
    await world.until(lambda: upper.relay.context.counts["loops"] and not upper.relay.upstreams)
    await world.until(lambda: not upper.uplinks.connections[below].is_open)
    late = await (await world.consumer(below)).retrieve(publication.name)
    await cache.put(publication, 3)
    await publication.finish()
    for retrieval in (early, late):
        await check(retrieval, cache)
    assert lower.relay.context.counts["loops"] == 0
