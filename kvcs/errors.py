"""What can go wrong in KVCS, by whose fault and what to do about it."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.errors import MalformedTrack, RequestCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcs.names import TrackName
    from moqt.model import Location, LocationRange


class KvcsError(Exception):
    """Base of everything this package raises."""


class InvalidInput(KvcsError, ValueError):
    """A file, tensor, prompt, key or name of our side breaks a rule; the text says the fix."""


class ManifestTooLarge(InvalidInput):
    """The manifest would pass the 64 MiB cap; the text names the block size that fits."""


class OutputFailed(KvcsError):
    """A result could not be written; what was there before is untouched."""


class PublicationRefused(KvcsError):
    """Whom we publish to lets us not: nobody can get it there."""


class Difference(NamedTuple):
    """One member in which two Compatibility Descriptors differ; None stands for absent."""

    member: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.member}: {self.ours!r} here, {self.theirs!r} there"


class IdentityMismatch(KvcsError):
    """A publication is not what its namespace says, or not what was asked for."""

    def __init__(self, message: str, differences: tuple[Difference, ...] = ()) -> None:
        detail = "; ".join(str(difference) for difference in differences)
        super().__init__(f"{message}: {detail}" if detail else message)
        self.differences = differences


class ManifestRejected(KvcsError):
    """A received manifest breaks a rule: the publication must not be used."""


class RejectReason(StrEnum):
    """Why a received object was discarded and counts as missing (kvcs.md §3)."""

    MAGIC = auto()
    VERSION = auto()
    LAYER = auto()
    BLOCK = auto()
    LENGTH = auto()
    COMPONENT = auto()
    CODEC = auto()
    TOKEN_START = auto()
    TOKEN_COUNT = auto()
    DECODED_LENGTH = auto()
    DIGEST = auto()
    MANIFEST_DIGEST = auto()


class ObjectRejected(KvcsError):
    """A received object failed the check named by ``reason``."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"object rejected ({reason}): {detail}")
        self.reason = reason


class UnknownPublication(KvcsError):
    """Nobody announces, lists or serves what was asked for."""


#: What says most of several failures: nothing else is worth a try before that is cured.
_TELLING: Final = tuple(
    code.name
    for code in (
        RequestCode.UNAUTHORIZED,
        RequestCode.EXPIRED_AUTH_TOKEN,
        RequestCode.MALFORMED_AUTH_TOKEN,
    )
)


def most_telling_first(causes: Iterable[str]) -> tuple[str, ...]:
    """The same, those first that say who must do something; for the rest in their order."""
    return tuple(sorted(causes, key=lambda cause: not any(name in cause for name in _TELLING)))


class IncompletePublication(KvcsError):
    """Objects are missing and nobody could supply them; ``missing`` says which, per track.

    ``causes`` are the setbacks that led to it, each kind once, the most telling first; ``summary``
    is the text without.
    """

    def __init__(
        self,
        summary: str,
        missing: Mapping[TrackName, tuple[LocationRange, ...]] | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        self.summary = summary
        self.causes = most_telling_first(causes)
        super().__init__("; ".join((summary, *self.causes)))
        self.missing = dict(missing or {})


class PublicationConflict(KvcsError, MalformedTrack):
    """Two whole, verified objects with different octets at one Location (kvcs.md §2).

    Being a ``MalformedTrack`` it makes the MOQT session cancel the request and nothing else.
    """

    def __init__(self, track: TrackName, location: Location) -> None:
        super().__init__(
            f"track {track}: two different payloads at group {location.group},"
            f" object {location.object}"
        )
        self.track = track
        self.location = location
