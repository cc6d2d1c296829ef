"""The queue of one session's outgoing streams: strict priority, just in time, no I/O.

``Feeder`` decides which octets go to QUIC next. It holds references to the written views, never
copies of large ones, and forgets a stream with its FIN. ``SendOrder`` says what the order means.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from transport.errors import StreamAbort

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.api import BytesLike, ChunkSource, SendOrder

#: A view shorter than this is joined with what follows it: one call into QUIC and one copy of
#: 32 KiB cost 3.3 us, three calls cost 5.0 us (object header, 68-octet payload header, block).
SMALL_VIEW = 1024

#: Stale entries a flow's heap may hold before it is rebuilt; keeps cancelled streams cheap.
STALE_SLACK = 32

#: Octets kept in QUIC and never sent yet: full speed at 256 KiB, 1 MiB is no faster; less on slow
#: links (what the link takes in 20 ms, so that an urgent stream waits no longer), 64 KiB at least.
UNSENT_BUDGET = 256 << 10
UNSENT_FLOOR = 64 << 10
UNSENT_HORIZON = 0.020

_Entry: TypeAlias = "tuple[tuple[int, ...], int, _Stream]"
_Level: TypeAlias = "OrderedDict[int, _Flow]"


def unsent_budget(rate: float | None, ceiling: int = UNSENT_BUDGET) -> int:
    """Octets to keep unsent inside QUIC at ``rate`` octets a second, None when unknown."""
    if rate is None:
        return ceiling
    return min(ceiling, max(UNSENT_FLOOR, int(rate * UNSENT_HORIZON)))


class Gate(IntEnum):
    """What a stream waits for before its first octet: nothing, or credit to open its kind."""

    NONE = 0
    UNI = 1
    BIDI = 2


class _Stream:
    __slots__ = (
        "blocked",
        "entry",
        "fin",
        "gate",
        "key",
        "level",
        "order",
        "parked",
        "queue",
        "seq",
        "size",
        "source",
    )

    def __init__(self, key: int, order: SendOrder, gate: int, seq: int) -> None:
        self.key = key
        self.order = order
        self.gate = gate
        self.seq = seq
        self.queue: deque[BytesLike] = deque()
        self.size = 0
        self.source: ChunkSource | None = None
        self.fin = False
        self.parked = False
        self.blocked = False
        self.entry: _Entry | None = None
        self.level: _Level  # where its flow waits, set while it is ready


class _Flow:
    """The ready streams of one flow on one level; one heap a gate, smallest rank on top."""

    __slots__ = ("heaps", "live", "spent", "stale")

    def __init__(self) -> None:
        self.spent = 0  # octets of its present turn
        self.heaps: tuple[list[_Entry], ...] = tuple([] for _ in Gate)
        self.live = 0
        self.stale = 0

    def top(self, shut: int) -> _Entry | None:
        """The first live entry whose gate is not in the bit set ``shut``."""
        best = None
        for gate, heap in enumerate(self.heaps):
            if heap and not shut >> gate & 1:
                while heap and heap[0][2].entry is not heap[0]:
                    heappop(heap)
                    self.stale -= 1
                if heap and (best is None or heap[0] < best):
                    best = heap[0]
        return best

    def compact(self) -> None:
        """Drop the stale entries."""
        for heap in self.heaps:
            heap[:] = [entry for entry in heap if entry[2].entry is entry]
            heapify(heap)
        self.stale = 0


class Feeder:
    """Streams by key. ``next`` takes pieces in order; every other call only changes what is queued.

    Calls on an unknown key are ignored: a stream is unknown after its FIN, ``drop`` or abort.
    ``quantum`` is the least a flow sends in its turn; larger turns mean fewer streams at once.
    """

    def __init__(self, aborted: Callable[[int, int], None]) -> None:
        """``aborted(key, code)`` is told when a source raised ``StreamAbort``; the key is gone."""
        self.quantum = 1
        self._aborted = aborted
        self._streams: dict[int, _Stream] = {}
        self._levels: dict[tuple[int, int, int], _Level] = {}
        self._ranking: list[tuple[int, int, int]] = []
        self._waiting = [0] * len(Gate)
        self._shut = 0
        self._seq = 0
        self._unsent = 0
        self._top: _Stream | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, key: int) -> bool:
        return key in self._streams

    def open(self, key: int, order: SendOrder, gate: int = Gate.NONE) -> None:
        """Register a stream; it leaves its gate with its first piece. ValueError: a known key."""
        if key in self._streams:
            raise ValueError(f"stream {key} is already in the queue; use a new key")
        self._seq += 1
        self._streams[key] = _Stream(key, order, gate, self._seq)

    def write(self, key: int, *views: BytesLike) -> None:
        """Queue references; a stream after ``finish`` takes no more."""
        stream = self._streams.get(key)
        if stream is None or (stream.fin and stream.source is None):
            return
        self._append(stream, views)
        self._settle(stream)

    def feed(self, key: int, source: ChunkSource) -> None:
        """Pull the rest from ``source`` once the queue of the stream is empty."""
        stream = self._streams.get(key)
        if stream is not None and not stream.fin:
            stream.source = source
            stream.parked = False
            self._settle(stream)

    def wake(self, key: int) -> None:
        """Ask a parked source again."""
        stream = self._streams.get(key)
        if stream is not None and stream.parked:
            stream.parked = False
            self._settle(stream)

    def reorder(self, key: int, order: SendOrder) -> None:
        """Give the rest of the stream another order; it keeps its age among equals."""
        stream = self._streams.get(key)
        if stream is None or stream.order == order:
            return
        self._leave(stream)
        stream.order = order
        self._settle(stream)

    def finish(self, key: int) -> None:
        """FIN after everything queued; a stream with a source ends with its source."""
        stream = self._streams.get(key)
        if stream is not None and stream.source is None:
            stream.fin = True
            self._settle(stream)

    def drop(self, key: int) -> None:
        """Forget the stream and what it has queued."""
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._leave(stream)
            self._unsent -= stream.size
            stream.size = 0
            stream.queue.clear()
            stream.source = None

    def unsent(self, key: int | None = None) -> int:
        """Octets queued, of one stream or of all; what sources still hold is not counted."""
        if key is None:
            return self._unsent
        stream = self._streams.get(key)
        return stream.size if stream is not None else 0

    def block(self, key: int) -> None:
        """Pass over the stream until ``unblock``; rank and age stay."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.blocked = True
            self._leave(stream)

    def unblock(self, key: int) -> None:
        """The stream may be taken again."""
        stream = self._streams.get(key)
        if stream is not None and stream.blocked:
            stream.blocked = False
            self._settle(stream)

    def shut(self, gate: int, closed: bool) -> None:
        """Pass over (or admit again) all streams that wait behind ``gate``."""
        mask = self._shut | 1 << gate if closed else self._shut & ~(1 << gate)
        if mask != self._shut:
            self._shut = mask
            self._top = None

    def order(self, key: int) -> SendOrder:
        """The present order of a stream; KeyError when unknown."""
        return self._streams[key].order

    def peek(self) -> int | None:
        """The key that ``next`` serves, its octets or FIN at hand; pulls from sources if needed."""
        while True:
            stream = self._top
            if stream is None:
                stream = self._top = self._head()
                if stream is None:
                    return None
            if stream.queue or stream.fin:
                return stream.key
            self._pull(stream)

    def next(self, limit: int) -> tuple[int, BytesLike, bool] | None:
        """Take the next piece, at most ``limit`` octets: ``(key, view, fin)``, None when idle.

        Flows of equal priority take turns. A FIN alone has an empty view.
        """
        if self.peek() is None:
            return None
        stream = self._top
        if stream is None or (stream.queue and limit <= 0):
            return None
        view = self._cut(stream, limit) if stream.queue else b""
        size = len(view)
        stream.size -= size
        self._unsent -= size
        fin = stream.fin and not stream.queue
        self._turn(stream, size)
        if fin:
            self._leave(stream)
            del self._streams[stream.key]
        elif stream.gate:
            self._leave(stream)
            stream.gate = Gate.NONE
            self._settle(stream)
        elif not stream.queue and stream.source is None:
            self._leave(stream)
        return stream.key, view, fin

    def _append(self, stream: _Stream, views: tuple[BytesLike, ...]) -> None:
        queue = stream.queue
        added = 0
        for view in views:
            if type(view) is memoryview and (view.itemsize != 1 or view.ndim != 1):
                view = view.cast("B")
            size = len(view)
            if size:
                queue.append(view)
                added += size
        stream.size += added
        self._unsent += added

    def _cut(self, stream: _Stream, limit: int) -> BytesLike:
        """Take up to ``limit`` octets; a small first view is joined with what follows."""
        queue = stream.queue
        view = queue[0]
        size = len(view)
        if size > limit:
            whole = memoryview(view)
            queue[0] = whole[limit:]
            return whole[:limit]
        queue.popleft()
        if size >= SMALL_VIEW or not queue:
            return view
        parts = [view]
        while queue and size < limit:
            view = queue[0]
            room = limit - size
            if len(view) > room:
                whole = memoryview(view)
                parts.append(whole[:room])
                queue[0] = whole[room:]
                break
            queue.popleft()
            parts.append(view)
            size += len(view)
        return b"".join(parts)

    def _pull(self, stream: _Stream) -> None:
        """Ask the source for a chunk. It may call back: what changes the order clears _top."""
        key = stream.key
        source = stream.source
        if source is None:
            self._leave(stream)
            return
        try:
            chunk = next(source)
        except StopIteration:
            stream.source = None
            stream.fin = True
            return
        except StreamAbort as abort:
            self.drop(key)
            self._aborted(key, abort.code)
            return
        except BaseException:
            self.drop(key)
            raise
        if self._streams.get(key) is not stream:
            return
        if chunk is None:
            stream.parked = True
            self._settle(stream)
            return
        self._append(stream, chunk.views)
        if chunk.order is not None:
            self.reorder(key, chunk.order)

    def _settle(self, stream: _Stream) -> None:
        """Make the stream ready, or not ready, as its state says."""
        if stream.blocked:
            return
        if stream.queue or stream.fin or (stream.source is not None and not stream.parked):
            if stream.entry is None:
                self._join(stream)
        elif stream.entry is not None:
            self._leave(stream)

    def _join(self, stream: _Stream) -> None:
        order = stream.order
        name = order[:3]
        level = self._levels.get(name)
        if level is None:
            level = self._levels[name] = OrderedDict()
            insort(self._ranking, name)
        flow = level.get(order.flow)
        if flow is None:
            flow = level[order.flow] = _Flow()
        stream.level = level
        entry = stream.entry = (order.rank, stream.seq, stream)
        heappush(flow.heaps[stream.gate], entry)
        flow.live += 1
        self._waiting[stream.gate] += 1
        self._top = None

    def _leave(self, stream: _Stream) -> None:
        entry = stream.entry
        if entry is None:
            return
        stream.entry = None
        self._top = None
        self._waiting[stream.gate] -= 1
        order = stream.order
        name = order[:3]
        level = self._levels[name]
        flow = level[order.flow]
        flow.live -= 1
        if flow.live == 0:
            del level[order.flow]
            if not level:
                del self._levels[name]
                del self._ranking[bisect_left(self._ranking, name)]
            return
        heap = flow.heaps[stream.gate]
        if heap[0] is entry:
            heappop(heap)
            return
        flow.stale += 1
        if flow.stale > flow.live + STALE_SLACK:
            flow.compact()

    def _turn(self, stream: _Stream, size: int) -> None:
        """Once it has had its quantum, put the flow behind the others of its level."""
        level = stream.level
        if len(level) > 1:
            flow = level[stream.order.flow]
            flow.spent += size
            if flow.spent >= self.quantum:
                flow.spent = 0
                level.move_to_end(stream.order.flow)
                self._top = None

    def _head(self) -> _Stream | None:
        shut = self._shut
        if shut and not any(n for gate, n in enumerate(self._waiting) if not shut >> gate & 1):
            return None
        for name in self._ranking:
            for flow in self._levels[name].values():
                entry = flow.top(shut)
                if entry is not None:
                    return entry[2]
        return None
