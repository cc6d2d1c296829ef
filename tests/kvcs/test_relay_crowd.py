"""Many consumers, several relays, tokens that end: over real sockets, each object once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcs.cose import PrivateKey
from kvcs.errors import IncompletePublication
from kvcs.gatekeeper import Gatekeeper
from kvcs.identity import KVSP_PROFILE_0
from kvcs.issuers import Issuers, create_issuer_keys, load_issuer_key
from kvcs.scopes import kvcs_scopes
from kvcs.tokenfile import TokenFile, write_token
from kvcs.tokens import SKEW, Claims, issue
from moqt import connect
from moqt.model import Location
from moqt.session import renewal
from tests.kvcs.endpoints import SCOPE_KEY, Cache, check, relay
from tests.kvcs.forgery import Forgery, K

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

CROWD = 64


async def test_64_consumers_over_real_sockets(world) -> None:
    """Half of them before the first layer, half in the middle; the origin sends it once."""
    cache = Cache(layers=4)
    service, url = await relay(world)
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    consumers = await asyncio.gather(*(world.consumer(url) for _ in range(CROWD)))
    early = await asyncio.gather(
        *(one.retrieve(publication.name) for one in consumers[: CROWD // 2])
    )
    await cache.put(publication, 0, 1)
    await early[0].layer(1)
    late = await asyncio.gather(
        *(one.retrieve(publication.name) for one in consumers[CROWD // 2 :])
    )
    await cache.put(publication, 2)
    await publication.finish()
    await asyncio.gather(*(check(retrieval, cache) for retrieval in (*early, *late)))
    assert len(service.connections) == CROWD + 1
    counts = service.relay.context.counts
    assert counts["duplicates"] == 0
    sent = made.monitor.counters.sent
    objects = 2 * cache.layers * (cache.blocks + 1) + 2  # ends of groups and of tracks included
    assert sent.objects <= objects + 4, "each once, and the versions of the manifest"


async def test_two_relays_with_different_parts_and_no_publisher(world) -> None:
    """What the first has is taken there, only what it lacks from the second."""
    cache = Cache(layers=8)
    made, _ = await world.publisher()
    services, urls = zip(*[await relay(world) for _ in range(2)], strict=True)
    for url in urls:
        await made.dial([url], tls=world.client_tls)
    publication = await cache.publish(made)
    for url, layers in zip(urls, ((0, 4), (3, 7)), strict=True):
        part = await (await world.consumer(url)).retrieve(publication.name, layers=layers)
        await check(part, cache)
    await made.close()
    await world.until(lambda: not any(one.relay.directory for one in services))
    before = [service.monitor.counters.sent.objects for service in services]
    retrieval = await (await world.consumer(*urls)).retrieve(publication.name)
    await check(retrieval, cache)
    assert retrieval.report().sources == urls
    after = [service.monitor.counters.sent.objects for service in services]
    parts = [now - then for now, then in zip(after, before, strict=True)]
    assert min(parts) > 0
    assert sum(parts) <= 2 * 8 * (cache.blocks + 1) + 2 + 4


async def test_a_consumer_that_is_there_before_the_publisher(world) -> None:
    """Both have lost a relay; the publisher comes to the next one after the consumer has asked."""
    cache = Cache(layers=4)
    (first, url), (second, other) = [await relay(world) for _ in range(2)]
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    retrieval = await (await world.consumer(url, other)).retrieve(publication.name)
    await cache.put(publication, 0, 1)
    await retrieval.layer(1)
    await first.close()
    asked = second.monitor.counters.received.messages
    while asked["SUBSCRIBE"] < 3:  # the manifest, k and v
        await asyncio.sleep(0.01)
        asked = second.monitor.counters.received.messages
    await made.dial([other], tls=world.client_tls)
    await cache.put(publication, 2)
    await publication.finish()
    await check(retrieval, cache)
    assert retrieval.report().sources == (url, other)
    assert retrieval.report().listed


async def test_a_poisoned_object_is_never_whole_whoever_asks_for_it(world) -> None:
    """The relay cannot tell; each consumer can, and nothing else of the publication suffers."""
    poison = Location(1, 2)
    cache = Cache(layers=3)
    forgery = Forgery(
        cache,
        lambda track, place, payload: (
            payload[:-1] + bytes([payload[-1] ^ 1]) if (track, place) == (K, poison) else payload
        ),
    )
    service, url = await relay(world)
    forgery.catalog.announce(forgery.name.namespace)
    up = await connect(url, handler=forgery.catalog.handler, tls=world.client_tls)
    world.defer(up.close)
    forgery.catalog.announce_on(up)
    await world.until(lambda: len(service.relay.directory))
    forgery.version()
    early = await (await world.consumer(url)).retrieve(forgery.name)
    for number in range(cache.layers):
        forgery.layer(number)
    forgery.end()
    forgery.version()
    late = await (await world.consumer(url)).retrieve(forgery.name, mode="fetch")
    for retrieval in (early, late):
        with pytest.raises(IncompletePublication, match="1 of 18"):
            await retrieval.wait()
        report = retrieval.report()
        assert (report.missing, report.duplicates, report.digest) == (1, 0, None)
        assert set(report.rejected) == {"digest"}
        for layer in (0, 2):
            assert (await retrieval.layer(layer)).buffers["k"] == cache.k[layer]
        with pytest.raises(IncompletePublication):
            await retrieval.layer(poison.group)


class Strict:
    """A relay that only lets those in who show a token, and its issuer."""

    def __init__(self, folder: Path) -> None:
        create_issuer_keys(folder / "issuer.key", folder / "issuer.pem")
        self.folder = folder
        self.key: PrivateKey = load_issuer_key(folder / "issuer.key")
        self.gate = Gatekeeper(
            issuers=Issuers([folder / "issuer.pem"]), audiences=["here"], wall=time.time
        )

    @property
    def judge(self) -> Callable[[Any], Any]:
        return lambda transport: self.gate.guard()

    def file(self, name: str, seconds: float, **rights: bool) -> Path:
        """A token that this relay takes for so many seconds, put in a file."""
        scopes = kvcs_scopes(KVSP_PROFILE_0.scope_id(SCOPE_KEY), **rights)
        claims = Claims("issuer", ("here",), time.time() + seconds - SKEW, scopes)
        write_token(self.folder / name, issue(claims, self.key))
        return self.folder / name


async def test_a_token_that_ends_in_the_middle(world, tmp_path, monkeypatch) -> None:
    """Who is given the next one goes on, each object once; who is not ends, with nothing whole."""
    monkeypatch.setattr(renewal, "LOOK", 0.1)
    strict = Strict(tmp_path)
    cache = Cache(layers=8)
    service, url = await relay(world, judge=strict.judge)
    held = TokenFile(strict.file("pub.token", 3600, publish=True, read=False))
    made, _ = await world.publisher(credentials=held)
    await made.dial([url], tls=world.client_tls)
    publication = made.open(cache.descriptor, tokens=cache.tokens)
    retrievals = []
    for name in ("renewed", "not"):
        shown = TokenFile(strict.file(name, 2.5, publish=False, read=True))
        consumer = await world.consumer(url, credentials=shown)
        retrievals.append(await consumer.retrieve(publication.name))
    renewed, ended = retrievals
    await cache.put(publication, 0, 3)
    await asyncio.gather(renewed.layer(3), ended.layer(3))
    strict.file("renewed", 3600, publish=False, read=True)
    with pytest.raises(IncompletePublication) as failure:
        await ended.wait()
    assert any("EXPIRED_AUTH_TOKEN: a token has expired" in one for one in failure.value.causes)
    await cache.put(publication, 4)
    await publication.finish()
    await check(renewed, cache)
    assert renewed.report().setbacks == ()
    report = ended.report()
    assert (report.missing, report.duplicates, report.rejected) == (2 * 4 * cache.blocks, 0, {})
    assert report.digest is None
    with pytest.raises(IncompletePublication):
        await ended.layer(4)
    assert service.relay.context.counts["grants_ended"] >= 2
