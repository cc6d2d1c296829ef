"""A relay with one hostile peer: that ends its own session or track, and nobody else's.

Threats 11 to 19: what comes before SETUP, streams that end in the middle, lengths that lie, and
messages or objects that would make whoever they are passed on to close its session.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec import varint
from moqt.codec.data import FetchHeader, SubgroupHeader, encode_fetch_header, encode_subgroup_header
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, RequestCode, SessionCode
from moqt.model import FullTrackName, Location, LocationFilter, SubgroupHead
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from tests.moqt.relay.test_fidelity import by_hand, send
from tests.moqt.relay.test_overload import stalled, two_publishers
from tests.moqt.relay.test_relaying import layer, normal
from tests.moqt.relay.worlds import NAME, SPACE, RelayWorld
from tests.moqt.session.worlds import Receiver
from tests.vectors import draft22

from .raw import EVIL, SETUP, Fence, RawPeer, sizes

EVIL_TRACK = FullTrackName(EVIL, b"a")
CODES = [386759528, (1 << 62) - 1]
BROKEN = [
    bytes.fromhex(one) for one in ("0b7f00", "0b02ff80", "0bc0ffff", "0b0302", "7f7f7f", "0b")
]
ALL_GROUPS = Parameters(location_filter=LocationFilter.groups(0, 5))


class Scene:
    """An honest track, its publisher and a live subscriber; somebody hostile beside them."""

    def __init__(self, config: RelayConfig | None = None, **faults: Any) -> None:
        self.world = RelayWorld(config or RelayConfig(straggler=0.1, fill_timeout=2.0), **faults)
        self.track = Track(NAME)
        self.world.publisher(self.track)
        self.reader = self.world.desk()
        _, self.live = self.reader.subscribe()
        self.groups = 0
        self.publish()
        self.base = sizes(self.world.relay)
        self.sessions = len(self.world.handlers)

    def publish(self) -> None:
        """One more group of the honest track."""
        self.world.run(0.1)
        layer(self.track, self.groups)
        self.groups += 1
        self.world.run(0.2)

    def raw(self, **how: Any) -> RawPeer:
        """A hostile peer, connected."""
        peer = RawPeer(self.world, **how)
        self.world.run(0.05)
        return peer

    def publisher(self) -> RawPeer:
        """A hostile peer that has announced EVIL."""
        peer = self.raw()
        peer.bidi(m.PublishNamespace(peer.id(), EVIL))
        self.world.run(0.05)
        return peer

    def reads(self, name: FullTrackName, *, live: bool) -> Receiver:
        """Somebody reads what the hostile peer publishes."""
        desk = self.world.desk()
        ask = desk.subscribe if live else desk.fetch
        _, receiver = ask(name, NO_PARAMETERS if live else ALL_GROUPS)
        self.world.run(0.1)
        return receiver

    def check(self) -> None:
        """Whoever was honest is served as before."""
        self.publish()
        wanted = [(group, number) for group in range(self.groups) for number in range(4)]
        assert normal(self.live) == wanted
        assert self.live.error is self.live.end is None
        asked = Parameters(location_filter=LocationFilter.groups(0, self.groups - 1))
        _, past = self.reader.fetch(NAME, asked)
        self.world.run(1)
        assert normal(past) == wanted
        for handler in self.world.handlers[: self.sessions]:
            assert handler.peer.session.established

    def check_empty(self) -> None:
        """And nothing is left of the others, once they have gone."""
        for handler in self.world.handlers[self.sessions :]:
            handler.peer.session.close()
        self.world.run(60)
        for track in tuple(self.world.relay.tracks.values()):
            if track.name != NAME:
                track.stock.archive.clear()  # what they have published may stay cached
        self.world.relay.sweep()
        self.check()
        self.world.run(10)
        assert sizes(self.world.relay) == self.base


# -- 11: before SETUP ------------------------------------------------------------------------------


@pytest.mark.parametrize("says_setup", [True, False])
def test_data_streams_before_setup(says_setup: bool) -> None:
    scene = Scene()
    peer = scene.raw(setup=False)
    head = encode_subgroup_header(SubgroupHeader(7, 0, 0, 128))
    for _ in range(3):
        peer.uni(head + b"\0\x03abc")
    peer.uni(encode_fetch_header(FetchHeader(1)) + b"\x1c")
    peer.transport.send_datagram(bytes.fromhex("00070001") + b"x")
    scene.world.run(0.2)
    assert peer.ended is None
    if says_setup:
        peer.control = peer.uni(m.Setup(SETUP))
        scene.world.run(0.1)
        stream = peer.bidi(m.Subscribe(peer.id(), NAME))
        scene.world.run(0.1)
        assert isinstance(peer.said(stream)[0], m.SubscribeOk)
        scene.world.run(30)
        assert peer.ended is None
    else:
        scene.world.run(15)
        assert peer.ended is not None
        assert peer.ended[0] == SessionCode.CONTROL_MESSAGE_TIMEOUT
    scene.check_empty()


# -- 13: the control stream ends while much is being written ---------------------------------------


@pytest.mark.parametrize("how", ["fin", "reset", "stop", "close", "kill"])
def test_the_session_ends_while_a_fetch_and_three_subgroups_are_written(how: str) -> None:
    scene = Scene(RelayConfig(linger=1.0), rate=200_000.0)
    peer = scene.raw()
    peer.bidi(m.Subscribe(peer.id(), NAME))
    scene.world.run(0.2)
    writers = [scene.track.subgroup(group) for group in (100, 101, 102)]
    for writer in writers:
        writer.object(0, b"x" * 20_000)
    peer.bidi(m.Fetch(peer.id(), NAME, ALL_GROUPS))
    scene.world.run(0.06)
    assert len(peer.data) > 1, "something is on its way"
    if how == "fin":
        peer.send(peer.control, fin=True)
    elif how == "reset":
        peer.reset(peer.control)
    elif how == "stop":
        peer.stop(peer.data[0])
    elif how == "close":
        peer.leave()
    else:
        peer.pair.kill()
    scene.world.run(2)
    assert peer.ended is not None
    assert len(scene.world.relay.peers) == scene.base["peers"]
    assert peer.handler.peer.session._context.owners == {}
    whole = [head.group for head, octets in scene.live.objects if len(octets) == 20_000]
    assert whole == [100, 101, 102]


# -- 14: they come and go --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_twenty_publishers_and_subscribers_that_drop(seed: int) -> None:
    random = Random(seed)
    scene = Scene(RelayConfig(linger=1.0, recovery=1.0), seed=seed, latency=0.005, jitter=0.005)
    spaces = [(b"kvcs-1", b"scope", b"%d" % number) for number in range(5)]
    desks: list[Any] = []
    for step in range(120):
        while len(desks) < 20:
            desk = scene.world.desk()
            space = random.choice(spaces)
            name = FullTrackName(space, b"t")
            if random.random() < 0.4:
                track = Track(name)
                desk.catalog.add(track)
                desk.catalog.announce(space)
                scene.world.run(0.02)
                desk.catalog.announce_on(desk.side)
                writer = track.subgroup(step)
                writer.object(0, b"x" * 3000)
            else:
                (desk.subscribe if random.random() < 0.6 else desk.fetch)(name)
            desks.append(desk)
        scene.world.run(random.choice((0.001, 0.01, 0.05)))
        desks.pop(random.randrange(len(desks))).kill()
    scene.check()
    for desk in desks:
        desk.kill()
    scene.world.run(60)
    scene.check_empty()


# -- 15: a subscriber leaves in the middle of an object --------------------------------------------


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("what", ["data", "request", "reset request"])
def test_a_subscriber_that_goes_in_the_middle_of_an_object(code: int, what: str) -> None:
    world = RelayWorld()
    peer = RawPeer(world)
    request, receiver, _ = by_hand(world)
    stream = peer.bidi(m.Subscribe(peer.id(), NAME))
    world.run(0.1)
    sink = stalled(request, 0)
    world.run(0.1)
    (data,) = peer.data[1:]
    assert len(peer.heard[data].octets) > 9
    if what == "data":
        peer.stop(data, code)
    elif what == "request":
        peer.stop(stream, code)
        peer.reset(stream, code)
    else:
        peer.reset(stream, code)
    world.run(0.1)
    sink.write(b"x")
    sink.end()
    sink.finish()
    second = request.subgroup(SubgroupHead(1, 0, 1, first_object=True))
    send(second, 1, 0, priority=1)
    second.finish()
    world.run(0.5)
    assert [len(octets) for _, octets in receiver.objects] == [10, 1]
    assert receiver.error is None
    assert peer.ended is None
    (track,) = world.relay.tracks.values()
    assert len(track.stock.subscriptions) == (2 if what == "data" else 1)


# -- 16, 17: lengths that lie ----------------------------------------------------------------------

HUGE = [bytes.fromhex("ff" * 9), varint.encode(1 << 62), varint.encode(65_536)]


def lies(octets: bytes, head: int) -> list[bytes]:
    """``octets`` with each single octet behind ``head`` replaced by a number that is too large."""
    return [
        octets[:at] + huge + octets[at + 1 :] for at in range(head, len(octets)) for huge in HUGE
    ]


def framed(octets: bytes) -> list[bytes]:
    """Control messages: the length in front fits, so that what lies is inside."""
    _, at = varint.decode(octets)
    bodies = lies(octets[at + 2 :], 0)
    return [octets[:at] + len(body).to_bytes(2, "big") + body for body in bodies]


@pytest.mark.parametrize("vector", draft22.MESSAGES, ids=lambda one: type(one.message).__name__)
def test_every_octet_of_a_message_may_be_a_length_that_lies(vector: Any) -> None:
    scene = Scene()
    octets = draft22.octets(vector.hex)
    for at, lie in enumerate((*framed(octets), octets[:1] + b"\xff\xff" + octets[3:])):
        peer = RawPeer(scene.world)
        scene.world.run(0.005)
        peer.bidi(lie) if at % 2 or octets[:1] != b"\x50" else peer.send(peer.control, lie)
        scene.world.run(0.005)
        peer.pair.kill()
    scene.check_empty()


@pytest.mark.parametrize("kind", ["subgroup", "fetch", "datagram"])
def test_every_octet_of_data_may_be_a_length_that_lies(kind: str) -> None:
    scene = Scene()
    head = encode_subgroup_header(SubgroupHeader(7, 1, 2, 128, has_properties=True))
    record = bytes.fromhex("00 02 3801 03") + b"abc"
    if kind == "fetch":
        head = encode_fetch_header(FetchHeader(1))
        record = bytes.fromhex("3c 00 00 80 02 3801 03") + b"abc"
    elif kind == "datagram":
        head = bytes.fromhex("01 07 01 02 80 02 3801")
        record = b"abc"
    for lie in lies(head + record, 1):
        peer = scene.publisher()
        request = m.Publish(peer.id(), EVIL_TRACK, 7)
        peer.bidi(request)
        reader = scene.reads(EVIL_TRACK, live=kind != "fetch")
        for stream, fetch in peer.asked(m.Fetch):
            peer.send(stream, m.FetchOk(end_of_track=False, end=Location(5, 0)))
            lie = lie if lie[1] > 127 else lie[:1] + varint.encode(fetch.request_id) + lie[2:]
        if kind == "datagram":
            peer.transport.send_datagram(lie)
        else:
            peer.uni(lie)
        scene.world.run(0.05)
        peer.pair.kill()
        assert all(head.length < 1 << 16 for head, _ in reader.objects)
    assert scene.world.relay.context.unfinished.octets < 1000
    scene.check_empty()


# -- 19: poison ------------------------------------------------------------------------------------


def poisoned(peer: RawPeer, name: FullTrackName, how: str, broken: bytes) -> None:
    """Answer what the relay asks with something that would close the session of who gets it."""
    length = varint.encode(len(broken))
    properties = length + broken
    for stream, asked in peer.asked(m.Subscribe):
        if how == "SUBSCRIBE_OK":
            ok = m.encode_message(m.SubscribeOk(9))
            body = ok[3:] + broken
            peer.send(stream, ok[:1] + len(body).to_bytes(2, "big") + body)
        else:
            assert asked.name == name
            peer.send(stream, m.SubscribeOk(9))
    for stream, asked in peer.asked(m.Fetch):
        ok = m.encode_message(m.FetchOk(end_of_track=False, end=Location(5, 0)))
        if how == "FETCH_OK":
            body = ok[3:] + broken
            ok = ok[:1] + len(body).to_bytes(2, "big") + body
        peer.send(stream, ok)
        if how == "fetch":
            octets = encode_fetch_header(FetchHeader(asked.request_id))
            peer.uni(octets + bytes.fromhex("3c 00 00 80") + properties + b"\x01x", fin=True)
    if how == "subgroup":
        head = encode_subgroup_header(SubgroupHeader(9, 0, 0, 128, has_properties=True))
        peer.uni(head + b"\0" + properties + b"\x01x", fin=True)
    elif how == "datagram":
        peer.transport.send_datagram(bytes.fromhex("01 09 00 00 80") + properties + b"x")
    elif how == "status":
        peer.uni(bytes.fromhex("10 09 00 80 00 00 07"), fin=True)


@pytest.mark.rule("M205", "M206")
@pytest.mark.parametrize("broken", BROKEN, ids=bytes.hex)
@pytest.mark.parametrize(
    "how", ["subgroup", "datagram", "fetch", "status", "SUBSCRIBE_OK", "FETCH_OK"]
)
@pytest.mark.parametrize("relays", [1, 2])
def test_poison_ends_where_it_came_in(how: str, broken: bytes, relays: int) -> None:
    scene = Scene()
    world = scene.world
    edge = world.relay
    if relays == 2:
        edge = world.another()
        world.chain(edge, world.relay)
    scene.sessions = len(world.handlers)
    peer = scene.publisher()
    desk = world.desk(edge)
    fetches = how in ("fetch", "FETCH_OK")
    ask = desk.fetch if fetches else desk.subscribe
    _, receiver = ask(EVIL_TRACK, ALL_GROUPS if fetches else NO_PARAMETERS)
    for _ in range(3):
        world.run(0.05)
        poisoned(peer, EVIL_TRACK, how, broken)
    world.run(1)
    poison_ended = peer.ended is not None or receiver.error is not None or receiver.end is not None
    malformed = world.relay.context.counts["tracks_malformed"] == 1
    assert poison_ended or malformed or receiver.fetches[0].ended != "fin"
    if peer.ended is not None:
        assert peer.ended[2], "the relay has closed it"
    assert receiver.objects == []
    assert receiver.datagrams == []
    assert desk.session.established
    assert all(handler.peer.session.established for handler in world.handlers[: scene.sessions])
    for relay in {world.relay, edge}:
        assert all(
            track.stock.archive.objects == 0
            for track in relay.tracks.values()
            if track.name == EVIL_TRACK
        )
    scene.check()


@pytest.mark.parametrize("broken", BROKEN, ids=bytes.hex)
def test_poison_in_an_offer(broken: bytes) -> None:
    scene = Scene()
    peer = scene.raw()
    octets = m.encode_message(m.Publish(peer.id(), EVIL_TRACK, 7))
    body = octets[3:] + broken
    stream = peer.bidi(octets[:1] + len(body).to_bytes(2, "big") + body)
    scene.world.run(0.2)
    said = peer.said(stream)
    refused = bool(said) and isinstance(said[0], m.RequestError)
    assert peer.ended is not None or refused
    assert EVIL_TRACK not in scene.world.relay.tracks
    scene.check_empty()


# -- fetches that answer something else ------------------------------------------------------------


def record(group: int, number: int, octets: bytes = b"x") -> bytes:
    """An object on a fetch stream, all fields written out, as the first one."""
    place = varint.encode(group) + varint.encode(number)
    return b"\x1c" + place + b"\x80" + varint.encode(len(octets)) + octets


OTHER_PLACES = {
    "before": record(1, 0),
    "behind": record(5, 0),
    "far behind": record((1 << 64) - 1, (1 << 64) - 1),
    "in range, then behind": record(2, 0) + bytes.fromhex("1c 05 00 80 01 78"),
    "twice": record(2, 0) + bytes.fromhex("14 00 80 01 78") * 2,
    "over the end": record(2, 0) + bytes.fromhex("1c") + varint.encode(MAX := (1 << 64) - 1) * 2
    + bytes.fromhex("80 01 78"),
    "a gap behind": varint.encode(0x8C) + varint.encode(9) + varint.encode(9) + record(2, 0),
    "a gap before": varint.encode(0x8C) + varint.encode(0) + varint.encode(0) + record(2, 0),
    "a gap of everything": varint.encode(0x8C) + varint.encode(MAX) + varint.encode(MAX),
    "an unknown gap of everything": varint.encode(0x10C) + varint.encode(MAX) + varint.encode(MAX),
}  # fmt: skip


@pytest.mark.parametrize("octets", OTHER_PLACES.values(), ids=list(OTHER_PLACES))
@pytest.mark.parametrize("relays", [1, 2])
def test_a_fetch_that_brings_what_was_not_asked_for(octets: bytes, relays: int) -> None:
    """Nothing outside of the range is kept or passed on; what follows is asked for anew."""
    scene = Scene()
    world, edge = scene.world, scene.world.relay
    if relays == 2:
        edge = world.another(RelayConfig(straggler=0.1, fill_timeout=2.0))
        world.chain(edge, world.relay)
    peer = scene.publisher()
    desk = world.desk(edge)
    wanted = Parameters(location_filter=LocationFilter.groups(2, 3))
    _, receiver = desk.fetch(EVIL_TRACK, wanted)
    answered = set()
    for _ in range(6):
        world.run(0.1)
        for stream, _ask in peer.asked(m.Subscribe):
            if stream not in answered:
                answered.add(stream)
                largest = Parameters(largest_object=Location(9, 9))
                peer.send(stream, m.SubscribeOk(9, largest))
        for stream, asked in peer.asked(m.Fetch):
            if stream not in answered:
                answered.add(stream)
                peer.send(stream, m.FetchOk(end_of_track=False, end=Location(3, MAX)))
                peer.uni(encode_fetch_header(FetchHeader(asked.request_id)) + octets, fin=True)
    world.run(20)
    places = [(head.group, head.object) for head, _ in receiver.objects]
    assert places == sorted(set(places))
    assert all(2 <= group <= 3 for group, _ in places)
    for relay in {world.relay, edge}:
        track = relay.tracks.get(EVIL_TRACK)
        if track is not None:
            assert track.stock.archive.groups(0, 1) == []
            assert track.stock.archive.groups(4, MAX) == []
            assert not track.stock.archive.known.holds(1 << 64), "group 1 was not asked for"
            assert not track.stock.archive.known.holds(4 << 64), "nor was group 4"
    scene.check()


# -- two publishers of one track -------------------------------------------------------------------


@pytest.mark.rule("M205")
@pytest.mark.parametrize("when", ["after", "at once"])
def test_another_payload_at_the_same_place(when: str) -> None:
    """Who may publish a track can end it, not change it: the first octets stay as they were."""
    world = RelayWorld()
    (one, other), receiver = two_publishers(world)
    bystander = Track(FullTrackName((b"by", b"stander"), b"t"))
    layer(bystander, 0)
    desk = world.desk()
    desk.catalog.add(bystander)
    desk.catalog.announce(bystander.name.namespace)
    world.run(0.1)
    desk.catalog.announce_on(desk.side)  # type: ignore[arg-type]
    world.run(0.1)
    first = one.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    second = other.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    send(first, 0, 0)
    if when == "after":
        world.run(0.1)
    second.begin(stalled_head := _head(0, 0))
    second.write(b"?")
    second.end()
    assert stalled_head.length == 1
    world.run(0.5)
    assert [octets for _, octets in receiver.objects] in ([], [b"\0"], [b"?"])
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.MALFORMED_TRACK
    _, past = world.desk().fetch(
        bystander.name, Parameters(location_filter=LocationFilter.groups(0, 0))
    )
    world.run(0.5)
    assert len(normal(past)) == 4
    assert all(handler.peer.session.established for handler in world.handlers)


def _head(group: int, number: int) -> Any:
    from moqt.model import ObjectHead

    return ObjectHead(group, 0, number, 128, 1)


# -- who has no right to a track -------------------------------------------------------------------


def test_who_may_not_publish_a_track_brings_nothing_into_it() -> None:
    scene = Scene()
    scene.world.judge = lambda: Fence("attacker", EVIL)
    peer = scene.raw()
    streams = [
        peer.bidi(m.Publish(peer.id(), NAME, 5)),
        peer.bidi(m.PublishNamespace(peer.id(), SPACE)),
        peer.bidi(m.PublishNamespace(peer.id(), ())),
        peer.bidi(m.PublishNamespace(peer.id(), SPACE[:1])),
    ]
    scene.world.run(0.1)
    for stream in streams:
        (answer,) = peer.said(stream)
        assert isinstance(answer, m.RequestError)
        assert answer.code == RequestCode.UNAUTHORIZED
    for alias in (*range(10), 5):
        head = encode_subgroup_header(SubgroupHeader(alias, 50, 0, 128))
        peer.uni(head + b"\0\x04evil", fin=True)
        peer.transport.send_datagram(bytes((0, alias, 51, 0, 128)) + b"evil")
    stream = peer.bidi(m.Publish(peer.id(), EVIL_TRACK, 6))
    scene.world.run(0.1)
    assert isinstance(peer.said(stream)[0], m.RequestOk)
    peer.uni(encode_subgroup_header(SubgroupHeader(6, 50, 0, 128)) + b"\0\x04evil", fin=True)
    scene.world.run(10)
    scene.world.judge = None
    assert max(head.group for head, _ in scene.live.objects) < 50
    assert scene.live.datagrams == []
    assert scene.world.relay.tracks[NAME].stock.largest < (50, 0)
    assert scene.world.relay.tracks[EVIL_TRACK].stock.archive.objects == 1
    scene.check_empty()
