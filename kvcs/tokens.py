"""Tokens: the claims of a CWT with the moqt claim, signed by an issuer; time is an argument.

What is issued and read here is draft-ietf-moq-c4m-01 in COSE_Sign1, its strict profile alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcs import cose, strictcbor
from kvcs.errors import InvalidInput, KvcsError
from kvcs.scopes import read_scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kvcs.scopes import Scope

#: Token Type of a Common Access Token (draft-ietf-moq-c4m-01).
TOKEN_TYPE: Final = 0x01
#: Claims; those of moqt are not assigned yet: these numbers are the test vectors'.
ISS, SUB, AUD, EXP, NBF, IAT, CTI = 1, 2, 3, 4, 5, 6, 7
MOQT, MOQT_REVAL = 327, 328
#: Clocks of issuer and relay may differ by so many seconds.
SKEW: Final = 30.0
#: Longest interval of moqt-reval that is meant seriously; shortest that we check as often.
MAX_REVAL: Final = 86400.0
MIN_REVAL: Final = 1.0
#: Times lie between 1970 and the year 9999: what is later is no time that anybody means.
MAX_TIME: Final = 253_402_300_799.0
#: A name in a claim is for people and counters.
MAX_NAME: Final = 256


class TokenInvalid(KvcsError):
    """A token is not one that we issue, or not for us."""


class TokenExpired(TokenInvalid):
    """It was good once."""


class TokenMisplaced(TokenInvalid):
    """It is genuine, but not for this relay, or not for this time."""


class Claims(NamedTuple):
    """What a token says. Times are Unix time in seconds; ``reval`` an interval, None for never."""

    issuer: str
    audience: tuple[str, ...]
    expires: float
    scopes: tuple[Scope, ...]
    subject: str | None = None
    not_before: float | None = None
    issued_at: float | None = None
    token_id: bytes | None = None
    reval: float | None = None

    @property
    def ends(self) -> float:
        """When it is of no use any more, clocks that differ allowed for."""
        return self.expires + SKEW

    @property
    def holder(self) -> str:
        """Who shows it, as far as it says: its subject, its id, or its issuer alone."""
        told = self.subject or (self.token_id.hex() if self.token_id else "")
        return f"{self.issuer}/{told}" if told else self.issuer


def encode(claims: Claims) -> bytes:
    """The claims map, canonical; raises InvalidInput for what ``decode`` would refuse."""
    audience = claims.audience[0] if len(claims.audience) == 1 else list(claims.audience)
    found: dict[int, object] = {
        ISS: claims.issuer,
        SUB: claims.subject,
        AUD: audience,
        EXP: claims.expires,
        NBF: claims.not_before,
        IAT: claims.issued_at,
        CTI: claims.token_id,
        MOQT: [scope.to_claim() for scope in claims.scopes],
        MOQT_REVAL: claims.reval,
    }
    octets = strictcbor.dumps(
        {key: _shortest(value) for key, value in found.items() if value is not None}
    )
    try:
        decode(octets)
    except TokenInvalid as error:
        raise InvalidInput(str(error)) from None
    return octets


def decode(octets: bytes) -> Claims:
    """The claims in a token's payload, every one well-formed and known; raises TokenInvalid."""
    try:
        found = strictcbor.loads(octets, max_octets=cose.TOKENS.max_octets, canonical=True)
        if not isinstance(found, dict):
            raise ValueError("the claims must be a map")
        return _claims(found)
    except ValueError as error:
        raise TokenInvalid(f"token: {error}") from None


def issue(claims: Claims, key: cose.PrivateKey) -> bytes:
    """A signed token; raises InvalidInput for claims that nobody would take, or too many."""
    return cose.sign(encode(claims), key, cose.TOKENS)


def check(claims: Claims, audiences: Collection[str], now: float) -> None:
    """Raises TokenExpired or TokenMisplaced unless it is for one of ``audiences``, and for now."""
    if not set(claims.audience) & set(audiences):
        raise TokenMisplaced("token: it is for another audience")
    if now >= claims.ends:
        raise TokenExpired("token: it has expired")
    if claims.not_before is not None and now < claims.not_before - SKEW:
        raise TokenMisplaced("token: it is for later")


def _claims(found: dict[object, object]) -> Claims:
    unknown = [key for key in found if type(key) is not int or key not in _READERS]
    if unknown:
        raise ValueError(f"claim {str(unknown[0])[:32]} is not one that is enforced here")
    for key, name in _NEEDED.items():
        if key not in found:
            raise ValueError(f"it has no {name}")
    values = {name: read(found[key]) for key, (name, read) in _READERS.items() if key in found}
    return Claims(**values)  # type: ignore[arg-type]  # each reader makes the type of its field


def read_name(value: object) -> str:
    """The name of an issuer, audience or subject; raises ValueError."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise ValueError(f"a name is text of 1 to {MAX_NAME} printable characters")
    return value


def _audience(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(map(read_name, value))
    return (read_name(value),)


def _number(value: object) -> float:
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise ValueError("a time is a number of seconds")
    if not math.isfinite(value):
        raise ValueError("a time is a finite number of seconds")
    return float(value)


def _time(value: object) -> float:
    seconds = _number(value)
    if not 0 <= seconds <= MAX_TIME:
        raise ValueError("a time lies between 1970 and 9999")
    return seconds


def _reval(value: object) -> float | None:
    seconds = _number(value)
    if seconds == 0:
        return None
    if not MIN_REVAL <= seconds <= MAX_REVAL:
        raise ValueError(
            f"moqt-reval of {seconds:g} s: {MIN_REVAL:g} to {MAX_REVAL:g} are kept to, 0 is never"
        )
    return seconds


def _token_id(value: object) -> bytes:
    if type(value) is not bytes or not value:
        raise ValueError("the id of a token (cti) is octets")
    return value


#: Field and reader of each claim.
_READERS: Final[dict[int, tuple[str, Callable[[object], object]]]] = {
    ISS: ("issuer", read_name),
    SUB: ("subject", read_name),
    AUD: ("audience", _audience),
    EXP: ("expires", _time),
    NBF: ("not_before", _time),
    IAT: ("issued_at", _time),
    CTI: ("token_id", _token_id),
    MOQT: ("scopes", read_scopes),
    MOQT_REVAL: ("reval", _reval),
}
_NEEDED: Final = {ISS: "issuer (iss)", AUD: "audience (aud)", EXP: "end (exp)", MOQT: "moqt claim"}


def _shortest(value: object) -> object:
    """Whole seconds as an integer: they are shorter, and other readers expect them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
