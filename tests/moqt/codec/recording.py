"""An ObjectSink that keeps what it is told, and insists on the order of calls the port promises."""

from __future__ import annotations

from typing import Any

from moqt.codec.data import FetchHeader, FetchReader, SubgroupHeader, SubgroupReader
from moqt.model import Gap, GroupOrder, ObjectHead
from transport.api import BytesLike

FIN = "FIN"


class Recorder:
    """Collects ``(head, payload)`` per whole object, each ``Gap``, and ``FIN``."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.views: list[BytesLike] = []
        self._head: ObjectHead | None = None
        self._payload = b""

    @property
    def begun(self) -> ObjectHead | None:
        """The object in progress."""
        return self._head

    @property
    def objects(self) -> list[tuple[ObjectHead, bytes]]:
        """The whole objects only."""
        return [each for each in self.records if each != FIN and not isinstance(each, Gap)]

    def begin(self, head: ObjectHead) -> None:
        """Only between objects."""
        assert self._head is None
        self._head = head
        self._payload = b""

    def write(self, view: BytesLike) -> None:
        """Never empty, never beyond the announced length."""
        assert self._head is not None
        assert len(view) > 0
        self.views.append(view)
        self._payload += view
        assert len(self._payload) <= self._head.length

    def end(self) -> None:
        """Only when the views add up."""
        assert self._head is not None
        assert len(self._payload) == self._head.length
        self.records.append((self._head, self._payload))
        self._head = None

    def gap(self, gap: Gap) -> None:
        """Only between objects."""
        assert self._head is None
        self.records.append(gap)

    def finish(self) -> None:
        """Once, and last."""
        assert self._head is None
        assert FIN not in self.records
        self.records.append(FIN)

    def abort(self, code: int) -> None:
        """A reader never aborts by itself."""
        raise AssertionError("the reader aborted its sink")


def read_subgroup(wire: bytes, *cuts: int, default_priority: int = 128) -> Recorder:
    """A whole subgroup stream with FIN, its part after the header cut at ``cuts``."""
    header, at = SubgroupHeader.decode(wire)
    sink = Recorder()
    feed(SubgroupReader(header, default_priority, sink), wire[at:], *cuts)
    return sink


def read_fetch(wire: bytes, *cuts: int, order: GroupOrder = GroupOrder.ASCENDING) -> Recorder:
    """A whole fetch stream with FIN, its part after the header cut at ``cuts``."""
    _, at = FetchHeader.decode(wire)
    sink = Recorder()
    feed(FetchReader(order, sink), wire[at:], *cuts)
    return sink


def feed(reader: SubgroupReader | FetchReader, data: bytes, *cuts: int) -> None:
    """Feed ``data`` in the pieces that ``cuts`` make, FIN with the last one."""
    places = sorted({min(cut, len(data)) for cut in cuts} - {0, len(data)})
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        reader.feed(data[start:end], end == len(data))
