"""A consumer whose source fails: the next session, the next publication, or an honest end."""

from __future__ import annotations

import pytest

from kvcs import discovery, pursuit, relays
from kvcs.bell import Bell
from kvcs.consumer import Consumer
from kvcs.errors import IncompletePublication, PublicationConflict
from kvcs.legs import Leg
from moqt import driver
from moqt.errors import DoneCode, RequestCode, RequestRefused
from moqt.model import Location, ObjectHead, SubgroupHead
from moqt.publisher import CatalogHandler, ServingLimits
from tests.kvcs.endpoints import SCOPE_KEY, Cache, check
from tests.kvcs.forgery import Forgery, K
from tests.transport.relay import Relay
from transport.config import QuicOptions
from transport.url import MoqtUrl

pytestmark = pytest.mark.e2e


class FetchOnly(CatalogHandler):
    """A relay whose publisher is gone: it answers FETCH for what it has (kvcs.md §6)."""

    def on_subscribe(self, request) -> None:
        raise RequestRefused(RequestCode.DOES_NOT_EXIST, "the publisher is gone")


@pytest.mark.parametrize("mode", ["auto", "live"])
async def test_a_relay_that_only_serves_fetches(world, mode) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    catalog = forgery.catalog
    url = await forgery.serve(world, lambda c: FetchOnly(catalog, c, ServingLimits()))
    forgery.all()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name, mode=mode)
    await check(retrieval, cache)


@pytest.mark.rule("M308", "M309")
@pytest.mark.parametrize("after", [None, 60_000])
async def test_a_refused_fetch_is_not_repeated_before_its_time(world, after) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    catalog = forgery.catalog
    asked = []

    class Refusing(CatalogHandler):
        def on_fetch(self, request) -> None:
            asked.append(request.name)
            raise RequestRefused(RequestCode.EXCESSIVE_LOAD, "not now", after)

    url = await forgery.serve(world, lambda c: Refusing(catalog, c, ServingLimits()))
    forgery.all()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name, mode="fetch")
    with pytest.raises(IncompletePublication, match="not now"):
        await retrieval.wait()
    assert len(asked) == len(set(asked)) == 2


async def test_the_next_url_takes_over(world) -> None:
    cache = Cache(layers=4)
    first, second = Forgery(cache), Forgery(cache)
    urls = [await first.serve(world), await second.serve(world)]
    consumer = await world.consumer(*urls)
    for forgery in (first, second):
        forgery.version()
        forgery.layer(0)
    retrieval = await consumer.retrieve(first.name)
    await retrieval.layer(0)
    (connection,) = first.server.connections
    connection.session.close(1, "gone")
    await world.until(lambda: second.tracks[K]._subscriptions)
    for layer in (1, 2, 3):
        second.layer(layer)
    second.end()
    second.version()
    await check(retrieval, cache)
    assert retrieval.report().sources == tuple(urls)
    assert any("session ended" in setback for setback in retrieval.report().setbacks)


async def test_the_same_url_once_more(world) -> None:
    cache = Cache(layers=4)
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    forgery.layer(0)
    retrieval = await consumer.retrieve(forgery.name)
    await retrieval.layer(0)
    (connection,) = forgery.server.connections
    connection.session.close(1, "restarting")
    await world.until(lambda: len(retrieval.report().sources) == 2)
    for layer in (1, 2, 3):
        forgery.layer(layer)
    forgery.end()
    forgery.version()
    await check(retrieval, cache)


async def test_a_dead_url_first(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = await cache.publish(publisher)
    consumer = await world.consumer()
    used = await consumer.connect(["moqt://127.0.0.1:9/", url], tls=world.client_tls)
    assert used == url
    await check(await consumer.retrieve(publication.name), cache)


@pytest.mark.parametrize("deterministic", [True, False])
async def test_two_publications_are_combined_only_if_deterministic(world, deterministic) -> None:
    cache = Cache(layers=4)
    publisher, url = await world.publisher()
    whole = await cache.publish(publisher, deterministic=deterministic)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens, deterministic=deterministic)
    await cache.put(publication, 0, 1)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    await retrieval.layer(1)
    await publication.fail("a fault")
    if deterministic:
        await check(retrieval, cache)
        assert retrieval.name == whole.name
    else:
        with pytest.raises(IncompletePublication, match="not marked deterministic"):
            await retrieval.wait()


async def test_a_subscription_that_fell_behind_is_renewed(world) -> None:
    cache = Cache(layers=4)
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name)
    await world.until(lambda: all(track._subscriptions for track in forgery.tracks.values()))
    forgery.layer(0)
    forgery.layer(1)
    dropped = [request for track in forgery.tracks.values() for request in track._subscriptions]
    for request in dropped:
        request.done(DoneCode.TOO_FAR_BEHIND)
    await world.until(
        lambda: all(track._subscriptions - set(dropped) for track in forgery.tracks.values())
    )
    forgery.layer(2)
    forgery.layer(3)
    forgery.end()
    forgery.version()
    await check(retrieval, cache)


async def test_two_payloads_at_one_location(world) -> None:
    cache, other = Cache(), Cache(seed=1)
    forgery, second = Forgery(cache), Forgery(other)

    class Twice(CatalogHandler):
        def on_subscribe(self, request) -> None:
            super().on_subscribe(request)
            if request.name.name != K.wire:
                return
            for source in (forgery, second):
                payload = source.object(K, Location(0, 0))
                sink = request.subgroup(SubgroupHead(0, 0, 0))
                sink.begin(ObjectHead(0, 0, 0, 0, len(payload)))
                sink.write(payload)
                sink.end()
                sink.finish()

    url = await forgery.serve(world, lambda c: Twice(forgery.catalog, c, ServingLimits()))
    forgery.version()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name)
    with pytest.raises(PublicationConflict, match=r"k\.raw\.s0: two different payloads at group 0"):
        await retrieval.wait()


@pytest.mark.rule("M293", "M297", "M170")
async def test_goaway_to_another_url(world) -> None:
    cache = Cache(layers=4)
    first, second, third = Forgery(cache), Forgery(cache), Forgery(cache)
    urls = [await forgery.serve(world) for forgery in (first, third)]
    target = await second.serve(world)
    consumer = await world.consumer(*urls)
    for forgery in (first, second):
        forgery.version()
        forgery.layer(0)
    retrieval = await consumer.retrieve(first.name)
    await retrieval.layer(0)
    (connection,) = first.server.connections
    connection.goaway(target)
    await world.until(lambda: second.tracks[K]._subscriptions)
    closed = await connection.wait_closed()
    assert closed.code == 0
    for layer in (1, 2, 3):
        second.layer(layer)
    second.end()
    second.version()
    await check(retrieval, cache)
    assert retrieval.report().sources == (urls[0], target)


async def test_goaway_and_nowhere_to_go(world, monkeypatch) -> None:
    """The session is used as long as it lasts."""
    monkeypatch.setattr("kvcs.relays.SESSIONS_PER_URL", 1)
    cache = Cache(layers=4)
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    forgery.layer(0)
    retrieval = await consumer.retrieve(forgery.name)
    await retrieval.layer(0)
    (connection,) = forgery.server.connections
    connection.goaway("moqt://127.0.0.1:9/")
    await world.until(lambda: not consumer._links.open)
    for layer in (1, 2, 3):
        forgery.layer(layer)
    forgery.end()
    forgery.version()
    await check(retrieval, cache)


@pytest.mark.rule("M100")
async def test_who_announced_it_is_asked(world) -> None:
    cache = Cache()
    other, forgery = Forgery(cache), Forgery(cache)
    consumer = await world.consumer(await other.serve(world))
    other.all()
    port = await consumer.listen("127.0.0.1", 0, tls=world.server_tls)
    publisher, _ = await world.publisher()
    publication = publisher.open(
        cache.descriptor, name=forgery.name, block_keys=forgery.keys, tokens=None
    )
    await cache.put(publication)
    await publisher.dial(f"moqt://127.0.0.1:{port}/", tls=world.client_tls)
    await world.until(lambda: any(link.offers(forgery.name) for link in consumer._links.open))
    retrieval = await consumer.retrieve(forgery.name)
    await check(retrieval, cache)
    assert retrieval.report().sources == ("a publisher that connected",)


async def test_a_session_is_made_again_for_a_question(world) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    consumer = await world.consumer(await forgery.serve(world))
    forgery.all()
    (connection,) = forgery.server.connections
    connection.session.close(0, "restarting")
    await world.until(lambda: not consumer._links.open)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens)
    await check(await consumer.retrieve(found), cache)


async def test_the_path_dies(world) -> None:
    cache = Cache(layers=4)
    quic = QuicOptions(peer_timeout=0.5)
    publisher, url = await world.publisher(quic=quic)
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    alive = True
    relay = await Relay.open(("127.0.0.1", MoqtUrl.parse(url).port), lambda *_: not alive)
    consumer = await world.consumer(f"moqt://127.0.0.1:{relay.port}/", quic=quic)
    retrieval = await consumer.retrieve(publication.name)
    await cache.put(publication, 0, 1)
    await retrieval.layer(1)
    alive = False
    relay.transport.close()
    await cache.put(publication, 2)
    with pytest.raises(IncompletePublication, match="12 of 24"):
        await retrieval.wait()


class Legs:
    """Counts the legs of a retrieval, and notes until when each wait in one would last."""

    def __init__(self, monkeypatch) -> None:
        self.made: list[Leg] = []
        self.ends: list[tuple[Leg, float]] = []
        monkeypatch.setattr(pursuit, "Leg", self.make)

    def make(self, *args) -> Leg:
        leg = Leg(*args)
        self.made.append(leg)
        wait = leg.bell.wait

        async def noted(seconds: float) -> None:
            self.ends.append((self.made[-1], leg.time() + seconds))
            await wait(seconds)

        if len(self.made) == 1:  # the bell is the retrieval's, for all of its legs
            leg.bell.wait = noted
        return leg


class Noted(Bell):
    """A Bell whose ``wait`` a test may replace."""


@pytest.mark.parametrize("deterministic", [True, False])
async def test_a_dead_publisher_costs_one_timeout(world, monkeypatch, deterministic) -> None:
    """It is asked once more, briefly; not for other publications, nor for acknowledgements."""
    monkeypatch.setattr(discovery, "ANSWER_TIMEOUT", 1000.0)
    monkeypatch.setattr(relays, "CLOSE_LIMIT", 1000.0)
    monkeypatch.setattr(driver, "CLOSE_TIMEOUT", 1000.0)
    monkeypatch.setattr(pursuit, "Bell", Noted)
    legs = Legs(monkeypatch)
    cache = Cache(layers=4)
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens, deterministic=deterministic)
    alive = True
    relay = await Relay.open(("127.0.0.1", MoqtUrl.parse(url).port), lambda *_: not alive)
    consumer = Consumer(scope_key=SCOPE_KEY)
    await consumer.connect(f"moqt://127.0.0.1:{relay.port}/", tls=world.client_tls)
    retrieval = await consumer.retrieve(publication.name, timeout=0.5)
    await cache.put(publication, 0, 0)
    await retrieval.layer(0)
    alive = False
    with pytest.raises(IncompletePublication, match=r"nothing came for 0\.5 s") as failure:
        await retrieval.wait()
    assert ("not marked deterministic" in str(failure.value)) != deterministic
    assert len(legs.made) == 2
    await consumer.close()
    relay.transport.close()
    (connection,) = (one for server in publisher._servers for one in server.connections)
    connection.sink.abandon()


async def test_the_timeout_counts_from_what_came_last(world, monkeypatch) -> None:
    """Not from when it was seen: objects ring no bell."""
    monkeypatch.setattr(pursuit, "Bell", Noted)
    legs = Legs(monkeypatch)
    forgery = Forgery(Cache())
    consumer = await world.consumer(await forgery.serve(world))
    forgery.version()
    retrieval = await consumer.retrieve(forgery.name, timeout=0.5)
    await world.until(lambda: all(track._subscriptions for track in forgery.tracks.values()))
    forgery.layer(0)
    with pytest.raises(IncompletePublication, match=r"nothing came for 0\.5 s"):
        await retrieval.wait()
    first = legs.made[0]
    late = [end - leg.heard_at for leg, end in legs.ends if leg is first]
    assert max(late) < 0.75


async def test_who_hangs_on_one_stream_is_asked_again(world) -> None:
    """A subscription that is never served is not the end: what is there is fetched."""

    class Deaf(CatalogHandler):
        def on_subscribe(self, request) -> None:
            if request.name.name == b"manifest":
                super().on_subscribe(request)

    cache = Cache()
    forgery = Forgery(cache)
    url = await forgery.serve(world, lambda c: Deaf(forgery.catalog, c, ServingLimits()))
    forgery.all()
    consumer = await world.consumer(url)
    retrieval = await consumer.retrieve(forgery.name, mode="live", timeout=0.3)
    await check(retrieval, cache)
    (link,) = consumer._links.open
    assert not link.silent


async def test_setbacks_are_counted_and_bounded(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    note = retrieval._pursuit._note
    note("x" * 1000)
    for number in range(100):
        note("gone")
        note(f"setback {number}")
    setbacks = retrieval.report().setbacks
    assert len(setbacks) == pursuit.MAX_SETBACKS
    assert setbacks[:2] == ("x" * pursuit.MAX_SETBACK, "gone (100 times)")
    error = retrieval._pursuit.incomplete("why")
    assert error.causes == setbacks
    assert str(error) == "; ".join((error.summary, *setbacks))


async def test_a_producer_that_stops_in_good_order(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    await cache.put(publication, 0, 0)
    await retrieval.layer(0)
    await publisher.close()
    with pytest.raises(IncompletePublication) as failure:
        await retrieval.wait()
    assert f"{url}: the producer stopped before the last layer (2 times)" in failure.value.causes
    assert "INTERNAL_ERROR" not in str(failure.value)
