"""Publishers and consumers that come to the relays of a soak, and leave in every way there is."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter as Tally
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from kvcs.cli.children import Child
from kvcs.consumer import Consumer
from kvcs.errors import IncompletePublication, UnknownPublication
from kvcs.names import PublicationName
from kvcs.publisher import Publisher
from kvcs.results import Report
from kvcs.retrieval import Retrieval
from kvcs.tensorfile import TensorFile, TensorFileWriter
from tests.kvcs.endpoints import SCOPE_KEY, Cache
from tests.soak.relays import BACKLOG, Keys, Relay, start

#: Seconds for which relays keep what nobody asks for.
RETENTION = 15.0
#: Seconds without progress after which a consumer gives up: of what must come, and of what may.
PATIENCE, IMPATIENCE = 20.0, 3.0
#: Seconds for a relay to end the subscription of one that stands still; it lives for 30.
STANDING = 20.0


class Fault(Exception):
    """Something was lost, came twice, or was not what had been published."""


class Visits:
    """Each visit is one publication, its consumers, and how all of them fare."""

    def __init__(self, keys: Keys, relays: list[Relay], random: Random) -> None:
        #: What has happened, by name.
        self.tally: Tally[str] = Tally()
        #: Publications that live just now.
        self.known: dict[PublicationName, None] = {}
        self.octets = 0
        self._keys = keys
        self._relays = relays
        self._random = random
        self._count = 0

    # -- publishers ------------------------------------------------------------------------------

    async def whole(self) -> None:
        """All is published; the publisher stays until everybody has it.

        When it loses its session it comes back: who follows misses nothing, who asks meanwhile may.
        """
        cache = self._cache()
        loses = self._random.random() < 0.15
        async with self._publisher() as publisher, asyncio.TaskGroup() as crowd:
            publication = await self._open(publisher, cache)
            name = publication.name
            early = [asyncio.Event() for _ in range(self._random.randrange(3))]
            for follows in early:
                kind = "early, publisher cut off" if loses else "early"
                self._join(crowd, 1, name, cache, kind, follows=follows)
            for layer in range(cache.layers):
                await asyncio.sleep(0.4 * self._random.random())
                await publication.put_layer(layer, cache.k[layer], cache.v[layer])
                if loses and layer == cache.layers // 2:
                    await asyncio.gather(*(follows.wait() for follows in early))
                    self.tally["publisher cut off, and back"] += 1
                    for uplink in publisher._uplinks:
                        for connection in tuple(uplink.connections):
                            connection.sink.abandon()
                elif self._random.random() < 0.3:
                    self._join(crowd, 1, name, cache, "late", must=not loses)
            await publication.finish()
            count = self._random.randrange(3)
            self._join(crowd, count, name, cache, "completed", must=not loses)
            self._join(crowd, self._random.randrange(2), name, cache, "part", must=not loses)
        del self.known[name]
        if self._random.random() < 0.3:
            await self._consume(name, cache, "after the end", must=False)

    async def given_up(self) -> None:
        """The publisher fails, or leaves, in the middle."""
        cache = self._cache()
        async with asyncio.TaskGroup() as crowd:
            async with self._publisher() as publisher:
                publication = await self._open(publisher, cache)
                self._join(crowd, 2, publication.name, cache, "of a failure", must=False)
                for layer in range(self._random.randrange(1, cache.layers)):
                    await asyncio.sleep(0.4 * self._random.random())
                    await publication.put_layer(layer, cache.k[layer], cache.v[layer])
                if self._random.random() < 0.5:
                    await publication.fail("out of memory")
            del self.known[publication.name]

    async def parting(self) -> None:
        """The publisher leaves well with its last layer; what was asked for still comes."""
        cache = self._cache()
        async with asyncio.TaskGroup() as crowd:
            async with self._publisher() as publisher:
                publication = await self._open(publisher, cache)
                self._join(crowd, 2, publication.name, cache, "of a parting", must=False)
                for layer in range(cache.layers):
                    await asyncio.sleep(0.3 * self._random.random())
                    await publication.put_layer(layer, cache.k[layer], cache.v[layer])
                await publication.finish()
            del self.known[publication.name]

    async def killed(self) -> None:
        """A process that dies in the middle, or with everything published."""
        cache, path = self._cache(), self._path()
        write(cache, path)
        tokens = ("--block-tokens", cache.descriptor.block_tokens)
        words = (path, "--scope-key", self._keys.folder / "scope.key", *tokens)
        words += ("--relay", self._relays[0].url, "--ca", self._keys.certificates.ca)
        words += ("--token-file", self._keys.folder / "writer.token", "--pace", 0.2)
        words += ("--retention", RETENTION, "--linger", 600)
        async with AsyncExitStack() as stack:
            child = await start(stack, "publisher", "kvcs.cli.pub", *words)
            name = _name(await child.until("opened"))
            layers = self._random.randrange(1, cache.layers + 1)
            async with asyncio.TaskGroup() as crowd:
                self._join(crowd, 2, name, cache, "of a kill", must=False)
                await child.until("published", layers)
                child.signal(signal.SIGKILL)
                await child.wait()
        path.unlink()

    async def stood_still(self) -> None:
        """A consumer process stands still until the relay gives it up; then it goes on, or dies."""
        cache = self._cache(layers=6, blocks=8, head_dim=1024)
        relay, other = self._random.sample(self._relays, 2)
        out = self._path()
        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(self._publisher())
            publication = await self._open(publisher, cache)
            words = (f"{relay.url}#{publication.name.fragment}", "-o", out, "--timeout", 30)
            words += ("--ca", self._keys.certificates.ca)
            words += ("--token-file", self._keys.folder / "reader.token")
            child = await start(stack, "stander", "kvcs.cli.sub", *words)
            await child.until("retrieving")
            before = (await relay.ask())["too_far_behind"]
            await publication.put_layer(0, cache.k[0], cache.v[0])
            await child.until("layer")
            child.signal(signal.SIGSTOP)
            try:
                async with asyncio.TaskGroup() as crowd:
                    self._join(crowd, 1, publication.name, cache, "beside a stander", at=other)
                    for layer in range(1, cache.layers):
                        await asyncio.sleep(0.2)
                        await publication.put_layer(layer, cache.k[layer], cache.v[layer])
                    await self._given_up_by(relay, before)
            finally:
                dies = self._random.random() < 0.3
                child.signal(signal.SIGKILL if dies else signal.SIGCONT)
            await self._stander_ends(child, cache, out, dies=dies)
            await publication.finish()
            del self.known[publication.name]

    async def _given_up_by(self, relay: Relay, before: int) -> None:
        async with asyncio.timeout(STANDING):
            while (await relay.ask())["too_far_behind"] == before:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.5)

    async def _stander_ends(self, child: Child, cache: Cache, out: Path, *, dies: bool) -> None:
        code = await child.wait()
        self.tally["stander " + ("killed" if dies else "went on")] += 1
        if dies:
            return
        (report,) = child.of("report") or [{}]
        if code or report.get("missing") or report.get("rejected"):
            raise Fault(f"a stander ended with {code}: {report} {child.of('error')}")
        if (layer := different(cache, out)) is not None:
            raise Fault(f"a stander has other octets in layer {layer}")
        self._counts(report["octets"])

    # -- consumers -------------------------------------------------------------------------------

    def _join(
        self, crowd: asyncio.TaskGroup, count: int, name: PublicationName, *how: Any, **more: Any
    ) -> None:
        for _ in range(count):
            crowd.create_task(self._consume(name, *how, **more))

    async def _consume(
        self,
        name: PublicationName,
        cache: Cache,
        kind: str,
        *,
        must: bool = True,
        at: Relay | None = None,
        follows: asyncio.Event | None = None,
    ) -> None:
        """One consumer, at any of the relays, verified to the last octet.

        ``follows`` is set once it has the first layer, or has ended.
        """
        relay = at or self._random.choice(self._relays)
        told = f"{kind} at {relay.name}"
        consumer = Consumer(scope_key=SCOPE_KEY, credentials=self._keys.reader())
        try:
            await consumer.connect(relay.url, tls=self._keys.tls, wait=10)
            if follows is not None:  # it may not be announced yet
                found = await consumer.discover(cache.descriptor, cache.tokens, wait=10)
                if name not in [one.name for one in found]:
                    raise Fault(f"{told}: {name.fragment} was not found")
            retrieval = await self._retrieve(consumer, name, cache, kind, must=must)
            if follows is not None:
                await retrieval.layer(0)
                follows.set()
            if must and kind != "completed" and self._random.random() < 0.2:
                told += ", left"
                await self._leave_midway(consumer, retrieval, cache)
                return
            report = await retrieval.wait()
            _check(told, report, retrieval, cache)
            self._counts(report.octets)
        except UnknownPublication as error:
            if must:
                raise Fault(f"{told}: {error}") from None
            told += ", unknown"
        except IncompletePublication as error:
            if must:
                raise Fault(f"{told}: {error}") from None
            told += ", incomplete"
            await _check_layers(told, retrieval, cache)
        finally:
            if follows is not None:
                follows.set()
            self.tally[told] += 1
            await consumer.close()

    async def _retrieve(
        self, consumer: Consumer, name: PublicationName, cache: Cache, kind: str, *, must: bool
    ) -> Retrieval:
        chosen: dict[str, Any] = {"timeout": PATIENCE if must else IMPATIENCE}
        if kind == "part":
            first = self._random.randrange(cache.layers)
            chosen["layers"] = (first, self._random.randrange(first, cache.layers))
            chosen["blocks"] = self._random.randrange(1, cache.blocks + 1)
        return await consumer.retrieve(name, **chosen)

    async def _leave_midway(self, consumer: Consumer, retrieval: Retrieval, cache: Cache) -> None:
        """After some layer: cancelled, closed by what follows, or the session cut off."""
        await retrieval.layer(self._random.choice(retrieval.wanted_layers))
        await _check_layers("left", retrieval, cache)
        how = self._random.random()
        if how < 0.4:
            retrieval.cancel()
        elif how < 0.7:
            for link in consumer._links.open:
                link.connection.sink.abandon()

    # -- inside ----------------------------------------------------------------------------------

    def _publisher(self) -> Publisher:
        return Publisher(scope_key=SCOPE_KEY, retention=RETENTION, credentials=self._keys.writer())

    async def _open(self, publisher: Publisher, cache: Cache) -> Any:
        await publisher.dial(self._relays[0].url, tls=self._keys.tls, wait=10)
        publication = publisher.open(cache.descriptor, tokens=cache.tokens)
        self.known[publication.name] = None
        return publication

    def _cache(self, layers: int = 0, blocks: int = 0, head_dim: int = 0) -> Cache:
        """Never the same one: objects of 4 to 24 KiB; most publications fit into BACKLOG."""
        self._count += 1
        return Cache(
            layers or self._random.randrange(2, 7),
            blocks or self._random.randrange(1, 7),
            block_tokens=16,
            kv_heads=4,
            head_dim=head_dim or self._random.choice((32, 64, 128, 192)),
            seed=self._random.getrandbits(48),
        )

    def _path(self) -> Path:
        self._count += 1
        return self._keys.folder / f"{self._count}.safetensors"

    def _counts(self, octets: int) -> None:
        self.octets += octets

    @property
    def kinds(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The visits within this process, each as often as it is here."""
        return (*(self.whole,) * 6, self.given_up, self.parting)


def write(cache: Cache, path: Path) -> None:
    """The same cache as a file."""
    tokens = len(cache.tokens)
    with TensorFileWriter.for_kv_cache(
        path, cache.descriptor, tokens, token_ids=cache.tokens
    ) as file:
        for layer in range(cache.layers):
            file.write(f"k.{layer}", cache.k[layer])
            file.write(f"v.{layer}", cache.v[layer])
        file.commit()


def different(cache: Cache, path: Path) -> int | None:
    """The first layer of a file, which is then removed, that is not as it was published."""
    with TensorFile(path) as file:
        path.unlink()
        for layer in range(cache.layers):
            if (
                file.view(f"k.{layer}") != cache.k[layer]
                or file.view(f"v.{layer}") != cache.v[layer]
            ):
                return layer
    return None


def _name(opened: dict[str, Any]) -> PublicationName:
    return PublicationName.from_fragment(opened["publication"].partition("#")[2])


def _check(told: str, report: Report, retrieval: Retrieval, cache: Cache) -> None:
    """All of it is there, as it was published, each object once.

    Who was too far behind fetches what it lacks: what was on its way may come twice.
    """
    wanted = retrieval.wanted_layers
    if report.digest != cache.digest(wanted[0], wanted[-1], retrieval.blocks):
        raise Fault(f"{told}: other octets than were published")
    if report.missing or report.rejected or (report.duplicates and not _behind(report, cache)):
        raise Fault(f"{told}: {report}")


def _behind(report: Report, cache: Cache) -> bool:
    """True when the relay has cut off its streams because too much waited for it."""
    return report.lost > 0 and 2 * sum(map(len, cache.k)) > BACKLOG


async def _check_layers(told: str, retrieval: Retrieval, cache: Cache) -> None:
    """What there is of it is as it was published, each object once."""
    size = retrieval.blocks * cache.block_octets
    for mark in retrieval.events:
        layer = await retrieval.layer(mark.layer)
        expected = cache.k[layer.index][:size], cache.v[layer.index][:size]
        if (layer.buffers["k"], layer.buffers["v"]) != expected:
            raise Fault(f"{told}: other octets in layer {layer.index}")
    report = retrieval.report()
    if report.rejected or (report.duplicates and not _behind(report, cache)):
        raise Fault(f"{told}: {report}")
