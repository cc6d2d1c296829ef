"""Two sessions in memory under a virtual clock, and a session that only records.

``Pair`` runs the same ``Feeder`` as the real session, with the same budget of unsent octets, over
a modelled network with seeded faults. The same seed gives the same run. An exception raised by a
sink or a source leaves ``Pair.run``: in a test it is the test's failure.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from transport.api import PeerInfo, SendOrder, Tier
from transport.network import SEGMENT, Clock, Faults, Link
from transport.scheduler import Feeder, Gate, unsent_budget
from transport.streams import UNBOUND, Stream, StreamTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.api import BytesLike, ChunkSource, PeerCertificate, TransportSink

Direction: TypeAlias = Literal["to_server", "to_client"]

#: Octets handed down and not yet delivered; stands for flow control.
WINDOW = 8 << 20

#: Concurrent streams of one kind a side may have open, as in ``QuicOptions``.
MAX_STREAMS = 256

#: Largest datagram payload: what fits on a path of unknown size.
DATAGRAM = 1150


class Pair:
    """``client`` and ``server`` joined by a path with ``Faults``; set both ``sink`` before ``run``.

    ``faults`` are the fields of ``Faults`` (latency, jitter, loss, reorder, split, rate). Pairs
    that share a ``clock`` live in the same virtual time.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        clock: Clock | None = None,
        window: int = WINDOW,
        max_streams: int = MAX_STREAMS,
        datagram_size: int = DATAGRAM,
        budget: int | None = None,
        **faults: Any,  # noqa: ANN401 - the fields of Faults, checked there
    ) -> None:
        self.clock = clock or Clock()
        self.faults = Faults(**faults)
        self.window = window
        self.max_streams = max_streams
        self.datagram_size = datagram_size
        self.budget = unsent_budget(self.faults.rate) if budget is None else budget
        random = Random(seed)  # noqa: S311 - a repeatable network, not a secret
        self.client = PairSession(self, is_client=True)
        self.server = PairSession(self, is_client=False)
        self.to_server = Link(self.clock, self.faults, random, self.server)
        self.to_client = Link(self.clock, self.faults, random, self.client)
        self.client._join(self.to_server, self.server)
        self.server._join(self.to_client, self.client)
        self.call_later(self.faults.latency, self._handshake)

    @property
    def now(self) -> float:
        """Virtual seconds since the clock began."""
        return self.clock.now

    @property
    def on_time(self) -> Callable[[float], None] | None:
        """Called with ``now`` before each event."""
        return self.clock.on_time

    @on_time.setter
    def on_time(self, hook: Callable[[float], None] | None) -> None:
        self.clock.on_time = hook

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run ``action`` at a virtual time."""
        self.clock.call_at(when, action)

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Run ``action`` after ``delay`` virtual seconds."""
        self.clock.call_later(delay, action)

    def run(self, until: float | None = None) -> float:
        """Drive to rest, or to the time ``until``; returns ``now``. RuntimeError: no rest."""
        return self.clock.run(until)

    def kill(self) -> None:
        """The path dies: both sides are told that the connection was lost."""
        self.call_later(0.0, lambda: self.client.end(-1, "connection lost", remote=False))
        self.call_later(0.0, lambda: self.server.end(-1, "connection lost", remote=False))

    def freeze(self, direction: Direction, duration: float) -> None:
        """Nothing arrives in that direction for ``duration`` seconds; then all of it does."""
        link = self._link(direction)
        link.frozen_until = max(link.frozen_until, self.now + duration)

    def stop_reading(self, direction: Direction) -> None:
        """The receiver of that direction takes nothing more; its sender runs into the window."""
        self._link(direction).hold()

    def resume_reading(self, direction: Direction) -> None:
        """Undo ``stop_reading``."""
        self._link(direction).release()

    def _handshake(self) -> None:
        """The client is done before it can hear anything of the server, to the last digit."""
        self.call_later(self.faults.latency, self.client.handshake_done)
        self.server.handshake_done()

    def _link(self, direction: Direction) -> Link:
        return self.to_server if direction == "to_server" else self.to_client


class PairSession:
    """One end of a ``Pair``: a ``TransportSession``; its methods do what that class says."""

    def __init__(self, pair: Pair, *, is_client: bool) -> None:
        self.sink: TransportSink
        self.is_client = is_client
        self.peer_certificate: PeerCertificate | None = None
        self.closed = False
        self._pair = pair
        self._link: Link
        self._other: PairSession
        self._feeder = Feeder(self.reset)
        self._table = StreamTable(is_client=is_client)
        self._credit = {True: pair.max_streams, False: pair.max_streams}
        self._next_wire = {True: 2 if is_client else 3, False: 0 if is_client else 1}
        self._ready = False
        self._touched = False

    # -- TransportSession ------------------------------------------------------------------------

    @property
    def peer(self) -> PeerInfo:
        """Made up: the other end of the pair."""
        return PeerInfo(("pair", 0), "memory", self._pair.datagram_size)

    def open(self, order: SendOrder, *, unidirectional: bool) -> int:
        entry = self._table.open(unidirectional=unidirectional)
        if self.closed:
            self._table.clear()
        else:
            self._feeder.open(entry.handle, order, Gate.UNI if unidirectional else Gate.BIDI)
        return entry.handle

    def write(self, stream: int, *views: BytesLike) -> None:
        self._feeder.write(stream, *views)
        self._touch()

    def feed(self, stream: int, source: ChunkSource) -> None:
        self._feeder.feed(stream, source)
        self._touch()

    def wake(self, stream: int) -> None:
        self._feeder.wake(stream)
        self._touch()

    def reorder(self, stream: int, order: SendOrder) -> None:
        self._feeder.reorder(stream, order)

    def finish(self, stream: int) -> None:
        self._feeder.finish(stream)
        self._touch()

    def reset(self, stream: int, code: int) -> None:
        entry = self._table.by_handle.get(stream)
        if entry is None or not entry.send_open:
            return
        self._feeder.drop(stream)
        if entry.wire == UNBOUND:
            entry.recv_open = False
        else:
            self._send_reset(entry.wire, code)
        self._end_send(entry)

    def stop(self, stream: int, code: int) -> None:
        """After this neither data nor FIN nor reset of the peer's direction is reported."""
        entry = self._table.by_handle.get(stream)
        if entry is None or not entry.recv_open or entry.stop_code is not None:
            return
        entry.stop_code = code
        if entry.wire != UNBOUND:
            self._send_stop(entry.wire, code)

    def send_datagram(self, data: bytes) -> bool:
        if self.closed or not self._ready or len(data) > self._pair.datagram_size:
            return False
        other = self._other
        self._link.datagram(len(data), lambda: other.datagram(data))
        return True

    def stream_slots(self, *, unidirectional: bool) -> int:
        return 0 if self.closed else self._credit[unidirectional]

    def started(self, stream: int) -> bool:
        """Also True for a stream that is gone."""
        entry = self._table.by_handle.get(stream)
        return entry is None or entry.wire != UNBOUND

    def unacknowledged(self) -> int:
        """Here what is delivered counts as acknowledged."""
        return self._feeder.unsent() + self._link.outstanding

    def unsent(self, stream: int | None = None) -> int:
        return self._feeder.unsent(stream)

    def close(self, code: int, reason: str = "") -> None:
        if self.closed:
            return
        other = self._other
        self._drop_all()
        self._pair.call_later(0.0, lambda: self.sink.closed(code, reason, False))
        self._link.signal(lambda: other.end(code, reason, remote=True))

    # -- what the pair calls ---------------------------------------------------------------------

    @property
    def streams(self) -> int:
        """Streams with an open half: zero when all have ended."""
        return len(self._table)

    def _join(self, link: Link, other: PairSession) -> None:
        """Connect the way out."""
        self._link = link
        self._other = other
        link.room = self._touch

    def handshake_done(self) -> None:
        """The session may send from now on."""
        if not self.closed:
            self._ready = True
            self.sink.connected()
            self._touch()

    def end(self, code: int, reason: str, *, remote: bool) -> None:
        """The session is over by no call of its owner."""
        if not self.closed:
            self._drop_all()
            self.sink.closed(code, reason, remote)

    def receive(self, wire: int, data: bytes, fin: bool) -> None:
        """The next octets of a stream, in order."""
        entry = self._known(wire)
        if entry is None or not entry.recv_open:
            return
        if fin:
            self._end_recv(entry)
        if entry.stop_code is None:
            self.sink.stream_data(entry.handle, data, fin)

    def datagram(self, data: bytes) -> None:
        """A datagram has arrived."""
        if not self.closed:
            self.sink.datagram(data)

    # -- inside ----------------------------------------------------------------------------------

    def _drop_all(self) -> None:
        self.closed = True
        for handle in list(self._table.by_handle):
            self._feeder.drop(handle)
        self._table.clear()
        self._link.clear()

    def _touch(self) -> None:
        """Look at the queue after the present event."""
        if self._ready and not self.closed and not self._touched:
            self._touched = True
            self._pair.call_later(0.0, self._pump)

    def _pump(self) -> None:
        """Hand pieces down while the budget allows; control and requests have their own share."""
        self._touched = False
        link, feeder, pair = self._link, self._feeder, self._pair
        while not self.closed and link.outstanding < pair.window:
            feeder.shut(Gate.UNI, self._credit[True] <= 0)
            feeder.shut(Gate.BIDI, self._credit[False] <= 0)
            handle = feeder.peek()
            if handle is None:
                return
            urgent = feeder.order(handle).tier <= Tier.REQUEST
            room = pair.budget * (2 if urgent else 1) - link.unsent
            piece = feeder.next(min(room, 2 * SEGMENT))
            if piece is None:
                return
            self._hand_down(*piece)

    def _hand_down(self, handle: int, view: BytesLike, fin: bool) -> None:
        entry = self._table.by_handle[handle]
        if entry.wire == UNBOUND:
            kind = entry.unidirectional
            self._credit[kind] -= 1
            self._table.bind(entry, self._next_wire[kind])
            self._next_wire[kind] += 4
            if entry.stop_code is not None:
                self._send_stop(entry.wire, entry.stop_code)
        self._link.put(entry.wire, view, fin)
        if fin:
            self._end_send(entry)
            self.sink.stream_sent(handle)

    def _send_reset(self, wire: int, code: int) -> None:
        self._link.drop(wire)
        other = self._other
        self._link.signal(lambda: other._reset_received(wire, code))

    def _send_stop(self, wire: int, code: int) -> None:
        other = self._other
        self._link.signal(lambda: other._stop_received(wire, code))

    def _reset_received(self, wire: int, code: int) -> None:
        entry = self._known(wire)
        if entry is None or not entry.recv_open:
            return
        self._end_recv(entry)
        if entry.stop_code is None:
            self.sink.stream_reset(entry.handle, code)

    def _stop_received(self, wire: int, code: int) -> None:
        """QUIC answers with a reset of its own; then the owner is told."""
        entry = self._known(wire)
        if entry is None or not entry.send_open:
            return
        self._feeder.drop(entry.handle)
        self._send_reset(wire, code)
        self._end_send(entry)
        self.sink.stop_sending(entry.handle, code)

    def _known(self, wire: int) -> Stream | None:
        """The stream of a QUIC id; a new one of the peer is announced."""
        entry = self._table.by_wire.get(wire)
        if entry is None and not self.closed:
            entry = self._table.accept(wire)
            if entry is not None:
                if entry.send_open:
                    self._feeder.open(entry.handle, SendOrder(Tier.REQUEST))
                self.sink.stream_opened(entry.handle, entry.unidirectional)
        return entry

    def _end_send(self, entry: Stream) -> None:
        if self._table.end_send(entry):
            self._give_credit(entry)

    def _end_recv(self, entry: Stream) -> None:
        if self._table.end_recv(entry):
            self._give_credit(entry)

    def _give_credit(self, entry: Stream) -> None:
        """The peer may open another stream for each of its own that has ended."""
        if not entry.local:
            other, kind = self._other, entry.unidirectional
            self._link.signal(lambda: other._credit_received(kind))

    def _credit_received(self, kind: bool) -> None:
        self._credit[kind] += 1
        self._touch()


class RecordingSession:
    """A ``TransportSession`` that sends nothing: ``calls`` is the transcript, as plain tuples.

    ``("write", handle, octets)`` has its views joined. Handles count from 0 for both sides'
    streams: ``arrive`` makes one of the peer's. ``pull`` plays the transport for a fed stream.
    """

    def __init__(self, *, is_client: bool = True, datagram_size: int = DATAGRAM) -> None:
        self.is_client = is_client
        self.peer = PeerInfo(("recorded", 0), "memory", datagram_size)
        self.peer_certificate: PeerCertificate | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.sources: dict[int, ChunkSource] = {}
        self.started_streams: set[int] = set()
        #: What ``stream_slots`` says.
        self.slots = 1 << 20
        self._handles = 0

    def take(self) -> list[tuple[Any, ...]]:
        """The calls since the last ``take``."""
        calls, self.calls = self.calls, []
        return calls

    def arrive(self) -> int:
        """A handle for a stream of the peer."""
        self._handles += 1
        self.started_streams.add(self._handles - 1)
        return self._handles - 1

    def pull(self, stream: int) -> list[tuple[bytes, SendOrder | None]]:
        """The chunks a fed source has now, up to ``None`` or its end (then it is forgotten)."""
        chunks: list[tuple[bytes, SendOrder | None]] = []
        for chunk in self.sources[stream]:
            if chunk is None:
                return chunks
            self.started_streams.add(stream)
            chunks.append((b"".join(chunk.views), chunk.order))
        del self.sources[stream]
        return chunks

    def open(self, order: SendOrder, *, unidirectional: bool) -> int:
        self._handles += 1
        self.calls.append(("open", self._handles - 1, order, unidirectional))
        return self._handles - 1

    def write(self, stream: int, *views: BytesLike) -> None:
        self.started_streams.add(stream)
        self.calls.append(("write", stream, b"".join(views)))

    def feed(self, stream: int, source: ChunkSource) -> None:
        self.sources[stream] = source
        self.calls.append(("feed", stream))

    def wake(self, stream: int) -> None:
        self.calls.append(("wake", stream))

    def reorder(self, stream: int, order: SendOrder) -> None:
        self.calls.append(("reorder", stream, order))

    def finish(self, stream: int) -> None:
        self.calls.append(("finish", stream))

    def reset(self, stream: int, code: int) -> None:
        self.sources.pop(stream, None)
        self.calls.append(("reset", stream, code))

    def stop(self, stream: int, code: int) -> None:
        self.calls.append(("stop", stream, code))

    def send_datagram(self, data: bytes) -> bool:
        if len(data) > self.peer.datagram_size:
            return False
        self.calls.append(("send_datagram", data))
        return True

    def stream_slots(self, *, unidirectional: bool) -> int:
        return self.slots

    def started(self, stream: int) -> bool:
        return stream in self.started_streams

    def unacknowledged(self) -> int:
        return 0

    def unsent(self, stream: int | None = None) -> int:
        return 0

    def close(self, code: int, reason: str = "") -> None:
        self.calls.append(("close", code, reason))
