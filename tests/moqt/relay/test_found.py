"""What random attackers have found (test_relay_seeds.py), each as a case of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import DoneCode, MalformedTrack, RequestCode
from moqt.model import (
    MAX_VI64,
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    ObjectStatus,
    SubgroupHead,
)
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from moqt.relay.spans import MAX_PLACE, last_of, location, place
from tests.moqt.session.worlds import Receiver

from .test_fidelity import Upstream, by_hand, send
from .test_relaying import layer, normal
from .tracks import archive, item
from .worlds import NAME, ONE_TRACK, SPACE, RelayWorld

LAST = MAX_VI64


def had(receiver: Receiver) -> list[tuple[int, int]]:
    return [(head.group, head.object) for head, _ in receiver.objects]


# -- the last place that there is ----------------------------------------------------------------


@pytest.mark.parametrize("group", [0, 1, 5, 1 << 62, LAST - 1])
def test_behind_the_last_object_of_a_group_comes_the_next_group(group: int) -> None:
    assert place((group, LAST)) == last_of(group)
    assert place((group, LAST + 1)) == place((group + 1, 0))
    assert location(place((group, LAST)) + 1) == (group + 1, 0)


def test_behind_the_last_place_there_is_none() -> None:
    assert place((LAST, LAST)) == MAX_PLACE
    assert place((LAST, LAST + 1)) == MAX_PLACE + 1


@pytest.mark.parametrize("group", [0, 5, LAST])
@pytest.mark.parametrize("number", [LAST - 1, LAST])
@pytest.mark.parametrize("status", ObjectStatus)
@pytest.mark.parametrize("ends_group", [False, True])
def test_the_last_objects_that_there_can_be(
    group: int, number: int, status: ObjectStatus, ends_group: bool
) -> None:
    """Group 5 is odd and not a power of two: it has bits in common with what comes behind it."""
    world = RelayWorld(RelayConfig(straggler=0.1, fill_timeout=1.0))
    request, receiver, _ = by_hand(world)
    sink = request.subgroup(SubgroupHead(group, 0, 128, end_of_group=ends_group))
    send(sink, group, 0, 1)
    payload = b"" if status else b"x"
    sink.begin(ObjectHead(group, 0, number, 128, len(payload), status))
    if payload:
        sink.write(payload)
    sink.end()
    sink.finish()
    world.run(1)
    assert had(receiver) == [(group, 0), (group, 1), (group, number)]
    assert receiver.streams[0].ended == "fin"
    stock = world.relay.tracks[NAME].stock
    assert stock.archive.known.holds(place((group, 1)))
    assert not stock.archive.known.holds(place((group, 2)))
    for order in GroupOrder:
        asked = Parameters(location_filter=LocationFilter.groups(group, group), group_order=order)
        _, reader = world.desk().fetch(NAME, asked)
        world.run(5)
        assert set(had(reader)) >= {(group, 0), (group, 1)}, "the rest cannot be had elsewhere"
        assert reader.fetches[0].ended == "fin"


def test_an_archive_at_the_last_place() -> None:
    known = archive()
    known.put(item(LAST, LAST), 0.0)
    assert known.after(place((LAST, LAST)), MAX_PLACE) is not None
    assert known.after(place((LAST, LAST)) + 1, MAX_PLACE) is None
    known.absent(0, place((LAST, LAST)) - 1)
    known.ends_at(Location(LAST, LAST))
    assert known.known.covers(0, MAX_PLACE)
    assert known.last(0, MAX_PLACE) == (LAST, LAST)


# -- answers that contradict what is known -------------------------------------------------------


@pytest.mark.rule("M205")
@pytest.mark.parametrize("relays", [1, 2])
def test_an_end_that_cannot_be_ends_the_track_and_no_session(relays: int) -> None:
    """FETCH_OK says that the track ends before an object that is here."""
    world = RelayWorld(RelayConfig(straggler=0.1))
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    relay = world.relay
    if relays == 2:
        relay = world.another(RelayConfig(straggler=0.1))
        world.chain(relay, world.relay)
    other = world.desk(relay)
    bystander = Track(NAME._replace(namespace=(b"by", b"stander")))
    layer(bystander, 0)
    world.publisher(bystander, relay=relay)
    _, receiver = world.desk(relay).subscribe(NAME, NO_PARAMETERS)
    world.run(0.1)
    upstream.requests[0].accept(Track(NAME))
    world.run(0.1)
    sink = upstream.requests[0].subgroup(SubgroupHead(5, 0, 128))
    send(sink, 5, 3)
    world.run(0.1)
    _, past = world.desk(relay).fetch(NAME, Parameters(location_filter=LocationFilter.groups(0, 4)))
    world.run(0.3)
    short = Track(NAME)
    writer = short.subgroup(2)
    writer.object(0, status=ObjectStatus.END_OF_TRACK)
    writer.finish()
    short.end()
    upstream.fetches[0].accept(short)
    world.run(1)
    assert isinstance(receiver.end, tuple)
    assert receiver.end[0] == DoneCode.MALFORMED_TRACK
    world.run(15)  # its stream is reset before a header has said whose it is
    assert past.error is not None or past.fetches[0].gaps
    assert world.relay.context.counts["tracks_malformed"] == 1
    assert all(handler.peer.session.established for handler in world.handlers)
    assert other.session.established


def test_the_relay_itself_tells_contradictions_from_its_own_faults() -> None:
    known = archive()
    known.put(item(5, 3), 0.0)
    with pytest.raises(MalformedTrack):
        known.ends_at(Location(2, 0))


# -- one publisher ends while another is asked ---------------------------------------------------


@pytest.mark.parametrize("ended", [DoneCode.TRACK_ENDED, DoneCode.UNAUTHORIZED])
@pytest.mark.parametrize("second", ["refuses", "dies", "accepts"])
def test_the_only_publisher_ends_while_another_is_asked(ended: DoneCode, second: str) -> None:
    world = RelayWorld(RelayConfig(recovery=2.0, linger=1.0))
    upstreams = [Upstream(), Upstream()]
    desks = []
    for upstream in upstreams:
        desk = world.desk(handler=upstream)
        desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
        desks.append(desk)
        world.run(0.1)
        if len(desks) == 1:
            _, receiver = world.desk().subscribe(NAME, NO_PARAMETERS)
            world.run(0.1)
            upstream.requests[0].accept(Track(NAME))
            world.run(0.1)
    assert len(upstreams[1].requests) == 1, "who comes later is asked too"
    upstreams[0].requests[0].done(ended, "over")
    world.run(0.1)
    assert receiver.end is None
    if second == "refuses":
        upstreams[1].requests[0].refuse(RequestCode.DOES_NOT_EXIST, "no")
    elif second == "dies":
        desks[1].kill()
    else:
        upstreams[1].requests[0].accept(Track(NAME))
    world.run(5)
    if second == "accepts":
        assert receiver.end is None
    else:
        assert receiver.end is not None
        assert receiver.end[0] == ended
        assert not world.relay.tracks


# -- a fetch of more than the cache holds, while the track is live -------------------------------


def test_what_the_cache_has_forgotten_is_not_waited_for() -> None:
    """Each forgotten group would cost a straggler's time, of which a fetch has little."""
    world = RelayWorld(
        RelayConfig(cache=ONE_TRACK + 20_000, straggler=1.0, fill_timeout=3.0), latency=0.001
    )
    track = Track(NAME)
    world.publisher(track)
    _, live = world.desk().subscribe()
    world.run(0.1)
    for group in range(40):
        layer(track, group)
        world.run(0.02)
    desk = world.desk()
    for order in GroupOrder:
        asked = Parameters(location_filter=LocationFilter.groups(0, 39), group_order=order)
        _, past = desk.fetch(NAME, asked)
        world.run(2.0)
        wanted = [(group, number) for group in range(40) for number in range(4)]
        assert normal(past) == wanted == normal(live)
        assert past.fetches[0].gaps == []


def test_what_may_yet_come_is_still_waited_for() -> None:
    """A group that was forgotten says nothing of those behind it."""
    world = RelayWorld(RelayConfig(straggler=1.0))
    request, _, _ = by_hand(world)
    for group in (0, 1, 3):
        sink = request.subgroup(SubgroupHead(group, 0, 128, first_object=True))
        send(sink, group, 0)
        sink.finish()
    world.run(0.1)
    stock: Any = world.relay.tracks[NAME].stock
    stock.archive.evict(1)
    assert not stock.may_come_live(place((1, 0)), late=False)
    assert stock.may_come_live(place((2, 0)), late=False)


# -- an ID in two subgroups ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10])
@pytest.mark.parametrize("how", ["whole", "reset", "killed"])
def test_two_publishers_have_an_id_in_two_subgroups(size: int, how: str) -> None:
    """It waits for those before it in its own subgroup, and is there in the other one."""
    world = RelayWorld(RelayConfig(straggler=0.1, fill_timeout=1.0))
    one, receiver, _ = by_hand(world)
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    (other,) = upstream.requests
    other.accept(Track(NAME))
    world.run(0.1)
    send(one.subgroup(SubgroupHead(1, 0, 128)), 1, 5)
    send(other.subgroup(SubgroupHead(1, 1, 128)), 1, 0, subgroup=1)
    waits = other.subgroup(SubgroupHead(1, 1, 128))
    world.run(0.1)
    waits.begin(ObjectHead(1, 1, 5, 128, size))
    if how == "whole":
        waits.write(bytes(size))
        waits.end()
    elif how == "reset":
        waits.abort(1)
    else:
        world.run(0.1)
        desk.kill()
    world.run(2)
    assert had(receiver) == [(1, 5), (1, 0)]
    if how == "whole":
        assert receiver.end is not None
        assert receiver.end[0] == DoneCode.MALFORMED_TRACK
