"""What the roles of one session share: the transport, the ids, the clock, the checks."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

from moqt.codec.profile import LATEST, Profile
from moqt.codec.properties import SetupOptions
from moqt.errors import Misuse, ProtocolViolation, RequestCode, RequestRefused, StreamCode
from moqt.session.filters import RangeFilters
from moqt.session.requests import RequestIds
from moqt.session.streams import IncomingStreams
from transport.api import SendOrder, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.errors import SessionClosed
    from moqt.model import TrackNamespace
    from moqt.session.config import SessionConfig
    from moqt.session.ports import RequestHandler
    from transport.api import BytesLike, TransportSession

#: draft-22 §9.2: longer is a violation on receipt.
MAX_GOAWAY_URI: Final = 8192


class StreamOwner(Protocol):
    """Whatever is responsible for one stream handle."""

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets of the peer's direction."""
        ...

    def reset(self, code: int) -> None:
        """The peer reset its direction."""
        ...

    def stop(self, code: int) -> None:
        """The peer stopped ours."""
        ...

    def sent(self) -> None:
        """Our FIN has been handed down."""
        ...

    def closed(self, error: SessionClosed) -> None:
        """The session is over."""
        ...


class Context:
    """Shared by the roles; owns the map of streams and the timers, decides nothing by itself."""

    def __init__(
        self,
        transport: TransportSession,
        handler: RequestHandler,
        config: SessionConfig,
        profile: Profile = LATEST,
    ) -> None:
        self.transport = transport
        self.handler = handler
        self.config = config
        self.profile = profile
        self.now = 0.0
        self.established = False
        self.peer_options = SetupOptions()
        self.ids = RequestIds(is_client=transport.is_client, max_holes=config.max_id_holes)
        self.owners: dict[int, StreamOwner] = {}
        self.streams = IncomingStreams(self)
        #: Prefixes of the peer's SUBSCRIBE_NAMESPACE requests in force, for the overlap rule.
        self.interests: set[TrackNamespace] = set()
        self._aliases = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._held: list[tuple[int, StreamOwner, bytes, bool]] = []
        self._held_octets = 0

    # -- streams ---------------------------------------------------------------------------------

    def open_request(self) -> int:
        """A new bidirectional stream for a request of ours."""
        return self.transport.open(SendOrder(Tier.REQUEST), unidirectional=False)

    def adopt(self, stream: int, owner: StreamOwner) -> None:
        """From now on ``owner`` hears of ``stream``."""
        self.owners[stream] = owner

    def forget(self, stream: int) -> None:
        """Nobody needs to hear of ``stream`` any more."""
        self.owners.pop(stream, None)

    def hold(self, stream: int, owner: StreamOwner, view: BytesLike, fin: bool) -> None:
        """Keep what came before the peer's SETUP, within limits (draft-22 §6.3)."""
        self._held_octets += len(view)
        self._held.append((stream, owner, bytes(view), fin))
        config = self.config
        if (
            self._held_octets > config.early_octets
            or len({s for s, *_ in self._held}) > config.early_streams
        ):
            self._held_octets -= len(view)
            self._held.pop()
            self.forget(stream)
            self.transport.stop(stream, StreamCode.EXCESSIVE_LOAD)
            self.transport.reset(stream, StreamCode.EXCESSIVE_LOAD)

    def release_held(self) -> None:
        """The peer's SETUP is in: deliver what was held, in order."""
        held, self._held = self._held, []
        self._held_octets = 0
        for stream, owner, view, fin in held:
            if self.owners.get(stream) is owner:
                owner.data(view, fin)

    def allocate_alias(self) -> int:
        """A Track Alias of ours, never used twice in a session (draft-22 §3.1.3)."""
        self._aliases += 1
        return self._aliases

    # -- time ------------------------------------------------------------------------------------

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run ``callback`` at the first tick not before ``when``; it checks itself if it still matters."""
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, callback))

    def next_deadline(self) -> float | None:
        """When the next tick is due."""
        return self._timers[0][0] if self._timers else None

    def tick(self) -> None:
        """Run what is due at ``now``."""
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    # -- checks ----------------------------------------------------------------------------------

    def check_parameters(self, parameters: Parameters) -> RequestRefused | None:
        """Why a request with these parameters cannot be served, if it cannot (draft-22 §3.3.2)."""
        for scope in (parameters, parameters.fill):
            if scope is None:
                continue
            if scope.invalid_filter is not None:
                return RequestRefused(RequestCode.INVALID_FILTER, scope.invalid_filter)
            refusal = self.check_spans(RangeFilters(scope.range_filters))
            if refusal is not None:
                return refusal
        return None

    def check_spans(self, filters: RangeFilters) -> RequestRefused | None:
        """MAX_FILTER_RANGES of ours (draft-22 §9.1.6)."""
        limit = self.config.max_filter_ranges
        if filters.spans > limit:
            return RequestRefused(
                RequestCode.INVALID_FILTER, f"{filters.spans} ranges, at most {limit} are taken"
            )
        return None

    def check_goaway_uri(self, uri: str) -> None:
        """What we may send (draft-22 §9.2)."""
        if self.transport.is_client and uri:
            raise Misuse("a client's GOAWAY carries no URI (§9.2)")
        if len(uri.encode()) > MAX_GOAWAY_URI:
            raise Misuse(f"a GOAWAY URI has at most {MAX_GOAWAY_URI} octets")

    def receive_goaway_uri(self, uri: str) -> None:
        """What the peer may send."""
        if not self.transport.is_client and uri:
            raise ProtocolViolation("GOAWAY of a client carries a URI")
