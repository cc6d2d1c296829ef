"""What peers may ask of a relay: how much at once, how fast, and for how long it is granted."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from moqt.errors import RequestCode, RequestRefused, StreamCode
from moqt.relay.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import TrackNamespace
    from moqt.relay.clock import Planned
    from moqt.relay.context import RelayContext
    from moqt.session.answering import IncomingRequest
    from moqt.session.publishing import OutgoingPublish
    from moqt.session.tokens import Claim

    Judged: TypeAlias = IncomingRequest | OutgoingPublish


class Kind(NamedTuple):
    """A kind of request: how many one session, and all sessions of one identity, may have open."""

    name: str
    session: int
    identity: int


#: A consumer follows two tracks a segment; a rack of them behind one identity some thousands.
SUBSCRIPTIONS = Kind("subscriptions", 2048, 16_384)
#: Each has a stream of its own, and reads from the cache.
FETCHES = Kind("fetches", 512, 4096)
#: One a publication; the relay keeps each until it is withdrawn.
NAMESPACES = Kind("namespaces", 2048, 8192)
#: Each is compared with every namespace or track that comes.
INTERESTS = Kind("interests", 256, 2048)
#: One a track that is pushed here.
PUBLISHES = Kind("publishes", 2048, 8192)
KINDS = (SUBSCRIPTIONS, FETCHES, NAMESPACES, INTERESTS, PUBLISHES)


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How fast; a refused peer is told when to try again (EXCESSIVE_LOAD)."""

    #: Requests a second of one session, and how many may come at once: rapid subscribe and cancel
    #: costs a relay more than it costs the peer.
    session_rate: float = 200.0
    session_burst: float = 2000.0
    #: The same for all sessions of one identity.
    identity_rate: float = 1000.0
    identity_burst: float = 8000.0
    #: Octets of payload a second that one identity may draw; 0 is no limit. What it draws beyond
    #: ten seconds of that delays its next request.
    egress: float = 0.0
    #: Fields that a prefix to be told about must have: one field less and it names every scope.
    prefix_fields: int = 0
    #: Identities remembered; of those without a session the oldest are forgotten first.
    identities: int = 65_536


class Permission(Protocol):
    """What a judge grants."""

    @property
    def identity(self) -> str:
        """Who asks; empty when it is known by its address alone."""
        ...

    @property
    def expires(self) -> float | None:
        """Unix time until which it holds; None for ever."""
        ...

    def may_know(self, namespace: TrackNamespace, name: bytes | None = None) -> bool:
        """May who asked for a prefix be told of this namespace, or offered this track?"""
        ...


@runtime_checkable
class Judge(Protocol):
    """Grants what a session asks for, now and whenever it is asked again."""

    def grant(self, claim: Claim) -> Permission:
        """Raises RequestRefused."""
        ...


class _Identity:
    """What all sessions of one identity have open and have used."""

    __slots__ = ("egress", "open", "requests")

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self.open: Counter[str] = Counter()
        self.requests = Bucket(limits.identity_rate, limits.identity_burst, now)
        self.egress = Bucket(limits.egress or 1.0, 10 * limits.egress, now)


class Gate:
    """Identities of one relay and what they have open; makes the Admission of each session."""

    def __init__(
        self,
        context: RelayContext,
        limits: AdmissionLimits | None = None,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """``wall`` is Unix time, for what is granted until then; without it nothing ends."""
        self.context = context
        self.limits = limits or AdmissionLimits()
        self.wall = wall
        self._identities: OrderedDict[str, _Identity] = OrderedDict()

    def __len__(self) -> int:
        """Identities known."""
        return len(self._identities)

    def admission(self, address: Callable[[], str], judge: Judge | None = None) -> Admission:
        """For one session; ``address`` names a peer that no judge knows by name."""
        return Admission(self, address, judge)

    def identity(self, name: str) -> _Identity:
        """Known, or new."""
        found = self._identities.get(name)
        if found is None:
            if len(self._identities) >= self.limits.identities:
                self._forget_one()
            found = self._identities[name] = _Identity(self.limits, self.context.clock.time())
        self._identities.move_to_end(name)
        return found

    def _forget_one(self) -> None:
        idle = next((one for one, known in self._identities.items() if not known.open.total()), "")
        self._identities.pop(idle, None)


class Admission:
    """One session: counts what it has open and ends what is no longer granted."""

    def __init__(self, gate: Gate, address: Callable[[], str], judge: Judge | None) -> None:
        self._gate = gate
        self._address = address
        self._judge = judge
        self._context = gate.context
        self.open: Counter[str] = Counter()
        limits = gate.limits
        now = self._context.clock.time()
        self._requests = Bucket(limits.session_rate, limits.session_burst, now)
        self._sent = 0
        self._permissions: dict[Judged, Permission] = {}
        self._timers: dict[Judged, Planned] = {}

    def request(self, kind: Kind, request: IncomingRequest) -> None:
        """Admit one more; RequestRefused when it is too much, too fast, or not granted."""
        permission = self._granted(request)
        name = (permission is not None and permission.identity) or self._address()
        identity = self._gate.identity(name)
        self._check_rate(identity, request)
        if self.open[kind.name] >= kind.session or identity.open[kind.name] >= kind.identity:
            raise self._too_much(f"too many {kind.name} are open")
        self.open[kind.name] += 1
        identity.open[kind.name] += 1
        request.when_ended(lambda: self._over(kind, identity, request))
        if permission is not None:
            self._stands(request, permission)

    def offered(self, request: OutgoingPublish) -> None:
        """A subscription that SUBSCRIBE_TRACKS has brought: it ends as one asked for would."""
        try:
            permission = self._granted(request)
        except RequestRefused:
            request.revoke(StreamCode.EXPIRED_AUTH_TOKEN)
            return
        if permission is not None and request.active:
            request.when_ended(lambda: self._forget(request))
            self._stands(request, permission)

    def may_know(
        self, request: IncomingRequest, namespace: TrackNamespace, name: bytes | None = None
    ) -> bool:
        """May who asked for a prefix by ``request`` be told of this namespace or track?"""
        permission = self._permissions.get(request)
        return permission is None or permission.may_know(namespace, name)

    def identity_of(self, request: Judged) -> str:
        """On whose behalf a request stands."""
        permission = self._permissions.get(request)
        return self._address() if permission is None else permission.identity

    def check_prefix(self, prefix: TrackNamespace) -> None:
        """RequestRefused for a prefix that names too much."""
        least = self._gate.limits.prefix_fields
        if len(prefix) < least:
            raise RequestRefused(
                RequestCode.NAMESPACE_TOO_LARGE, f"give a prefix of at least {least} fields"
            )

    def close(self) -> None:
        """The session is over; its requests have ended one by one."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._permissions.clear()

    def review(self) -> None:
        """Ask again for everything that stands: what is granted may have changed."""
        for request in tuple(self._permissions):
            self._again(request)

    # -- inside ----------------------------------------------------------------------------------

    def _granted(self, request: Judged) -> Permission | None:
        if self._judge is None or request.claim is None:
            return None
        return self._judge.grant(request.claim)

    def _check_rate(self, identity: _Identity, request: IncomingRequest) -> None:
        limits, now = self._gate.limits, self._context.clock.time()
        waits = [self._requests.wait(now), identity.requests.wait(now)]
        if limits.egress:
            sent = request.session.counters.sent.octets
            identity.egress.take(sent - self._sent)
            self._sent = sent
            waits.append(identity.egress.wait(now))
        delay = max(waits)
        if delay > 0:
            self._context.counts["requests_throttled"] += 1
            raise RequestRefused(
                RequestCode.EXCESSIVE_LOAD, "too fast", retry_after=int(delay * 1000) + 1
            )
        self._requests.take()
        identity.requests.take()

    def _too_much(self, why: str) -> RequestRefused:
        self._context.counts["requests_limited"] += 1
        return RequestRefused(RequestCode.EXCESSIVE_LOAD, why, retry_after=1000)

    def _over(self, kind: Kind, identity: _Identity, request: IncomingRequest) -> None:
        self.open[kind.name] -= 1
        identity.open[kind.name] -= 1
        self._forget(request)

    def _forget(self, request: Judged) -> None:
        self._permissions.pop(request, None)
        timer = self._timers.pop(request, None)
        if timer is not None:
            timer.cancel()

    def _stands(self, request: Judged, permission: Permission) -> None:
        self._permissions[request] = permission
        self._watch(request, permission)
        request.when_claimed(lambda: self._soon(request))

    def _watch(self, request: Judged, permission: Permission) -> None:
        """Ask again when the permission ends."""
        wall = self._gate.wall
        if wall is None or permission.expires is None:
            return
        delay = max(permission.expires - wall(), 0.0)
        self._timers[request] = self._context.clock.call_later(
            min(delay, _LONGEST), lambda: self._again(request)
        )

    def _soon(self, request: Judged) -> None:
        """Not inside the update that brings other tokens: it has to be answered first."""
        self._context.clock.call_later(0, lambda: self._again(request))

    def _again(self, request: Judged) -> None:
        timer = self._timers.pop(request, None)
        if timer is not None:
            timer.cancel()
        if request not in self._permissions:
            return
        try:
            permission = self._granted(request)
        except RequestRefused:
            self._context.counts["grants_ended"] += 1
            request.revoke(StreamCode.EXPIRED_AUTH_TOKEN)
            return
        if permission is not None:
            self._permissions[request] = permission
            self._watch(request, permission)


#: An event loop plans no further ahead than a day, in seconds.
_LONGEST = 86_400.0
