"""Who publishes, who is asked, who is told: announcements, offers, publishers of one track."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import write_pairs
from moqt.errors import RequestCode, RequestFailed
from moqt.model import FullTrackName, GroupOrder, LocationFilter
from moqt.publisher import Track
from moqt.session.ports import Unserved
from tests.moqt.session.worlds import Listener, Receiver

from .test_relaying import ALL, LAYERS, end, layer, normal
from .worlds import NAME, SPACE, Desk, RelayWorld

PAUSED = Parameters(location_filter=LocationFilter.next_object(), forward=False)


class Offers:
    """A TracksListener that accepts everything."""

    def __init__(self) -> None:
        self.receivers: dict[FullTrackName, Receiver] = {}
        self.skips: list[FullTrackName] = []
        self.requests: list[Any] = []
        self.error: Any = "running"

    def accepted(self) -> None:
        pass

    def published(self, request: Any) -> None:
        assert request.name not in self.receivers
        self.receivers[request.name] = Receiver()
        self.requests.append(request)
        request.accept(self.receivers[request.name])

    def skipped(self, name: FullTrackName) -> None:
        self.skips.append(name)

    def ended(self, error: Any) -> None:
        self.error = error


def offer(world: RelayWorld, track: Track, parameters: Parameters = NO_PARAMETERS) -> Desk:
    """A client that pushes ``track`` by PUBLISH."""
    desk = world.desk()
    answers: list[Any] = []
    request = desk.session.publish(track, parameters, GroupOrder.ASCENDING, answers.append)
    track.offer(request)
    world.run(0.1)
    assert answers == [None]
    return desk


def code(receiver: Any) -> RequestCode:
    assert isinstance(receiver.error, RequestFailed), receiver.error
    return RequestCode(receiver.error.code)


def forwards(track: Track) -> list[bool]:
    """Whether each subscription of a publisher's track is not paused."""
    return [request.forward for request in track._subscriptions]


# -- several publishers --------------------------------------------------------------------------


@pytest.mark.rule("M175", "M176", "M177", "M191", "M196")
def test_two_publishers_of_one_track() -> None:
    world = RelayWorld(latency=0.005, jitter=0.01)
    tracks = [Track(NAME), Track(NAME)]
    for track in tracks:
        world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.2)
    assert [len(track._subscriptions) for track in tracks] == [1, 1]
    for group in range(LAYERS):
        for track in tracks[:: 1 if group % 2 else -1]:
            layer(track, group)
        world.run(0.02)
    for track in tracks:
        end(track)
    world.run()
    assert normal(receiver) == ALL
    assert world.relay.context.counts["duplicates"] == len(ALL) + LAYERS + 1


@pytest.mark.rule("M176")
def test_each_publisher_has_a_part() -> None:
    world = RelayWorld()
    tracks = [Track(NAME), Track(NAME)]
    for track in tracks:
        world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.2)
    for group in range(LAYERS):
        layer(tracks[group % 2], group)
        world.run(0.05)
    assert normal(receiver) == ALL


@pytest.mark.parametrize("killed", range(4))
def test_one_of_two_publishers_dies_in_the_middle_of_an_object(killed: int) -> None:
    world = RelayWorld(rate=100_000.0, latency=0.001)
    tracks = [Track(NAME), Track(NAME)]
    desks = [world.publisher(track) for track in tracks]
    reader = world.desk(rate=None)
    _, receiver = reader.subscribe()
    world.run(0.2)
    for group in range(LAYERS):
        for track in tracks:
            layer(track, group)
    world.run(0.013 * (killed + 1))
    desks[killed % 2].kill()
    world.run(5)
    assert normal(receiver) == ALL


@pytest.mark.rule("M203")
def test_a_publisher_that_comes_later_is_followed_too() -> None:
    world = RelayWorld()
    first, second = Track(NAME), Track(NAME)
    world.publisher(first)
    world.desk().subscribe()
    world.run(0.2)
    world.publisher(second)
    world.run(0.2)
    assert len(second._subscriptions) == 1


@pytest.mark.rule("M192")
@pytest.mark.parametrize(
    "announced",
    [(b"kvcs-1", b"scop"), (b"kvcs-1", b"scope", b"mode"), (b"kvcs-1scope",), (*SPACE, b"x")],
)
def test_namespaces_match_field_by_field(announced: tuple[bytes, ...]) -> None:
    world = RelayWorld()
    track = Track(NAME)
    desk = world.desk()
    desk.catalog.add(track)
    desk.session.publish_namespace(announced, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, receiver = world.desk().subscribe()
    world.run(0.2)
    assert code(receiver) == RequestCode.DOES_NOT_EXIST
    assert not track._subscriptions


@pytest.mark.rule("M192")
@pytest.mark.parametrize("announced", [(b"kvcs-1", b"scop"), (b"kvcs-1scope",), (*SPACE, b"x")])
def test_who_announces_another_namespace_is_not_asked(announced: tuple[bytes, ...]) -> None:
    world = RelayWorld()
    ours, other = Track(NAME), Track(NAME)
    world.publisher(ours)
    world.desk().subscribe()
    world.run(0.2)
    desk = world.desk()
    desk.catalog.add(other)
    desk.session.publish_namespace(announced, NO_PARAMETERS, lambda _: None)
    world.run(0.2)
    assert len(ours._subscriptions) == 1
    assert not other._subscriptions
    assert desk.session.counters().received.messages["SUBSCRIBE"] == 0


@pytest.mark.rule("M221", "M222")
def test_the_newest_set_of_track_properties_is_what_is_told() -> None:
    world = RelayWorld()
    first, second = Track(NAME), Track(NAME)
    first._properties = write_pairs([(0x78, 1), (0x9000, 99)])
    second._properties = write_pairs([(0x78, 2)])
    world.publisher(first)
    _, one = world.desk().subscribe()
    world.run(0.2)
    world.publisher(second)
    world.run(0.2)
    _, two = world.desk().subscribe()
    world.run(0.2)
    assert [receiver.info.properties.raw for receiver in (one, two)] == [
        first._properties,
        second._properties,
    ]


@pytest.mark.rule("M193", "M196")
def test_a_prefix_is_an_announcement_of_all_under_it() -> None:
    world = RelayWorld()
    track = Track(NAME)
    layer(track, 0)
    desk = world.desk()
    desk.catalog.add(track)
    desk.session.publish_namespace(SPACE[:1], NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, live = world.desk().subscribe()
    _, past = world.desk().fetch(NAME, Parameters(location_filter=LocationFilter.groups(0, 0)))
    world.run(0.3)
    assert normal(live) == normal(past) == ALL[:4]


# -- answers -------------------------------------------------------------------------------------


class Slow(Unserved):
    """A publisher that answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def on_subscribe(self, request: Any) -> None:
        self.requests.append(request)


@pytest.mark.rule("M179", "M194")
def test_subscribe_ok_waits_for_upstream() -> None:
    world = RelayWorld()
    slow = Slow()
    desk = world.desk(handler=slow)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    receivers = [world.desk().subscribe()[1] for _ in range(2)]
    world.run(1)
    assert [one.info for one in receivers] == [None, None]
    (request,) = slow.requests
    Track(NAME).attach(request)
    world.run(0.2)
    _, third = world.desk().subscribe()
    world.run(0.2)
    assert all(one.info is not None for one in (*receivers, third))
    assert len(slow.requests) == 1


@pytest.mark.rule("M090", "M092")
@pytest.mark.parametrize(
    "why", [RequestCode.UNSUPPORTED_EXTENSION, RequestCode.EXCESSIVE_LOAD, RequestCode.TIMEOUT]
)
def test_what_upstream_refuses_is_refused(why: RequestCode) -> None:
    world = RelayWorld()
    slow = Slow()
    desk = world.desk(handler=slow)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, live = world.desk().subscribe()
    _, past = world.desk().fetch()
    world.run(0.1)
    for request in slow.requests:
        request.refuse(why, "no", 700)
    world.run(0.2)
    assert code(live) == why == code(past)
    assert live.error.retry_after == 700


@pytest.mark.rule("M362", "M199")
def test_a_subscription_waits_for_its_publisher() -> None:
    world = RelayWorld()
    _, receiver = world.desk().subscribe(NAME, Parameters(rendezvous_timeout=5000))
    world.run(2)
    track = Track(NAME)
    world.publisher(track)
    world.run(0.2)
    layer(track, 0)
    world.run(0.2)
    assert receiver.info is not None
    assert len(receiver.objects) == 5


@pytest.mark.rule("M363")
def test_it_does_not_wait_for_ever() -> None:
    world = RelayWorld()
    _, receiver = world.desk().subscribe(NAME, Parameters(rendezvous_timeout=5000))
    world.run(4.9)
    assert receiver.error is None
    world.run(0.3)
    assert code(receiver) == RequestCode.TIMEOUT


@pytest.mark.rule("M364")
@pytest.mark.parametrize("asked", [None, 0])
def test_without_a_time_to_wait_there_is_an_answer_at_once(asked: int | None) -> None:
    world = RelayWorld()
    _, receiver = world.desk().subscribe(NAME, Parameters(rendezvous_timeout=asked))
    world.run(0.1)
    assert code(receiver) == RequestCode.DOES_NOT_EXIST


@pytest.mark.rule("M165")
def test_nothing_of_the_session_is_asked_elsewhere() -> None:
    world = RelayWorld()
    slow = Slow()
    desk = world.desk(handler=slow)
    desk.session.publish_namespace((b"x",), NO_PARAMETERS, lambda _: None)
    world.relay.directory.announce((), next(iter(world.relay.peers)))
    world.run(0.1)
    other = world.desk()
    stream = other.session._context.open_request()
    request = m.Subscribe(0, FullTrackName((b".session",), b"x"))
    other.session._context.transport.write(
        stream, m.encode_message(request, other.session._context.profile)
    )
    world.run(0.2)
    assert slow.requests == []


@pytest.mark.rule("M511")
def test_a_publisher_may_follow_its_own_track() -> None:
    world = RelayWorld()
    track = Track(NAME)
    desk = world.publisher(track)
    _, receiver = desk.subscribe()
    world.run(0.2)
    layer(track, 0)
    world.run(0.2)
    assert normal(receiver) == ALL[:4]


# -- pause and resume ----------------------------------------------------------------------------


@pytest.mark.rule("M174", "M195", "M197")
def test_upstream_flows_while_anybody_wants_it() -> None:
    world = RelayWorld()
    track = Track(NAME)
    world.publisher(track)
    first, one = world.desk().subscribe(NAME, PAUSED)
    world.run(0.2)
    assert forwards(track) == [False]
    second, two = world.desk().subscribe()
    world.run(0.2)
    assert forwards(track) == [True]
    layer(track, 0)
    world.run(0.2)
    assert one.objects == []
    assert normal(two) == ALL[:4]
    second.update(Parameters(forward=False))
    world.run(0.2)
    assert forwards(track) == [False]
    first.update(Parameters(forward=True))
    world.run(0.2)
    assert forwards(track) == [True]
    layer(track, 1)
    world.run(0.2)
    assert normal(one) == ALL[4:8]
    assert normal(two) == ALL[:4]


# -- PUBLISH and SUBSCRIBE_TRACKS ----------------------------------------------------------------


@pytest.mark.rule("M198", "M023", "M201")
def test_what_is_offered_goes_to_whoever_asked() -> None:
    world = RelayWorld()
    asking, other, quiet = Offers(), Offers(), world.desk(handler=Unserved())
    world.desk().session.subscribe_tracks(SPACE[:1], NO_PARAMETERS, asking)
    world.desk().session.subscribe_tracks((b"elsewhere",), NO_PARAMETERS, other)
    world.run(0.1)
    track = Track(NAME)
    offer(world, track)
    world.run(0.1)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert list(asking.receivers) == [NAME]
    assert normal(asking.receivers[NAME]) == ALL
    assert other.receivers == {}
    assert quiet.session.counters().received.messages["PUBLISH"] == 0


@pytest.mark.rule("M082")
def test_who_has_cancelled_is_offered_nothing_more() -> None:
    world = RelayWorld()
    asking = Offers()
    request = world.desk().session.subscribe_tracks(SPACE[:1], NO_PARAMETERS, asking)
    world.run(0.1)
    offer(world, Track(NAME))
    world.run(0.1)
    request.cancel()
    world.run(0.1)
    offer(world, Track(FullTrackName(SPACE, b"later")))
    world.run(0.1)
    assert list(asking.receivers) == [NAME]
    assert asking.requests[0].active, "what it has goes on"


@pytest.mark.rule("M199", "M200", "M201")
def test_a_held_subscription_is_answered_and_not_offered_again() -> None:
    world = RelayWorld()
    asking, desk = Offers(), world.desk()
    desk.session.subscribe_tracks(SPACE[:1], NO_PARAMETERS, asking)
    _, receiver = desk.subscribe(NAME, Parameters(rendezvous_timeout=5000))
    world.run(0.1)
    track = Track(NAME)
    offer(world, track)
    layer(track, 0)
    world.run(0.2)
    assert receiver.info is not None
    assert len(receiver.objects) == 5
    assert asking.receivers == {}


@pytest.mark.rule("M202")
def test_a_paused_offer_is_resumed_for_a_subscriber() -> None:
    world = RelayWorld()
    track = Track(NAME)
    offer(world, track, Parameters(forward=False))
    assert forwards(track) == [False]
    _, receiver = world.desk().subscribe()
    world.run(0.2)
    assert forwards(track) == [True]
    layer(track, 0)
    world.run(0.2)
    assert normal(receiver) == ALL[:4]


def test_an_offer_goes_up_and_down_a_chain() -> None:
    world = RelayWorld()
    edge = world.another()
    world.chain(edge, world.relay, SPACE[:1])
    asking = Offers()
    world.desk(edge).session.subscribe_tracks(SPACE, NO_PARAMETERS, asking)
    world.run(0.1)
    track = Track(NAME)
    offer(world, track)
    layer(track, 0)
    world.run(0.3)
    assert normal(asking.receivers[NAME]) == ALL[:4]


# -- namespaces ----------------------------------------------------------------------------------


@pytest.mark.rule("M106", "M204")
def test_namespaces_are_told_and_not_announced_on() -> None:
    world = RelayWorld()
    edge = world.another()
    world.chain(edge, world.relay, SPACE[:1])
    early, late, far = Listener(), Listener(), Listener()
    desk = world.desk()
    desk.session.subscribe_namespace(SPACE[:1], NO_PARAMETERS, early)
    world.desk(edge).session.subscribe_namespace(SPACE[:2], NO_PARAMETERS, far)
    publisher = world.publisher(Track(NAME))
    world.desk().session.subscribe_namespace((), NO_PARAMETERS, late)
    world.run(0.2)
    assert early.names == late.names == far.names == [SPACE]
    publisher.kill()
    world.run(0.2)
    assert early.names == late.names == far.names == []
    assert desk.session.counters().received.messages["PUBLISH_NAMESPACE"] == 0


@pytest.mark.rule("M184", "M185")
def test_interests_are_asked_for_upstream_in_one() -> None:
    world = RelayWorld()
    edge = world.another()
    world.chain(edge, world.relay, (b"kvcs-1",))
    (upper,) = world.relay.peers
    world.publisher(Track(NAME))
    deep, wide, all_of_it, elsewhere = (Listener() for _ in range(4))
    desks = [world.desk(edge) for _ in range(4)]
    asked = upper.session._context.interests
    desks[0].session.subscribe_namespace(SPACE, NO_PARAMETERS, deep)
    desks[1].session.subscribe_namespace((b"other",), NO_PARAMETERS, elsewhere)
    world.run(0.1)
    assert asked == {SPACE}
    narrow = desks[2].session.subscribe_namespace(SPACE[:2], NO_PARAMETERS, wide)
    world.run(0.1)
    assert asked == {SPACE[:2]}
    desks[3].session.subscribe_namespace((), NO_PARAMETERS, all_of_it)
    world.run(0.1)
    assert asked == {(b"kvcs-1",)}
    for listener in (deep, wide, all_of_it):
        assert listener.names == [SPACE]
        assert listener.lost == [], "what a wider request names again was never gone"
    assert elsewhere.names == []
    world.run(5)
    assert deep.names == [SPACE]
    narrow.cancel()
    world.run(0.1)
    assert asked == {(b"kvcs-1",)}


@pytest.mark.rule("M002")
def test_every_request_is_served() -> None:
    world = RelayWorld()
    track = Track(NAME)
    layer(track, 0)
    world.publisher(track)
    desk, answers, offers = world.desk(), [], Offers()
    receivers = [desk.subscribe()[1], desk.fetch()[1]]
    desk.session.track_status(NAME, NO_PARAMETERS, answers.append)
    desk.session.publish_namespace((b"mine",), NO_PARAMETERS, answers.append)
    pushed = Track(FullTrackName((b"mine",), b"x"))
    pushed.offer(desk.session.publish(pushed, NO_PARAMETERS, GroupOrder.ASCENDING, answers.append))
    heard: list[Any] = []
    desk.session.subscribe_namespace((), NO_PARAMETERS, Listener(heard))
    desk.session.subscribe_tracks((), NO_PARAMETERS, offers)
    world.run(1)
    assert all(one.info is not None for one in receivers)
    assert len(answers) == 3
    assert not [one for one in answers if isinstance(one, RequestFailed)]
    assert heard == []
    assert offers.error == "running"
