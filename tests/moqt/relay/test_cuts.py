"""Every object once though sessions die, publishers lag and subscribers pause; gaps are told.

A seed fixes everything. ``RELAY_SEEDS`` sets how many seeds run, ``RELAY_SEED_BASE`` where they
start. What a fill or fetch leaves out it has to mark as unknown, and what it ends without marking
anything has to be all there is.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, RequestCode
from moqt.model import GapKind, GroupOrder, LocationFilter, ObjectStatus
from moqt.publisher import Track
from moqt.relay.config import RelayConfig

from .worlds import CLIENT, NAME, ONE_TRACK, SPACE, Desk, RelayWorld

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = int(os.environ.get("RELAY_SEEDS", "24"))
BASE = int(os.environ.get("RELAY_SEED_BASE", "0"))
At = tuple[int, int]


@dataclass
class Follower:
    """A subscription with a fill from the start, one that pauses, or a fetch of some groups."""

    receiver: Any
    wanted: set[At] | None = None  # None: all there is in the end
    down: bool = False
    request: Any = None
    pauses: bool = False
    #: A fetch of a group so new that the relay may not have heard of it.
    fresh: bool = False

    def marked(self, wanted: set[At]) -> set[At]:
        """What its fetch streams leave out and say so."""
        found: set[At] = set()
        for stream in self.receiver.fetches:
            if stream.ended != "fin":
                return wanted  # it says by its reset that nothing is known of the rest
            ordered = sorted(wanted, key=lambda at: (-at[0] if self.down else at[0], at[1]))
            keys = [self._key((h.group, h.object)) for h, _ in stream.objects]
            for gap in stream.gaps:
                assert gap.kind in (GapKind.UNKNOWN, GapKind.TIMED_OUT)
                end = self._key(gap.location)
                begin = max((key for key in keys if key < end), default=(-1 << 70, 0))
                found |= {at for at in ordered if begin < self._key(at) <= end}
        return found

    def told(self) -> set[int]:
        """Groups of which a stream was reset: what it lacks may be fetched."""
        return {one.what.group for one in self.receiver.streams if one.ended != "fin"}

    def _key(self, at: Any) -> tuple[int, int]:
        return (-at[0] if self.down else at[0], at[1])


@dataclass
class Play:
    """One seed."""

    seed: int
    random: Random = field(init=False)
    payloads: dict[At, bytes] = field(default_factory=dict)
    followers: list[Follower] = field(default_factory=list)
    #: When each group was whole at its publisher.
    written: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        self.groups = random.randint(1, 7)
        self.blocks = random.randint(1, 6)
        self.subgroups = random.choice((1, 1, 2))
        faults = {
            "latency": random.choice((0.0, 0.001, 0.02)),
            "jitter": random.choice((0.0, 0.01)),
            "loss": random.choice((0.0, 0.02)),
            "reorder": random.choice((0.0, 0.2)),
            "split": random.choice((None, 700, 150)),
            "rate": random.choice((None, None, 200_000.0)),
        }
        cache = ONE_TRACK + random.choice((10_000, 40_000, 100_000, 1 << 30))
        config = RelayConfig(cache=cache, linger=random.choice((0.1, 5.0)))
        self.world = RelayWorld(config, seed=self.seed, **faults)
        self.tracks = [Track(NAME) for _ in range(random.choice((1, 1, 2)))]
        self.pushed = [random.random() < 0.3 for _ in self.tracks]
        self.edge = self.root = self.world.relay
        self.link: Any = None
        if random.random() < 0.6:
            self.edge = self.world.another(config)
            self._dial()
        self.publishers = [self._publisher(number) for number in range(len(self.tracks))]
        self.desks: list[Desk] = [self.world.desk(self.edge) for _ in range(random.randint(1, 3))]
        self.cuts = self.turns = 0

    def run(self) -> None:
        """Publish group by group while sessions come and go; then to rest, with a last look."""
        random, world = self.random, self.world
        world.run(0.5)
        for group in range(self.groups):
            writers = [
                [track.subgroup(group, sub, priority=group) for sub in range(self.subgroups)]
                for track in self.tracks
            ]
            for number in range(self.blocks):
                self._happen(group)
                self._publish(group, number, writers)
            for copies in writers:
                copies[0].object(self.blocks, status=ObjectStatus.END_OF_GROUP)
                for writer in copies:
                    writer.finish()
            self.written[group] = world.clock.now
        for track in self.tracks:
            last = track.subgroup(self.groups)
            last.object(0, status=ObjectStatus.END_OF_TRACK)
            last.finish()
        world.run(random.choice((0, 0.05, 1.0)))
        self._happen(self.groups)
        world.run(12.0)
        for follower in self.followers:
            if follower.pauses and follower.request.active:
                follower.request.cancel()
        for track in self.tracks:
            track.end()
        world.run(8.0)
        self._fetch(0, self.groups)
        world.run()

    def _publish(self, group: int, number: int, writers: list[list[Any]]) -> None:
        random = self.random
        octets = random.randbytes(random.choice((0, 30, 1500, 5000)))
        self.payloads[group, number] = octets
        for copies in writers:
            copies[number % self.subgroups].object(number, octets)
            if random.random() < 0.5:
                self.world.run(random.choice((0.0, 0.002, 0.03)))

    def check(self) -> int:
        """Nothing twice, nothing missing that is not marked; returns how many objects came."""
        total = 0
        for number, follower in enumerate(self.followers):
            came: Counter[At] = Counter()
            for head, octets in follower.receiver.objects:
                if head.status is ObjectStatus.NORMAL:
                    came[head.group, head.object] += 1
                    assert octets == self.payloads[head.group, head.object]
            total += sum(came.values())
            twice = [at for at, count in came.items() if count > 1]
            assert not twice, f"follower {number}, twice: {twice}"
            if not follower.pauses:
                missing = self._missing(follower, {*came})
                assert not missing, f"follower {number}, missing: {sorted(missing)}"
        return total

    def _missing(self, follower: Follower, came: set[At]) -> set[At]:
        """What it lacks and nothing has told it."""
        receiver, cut = follower.receiver, self.cuts > 0
        wanted = {*self.payloads} if follower.wanted is None else follower.wanted
        if receiver.error is not None:
            early = follower.fresh and receiver.error.code == RequestCode.INVALID_RANGE
            assert cut or early, receiver.error
            return set()
        if not cut:
            assert not any(stream.gaps for stream in receiver.fetches)
            assert all(stream.ended == "fin" for stream in receiver.fetches)
        missing = wanted - came
        if follower.wanted is not None:
            assert came <= wanted
            return {at for at in missing if at <= receiver.info.end} - follower.marked(wanted)
        assert receiver.end is not None
        assert receiver.end[0] == DoneCode.TRACK_ENDED, receiver.end
        if not cut and not self.turns:
            return missing
        if not receiver.end[2]:
            return set()  # it says that streams are missing
        told = follower.told()
        return {at for at in missing - follower.marked(wanted) if at[0] not in told}

    # -- what happens ----------------------------------------------------------------------------

    def _happen(self, group: int) -> None:
        random, world = self.random, self.world
        dice = random.random()
        if dice < 0.10 and len(self.followers) < 8:
            self._subscribe()
        elif dice < 0.16 and group > 1:
            world.run(random.choice((0.0, 1.0)))
            first = random.randrange(group)
            self._fetch(first, random.randrange(first, group))
        elif dice < 0.20 and self.link is not None:
            self._cut_link()
        elif dice < 0.24:
            self._cut_publisher()
        elif dice < 0.28:
            pairs = [desk.pair for desk in self.publishers]
            if self.link is not None:
                pairs.append(self.link)
            random.choice(pairs).freeze(random.choice(("to_client", "to_server")), 0.4)
        elif dice < 0.36:
            self._pause_or_resume()
        world.run(random.choice((0.0, 0.0, 0.001, 0.03)))

    def _subscribe(self) -> None:
        random = self.random
        desk, order = random.choice(self.desks), random.choice(list(GroupOrder))
        pauses = random.random() < 0.3
        asked = Parameters(
            location_filter=LocationFilter.next_object(),
            group_order=order,
            forward=False if pauses and random.random() < 0.5 else None,
            fill=Parameters(location_filter=LocationFilter.since(0, 0), group_order=order),
            rendezvous_timeout=20_000,
        )
        request, receiver = desk.subscribe(NAME, asked)
        down = order is GroupOrder.DESCENDING
        self.followers.append(Follower(receiver, None, down, request, pauses))

    def _fetch(self, first: int, last: int) -> None:
        desk, order = self.random.choice(self.desks), self.random.choice(list(GroupOrder))
        asked = Parameters(location_filter=LocationFilter.groups(first, last), group_order=order)
        wanted = {at for at in self.payloads if first <= at[0] <= last}
        follower = Follower(desk.fetch(NAME, asked)[1], wanted, order is GroupOrder.DESCENDING)
        follower.fresh = self.world.clock.now < self.written.get(last, 0.0) + 1.0
        self.followers.append(follower)

    def _pause_or_resume(self) -> None:
        found = [one for one in self.followers if one.pauses and one.receiver.info is not None]
        if found:
            follower = self.random.choice(found)
            if follower.request.active:
                self.turns += 1
                follower.request.update(Parameters(forward=self.random.random() < 0.5))

    def _cut_link(self) -> None:
        self.cuts += 1
        self.link.kill()
        self.world.clock.call_later(self.random.choice((0.001, 0.3, 2.0)), self._dial)

    def _cut_publisher(self) -> None:
        self.cuts += 1
        number = self.random.randrange(len(self.publishers))
        self.publishers[number].kill()

        def again() -> None:
            self.publishers[number] = self._publisher(number)

        self.world.clock.call_later(self.random.choice((0.001, 0.3, 2.0)), again)

    def _dial(self) -> None:
        world = self.world
        pair = self.link = world._pair()
        world._serve(self.root, pair, pair.server)
        peer = world._serve(self.edge, pair, pair.client, CLIENT)
        self._when_ready(
            lambda: pair.client.closed,
            lambda: peer.usable,
            lambda: self.edge.upstream_came(peer, (SPACE[:1],)),
        )

    def _when_ready(
        self, over: Callable[[], bool], ready: Callable[[], bool], then: Callable[[], None]
    ) -> None:
        if over():
            return
        if ready():
            then()
        else:
            wait = self.world.clock.call_later
            wait(0.01, lambda: self._when_ready(over, ready, then))

    def _publisher(self, number: int) -> Desk:
        track, world = self.tracks[number], self.world
        desk = world.link_up()
        desk.catalog.add(track)
        desk.catalog.announce(SPACE)

        def begin() -> None:
            desk.catalog.announce_on(desk.side)  # type: ignore[arg-type]
            if self.pushed[number] and not track.ended:
                request = desk.session.publish(
                    track, NO_PARAMETERS, GroupOrder.ASCENDING, lambda _: None
                )
                track.offer(request)

        side = desk.side
        self._when_ready(
            lambda: not side.is_open,
            lambda: side.session.established and side.may_request,
            begin,
        )
        return desk


@pytest.mark.rule("M175", "M177", "M183")
@pytest.mark.parametrize("seed", range(BASE, BASE + SEEDS))
def test_sessions_come_and_go(seed: int) -> None:
    play = Play(seed)
    play.run()
    play.check()
    for relay in {play.root, play.edge}:
        assert relay.cache.octets <= relay.config.cache
