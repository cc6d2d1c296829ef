"""From the feeder into one aioquic connection: how much, when, and which streams to open."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from transport import _aioquic
from transport.api import Tier
from transport.scheduler import Feeder, Gate, unsent_budget
from transport.streams import UNBOUND

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic.quic.connection import QuicConnection
    from aioquic.quic.stream import QuicStream

    from transport.api import BytesLike
    from transport.config import QuicOptions
    from transport.streams import StreamTable

_Level: TypeAlias = "tuple[int, int, int]"


class Pump:
    """Keeps a bounded amount of never-sent octets inside QUIC, in few streams, by priority.

    Nothing is handed down that flow control would hold there: such streams wait here, and others
    pass. ``sent(handle)`` is told when a FIN was handed down; its stream may be gone by then.
    """

    def __init__(
        self,
        quic: QuicConnection,
        table: StreamTable,
        options: QuicOptions,
        *,
        aborted: Callable[[int, int], None],
        sent: Callable[[int], None],
    ) -> None:
        self.feeder = Feeder(aborted)
        self._quic = quic
        self._table = table
        self._options = options
        self._sent = sent
        # Streams with octets that QUIC has never sent, and the level they were fed at.
        self._hot: dict[int, tuple[QuicStream, _Level]] = {}
        self._blocked: set[int] = set()

    def run(self) -> bool:
        """Hand pieces down while the budget allows; True when there were any."""
        feeder = self.feeder
        urgent, objects = self._cool()
        if self._blocked:
            self._unblock()
        self._check_slots()
        credit = _aioquic.connection_credit(self._quic) - urgent - objects
        budget = unsent_budget(_aioquic.rate(self._quic), self._options.unsent_budget)
        feeder.quantum = budget // 2  # two streams fill it: few at once, and turns stay short
        fed = False
        while (handle := feeder.peek()) is not None:
            level = feeder.order(handle)[:3]
            is_urgent = level[0] <= Tier.REQUEST
            # Control and requests have a budget of their own: objects never hold them back.
            if (urgent if is_urgent else objects) >= budget:
                break
            if not is_urgent and not self._has_place(handle, level):
                break
            window = self._window(handle)
            if window <= 0 and feeder.unsent(handle):
                feeder.block(handle)
                self._blocked.add(handle)
                continue
            piece = feeder.next(min(credit, window, self._options.piece))
            if piece is None:
                break
            size = len(piece[1])
            credit -= size
            if is_urgent:
                urgent += size
            else:
                objects += size
            fed = True
            self._hand_down(piece, level)
        return fed

    def forget(self, handle: int) -> None:
        """Drop what the stream has queued here."""
        self.feeder.drop(handle)
        self._hot.pop(handle, None)
        self._blocked.discard(handle)

    def clear(self) -> None:
        """Drop everything."""
        for handle in list(self._table.by_handle):
            self.feeder.drop(handle)
        self._hot.clear()
        self._blocked.clear()

    def _hand_down(self, piece: tuple[int, BytesLike, bool], level: _Level) -> None:
        handle, view, fin = piece
        quic, table = self._quic, self._table
        entry = table.by_handle[handle]
        opened = entry.wire == UNBOUND
        if opened:
            kind = entry.unidirectional
            table.bind(entry, quic.get_next_available_stream_id(is_unidirectional=kind))
        _aioquic.send(quic, entry.wire, view, fin)
        if opened:
            self._check_slots()
            if entry.stop_code is not None:
                quic.stop_stream(entry.wire, entry.stop_code)
        if len(view) and handle not in self._hot:
            stream = _aioquic.stream_of(quic, entry.wire)
            if stream is not None:
                self._hot[handle] = stream, level
        if fin:
            table.end_send(entry)
            self._sent(handle)

    def _cool(self) -> tuple[int, int]:
        """Never-sent octets inside QUIC, of control and requests and of objects.

        Streams without any are no longer hot.
        """
        urgent = objects = 0
        cold = []
        for handle, (stream, level) in self._hot.items():
            left = _aioquic.never_sent(stream)
            if not left:
                cold.append(handle)
            elif level[0] <= Tier.REQUEST:
                urgent += left
            else:
                objects += left
        for handle in cold:
            del self._hot[handle]
        return urgent, objects

    def _has_place(self, handle: int, level: _Level) -> bool:
        """Whether the stream may become hot: of many, only one more urgent than all of them."""
        hot = self._hot
        if len(hot) < self._options.hot_streams or handle in hot:
            return True
        return level < min(level for _stream, level in hot.values())

    def _check_slots(self) -> None:
        for gate, unidirectional in ((Gate.UNI, True), (Gate.BIDI, False)):
            slots = _aioquic.stream_slots(self._quic, unidirectional=unidirectional)
            self.feeder.shut(gate, slots <= 0)

    def _window(self, handle: int) -> int:
        """Octets the peer's window of this stream still takes."""
        entry = self._table.by_handle[handle]
        if entry.wire == UNBOUND:
            return _aioquic.initial_credit(self._quic, unidirectional=entry.unidirectional)
        stream = _aioquic.stream_of(self._quic, entry.wire)
        return 0 if stream is None else _aioquic.stream_credit(stream)

    def _unblock(self) -> None:
        """Streams whose window has grown may go on."""
        for handle in list(self._blocked):
            if self._window(handle) > 0:
                self._blocked.discard(handle)
                self.feeder.unblock(handle)
