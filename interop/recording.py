"""Receivers that keep what they hear and let a case wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import MoqtError
    from moqt.model import Gap, ObjectHead, SubgroupHead, TrackNamespace
    from moqt.session.ports import TrackInfo
    from transport.api import BytesLike


class Changes:
    """Wait for a condition that changes only when ``changed`` is called."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.error: MoqtError | None = None

    def changed(self) -> None:
        """Look again."""
        self._event.set()

    async def until(self, met: Callable[[], object]) -> None:
        """Wait until ``met()``; raises the error that made it impossible."""
        while not met():
            if self.error is not None:
                raise self.error
            self._event.clear()
            await self._event.wait()


class Stream:
    """One stream's objects, in order."""

    def __init__(self, owner: Collector, head: SubgroupHead | None) -> None:
        self.head = head
        self.objects: list[tuple[ObjectHead, bytes]] = []
        self.gaps: list[Gap] = []
        #: "fin", a reset code, or None while it runs.
        self.over: str | int | None = None
        self._owner = owner
        self._head: ObjectHead | None = None
        self._payload = bytearray()

    def begin(self, head: ObjectHead) -> None:
        """An object starts."""
        self._head = head
        self._payload = bytearray()

    def write(self, view: BytesLike) -> None:
        """More of it."""
        self._payload += view

    def end(self) -> None:
        """It is whole."""
        if self._head is not None:
            self.objects.append((self._head, bytes(self._payload)))
        self._owner.changed()

    def gap(self, gap: Gap) -> None:
        """A range that will not come."""
        self.gaps.append(gap)

    def finish(self) -> None:
        """FIN."""
        self.over = "fin"
        self._owner.changed()

    def abort(self, code: int) -> None:
        """Reset."""
        self.over = code
        self._owner.changed()

    @property
    def places(self) -> list[tuple[int, int]]:
        """Locations in order of arrival."""
        return [(head.group, head.object) for head, _ in self.objects]


class Collector(Changes):
    """A TrackReceiver that keeps everything."""

    def __init__(self) -> None:
        super().__init__()
        self.info: TrackInfo | None = None
        self.subgroups: list[Stream] = []
        self.fetches: list[Stream] = []
        self.datagrams: list[tuple[ObjectHead, bytes]] = []
        self.end: tuple[int, str, bool] | None = None

    def accepted(self, info: TrackInfo) -> None:
        """SUBSCRIBE_OK or FETCH_OK."""
        self.info = info
        self.changed()

    def open_subgroup(self, head: SubgroupHead) -> Stream:
        """A live stream."""
        self.subgroups.append(Stream(self, head))
        return self.subgroups[-1]

    def open_fetch(self, request_id: int) -> Stream:
        """A fetch or fill stream."""
        self.fetches.append(Stream(self, None))
        return self.fetches[-1]

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A datagram."""
        self.datagrams.append((head, bytes(payload)))
        self.changed()

    def done(self, code: int, reason: str, complete: bool) -> None:
        """The end, as announced."""
        self.end = (code, reason, complete)
        self.changed()

    def failed(self, error: MoqtError) -> None:
        """The end, in failure."""
        self.error = error
        self.changed()

    @property
    def objects(self) -> list[tuple[ObjectHead, bytes]]:
        """All that came, past objects first."""
        streams = (*self.fetches, *self.subgroups)
        return [one for stream in streams for one in stream.objects] + self.datagrams

    @property
    def live(self) -> list[tuple[ObjectHead, bytes]]:
        """What came on subgroup streams."""
        return [one for stream in self.subgroups for one in stream.objects]

    @property
    def payloads(self) -> dict[tuple[int, int], bytes]:
        """Payload by Location; status objects left out."""
        return {(head.group, head.object): body for head, body in self.objects if not head.status}

    @property
    def twice(self) -> list[tuple[int, int]]:
        """Locations of objects that came before, once for each time too many."""
        count = Counter((head.group, head.object) for head, _ in self.objects if not head.status)
        return sorted((count - Counter(count.keys())).elements())


class Namespaces(Changes):
    """A NamespaceListener that keeps what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.ok = False
        self.over = False
        self.known: set[TrackNamespace] = set()
        self.lost: set[TrackNamespace] = set()

    def accepted(self) -> None:
        """REQUEST_OK."""
        self.ok = True
        self.changed()

    def found(self, namespace: TrackNamespace) -> None:
        """NAMESPACE."""
        self.known.add(namespace)
        self.changed()

    def gone(self, namespace: TrackNamespace) -> None:
        """NAMESPACE_DONE."""
        self.known.discard(namespace)
        self.lost.add(namespace)
        self.changed()

    def ended(self, error: MoqtError | None) -> None:
        """The request is over."""
        self.over = True
        self.error = error
        self.changed()


class Answer(Changes):
    """The answer to a PUBLISH_NAMESPACE, and what came of it later."""

    def __init__(self) -> None:
        super().__init__()
        self.ok = False

    def __call__(self, error: MoqtError | None) -> None:
        """Accepted, refused, or over."""
        self.ok = self.ok or error is None
        self.error = error
        self.changed()
