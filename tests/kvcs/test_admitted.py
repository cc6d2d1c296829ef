"""Publishers and consumers at a relay that lets in who shows a token, over real sockets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kvcs.errors import UnknownPublication
from kvcs.gatekeeper import Gatekeeper
from kvcs.identity import KVSP_PROFILE_0
from kvcs.issuers import Issuers, create_issuer_keys, load_issuer_key
from kvcs.scopes import kvcs_scopes
from kvcs.tokenfile import TokenFile, write_token
from kvcs.tokens import Claims, issue
from moqt.codec.fields import Token
from moqt.relay.service import RelayService, ServiceConfig
from moqt.session.tokens import Claim
from tests.kvcs.endpoints import OTHER_KEY, SCOPE_KEY, Cache, World, check

pytestmark = pytest.mark.e2e


class Closed:
    """A relay closed to strangers, and the issuer it trusts."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        create_issuer_keys(folder / "issuer.key", folder / "issuer.pem")
        self.gate = Gatekeeper(issuers=Issuers([folder]), audiences=["here"], wall=time.time)
        self.url = ""
        #: What was asked with which tokens.
        self.claims: list[Claim] = []

    async def open(self) -> None:
        def judge(transport: object) -> Any:
            guard = self.gate.guard()

            class Seen:
                """Writes down what is judged."""

                grant = guard.grant

                def __call__(_, claim: Claim, now: float) -> Any:  # noqa: N805
                    self.claims.append(claim)
                    return guard(claim, now)

            return Seen()

        service = RelayService(
            ServiceConfig(host="127.0.0.1", port=0, tls=self.world.server_tls, judge=judge)
        )
        await service.start()
        self.world.defer(service.close)
        self.url = f"moqt://127.0.0.1:{service.port}/"

    def token(self, name: str, key: Any = SCOPE_KEY, **rights: bool) -> TokenFile:
        """A file with a token that is good for an hour."""
        scopes = kvcs_scopes(KVSP_PROFILE_0.scope_id(key), **rights)
        claims = Claims("issuer", ("here",), time.time() + 3600, scopes, subject=name)
        secret = load_issuer_key(self.folder / "issuer.key")
        write_token(self.folder / name, issue(claims, secret))
        return TokenFile(self.folder / name)


@pytest.fixture
async def closed(world: World, tmp_path: Path) -> Closed:
    made = Closed(world, tmp_path)
    await made.open()
    return made


async def test_who_shows_a_token_is_let_in(world: World, closed: Closed) -> None:
    cache = Cache()
    writer = closed.token("writer", publish=True, read=False)
    reader = closed.token("reader", publish=False, read=True)
    publisher, _ = await world.publisher(credentials=writer)
    await publisher.dial([closed.url], tls=world.client_tls)
    publication = await cache.publish(publisher)
    consumer = await world.consumer(closed.url, credentials=reader)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens, wait=5)
    assert found.name == publication.name
    await check(await consumer.retrieve(found), cache)
    shown = {claim.action.name: claim.tokens for claim in closed.claims}
    assert shown["PUBLISH_NAMESPACE"] == writer()
    assert shown["SUBSCRIBE_NAMESPACE"] == shown["FETCH"] == reader()
    assert "SUBSCRIBE" in shown


async def test_strangers_and_those_of_another_scope_learn_nothing(
    world: World, closed: Closed
) -> None:
    cache = Cache()
    publisher, _ = await world.publisher(
        credentials=closed.token("writer", publish=True, read=False)
    )
    await publisher.dial([closed.url], tls=world.client_tls)
    publication = await cache.publish(publisher)
    reader = await world.consumer(
        closed.url, credentials=closed.token("reader", publish=False, read=True)
    )
    await reader.discover(cache.descriptor, cache.tokens, wait=5)
    told = []
    for credentials in (None, closed.token("other", OTHER_KEY, publish=True, read=True)):
        consumer = await world.consumer(closed.url, credentials=credentials)
        for tokens in (cache.tokens, [1] * len(cache.tokens)):  # one that exists, one that does not
            with pytest.raises(UnknownPublication) as caught:
                await consumer.discover(cache.descriptor, tokens)
            told.append(str(caught.value).partition(" blocks) ")[2])
        with pytest.raises(UnknownPublication):
            await consumer.retrieve(publication.name, timeout=2.0)
    assert len(set(told)) == 1
    assert "UNAUTHORIZED: not authorized" in told[0]


async def test_a_fresh_token_takes_the_place_of_an_old_one(world: World, closed: Closed) -> None:
    cache = Cache()
    writer = closed.token("writer", publish=True, read=False)
    publisher, _ = await world.publisher(credentials=writer)
    await publisher.dial([closed.url], tls=world.client_tls)
    await cache.publish(publisher)
    reader = closed.token("reader", OTHER_KEY, publish=False, read=True)
    consumer = await world.consumer(closed.url, credentials=reader)
    with pytest.raises(UnknownPublication):
        await consumer.discover(cache.descriptor, cache.tokens)
    closed.token("reader", publish=False, read=True)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens, wait=5)
    await check(await consumer.retrieve(found), cache)


async def test_who_dials_us_is_shown_nothing(world: World) -> None:
    def credentials() -> tuple[Token, ...]:
        raise AssertionError("shown to a stranger")

    cache = Cache()
    consumer = await world.consumer(credentials=credentials)
    port = await consumer.listen("127.0.0.1", 0, tls=world.server_tls)
    publisher, _ = await world.publisher()
    await publisher.dial(f"moqt://127.0.0.1:{port}/", tls=world.client_tls)
    publication = await cache.publish(publisher)
    (found,) = await consumer.discover(cache.descriptor, cache.tokens, wait=5)
    assert found.name == publication.name
    await check(await consumer.retrieve(found), cache)
