"""Relays, publishers and subscribers joined in memory under one virtual clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.model import FullTrackName, LocationFilter
from moqt.publisher import Catalog, Track
from moqt.relay.admission import AdmissionLimits, Gate
from moqt.relay.cache import FINISHED_COST, TRACK_COST
from moqt.relay.config import RelayConfig
from moqt.relay.handler import RelayHandler
from moqt.relay.peers import Peer
from moqt.relay.relay import Relay
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved
from tests.moqt.session.worlds import Receiver, Side
from transport.network import Clock as VirtualClock
from transport.testing import Pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.ports import RequestHandler

SPACE = (b"kvcs-1", b"scope", b"model")
NAME = FullTrackName(SPACE, b"k.raw.s0")
#: What one track costs a cache beside its objects: a small cache has room for so much more.
ONE_TRACK = TRACK_COST + 16 * FINISHED_COST
SERVER = SessionConfig()
CLIENT = SessionConfig(authority="pair", path="/")
LIVE = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0, 0)),
)


class _Planned:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class RelayClock:
    """moqt.relay.clock.Clock on the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def time(self) -> float:
        return self._clock.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Planned:
        planned = _Planned(callback)
        self._clock.call_later(delay, planned.run)
        return planned


class Desk:
    """A publisher or subscriber: its session, and what it has asked for."""

    def __init__(self, pair: Pair, side: Side, catalog: Catalog) -> None:
        self.pair = pair
        self.side = side
        self.catalog = catalog

    @property
    def session(self) -> Any:
        return self.side.session

    def subscribe(
        self, name: FullTrackName = NAME, asked: Parameters = LIVE
    ) -> tuple[Any, Receiver]:
        receiver = Receiver()
        return self.session.subscribe(name, asked, receiver), receiver

    def fetch(
        self, name: FullTrackName = NAME, asked: Parameters = NO_PARAMETERS
    ) -> tuple[Any, Receiver]:
        receiver = Receiver()
        return self.session.fetch(name, asked, receiver), receiver

    def kill(self) -> None:
        self.pair.kill()


class RelayWorld:
    """One relay, or several with ``relay()``, and whoever connects to them."""

    def __init__(self, config: RelayConfig | None = None, *, seed: int = 0, **faults: Any) -> None:
        self.clock = VirtualClock()
        self.seed = seed
        self.faults = faults
        self._pairs = 0
        self.limits = AdmissionLimits()
        self.gates: dict[Relay, Gate] = {}
        #: Makes the judge of a session that a client opens; None admits everybody.
        self.judge: Callable[[], Any] | None = None
        #: Unix time at the virtual time 0, for grants that end.
        self.epoch = 1_000_000.0
        self.handlers: list[RelayHandler] = []
        self.relay = self.another(config)

    def another(self, config: RelayConfig | None = None) -> Relay:
        """One more relay."""
        return Relay(RelayClock(self.clock), config)

    def run(self, seconds: float | None = None) -> None:
        """Drive to rest, or for some virtual seconds."""
        self.clock.run(None if seconds is None else self.clock.now + seconds)

    def desk(
        self, relay: Relay | None = None, handler: RequestHandler | None = None, **faults: Any
    ) -> Desk:
        """A client of a relay, connected."""
        desk = self.link_up(relay, handler, **faults)
        self.run(2 * desk.pair.faults.latency + 0.001)
        return desk

    def link_up(
        self, relay: Relay | None = None, handler: RequestHandler | None = None, **faults: Any
    ) -> Desk:
        """A client of a relay that begins to connect."""
        pair = self._pair(**faults)
        catalog = Catalog()
        self._serve(relay or self.relay, pair, pair.server)
        client = Side(
            pair,
            pair.client,
            handler or catalog.handler(None),  # type: ignore[arg-type]
            CLIENT,
        )
        return Desk(pair, client, catalog)

    def publisher(self, *tracks: Track, relay: Relay | None = None) -> Desk:
        """A client that announces SPACE and serves these tracks."""
        desk = self.desk(relay)
        for track in tracks:
            desk.catalog.add(track)
        desk.catalog.announce(SPACE)
        self.run(0.1)
        desk.catalog.announce_on(desk.side)  # type: ignore[arg-type]
        self.run(0.1)
        return desk

    def chain(self, lower: Relay, upper: Relay, *prefixes: tuple[bytes, ...]) -> Pair:
        """``lower`` dials ``upper`` for these prefixes."""
        pair = self._pair()
        self._serve(upper, pair, pair.server)
        peer = self._serve(lower, pair, pair.client, CLIENT)
        self.run(0.1)
        lower.upstream_came(peer, prefixes or ((),))
        return pair

    def _pair(self, **faults: Any) -> Pair:
        self._pairs += 1
        return Pair(seed=self.seed + self._pairs, clock=self.clock, **{**self.faults, **faults})

    def _serve(self, relay: Relay, pair: Pair, end: Any, config: SessionConfig = SERVER) -> Peer:
        made: list[RelayHandler] = []

        class Late(Unserved):
            """Until the session exists that the peer is made of."""

            def __getattribute__(self, name: str) -> Any:
                return getattr(made[0], name)

        guard = self.judge() if self.judge is not None and config is SERVER else None
        if guard is not None:
            config = replace(config, token_verifier=guard)
        side = Side(pair, end, Late(), config)
        peer = Peer(side)
        gate = self.gates.get(relay)
        if gate is None:
            gate = Gate(relay.context, self.limits, lambda: self.epoch + self.clock.now)
            self.gates[relay] = gate
        made.append(RelayHandler(relay, peer, gate.admission(lambda: "somebody", guard)))
        self.handlers.append(made[0])
        return peer
