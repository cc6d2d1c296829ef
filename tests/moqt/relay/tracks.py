"""What the tests of archive, cache and spill make: objects, archives, a clock set by hand."""

from __future__ import annotations

from collections.abc import Callable

from moqt.model import FullTrackName, ObjectHead, ObjectStatus, StoredObject
from moqt.relay.archive import Archive
from moqt.relay.cache import Cache
from moqt.relay.spill import Spill

NAME = FullTrackName((b"site", b"cache"), b"layer")
AMPLE = 1 << 30
#: MAX_CACHE_DURATION of 16 seconds (type 0x04, 16,000 ms).
SIXTEEN_SECONDS = bytes.fromhex("04be80")


class Never:
    """A call that these tests never let run."""

    def cancel(self) -> None:
        """Nothing to do."""


class SetClock:
    """Shows what it was set to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        """Seconds."""
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Never:
        """Not run."""
        return Never()


def archive(
    budget: int = AMPLE, *, cache: Cache | None = None, spill: Spill | None = None
) -> Archive:
    """An empty archive with a clock of its own."""
    return Archive(cache or Cache(budget, spill), NAME, SetClock())


def item(
    group: int,
    number: int,
    payload: bytes = b"octets",
    *,
    subgroup: int | None = 0,
    priority: int = 128,
    status: ObjectStatus = ObjectStatus.NORMAL,
    properties: bytes = b"",
) -> StoredObject:
    """A whole object in one piece."""
    if status is not ObjectStatus.NORMAL:
        payload = b""
    head = ObjectHead(group, subgroup, number, priority, len(payload), status, properties)
    return StoredObject(head, (payload,) if payload else ())
