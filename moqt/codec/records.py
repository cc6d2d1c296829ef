"""Cuts a data stream into object heads and payload views, however its octets arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.codec import varint
from moqt.codec.varint import Incomplete
from moqt.errors import ProtocolViolation

if TYPE_CHECKING:
    from moqt.model import ObjectSink
    from transport.api import BytesLike

#: The longest object head without its properties: flags, two ids, subgroup, priority, two lengths.
_MAX_FIXED_HEAD: Final = 6 * varint.MAX_SIZE + 1


class ReadLimits(NamedTuple):
    """What one object head may make us hold. ``properties``: octets of its Properties field."""

    properties: int = 65_535


DEFAULT_LIMITS: Final = ReadLimits()


class RecordReader(ABC):
    """Cuts a stream after its header into heads and payload views, however its octets arrive.

    Payload views are slices of what was fed. Only a cut head is held: at most its fixed part and
    ``limits.properties`` octets.
    """

    __slots__ = ("_begun", "_held", "_left", "_limits", "_need", "_promised", "_sink")

    def __init__(self, sink: ObjectSink, limits: ReadLimits) -> None:
        self._sink = sink
        self._limits = limits
        self._left = 0
        self._held = bytearray()
        self._need = 0
        self._begun = 0
        self._promised = 0

    @property
    def tally(self) -> tuple[int, int]:
        """Objects begun, octets of their payload that have come."""
        return self._begun, self._promised - self._left

    @property
    def pending(self) -> bool:
        """True inside a head that was begun and is not whole."""
        return bool(self._held)

    def feed(self, view: BytesLike, fin: bool = False) -> None:
        """The next octets. ProtocolViolation, or MalformedTrack, ends the stream for the reader.

        The sink is then neither finished nor aborted: that is its owner's matter.
        """
        size = len(view)
        left = self._left
        if left >= size > 0:
            # The common case by far: a chunk inside one payload.
            self._left = left - size
            self._sink.write(view)
            if left == size:
                self._sink.end()
        elif size:
            self._walk(view if type(view) is memoryview else memoryview(view), size)
        if fin:
            if self._left or self._held:
                raise ProtocolViolation("stream ended inside an object")
            self._sink.finish()

    def _walk(self, view: memoryview, size: int) -> None:
        sink = self._sink
        at = self._left
        if at:
            self._left = 0
            sink.write(view[:at])
            sink.end()
        elif self._held:
            at = self._resume(view, size)
        while at < size:
            try:
                at, left = self._head(view, at)
            except Incomplete:
                self._held = bytearray(view[at:])
                return
            if not left:
                continue
            end = at + left
            if end > size:
                self._left = end - size
                if at < size:
                    sink.write(view[at:])
                return
            sink.write(view[at:end])
            sink.end()
            at = end

    def _resume(self, view: memoryview, size: int) -> int:
        """Complete the held head with the front of ``view``; the offset to go on from."""
        held = self._held
        if len(held) + size < self._need:
            held += view
            return size
        front = bytes(held) + view[:_MAX_FIXED_HEAD]
        found = self._whole_head(front)
        if found is None and size > _MAX_FIXED_HEAD:
            # Its properties are long; no head is longer than this.
            front = bytes(held) + view[: _MAX_FIXED_HEAD + self._limits.properties]
            found = self._whole_head(front)
        if found is None:
            self._held = bytearray(front)
            return size
        at, left = found
        self._held = bytearray()
        self._need = 0
        at -= len(held)
        here = min(left, size - at)
        if here:
            self._sink.write(view[at : at + here])
        self._left = left - here
        if left and not self._left:
            self._sink.end()
        return at + here

    def _whole_head(self, front: bytes) -> tuple[int, int] | None:
        try:
            return self._head(memoryview(front), 0)
        except Incomplete:
            return None

    def _properties(self, data: memoryview, at: int, start: int) -> tuple[bytes, int]:
        """The Properties field at ``at`` of the head that began at ``start``."""
        length, at = varint.decode(data, at)
        if not length:
            return b"", at
        if length > self._limits.properties:
            raise ProtocolViolation(
                f"object properties of {length} octets; at most {self._limits.properties} are taken"
            )
        end = at + length
        if end >= len(data):
            # A payload length always follows.
            self._need = end - start + 1
            raise Incomplete("cut inside object properties")
        return bytes(data[at:end]), end

    @abstractmethod
    def _head(self, data: memoryview, at: int) -> tuple[int, int]:
        """Read one record at ``at`` and report it; next offset and payload length.

        Incomplete leaves no trace. An object without payload is ended at once.
        """
