"""Who wants to hear of what lies under which prefix, and on whose behalf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from moqt.relay.namespaces import ByNamespace
from moqt.session.prefixes import PrefixRequest

if TYPE_CHECKING:
    from moqt.model import TrackNamespace
    from moqt.relay.admission import Admission

_R = TypeVar("_R", bound=PrefixRequest)


class _Standing(NamedTuple):
    prefix: TrackNamespace
    identity: str
    admission: Admission


class Interests(Generic[_R]):
    """Requests of one kind, by prefix and by identity."""

    def __init__(self) -> None:
        self._standing: dict[_R, _Standing] = {}
        self._by_prefix: ByNamespace[_R] = ByNamespace()
        #: Prefixes by the identity that wants them, the oldest first; how many requests for each.
        self.wanted: dict[str, dict[TrackNamespace, int]] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def add(self, request: _R, admission: Admission) -> None:
        """It stands from now on, with the prefix that it has."""
        prefix, identity = request.prefix, admission.identity_of(request)
        self._standing[request] = _Standing(prefix, identity, admission)
        self._by_prefix.add(prefix, request)
        prefixes = self.wanted.setdefault(identity, {})
        prefixes[prefix] = prefixes.get(prefix, 0) + 1

    def remove(self, request: _R) -> Admission | None:
        """It stands no longer; who admitted it, None when it did not stand."""
        had = self._standing.pop(request, None)
        if had is None:
            return None
        self._by_prefix.discard(had.prefix, request)
        prefixes = self.wanted[had.identity]
        prefixes[had.prefix] -= 1
        if not prefixes[had.prefix]:
            del prefixes[had.prefix]
            if not prefixes:
                del self.wanted[had.identity]
        return had.admission

    def prefix(self, request: _R) -> TrackNamespace | None:
        """The prefix that it was added with."""
        had = self._standing.get(request)
        return None if had is None else had.prefix

    def admission(self, request: _R) -> Admission:
        """Who admitted it."""
        return self._standing[request].admission

    def prefixes(self) -> list[TrackNamespace]:
        """The prefixes of all of them."""
        return [prefix for prefixes in self.wanted.values() for prefix in prefixes]

    def above(self, namespace: TrackNamespace) -> list[_R]:
        """Those that ``namespace`` lies under."""
        return self._by_prefix.above(namespace)
