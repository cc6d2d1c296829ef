"""What a token allows: the scopes of the moqt claim (draft-ietf-moq-c4m-01), and matching them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcs.errors import InvalidInput
from kvcs.identity import SCOPE_ID_LENGTH
from kvcs.names import PROTOCOL

if TYPE_CHECKING:
    from moqt.model import TrackNamespace


class Action(IntEnum):
    """What may be allowed, by the numbers of the claim."""

    CLIENT_SETUP = 0
    SERVER_SETUP = 1
    PUBLISH_NAMESPACE = 2
    SUBSCRIBE_NAMESPACE = 3
    SUBSCRIBE = 4
    REQUEST_UPDATE = 5
    PUBLISH = 6
    FETCH = 7
    TRACK_STATUS = 8


class How(IntEnum):
    """How octets are compared; all but EXACT by the numbers of the claim."""

    EXACT = 0
    PREFIX = 1
    SUFFIX = 2


class Match(NamedTuple):
    """Compares one field, octet by octet: never several, never as text."""

    value: bytes
    how: How = How.EXACT

    def fits(self, field: bytes) -> bool:
        """True when ``field`` is, begins with or ends with the value."""
        if self.how is How.PREFIX:
            return field.startswith(self.value)
        if self.how is How.SUFFIX:
            return field.endswith(self.value)
        return field == self.value

    def to_claim(self) -> object:
        """As it stands in the claim."""
        return self.value if self.how is How.EXACT else [int(self.how), self.value]


class Scope(NamedTuple):
    """Some actions on some names; match k is for field k of the namespace.

    ``longer``: namespaces with more fields than matches fit too. ``track`` None is any track.
    """

    actions: tuple[int, ...]
    namespace: tuple[Match, ...] = ()
    longer: bool = True
    track: Match | None = None

    def fits(self, action: Action, namespace: TrackNamespace, track: bytes | None) -> bool:
        """True when this allows ``action``; ``track`` is None where no track is named.

        A prefix or namespace with fewer fields than matches never fits. Where no track is named,
        a scope with a track match does not fit: nobody says what it would mean.
        """
        few, many = len(self.namespace), len(namespace)
        if action not in self.actions or many < few or (many > few and not self.longer):
            return False
        if self.track is not None and (track is None or not self.track.fits(track)):
            return False
        return all(
            match.fits(field) for match, field in zip(self.namespace, namespace, strict=False)
        )

    def to_claim(self) -> list[object]:
        """As it stands in the claim, in its shortest form."""
        fields: list[object] = [match.to_claim() for match in self.namespace]
        if not self.longer:
            fields.append(None)
        claim: list[object] = [list(self.actions)]
        if fields:
            claim.append(fields)
        if self.track is not None:
            claim.append(self.track.to_claim())
        return claim


#: A publisher announces, publishes, and renews; a reader looks, takes, asks, and renews.
PUBLISHES: Final = (Action.PUBLISH_NAMESPACE, Action.REQUEST_UPDATE, Action.PUBLISH)
READS: Final = (
    Action.SUBSCRIBE_NAMESPACE,
    Action.SUBSCRIBE,
    Action.REQUEST_UPDATE,
    Action.FETCH,
    Action.TRACK_STATUS,
)


def kvcs_scopes(scope_id: bytes, *, publish: bool, read: bool) -> tuple[Scope, ...]:
    """All publications of one KVCS scope; raises InvalidInput for an id that is not 16 octets."""
    if len(scope_id) != SCOPE_ID_LENGTH:
        raise InvalidInput(
            f"scope id of {len(scope_id)} octets: exactly {SCOPE_ID_LENGTH} raw octets are needed"
        )
    fields = (Match(PROTOCOL), Match(scope_id))
    granted = ((PUBLISHES, publish), (READS, read))
    return tuple(Scope(tuple(map(int, actions)), fields) for actions, given in granted if given)


def read_scopes(claim: object) -> tuple[Scope, ...]:
    """The scopes of a decoded claim, every one well-formed; raises ValueError."""
    return tuple(map(_read_scope, _filled_list(claim, "the moqt claim")))


def _read_scope(claim: object) -> Scope:
    actions, *rest = _filled_list(claim, "a scope")
    numbers = _filled_list(actions, "the actions of a scope")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("an action is a number, 0 or more")
    fields: list[object] | None = None
    if rest and isinstance(rest[0], list) and not _is_partial(rest[0]):
        fields = _filled_list(rest.pop(0), "the namespace of a scope")
    track = _read_match(rest.pop(0)) if rest else None
    if rest:
        raise ValueError("a scope has actions, namespace and track, in this order, and no more")
    longer = fields is None or fields[-1] is not None
    matches = (fields or []) if longer else (fields or [])[:-1]
    numbers_only = tuple(number for number in numbers if isinstance(number, int))
    return Scope(numbers_only, tuple(map(_read_match, matches)), longer, track)


def _is_partial(value: list[object]) -> bool:
    """A prefix or suffix match, rather than a list of matches."""
    return len(value) == 2 and type(value[0]) is int


def _read_match(claim: object) -> Match:
    if type(claim) is bytes:
        return Match(claim)
    if isinstance(claim, list) and _is_partial(claim):
        how, value = claim
        if how in (How.PREFIX, How.SUFFIX) and type(value) is bytes:
            return Match(value, How(how))
    raise ValueError("a match is octets, or [1, octets] for a prefix, [2, octets] for a suffix")


def _filled_list(value: object, what: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{what} must be a list that is not empty")
    return value
