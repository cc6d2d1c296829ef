"""Which publications a consumer finds, and what it has to ask for that."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from kvcs import discovery, relays
from kvcs.errors import InvalidInput, UnknownPublication
from moqt.errors import RequestCode, RequestRefused
from moqt.publisher import Catalog, CatalogHandler, ServingLimits
from tests.kvcs.endpoints import SCOPE_KEY, Cache
from tests.kvcs.forgery import Forgery

pytestmark = pytest.mark.e2e


class Asked(CatalogHandler):
    """Notes the lengths of the prefixes it is asked for; refuses some."""

    refuses: tuple[int, ...] = ()

    def __init__(self, catalog: Catalog, connection, prefixes: list) -> None:
        super().__init__(catalog, connection, ServingLimits())
        self.prefixes = prefixes

    def on_subscribe_namespace(self, request) -> None:
        self.prefixes.append(request.prefix)
        if len(request.prefix) in self.refuses:
            raise RequestRefused(RequestCode.UNAUTHORIZED, "too wide")
        super().on_subscribe_namespace(request)


class Narrow(Asked):
    """Takes four fields only."""

    refuses = (3,)


class Closed(Asked):
    """Takes none."""

    refuses = (3, 4)


async def place(world, publications: list[Forgery], kind: type[Asked] = Asked):
    """One endpoint for several publications: its URL, and the prefixes asked for."""
    prefixes: list[tuple[bytes, ...]] = []
    catalog = Catalog()
    for forgery in publications:
        catalog.announce(forgery.name.namespace)
    url = await (Forgery(Cache(seed=99))).serve(world, lambda c: kind(catalog, c, prefixes))
    return url, prefixes


def shortened(cache: Cache, blocks: int, number: int = 0) -> Forgery:
    """A publication of the first ``blocks`` blocks of the same prompt."""
    part = Cache(layers=cache.layers, blocks=blocks)
    part.tokens = cache.tokens[: blocks * 4]
    return Forgery(part, number=number)


async def test_the_exact_prefix_needs_one_question(world) -> None:
    cache = Cache(blocks=5)
    publications = [Forgery(cache), Forgery(cache, number=1), shortened(cache, 2)]
    url, prefixes = await place(world, publications)
    found = await (await world.consumer(url)).discover(cache.descriptor, cache.tokens)
    assert {one.name for one in found} == {one.name for one in publications[:2]}
    assert [one.blocks for one in found] == [5, 5]
    assert found[0].keys == publications[0].keys
    assert [len(prefix) for prefix in prefixes] == [4]


@pytest.mark.parametrize("probe", [True, "prefix3"])
async def test_shorter_prefixes_longest_first(world, probe) -> None:
    cache = Cache(blocks=9)
    publications = [shortened(cache, 2), shortened(cache, 7), Forgery(Cache(seed=5))]
    url, prefixes = await place(world, publications)
    consumer = await world.consumer(url)
    found = await consumer.discover(cache.descriptor, cache.tokens, probe=probe)
    assert [(one.blocks, one.tokens) for one in found] == [(7, 28), (2, 8)]
    assert [len(prefix) for prefix in prefixes] == ([4, 3] if probe is True else [3])


async def test_one_by_one_where_the_model_may_not_be_asked_for(world) -> None:
    cache = Cache(blocks=20)
    url, prefixes = await place(world, [shortened(cache, 7), shortened(cache, 2)], Narrow)
    consumer = await world.consumer(url)
    found = await consumer.discover(cache.descriptor, cache.tokens)
    assert [one.blocks for one in found] == [7]
    assert [len(prefix) for prefix in prefixes] == [4, 3, *[4] * 16]
    keys = Forgery(cache).keys
    assert {prefix[3] for prefix in prefixes[2:]} == set(keys[4:])


async def test_one_by_one_has_an_end(world, monkeypatch) -> None:
    monkeypatch.setattr(discovery, "NONE_AFTER", 0.01)
    cache = Cache(blocks=200)
    url, prefixes = await place(world, [shortened(cache, 2)])
    consumer = await world.consumer(url)
    with pytest.raises(UnknownPublication):
        await consumer.discover(cache.descriptor, cache.tokens, probe="each")
    assert len(prefixes) == discovery.MAX_PROBES


async def test_without_probing_only_the_whole_prefix_is_told(world, monkeypatch) -> None:
    monkeypatch.setattr(discovery, "NONE_AFTER", 0.01)
    cache = Cache(blocks=5)
    url, prefixes = await place(world, [shortened(cache, 2)])
    consumer = await world.consumer(url)
    with pytest.raises(UnknownPublication):
        await consumer.discover(cache.descriptor, cache.tokens, probe=False)
    assert [prefix[3] for prefix in prefixes] == [Forgery(cache).keys[-1]]


async def test_refusals_are_told(world) -> None:
    cache = Cache()
    url, _ = await place(world, [Forgery(cache)], Closed)
    consumer = await world.consumer(url)
    with pytest.raises(UnknownPublication, match=f"{url} answered UNAUTHORIZED: too wide"):
        await consumer.discover(cache.descriptor, cache.tokens)


@pytest.mark.parametrize("probe", [True, False, "prefix3", "each"])
async def test_waiting_for_one_that_is_not_there_yet(world, monkeypatch, probe) -> None:
    monkeypatch.setattr(discovery, "NONE_AFTER", 0.01)
    cache = Cache()
    publisher, url = await world.publisher()
    consumer = await world.consumer(url)
    finding = asyncio.create_task(
        consumer.discover(cache.descriptor, cache.tokens, wait=10, probe=probe)
    )
    await asyncio.sleep(0.1)
    assert not finding.done()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    (found,) = await finding
    assert found.name == publication.name


async def test_waiting_for_a_session(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer()
    finding = asyncio.create_task(consumer.discover(cache.descriptor, cache.tokens, wait=10))
    await asyncio.sleep(0)
    await consumer.connect(url, tls=world.client_tls)
    (found,) = await finding
    assert found.name == publication.name


async def test_several_at_once_share_what_they_may(world) -> None:
    caches = [Cache(blocks=blocks) for blocks in (3, 4, 5, 6)]
    for cache in caches:
        cache.tokens = caches[-1].tokens[: cache.blocks * 4]
    publisher, url = await world.publisher()
    publication = publisher.open(caches[0].descriptor, tokens=caches[0].tokens)
    consumer = await world.consumer(url)
    found = await asyncio.gather(
        *(consumer.discover(cache.descriptor, cache.tokens) for cache in caches)
    )
    assert [[one.name for one in each] for each in found] == [[publication.name]] * 4
    (link,) = consumer._links.open
    assert link.interests == {}


async def test_a_withdrawn_publication_is_not_found(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    consumer = await world.consumer(url)
    assert await consumer.discover(cache.descriptor, cache.tokens)
    publication.withdraw()
    with pytest.raises(UnknownPublication):
        await consumer.discover(cache.descriptor, cache.tokens)


async def test_ready_made_identifiers(world) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    url, _ = await place(world, [forgery])
    consumer = await world.consumer(url, scope_key=None)
    found = await consumer.discover(
        cache.descriptor.to_json(), scope_id=forgery.name.scope_id, block_keys=forgery.keys
    )
    assert [one.name for one in found] == [forgery.name]


async def test_too_short_a_prompt(world) -> None:
    consumer = await world.consumer(scope_key=SCOPE_KEY)
    with pytest.raises(InvalidInput, match="fills no block of 4 tokens"):
        await consumer.discover(Cache().descriptor, [1, 2, 3])
    with pytest.raises(UnknownPublication, match="on no session"):
        await consumer.discover(Cache().descriptor, [1, 2, 3, 4])


class Heard:
    """A NamespaceListener of a test."""

    def accepted(self) -> None:
        pass

    def found(self, namespace) -> None:
        pass

    def gone(self, namespace) -> None:
        pass

    def ended(self, error) -> None:
        pass


@pytest.mark.parametrize("for_good", [False, True])
async def test_a_question_in_the_way_of_another(world, for_good: bool) -> None:
    cache = Cache(blocks=3)
    url, prefixes = await place(world, [shortened(cache, 2)])
    consumer = await world.consumer(url)
    (link,) = consumer._links.open
    standing = link.connection.subscribe_namespace(Forgery(cache).name.namespace, Heard())
    finding = asyncio.create_task(
        consumer.discover(cache.descriptor, cache.tokens, probe=True if for_good else "prefix3")
    )
    await asyncio.sleep(0.1)
    if not for_good:
        standing.cancel()
    (found,) = await finding
    assert found.blocks == 2
    assert len(prefixes[-1]) == (4 if for_good else 3)


def test_a_peer_that_tells_without_end(monkeypatch) -> None:
    monkeypatch.setattr(relays, "MAX_OFFERS", 10)
    offers = relays.Offers()
    names = [Forgery(Cache(seed=seed)).name for seed in range(4)]
    names += [dataclasses.replace(names[0], pub_id=bytes([n]) * 16) for n in range(1, 21)]
    for name in names:
        offers.add(name)
        offers.add(name)
    assert [name in offers for name in names] == [True] * 10 + [False] * 14
    assert list(offers.under(names[1].anchor_key)) == [names[1]]
    for name in names:
        offers.discard(name)
    offers.add(names[-1])
    assert names[-1] in offers
    offers.clear()
    assert list(offers.under(names[-1].anchor_key)) == []


async def test_namespaces_of_others_are_ignored(world) -> None:
    cache = Cache()
    publisher, url = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    strange = (*publication.name.namespace[:4], b"short")
    publisher._catalog.announce(strange)
    consumer = await world.consumer(url)
    finding = asyncio.create_task(
        consumer.discover(cache.descriptor, cache.tokens, probe="prefix3")
    )
    await world.until(lambda: consumer._links.open[0].interests)
    publisher._catalog.withdraw(strange)
    (found,) = await finding
    assert found.name == publication.name
    listener = await world.consumer()
    port = await listener.listen("127.0.0.1", 0, tls=world.server_tls)
    publisher._catalog.announce(strange)
    await publisher.dial(f"moqt://127.0.0.1:{port}/", tls=world.client_tls)
    assert await listener.discover(cache.descriptor, cache.tokens, wait=10)
    (connection,) = publisher._uplinks[0].connections
    await world.until(lambda: strange not in publisher._catalog._announced[connection])


async def test_a_session_that_ends_meanwhile(world) -> None:
    cache = Cache()
    forgery = Forgery(cache)
    url = await forgery.serve(world)
    forgery.catalog.withdraw(forgery.name.namespace)
    consumer = await world.consumer(url)
    finding = asyncio.create_task(consumer.discover(cache.descriptor, cache.tokens, wait=10))
    await asyncio.sleep(0.05)
    for connection in tuple(forgery.server.connections):
        connection.session.close(0, "restarting")
    await world.until(lambda: not consumer._links.open)
    forgery.catalog.announce(forgery.name.namespace)
    await consumer.connect(url, tls=world.client_tls)
    assert [found.name for found in await finding] == [forgery.name]


@pytest.mark.parametrize("dialled", [False, True])
async def test_a_publisher_that_has_just_dialled_gets_its_grace(
    world, monkeypatch, dialled
) -> None:
    monkeypatch.setattr(discovery, "NONE_AFTER", 10.0)
    cache = Cache()
    publisher, _ = await world.publisher()
    publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    listener = await world.consumer()
    port = await listener.listen("127.0.0.1", 0, tls=world.server_tls)
    url = f"moqt://127.0.0.1:{port}/"
    if dialled:
        publication.withdraw()
        await publisher.dial(url, tls=world.client_tls)
        await world.until(lambda: listener._links.open)
    finding = asyncio.create_task(listener.discover(cache.descriptor, cache.tokens))
    await asyncio.sleep(0)
    if dialled:
        publication = publisher.open(cache.descriptor, tokens=cache.tokens)
    else:
        await publisher.dial(url, tls=world.client_tls)
    (found,) = await finding
    assert found.name == publication.name


async def test_the_grace_has_an_end(world, monkeypatch) -> None:
    monkeypatch.setattr(discovery, "NONE_AFTER", 0.01)
    cache = Cache()
    publisher, _ = await world.publisher()
    listener = await world.consumer()
    port = await listener.listen("127.0.0.1", 0, tls=world.server_tls)
    await publisher.dial(f"moqt://127.0.0.1:{port}/", tls=world.client_tls)
    await world.until(lambda: listener._links.open)
    with pytest.raises(UnknownPublication, match="for more tokens only"):
        await listener.discover(cache.descriptor, cache.tokens)
