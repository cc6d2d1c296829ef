"""Authorization tokens: the alias caches of both directions, and who judges (draft-22 §8.9)."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token
from moqt.errors import Misuse, RequestCode, RequestRefused, SessionCode, SessionFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.codec.params import Parameters
    from moqt.model import TrackNamespace
    from moqt.session.requests import Opening

#: What answers the oldest question on a request stream.
ANSWERS: Final = (m.SubscribeOk, m.FetchOk, m.RequestOk, m.RequestError)

#: What each registered token costs besides its value (draft-22 §9.1.3).
OVERHEAD: Final = 16


class Action(Enum):
    """What a peer asks for."""

    SETUP = auto()
    SUBSCRIBE = auto()
    PUBLISH = auto()
    FETCH = auto()
    TRACK_STATUS = auto()
    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()


_ACTIONS: Final[dict[type, Action]] = {
    m.Subscribe: Action.SUBSCRIBE,
    m.Publish: Action.PUBLISH,
    m.Fetch: Action.FETCH,
    m.TrackStatus: Action.TRACK_STATUS,
    m.PublishNamespace: Action.PUBLISH_NAMESPACE,
    m.SubscribeNamespace: Action.SUBSCRIBE_NAMESPACE,
    m.SubscribeTracks: Action.SUBSCRIBE_TRACKS,
}

#: How a verdict on SETUP closes the session (draft-22 §13); anything else is UNAUTHORIZED.
_CLOSES: Final = {
    RequestCode.MALFORMED_AUTH_TOKEN: SessionCode.MALFORMED_AUTH_TOKEN,
    RequestCode.EXPIRED_AUTH_TOKEN: SessionCode.EXPIRED_AUTH_TOKEN,
}


class Claim(NamedTuple):
    """One thing a peer asks, and what it shows for it.

    ``namespace`` is a namespace or a prefix; ``name`` is None where no track is named. ``tokens``
    came with this message, ``session_tokens`` with SETUP; all are by value. ``update`` marks a
    REQUEST_UPDATE, ``fill`` a message that asks for a fill too.
    """

    action: Action
    namespace: TrackNamespace = ()
    name: bytes | None = None
    tokens: tuple[Token, ...] = ()
    session_tokens: tuple[Token, ...] = ()
    update: bool = False
    fill: bool = False


class TokenVerifier(Protocol):
    """Judges every SETUP, request and update of a peer before the application hears of it."""

    def __call__(self, claim: Claim, now: float) -> RequestRefused | None:
        """None to admit; else UNAUTHORIZED, MALFORMED_AUTH_TOKEN or EXPIRED_AUTH_TOKEN.

        ``now`` is the session's clock in seconds, the event loop's in an application.
        """
        ...


class PeerTokens:
    """Tokens that the peer has registered with us, within what our SETUP offers."""

    def __init__(self, limit: int, verifier: TokenVerifier | None) -> None:
        self._limit = limit
        self._verifier = verifier
        self._known: dict[int, Token] = {}
        self._octets = 0
        self._session: tuple[Token, ...] = ()

    def __len__(self) -> int:
        """Aliases registered."""
        return len(self._known)

    def setup(self, tokens: tuple[Token, ...], now: float) -> None:
        """Those of the peer's SETUP; SessionFault when they do not admit it (draft-22 §9.1.4)."""
        for token in tokens:
            if token.alias_type is AliasType.REGISTER:
                self._check_new(token)
                if self._fits(token):
                    self._register(token)
        self._session = tuple(map(_by_value, tokens))
        if self._verifier is not None:
            verdict = self._verifier(Claim(Action.SETUP, session_tokens=self._session), now)
            if verdict is not None:
                code = _CLOSES.get(verdict.code, SessionCode.UNAUTHORIZED)
                raise SessionFault(code, verdict.reason)

    def admit(
        self, claim: Claim, parameters: Parameters, now: float, refusal: RequestRefused | None
    ) -> tuple[Parameters, RequestRefused | None]:
        """Parameters with every token by value, and why the message cannot be served, if so.

        Registrations take effect even when it is refused, also for ``refusal``. SessionFault for
        a duplicate alias or a full cache.
        """
        if parameters.authorization_tokens:
            tokens, unknown = self._resolve(parameters.authorization_tokens)
            parameters = replace(parameters, authorization_tokens=tokens)
            refusal = unknown or refusal
        if refusal is None and self._verifier is not None:
            asked = claim._replace(
                tokens=parameters.authorization_tokens or claim.tokens,
                session_tokens=self._session,
                fill=parameters.fill is not None,
            )
            refusal = self._verifier(asked, now)
        return parameters, refusal

    def admit_update(
        self,
        claim: Claim | None,
        parameters: Parameters,
        now: float,
        refusal: RequestRefused | None,
    ) -> tuple[Claim | None, RequestRefused | None]:
        """The same for a REQUEST_UPDATE of what ``claim`` asked for; None: nobody need judge it.

        First comes the claim as it stands now: tokens stay in force until others are admitted.
        """
        if claim is None:
            return None, self._resolve(parameters.authorization_tokens)[1] or refusal
        space = parameters.track_namespace_prefix
        asked = claim._replace(update=True, namespace=claim.namespace if space is None else space)
        parameters, refusal = self.admit(asked, parameters, now, refusal)
        if parameters.authorization_tokens and refusal is None:
            claim = claim._replace(tokens=parameters.authorization_tokens)
        return claim, refusal

    def clear(self) -> None:
        """The session is over."""
        self._known.clear()
        self._octets = 0
        self._session = ()

    def _resolve(
        self, tokens: tuple[Token, ...]
    ) -> tuple[tuple[Token, ...], RequestRefused | None]:
        found: dict[Token, None] = {}
        unknown: RequestRefused | None = None
        for token in tokens:
            kind = token.alias_type
            if kind is AliasType.REGISTER:
                self._check_new(token)
                if not self._fits(token):
                    raise SessionFault(
                        SessionCode.AUTH_TOKEN_CACHE_OVERFLOW,
                        f"a token more than the {self._limit} octets offered for them",
                    )
                found[self._register(token)] = None
            elif kind is AliasType.USE_VALUE:
                found[token] = None
            elif token.alias not in self._known:
                unknown = RequestRefused(
                    RequestCode.UNKNOWN_AUTH_TOKEN_ALIAS,
                    f"token alias {token.alias} is not registered here",
                )
            elif kind is AliasType.USE_ALIAS:
                found[self._known[token.alias]] = None
            else:
                self._octets -= cost(self._known.pop(token.alias))
        return tuple(found), unknown

    def _check_new(self, token: Token) -> None:
        if token.alias in self._known:
            raise SessionFault(
                SessionCode.DUPLICATE_AUTH_TOKEN_ALIAS, f"token alias {token.alias} is in use"
            )

    def _fits(self, token: Token) -> bool:
        return self._octets + cost(token) <= self._limit

    def _register(self, token: Token) -> Token:
        kept = self._known[token.alias] = _by_value(token)
        self._octets += cost(kept)
        return kept


def claim_of(message: Opening) -> Claim:
    """What a message that opens a request asks for."""
    action = _ACTIONS[type(message)]
    if isinstance(message, m.PublishNamespace):
        return Claim(action, message.namespace)
    if isinstance(message, m.SubscribeNamespace | m.SubscribeTracks):
        return Claim(action, message.prefix)
    return Claim(action, message.name.namespace, message.name.name)


def tokens_of(message: m.Message) -> tuple[Token, ...]:
    """The authorization tokens that a message carries."""
    parameters = getattr(message, "parameters", None)
    return () if parameters is None else parameters.authorization_tokens


def cost(token: Token) -> int:
    """Octets of a cache that a token takes (draft-22 §9.1.3)."""
    return OVERHEAD + len(token.value)


def _by_value(token: Token) -> Token:
    return Token.use_value(token.value, token.type)


class _Own:
    """An alias of ours; the peer keeps it from the message that registers it."""

    __slots__ = ("deleting", "settled", "stream", "token", "users")

    def __init__(self, token: Token, stream: int | None) -> None:
        self.token = token  # by value
        self.stream = stream  # the request stream that carries the registration
        self.settled = False  # its message is answered: other streams may use it
        self.users = 0  # unanswered messages that use it
        self.deleting = False


class OwnTokens:
    """Tokens that we have registered with the peer, and when each alias may be used.

    A message is ``checked`` before it is written, ``sent`` afterwards, and ``answered`` by the
    response to it, or ``lost`` when none will come. ``show`` says what every request shows.
    """

    def __init__(self, show: Callable[[], Iterable[Token]] | None = None) -> None:
        self._show = show
        self._aliases: dict[int, _Own] = {}
        self._next = 0
        self._octets = 0
        self._limit = 0

    def __len__(self) -> int:
        """Aliases in use."""
        return len(self._aliases)

    def setup(self, tokens: Iterable[Token], limit: int) -> None:
        """The peer's SETUP is in: of those in ours it has kept what fits (draft-22 §9.1.4)."""
        self._limit = limit
        for token in tokens:
            if token.alias_type is AliasType.REGISTER:
                self._next = max(self._next, token.alias + 1)
                if self._octets + cost(token) <= limit:
                    self._aliases[token.alias] = own = _Own(_by_value(token), None)
                    own.settled = True
                    self._octets += cost(token)

    def best(self, value: bytes, type: int) -> Token:
        """The shortest form in which a token may go out now: registered once, then its alias.

        By value while the registration is unanswered, or when the peer's cache has no room.
        """
        token = Token.use_value(value, type)
        for alias, own in self._aliases.items():
            if own.token == token and not own.deleting:
                return Token(AliasType.USE_ALIAS, alias) if own.settled else token
        if self._octets + cost(token) > self._limit:
            return token
        alias, self._next = self._next, self._next + 1
        return Token(AliasType.REGISTER, alias, type, value)

    def shown(self, parameters: Parameters) -> Parameters:
        """A request of ours with what ``show`` gives, unless it has tokens of its own."""
        if self._show is None or parameters.authorization_tokens:
            return parameters
        tokens = tuple(self.best(token.value, token.type) for token in self._show())
        return replace(parameters, authorization_tokens=tokens)

    def check(self, tokens: tuple[Token, ...], stream: int | None) -> None:
        """Misuse for tokens that the peer could not take; ``stream`` None is one not yet open."""
        octets = self._octets
        seen: set[Token] = set()
        fresh: dict[int, Token] = {}
        for token in tokens:
            kind, alias = token.alias_type, token.alias
            if kind is AliasType.USE_VALUE:
                meant = token
            elif kind is AliasType.REGISTER:
                if alias in self._aliases or alias in fresh:
                    raise Misuse(f"token alias {alias} is registered: choose another")
                octets += cost(token)
                meant = fresh[alias] = _by_value(token)
            elif alias in fresh and kind is AliasType.USE_ALIAS:
                meant = fresh[alias]
            else:
                own = self._usable(alias, stream)
                if kind is AliasType.DELETE:
                    if own.users or not own.settled:
                        raise Misuse(f"token alias {alias} is in an unanswered message: wait")
                    continue
                meant = own.token
            if meant in seen:
                raise Misuse("the same authorization token twice in one message (§8.9)")
            seen.add(meant)
        if octets > max(self._limit, self._octets):
            raise Misuse(
                f"the peer keeps {self._limit} octets of tokens (MAX_AUTH_TOKEN_CACHE_SIZE), 0 "
                "until its SETUP is in: send this one by value, use Token.use_value"
            )

    def sent(self, tokens: tuple[Token, ...], stream: int) -> None:
        """A checked message is on its way."""
        for token in tokens:
            if token.alias_type is AliasType.REGISTER:
                self._aliases[token.alias] = _Own(_by_value(token), stream)
                self._next = max(self._next, token.alias + 1)
                self._octets += cost(token)
            elif token.alias_type is AliasType.USE_ALIAS:
                self._aliases[token.alias].users += 1
            elif token.alias_type is AliasType.DELETE:
                self._aliases[token.alias].deleting = True

    def answered(self, tokens: tuple[Token, ...]) -> None:
        """The response to a message is here, whatever it says (draft-22 §8.9)."""
        for token in tokens:
            own = self._aliases.get(token.alias)
            if own is None or token.alias_type is AliasType.USE_VALUE:
                continue
            if token.alias_type is AliasType.REGISTER:
                own.settled = True
            elif token.alias_type is AliasType.USE_ALIAS:
                own.users -= 1
            else:
                del self._aliases[token.alias]
                self._octets -= cost(own.token)

    def lost(self, tokens: tuple[Token, ...]) -> None:
        """No response will come: a registration or deletion in it may or may not have arrived.

        Such an alias is never used again; it counts for ever, since the peer may have kept it.
        """
        for token in tokens:
            if token.alias_type is AliasType.USE_ALIAS and token.alias in self._aliases:
                self._aliases[token.alias].users -= 1

    def clear(self) -> None:
        """The session is over."""
        self._aliases.clear()
        self._octets = self._limit = 0

    def _usable(self, alias: int, stream: int | None) -> _Own:
        own = self._aliases.get(alias)
        if own is None or own.deleting:
            raise Misuse(f"token alias {alias} is not registered: send it by value")
        if not own.settled and own.stream != stream:
            raise Misuse(f"the registration of token alias {alias} is unanswered: send by value")
        return own
