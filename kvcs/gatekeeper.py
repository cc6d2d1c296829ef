"""Who may do what at a relay: judges every request by its tokens, or by a client certificate.

Default is deny. What is refused is refused alike, whether or not what was asked for exists.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kvcs import cose
from kvcs.errors import InvalidInput
from kvcs.scopes import Action as Right
from kvcs.scopes import Scope
from kvcs.tokens import (
    TOKEN_TYPE,
    Claims,
    TokenExpired,
    TokenInvalid,
    TokenMisplaced,
    check,
    decode,
)
from moqt.errors import RequestCode, RequestRefused
from moqt.session.tokens import Action, Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kvcs.clients import Clients
    from kvcs.issuers import Issuers
    from moqt.codec.fields import Token
    from moqt.model import TrackNamespace

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

#: What each request needs. SUBSCRIBE_TRACKS has no number of its own: it tells of tracks and
#: subscribes to them.
NEEDS: Final[dict[Action, tuple[Right, ...]]] = {
    Action.SETUP: (Right.CLIENT_SETUP,),
    Action.SUBSCRIBE: (Right.SUBSCRIBE,),
    Action.PUBLISH: (Right.PUBLISH,),
    Action.FETCH: (Right.FETCH,),
    Action.TRACK_STATUS: (Right.TRACK_STATUS,),
    Action.PUBLISH_NAMESPACE: (Right.PUBLISH_NAMESPACE,),
    Action.SUBSCRIBE_NAMESPACE: (Right.SUBSCRIBE_NAMESPACE,),
    Action.SUBSCRIBE_TRACKS: (Right.SUBSCRIBE_NAMESPACE, Right.SUBSCRIBE),
}
#: What a fill needs besides: it fetches.
FILL: Final = Right.FETCH
#: What a change of a request needs besides.
UPDATE: Final = Right.REQUEST_UPDATE

#: The one answer to whatever is not allowed.
DENIED: Final = "not authorized"
NOT_ACCEPTED: Final = "a token is not accepted"
EXPIRED: Final = "a token has expired"
#: Who shows nothing, where nothing need be shown.
ANYBODY: Final = "anybody"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """What strangers may make us do."""

    #: Tokens that were found good, and bad, and need no second look; 2 KiB and 100 octets each.
    good_tokens: int = 4096
    bad_tokens: int = 1024
    #: Tokens looked at for one message: two scopes that end at different times need two.
    message_tokens: int = 8
    #: Signatures of one session that are verified: at once, and in a second. One costs 0.2 ms.
    burst: int = 16
    per_second: float = 4.0


class Grant(NamedTuple):
    """What a claim is granted: who asks, until when (Unix time; None: for ever), what it may do.

    At ``expires`` the relay asks again with the claim as it stands then, and ends what is refused.
    """

    identity: str
    expires: float | None
    scopes: tuple[Scope, ...] = ()

    def may_know(self, namespace: TrackNamespace, name: bytes | None = None) -> bool:
        """Whether who asked for a prefix may be told of this namespace, or track, under it.

        Of a track: whether it may be subscribed to.
        """
        right = Right.SUBSCRIBE_NAMESPACE if name is None else Right.SUBSCRIBE
        return any(scope.fits(right, namespace, name) for scope in self.scopes)


#: Where everything is open to all.
EVERYTHING: Final = Grant(ANYBODY, None, (Scope(tuple(map(int, Right))),))
#: For a session that shows nothing yet: each of its requests is judged by itself.
_NOTHING: Final = Grant(ANYBODY, None)


class _Holding(NamedTuple):
    """Something shown that counts: a token, or a certificate."""

    identity: str
    expires: float
    scopes: tuple[Scope, ...]


class Meter:
    """A bucket of verifications for one session, filled as time passes."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, limits: GateLimits) -> None:
        self._burst = self._left = float(limits.burst)
        self._per_second = limits.per_second
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """One verification; False when none is left."""
        gained = 0.0 if self._at is None else max(now - self._at, 0.0) * self._per_second
        self._at = now
        self._left = min(self._left + gained, self._burst)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Gatekeeper:
    """Grants what tokens of ``issuers`` for one of ``audiences`` allow, and what ``clients`` may.

    Without issuers and clients nothing is granted; ``open_to_all`` grants everything. ``wall`` is
    Unix time, ``counts`` what happened: verified, known, rejected, throttled, granted, denied.
    """

    def __init__(
        self,
        *,
        issuers: Issuers | None = None,
        audiences: Collection[str] = (),
        clients: Clients | None = None,
        wall: Callable[[], float],
        limits: GateLimits = GateLimits(),
        open_to_all: bool = False,
    ) -> None:
        if open_to_all and (issuers is not None or clients is not None):
            raise InvalidInput("open to all, and issuers or clients: choose one")
        if issuers is not None and not audiences:
            raise InvalidInput("no audience: say what tokens for this relay are called (aud)")
        self._issuers = issuers
        self._audiences = frozenset(audiences)
        self._clients = clients
        self._wall = wall
        self._limits = limits
        self.open_to_all = open_to_all
        self.counts: Counter[str] = Counter()
        self._good: OrderedDict[bytes, Claims] = OrderedDict()
        self._bad: OrderedDict[bytes, None] = OrderedDict()
        self._generation = 0 if issuers is None else issuers.generation

    def __repr__(self) -> str:
        return f"<Gatekeeper: {'open to all' if self.open_to_all else self._issuers}>"

    @property
    def generation(self) -> int:
        """Goes up when issuers change: what stands should be asked for again then."""
        return self._generation

    def guard(self, certificate: Callable[[], bytes | None] = lambda: None) -> Guard:
        """The judge of one session; ``certificate`` is its peer's (DER), once the session is up.

        The transport must have verified it.
        """
        return Guard(self, certificate, Meter(self._limits))

    def refresh(self) -> None:
        """Look whether issuers have changed; the relay does so now and then."""
        if self._issuers is not None:
            self._refresh(self._issuers, self._wall())

    def wall_time(self) -> float:
        """Unix time."""
        return self._wall()

    def grant(
        self,
        claim: Claim,
        wall_time: float,
        *,
        certificate: bytes | None = None,
        meter: Meter | None = None,
    ) -> Grant:
        """What is granted to ``claim``; raises RequestRefused.

        ``meter`` bounds verifications; without one there is no bound.
        """
        if self.open_to_all:
            return EVERYTHING
        try:
            granted = self._grant(claim, wall_time, certificate, meter)
        except RequestRefused as refused:
            self.counts["denied"] += 1
            _log.debug("%s is refused: %s", claim.action.name, refused)
            raise
        self.counts["granted"] += 1
        return granted

    # -- inside ----------------------------------------------------------------------------------

    def _grant(
        self, claim: Claim, wall_time: float, certificate: bytes | None, meter: Meter | None
    ) -> Grant:
        if claim.action is Action.SETUP and not claim.session_tokens:
            return _NOTHING
        holdings, failure = self._holdings(claim, wall_time, certificate, meter)
        chosen = []
        for right in needed(claim):
            fitting = [one for one in holdings if _fits(one, right, claim)]
            if not fitting:
                raise failure or RequestRefused(RequestCode.UNAUTHORIZED, DENIED)
            chosen.append(max(fitting, key=lambda holding: holding.expires))
        scopes = dict.fromkeys(scope for holding in chosen for scope in holding.scopes)
        expires = min(holding.expires for holding in chosen)
        return Grant(chosen[0].identity, expires, tuple(scopes))

    def _holdings(
        self, claim: Claim, wall_time: float, certificate: bytes | None, meter: Meter | None
    ) -> tuple[list[_Holding], RequestRefused | None]:
        """What of all that is shown counts, and why the rest does not."""
        found = list(self._certified(certificate, wall_time))
        shown = dict.fromkeys((*claim.tokens, *claim.session_tokens))
        ours = [token for token in shown if token.type == TOKEN_TYPE]
        failure: RequestRefused | None = None
        if self._issuers is None or len(ours) > self._limits.message_tokens:
            return found, failure
        self._refresh(self._issuers, wall_time)
        for token in ours:
            try:
                claims = self._claims(self._issuers, token, wall_time, meter)
                check(claims, self._audiences, wall_time)
            except TokenMisplaced:
                continue
            except TokenExpired:
                failure = RequestRefused(RequestCode.EXPIRED_AUTH_TOKEN, EXPIRED)
            except RequestRefused as refused:
                failure = failure or refused
            else:
                again = wall_time + (claims.reval or math.inf)
                expires = min(claims.ends, again)
                found.append(_Holding(claims.holder, expires, claims.scopes))
        return found, failure

    def _certified(self, certificate: bytes | None, wall_time: float) -> Iterator[_Holding]:
        known = None
        if certificate is not None and self._clients is not None:
            known = self._clients.find(certificate)
        if known is not None and wall_time < known.ends:
            yield _Holding(known.client.name, known.ends, known.client.scopes)

    def _refresh(self, issuers: Issuers, wall_time: float) -> None:
        issuers.refresh(wall_time)
        if issuers.generation != self._generation:
            self._generation = issuers.generation
            self._good.clear()
            self._bad.clear()

    def _claims(
        self, issuers: Issuers, token: Token, wall_time: float, meter: Meter | None
    ) -> Claims:
        """Of a token that is genuine; raises RequestRefused."""
        if len(token.value) > cose.TOKENS.max_octets:
            raise RequestRefused(RequestCode.MALFORMED_AUTH_TOKEN, NOT_ACCEPTED)
        digest = hashlib.sha256(token.value).digest()
        if digest in self._good:
            self._good.move_to_end(digest)
            self.counts["known"] += 1
            return self._good[digest]
        if digest in self._bad:
            self.counts["known"] += 1
            raise RequestRefused(RequestCode.MALFORMED_AUTH_TOKEN, NOT_ACCEPTED)
        if meter is not None and not meter.take(wall_time):
            self.counts["throttled"] += 1
            raise RequestRefused(
                RequestCode.EXCESSIVE_LOAD, "too many new tokens", retry_after=1000
            )
        try:
            claims = self._verify(issuers, token.value)
        except (cose.CoseRejected, TokenInvalid) as error:
            self.counts["rejected"] += 1
            _log.info("a token is not accepted: %s", error)
            _remember(self._bad, digest, None, self._limits.bad_tokens)
            raise RequestRefused(RequestCode.MALFORMED_AUTH_TOKEN, NOT_ACCEPTED) from None
        self.counts["verified"] += 1
        _remember(self._good, digest, claims, self._limits.good_tokens)
        return claims

    @staticmethod
    def _verify(issuers: Issuers, octets: bytes) -> Claims:
        signed = cose.verify(octets, issuers.keys, cose.TOKENS)
        claims = decode(signed.payload)
        if claims.issuer != issuers.issuer_of(signed.kid):
            raise TokenInvalid(f"token: key {signed.kid.hex()} is not one of its issuer's")
        return claims


class Guard:
    """The judge of one session, a ``moqt.session.tokens.TokenVerifier``; remembers its SETUP."""

    def __init__(
        self, gatekeeper: Gatekeeper, certificate: Callable[[], bytes | None], meter: Meter
    ) -> None:
        self._gatekeeper = gatekeeper
        self._certificate = certificate
        self._meter = meter
        self._session_tokens: tuple[Token, ...] = ()

    def __call__(self, claim: Claim, now: float) -> RequestRefused | None:
        """See TokenVerifier; expiry is by Unix time, whatever ``now`` is."""
        self._session_tokens = claim.session_tokens
        try:
            self.grant(claim)
        except RequestRefused as refused:
            return refused
        return None

    def grant(self, claim: Claim) -> Grant:
        """What a claim is granted now; raises RequestRefused. For standing requests, ask again.

        A claim without the tokens of SETUP is judged with them.
        """
        shown = claim._replace(session_tokens=claim.session_tokens or self._session_tokens)
        gatekeeper = self._gatekeeper
        return gatekeeper.grant(
            shown, gatekeeper.wall_time(), certificate=self._certificate(), meter=self._meter
        )


def needed(claim: Claim) -> tuple[Right, ...]:
    """All that a claim needs to be allowed."""
    rights = NEEDS[claim.action]
    if claim.fill:
        rights = (*rights, FILL)
    return (*rights, UPDATE) if claim.update else rights


def _fits(holding: _Holding, right: Right, claim: Claim) -> bool:
    return any(scope.fits(right, claim.namespace, claim.name) for scope in holding.scopes)


def _remember(cache: OrderedDict[bytes, _T], digest: bytes, value: _T, limit: int) -> None:
    """Add to a cache that forgets what was used least recently."""
    cache[digest] = value
    while len(cache) > limit:
        cache.popitem(last=False)
