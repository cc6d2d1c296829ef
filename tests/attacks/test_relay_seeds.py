"""Random peers of octets at a relay, and at an edge relay in front of it, in virtual time.

A seed fixes everything. Whatever they say: no exception escapes (it would leave ``run``), a track
that they have no right to is served whole to everybody who asks, and when they have gone the
tables of the relays are as they were before.
"""

from __future__ import annotations

import contextlib
import os
from random import Random
from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.data import (
    FetchEncoder,
    FetchHeader,
    SubgroupEncoder,
    SubgroupHeader,
    encode_fetch_header,
    encode_subgroup_header,
)
from moqt.codec.datagram import encode_datagram
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import write_pairs
from moqt.errors import Misuse
from moqt.model import (
    FullTrackName,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    ObjectStatus,
)
from moqt.publisher import Track
from moqt.relay.admission import AdmissionLimits
from moqt.relay.config import RelayConfig
from tests.fuzz.session_targets import parameters
from tests.fuzz.supply import Supply
from tests.moqt.relay.test_relaying import layer, normal
from tests.moqt.relay.worlds import NAME, SPACE, RelayWorld
from tests.moqt.session.worlds import Receiver
from tests.vectors import draft22

from .raw import EVIL, Fence, RawPeer, sizes

SEEDS = int(os.environ.get("ATTACK_SEEDS", "12"))
BASE = int(os.environ.get("ATTACK_BASE", "0"))
#: Dialogues of one seed, in rounds; steps of one dialogue.
ROUNDS, PEERS, STEPS = 4, 8, 40

LARGE = (0, 1, 2, 3, 5, 63, 64, 127, 128, 255, 16383, 1 << 14, 1 << 30, 1 << 53, (1 << 62) - 1,
         1 << 62, 1 << 63, (1 << 64) - 1)  # fmt: skip
NAMES = (
    NAME,
    FullTrackName(SPACE, b"other"),
    FullTrackName(EVIL, b"a"),
    FullTrackName(EVIL, b"b"),
    FullTrackName((*EVIL, b"deep"), b"a"),
    FullTrackName((b"nowhere",), b"x"),
)
PREFIXES = ((), SPACE, SPACE[:1], EVIL, (*EVIL, b"deep"), (b"nowhere",), (b"x",) * 32)
#: A property list that ends in the middle of a value; one of an unknown mandatory type; types that
#: mean something, with values that do not fit.
BROKEN = [bytes.fromhex(one) for one in ("0b", "0b7f00", "0b02ff", "04", "0bc0ffff", "7f7f7f")]
VECTORS = [draft22.octets(one.hex) for one in draft22.MESSAGES]


class Attacker:
    """One session that says what comes to its mind; ``rude``: how often that ends a session."""

    def __init__(self, random: Random, peer: RawPeer, rude: float) -> None:
        self.random = random
        self.peer = peer
        self.rude = rude
        self.aliases = [0, 1, 7] if rude else []
        self.answered: set[int] = set()
        #: Our requests by stream, and what may be updated of them.
        self.asked: dict[int, type[Any]] = {}
        polite = (
            *(self.ask, self.ask, self.ask, self.answer, self.answer, self.answer, self.subgroup),
            *(self.subgroup, self.subgroup, self.fetched, self.fetched, self.datagram),
            *(self.update, self.fin, self.reset, self.stop, self.announce, self.publish),
            *(self.publish, self.wait, self.wait, self.wait, self.done),
        )
        self.steps = (*polite, self.more, self.noise, self.vector) if rude else polite

    def step(self) -> None:
        """One of them; what cannot be written is left out."""
        with contextlib.suppress(Misuse):
            self.random.choice(self.steps)()

    # -- what things are made of -----------------------------------------------------------------

    def number(self) -> int:
        return self.random.choice(LARGE) if self.random.random() < 0.3 else self.random.randrange(6)

    def parameters(self) -> Parameters:
        if self.random.random() < 0.3:
            return NO_PARAMETERS
        return parameters(Supply(self.random.randbytes(60)))

    def properties(self) -> bytes:
        if self.random.random() < self.rude:
            return self.random.choice(BROKEN)
        if self.random.random() < 0.6:
            return b""
        code = self.random.choice((2, 4, 0x22, 0x30, 0x78, 0x9000))
        values = {0x22: (1, 2), 0x30: (0, 1)}.get(code, (1, 2, 1000, 1 << 40))
        return write_pairs([(code, self.random.choice(values))])

    def mangled(self, octets: bytes) -> bytes:
        """As it is, mostly; else cut, longer, or with an octet changed."""
        if self.random.random() >= self.rude or not octets:
            return octets
        kind = self.random.random()
        at = self.random.randrange(len(octets))
        if kind < 0.3:
            return octets[:at]
        if kind < 0.8:
            changed = self.random.choice((0, 0x7F, 0xFF, self.random.randrange(256)))
            return octets[:at] + bytes((changed,)) + octets[at + 1 :]
        return octets + self.random.randbytes(self.random.randrange(1, 9))

    def raw(self, message: m.Message) -> bytes:
        """A message; properties that our own encoder would refuse included."""
        return self.mangled(m.encode_message(message))

    def id(self) -> int:
        if self.random.random() < self.rude / 4:
            return self.number()
        return self.peer.id()

    def stream(self) -> int | None:
        known = [*self.peer.ours, *self.peer.requests, *self.peer.data]
        if self.random.random() >= self.rude:
            control = {self.peer.control, *self.peer.data[:1]}
            known = [one for one in known if one not in control]
        return self.random.choice(known) if known else None

    # -- requests --------------------------------------------------------------------------------

    def ask(self) -> None:
        kind = self.random.choice(
            (
                m.Subscribe,
                m.Subscribe,
                m.Fetch,
                m.Fetch,
                m.TrackStatus,
                m.SubscribeNamespace,
                m.SubscribeTracks,
            )
        )
        what: Any = NAMES if kind in (m.Subscribe, m.Fetch, m.TrackStatus) else PREFIXES
        name = self.random.choice(what[2:4] if self.random.random() < 0.5 else what)
        message = kind(self.id(), name, self.parameters())
        stream = self.peer.bidi(self.raw(message), fin=self._rarely())
        self.asked[stream] = kind

    def announce(self) -> None:
        namespace = self.random.choice((EVIL, EVIL, (*EVIL, b"deep"), SPACE, (b"x",) * 32))
        stream = self.peer.bidi(self.raw(m.PublishNamespace(self.id(), namespace)))
        self.asked[stream] = m.PublishNamespace

    def publish(self) -> None:
        alias = self.random.randrange(1000) if self.random.random() > self.rude else self.number()
        self.aliases.append(alias)
        said = Parameters(largest_object=self.place()) if self.random.random() < 0.3 else None
        name = self.random.choice(NAMES)
        message = m.Publish(self.id(), name, alias, said or NO_PARAMETERS, self.properties())
        self.asked[self.peer.bidi(self.raw(message))] = m.Publish

    def place(self) -> Location:
        return Location(self.number(), self.number())

    def update(self) -> None:
        able = [one for one, kind in self.asked.items() if kind is m.Subscribe]
        stream = self.stream() if self.random.random() < self.rude else None
        if stream is None and able:
            stream = self.random.choice(able)
        if stream is not None:
            wanted = self.random.choice(
                (
                    Parameters(forward=self.random.random() < 0.5),
                    Parameters(subscriber_priority=self.random.randrange(256)),
                    Parameters(location_filter=LocationFilter.since(*self.place())),
                    Parameters(new_group_request=self.number()),
                    self.parameters(),
                )
            )
            self.peer.send(stream, self.raw(m.RequestUpdate(self.id(), wanted)))

    def answer(self) -> None:
        """Something that may be the answer to a request of the relay."""
        waiting = [one for one in self.peer.requests if one not in self.answered][:1]
        if self.random.random() < self.rude:
            waiting = self.peer.requests
        if not waiting:
            return
        stream = self.random.choice(waiting)
        said = self.peer.said(stream)
        if not said:
            return
        self.answered.add(stream)
        ok: m.Message = m.RequestOk()
        if isinstance(said[0], m.Subscribe):
            alias = self.random.randrange(1000)
            self.aliases.append(alias)
            place = Parameters(largest_object=self.place())
            known = place if self.random.random() < 0.5 else NO_PARAMETERS
            ok = m.SubscribeOk(alias, known, self.properties())
        elif isinstance(said[0], m.Fetch):
            ended = self.random.random() < 0.2
            ok = m.FetchOk(ended, self.place(), NO_PARAMETERS, self.properties())
        no = m.RequestError(self.random.choice((0, 1, 3, 9, 16, 18, 51)), self.number(), "no")
        refuses = self.random.random() < 0.15
        self.peer.send(stream, self.raw(no if refuses else ok), fin=refuses)

    def done(self) -> None:
        ours = [one for one, kind in self.asked.items() if kind is m.Publish]
        streams = [*ours, *self.answered]
        if streams:
            message = m.PublishDone(self.random.choice((0, 2, 5, 18)), self.number(), "done")
            self.peer.send(self.random.choice(streams), self.raw(message), fin=True)

    # -- data ------------------------------------------------------------------------------------

    def subgroup(self) -> None:
        if not self.aliases:
            return
        header = SubgroupHeader(
            self.random.choice(self.aliases),
            self.number(),
            self.random.choice((None, 0, 0, 1, 5)),
            self.random.choice((None, 0, 128)),
            has_properties=self.random.random() < 0.5,
            end_of_group=self.random.random() < 0.3,
            first_object=self.random.random() < 0.5,
        )
        octets = encode_subgroup_header(header)
        encoder = SubgroupEncoder(header)
        number = self.number()
        for _ in range(self.random.randrange(1, 5)):
            size = self.random.choice((0, 1, 5, 5, 2000))
            subgroup = header.subgroup if header.subgroup is not None else number
            status = ObjectStatus.NORMAL
            properties = b""
            if not size and self.random.random() < 0.5:
                status = self.random.choice(tuple(ObjectStatus))
            elif header.has_properties and self.random.random() < self.rude:
                properties = self.random.choice(BROKEN)
            place = ObjectHead(header.group, subgroup, number, 128, size, status)
            try:
                octets += encoder.head(place)
            except Misuse:
                break
            if properties:  # in place of an empty list
                cut = len(octets) - 1 - (size > 63) - (size > 16383) - (size == 0)
                octets = octets[: cut - 1] + bytes((len(properties),)) + properties + octets[cut:]
            octets += self.random.randbytes(size)
            number += self.random.choice((1, 1, 1, 3))
        self.peer.uni(self.mangled(octets), fin=self.random.random() < 0.6)

    def fetched(self) -> None:
        """A stream for one of the relay's fetches: in the range or not, in order or not."""
        asked = self.peer.asked(m.Fetch)
        if not asked:
            return
        _, request = self.random.choice(asked[-3:])
        wanted = request.parameters.location_filter
        start = Location(0, 0) if wanted is None else wanted.start
        down = request.parameters.group_order is GroupOrder.DESCENDING
        octets = encode_fetch_header(FetchHeader(request.request_id))
        encoder = FetchEncoder(GroupOrder.DESCENDING if down else GroupOrder.ASCENDING)
        group, number = start.group, start.object
        if self.random.random() < 0.2:
            group, number = self.number(), self.number()
        for _ in range(self.random.randrange(6)):
            size = self.random.choice((0, 1, 700, 1400))
            head = ObjectHead(group, self.random.choice((None, 0, 0, 1)), number, 128, size)
            try:
                if self.random.random() < 0.2:
                    gap = Gap(self.random.choice(tuple(GapKind)), Location(group, number))
                    octets += encoder.gap(gap)
                else:
                    octets += encoder.head(head) + self.random.randbytes(size)
            except Misuse:
                pass
            if self.random.random() < 0.3:
                group, number = abs(group + self.random.choice((1, 1, 2, -1))), 0
            else:
                number += self.random.choice((1, 1, 2, 0))
        self.peer.uni(self.mangled(octets), fin=self.random.random() < 0.7)

    def datagram(self) -> None:
        if not self.aliases:
            return
        octets = self.random.randbytes(self.random.choice((0, 3, 200)))
        head = ObjectHead(self.number(), None, self.number(), 128, len(octets))
        self.peer.transport.send_datagram(
            self.mangled(encode_datagram(self.random.choice(self.aliases), head, octets))
        )

    # -- streams ---------------------------------------------------------------------------------

    def more(self) -> None:
        stream = self.stream()
        if stream is not None:
            self.peer.send(stream, self.random.randbytes(self.random.randrange(30)))

    def vector(self) -> None:
        """A message of the vectors, on a stream of its own or on one that is there."""
        octets = self.mangled(self.random.choice(VECTORS))
        stream = self.stream()
        if stream is None or self.random.random() < 0.5:
            self.peer.bidi(octets)
        else:
            self.peer.send(stream, octets)

    def noise(self) -> None:
        open_one = self.peer.uni if self.random.random() < 0.5 else self.peer.bidi
        open_one(self.random.randbytes(self.random.randrange(1, 60)), fin=self._rarely())

    def fin(self) -> None:
        stream = self.stream()
        if stream is not None and (stream != self.peer.control or self._rarely()):
            self.peer.send(stream, fin=True)

    def reset(self) -> None:
        stream = self.stream()
        if stream is not None:
            self.peer.reset(stream, self.random.choice((0, 1, 386759528, (1 << 62) - 1)))

    def stop(self) -> None:
        stream = self.stream()
        if stream is not None:
            self.peer.stop(stream, self.random.choice((0, 1, 386759528, (1 << 62) - 1)))

    def wait(self) -> None:
        self.peer.world.run(self.random.choice((0.001, 0.02, 0.3)))

    def _rarely(self) -> bool:
        return self.random.random() < 0.05


class Play:
    """A relay and an edge relay; an honest track; attackers at both, some in bad networks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        config = RelayConfig(
            cache=self.random.choice((60_000, 1 << 30)), linger=1.0, recovery=2.0, fill_timeout=2.0
        )
        self.world = RelayWorld(config, seed=seed, latency=0.002)
        self.world.limits = AdmissionLimits(
            session_rate=1e6, session_burst=1e6, identity_rate=1e6, identity_burst=1e6
        )
        self.edge = self.world.another(config)
        self.world.chain(self.edge, self.world.relay)
        self.track = Track(NAME)
        self.world.publisher(self.track)
        self.groups = 0
        self.readers = [self.world.desk(relay) for relay in (self.world.relay, self.edge)]
        self.live: list[Receiver] = [desk.subscribe()[1] for desk in self.readers]
        self.world.run(0.5)

    def layer(self) -> None:
        """One more group of the honest track."""
        layer(self.track, self.groups)
        self.groups += 1

    def round(self) -> list[RawPeer]:
        """Some attackers at once."""
        self.world.judge = lambda: Fence("attacker", EVIL)
        peers = self.connect()
        attackers = [
            Attacker(Random(self.random.random()), peer, self.random.choice((0.0, 0.0, 0.01, 0.3)))
            for peer in peers
        ]
        for attacker in attackers[: PEERS // 2]:
            attacker.peer.bidi(m.PublishNamespace(attacker.peer.id(), EVIL))
        for at in range(STEPS):
            for attacker in attackers:
                if attacker.peer.ended is None:
                    attacker.step()
            if at % 10 == 5:
                self.layer()
            if self.random.random() < 0.05:
                self.random.choice(peers).pair.kill()
        self.world.run(0.5)
        for peer in peers:
            if peer.ended is None:
                self.random.choice((peer.pair.kill, peer.leave))()
        self.world.judge = None
        self.world.run(1)
        return peers

    def connect(self) -> list[RawPeer]:
        """At the one relay or the other, some over bad networks, a few without SETUP."""
        peers = []
        for _ in range(PEERS):
            faults: dict[str, Any] = {}
            if self.random.random() < 0.2:
                faults = {"jitter": 0.02, "reorder": 0.2, "split": True}
            relay = self.random.choice((self.world.relay, self.edge))
            setup = self.random.random() > 0.05
            peers.append(RawPeer(self.world, relay, setup=setup, **faults))
        self.world.run(0.05)
        return peers

    def check(self, base: list[dict[str, int]]) -> None:
        """The honest track is whole everywhere, and nothing is left of the attackers."""
        wanted = [(group, number) for group in range(self.groups) for number in range(4)]
        for receiver in self.live:
            assert receiver.end is receiver.error is None
            assert normal(receiver) == wanted
        asked = Parameters(location_filter=LocationFilter.groups(0, self.groups - 1))
        fetches = [desk.fetch(NAME, asked)[1] for desk in self.readers]
        self.world.run(10)
        for receiver in fetches:
            assert normal(receiver) == wanted
            assert receiver.fetches[0].gaps == []
        self.world.run(120)
        for relay in (self.world.relay, self.edge):
            for track in relay.tracks.values():
                if track.name != NAME:
                    assert not track.busy, track.name
                    track.stock.archive.clear()  # what they have published may stay cached
            relay.sweep()
            assert relay.cache.octets <= relay.cache.budget
        assert [sizes(relay) for relay in (self.world.relay, self.edge)] == base

    def sizes(self) -> list[dict[str, int]]:
        return [sizes(relay) for relay in (self.world.relay, self.edge)]


@pytest.mark.parametrize("seed", range(BASE, BASE + SEEDS))
def test_random_attackers(seed: int) -> None:
    play = Play(seed)
    play.layer()
    play.world.run(1)
    base = play.sizes()
    for _ in range(ROUNDS):
        peers = play.round()
        assert all(peer.ended is not None for peer in peers)
        play.check(base)
        for gate in play.world.gates.values():
            for identity in gate._identities.values():
                if identity is not gate._identities.get("somebody"):
                    assert not identity.open.total()
        for peer in peers:
            assert peer.handler.peer.session._context.owners == {}
