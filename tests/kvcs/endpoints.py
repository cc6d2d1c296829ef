"""Real publishers and consumers on loopback, and random caches to send."""

from __future__ import annotations

import asyncio
import hashlib
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from kvcs.consumer import Consumer
from kvcs.identity import CompatibilityDescriptor, DType, ScopeKey
from kvcs.publisher import Publisher
from moqt.relay.service import RelayService, ServiceConfig
from moqt.relay.upstreams import Upstream
from transport.config import ClientTls, ServerTls
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvcs.publication import Publication
    from kvcs.retrieval import Retrieval
    from transport.certificates import CertificatePaths

SCOPE_KEY = ScopeKey(bytes(range(32)))
OTHER_KEY = ScopeKey(bytes(range(1, 33)))


class Cache:
    """A random KV cache; ``k`` and ``v`` are one ``bytes`` a layer."""

    def __init__(
        self,
        layers: int = 4,
        blocks: int = 3,
        *,
        block_tokens: int = 4,
        kv_heads: int = 2,
        head_dim: int = 16,
        dtype: DType = DType.FLOAT16,
        seed: int = 0,
    ) -> None:
        chance = random.Random(seed)
        self.descriptor = CompatibilityDescriptor(
            model=f"test {seed}",
            layers=layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            block_tokens=block_tokens,
        )
        self.blocks = blocks
        self.tokens = [chance.randrange(1 << 16) for _ in range(blocks * block_tokens)]
        self.block_octets = block_tokens * kv_heads * head_dim * dtype.octets
        size = blocks * self.block_octets
        self.k = [chance.randbytes(size) for _ in range(layers)]
        self.v = [chance.randbytes(size) for _ in range(layers)]

    @property
    def layers(self) -> int:
        return len(self.k)

    async def put(self, publication: Publication, first: int = 0, last: int | None = None) -> None:
        """Publish layers ``first`` to ``last``."""
        for layer in range(first, self.layers if last is None else last + 1):
            await publication.put_layer(layer, self.k[layer], self.v[layer])

    async def publish(self, publisher: Publisher, **options: Any) -> Publication:
        """All of it, finished."""
        publication = publisher.open(self.descriptor, tokens=self.tokens, **options)
        await self.put(publication)
        await publication.finish()
        return publication

    def digest(self, first: int = 0, last: int | None = None, blocks: int | None = None) -> str:
        """SHA-256 of the layers in order, K then V."""
        size = (blocks or self.blocks) * self.block_octets
        found = hashlib.sha256()
        for layer in range(first, self.layers if last is None else last + 1):
            found.update(self.k[layer][:size])
            found.update(self.v[layer][:size])
        return found.hexdigest()


class World:
    """Closes everything it made, newest first."""

    def __init__(self, certificates: CertificatePaths) -> None:
        self.server_tls = ServerTls(
            certificate=certificates.certificate, private_key=certificates.private_key
        )
        self.client_tls = ClientTls(ca_file=certificates.ca)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def defer(self, close: Callable[[], Awaitable[object]]) -> None:
        """Close something else with the rest."""
        self._stack.push_async_callback(close)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop run until ``condition`` holds; the test's own timeout is the bound."""
        while not condition():  # noqa: ASYNC110 - conditions of all kinds, none has an event
            await asyncio.sleep(0.001)

    async def publisher(self, **options: Any) -> tuple[Publisher, str]:
        """A listening publisher, and its URL."""
        options.setdefault("scope_key", SCOPE_KEY)
        publisher = await self._stack.enter_async_context(Publisher(**options))
        port = await publisher.listen("127.0.0.1", 0, tls=self.server_tls)
        return publisher, f"moqt://127.0.0.1:{port}/"

    async def consumer(self, *urls: str, **options: Any) -> Consumer:
        """A consumer connected to the first of ``urls``, or to none yet."""
        options.setdefault("scope_key", SCOPE_KEY)
        consumer = await self._stack.enter_async_context(Consumer(**options))
        if urls:
            await consumer.connect(urls, tls=self.client_tls)
        return consumer


async def relay(world: World, *upstreams: str, **options: Any) -> tuple[RelayService, str]:
    """A relay on a free port, and its URL; ``options`` of its ServiceConfig, or its monitor."""
    monitor = options.pop("monitor", None)
    service = RelayService(
        ServiceConfig(
            host="127.0.0.1",
            port=0,
            tls=world.server_tls,
            upstreams=tuple(
                Upstream(url=MoqtUrl.parse(url), tls=world.client_tls) for url in upstreams
            ),
            **options,
        ),
        monitor=monitor,
    )
    await service.start()
    world.defer(service.close)
    return service, f"moqt://127.0.0.1:{service.port}/"


async def check(retrieval: Retrieval, cache: Cache) -> None:
    """What arrived is what was published, each object once."""
    report = await retrieval.wait()
    wanted = retrieval.wanted_layers
    assert report.digest == cache.digest(wanted[0], wanted[-1], retrieval.blocks)
    assert (report.missing, report.duplicates, report.rejected, report.lost) == (0, 0, {}, 0)
    async for layer in retrieval.layers():
        size = retrieval.blocks * cache.block_octets
        assert layer.buffers["k"] == cache.k[layer.index][:size]
        assert layer.buffers["v"] == cache.v[layer.index][:size]
