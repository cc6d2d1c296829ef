"""What clients of an edge relay want to hear of, asked for upstream: fairly, and not too often."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import RequestCode, RequestRefused
from moqt.model import TrackNamespace
from moqt.publisher import Track
from moqt.relay.admission import INTERESTS, AdmissionLimits
from moqt.relay.asking import AGAIN, LONGEST, MAX_ASKED, MAX_REFUSED, shared, shortest
from moqt.relay.handler import RelayHandler
from tests.moqt.session.worlds import Listener

from .test_publishers import Offers
from .worlds import NAME, SPACE, Desk, RelayWorld


class Edge:
    """An edge relay below another one; each of its clients has an identity of its own."""

    def __init__(self, *prefixes: TrackNamespace, **limits: Any) -> None:
        self.world = RelayWorld()
        self.edge = self.world.another()
        self.world.limits = AdmissionLimits(**limits)
        self.world.chain(self.edge, self.world.relay, *prefixes)
        (self.upper,) = self.world.relay.peers
        self.world.limits = AdmissionLimits()
        self.world.gates.pop(self.edge)

    @property
    def asked(self) -> set[TrackNamespace]:
        """Prefixes that stand upstream."""
        return self.upper.session._context.interests

    def client(self, identity: str) -> Desk:
        """A client of the edge."""
        desk = self.world.desk(self.edge)
        self.world.handlers[-1].admission._address = lambda: identity
        return desk

    def requests(self) -> int:
        """SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS that have come upstream."""
        said = self.upper.session.counters().received.messages
        return said["SUBSCRIBE_NAMESPACE"] + said["SUBSCRIBE_TRACKS"]


def tenant(number: int) -> TrackNamespace:
    return (b"kvcs-1", b"tenant %d" % number)


def names(desk: Desk, *prefixes: TrackNamespace) -> list[Listener]:
    made = []
    for prefix in prefixes:
        made.append(Listener())
        desk.session.subscribe_namespace(prefix, NO_PARAMETERS, made[-1])
    return made


def test_one_identity_with_many_prefixes_leaves_room_for_others() -> None:
    edge = Edge()
    greedy = edge.client("greedy")
    names(greedy, *[(b"kvcs-1", b"greedy", b"%d" % number) for number in range(250)])
    edge.world.run(1)
    assert len(edge.asked) == MAX_ASKED
    heard = names(edge.client("modest"), SPACE[:2])
    edge.world.run(0.5)
    assert SPACE[:2] in edge.asked
    assert len(edge.asked) == MAX_ASKED
    edge.world.publisher(Track(NAME))
    edge.world.run(0.1)
    assert heard[0].names == [SPACE]
    greedy.kill()
    edge.world.run(0.1)
    assert edge.asked == {SPACE[:2]}


def test_both_kinds_of_many_identities_are_less_than_upstream_takes() -> None:
    edge = Edge()
    for number in range(6):
        desk = edge.client(f"tenant {number}")
        names(desk, *[(*tenant(number), b"%d" % at) for at in range(100)])
        for at in range(100):
            desk.session.subscribe_tracks((*tenant(number), b"%d" % at), NO_PARAMETERS, Offers())
    edge.world.run(1)
    context = edge.upper.session._context
    assert len(context.interests) == len(context.track_interests) == MAX_ASKED
    assert INTERESTS.session > 2 * MAX_ASKED
    for number in range(6):
        assert sum(prefix[:2] == tenant(number) for prefix in context.interests) == 20
    assert edge.world.relay.context.counts["requests_limited"] == 0


def test_a_wide_prefix_that_upstream_refuses_hides_no_narrower_one() -> None:
    edge = Edge(prefix_fields=2)
    (narrow,) = names(edge.client("tenant"), SPACE[:2])
    edge.world.run(0.1)
    assert edge.asked == {SPACE[:2]}
    (wide,) = names(edge.client("everything"), ())
    edge.world.run(0.5)
    assert edge.asked == {SPACE[:2]}
    (late,) = names(edge.client("late"), tenant(7))
    edge.world.publisher(Track(NAME))
    edge.world.run(0.5)
    assert edge.asked == {SPACE[:2], tenant(7)}
    assert narrow.names == [SPACE]
    assert wide.names == [SPACE], "what others have brought here it may know"
    edge.world.run(2 * LONGEST)
    assert narrow.names == [SPACE]
    assert narrow.lost == []
    assert edge.asked == {SPACE[:2], tenant(7)}
    assert late.names == []


def test_what_is_refused_is_asked_for_more_and_more_rarely() -> None:
    edge = Edge(prefix_fields=3)
    names(edge.client("tenant"), SPACE[:2])
    edge.world.run(0.1)
    assert edge.requests() == 1
    edge.world.run(AGAIN)
    assert edge.requests() == 2
    edge.world.run(3600)
    assert edge.requests() < 20
    before = edge.requests()
    edge.world.gates[edge.world.relay].limits = AdmissionLimits()
    edge.world.run(LONGEST + 1)
    assert edge.requests() == before + 1
    assert edge.asked == {SPACE[:2]}


def test_others_that_come_and_go_do_not_make_it_ask_sooner() -> None:
    edge = Edge(prefix_fields=3)
    names(edge.client("tenant"), SPACE[:2])
    edge.world.run(0.1)
    noisy = edge.client("noisy")
    for _ in range(50):
        asked = noisy.session.subscribe_namespace((*SPACE, b"x"), NO_PARAMETERS, Listener())
        edge.world.run(0.02)
        asked.cancel()
        edge.world.run(0.02)
    assert edge.requests() == 1 + 50


def test_upstream_says_when_to_ask_again() -> None:
    edge = Edge()
    handler = edge.world.handlers[0]
    assert isinstance(handler, RelayHandler)
    assert handler.relay is edge.world.relay
    refusals = []

    def busy(request: Any) -> None:
        refusals.append(edge.world.clock.now)
        raise RequestRefused(RequestCode.EXCESSIVE_LOAD, "later", retry_after=60_000)

    handler.on_subscribe_namespace = busy  # type: ignore[method-assign]
    names(edge.client("tenant"), SPACE[:2])
    edge.world.run(50)
    assert len(refusals) == 1
    edge.world.run(20)
    assert len(refusals) == 2


def test_what_comes_and_goes_at_once_costs_nothing_upstream() -> None:
    edge = Edge()
    desk = edge.client("tenant")
    for number in range(100):
        desk.session.subscribe_namespace(
            (*SPACE, b"%d" % number), NO_PARAMETERS, Listener()
        ).cancel()
    edge.world.run(1)
    assert edge.requests() < 10
    assert edge.asked == set()


def test_refusals_remembered_are_few() -> None:
    edge = Edge(prefix_fields=30)
    for number in range(MAX_REFUSED // 100 + 3):
        desk = edge.client(f"tenant {number}")
        names(desk, *[(*tenant(number), b"%d" % at) for at in range(100)])
        edge.world.run(0.5)
        desk.kill()
        edge.world.run(0.1)
    (asking,) = edge.edge._asking.values()
    assert 100 < len(asking._refused) <= MAX_REFUSED


def test_nothing_is_left_of_an_upstream_that_is_gone() -> None:
    world = RelayWorld()
    edge = world.another()
    world.limits = AdmissionLimits(prefix_fields=3)
    pair = world.chain(edge, world.relay)
    desk = world.desk(edge)
    heard = names(desk, SPACE[:2], tenant(1))
    world.run(1)
    pair.kill()
    world.run(1)
    assert not edge._asking
    world.run(1000)
    desk.kill()
    world.run(1)
    assert len(edge.directory.interests) == 0
    assert edge.directory.interests.wanted == {}
    assert all(one.names == [] for one in heard)


PREFIXES = st.lists(
    st.tuples()
    | st.tuples(*[st.sampled_from([b"a", b"b"])] * 2)
    | st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=4).map(tuple),
    max_size=8,
)


@given(st.lists(PREFIXES, max_size=5), st.integers(1, 6))
def test_shares_are_fair_and_cover_one_another_nowhere(
    wanted: list[list[tuple[bytes, ...]]], most: int
) -> None:
    wanted = [list(dict.fromkeys(one)) for one in wanted]
    found = shared(wanted, most)
    assert len(found) <= most
    assert sorted(shortest(found)) == sorted(found)
    everything = shortest(prefix for one in wanted for prefix in one[:most])
    assert set(found) <= set(everything)
    if len(everything) <= most:
        assert set(found) == set(everything)
    if len([one for one in wanted if one]) <= most:
        for one in wanted:
            assert not one or any(one[0][: len(cover)] == cover for cover in found)


def test_prefixes_of_an_identity_are_counted_by_its_requests() -> None:
    edge = Edge()
    desks = [edge.client("one"), edge.client("one"), edge.client("other")]
    asked = [
        desk.session.subscribe_namespace(SPACE[:2], NO_PARAMETERS, Listener()) for desk in desks
    ]
    edge.world.run(0.1)
    interests = edge.edge.directory.interests
    assert interests.wanted == {"one": {SPACE[:2]: 2}, "other": {SPACE[:2]: 1}}
    asked[0].update(Parameters(track_namespace_prefix=tenant(3)))
    edge.world.run(0.1)
    assert interests.wanted["one"] == {SPACE[:2]: 1, tenant(3): 1}
    for one in asked:
        one.cancel()
    edge.world.run(0.1)
    assert interests.wanted == {}
    assert len(interests) == 0


@pytest.mark.parametrize("kind", ["names", "tracks"])
def test_a_prefix_wider_than_what_upstream_serves(kind: str) -> None:
    edge = Edge((b"kvcs-1", b"a"), (b"kvcs-1", b"b"))
    desk = edge.client("tenant")
    if kind == "names":
        names(desk, (b"kvcs-1",), (b"other",))
    else:
        desk.session.subscribe_tracks((b"kvcs-1",), NO_PARAMETERS, Offers())
    edge.world.run(0.1)
    context = edge.upper.session._context
    found = context.interests if kind == "names" else context.track_interests
    assert found == {(b"kvcs-1", b"a"), (b"kvcs-1", b"b")}
