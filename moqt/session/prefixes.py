"""Requests for a prefix, and the rule that two of a kind do not overlap (draft-22 §3.6, §4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.errors import Misuse, RequestCode, RequestRefused
from moqt.session.checks import reserved
from moqt.session.state import Request
from moqt.session.updatable import LastingRequest, UpdatableRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec import messages as m
    from moqt.model import TrackNamespace
    from moqt.session.context import Context


def under(namespace: TrackNamespace, prefix: TrackNamespace) -> bool:
    """True when ``namespace`` begins with the fields of ``prefix``."""
    return namespace[: len(prefix)] == prefix


def check_own_prefix(request: UpdatableRequest, prefix: TrackNamespace | None) -> None:
    """Misuse for a prefix that overlaps another request of its kind in the session (§9.5.2)."""
    for other in request.session.owners.values():
        if prefix is None or other is request or type(other) is not type(request):
            continue
        theirs: TrackNamespace = getattr(other, "prefix", ())
        if other.state is not Request.CLOSED and (under(prefix, theirs) or under(theirs, prefix)):
            raise Misuse(f"prefix {prefix} overlaps {theirs}, which another request has")


class PrefixRequest(LastingRequest):
    """SUBSCRIBE_NAMESPACE or SUBSCRIBE_TRACKS of the peer; in force until ``on_end``."""

    prefix: TrackNamespace

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        #: Called when an update has changed what is asked for: tell what is new.
        self.on_change: Callable[[], None] | None = None
        self._in_force = False

    @property
    def space(self) -> set[TrackNamespace]:
        """Prefixes of this kind in force in the session."""
        raise NotImplementedError

    def begin(self, message: m.SubscribeNamespace | m.SubscribeTracks) -> bool:
        """Take it in; False when it overlaps and is refused."""
        self.prefix = message.prefix
        return not self._overlaps()

    def accept(self) -> None:
        """REQUEST_OK; report what is known at once (draft-22 §3.6, §4.2)."""
        if self.state is Request.PENDING and not self._overlaps():
            self.state = Request.ESTABLISHED
            self._in_force = True
            self.space.add(self.prefix)
            self.grant()
            self.answer_updates()

    def matches(self, namespace: TrackNamespace) -> bool:
        """True when ``namespace`` lies under the prefix."""
        return under(namespace, self.prefix)

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """A new prefix, unless it overlaps another one (draft-22 §9.5.2)."""
        wanted = message.parameters.track_namespace_prefix
        if refusal is None and wanted is not None:
            refusal = self._refusal(wanted)
        if refusal is None and wanted is not None and wanted != self.prefix:
            self.leave(wanted)
            self.space.discard(self.prefix)
            self.space.add(wanted)
            self.prefix = wanted
        super().updated(message, refusal)
        if refusal is None and self.on_change is not None:
            self.on_change()

    def leave(self, wanted: TrackNamespace) -> None:
        """The prefix is about to become ``wanted``."""

    def ended(self) -> None:
        """Free the prefix and tell the application."""
        if self._in_force:
            self._in_force = False
            self.space.discard(self.prefix)
        super().ended()

    def _refusal(self, wanted: TrackNamespace) -> RequestRefused | None:
        if (refusal := reserved(wanted)) is not None:
            return refusal
        own = self.prefix if self._in_force else None
        for other in self.space:
            shorter = min(len(other), len(wanted))
            if other != own and other[:shorter] == wanted[:shorter]:
                return RequestRefused(
                    RequestCode.PREFIX_OVERLAP, "overlaps a request of this kind in this session"
                )
        return None

    def _overlaps(self) -> bool:
        refusal = self._refusal(self.prefix)
        if refusal is not None:
            self.refuse(refusal.code, refusal.reason)
        return refusal is not None
