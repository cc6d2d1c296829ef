"""Two MOQT sessions joined in memory, and receivers that write down what they hear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moqt.publisher import Catalog
from moqt.session.config import SessionConfig
from moqt.session.core import Session
from moqt.session.ports import TrackInfo, Unserved
from transport.testing import Pair

from .wire import leftovers

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import Gap, ObjectHead, SubgroupHead, TrackNamespace
    from moqt.session.ports import RequestHandler
    from transport.api import BytesLike
    from transport.testing import PairSession


class Side:
    """A Session over one end of a Pair: what moqt.driver.Connection is over a real transport."""

    def __init__(
        self, pair: Pair, transport: PairSession, handler: RequestHandler, config: SessionConfig
    ) -> None:
        self.pair = pair
        self.transport = transport
        self.session = Session(transport, handler, config)
        self.session.timers.on_change = self._arm
        self.ended: tuple[int, str, bool] | None = None
        transport.sink = self

    @property
    def is_open(self) -> bool:
        return self.ended is None

    @property
    def may_request(self) -> bool:
        return self.is_open and self.session.may_request

    def connected(self) -> None:
        self.session.connected(self.pair.now)

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        self.session.stream_opened(self.pair.now, stream, unidirectional)

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        self.session.stream_data(self.pair.now, stream, data, fin)

    def stream_reset(self, stream: int, code: int) -> None:
        self.session.stream_reset(self.pair.now, stream, code)

    def stop_sending(self, stream: int, code: int) -> None:
        self.session.stop_sending(self.pair.now, stream, code)

    def stream_sent(self, stream: int) -> None:
        self.session.stream_sent(self.pair.now, stream)

    def datagram(self, data: bytes) -> None:
        self.session.datagram(self.pair.now, data)

    def closed(self, code: int, reason: str, remote: bool) -> None:
        assert self.ended is None, "closed twice"
        self.ended = (code, reason, remote)
        self.session.transport_closed(self.pair.now, code, reason)

    def publish_namespace(self, namespace: TrackNamespace, answer: Any) -> Any:
        return self.session.publish_namespace(namespace, *_parameters(), answer)

    def leftovers(self) -> dict[str, int]:
        """What its session keeps; nothing when all is over."""
        return leftovers(self.session)

    def _arm(self) -> None:
        due = self.session.next_deadline()
        if due is not None:
            self.pair.call_at(due, self._tick)

    def _tick(self) -> None:
        self.session.tick(self.pair.now)
        self._arm()


def _parameters() -> tuple[Any, ...]:
    from moqt.codec.params import NO_PARAMETERS

    return (NO_PARAMETERS,)


class World:
    """A client that asks and a server that serves ``catalog``, over one Pair."""

    def __init__(
        self,
        *,
        seed: int = 0,
        client_handler: RequestHandler | None = None,
        server_handler: RequestHandler | None = None,
        client_config: SessionConfig | None = None,
        server_config: SessionConfig | None = None,
        **faults: Any,
    ) -> None:
        self.pair = Pair(seed=seed, **faults)
        self.catalog = Catalog()
        handler = server_handler or self.catalog.handler(None)  # type: ignore[arg-type]
        self.server = Side(self.pair, self.pair.server, handler, server_config or SessionConfig())
        self.client = Side(
            self.pair,
            self.pair.client,
            client_handler or Unserved(),
            client_config or SessionConfig(authority="pair", path="/"),
        )

    def run(self, seconds: float | None = None) -> World:
        """Drive to rest, or for some virtual seconds."""
        self.pair.run(None if seconds is None else self.pair.now + seconds)
        return self


class Record:
    """One stream's objects, in order; checks the ObjectSink grammar as it goes."""

    def __init__(self, what: Any) -> None:
        self.what = what
        self.objects: list[tuple[ObjectHead, bytes]] = []
        self.gaps: list[Gap] = []
        self.ended: str | int | None = None
        self._head: ObjectHead | None = None
        self._payload = bytearray()

    def begin(self, head: ObjectHead) -> None:
        assert self._head is None
        assert self.ended is None
        self._head = head
        self._payload = bytearray()

    def write(self, view: BytesLike) -> None:
        assert self._head is not None
        self._payload += view

    def end(self) -> None:
        assert self._head is not None
        assert len(self._payload) == self._head.length
        self.objects.append((self._head, bytes(self._payload)))
        self._head = None

    def gap(self, gap: Gap) -> None:
        assert self._head is None
        self.gaps.append(gap)

    def finish(self) -> None:
        assert self._head is None
        assert self.ended is None
        self.ended = "fin"

    def abort(self, code: int) -> None:
        assert self.ended is None
        self.ended = code


class Receiver:
    """A TrackReceiver that keeps everything."""

    def __init__(self) -> None:
        self.info: TrackInfo | None = None
        self.streams: list[Record] = []
        self.fetches: list[Record] = []
        self.datagrams: list[tuple[ObjectHead, bytes]] = []
        self.end: tuple[int, str, bool] | None = None
        self.error: MoqtError | None = None

    def accepted(self, info: TrackInfo) -> None:
        assert self.info is None
        self.info = info

    def open_subgroup(self, head: SubgroupHead) -> Record:
        self.streams.append(Record(head))
        return self.streams[-1]

    def open_fetch(self, request_id: int) -> Record:
        self.fetches.append(Record(request_id))
        return self.fetches[-1]

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        self.datagrams.append((head, bytes(payload)))

    def done(self, code: int, reason: str, complete: bool) -> None:
        assert self.end is None
        assert self.error is None
        self.end = (code, reason, complete)

    def failed(self, error: MoqtError) -> None:
        assert self.end is None
        assert self.error is None
        self.error = error

    @property
    def objects(self) -> list[tuple[ObjectHead, bytes]]:
        """All objects that came on streams."""
        return [one for record in (*self.fetches, *self.streams) for one in record.objects]

    @property
    def locations(self) -> list[tuple[int, int]]:
        """Their Locations, sorted; duplicates stay."""
        return sorted((head.group, head.object) for head, _ in self.objects)


class Listener:
    """A NamespaceListener that keeps what stands, and writes endings into ``heard``."""

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.accepts = 0
        self.names: list[TrackNamespace] = []
        self.lost: list[TrackNamespace] = []
        self.heard: list[Any] = [] if heard is None else heard

    def accepted(self) -> None:
        self.accepts += 1

    def found(self, namespace: TrackNamespace) -> None:
        assert namespace not in self.names
        self.names.append(namespace)

    def gone(self, namespace: TrackNamespace) -> None:
        self.names.remove(namespace)
        self.lost.append(namespace)

    def ended(self, error: MoqtError | None) -> None:
        self.names.clear()
        self.heard.append(error)
