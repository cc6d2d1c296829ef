"""A GOAWAY that names no place means the same URL again: one URL is enough (draft-22 §6.6.1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from kvcs.errors import IncompletePublication, UnknownPublication
from kvcs.relays import MAX_MOVES
from moqt import serve
from moqt.errors import RequestCode, RequestRefused
from moqt.publisher import CatalogHandler, ServingLimits
from moqt.relay.service import RelayService, ServiceConfig
from tests.kvcs.endpoints import Cache, World, check
from tests.kvcs.forgery import Forgery
from transport.errors import ConnectFailed, ConnectFault
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def short_rests(monkeypatch) -> None:
    monkeypatch.setattr("kvcs.relays.ROUND_PAUSE", 0.02)
    monkeypatch.setattr("kvcs.relays.MAX_PAUSE", 0.1)


async def relay(world: World, port: int = 0) -> RelayService:
    service = RelayService(ServiceConfig(host="127.0.0.1", port=port, tls=world.server_tls))
    await service.start()
    world.defer(service.close)
    return service


@pytest.mark.rule("M293", "M297")
@pytest.mark.parametrize("drain", [0.0, 0.3, 5.0])
async def test_a_relay_that_starts_again(world, drain: float) -> None:
    """Publisher and consumer know one URL: what is lacking comes by way of the next process."""
    cache, first = Cache(layers=4), await relay(world)
    url = f"moqt://127.0.0.1:{first.port}/"
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens, wait=5)
    retrieval = await consumer.retrieve(found)
    await cache.put(publication, 0, 1)
    await retrieval.layer(1)
    leaving = asyncio.ensure_future(first.leave(limit=drain))
    await asyncio.sleep(0.1)
    await cache.put(publication, 2, 2)
    await asyncio.wait([leaving], timeout=0.5)
    await first.close()
    leaving.cancel()
    await relay(world, MoqtUrl.parse(url).port)
    await cache.put(publication, 3, 3)
    await publication.finish()
    await check(retrieval, cache)
    assert set(retrieval.report().sources) == {url}


class Sending(CatalogHandler):
    """What the first of its sessions does with a request for data; later ones serve."""

    how: str
    sessions: list[Sending]

    def on_subscribe(self, request: Any) -> None:
        if request.name.name == b"manifest" or not self._sends_away():
            super().on_subscribe(request)

    def on_fetch(self, request: Any) -> None:
        if not self._sends_away():
            super().on_fetch(request)

    def _sends_away(self) -> bool:
        if self.sessions[0] is not self:
            return False
        if self.how == "refusal":
            raise RequestRefused(RequestCode.GOING_AWAY, "the relay is closing")
        if self._connection.may_request:
            self._connection.goaway("" if self.how == "goaway" else "no url")
        return True  # and never answers


def sending(forgery: Forgery, how: str, sessions: list[Sending]) -> Any:
    def handler(connection: Any) -> Sending:
        made = Sending(forgery.catalog, connection, ServingLimits())
        made.how, made.sessions = how, sessions
        sessions.append(made)
        return made

    return handler


@pytest.mark.parametrize("mode", ["live", "completed"])
@pytest.mark.parametrize("how", ["goaway", "no url", "refusal"])
async def test_sent_back(world, how: str, mode: str) -> None:
    forgery, sessions = Forgery(Cache()), []
    url = await forgery.serve(world, sending(forgery, how, sessions))
    forgery.all()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name, mode=mode)
    await check(retrieval, forgery.cache)
    assert retrieval.report().sources == (url, url)
    assert len(sessions) == 2


async def test_sent_back_on_and_on(world) -> None:
    """It ends, and rests between: no server makes a consumer dial without end."""
    forgery, sessions = Forgery(Cache()), []

    class Always(CatalogHandler):
        def on_fetch(self, request: Any) -> None:
            sessions.append(self)
            if self._connection.may_request:
                self._connection.goaway()

    url = await forgery.serve(world, lambda c: Always(forgery.catalog, c, ServingLimits()))
    forgery.all()
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, mode="completed", timeout=0.3)
    with pytest.raises(IncompletePublication):
        await retrieval.wait()
    assert len({id(one._connection) for one in sessions}) == MAX_MOVES + 1


async def test_nobody_comes_back(world) -> None:
    """The wait for a successor is as long as any wait for something new."""
    forgery, sessions = Forgery(Cache()), []
    url = await forgery.serve(world, sending(forgery, "goaway", sessions))
    forgery.all()
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, mode="completed", timeout=0.3)
    await world.until(lambda: not consumer._links.open)
    await forgery.server.close()
    with pytest.raises(IncompletePublication, match="nothing answers"):
        await retrieval.wait()


@pytest.mark.parametrize("mode", ["live", "completed"])
async def test_what_is_published_there_again_later(world, mode: str) -> None:
    """A relay that has just begun knows nothing: its refusal counts until its publisher is back."""
    forgery, sessions = Forgery(Cache()), []
    url = await forgery.serve(world, sending(forgery, "goaway", sessions))
    forgery.all()
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, mode=mode, timeout=5)
    await world.until(lambda: not consumer._links.open)
    await forgery.server.close()
    asked: list[object] = []

    class Empty(CatalogHandler):
        known = False

        def on_subscribe(self, request: Any) -> None:
            self._know(request)
            super().on_subscribe(request)

        def on_fetch(self, request: Any) -> None:
            self._know(request)
            super().on_fetch(request)

        def _know(self, request: Any) -> None:
            if not Empty.known:
                asked.append(request.name.name)
                raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")

    forgery.catalog.withdraw(forgery.name.namespace)
    server = await serve(
        "127.0.0.1",
        MoqtUrl.parse(url).port,
        tls=world.server_tls,
        handler=lambda c: Empty(forgery.catalog, c, ServingLimits()),
    )
    world.defer(server.close)
    await world.until(lambda: any(name != b"manifest" for name in asked))
    Empty.known = True
    forgery.catalog.announce(forgery.name.namespace)
    await check(retrieval, forgery.cache)


async def test_looking_for_it_goes_on_at_the_same_url(world) -> None:
    """``discover(wait=...)`` outlives the session that it began on."""
    forgery, first = Forgery(Cache()), await relay(world)
    url = f"moqt://127.0.0.1:{first.port}/"
    consumer = await world.consumer(url)
    looking = asyncio.ensure_future(
        consumer.discover(forgery.cache.descriptor, forgery.cache.tokens, wait=20)
    )
    await world.until(lambda: first.relay.directory or consumer._links.open)
    await asyncio.sleep(0.05)
    await first.leave(limit=0.2)
    await first.close()
    await relay(world, MoqtUrl.parse(url).port)
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    await forgery.cache.publish(made)
    assert len(await looking) == 1


async def test_who_dials_a_relay_that_is_about_to_end(world) -> None:
    """It is refused at once: nobody begins something that is refused."""
    service = await relay(world)
    url = f"moqt://127.0.0.1:{service.port}/"
    await service.leave(limit=0.1)
    with pytest.raises(ConnectFailed, match="takes no more connections; try later") as caught:
        await world.consumer(url)
    assert caught.value.fault is ConnectFault.REFUSED
    made, _ = await world.publisher()
    with pytest.raises(ConnectFailed, match="takes no more connections; try later"):
        await made.dial([url], tls=world.client_tls)
    assert not made.sessions


async def test_unknown_is_still_told_at_once(world) -> None:
    service = await relay(world)
    consumer = await world.consumer(f"moqt://127.0.0.1:{service.port}/")
    with pytest.raises(UnknownPublication):
        await consumer.discover(Cache().descriptor, Cache().tokens)


@pytest.mark.parametrize("back", [True, False])
async def test_the_first_that_was_asked_has_forgotten_it(world, back: bool) -> None:
    """Its publisher dials again just now: it is asked once more, to wait for it."""
    forgery, asked = Forgery(Cache()), Counter[bytes]()

    class Forgetful(CatalogHandler):
        def on_subscribe(self, request: Any) -> None:
            asked[request.name.name] += 1
            waits = request.parameters.rendezvous_timeout
            if request.name.name != b"manifest" and not (back and waits):
                raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")
            super().on_subscribe(request)

        def on_fetch(self, request: Any) -> None:
            raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")

    url = await forgery.serve(world, lambda c: Forgetful(forgery.catalog, c, ServingLimits()))
    forgery.version()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name)
    if back:
        await world.until(lambda: max(asked.values()) == 2)
        forgery.all()
        await check(retrieval, forgery.cache)
    else:
        with pytest.raises(IncompletePublication, match="DOES_NOT_EXIST"):
            await retrieval.wait()
    assert set(asked.values()) == {1, 2}
