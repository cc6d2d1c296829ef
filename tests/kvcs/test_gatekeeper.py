"""Who may do what: requests judged by tokens and certificates, on a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcs.clients import Clients
from kvcs.cose import PrivateKey
from kvcs.errors import InvalidInput
from kvcs.gatekeeper import ANYBODY, DENIED, NEEDS, Gatekeeper, GateLimits, Grant, Guard, needed
from kvcs.issuers import Issuers, create_issuer_keys, load_issuer_key
from kvcs.scopes import Action as Right
from kvcs.scopes import Match, Scope, kvcs_scopes
from kvcs.tokens import SKEW, TOKEN_TYPE, Claims, issue
from moqt.codec.fields import Token
from moqt.errors import RequestCode, RequestRefused
from moqt.model import TrackNamespace
from moqt.session.tokens import Action, Claim
from transport.authorities import Verified

from .test_clients import ENDS, ID, PRINT, SITE_A, SITE_B

NOW = 1_000_000.0
AUDIENCE = "moqt://relay.example"
KVCS = b"kvcs-1"
PAIR: TrackNamespace = (KVCS, ID)
OWN: TrackNamespace = (*PAIR, b"c" * 32, b"a" * 32, b"p" * 16)
OTHER: TrackNamespace = (KVCS, b"x" * 16, *OWN[2:])
NAME = b"k.raw.s0"
NAMED = (Action.SUBSCRIBE, Action.PUBLISH, Action.FETCH, Action.TRACK_STATUS)
READER, WRITER = {"publish": False, "read": True}, {"publish": True, "read": False}


class World:
    """An issuer, its key, and a gatekeeper whose clock is ``now``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = NOW
        create_issuer_keys(folder / "issuer.key", folder / "issuer.pem")
        self.key = load_issuer_key(folder / "issuer.key")
        self.issuers = Issuers([folder])
        self.gate = self.gatekeeper()

    def gatekeeper(self, **more: Any) -> Gatekeeper:
        more = {"issuers": self.issuers, "audiences": [AUDIENCE]} | more
        return Gatekeeper(wall=lambda: self.now, **more)

    def token(
        self, *scopes: Scope, key: PrivateKey | None = None, expires: float = 600.0, **more: Any
    ) -> Token:
        given = scopes or kvcs_scopes(ID, publish=True, read=True)
        claims = Claims("issuer", (AUDIENCE,), NOW + expires, given)._replace(**more)
        return Token.use_value(issue(claims, key or self.key), TOKEN_TYPE)

    def code(self, claim: Claim, gate: Gatekeeper | None = None) -> RequestCode | None:
        """Why it is refused; None when it is not."""
        try:
            (gate or self.gate).grant(claim, self.now)
        except RequestRefused as refused:
            return refused.code
        return None


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def asks(action: Action, namespace: TrackNamespace = OWN, *tokens: Token, **more: Any) -> Claim:
    return Claim(action, namespace, NAME if action in NAMED else None, tokens, **more)


REQUESTS = [action for action in Action if action is not Action.SETUP]
EACH_REQUEST = pytest.mark.parametrize("action", REQUESTS, ids=lambda action: action.name)


# ----------------------------------------------------------------------------------- what is needed


@pytest.mark.parametrize(
    ("claim", "rights"),
    [
        (Claim(Action.SETUP), {0}),
        (asks(Action.PUBLISH_NAMESPACE), {2}),
        (asks(Action.SUBSCRIBE_NAMESPACE), {3}),
        (asks(Action.SUBSCRIBE), {4}),
        (asks(Action.SUBSCRIBE, fill=True), {4, 7}),
        (asks(Action.SUBSCRIBE, update=True), {4, 5}),
        (asks(Action.SUBSCRIBE, fill=True, update=True), {4, 5, 7}),
        (asks(Action.PUBLISH), {6}),
        (asks(Action.PUBLISH, update=True), {5, 6}),
        (asks(Action.FETCH), {7}),
        (asks(Action.FETCH, update=True), {5, 7}),
        (asks(Action.TRACK_STATUS), {8}),
        (asks(Action.SUBSCRIBE_TRACKS), {3, 4}),
        (asks(Action.SUBSCRIBE_TRACKS, fill=True), {3, 4, 7}),
        (asks(Action.SUBSCRIBE_NAMESPACE, update=True), {3, 5}),
        (asks(Action.PUBLISH_NAMESPACE, update=True), {2, 5}),
    ],
)
def test_what_is_needed(claim: Claim, rights: set[int], world: World) -> None:
    assert set(needed(claim)) == rights
    fields = (Match(KVCS),) if claim.namespace else ()
    claim = claim._replace(session_tokens=(world.token(Scope(tuple(rights), fields)),))
    assert world.code(claim) is None
    for missing in rights:
        rest = tuple(set(range(9)) - {missing})
        claim = claim._replace(session_tokens=(world.token(Scope(rest, fields)),))
        assert world.code(claim) is RequestCode.UNAUTHORIZED


def test_every_action_is_in_the_table() -> None:
    assert set(NEEDS) == set(Action)


@EACH_REQUEST
def test_default_is_deny(action: Action, world: World) -> None:
    for gate in (world.gate, Gatekeeper(wall=lambda: NOW)):
        assert world.code(asks(action), gate) is RequestCode.UNAUTHORIZED
        assert world.code(asks(action, (), *([] if gate is world.gate else [world.token()])), gate)


READING = {Action.SUBSCRIBE, Action.FETCH, Action.TRACK_STATUS}
READING |= {Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE_TRACKS}


@EACH_REQUEST
@pytest.mark.parametrize("role", [READER, WRITER], ids=["reader", "writer"])
def test_halves_of_a_scope(action: Action, role: dict[str, bool], world: World) -> None:
    token = world.token(*kvcs_scopes(ID, **role))
    allowed = (action in READING) == role["read"]
    for update in (False, True):
        code = world.code(asks(action, OWN, token, update=update))
        assert code is (None if allowed else RequestCode.UNAUTHORIZED)
        assert world.code(asks(action, OTHER, token, update=update)) is RequestCode.UNAUTHORIZED
    assert world.code(asks(action, PAIR, token)) is code


@EACH_REQUEST
@pytest.mark.parametrize(
    ("namespace", "fits"),
    [
        (PAIR, True),
        (OWN, True),
        ((KVCS,), False),
        ((), False),
        ((KVCS, ID[:15]), False),
        ((KVCS, ID + b"\0"), False),
        ((KVCS + ID,), False),
        ((KVCS + b"x", ID), False),
        ((b"", *PAIR), False),
    ],
)
def test_prefixes_of_a_scope_are_not_clipped(
    action: Action, namespace: TrackNamespace, fits: bool, world: World
) -> None:
    code = world.code(asks(action, namespace, world.token()))
    assert code is (None if fits else RequestCode.UNAUTHORIZED)


def test_a_track_match_says_nothing_about_prefixes(world: World) -> None:
    token = world.token(Scope(tuple(range(9)), (Match(KVCS),), track=Match(NAME)))
    for action in REQUESTS:
        code = world.code(asks(action, OWN, token))
        assert code is (None if action in NAMED else RequestCode.UNAUTHORIZED)


def test_a_denied_reader_is_told_one_thing_only(world: World) -> None:
    token = world.token(*kvcs_scopes(ID, **READER))
    told = set()
    for namespace in (OTHER, (b"anything",), ()):
        for tokens in ((), (token,)):
            with pytest.raises(RequestRefused) as caught:
                world.gate.grant(asks(Action.SUBSCRIBE, namespace, *tokens), NOW)
            refused = caught.value
            told.add((refused.code, refused.reason, refused.retry_after, refused.redirect))
    assert told == {(RequestCode.UNAUTHORIZED, DENIED, None, None)}


# ------------------------------------------------------------------------------------- what is told


def test_what_a_reader_may_be_told(world: World) -> None:
    exact = Scope((3,), (Match(KVCS), Match(ID)), longer=False)
    only = Scope((4,), (Match(KVCS), Match(ID)), track=Match(NAME))
    grant = world.gate.grant(asks(Action.SUBSCRIBE_NAMESPACE, PAIR, world.token(exact, only)), NOW)
    assert grant.may_know(PAIR)
    assert not grant.may_know(OWN)
    assert not grant.may_know(OTHER)
    assert grant.may_know(OWN, NAME)
    assert not grant.may_know(OWN, b"manifest")
    assert not grant.may_know(OTHER, NAME)
    assert not Grant("nobody", None).may_know(PAIR)


# --------------------------------------------------------------------------------- tokens that fail


def test_a_token_that_is_none(world: World) -> None:
    good = world.token().value
    stranger = Ed25519PrivateKey.generate()
    for value in (
        b"",
        b"secret",
        good + b"\0",
        good[:-1],
        good[:-1] + bytes([good[-1] ^ 1]),
        bytes(2049),
        world.token(key=stranger).value,
        world.token(issuer="somebody").value,
    ):
        claim = asks(Action.SUBSCRIBE, OWN, Token.use_value(value, TOKEN_TYPE))
        assert world.code(claim) is RequestCode.MALFORMED_AUTH_TOKEN
        assert world.code(claim) is RequestCode.MALFORMED_AUTH_TOKEN  # known by now


def test_a_token_of_another_type_is_none_of_ours(world: World) -> None:
    other = Token.use_value(world.token().value, 0)
    assert world.code(asks(Action.SUBSCRIBE, OWN, other)) is RequestCode.UNAUTHORIZED


def test_a_token_for_another_relay_or_time(world: World) -> None:
    other = world.token(audience=("moqt://other.example",))
    assert world.code(asks(Action.SUBSCRIBE, OWN, other)) is RequestCode.UNAUTHORIZED
    later = world.token(not_before=NOW + SKEW + 1)
    assert world.code(asks(Action.SUBSCRIBE, OWN, later)) is RequestCode.UNAUTHORIZED
    world.now += 1
    assert world.code(asks(Action.SUBSCRIBE, OWN, later)) is None


def test_a_token_ends(world: World) -> None:
    claim = asks(Action.SUBSCRIBE, OWN, world.token(expires=60.0))
    assert world.gate.grant(claim, world.now).expires == NOW + 60 + SKEW
    world.now = NOW + 60 + SKEW - 0.1
    assert world.code(claim) is None
    world.now = NOW + 60 + SKEW
    assert world.code(claim) is RequestCode.EXPIRED_AUTH_TOKEN
    fresh = world.token(expires=600.0)
    assert world.code(claim._replace(tokens=(*claim.tokens, fresh))) is None


def test_revalidation_means_asking_again(world: World) -> None:
    claim = asks(Action.SUBSCRIBE, OWN, world.token(reval=10.0))
    assert world.gate.grant(claim, world.now).expires == NOW + 10
    world.now += 10
    assert world.gate.grant(claim, world.now).expires == NOW + 20
    world.now = NOW + 600 + SKEW - 1
    assert world.gate.grant(claim, world.now).expires == NOW + 600 + SKEW
    (world.folder / "issuer.pem").unlink()
    world.now += 0.5
    assert world.code(claim) is None  # it looks for other issuers now and then
    world.now += 0.4
    assert world.code(claim) is None
    world.now = NOW + 15.0
    assert world.code(claim) is RequestCode.MALFORMED_AUTH_TOKEN


def test_an_issuer_that_is_gone(world: World) -> None:
    claim = asks(Action.SUBSCRIBE, OWN, world.token())
    assert world.code(claim) is None
    generation = world.gate.generation
    (world.folder / "issuer.pem").unlink()
    world.now += 10
    assert world.code(claim) is RequestCode.MALFORMED_AUTH_TOKEN
    assert world.gate.generation == generation + 1


# ----------------------------------------------------------------------------------- several tokens


def test_two_tokens_together(world: World) -> None:
    fields = (Match(KVCS), Match(ID))
    look = world.token(Scope((3,), fields), expires=60.0, subject="looker")
    take = world.token(Scope((4,), fields), expires=90.0, subject="taker")
    assert world.code(asks(Action.SUBSCRIBE_TRACKS, OWN, look)) is RequestCode.UNAUTHORIZED
    grant = world.gate.grant(asks(Action.SUBSCRIBE_TRACKS, OWN, take, look), NOW)
    assert grant.expires == NOW + 60 + SKEW
    assert grant.identity == "issuer/looker"
    assert grant.may_know(OWN)
    assert grant.may_know(OWN, NAME)
    longer = world.token(expires=900.0)
    both = asks(Action.SUBSCRIBE, OWN, take, longer)
    assert world.gate.grant(both, NOW).expires == NOW + 900 + SKEW
    assert world.code(asks(Action.PUBLISH, OWN, take, look)) is RequestCode.UNAUTHORIZED


def test_one_bad_token_does_not_spoil_a_good_one(world: World) -> None:
    bad = Token.use_value(b"bad", TOKEN_TYPE)
    assert world.code(asks(Action.SUBSCRIBE, OWN, bad, world.token())) is None
    assert world.code(asks(Action.SUBSCRIBE, OTHER, bad, world.token())) is not None


def test_too_many_tokens_are_not_looked_at(world: World) -> None:
    tokens = [world.token(subject=str(number)) for number in range(9)]
    assert world.code(asks(Action.SUBSCRIBE, OWN, *tokens)) is RequestCode.UNAUTHORIZED
    assert not world.gate.counts["verified"]
    assert world.code(asks(Action.SUBSCRIBE, OWN, *tokens[:8])) is None


def test_tokens_of_the_session_count_for_its_requests(world: World) -> None:
    claim = asks(Action.FETCH)._replace(session_tokens=(world.token(),))
    assert world.code(claim) is None
    assert world.code(claim._replace(tokens=claim.session_tokens)) is None


# -------------------------------------------------------------------------------------- one session


def judged(guard: Guard, claim: Claim) -> RequestCode | None:
    refused = guard(claim, 5.0)
    return None if refused is None else refused.code


def test_a_session_that_shows_nothing_may_be(world: World) -> None:
    guard = world.gate.guard()
    assert judged(guard, Claim(Action.SETUP)) is None
    assert judged(guard, asks(Action.SUBSCRIBE)) is RequestCode.UNAUTHORIZED
    assert judged(guard, asks(Action.SUBSCRIBE, OWN, world.token())) is None


def test_a_token_in_setup_must_allow_it(world: World) -> None:
    guard = world.gate.guard()
    for scopes, code in (
        (kvcs_scopes(ID, **READER), RequestCode.UNAUTHORIZED),
        ((Scope((0,), (Match(KVCS),)),), RequestCode.UNAUTHORIZED),
        ((Scope((0,)), *kvcs_scopes(ID, **READER)), None),
    ):
        shown = (world.token(*scopes),)
        assert judged(guard, Claim(Action.SETUP, session_tokens=shown)) is code
    assert guard.grant(asks(Action.FETCH)).identity == "issuer"
    with pytest.raises(RequestRefused):
        guard.grant(asks(Action.PUBLISH))


def test_a_session_that_shows_one_token_after_another(world: World) -> None:
    gate = world.gatekeeper(limits=GateLimits(burst=3, per_second=0.5))
    guard, other = gate.guard(), gate.guard()
    codes = []
    for number in range(6):
        shown = Token.use_value(b"%d" % number, TOKEN_TYPE)
        codes.append(judged(guard, asks(Action.SUBSCRIBE, OWN, shown)))
    assert codes == [RequestCode.MALFORMED_AUTH_TOKEN] * 3 + [RequestCode.EXCESSIVE_LOAD] * 3
    assert gate.counts == {"rejected": 3, "throttled": 3, "denied": 6}
    good = asks(Action.SUBSCRIBE, OWN, world.token())
    refused = guard(good, 0.0)
    assert refused is not None
    assert refused.retry_after == 2001, "a token takes 2 s to come back"
    assert judged(other, good) is None
    assert judged(guard, good) is None  # known by now: costs nothing
    world.now += 2.0
    fresh = asks(Action.SUBSCRIBE, OWN, world.token(subject="fresh"))
    assert judged(guard, fresh) is None
    assert judged(guard, asks(Action.SUBSCRIBE, OWN, world.token(subject="new"))) is not None
    world.now -= 1000.0
    assert judged(guard, fresh) is None


def test_a_token_is_verified_once(world: World) -> None:
    claim = asks(Action.SUBSCRIBE, OWN, world.token())
    for _ in range(5):
        assert world.code(claim) is None
    assert world.gate.counts == {"verified": 1, "known": 4, "granted": 5}


def test_what_is_remembered_is_bounded(world: World) -> None:
    gate = world.gatekeeper(limits=GateLimits(good_tokens=2, bad_tokens=2))
    claims = [asks(Action.SUBSCRIBE, OWN, world.token(subject=str(n))) for n in range(3)]
    for claim in (*claims, claims[2], claims[1]):
        assert world.code(claim, gate) is None
    assert gate.counts["verified"] == 3
    assert world.code(claims[0], gate) is None  # forgotten, in favour of the others
    assert world.code(claims[1], gate) is None
    assert gate.counts["verified"] == 4
    for number in (*range(3), 2, 1, 0):
        world.code(asks(Action.FETCH, OWN, Token.use_value(b"%d" % number, TOKEN_TYPE)), gate)
    assert gate.counts["rejected"] == 4


# ------------------------------------------------------------------------------------- certificates


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    (tmp_path / "clients.toml").write_text(
        f'[[client]]\nname = "site-a"\nfingerprint = "{PRINT}"\nread = ["{ID.hex()}"]\n'
    )
    return Clients(tmp_path / "clients.toml")


def shows(certificate: bytes, ends: float = ENDS.timestamp()) -> Verified:
    return Verified(certificate, ends)


def test_a_client_by_its_certificate(world: World, clients: Clients) -> None:
    world.now = ENDS.timestamp() - 1
    gate = world.gatekeeper(issuers=None, clients=clients)
    guard = gate.guard(lambda: shows(SITE_A))
    assert judged(guard, Claim(Action.SETUP)) is None
    assert guard.grant(asks(Action.SUBSCRIBE))[:2] == ("site-a", ENDS.timestamp())
    assert judged(guard, asks(Action.SUBSCRIBE, OTHER)) is RequestCode.UNAUTHORIZED
    assert judged(guard, asks(Action.PUBLISH)) is RequestCode.UNAUTHORIZED
    for stranger in (shows(SITE_B), None):
        assert judged(gate.guard(lambda: stranger), asks(Action.SUBSCRIBE)) is not None  # noqa: B023
    world.now += 1
    assert judged(guard, asks(Action.SUBSCRIBE)) is RequestCode.UNAUTHORIZED


def test_it_ends_with_the_authority_above_it(world: World, clients: Clients) -> None:
    guard = world.gatekeeper(clients=clients).guard(lambda: shows(SITE_A, NOW + 5))
    assert guard.grant(asks(Action.SUBSCRIBE)).expires == NOW + 5
    world.now += 5
    assert judged(guard, asks(Action.SUBSCRIBE)) is RequestCode.UNAUTHORIZED


@EACH_REQUEST
def test_who_may_not_hears_the_same_with_and_without_a_certificate(
    action: Action, world: World, clients: Clients
) -> None:
    """Neither the words nor the code tell whether the certificate is known, or what it may."""
    gate = world.gatekeeper(clients=clients)
    told = set()
    for certificate in (None, shows(SITE_A), shows(SITE_B), shows(SITE_A, NOW)):
        refused = gate.guard(lambda: certificate)(asks(action, OTHER), 0.0)  # noqa: B023
        assert refused is not None
        told.add((refused.code, refused.reason, refused.retry_after))
    assert told == {(RequestCode.UNAUTHORIZED, DENIED, None)}


def test_certificate_and_token_together(world: World, clients: Clients) -> None:
    """Either is enough; limits know who asks by the certificate."""
    gate = world.gatekeeper(clients=clients)
    writer = world.token(*kvcs_scopes(ID, **WRITER), expires=1.0)
    for certificate, name in (
        (shows(SITE_A), "site-a"),
        (shows(SITE_B), "certificate CN=site-b,O=Example"),
    ):
        guard = gate.guard(lambda: certificate)  # noqa: B023
        grant = guard.grant(asks(Action.PUBLISH, OWN, writer))
        assert (grant.identity, grant.expires) == (name, NOW + 1 + SKEW)
        assert (judged(guard, asks(Action.SUBSCRIBE)) is None) == (name == "site-a")
    guard = gate.guard(lambda: shows(SITE_A))
    assert judged(guard, asks(Action.SUBSCRIBE, OWN, writer)) is None
    assert guard.grant(asks(Action.SUBSCRIBE, OWN, writer)).expires == ENDS.timestamp()
    bad = Token.use_value(b"bad", TOKEN_TYPE)
    assert judged(guard, asks(Action.SUBSCRIBE, OWN, bad)) is None
    assert judged(guard, asks(Action.PUBLISH, OWN, bad)) is RequestCode.MALFORMED_AUTH_TOKEN
    assert judged(gate.guard(), asks(Action.PUBLISH, OWN, writer)) is None


def test_a_certificate_that_is_required_besides(world: World) -> None:
    """A token alone is not enough then, and nothing holds longer than the certificate."""
    gate = world.gatekeeper(certified=True)
    token = world.token()
    assert judged(gate.guard(), asks(Action.SUBSCRIBE, OWN, token)) is RequestCode.UNAUTHORIZED
    guard = gate.guard(lambda: shows(SITE_B, NOW + 5))
    assert guard.grant(asks(Action.SUBSCRIBE, OWN, token)).expires == NOW + 5
    assert judged(guard, asks(Action.SUBSCRIBE)) is RequestCode.UNAUTHORIZED


@pytest.mark.parametrize("certified", [True, False])
def test_open_to_whoever_shows_one(world: World, certified: bool) -> None:
    gate = Gatekeeper(wall=lambda: world.now, open_to_all=True, certified=certified)
    guard = gate.guard(lambda: shows(SITE_B, NOW + 5))
    grant = guard.grant(asks(Action.PUBLISH, OTHER))
    assert grant.identity == "certificate CN=site-b,O=Example"
    assert grant.expires == (NOW + 5 if certified else None)
    world.now += 5
    expected = RequestCode.UNAUTHORIZED if certified else None
    assert judged(guard, asks(Action.PUBLISH, OTHER)) is expected
    assert judged(gate.guard(), asks(Action.SUBSCRIBE)) is expected


def test_clients_that_change(world: World, clients: Clients, tmp_path: Path) -> None:
    gate = world.gatekeeper(clients=clients)
    guard = gate.guard(lambda: shows(SITE_A))
    generation = gate.generation
    gate.refresh()
    assert judged(guard, asks(Action.SUBSCRIBE)) is None
    assert gate.generation == generation, "nothing has changed since it was made"
    path = tmp_path / "clients.toml"
    path.write_text(path.read_text().replace(ID.hex(), "00" * 16))
    world.now += 10
    gate.refresh()
    assert gate.generation == generation + 1
    assert judged(guard, asks(Action.SUBSCRIBE)) is RequestCode.UNAUTHORIZED


# ------------------------------------------------------------------------------------ how it is set


def test_open_to_all_only_when_said(world: World) -> None:
    gate = Gatekeeper(wall=lambda: NOW, open_to_all=True)
    guard = gate.guard()
    for action in REQUESTS:
        grant = guard.grant(asks(action, OTHER))
        assert (grant.identity, grant.expires) == (ANYBODY, None)
        assert grant.may_know((b"x",))
        assert grant.may_know((b"x",), b"y")
    assert repr(gate) == "<Gatekeeper: open to all>"
    with pytest.raises(InvalidInput, match="choose one"):
        world.gatekeeper(open_to_all=True)


def test_issuers_need_an_audience(world: World) -> None:
    with pytest.raises(InvalidInput, match="no audience"):
        world.gatekeeper(audiences=())


def test_nothing_secret_is_shown(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = world.token()
    bad = Token.use_value(token.value[:-1] + b"\0\0", TOKEN_TYPE)
    world.code(asks(Action.SUBSCRIBE, OTHER, token, bad))
    shown = [caplog.text, repr(world.gate), repr(world.gate.guard()), repr(world.issuers)]
    for text in shown:
        assert token.value[-8:].hex() not in text
        assert repr(token.value[-8:])[2:-1] not in text


def test_the_judge_fits_a_session(world: World) -> None:
    judge: Callable[[Claim, float], RequestRefused | None] = world.gate.guard()
    refused = judge(asks(Action.SUBSCRIBE, OWN), 0.0)
    assert refused is not None
    assert set(Right) == {right for rights in NEEDS.values() for right in rights} | {1, 5}
