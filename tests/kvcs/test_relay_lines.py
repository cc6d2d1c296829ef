"""Relays on bad lines, over real sockets: late, lossy, cut for a while, cut for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from moqt.relay.service import RelayService, relay_quic
from tests.kvcs.endpoints import Cache, World, check, relay
from tests.transport.relay import Line
from transport.config import SMALLEST_DATAGRAM, QuicOptions

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]  # most of it is waiting


class Lines:
    """Lays lines to relays and takes them away at the end."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def to(self, service: RelayService, **faults: Any) -> Line:
        line = await Line.lay(service.port, **faults)

        async def close() -> None:
            line.transport.close()

        self.world.defer(close)
        return line


@pytest_asyncio.fixture
async def lines(world: World) -> Lines:
    return Lines(world)


def duplicates(service: RelayService) -> int:
    return service.relay.context.counts["duplicates"]


async def test_one_in_a_hundred_lost_and_50_ms_each_way_on_both_sides(world, lines) -> None:
    """Small datagrams, so that many are lost; before, in the middle, and after."""
    quic = QuicOptions(max_datagram_size=SMALLEST_DATAGRAM)
    cache = Cache(layers=8, blocks=4, kv_heads=8, head_dim=128)
    service, _ = await relay(world)
    up = await lines.to(service, delay=0.05, loss=0.01, seed=1)
    down = await lines.to(service, delay=0.05, loss=0.01, seed=2)
    made, _ = await world.publisher(quic=quic)
    await made.dial([up.url], tls=world.client_tls)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    before = await (await world.consumer(down.url, quic=quic)).retrieve(publication.name)
    await cache.put(publication, 0, 3)
    await before.layer(1)
    other = await lines.to(service, delay=0.05, loss=0.01, seed=3)
    middle = await (await world.consumer(other.url, quic=quic)).retrieve(publication.name)
    await cache.put(publication, 4)
    await publication.finish()
    await asyncio.gather(check(before, cache), check(middle, cache))
    last = await lines.to(service, delay=0.05, loss=0.01, seed=4)
    late = await (await world.consumer(last.url, quic=quic)).retrieve(publication.name)
    await check(late, cache)
    assert duplicates(service) == 0
    for line in (up, down, other, last):
        assert line.passed > 300
    assert sum(line.lost for line in (up, down, other, last)) > 5


async def test_the_link_upstream_cut_for_5_s(world, lines) -> None:
    """The session outlives it; what was published meanwhile comes once the link is back."""
    cache = Cache(layers=8)
    origin, url = await relay(world)
    line = await lines.to(origin)
    edge, near = await relay(world, line.url)
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    await world.until(lambda: edge.relay.upstreams)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(near)).retrieve(publication.name)
    await cache.put(publication, 0, 2)
    await retrieval.layer(2)
    line.cut = True
    await cache.put(publication, 3, 5)
    late = asyncio.ensure_future((await world.consumer(near)).retrieve(publication.name))
    await asyncio.sleep(5.0)
    line.cut = False
    await cache.put(publication, 6)
    await publication.finish()
    await check(retrieval, cache)
    await check(await late, cache)
    assert line.lost > 0
    assert duplicates(edge) == 0
    assert edge.monitor.to_json()["sessions"] == 3, "one upstream, two downstream"


async def test_the_link_upstream_cut_for_longer_than_a_peer_is_waited_for(world, lines) -> None:
    cache = Cache(layers=8)
    origin, url = await relay(world)
    line = await lines.to(origin)
    edge, near = await relay(world, line.url, quic=relay_quic(peer_timeout=0.6))
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    await world.until(lambda: edge.relay.upstreams)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(near)).retrieve(publication.name)
    await cache.put(publication, 0, 2)
    await retrieval.layer(2)
    line.cut = True
    await cache.put(publication, 3, 5)
    await world.until(lambda: not edge.relay.upstreams)
    line.cut = False
    await world.until(lambda: edge.relay.upstreams)
    await cache.put(publication, 6)
    await publication.finish()
    await check(retrieval, cache)
    assert duplicates(edge) == 0
