"""Authorization tokens: both alias caches, and the judge of what a peer asks (draft-22 §8.9)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import SetupOptions
from moqt.errors import Misuse, RequestCode, RequestRefused, SessionCode
from moqt.model import Location
from moqt.session.config import SessionConfig
from moqt.session.tokens import Action, Claim, OwnTokens
from moqt.track import Track

from .wire import NAME, Wire, leftovers
from .worlds import Listener, Receiver

UNKNOWN = 0x17
VALUE = Token.use_value(b"secret")


def register(alias: int, value: bytes = b"secret") -> Token:
    return Token(AliasType.REGISTER, alias, 0, value)


def use(alias: int) -> Token:
    return Token(AliasType.USE_ALIAS, alias)


def delete(alias: int) -> Token:
    return Token(AliasType.DELETE, alias)


def shown(*tokens: Token) -> Parameters:
    return Parameters(authorization_tokens=tokens)


class Judge:
    """A TokenVerifier that writes down what it hears and says what it is told to."""

    def __init__(self, verdict: RequestCode | None = None) -> None:
        self.claims: list[Claim] = []
        self.times: list[float] = []
        self.verdict = verdict

    def __call__(self, claim: Claim, now: float) -> RequestRefused | None:
        self.claims.append(claim)
        self.times.append(now)
        return None if self.verdict is None else RequestRefused(self.verdict, "judged")


def server(cache: int = 100, judge: Judge | None = None, **more: Any) -> Wire:
    """A session that offers room for tokens."""
    config = SessionConfig(max_auth_token_cache_size=cache, token_verifier=judge, **more)
    return Wire(config=config)


def refused(wire: Wire, stream: int) -> int | None:
    """The code of the REQUEST_ERROR on a stream, if there is one."""
    found = [one for one in wire.answer(stream).messages if isinstance(one, m.RequestError)]
    return found[-1].code if found else None


def asks(tokens: Parameters) -> list[Any]:
    """Each request as its sender writes it."""
    return [
        lambda i: m.Subscribe(i, NAME, tokens),
        lambda i: m.Fetch(i, NAME, tokens),
        lambda i: m.TrackStatus(i, NAME, tokens),
        lambda i: m.Publish(i, NAME, 7, tokens),
        lambda i: m.PublishNamespace(i, (b"live",), tokens),
        lambda i: m.SubscribeNamespace(i, (b"live",), tokens),
        lambda i: m.SubscribeTracks(i, (b"live",), tokens),
    ]


# -- the peer's aliases --------------------------------------------------------------------------


@pytest.mark.rule("M279", "M280")
def test_the_room_offered_is_what_is_configured() -> None:
    wire = Wire(config=SessionConfig(max_auth_token_cache_size=4096), options=None)
    (setup,) = wire.answer(wire.opened(unidirectional=True)[0]).messages
    assert isinstance(setup, m.Setup)
    assert setup.options.max_auth_token_cache_size == 4096


@pytest.mark.rule("M240", "M239")
@pytest.mark.parametrize("which", range(7))
def test_a_registered_token_is_used_and_deleted(which: int) -> None:
    judge = Judge()
    wire = server(judge=judge)
    for token in (register(5), use(5)):
        wire.bidi(asks(shown(token))[which](wire.id()))
    assert [claim.tokens for claim in judge.claims[1:]] == [(VALUE,), (VALUE,)]
    wire.bidi(m.PublishNamespace(wire.id(), (b"x",), shown(delete(5))))
    assert refused(wire, wire.bidi(asks(shown(use(5)))[which](wire.id()))) == UNKNOWN
    assert wire.fault is None


def test_the_application_sees_tokens_by_value() -> None:
    wire = server()
    wire.bidi(m.Subscribe(0, NAME, shown(register(1), Token.use_value(b"other", 5))))
    (request,) = wire.handler.requests
    assert request.parameters.authorization_tokens == (VALUE, Token.use_value(b"other", 5))


@pytest.mark.rule("M242")
@pytest.mark.parametrize("value", [b"secret", b"another"])
def test_an_alias_is_registered_once(value: bytes) -> None:
    wire = server()
    wire.bidi(m.Fetch(0, NAME, shown(register(1))))
    wire.bidi(m.Fetch(2, NAME, shown(register(1, value))))
    assert wire.fault is SessionCode.DUPLICATE_AUTH_TOKEN_ALIAS


def test_after_its_deletion_an_alias_is_free() -> None:
    wire = server()
    wire.bidi(m.Fetch(0, NAME, shown(register(1), delete(1), register(1, b"new"))))
    assert wire.fault is None
    assert wire.handler.requests[0].parameters.authorization_tokens[-1].value == b"new"


@pytest.mark.rule("M248", "M275")
@pytest.mark.parametrize(("cache", "fits"), [(0, 0), (21, 0), (22, 1), (43, 1), (44, 2)])
def test_sixteen_octets_and_the_value_count(cache: int, fits: int) -> None:
    wire = server(cache)
    for alias in range(3):
        assert wire.fault is None
        wire.bidi(m.Fetch(wire.id(), NAME, shown(register(alias))))
        if alias == fits:
            break
    assert wire.fault is SessionCode.AUTH_TOKEN_CACHE_OVERFLOW


def test_a_deletion_gives_its_room_back() -> None:
    wire = server(22)
    for alias in range(5):
        wire.bidi(m.Fetch(wire.id(), NAME, shown(register(alias))))
        wire.bidi(m.Fetch(wire.id(), NAME, shown(delete(alias))))
    assert wire.fault is None


@pytest.mark.rule("M243")
@pytest.mark.parametrize("kind", [use, delete])
def test_an_unknown_alias_fails_its_message_only(kind: Any) -> None:
    wire = server()
    stream = wire.bidi(m.Subscribe(0, NAME, shown(kind(1))))
    assert refused(wire, stream) == UNKNOWN
    assert not wire.handler.requests
    assert wire.fault is None


@pytest.mark.rule("M245")
@pytest.mark.parametrize("why", ["reserved", "alias", "load", "judge"])
def test_a_registration_outlives_its_refused_message(why: str) -> None:
    judge = Judge()
    wire = server(judge=judge, max_peer_requests=2)
    judge.verdict = RequestCode.UNAUTHORIZED if why == "judge" else None
    if why == "load":
        held = [wire.bidi(m.Fetch(wire.id(), NAME)) for _ in range(2)]
    name = NAME._replace(namespace=(b".",)) if why == "reserved" else NAME
    tokens = (register(1), use(9)) if why == "alias" else (register(1),)
    assert refused(wire, wire.bidi(m.Fetch(wire.id(), name, shown(*tokens)))) is not None
    judge.verdict = None
    if why == "load":
        wire.reset(held[0])
    again = wire.bidi(m.Fetch(wire.id(), NAME, shown(use(1))))
    assert refused(wire, again) is None
    assert wire.handler.requests[-1].parameters.authorization_tokens == (VALUE,)


@pytest.mark.rule("M246", "M247", "M522")
def test_an_expired_token_keeps_its_alias_and_its_size() -> None:
    judge = Judge()
    wire = server(22, judge)
    wire.bidi(m.Fetch(wire.id(), NAME, shown(register(1))))
    judge.verdict = RequestCode.EXPIRED_AUTH_TOKEN
    assert refused(wire, wire.bidi(m.Fetch(wire.id(), NAME, shown(use(1))))) == 0x5
    judge.verdict = None
    assert refused(wire, wire.bidi(m.Fetch(wire.id(), NAME, shown(use(1))))) is None
    judge = Judge()
    full = server(22, judge)
    judge.verdict = RequestCode.EXPIRED_AUTH_TOKEN
    full.bidi(m.Fetch(full.id(), NAME, shown(register(1))))
    full.bidi(m.Fetch(full.id(), NAME, shown(register(2))))
    assert full.fault is SessionCode.AUTH_TOKEN_CACHE_OVERFLOW
    wire.bidi(m.Fetch(wire.id(), NAME, shown(register(1))))
    assert wire.fault is SessionCode.DUPLICATE_AUTH_TOKEN_ALIAS


@pytest.mark.rule("M277", "M278")
def test_in_setup_what_does_not_fit_is_used_by_value() -> None:
    judge = Judge()
    config = SessionConfig(max_auth_token_cache_size=22, token_verifier=judge)
    tokens = (register(1, b"much too long"), register(2), register(3))
    wire = Wire(config=config, options=SetupOptions(authorization_tokens=tokens))
    assert wire.fault is None
    assert judge.claims == [
        Claim(Action.SETUP, session_tokens=(Token.use_value(b"much too long"), VALUE, VALUE))
    ]
    assert refused(wire, wire.bidi(m.Fetch(wire.id(), NAME, shown(use(1))))) == UNKNOWN
    assert refused(wire, wire.bidi(m.Fetch(wire.id(), NAME, shown(use(2))))) is None
    assert refused(wire, wire.bidi(m.Fetch(wire.id(), NAME, shown(use(3))))) == UNKNOWN


def test_an_alias_twice_in_setup() -> None:
    options = SetupOptions(authorization_tokens=(register(1), register(1)))
    wire = Wire(config=SessionConfig(max_auth_token_cache_size=100), options=options)
    assert wire.fault is SessionCode.DUPLICATE_AUTH_TOKEN_ALIAS


# -- the judge -----------------------------------------------------------------------------------


@pytest.mark.rule("M081", "M111", "M244")
@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize(
    "code",
    [RequestCode.UNAUTHORIZED, RequestCode.MALFORMED_AUTH_TOKEN, RequestCode.EXPIRED_AUTH_TOKEN],
)
def test_a_judge_refuses_before_the_application_is_asked(which: int, code: RequestCode) -> None:
    judge = Judge(None)
    wire = server(judge=judge)
    judge.verdict = code
    stream = wire.bidi(asks(shown(VALUE))[which](0))
    assert refused(wire, stream) == code
    assert wire.answer(stream).end == "fin"
    assert not wire.handler.requests
    assert wire.fault is None
    assert judge.times[-1] == wire.now


def test_what_the_judge_hears() -> None:
    judge = Judge()
    wire = server(judge=judge)
    for ask in asks(shown(VALUE)):
        wire.bidi(ask(wire.id()))
    setup, *claims = judge.claims
    assert setup == Claim(Action.SETUP)
    assert {claim.action for claim in claims} == set(Action) - {Action.SETUP}
    for claim in claims:
        named = claim.action.name in ("SUBSCRIBE", "PUBLISH", "FETCH", "TRACK_STATUS")
        assert claim.namespace == (NAME.namespace if named else (b"live",))
        assert claim.name == (NAME.name if named else None)
        assert claim.tokens == (VALUE,)
        assert not claim.update


def test_updates_are_judged_too() -> None:
    judge = Judge()
    wire = server(judge=judge)
    stream = wire.bidi(m.Subscribe(wire.id(), NAME))
    Track(NAME).attach(wire.handler.requests[0])
    wire.send(stream, m.RequestUpdate(wire.id(), shown(register(3))))
    wire.send(stream, m.RequestUpdate(wire.id(), shown(use(3))))
    assert judge.claims[-1] == Claim(
        Action.SUBSCRIBE, NAME.namespace, NAME.name, (VALUE,), update=True
    )
    assert refused(wire, stream) is None
    judge.verdict = RequestCode.EXPIRED_AUTH_TOKEN
    wire.send(stream, m.RequestUpdate(wire.id()))
    assert refused(wire, stream) == RequestCode.EXPIRED_AUTH_TOKEN
    assert isinstance(wire.last(stream), m.PublishDone)


def test_a_moved_prefix_is_judged_as_the_new_one() -> None:
    judge = Judge()
    wire = server(judge=judge)
    stream = wire.bidi(m.SubscribeNamespace(wire.id(), (b"live",)))
    wire.handler.requests[0].accept()
    moved = Parameters(track_namespace_prefix=(b"secret",))
    wire.send(stream, m.RequestUpdate(wire.id(), moved))
    assert judge.claims[-1].namespace == (b"secret",)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (RequestCode.UNAUTHORIZED, SessionCode.UNAUTHORIZED),
        (RequestCode.MALFORMED_AUTH_TOKEN, SessionCode.MALFORMED_AUTH_TOKEN),
        (RequestCode.EXPIRED_AUTH_TOKEN, SessionCode.EXPIRED_AUTH_TOKEN),
    ],
)
@pytest.mark.rule("M244")
def test_a_session_may_be_refused(verdict: RequestCode, code: SessionCode) -> None:
    wire = Wire(
        config=SessionConfig(token_verifier=Judge(verdict)),
        options=SetupOptions(authorization_tokens=(VALUE,)),
    )
    assert wire.fault is code
    assert wire.handler.options is None


# -- ours ----------------------------------------------------------------------------------------


def client(cache: int = 100, *tokens: Token) -> Wire:
    """A session whose peer keeps tokens for it."""
    return Wire(
        is_client=True,
        config=SessionConfig(setup_tokens=tokens),
        options=SetupOptions(max_auth_token_cache_size=cache),
    )


def fetch(wire: Wire, *tokens: Token) -> Any:
    return wire.session.fetch(NAME, shown(*tokens), Receiver())


def sent(wire: Wire, request: Any) -> tuple[Token, ...]:
    """The tokens of the first message on a request's stream."""
    parameters: Parameters = wire.answer(request.stream).messages[0].parameters  # type: ignore[union-attr]
    return parameters.authorization_tokens


@pytest.mark.rule("M251", "M249")
@pytest.mark.parametrize("answer", ["ok", "error"])
def test_registered_once_then_used_by_alias(answer: str) -> None:
    wire = client()
    best = wire.session.own_tokens.best
    first = fetch(wire, best(b"secret", 0))
    assert sent(wire, first) == (register(0),)
    second = fetch(wire, best(b"secret", 0))  # the answer is not in
    assert sent(wire, second) == (VALUE,)
    with pytest.raises(Misuse, match="unanswered"):
        fetch(wire, use(0))
    message = m.FetchOk(False, Location(0, 0)) if answer == "ok" else m.RequestError(0x10, 0, "")
    wire.send(first.stream, message)
    third = fetch(wire, best(b"secret", 0))
    assert sent(wire, third) == (use(0),)
    assert wire.fault is None


@pytest.mark.rule("M251")
def test_on_its_own_stream_an_alias_may_be_used_at_once() -> None:
    wire = client()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    wire.send(request.stream, m.SubscribeOk(7))
    request.update(shown(register(4)))
    request.update(shown(use(4)))
    with pytest.raises(Misuse, match="unanswered"):
        fetch(wire, use(4))
    wire.send(request.stream, m.RequestOk())
    fetch(wire, use(4))


@pytest.mark.rule("M252")
def test_an_alias_in_use_is_not_deleted() -> None:
    wire = client()
    first = fetch(wire, register(1))
    with pytest.raises(Misuse, match="unanswered"):
        fetch(wire, delete(1))
    wire.send(first.stream, m.RequestError(0x10, 0, ""))
    second = fetch(wire, use(1))
    with pytest.raises(Misuse, match="unanswered"):
        fetch(wire, delete(1))
    wire.send(second.stream, m.RequestError(0x10, 0, ""))
    third = fetch(wire, delete(1))
    for token in (use(1), delete(1)):
        with pytest.raises(Misuse, match="not registered"):
            fetch(wire, token)
    with pytest.raises(Misuse, match="is registered"):
        fetch(wire, register(1))  # the peer may not have deleted it yet
    wire.send(third.stream, m.RequestError(0x10, 0, ""))
    fetch(wire, register(1))


@pytest.mark.rule("M249", "M275")
def test_no_more_is_registered_than_the_peer_keeps() -> None:
    wire = client(44)
    fetch(wire, register(1), register(2, b"sedret"))
    with pytest.raises(Misuse, match="MAX_AUTH_TOKEN_CACHE_SIZE"):
        fetch(wire, register(3, b""))
    assert wire.session.own_tokens.best(b"", 0) == Token.use_value(b"")
    none = Wire(is_client=True, options=None)
    with pytest.raises(Misuse, match="MAX_AUTH_TOKEN_CACHE_SIZE"):
        fetch(none, register(1, b""))
    assert not none.opened(unidirectional=False)


@pytest.mark.rule("M250")
def test_a_token_goes_once_into_a_message() -> None:
    wire = client()
    for tokens in ((VALUE, VALUE), (register(1), VALUE), (register(1), use(1))):
        with pytest.raises(Misuse, match="twice"):
            fetch(wire, *tokens)
    fetch(wire, VALUE, Token.use_value(b"secret", 5), Token.use_value(b"other"))


def test_a_registration_that_is_never_answered_is_never_used() -> None:
    wire = client()
    first = fetch(wire, register(1))
    first.cancel()
    with pytest.raises(Misuse, match="unanswered"):
        fetch(wire, use(1))
    assert wire.session.own_tokens.best(b"secret", 0) == VALUE


@pytest.mark.rule("M277", "M278")
def test_what_setup_registers_is_used_where_it_fits() -> None:
    wire = client(22, register(1, b"much too long"), register(2), Token.use_value(b"x"))
    fetch(wire, use(2))
    with pytest.raises(Misuse, match="not registered"):
        fetch(wire, use(1))
    (setup,) = wire.answer(wire.opened(unidirectional=True)[0]).messages
    assert isinstance(setup, m.Setup)
    assert len(setup.options.authorization_tokens) == 3


@pytest.mark.rule("M521")
def test_both_ends_may_use_the_same_alias() -> None:
    wire = Wire(
        is_client=True,
        config=SessionConfig(max_auth_token_cache_size=100),
        options=SetupOptions(max_auth_token_cache_size=100),
    )
    fetch(wire, register(1))
    wire.bidi(m.SubscribeNamespace(wire.id(), (b"a",), shown(register(1, b"theirs"))))
    assert wire.fault is None
    assert wire.handler.requests[0].parameters.authorization_tokens[0].value == b"theirs"


def test_nothing_is_kept_after_the_session() -> None:
    wire = server()
    wire.bidi(m.Fetch(wire.id(), NAME, shown(register(1))))
    wire.session.subscribe_namespace((b"a",), NO_PARAMETERS, Listener())
    context = wire.session._context
    assert len(context.peer_tokens) == 1
    wire.lose()
    assert not len(context.peer_tokens)
    assert not len(context.own_tokens)
    assert not leftovers(wire.session)


def test_an_unsent_alias_is_not_taken() -> None:
    tokens = OwnTokens()
    tokens.setup((), 100)
    assert tokens.best(b"a", 0) == Token(AliasType.REGISTER, 0, 0, b"a")
    assert tokens.best(b"b", 0) == Token(AliasType.REGISTER, 1, 0, b"b")
    assert not len(tokens)


# -- what stays in force, and what is shown each time --------------------------------------------


def test_tokens_stay_in_force_until_others_are_admitted() -> None:
    judge = Judge()
    wire = server(judge=judge)
    fresh = Token.use_value(b"fresh")
    stream = wire.bidi(m.Subscribe(wire.id(), NAME, shown(register(3))))
    (request,) = wire.handler.requests
    Track(NAME).attach(request)
    updates = [NO_PARAMETERS, shown(fresh), Parameters(subscriber_priority=9)]
    for update in updates:
        wire.send(stream, m.RequestUpdate(wire.id(), update))
    assert [claim.tokens for claim in judge.claims[1:]] == [(VALUE,), (VALUE,), (fresh,), (fresh,)]
    assert request.claim == Claim(Action.SUBSCRIBE, *NAME, tokens=(fresh,))
    judge.verdict = RequestCode.UNAUTHORIZED
    wire.send(stream, m.RequestUpdate(wire.id(), shown(Token.use_value(b"worse"))))
    assert request.claim.tokens == (fresh,)


def test_a_fill_is_told_to_the_judge() -> None:
    judge = Judge()
    wire = server(judge=judge)
    filled = Parameters(fill=NO_PARAMETERS)
    stream = wire.bidi(m.Subscribe(wire.id(), NAME, filled))
    (request,) = wire.handler.requests
    Track(NAME).attach(request)
    for update in (NO_PARAMETERS, filled):
        wire.send(stream, m.RequestUpdate(wire.id(), update))
    wire.bidi(m.Subscribe(wire.id(), NAME))
    assert [claim.fill for claim in judge.claims[1:]] == [True, False, True, False]
    assert request.claim.fill


class Shows:
    """What a client shows now."""

    def __init__(self, *tokens: Token) -> None:
        self.tokens = tokens

    def __call__(self) -> tuple[Token, ...]:
        return self.tokens


def test_every_request_and_update_shows_what_is_to_be_shown() -> None:
    shows = Shows(VALUE)
    wire = Wire(is_client=True, config=SessionConfig(request_tokens=shows))
    session, listener = wire.session, Listener()
    requests: list[Any] = [
        session.subscribe(NAME, NO_PARAMETERS, Receiver()),
        session.fetch(NAME, NO_PARAMETERS, Receiver()),
        session.track_status(NAME, NO_PARAMETERS, print),
        session.publish_namespace((b"live",), NO_PARAMETERS, print),
        session.subscribe_namespace((b"live",), NO_PARAMETERS, listener),
        session.subscribe_tracks((b"live",), NO_PARAMETERS, listener),
    ]
    assert [sent(wire, request) for request in requests] == [(VALUE,)] * len(requests)
    shows.tokens = (Token.use_value(b"fresh", 1),)
    subscribed = requests[0]
    wire.send(subscribed.stream, m.SubscribeOk(7))
    subscribed.update(Parameters(subscriber_priority=3))
    update = wire.answer(subscribed.stream).messages[-1]
    assert isinstance(update, m.RequestUpdate)
    assert update.parameters.authorization_tokens == shows.tokens
    own = session.fetch(NAME, shown(Token.use_value(b"own")), Receiver())
    assert sent(wire, own) == (Token.use_value(b"own"),)


def test_what_is_shown_goes_out_in_its_shortest_form() -> None:
    wire = Wire(
        is_client=True,
        config=SessionConfig(request_tokens=Shows(VALUE)),
        options=SetupOptions(max_auth_token_cache_size=100),
    )
    first = wire.session.fetch(NAME, NO_PARAMETERS, Receiver())
    assert sent(wire, first) == (register(0),)
    wire.send(first.stream, m.RequestError(RequestCode.DOES_NOT_EXIST, 0, ""))
    assert sent(wire, wire.session.fetch(NAME, NO_PARAMETERS, Receiver())) == (use(0),)
