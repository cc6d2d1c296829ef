"""A relay that is closed to strangers, and strangers at it: they get nothing, and learn nothing.

Threats 25 to 32, and what sizes, times and the order of answers could tell.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvcs import cose, strictcbor
from kvcs.scopes import Action as Right
from kvcs.scopes import Match, Scope, kvcs_scopes
from kvcs.tokens import TOKEN_TYPE
from moqt.codec import messages as m
from moqt.codec.fields import Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import RequestCode, RequestFailed
from moqt.model import FullTrackName, GroupOrder, LocationFilter, TrackNamespace
from moqt.publisher import Track
from tests.kvcs.test_relay_authorized import (
    FOREIGN,
    GROUP,
    NAME,
    OURS,
    REST,
    THEIRS,
    Closed,
    closed,
    code,
    shown,
)
from tests.moqt.relay.test_publishers import Offers
from tests.moqt.relay.test_relaying import layer, normal
from tests.moqt.session.worlds import Listener

from .raw import SETUP, RawPeer, sizes

__all__ = ["closed"]

LIVE = Parameters(fill=Parameters(location_filter=LocationFilter.since(0)))


def claims(closed: Closed, **changed: Any) -> Parameters:
    """A token signed by the issuer, whatever it says."""
    scopes = [scope.to_claim() for scope in kvcs_scopes(OURS, publish=True, read=True)]
    said: dict[int, Any] = {1: "issuer", 3: "here", 4: int(closed.now) + 600, 327: scopes}
    said |= {int(key[1:]): value for key, value in changed.items()}
    octets = strictcbor.dumps({key: value for key, value in said.items() if value != "absent"})
    return raw_token(cose.sign(octets, closed.key, cose.TOKENS))


def raw_token(octets: bytes) -> Parameters:
    return Parameters(authorization_tokens=(Token.use_value(octets, TOKEN_TYPE),))


def tries(closed: Closed, token: Parameters, name: FullTrackName = NAME) -> list[RequestCode]:
    """The codes by which every kind of request with this token is refused."""
    desk = closed.world.desk()
    heard: list[Any] = []
    space = name.namespace
    track = Track(name)
    desk.session.publish_namespace(space, token, heard.append)
    request = desk.session.publish(track, token, GroupOrder.ASCENDING, heard.append)
    track.offer(request)
    desk.session.track_status(name, token, heard.append)
    desk.session.subscribe_namespace(space[:2], token, Listener(heard))
    offers = Offers()
    desk.session.subscribe_tracks(space[:2], token, offers)
    receivers = [
        desk.subscribe(name, shown(token, fill=LIVE.fill))[1],
        desk.fetch(name, shown(token, location_filter=GROUP))[1],
    ]
    closed.world.run(0.3)
    heard += [offers.error, *(one.error for one in receivers)]
    assert all(one.objects == [] for one in receivers)
    assert desk.session.established, "a refusal ends no session"
    return [code(error) for error in heard]


# -- 25, 28: what a token says of its end ----------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [None, "absent", -5, 0, math.nan, math.inf, -math.inf, 1e300, -1e300, 1 << 63, "5", b"\5", [5],
     True],
    ids=repr,
)  # fmt: skip
def test_a_token_whose_end_is_none(closed: Closed, end: Any) -> None:
    closed.published()
    before = sizes(closed.world.relay)
    codes = tries(closed, claims(closed, _4=end))
    expected = {RequestCode.MALFORMED_AUTH_TOKEN, RequestCode.EXPIRED_AUTH_TOKEN}
    assert len(codes) == 7
    assert set(codes) <= expected
    closed.world.run(1)
    after = sizes(closed.world.relay)
    assert {**after, "peers": 0} == {**before, "peers": 0}
    good = shown(claims(closed), location_filter=GROUP)
    _, receiver = closed.world.desk().fetch(NAME, good)
    closed.world.run(0.3)
    assert len(normal(receiver)) == 4


# -- malformed tokens ------------------------------------------------------------------------------

BAD = [
    b"", b"\xd2", bytes.fromhex("d2849affffffff"), bytes.fromhex("d2845b0000007fffffffff"),
    bytes.fromhex("d28440bb0000007fffffffff"), b"\xd2" + b"\x81" * 3000 + b"\0",
    b"\xd2\x84" + b"\x40" * 4, bytes.fromhex("d28443a1012740405840") + bytes(64), b"\xff" * 60,
    b"x" * 9000,
]  # fmt: skip


@pytest.mark.parametrize("octets", BAD, ids=lambda one: one[:12].hex() or "empty")
def test_tokens_that_are_none(closed: Closed, octets: bytes) -> None:
    track, _ = closed.published()
    assert set(tries(closed, raw_token(octets))) <= {
        RequestCode.MALFORMED_AUTH_TOKEN, RequestCode.UNAUTHORIZED, RequestCode.EXCESSIVE_LOAD,
    }  # fmt: skip
    _, good = closed.world.desk().fetch(NAME, shown(closed.reads(), location_filter=GROUP))
    closed.world.run(0.5)
    assert len(normal(good)) == 4
    assert track is not None


def test_random_tokens_cost_few_signatures_and_no_session(closed: Closed) -> None:
    random = Random(7)
    closed.published()
    good = closed.reads().authorization_tokens[0].value
    desk = closed.world.desk()
    receivers = []
    for _ in range(300):
        at = random.randrange(len(good))
        octets = random.choice(
            (
                random.randbytes(random.randrange(200)),
                good[:at],
                good[:at] + bytes((good[at] ^ 1 << random.randrange(8),)) + good[at + 1 :],
                good + b"\0",
            )
        )
        receivers.append(desk.fetch(NAME, raw_token(octets))[1])
        closed.world.run(0.01)
    assert all(isinstance(one.error, RequestFailed) for one in receivers)
    assert closed.gate.counts["verified"] <= 3
    assert closed.gate.counts["rejected"] <= 16 + 4 * 4
    assert desk.session.established


# -- 26, 27, 30: prefixes and scopes ---------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        (b".relay",), (b".", b"relay"), (), (b"kvcs-1",), (b"kvcs-2", OURS, *REST),
        (b"kvcs-1", THEIRS, *REST), (b"kvcs-1", OURS[:15], *REST), (b"kvcs-1", OURS + b"o", *REST),
        (b"kvcs-1" + OURS, *REST), (b"kvcs-", b"1" + OURS, *REST), (b"kvcs-1", b"", OURS, *REST),
        (OURS, b"kvcs-1", *REST), (b"KVCS-1", OURS, *REST),
    ],
    ids=repr,
)  # fmt: skip
def test_a_right_to_one_scope_is_none_to_any_other_namespace(
    closed: Closed, space: TrackNamespace
) -> None:
    """Publishing, by PUBLISH and by PUBLISH_NAMESPACE, and reading."""
    token = closed.token(*kvcs_scopes(OURS, publish=True, read=True))
    before = sizes(closed.world.relay)
    peer = RawPeer(closed.world)
    closed.world.run(0.05)
    name = FullTrackName(space, b"k.raw.s0")
    streams = []
    asked: list[tuple[type[Any], tuple[Any, ...]]] = [
        (m.Publish, (name, 7)), (m.PublishNamespace, (space,)), (m.Subscribe, (name,)),
        (m.Fetch, (name,)), (m.TrackStatus, (name,)), (m.SubscribeNamespace, (space,)),
        (m.SubscribeTracks, (space,)),
    ]  # fmt: skip
    for kind, what in asked:
        try:
            octets = m.encode_message(kind(peer.id(), *what, token))
        except ValueError:  # a name that cannot be said
            peer._next_id -= 2
            continue
        streams.append(peer.bidi(octets))
    closed.world.run(0.3)
    for stream in streams:
        said = peer.said(stream)
        if not said:
            assert peer.ended is not None
            continue
        assert isinstance(said[0], m.RequestError), said
    peer.leave()
    closed.world.run(10)
    assert sizes(closed.world.relay) == before


def test_only_the_protocol_is_a_right_to_nothing_of_the_relay(closed: Closed) -> None:
    """A token for all of kvcs-1 may not publish beside it."""
    wide = Scope(tuple(map(int, Right)), (Match(b"kvcs-1"),))
    codes = tries(closed, closed.token(wide), FullTrackName((b".internal", b"x"), b"t"))
    assert RequestCode.DOES_NOT_EXIST not in codes
    assert closed.world.relay.tracks == {}
    assert len(closed.world.relay.directory) == 0


def test_a_token_counts_where_it_is_shown(closed: Closed) -> None:
    """In SETUP for the whole session, in a request for that alone."""
    closed.published()
    token = closed.reads()
    desk = closed.world.desk()
    _, one = desk.fetch(NAME, shown(token, location_filter=GROUP))
    _, two = desk.fetch(NAME, Parameters(location_filter=GROUP))
    closed.world.run(0.3)
    assert len(normal(one)) == 4
    assert code(two.error) == RequestCode.UNAUTHORIZED
    token = closed.token(
        *kvcs_scopes(OURS, publish=False, read=True), Scope((int(Right.CLIENT_SETUP),))
    )
    peer = RawPeer(closed.world, setup=False)
    closed.world.run(0.05)
    options = type(SETUP)(
        path="/", authority="pair", authorization_tokens=token.authorization_tokens
    )
    peer.control = peer.uni(m.Setup(options))
    streams = [
        peer.bidi(m.Fetch(peer.id(), name, Parameters(location_filter=GROUP)))
        for name in (NAME, FOREIGN)
    ]
    closed.world.run(0.3)
    mine, foreign = (peer.said(stream)[0] for stream in streams)
    assert isinstance(mine, m.FetchOk)
    assert peer.ended is None
    assert isinstance(foreign, m.RequestError)


# -- 29, 31: interests that are denied -------------------------------------------------------------


@pytest.mark.parametrize("prefix", [(), (b"kvcs-1",), (b"kvcs-1", THEIRS), (b"other",)])
@pytest.mark.parametrize("tracks", [False, True])
def test_a_denied_interest_hears_nothing_and_ends_nothing(
    closed: Closed, prefix: TrackNamespace, tracks: bool
) -> None:
    track, _ = closed.published()
    token = closed.reads()
    desk = closed.world.desk()
    _, live = desk.subscribe(NAME, shown(token, fill=LIVE.fill))
    stands = Listener()
    desk.session.subscribe_namespace((b"kvcs-1", OURS), token, stands)
    closed.world.run(0.3)
    received = desk.session.counters().received.messages
    heard: list[Any] = []
    if tracks:
        offers = Offers()
        desk.session.subscribe_tracks(prefix, token, offers)
        closed.world.run(0.3)
        heard.append(offers.error)
        assert offers.requests == offers.skips == []
    else:
        listener = Listener(heard)
        # Our own session would not let a wider one be asked for beside the one that stands.
        wide = NAME.namespace[: len(prefix)] == prefix
        asks = closed.world.desk() if wide else desk
        asks.session.subscribe_namespace(prefix, token, listener)
        closed.world.run(0.3)
        assert listener.names == []
        assert listener.accepts == 0
    assert [code(error) for error in heard] == [RequestCode.UNAUTHORIZED]
    layer(track, 1)
    closed.world.run(0.5)
    assert len(normal(live)) == 8
    assert stands.names == [NAME.namespace]
    assert desk.session.established
    assert desk.session.counters().received.messages["NAMESPACE"] == received["NAMESPACE"]


# -- 32: who publishes without a right -------------------------------------------------------------


@pytest.mark.parametrize("how", ["PUBLISH", "before the answer", "announce"])
def test_what_is_published_without_a_right_leaves_nothing(closed: Closed, how: str) -> None:
    """Objects that are sent before the refusal has come are nobody's."""
    before = sizes(closed.world.relay)
    wants = Offers()
    closed.world.desk().session.subscribe_tracks((b"kvcs-1", OURS), closed.reads(), wants)
    closed.world.run(0.1)
    between = sizes(closed.world.relay)
    peer = RawPeer(closed.world)
    closed.world.run(0.05)
    token = closed.writes(THEIRS)
    if how == "announce":
        stream = peer.bidi(m.PublishNamespace(peer.id(), NAME.namespace, token))
    else:
        stream = peer.bidi(m.Publish(peer.id(), NAME, 7, token))
    if how == "before the answer":
        for group in range(3):
            peer.uni(bytes((0x10, 7, group, 128, 0, 1)) + b"x", fin=True)
            peer.transport.send_datagram(bytes((0, 7, group, 9, 128)) + b"x")
    closed.world.run(0.3)
    (answer,) = peer.said(stream)
    assert isinstance(answer, m.RequestError)
    assert answer.code == RequestCode.UNAUTHORIZED
    assert wants.requests == []
    closed.world.run(10)
    peer.leave()
    closed.world.run(5)
    assert sizes(closed.world.relay) == between
    assert before["peers"] + 1 == between["peers"]
    assert closed.world.relay.cache.octets == 0


# -- what refusals tell ----------------------------------------------------------------------------


def transcript(folder: Path, exists: str, token: str) -> list[tuple[float, int, bytes, Any]]:
    """All that a stranger hears, octet by octet, and when."""
    closed = Closed(folder)
    world = closed.world
    if exists != "nothing":
        closed.published()
    if exists == "cached":
        world.desk().fetch(NAME, shown(closed.reads(), location_filter=GROUP))
        world.desk().subscribe(NAME, shown(closed.reads(), fill=LIVE.fill))
    world.run(20 - world.clock.now)
    peer = RawPeer(world)
    world.run(0.05)
    show = {
        "none": NO_PARAMETERS,
        "other scope": closed.reads(THEIRS),
        "writer": closed.writes(),
        "expired": closed.reads(expires=-1000.0),
        "garbage": raw_token(b"x" * 40),
    }[token]
    heard: list[tuple[float, int, bytes, Any]] = []
    peer.stream_data = lambda stream, data, fin: heard.append(  # type: ignore[method-assign]
        (round(world.clock.now, 6), stream, bytes(data), fin)
    )
    peer.stream_reset = lambda stream, code: heard.append(  # type: ignore[method-assign]
        (round(world.clock.now, 6), stream, b"", code)
    )
    fill = Parameters(location_filter=LocationFilter.since(0))
    space = NAME.namespace
    everything = [
        m.Subscribe(0, NAME, show),
        m.Subscribe(2, NAME, shown(show, rendezvous_timeout=5000)),
        m.Subscribe(4, NAME, shown(show, fill=fill, location_filter=LocationFilter.next_object())),
        m.Subscribe(6, NAME, shown(show, forward=False)),
        m.Fetch(8, NAME, show),
        m.Fetch(10, NAME, shown(show, location_filter=GROUP, fill_timeout=1000)),
        m.TrackStatus(12, NAME, show),
        m.SubscribeNamespace(14, space, show),
        m.SubscribeTracks(16, space, shown(show, fill=fill)),
        m.SubscribeNamespace(18, space[:2], show),
        m.SubscribeTracks(20, (), show),
    ]
    streams = [peer.bidi(one) for one in everything]
    for number, stream in enumerate(one for one in streams if one != streams[6]):
        peer.send(stream, m.RequestUpdate(22 + 2 * number, show))
    world.run(40)
    return heard


@pytest.mark.rule("M178", "M490")
@pytest.mark.parametrize("token", ["none", "other scope", "writer", "expired", "garbage"])
def test_who_may_not_read_hears_the_same_octets_at_the_same_times(
    tmp_path: Path, token: str
) -> None:
    heard = []
    for exists in ("nothing", "announced", "cached"):
        folder = tmp_path / exists
        folder.mkdir()
        heard.append(transcript(folder, exists, token))
    assert len(heard[0]) >= 11
    assert heard[0] == heard[1] == heard[2]
