"""A relay that is closed to strangers: the gatekeeper in front of the relay, in memory."""

from __future__ import annotations

from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest

from kvcs.clients import Clients
from kvcs.gatekeeper import Gatekeeper
from kvcs.issuers import Issuers, create_issuer_keys, load_issuer_key
from kvcs.scopes import Action as Right
from kvcs.scopes import Match, Scope, kvcs_scopes
from kvcs.tokens import SKEW, TOKEN_TYPE, Claims, issue
from moqt.codec.fields import Token
from moqt.codec.params import Parameters
from moqt.errors import DoneCode, RequestCode, RequestFailed, StreamCode
from moqt.model import FullTrackName, GroupOrder, LocationFilter
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from tests.kvcs.test_clients import certificate
from tests.moqt.relay.test_publishers import Offers
from tests.moqt.relay.test_relaying import ALL, layer, normal
from tests.moqt.relay.worlds import Desk, RelayWorld
from tests.moqt.session.worlds import Listener
from transport.authorities import Verified

OURS, THEIRS = b"o" * 16, b"t" * 16
REST = (b"c" * 32, b"a" * 32, b"p" * 16)
NAME = FullTrackName((b"kvcs-1", OURS, *REST), b"k.raw.s0")
FOREIGN = FullTrackName((b"kvcs-1", THEIRS, *REST), b"k.raw.s0")
GROUP = LocationFilter.groups(0, 0)


class Closed:
    """A relay world behind a gatekeeper, and the issuer it trusts."""

    def __init__(self, folder: Path) -> None:
        create_issuer_keys(folder / "issuer.key", folder / "issuer.pem")
        self.key = load_issuer_key(folder / "issuer.key")
        self.world = RelayWorld()
        self.gate = Gatekeeper(issuers=Issuers([folder]), audiences=["here"], wall=lambda: self.now)
        self.world.judge = self.gate.guard

    @property
    def now(self) -> float:
        """Unix time."""
        return self.world.epoch + self.world.clock.now

    def token(self, *scopes: Scope, expires: float = 600.0, holder: str = "somebody") -> Parameters:
        """Parameters that show a new token."""
        claims = Claims("issuer", ("here",), self.now + expires, scopes)._replace(subject=holder)
        return Parameters(
            authorization_tokens=(Token.use_value(issue(claims, self.key), TOKEN_TYPE),)
        )

    def reads(self, scope: bytes = OURS, **more: Any) -> Parameters:
        return self.token(*kvcs_scopes(scope, publish=False, read=True), **more)

    def writes(self, scope: bytes = OURS, **more: Any) -> Parameters:
        return self.token(*kvcs_scopes(scope, publish=True, read=False), **more)

    def published(self, **more: Any) -> tuple[Track, Desk]:
        """A track with one group whose namespace was announced with a token."""
        track = Track(NAME)
        layer(track, 0)
        desk = self.world.desk()
        desk.catalog.add(track)
        answers: list[Any] = []
        desk.session.publish_namespace(NAME.namespace, self.writes(**more), answers.append)
        self.world.run(0.2)
        assert answers == [None]
        return track, desk


class Certified(Closed):
    """The same, by certificate: ``ours`` may publish and read, ``blind`` only publish."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.blind, self.unlisted = map(certificate, ("ours", "blind", "unlisted"))
        (folder / "clients.toml").write_text(
            f"""
            [[client]]
            name = "ours"
            subject = "CN=ours,O=Example"
            publish = ["{OURS.hex()}"]
            read = ["{OURS.hex()}"]
            [[client]]
            name = "blind"
            subject = "CN=blind,O=Example"
            publish = ["{OURS.hex()}"]
            """
        )
        super().__init__(folder)
        self.gate = Gatekeeper(clients=Clients(folder / "clients.toml"), wall=lambda: self.now)
        self.show(self.ours)

    def show(self, der: bytes | None, lasts: float = 10_000.0) -> None:
        """What the sessions that come now show: each has a certificate of its own."""
        one = [None if der is None else Verified(der, self.now + lasts)]
        self.latest = one
        self.world.judge = lambda: self.gate.guard(lambda: one[0])

    def writes(self, scope: bytes = OURS, **more: Any) -> Parameters:
        return Parameters()


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    return Certified(tmp_path)


@pytest.fixture
def closed(tmp_path: Path) -> Closed:
    return Closed(tmp_path)


def shown(token: Parameters, **more: Any) -> Parameters:
    return Parameters(authorization_tokens=token.authorization_tokens, **more)


def code(error: Any) -> RequestCode:
    assert isinstance(error, RequestFailed), error
    return RequestCode(error.code)


def ask_everything(desk: Desk, name: FullTrackName, token: Parameters, heard: list[Any]) -> None:
    """Every request of a reader; ``heard`` gets the errors."""
    live = shown(token, fill=Parameters(location_filter=LocationFilter.since(0)))
    receivers = [desk.subscribe(name, live)[1], desk.fetch(name, shown(token))[1]]
    desk.session.track_status(name, token, heard.append)
    desk.session.subscribe_namespace(name.namespace[:2], token, Listener(heard))
    offers = Offers()
    desk.session.subscribe_tracks(name.namespace[:2], token, offers)
    desk.world.run(0.3)  # type: ignore[attr-defined]
    heard.extend(one.error for one in receivers)
    heard.append(offers.error)


@pytest.mark.rule("M178", "M490")
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("which", ["none", "other scope", "write only"])
def test_who_may_not_read_hears_the_same_whatever_exists(
    closed: Closed, exists: bool, which: str
) -> None:
    if exists:
        closed.published()
    token = {
        "none": Parameters(),
        "other scope": closed.reads(THEIRS),
        "write only": closed.writes(),
    }[which]
    desk = closed.world.desk()
    desk.world = closed.world  # type: ignore[attr-defined]
    heard: list[Any] = []
    ask_everything(desk, NAME, token, heard)
    assert [(code(error), error.reason) for error in heard] == [
        (RequestCode.UNAUTHORIZED, "not authorized")
    ] * 5


@pytest.mark.rule("M486")
def test_each_subscriber_is_judged_by_itself(closed: Closed) -> None:
    track, _ = closed.published()
    live = shown(closed.reads(), fill=Parameters(location_filter=LocationFilter.since(0)))
    _, good = closed.world.desk().subscribe(NAME, live)
    closed.world.run(0.3)
    stranger = closed.world.desk()
    _, bad = stranger.subscribe(NAME, Parameters())
    _, fetch = stranger.fetch(NAME, Parameters(location_filter=GROUP))
    closed.world.run(0.3)
    layer(track, 1)
    closed.world.run(0.3)
    assert normal(good) == ALL[:8]
    assert code(bad.error) == RequestCode.UNAUTHORIZED == code(fetch.error)
    assert bad.objects == fetch.objects == []


@pytest.mark.rule("M186", "M491", "M492")
def test_nobody_announces_what_is_anothers(closed: Closed) -> None:
    desk = closed.world.desk()
    answers: list[Any] = []
    for token in (Parameters(), closed.reads(), closed.writes(THEIRS)):
        desk.session.publish_namespace(NAME.namespace, token, answers.append)
    for namespace in (NAME.namespace[:1], ()):
        desk.session.publish_namespace(namespace, closed.writes(), answers.append)
    closed.world.run(0.2)
    assert [code(error) for error in answers] == [RequestCode.UNAUTHORIZED] * 5
    assert len(closed.world.relay.directory) == 0


@pytest.mark.rule("M187", "M188", "M189", "M491", "M492")
def test_a_right_to_one_track_is_no_right_to_others(closed: Closed) -> None:
    one = Scope((int(Right.PUBLISH),), tuple(map(Match, NAME.namespace)), track=Match(NAME.name))
    token = closed.token(one)
    desk = closed.world.desk()
    answers: list[Any] = []
    names = [NAME, NAME._replace(name=b"v.raw.s0"), FOREIGN]
    for name in names:
        desk.session.publish(Track(name), token, GroupOrder.ASCENDING, answers.append)
    desk.session.publish_namespace(NAME.namespace, token, answers.append)
    closed.world.run(0.2)
    assert answers[0] is None
    assert [code(error) for error in answers[1:]] == [RequestCode.UNAUTHORIZED] * 3
    assert set(closed.world.relay.tracks) == {NAME}


def test_only_what_may_be_known_is_told(closed: Closed) -> None:
    closed.published()
    prefix = Scope((int(Right.SUBSCRIBE_NAMESPACE),), (Match(b"kvcs-1"), Match(OURS)))
    exact = Scope((int(Right.SUBSCRIBE_NAMESPACE),), (Match(b"kvcs-1"), Match(OURS)), longer=False)
    told: list[list[Any]] = []
    for scope in (prefix, exact):
        listener = Listener()
        closed.world.desk().session.subscribe_namespace(
            NAME.namespace[:2], closed.token(scope), listener
        )
        closed.world.run(0.2)
        told.append(listener.names)
    assert told == [[NAME.namespace], []]


@pytest.mark.parametrize("renewed", [True, False])
def test_what_was_granted_for_a_time_ends_with_it(closed: Closed, renewed: bool) -> None:
    track, _ = closed.published(expires=10_000.0)
    desk = closed.world.desk()
    request, live = desk.subscribe(NAME, closed.reads(expires=20.0))
    desk.session.subscribe_namespace(NAME.namespace[:2], closed.reads(expires=20.0), Listener())
    closed.world.run(0.3)
    layer(track, 1)
    closed.world.run(15.0)
    if renewed:
        request.update(closed.reads(expires=600.0))
    closed.world.run(6.0 + SKEW)
    layer(track, 2)
    closed.world.run(1.0)
    if renewed:
        assert live.end is None
        assert normal(live) == ALL[4:12]
    else:
        assert live.end is not None
        assert live.end[0] == DoneCode.UNAUTHORIZED
        assert normal(live) == ALL[4:8]
    assert closed.world.relay.context.counts["grants_ended"] == 1 + (not renewed)


@pytest.mark.parametrize("moved", [-3600.0, 3600.0])
def test_the_wall_clock_is_moved(closed: Closed, moved: float) -> None:
    """What stands ends by then at the latest, what is asked is judged by the clock as it is."""
    world = closed.world
    track, _ = closed.published(expires=100_000.0)
    token = closed.reads(expires=100.0)
    _, live = world.desk().subscribe(NAME, token)
    world.run(0.3)
    world.epoch += moved
    layer(track, 1)
    world.run(50.0)
    layer(track, 2)
    _, late = world.desk().fetch(NAME, shown(token, location_filter=GROUP))
    world.run(1.0)
    assert live.end is None
    assert normal(live) == ALL[4:12]
    if moved > 0:
        assert code(late.error) == RequestCode.EXPIRED_AUTH_TOKEN
    else:
        assert normal(late) == ALL[:4]
    world.run(50.0 + SKEW + 1.0)
    assert (live.end is None) == (moved < 0)
    world.run(3600.0)
    assert live.end is not None
    assert live.end[0] == DoneCode.UNAUTHORIZED


def test_a_fetch_ends_with_its_grant(closed: Closed) -> None:
    closed.world = RelayWorld(RelayConfig(fill_timeout=600.0))
    closed.world.judge = closed.gate.guard
    track, _ = closed.published(expires=10_000.0)
    whole = track.objects
    track.objects = (  # type: ignore[method-assign]  # one object, and then never more
        lambda *asked: chain(islice(whole(*asked), 1), repeat(None))  # type: ignore[assignment]
    )
    asked = shown(closed.reads(expires=5.0), location_filter=GROUP)
    _, receiver = closed.world.desk().fetch(NAME, asked)
    closed.world.run(6.0)
    assert [stream.ended for stream in receiver.fetches] == [None]
    closed.world.run(SKEW)
    assert closed.world.relay.context.counts["grants_ended"] == 1
    assert [stream.ended for stream in receiver.fetches] == [StreamCode.EXPIRED_AUTH_TOKEN]
    assert normal(receiver) == ALL[:1]


def test_a_token_that_ends_sooner_counts_once_it_is_shown(closed: Closed) -> None:
    track, _ = closed.published(expires=10_000.0)
    request, live = closed.world.desk().subscribe(NAME, closed.reads(expires=1000.0))
    closed.world.run(0.3)
    request.update(closed.reads(expires=20.0))
    layer(track, 1)
    closed.world.run(21.0 + SKEW)
    layer(track, 2)
    closed.world.run(0.3)
    assert normal(live) == ALL[4:8]
    assert live.end is not None
    assert live.end[0] == DoneCode.UNAUTHORIZED


def test_an_announcement_ends_with_its_grant(closed: Closed) -> None:
    closed.published(expires=20.0)
    assert len(closed.world.relay.directory) == 1
    closed.world.run(21.0 + SKEW)
    assert len(closed.world.relay.directory) == 0
    _, receiver = closed.world.desk().subscribe(NAME, closed.reads())
    closed.world.run(0.3)
    assert code(receiver.error) == RequestCode.DOES_NOT_EXIST


def test_an_issuer_that_is_trusted_no_longer(closed: Closed, tmp_path: Path) -> None:
    track, _ = closed.published()
    _, live = closed.world.desk().subscribe(NAME, closed.reads())
    closed.world.run(0.3)
    (tmp_path / "issuer.pem").unlink()
    create_issuer_keys(tmp_path / "other.key", tmp_path / "other.pem")
    closed.world.run(60.0)
    closed.gate.refresh()
    for handler in tuple(closed.world.handlers):
        handler.admission.review()
    closed.world.run(0.3)
    layer(track, 1)
    closed.world.run(0.3)
    assert live.end is not None
    assert live.end[0] == DoneCode.UNAUTHORIZED
    assert normal(live) == []
    assert len(closed.world.relay.directory) == 0


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_was_offered_ends_with_its_grant(closed: Closed, cancelled: bool) -> None:
    track = Track(NAME)
    pushes = closed.world.desk()
    token = closed.writes(expires=10_000.0)
    track.offer(pushes.session.publish(track, token, GroupOrder.ASCENDING, lambda _: None))
    closed.world.run(0.2)
    offers = Offers()
    asked = closed.world.desk().session.subscribe_tracks(
        NAME.namespace[:2], closed.reads(expires=20.0), offers
    )
    closed.world.run(0.2)
    if cancelled:
        asked.cancel()
    layer(track, 1)
    closed.world.run(21.0 + SKEW)
    layer(track, 2)
    closed.world.run(0.3)
    (receiver,) = offers.receivers.values()
    assert normal(receiver) == ALL[4:8]
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.UNAUTHORIZED


# ------------------------------------------------------------------------------------- certificates


@pytest.mark.rule("M178", "M490")
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("which", ["blind", "unlisted", "none", "ended"])
def test_a_certificate_that_may_not_read_hears_the_same_whatever_exists(
    certified: Certified, exists: bool, which: str
) -> None:
    if exists:
        certified.published()
    if which == "ended":
        certified.show(certified.ours, 0.0)
    else:
        certified.show(getattr(certified, which, None))
    desk = certified.world.desk()
    desk.world = certified.world  # type: ignore[attr-defined]
    heard: list[Any] = []
    ask_everything(desk, NAME, Parameters(), heard)
    assert [(code(error), error.reason) for error in heard] == [
        (RequestCode.UNAUTHORIZED, "not authorized")
    ] * 5


@pytest.mark.parametrize("how", ["it ends", "its authority goes", "its client is struck off"])
def test_what_a_certificate_was_granted_ends_with_it(
    certified: Certified, how: str, tmp_path: Path
) -> None:
    track, _ = certified.published()
    certified.show(certified.ours, 20.0 if how == "it ends" else 10_000.0)
    _, live = certified.world.desk().subscribe(NAME, Parameters())
    certified.world.run(0.3)
    layer(track, 1)
    certified.world.run(15.0)
    assert live.end is None
    if how == "its authority goes":
        certified.latest[0] = Verified(certified.ours, 0.0)  # nobody vouches for it
    elif how == "its client is struck off":
        path = tmp_path / "clients.toml"
        path.write_text(path.read_text().replace("CN=ours", "CN=another"))
        certified.gate.refresh()
    for handler in tuple(certified.world.handlers):
        handler.admission.review()
    certified.world.run(6.0)
    layer(track, 2)
    certified.world.run(0.3)
    assert live.end is not None
    assert live.end[0] == DoneCode.UNAUTHORIZED
    assert normal(live) == ALL[4:8]
    announced = 0 if how == "its client is struck off" else 1
    assert len(certified.world.relay.directory) == announced


def test_limits_know_a_client_by_its_certificate(certified: Certified) -> None:
    certified.published()
    certified.world.desk().subscribe(NAME, Parameters())
    certified.world.run(0.3)
    (gate,) = certified.world.gates.values()
    assert list(gate._identities) == ["ours"]


def test_an_open_relay_knows_those_without_a_certificate_by_their_address(
    certified: Certified,
) -> None:
    certified.gate = Gatekeeper(open_to_all=True, wall=lambda: certified.now)
    certified.published()
    certified.show(None)
    certified.world.desk().subscribe(NAME, Parameters())
    certified.world.run(0.3)
    (gate,) = certified.world.gates.values()
    assert sorted(gate._identities) == ["certificate CN=ours,O=Example", "somebody"]
