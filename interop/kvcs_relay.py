"""KVCS through aiomoqt's relay: consumers that come before, midway, after, or for a part."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from interop.cases import Casebook, PeerFault, Stage, expect
from kvcs.consumer import Consumer
from kvcs.identity import CompatibilityDescriptor, DType, ScopeKey
from kvcs.publisher import Publisher
from transport.config import ClientTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvcs.publication import Publication
    from kvcs.retrieval import Retrieval

book: Final = Casebook("aiomoqt", "KVCS through its relay")

LAYERS: Final = 6
BLOCKS: Final = 4
DESCRIPTOR: Final = CompatibilityDescriptor(
    model="interop",
    layers=LAYERS,
    kv_heads=4,
    head_dim=64,
    dtype=DType.BFLOAT16,
    block_tokens=32,
)
#: Octets of one block of one component.
BLOCK: Final = 32 * 4 * 64 * 2


def octets(layer: int, component: str, blocks: int = BLOCKS) -> bytes:
    """K or V of a layer, the same on both sides."""
    seed = f"{layer} {component}".encode()
    return hashlib.shake_128(seed).digest(BLOCKS * BLOCK)[: blocks * BLOCK]


def digest(layers: range, blocks: int = BLOCKS) -> str:
    """What a report must say."""
    found = hashlib.sha256()
    for layer in layers:
        found.update(octets(layer, "k", blocks))
        found.update(octets(layer, "v", blocks))
    return found.hexdigest()


class Play(NamedTuple):
    """A publication, and a consumer that reaches it through the relay alone."""

    publication: Publication
    consumer: Consumer
    tokens: list[int]

    async def produce(self, *layers: int) -> None:
        """Publish ``layers``."""
        for layer in layers:
            await self.publication.put_layer(layer, octets(layer, "k"), octets(layer, "v"))

    async def check(self, retrieval: Retrieval, layers: range, blocks: int = BLOCKS) -> str:
        """Wait for the end; every octet is right, nothing is missing."""
        report = await retrieval.wait()
        expect(report.digest == digest(layers, blocks), f"digest; {report}")
        expect(not report.missing and not report.rejected and not report.lost, f"{report}")
        told = f"{report.objects} objects, mode {report.mode}"
        newest = 2 * BLOCKS  # one layer on each of two tracks
        expect(report.duplicates in (0, newest), f"{report.duplicates} objects twice; {report}")
        if report.duplicates:
            raise PeerFault(f"complete and right, but {report.duplicates} objects twice; {told}")
        return "; ".join((told, *report.setbacks))


@contextlib.asynccontextmanager
async def play(stage: Stage, name: str) -> AsyncIterator[Play]:
    """One publication, announced through the relay."""
    url = await stage.relay()
    tls = ClientTls(ca_file=stage.certificates.ca)
    key = ScopeKey(hashlib.sha256(name.encode()).digest())
    tokens = list(range(BLOCKS * DESCRIPTOR.block_tokens))
    async with Publisher(scope_key=key) as publisher, Consumer(scope_key=key) as consumer:
        await publisher.dial(url, tls=tls)
        publication = publisher.open(DESCRIPTOR, tokens=tokens)
        await consumer.connect(url, tls=tls)
        yield Play(publication, consumer, tokens)


async def found(scene: Play) -> Retrieval:
    """The retrieval of the publication that discovery finds for the prompt."""
    publications = await scene.consumer.discover(DESCRIPTOR, scene.tokens, wait=3.0)
    expect(publications, "discovery found nothing")
    return await scene.consumer.retrieve(publications[0], timeout=5.0)


@book.case(30.0)
async def before(stage: Stage) -> str:
    """A consumer that waits before the first layer exists."""
    async with play(stage, "before") as scene:
        retrieval = await found(scene)
        for layer in range(LAYERS):
            await scene.produce(layer)
            await retrieval.layer(layer)
        await scene.publication.finish()
        return await scene.check(retrieval, range(LAYERS))


@book.case(30.0)
async def at_once(stage: Stage) -> str:
    """The same, but all layers come while the SUBSCRIBEs are still on their way."""
    async with play(stage, "at once") as scene:
        retrieval = await found(scene)
        await scene.produce(*range(LAYERS))
        await scene.publication.finish()
        return await scene.check(retrieval, range(LAYERS))


@book.case(30.0)
async def midway(stage: Stage) -> str:
    """A consumer that joins after a third of the layers."""
    async with play(stage, "midway") as scene:
        await scene.produce(0, 1)
        retrieval = await found(scene)
        await retrieval.layer(1)
        await scene.produce(*range(2, LAYERS))
        await scene.publication.finish()
        return await scene.check(retrieval, range(LAYERS))


@book.case(30.0)
async def after(stage: Stage) -> str:
    """A consumer that comes when all has been said."""
    async with play(stage, "after") as scene:
        await scene.produce(*range(LAYERS))
        await scene.publication.finish()
        return await scene.check(await found(scene), range(LAYERS))


@book.case(30.0)
async def part(stage: Stage) -> str:
    """A consumer that takes two layers and half of the blocks."""
    async with play(stage, "part") as scene:
        await scene.produce(*range(LAYERS))
        await scene.publication.finish()
        retrieval = await scene.consumer.retrieve(
            scene.publication.name, layers=(2, 3), blocks=2, timeout=5.0
        )
        return await scene.check(retrieval, range(2, 4), 2)
