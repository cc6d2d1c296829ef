"""A modelled path for ``transport.testing``: virtual time, and one direction of a lossy line."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from transport.api import BytesLike

#: A run with more events than this never comes to rest: two sides keep each other busy.
MAX_EVENTS = 2_000_000

#: Largest stretch of one stream sent at once: a datagram of the real transport on loopback.
SEGMENT = 16384


class Clock:
    """Virtual seconds. Actions run in order of time, then of planning; nothing waits."""

    def __init__(self) -> None:
        self.now = 0.0
        #: Told the time before each action, for owners whose core takes time as an argument.
        self.on_time: Callable[[float], None] | None = None
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._seq = 0

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run ``action`` at the virtual time ``when``, now at the earliest."""
        self._seq += 1
        heappush(self._planned, (max(when, self.now), self._seq, action))

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Run ``action`` after ``delay`` virtual seconds."""
        self.call_at(self.now + delay, action)

    def run(self, until: float | None = None) -> float:
        """Drive until nothing is planned, or to the time ``until``; returns ``now``.

        RuntimeError when it never comes to rest.
        """
        planned = self._planned
        for _ in range(MAX_EVENTS):
            if not planned or (until is not None and planned[0][0] > until):
                if until is not None:
                    self._advance(until)
                return self.now
            when, _seq, action = heappop(planned)
            self._advance(when)
            action()
        raise RuntimeError(f"no rest after {MAX_EVENTS} events, at {self.now} s; give run(until=)")

    def _advance(self, when: float) -> None:
        self.now = max(self.now, when)
        if self.on_time is not None:
            self.on_time(self.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What a path does to what is sent. Seconds, octets, probabilities."""

    latency: float = 0.001  #: one way
    jitter: float = 0.0  #: at most this is added at random
    loss: float = 0.0  #: a stretch arrives as late as its retransmission; a datagram is dropped
    reorder: float = 0.0  #: a stretch is overtaken by those of other streams
    split: int | None = None  #: streams are cut at random, into stretches of at most this
    rate: float | None = None  #: octets a second, shared by all streams


class Receiver(Protocol):
    """Where a line ends."""

    def receive(self, wire: int, data: bytes, fin: bool) -> None:
        """The next octets of a stream."""
        ...


class Link:
    """One direction: what QUIC holds unsent, what is on its way, and when it arrives."""

    def __init__(self, clock: Clock, faults: Faults, random: Random, target: Receiver) -> None:
        self.clock = clock
        self.faults = faults
        self.unsent = 0
        self.outstanding = 0
        self.frozen_until = 0.0
        self.held: deque[Callable[[], None]] | None = None
        #: Told after each stretch sent or delivered: there may be room for more.
        self.room: Callable[[], None] = lambda: None
        self._random = random
        self._target = target
        self._inside: OrderedDict[int, deque[tuple[memoryview, bool]]] = OrderedDict()
        self._flying: dict[int, deque[tuple[bytes, bool]]] = {}
        self._last: dict[int, float] = {}
        self._free_at = 0.0
        self._sending = False

    def put(self, wire: int, view: BytesLike, fin: bool) -> None:
        """A piece enters QUIC, which copies it."""
        self._inside.setdefault(wire, deque()).append((memoryview(bytes(view)), fin))
        self.unsent += len(view)
        self.outstanding += len(view)
        if not self._sending:
            self._sending = True
            self.clock.call_at(self._free_at, self._transmit)

    def drop(self, wire: int) -> None:
        """RESET_STREAM: what is not yet on its way never will be."""
        for view, _fin in self._inside.pop(wire, ()):
            self.unsent -= len(view)
            self.outstanding -= len(view)

    def clear(self) -> None:
        """The sender is gone."""
        for wire in list(self._inside):
            self.drop(wire)

    def datagram(self, size: int, action: Callable[[], None]) -> None:
        """Send a datagram of ``size`` octets, ahead of the streams; it may be lost."""
        self._occupy(size)
        if not (self.faults.loss and self._random.random() < self.faults.loss):
            self.signal(action)

    def signal(self, action: Callable[[], None]) -> None:
        """Send a frame that has no place in a stream (reset, stop, credit, close)."""
        when = max(self.clock.now, self._free_at) + self._delay()
        self.clock.call_at(when, lambda: self._let_in(action))

    def hold(self) -> None:
        """The receiver reads nothing until ``release``."""
        if self.held is None:
            self.held = deque()

    def release(self) -> None:
        """The receiver reads again, first what has arrived meanwhile."""
        held, self.held = self.held, None
        for action in held or ():
            self.clock.call_at(self.clock.now, action)

    def _transmit(self) -> None:
        """Send one stretch of the stream that has waited longest, then wait for the line."""
        if self._inside:
            wire, queue = self._inside.popitem(last=False)
            view, fin = queue.popleft()
            split = self.faults.split
            size = self._random.randint(1, split) if split else SEGMENT
            if len(view) > size:
                queue.appendleft((view[size:], fin))
                view, fin = view[:size], False
            if queue:
                self._inside[wire] = queue
            self.unsent -= len(view)
            self._occupy(len(view))
            self._flying.setdefault(wire, deque()).append((bytes(view), fin))
            # Octets of one stream arrive in order: a late stretch delays those behind it.
            when = max(self._free_at + self._delay(), self._last.get(wire, 0.0))
            self._last[wire] = when
            self.clock.call_at(when, lambda: self._let_in(lambda: self._deliver(wire)))
            self.room()
        self._sending = bool(self._inside)
        if self._sending:
            self.clock.call_at(self._free_at, self._transmit)

    def _deliver(self, wire: int) -> None:
        queue = self._flying[wire]
        data, fin = queue.popleft()
        if not queue:
            del self._flying[wire]
            self._last.pop(wire, None)
        self.outstanding -= len(data)
        self._target.receive(wire, data, fin)
        self.room()

    def _let_in(self, action: Callable[[], None]) -> None:
        if self.clock.now < self.frozen_until:
            self.clock.call_at(self.frozen_until, lambda: self._let_in(action))
        elif self.held is not None:
            self.held.append(action)
        else:
            action()

    def _occupy(self, size: int) -> None:
        rate = self.faults.rate
        self._free_at = max(self._free_at, self.clock.now) + (size / rate if rate else 0.0)

    def _delay(self) -> float:
        faults, random = self.faults, self._random
        delay = faults.latency
        if faults.jitter:
            delay += random.random() * faults.jitter
        if faults.loss and random.random() < faults.loss:
            delay += (2 * faults.latency + 0.01) * (1 + random.random())
        if faults.reorder and random.random() < faults.reorder:
            delay += (faults.latency + 0.001) * 2 * random.random()
        return delay
