"""A publisher whose relay goes away: everything is announced again, wherever one answers."""

from __future__ import annotations

import asyncio

import pytest

from moqt import serve
from moqt.session.ports import Unserved
from tests.kvcs.endpoints import Cache, World
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


class Relay:
    """Takes announcements, and nothing else."""

    def __init__(self) -> None:
        self.announced: set[tuple[bytes, ...]] = set()

    async def open(self, world: World, port: int = 0) -> str:
        relay = self

        class Handler(Unserved):
            def on_publish_namespace(self, request) -> None:
                relay.announced.add(request.namespace)
                request.on_end = lambda: relay.announced.discard(request.namespace)
                request.accept()

        self.server = await serve(
            "127.0.0.1", port, tls=world.server_tls, handler=lambda _: Handler()
        )
        world.defer(self.server.close)
        return f"moqt://127.0.0.1:{self.server.port}/"


async def announced(world: World, relay: Relay, namespace) -> None:
    await world.until(lambda: relay.announced == {namespace})


async def test_the_next_relay_when_one_is_lost(world, caplog) -> None:
    cache, relays = Cache(), [Relay(), Relay()]
    publisher, _ = await world.publisher()
    urls = [await relay.open(world) for relay in relays]
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    assert await publisher.dial(urls, tls=world.client_tls) == urls[0]
    namespace = publication.name.namespace
    await announced(world, relays[0], namespace)
    await relays[0].server.close()
    await announced(world, relays[1], namespace)
    assert publisher.sessions == 1
    await world.until(lambda: f"announced again on {urls[1]}" in caplog.text)


async def test_the_same_relay_when_it_comes_back(world) -> None:
    cache, relay, again = Cache(), Relay(), Relay()
    publisher, _ = await world.publisher()
    url = await relay.open(world)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    await publisher.dial(url, tls=world.client_tls)
    await announced(world, relay, publication.name.namespace)
    await relay.server.close()
    await world.until(lambda: publisher.sessions == 0)
    await again.open(world, MoqtUrl.parse(url).port)
    await announced(world, again, publication.name.namespace)


@pytest.mark.rule("M293")
async def test_goaway_to_another_relay(world) -> None:
    cache, relay, target, other = Cache(), Relay(), Relay(), Relay()
    publisher, _ = await world.publisher()
    urls = [await relay.open(world), await other.open(world)]
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    await publisher.dial(urls, tls=world.client_tls)
    namespace = publication.name.namespace
    await announced(world, relay, namespace)
    (connection,) = relay.server.connections
    connection.goaway(await target.open(world))
    await announced(world, target, namespace)
    await relay.server.close()
    later = publisher.open(cache.descriptor, tokens=cache.tokens)
    await world.until(lambda: target.announced == {namespace, later.name.namespace})
    assert (publisher.sessions, other.announced) == (1, set())
    later.withdraw()
    await announced(world, target, namespace)


@pytest.mark.parametrize("uri", ["", "no url"])
async def test_goaway_without_a_place_means_here(world, uri: str) -> None:
    cache, relay = Cache(), Relay()
    publisher, _ = await world.publisher()
    await publisher.dial(await relay.open(world), tls=world.client_tls)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    await announced(world, relay, publication.name.namespace)
    (connection,) = relay.server.connections
    connection.goaway(uri)
    await world.until(lambda: publisher.sessions == 2)


async def test_closing_while_dialling_again(world) -> None:
    relay = Relay()
    publisher, _ = await world.publisher()
    await publisher.dial(await relay.open(world), tls=world.client_tls)
    await relay.server.close()
    await world.until(lambda: publisher.sessions == 0)
    await asyncio.sleep(0.01)
    await publisher.close()
    assert publisher._uplinks[0]._redialling is None or publisher._uplinks[0]._redialling.done()


async def test_no_relay_comes_back(world, monkeypatch, caplog) -> None:
    monkeypatch.setattr("kvcs.uplink.REDIAL_WINDOW", 0.0)
    relay = Relay()
    publisher, _ = await world.publisher()
    await publisher.dial(await relay.open(world), tls=world.client_tls)
    await relay.server.close()
    await world.until(lambda: "nothing is announced any more" in caplog.text)


async def test_a_refusal_is_told(world, caplog) -> None:
    cache = Cache()
    server = await serve("127.0.0.1", 0, tls=world.server_tls)
    world.defer(server.close)
    publisher, _ = await world.publisher()
    await publisher.dial(f"moqt://127.0.0.1:{server.port}/", tls=world.client_tls)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    text = f"publication {publication.name.pub_id.hex()} was refused by a peer: NOT_SUPPORTED"
    await world.until(lambda: text in caplog.text)
