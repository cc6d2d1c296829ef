"""Every object once, through one relay and through two, whatever the network and the cache do.

A seed fixes everything: shape of the track, pace, faults, sizes of the caches, who joins when and
how. ``RELAY_SEEDS`` sets how many seeds run, ``RELAY_SEED_BASE`` where they start.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from moqt.codec.params import Parameters
from moqt.errors import DoneCode
from moqt.model import GroupOrder, LocationFilter, ObjectStatus
from moqt.publisher import Track
from moqt.relay.config import RelayConfig

from .worlds import NAME, ONE_TRACK, SPACE, Desk, RelayWorld

SEEDS = int(os.environ.get("RELAY_SEEDS", "24"))
BASE = int(os.environ.get("RELAY_SEED_BASE", "0"))


@dataclass
class Follower:
    """One consumer: a subscription with a fill from the start, or a fetch of some groups."""

    receiver: Any
    wanted: set[tuple[int, int]] | None = None  # None: all there is in the end
    order: GroupOrder = GroupOrder.ASCENDING


@dataclass
class Play:
    """One seed."""

    seed: int
    small: bool
    random: Random = field(init=False)
    payloads: dict[tuple[int, int], bytes] = field(default_factory=dict)
    followers: list[Follower] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        self.groups = random.randint(1, 6)
        self.blocks = random.randint(1, 6)
        self.faults = {
            "latency": random.choice((0.0, 0.001, 0.02)),
            "jitter": random.choice((0.0, 0.01)),
            "loss": random.choice((0.0, 0.02)),
            "reorder": random.choice((0.0, 0.2)),
            "split": random.choice((None, 700, 40)),
            "rate": random.choice((None, None, 200_000.0)),
        }
        cache = ONE_TRACK + random.choice((6_000, 15_000, 40_000)) if self.small else 1 << 30
        config = RelayConfig(cache=cache, linger=random.choice((0.1, 5.0)))
        self.world = RelayWorld(config, seed=self.seed, **self.faults)
        self.edge = self.world.relay
        self.track = Track(NAME)
        self.publisher = self.world.publisher(self.track)
        if random.random() < 0.5:
            self.edge = self.world.another(config)
            self.world.chain(self.edge, self.world.relay, SPACE[:1])
        self.desks: list[Desk] = [self.world.desk(self.edge) for _ in range(random.randint(1, 4))]

    def run(self) -> None:
        """Publish group by group while consumers come; then to rest, with a last look back."""
        random = self.random
        for group in range(self.groups):
            writer = self.track.subgroup(group, priority=group)
            for number in range(self.blocks):
                self._may_join(group)
                octets = random.randbytes(random.choice((0, 30, 1500)))
                self.payloads[group, number] = octets
                writer.object(number, octets)
                self.world.run(random.choice((0, 0, 0.001, 0.03)))
            writer.object(self.blocks, status=ObjectStatus.END_OF_GROUP)
            writer.finish()
        last = self.track.subgroup(self.groups)
        last.object(0, status=ObjectStatus.END_OF_TRACK)
        last.finish()
        self.world.run(random.choice((0, 0.05, 1.0)))
        self._may_join(self.groups)
        self.world.run(2.0)
        self._fetch(0, self.groups, {*self.payloads})
        self.track.end()
        self.world.run()

    def check(self) -> int:
        """Everything arrived once, in its order; returns how many objects did."""
        total = 0
        for follower in self.followers:
            receiver = follower.receiver
            assert receiver.error is None, receiver.error
            came: Counter[tuple[int, int]] = Counter()
            for head, octets in receiver.objects:
                if head.status is ObjectStatus.NORMAL:
                    came[head.group, head.object] += 1
                    assert octets == self.payloads[head.group, head.object]
            wanted = {*self.payloads} if follower.wanted is None else follower.wanted
            twice = [at for at, count in came.items() if count > 1]
            assert not twice, f"twice: {twice}"
            assert not wanted - set(came), f"missing: {sorted(wanted - set(came))}"
            assert not set(came) - wanted
            if follower.wanted is None:
                assert receiver.end is not None
                assert receiver.end[0] == DoneCode.TRACK_ENDED
            for stream in receiver.fetches:
                assert stream.ended == "fin"
                assert not stream.gaps
                places = [(head.group, head.object) for head, _ in stream.objects]
                down = follower.order is GroupOrder.DESCENDING
                assert places == sorted(places, key=lambda at: (-at[0] if down else at[0], at[1]))
            total += sum(came.values())
        return total

    def _may_join(self, group: int) -> None:
        random = self.random
        if random.random() < 0.12 and len(self.followers) < 8:
            desk = random.choice(self.desks)
            order = random.choice(list(GroupOrder))
            asked = Parameters(
                location_filter=LocationFilter.next_object(),
                group_order=order,
                fill=Parameters(location_filter=LocationFilter.since(0, 0), group_order=order),
            )
            self.followers.append(Follower(desk.subscribe(NAME, asked)[1], order=order))
        elif random.random() < 0.08 and group > 1:
            first = random.randrange(group)
            last = random.randrange(first, group)
            wanted = {at for at in self.payloads if first <= at[0] <= last}
            self.world.run(1.0)  # all of it has reached the publisher's peers
            self._fetch(first, last, wanted)

    def _fetch(self, first: int, last: int, wanted: set[tuple[int, int]]) -> None:
        desk, order = self.random.choice(self.desks), self.random.choice(list(GroupOrder))
        asked = Parameters(location_filter=LocationFilter.groups(first, last), group_order=order)
        self.followers.append(Follower(desk.fetch(NAME, asked)[1], wanted, order))


@pytest.mark.rule("M177", "M183")
@pytest.mark.parametrize("seed", range(BASE, BASE + SEEDS))
def test_with_room_for_everything(seed: int) -> None:
    play = Play(seed, small=False)
    play.run()
    play.check()
    sent = sum(map(len, play.payloads.values()))
    assert play.world.relay.context.counts["octets_in"] <= sent, "the publisher sends it once"


@pytest.mark.parametrize("seed", range(BASE, BASE + SEEDS))
def test_with_a_cache_that_holds_next_to_nothing(seed: int) -> None:
    play = Play(seed, small=True)
    play.run()
    play.check()
    for relay in {play.world.relay, play.edge}:
        assert relay.cache.octets <= relay.config.cache
