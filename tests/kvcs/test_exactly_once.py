"""Every object exactly once, whatever the network does and whenever a consumer joins.

Publisher and consumers are real sessions joined in memory under one virtual clock. A seed fixes
everything: geometry, pace, faults, join times, cancellations. ``KVCS_SEEDS`` sets how many seeds
run (``make exactly-once`` runs 2,000), ``KVCS_SEED_BASE`` where they start.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvcs.assembler import Assembly
from kvcs.geometry import Geometry
from kvcs.identity import CompatibilityDescriptor, DType
from kvcs.names import Component, TrackName
from kvcs.payload import encode_header, header_of
from moqt.codec.params import Parameters
from moqt.errors import DoneCode
from moqt.model import FullTrackName, GroupOrder, LocationFilter, ObjectStatus
from moqt.publisher import Catalog, Track
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved
from tests.moqt.session.worlds import Side
from transport.network import Clock
from transport.testing import Pair

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import ObjectHead, ObjectSink, SubgroupHead
    from moqt.session.ports import TrackInfo
    from transport.api import BytesLike

NAMESPACE = (b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16))
LIVE = Parameters(
    location_filter=LocationFilter.next_object(),
    group_order=GroupOrder.ASCENDING,
    fill=Parameters(location_filter=LocationFilter.since(0, 0)),
)


class Producer:
    """Publishes segments layer by layer at random moments; keeps what it gave for comparison."""

    def __init__(self, random: Random, clock: Clock) -> None:
        self.random = random
        self.clock = clock
        self.catalog = Catalog()
        descriptor = CompatibilityDescriptor(
            model="m",
            layers=random.randint(1, 6),
            kv_heads=random.choice((1, 3)),
            head_dim=random.choice((4, 64)),
            dtype=DType.FLOAT32,
            block_tokens=random.choice((1, 4, 16)),
        )
        self.geometries: list[Geometry] = []
        self.tensors: dict[tuple[TrackName, int], bytes] = {}
        self.tracks: dict[TrackName, Track] = {}
        first_block = 0
        start = 0.0
        for segment in range(random.randint(1, 3)):
            geometry = Geometry.of(descriptor, random.randint(1, 5), first_block)
            self.geometries.append(geometry)
            first_block += geometry.blocks
            for component in (Component.K, Component.V):
                name = TrackName(component, "raw", segment)
                self.tracks[name] = self.catalog.add(Track(FullTrackName(NAMESPACE, name.wire)))
            start = self._plan(segment, geometry, start)
        self.end = start
        self.octets = sum(map(len, self.tensors.values()))

    def _plan(self, segment: int, geometry: Geometry, when: float) -> float:
        for layer in range(geometry.layers):
            when += self.random.choice((0.0, 0.001, 0.02, 0.1))
            for component in (Component.K, Component.V):
                name = TrackName(component, "raw", segment)
                size = geometry.layer_octets(component)
                self.tensors[name, layer] = self.random.randbytes(size)
                self._plan_layer(name, geometry, layer, when)
            when += 0.0001 * (geometry.blocks + 1)
        return when

    def _plan_layer(self, name: TrackName, geometry: Geometry, layer: int, when: float) -> None:
        track = self.tracks[name]
        octets = geometry.block_octets(name.component)
        tensor = memoryview(self.tensors[name, layer])
        burst = self.random.random() < 0.5

        def block(number: int) -> None:
            if number == 0:
                self.writer[name] = track.subgroup(layer, priority=geometry.priority(layer))
            writer = self.writer[name]
            if number == geometry.blocks:
                writer.object(number, status=ObjectStatus.END_OF_GROUP)
                writer.finish()
                if layer + 1 == geometry.layers:
                    last = track.subgroup(geometry.layers, priority=128)
                    last.object(0, status=ObjectStatus.END_OF_TRACK)
                    last.finish()
                    track.end()
                return
            data = tensor[number * octets : (number + 1) * octets]
            header = header_of(geometry, name.component, layer, number, (data,))
            writer.object(number, encode_header(header), data)

        for number in range(geometry.blocks + 1):
            at = when if burst else when + 0.0001 * number
            self.clock.call_at(at, lambda number=number: block(number))

    writer: dict[TrackName, object]


class TrackReader:
    """Feeds one track of one assembly."""

    def __init__(self, assembly: Assembly, name: TrackName) -> None:
        self.assembly = assembly
        self.name = name
        self.end: tuple[int, bool] | None = None
        self.error: MoqtError | None = None

    def accepted(self, info: TrackInfo) -> None:
        pass

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        return self.assembly.stream(self.name)

    def open_fetch(self, request_id: int) -> ObjectSink:
        return self.assembly.stream(self.name)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        raise AssertionError("no datagrams here")

    def done(self, code: int, reason: str, complete: bool) -> None:
        self.end = (code, complete)

    def failed(self, error: MoqtError) -> None:
        self.error = error


class Joiner:
    """A consumer on a path of its own; may cancel and join again."""

    def __init__(self, seed: int, random: Random, producer: Producer) -> None:
        self.random = random
        self.producer = producer
        pair = Pair(
            seed=seed,
            clock=producer.clock,
            latency=random.choice((0.0005, 0.01, 0.05)),
            jitter=random.choice((0.0, 0.02)),
            loss=random.choice((0.0, 0.05, 0.3)),
            reorder=random.choice((0.0, 0.2)),
            split=random.choice((None, 1 if producer.octets < 10_000 else 300, 50, 700)),
            rate=random.choice((None, 200_000.0)),
        )
        handler = producer.catalog.handler(None)  # type: ignore[arg-type]
        self.server = Side(pair, pair.server, handler, SessionConfig())
        self.client = Side(pair, pair.client, Unserved(), SessionConfig(authority="pair", path="/"))
        self.pair = pair
        self.requests: list[object] = []
        self.readers: list[TrackReader] = []
        self.assemblies: list[Assembly] = []
        join = random.uniform(0.0, producer.end * 1.3 + 0.2)
        producer.clock.call_at(join + 0.2, self.join)
        for _ in range(random.choice((0, 0, 0, 1, 2))):
            again = join + 0.2 + random.uniform(0.0, 0.3)
            producer.clock.call_at(again, self.rejoin)

    def join(self) -> None:
        self.readers, self.assemblies, self.requests = [], [], []
        for segment, geometry in enumerate(self.producer.geometries):
            names = tuple(TrackName(c, "raw", segment) for c in (Component.K, Component.V))
            assembly = Assembly(geometry, names)
            self.assemblies.append(assembly)
            for name in names:
                reader = TrackReader(assembly, name)
                self.readers.append(reader)
                full = FullTrackName(NAMESPACE, name.wire)
                self.requests.append(self.client.session.subscribe(full, LIVE, reader))

    def rejoin(self) -> None:
        for request in self.requests:
            request.cancel()  # type: ignore[attr-defined]
        self.join()

    def check(self) -> int:
        """Everything once and bit-identical; returns how many objects that were."""
        assert self.client.ended is None, self.client.ended
        assert self.server.ended is None, self.server.ended
        objects = 0
        for reader in self.readers:
            assert reader.error is None, reader.error
            assert reader.end == (DoneCode.TRACK_ENDED, True)
        for assembly, geometry in zip(self.assemblies, self.producer.geometries, strict=True):
            counters = assembly.counters
            assert assembly.complete, assembly.missing()
            assert (counters.duplicates, counters.surplus, counters.lost) == (0, 0, 0)
            assert not counters.rejected
            objects += counters.objects
            for name in assembly.tracks:
                for layer in range(geometry.layers):
                    got = assembly.layer_buffer(name.component, layer)
                    assert got == self.producer.tensors[name, layer]
        assert self.pair.client.streams <= 2, "streams left behind at the consumer"
        assert self.pair.server.streams <= 2, "streams left behind at the publisher"
        return objects


def run_seed(seed: int) -> int:
    """One world; returns the objects delivered in it."""
    random = Random(seed)
    clock = Clock()
    producer = Producer(random, clock)
    producer.writer = {}
    joiners = [
        Joiner(seed * 7 + number, random, producer) for number in range(random.randint(1, 3))
    ]
    clock.run()
    return sum(joiner.check() for joiner in joiners)


SEEDS = int(os.environ.get("KVCS_SEEDS", "20"))
BASE = int(os.environ.get("KVCS_SEED_BASE", "0"))


@pytest.mark.timeout(3600)
def test_every_object_exactly_once(pytestconfig: pytest.Config) -> None:
    objects = 0
    for seed in range(BASE, BASE + SEEDS):
        try:
            objects += run_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    line = f" {SEEDS} seeds, {objects} objects, duplicates 0, missing 0 "
    pytestconfig.get_terminal_writer().write(line)
    assert objects > 10 * SEEDS
