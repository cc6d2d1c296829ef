"""What one session may ask of the relay, and how fast."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moqt.relay.context import RelayContext
    from moqt.session.requests import IncomingRequest


class Admission:
    """Counts what a session has open."""

    def __init__(self, context: RelayContext, identity: str = "") -> None:
        self._context = context
        self.identity = identity
        self.open: Counter[str] = Counter()

    def request(self, kind: str, request: IncomingRequest) -> None:
        """Admit one more, or raise RequestRefused(EXCESSIVE_LOAD)."""
        self.open[kind] += 1
        request.when_ended(lambda: self._over(kind))

    def close(self) -> None:
        """The session is over."""
        self.open.clear()

    def _over(self, kind: str) -> None:
        self.open[kind] -= 1
