"""A peer of a relay that is made of octets, in virtual time; and who may do what there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.codec.profile import LATEST
from moqt.codec.properties import SetupOptions
from moqt.errors import MoqtError, RequestCode, RequestRefused
from moqt.session.tokens import Action, Claim
from tests.moqt.relay.worlds import RelayWorld
from transport.api import SendOrder, Tier

if TYPE_CHECKING:
    from moqt.model import TrackNamespace
    from moqt.relay.relay import Relay
    from transport.api import BytesLike

SETUP = SetupOptions(path="/", authority="pair", max_filter_ranges=8, max_request_updates=8)
#: Where attackers may publish.
EVIL = (b"evil",)


class Allowed(NamedTuple):
    """A Permission."""

    identity: str
    expires: float | None = None

    def may_know(self, namespace: TrackNamespace, name: bytes | None = None) -> bool:
        """Everything."""
        return True


class Fence:
    """A judge: reads everything, publishes under one prefix alone."""

    def __init__(self, identity: str, own: TrackNamespace) -> None:
        self.identity = identity
        self.own = own

    def __call__(self, claim: Claim, now: float) -> RequestRefused | None:
        try:
            self.grant(claim)
        except RequestRefused as refused:
            return refused
        return None

    def grant(self, claim: Claim) -> Allowed:
        """Or RequestRefused."""
        publishes = claim.action in (Action.PUBLISH, Action.PUBLISH_NAMESPACE)
        if publishes and claim.namespace[: len(self.own)] != self.own:
            raise RequestRefused(RequestCode.UNAUTHORIZED, "not authorized")
        return Allowed(self.identity)


class Heard:
    """One stream as the peer hears it."""

    def __init__(self) -> None:
        self.octets = bytearray()
        self.end: str | int | None = None

    @property
    def messages(self) -> list[m.Message]:
        """What it says, if it is a stream of messages; those that can be read."""
        found: list[m.Message] = []
        with contextlib.suppress(MoqtError):
            split = MessageSplitter().feed(bytes(self.octets))
            found.extend(m.decode_message(LATEST, *one) for one in split)
        return found


class RawPeer:
    """A TransportSink: writes what it is told to, and keeps what it hears."""

    def __init__(
        self, world: RelayWorld, relay: Relay | None = None, *, setup: bool = True, **faults: Any
    ) -> None:
        pair = world._pair(**faults)
        world._serve(relay or world.relay, pair, pair.server)
        self.world = world
        self.handler = world.handlers[-1]
        self.transport = pair.client
        self.transport.sink = self
        self.pair = pair
        self.setup = setup
        self.control = -1
        self.heard: dict[int, Heard] = {}
        #: Streams that the relay has opened, by direction.
        self.requests: list[int] = []
        self.data: list[int] = []
        self.ours: list[int] = []
        self.datagrams: list[bytes] = []
        #: Code, reason, and whether the relay has closed it.
        self.ended: tuple[int, str, bool] | None = None
        self._next_id = 0

    # -- what it does ----------------------------------------------------------------------------

    def id(self) -> int:
        """The next Request ID."""
        self._next_id += 2
        return self._next_id - 2

    def bidi(self, *parts: m.Message | bytes, fin: bool = False) -> int:
        """Open a request stream."""
        return self._open(parts, fin, unidirectional=False)

    def uni(self, *parts: m.Message | bytes, fin: bool = False) -> int:
        """Open a unidirectional stream."""
        return self._open(parts, fin, unidirectional=True)

    def send(self, stream: int, *parts: m.Message | bytes, fin: bool = False) -> None:
        """Go on with a stream; nothing when it is over."""
        octets = b"".join(p if isinstance(p, bytes) else m.encode_message(p) for p in parts)
        if octets:
            self.transport.write(stream, octets)
        if fin:
            self.transport.finish(stream)

    def reset(self, stream: int, code: int = 1) -> None:
        """RESET_STREAM."""
        self.transport.reset(stream, code)

    def stop(self, stream: int, code: int = 1) -> None:
        """STOP_SENDING."""
        self.transport.stop(stream, code)

    def leave(self, code: int = 0) -> None:
        """Close the session."""
        self.transport.close(code)

    def said(self, stream: int) -> list[m.Message]:
        """Messages heard on a stream."""
        return self.heard[stream].messages if stream in self.heard else []

    def asked(self, kind: type[Any]) -> list[tuple[int, Any]]:
        """Requests of this kind that the relay has sent us, with their streams."""
        first = [(stream, self.said(stream)) for stream in self.requests]
        return [(stream, one[0]) for stream, one in first if one and isinstance(one[0], kind)]

    # -- TransportSink ---------------------------------------------------------------------------

    def connected(self) -> None:
        if self.setup:
            self.control = self.uni(m.Setup(SETUP))

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        (self.data if unidirectional else self.requests).append(stream)
        self.heard[stream] = Heard()

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        heard = self.heard.setdefault(stream, Heard())
        heard.octets += data
        if fin:
            heard.end = "fin"

    def stream_reset(self, stream: int, code: int) -> None:
        self.heard.setdefault(stream, Heard()).end = code

    def stop_sending(self, stream: int, code: int) -> None:
        """The relay wants no more of it."""

    def stream_sent(self, stream: int) -> None:
        """All of it has gone."""

    def datagram(self, data: bytes) -> None:
        self.datagrams.append(data)

    def closed(self, code: int, reason: str, remote: bool) -> None:
        self.ended = (code, reason, remote)

    def _open(
        self, parts: tuple[m.Message | bytes, ...], fin: bool, *, unidirectional: bool
    ) -> int:
        tier = Tier.OBJECT if unidirectional else Tier.REQUEST
        stream = self.transport.open(SendOrder(tier), unidirectional=unidirectional)
        self.ours.append(stream)
        self.send(stream, *parts, fin=fin)
        return stream


def sizes(relay: Relay) -> dict[str, int]:
    """What a relay keeps beside objects."""
    stocks = [track.stock for track in relay.tracks.values()]
    return {
        "peers": len(relay.peers),
        "tracks": len(relay.tracks),
        "namespaces": len(relay.directory),
        "offers": len(relay.offers),
        "interests": len(relay.directory.interests) + len(relay.offers.interests),
        "waiting": relay.context.waiting,
        "unfinished": relay.context.unfinished.octets,
        "legs": sum(len(stock.legs) for stock in stocks),
        "subscriptions": sum(len(stock.subscriptions) for stock in stocks),
        "readers": sum(len(stock.readers) for stock in stocks),
        "waits": sum(len(stock.waits) for stock in stocks),
        "arriving": sum(len(stock.arriving) for stock in stocks),
        "fetches": sum(len(stock.filler) + len(stock.filler._waiting) for stock in stocks),
        "open fans": sum(not fan.closed for stock in stocks for fan in stock.fans.values()),
    }
