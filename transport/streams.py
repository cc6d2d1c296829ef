"""Which handle is which QUIC stream, and which halves of it are still open."""

from __future__ import annotations

#: The ``wire`` of a stream that has no QUIC id yet.
UNBOUND = -1


class Stream:
    """One stream as its session knows it; ``wire`` is the QUIC stream id."""

    __slots__ = ("handle", "local", "recv_open", "send_open", "stop_code", "unidirectional", "wire")

    def __init__(self, handle: int, wire: int, *, unidirectional: bool, local: bool) -> None:
        self.handle = handle
        self.wire = wire
        self.unidirectional = unidirectional
        self.local = local
        self.send_open = local or not unidirectional
        self.recv_open = not (local and unidirectional)
        self.stop_code: int | None = None


class StreamTable:
    """All streams of a session with an open half; one that ended leaves nothing behind."""

    def __init__(self, *, is_client: bool) -> None:
        self.by_handle: dict[int, Stream] = {}
        self.by_wire: dict[int, Stream] = {}
        self._ours = 0 if is_client else 1
        self._handles = 0
        # Per kind of the peer's streams: ids from here on are new; lower ones only if skipped.
        self._fresh = {kind: kind for kind in ((1 - self._ours), (1 - self._ours) | 2)}
        self._skipped: set[int] = set()

    def __len__(self) -> int:
        return len(self.by_handle)

    def open(self, *, unidirectional: bool) -> Stream:
        """A stream of ours, without a QUIC id."""
        return self._add(UNBOUND, unidirectional=unidirectional, local=True)

    def bind(self, stream: Stream, wire: int) -> None:
        """Give a stream of ours its QUIC id."""
        stream.wire = wire
        self.by_wire[wire] = stream

    def accept(self, wire: int) -> Stream | None:
        """The new stream of the peer with this id; None when it is ours, or known, or has ended.

        Ids may come in any order: opening one opens all lower ones of its kind (RFC 9000 §2.1).
        """
        if wire & 1 == self._ours:
            return None
        kind = wire & 3
        fresh = self._fresh[kind]
        if wire >= fresh:
            self._skipped.update(range(fresh, wire, 4))
            self._fresh[kind] = wire + 4
        elif wire in self._skipped:
            self._skipped.remove(wire)
        else:
            return None
        return self._add(wire, unidirectional=bool(wire & 2), local=False)

    def end_send(self, stream: Stream) -> bool:
        """Our direction is over; True when the stream is gone with it."""
        stream.send_open = False
        return self._drop_if_over(stream)

    def end_recv(self, stream: Stream) -> bool:
        """The peer's direction is over; True when the stream is gone with it."""
        stream.recv_open = False
        return self._drop_if_over(stream)

    def clear(self) -> None:
        """Forget all streams; handles are not used again."""
        self.by_handle.clear()
        self.by_wire.clear()
        self._skipped.clear()

    def _add(self, wire: int, *, unidirectional: bool, local: bool) -> Stream:
        stream = Stream(self._handles, wire, unidirectional=unidirectional, local=local)
        self._handles += 1
        self.by_handle[stream.handle] = stream
        if wire >= 0:
            self.by_wire[wire] = stream
        return stream

    def _drop_if_over(self, stream: Stream) -> bool:
        if stream.send_open or stream.recv_open:
            return False
        self.by_handle.pop(stream.handle, None)
        self.by_wire.pop(stream.wire, None)
        return True
