"""A session written down as JSON lines: messages, streams, objects, ends; for people and programs.

It stands between a Session and its transport, so a session without trace pays nothing. Payload,
values of tokens and queries of URLs are never written. docs/moqt.md lists the events.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter, StreamType, read_stream_type
from moqt.codec.data import FetchHeader, FetchReader, SubgroupHeader, SubgroupReader
from moqt.codec.datagram import decode_datagram
from moqt.codec.fields import Token, namespace_text, to_text
from moqt.codec.profile import LATEST, Profile
from moqt.codec.varint import Incomplete
from moqt.counters import code_name
from moqt.errors import MoqtError
from moqt.model import FullTrackName, GroupOrder, Location
from transport.errors import StreamAbort

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.model import Gap, ObjectHead
    from transport.api import (
        BytesLike,
        Chunk,
        ChunkSource,
        PeerCertificate,
        PeerInfo,
        SendOrder,
        TransportSession,
        TransportSink,
    )

_log = logging.getLogger(__name__)

#: Fetches and fills whose stream has not come yet, whose group order is remembered.
MAX_ORDERS: Final = 4096
#: What a URL may hold that is nobody's business: its user, and its query.
_USER: Final = re.compile(r"[^/@]*@")
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)


class Trace:
    """A file of events, one JSON object a line, of all sessions it is given to.

    ``clock`` gives Unix time in seconds. When the file cannot be written any more, that is logged
    once and the trace ends; the sessions go on.
    """

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.time) -> None:
        self._file: IO[str] | None = file
        self._clock = clock
        self._sessions = 0

    def session(self, transport: TransportSession, profile: Profile = LATEST) -> Traced:
        """What a Session uses instead of ``transport``."""
        self._sessions += 1
        return Traced(self, self._sessions, transport, profile)

    def write(self, session: int, event: str, **members: object) -> None:
        """One event; members that are None are left out."""
        if self._file is None:
            return
        known = {name: value for name, value in members.items() if value is not None}
        line = {"time": round(self._clock(), 6), "session": session, "event": event, **known}
        self._try(lambda file: file.write(json.dumps(line) + "\n"))

    def flush(self) -> None:
        """Everything is in the file now."""
        self._try(lambda file: file.flush())

    def _try(self, action: Callable[[IO[str]], object]) -> None:
        if self._file is None:
            return
        try:
            action(self._file)
        except (OSError, ValueError) as error:  # ValueError: somebody has closed the file
            self._file = None
            _log.error("the trace ends here: %s", error)


class Traced:
    """A TransportSession, and around its owner a TransportSink: both write down what passes."""

    def __init__(
        self, trace: Trace, number: int, transport: TransportSession, profile: Profile
    ) -> None:
        self._trace = trace
        self._number = number
        self._transport = transport
        self.profile = profile
        self._taps: dict[tuple[str, int], _Tap] = {}
        self._orders: dict[int, GroupOrder] = {}
        self.wake = transport.wake
        self.reorder = transport.reorder
        self.started = transport.started
        self.stream_slots = transport.stream_slots
        self.unacknowledged = transport.unacknowledged
        self.unsent = transport.unsent
        self.write_event("begin", role="client" if transport.is_client else "server")

    def sink(self, inner: TransportSink) -> TransportSink:
        """What the transport reports to instead of ``inner``."""
        return _Sink(self, inner)

    @property
    def is_client(self) -> bool:
        """See TransportSession."""
        return self._transport.is_client

    @property
    def peer(self) -> PeerInfo:
        """See TransportSession."""
        return self._transport.peer

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """See TransportSession."""
        return self._transport.peer_certificate

    def open(self, order: SendOrder, *, unidirectional: bool) -> int:
        """See TransportSession."""
        stream = self._transport.open(order, unidirectional=unidirectional)
        self.opened("out", stream, unidirectional=unidirectional)
        return stream

    def write(self, stream: int, *views: BytesLike) -> None:
        """See TransportSession."""
        for view in views:
            self.passed("out", stream, view)
        self._transport.write(stream, *views)

    def feed(self, stream: int, source: ChunkSource) -> None:
        """See TransportSession."""
        self._transport.feed(stream, self._pulled(stream, source))

    def finish(self, stream: int) -> None:
        """See TransportSession."""
        self.passed("out", stream, b"", fin=True)
        self._transport.finish(stream)

    def reset(self, stream: int, code: int) -> None:
        """See TransportSession."""
        self.ended("out", stream, "reset", code)
        self._transport.reset(stream, code)

    def stop(self, stream: int, code: int) -> None:
        """See TransportSession."""
        self.ended("in", stream, "stop", code)
        self._transport.stop(stream, code)

    def send_datagram(self, data: bytes) -> bool:
        """See TransportSession."""
        sent = self._transport.send_datagram(data)
        self.datagram("out", data, dropped=None if sent else True)
        return sent

    def close(self, code: int, reason: str = "") -> None:
        """See TransportSession."""
        self.write_event("close", code=code, reason=reason)
        self._transport.close(code, reason)

    # -- what both directions tell ---------------------------------------------------------------

    def write_event(self, event: str, **members: object) -> None:
        """One event of this session."""
        self._trace.write(self._number, event, **members)

    def opened(self, way: str, stream: int, *, unidirectional: bool) -> None:
        """Follow a new stream that ``way`` ("in" is the peer) has opened."""
        if unidirectional:
            self._taps[way, stream] = _DataTap(self, way, stream)
            return
        self.write_event("stream", way=way, stream=stream, kind="request")
        for each in ("in", "out"):
            self._taps[each, stream] = _MessageTap(self, each, stream)

    def passed(self, way: str, stream: int, view: BytesLike, *, fin: bool = False) -> None:
        """The next octets of a stream."""
        tap = self._taps.get((way, stream))
        if tap is not None:
            tap.feed(view)
            if fin:
                self.ended(way, stream, "fin")

    def ended(self, way: str, stream: int, how: str, code: int | None = None) -> None:
        """Nothing more passes ``way`` on this stream."""
        if self._taps.pop((way, stream), None) is not None:
            name = None if code is None else code_name(code)
            self.write_event("stream_end", way=way, stream=stream, how=how, code=name)

    def datagram(self, way: str, data: bytes, *, dropped: bool | None = None) -> None:
        """A datagram; ``dropped`` when it could not be sent."""
        try:
            found = decode_datagram(data, self.profile)
        except MoqtError as fault:
            self.write_event("undecodable", way=way, why=str(fault))
            return
        if found is not None:
            self.write_event(
                "datagram",
                way=way,
                track_alias=found.track_alias,
                **_object(found.head.group, found.head.object, found.head.length),
                status=found.head.status.name if found.head.status else None,
                dropped=dropped,
            )

    def over(self, code: int, reason: str, *, remote: bool) -> None:
        """The session has ended."""
        self._taps.clear()
        self._orders.clear()
        self.write_event("end", code=code, reason=reason, remote=remote)
        self._trace.flush()

    def expect(self, request_id: int, order: GroupOrder) -> None:
        """The fetch stream ``request_id`` will have this order."""
        self._orders[request_id] = order
        if len(self._orders) > MAX_ORDERS:
            del self._orders[next(iter(self._orders))]

    def order(self, request_id: int) -> GroupOrder:
        """The group order of a fetch stream that starts."""
        return self._orders.pop(request_id, GroupOrder.ASCENDING)

    def _pulled(self, stream: int, source: ChunkSource) -> ChunkSource:
        chunk: Chunk | None
        try:
            for chunk in source:
                for view in () if chunk is None else chunk.views:
                    self.passed("out", stream, view)
                yield chunk
        except StreamAbort as abort:
            self.ended("out", stream, "reset", abort.code)
            raise
        self.passed("out", stream, b"", fin=True)


class _Sink:
    """The TransportSink around the owner's."""

    def __init__(self, traced: Traced, inner: TransportSink) -> None:
        self._traced = traced
        self._inner = inner
        self.stream_sent = inner.stream_sent

    def connected(self) -> None:
        peer = self._traced.peer
        self._traced.write_event("connected", peer=list(peer.address), protocol=peer.protocol)
        self._inner.connected()

    def stream_opened(self, stream: int, unidirectional: bool) -> None:
        self._traced.opened("in", stream, unidirectional=unidirectional)
        self._inner.stream_opened(stream, unidirectional)

    def stream_data(self, stream: int, data: BytesLike, fin: bool) -> None:
        self._traced.passed("in", stream, data, fin=fin)
        self._inner.stream_data(stream, data, fin)

    def stream_reset(self, stream: int, code: int) -> None:
        self._traced.ended("in", stream, "reset", code)
        self._inner.stream_reset(stream, code)

    def stop_sending(self, stream: int, code: int) -> None:
        self._traced.write_event("stop", way="in", stream=stream, code=code_name(code))
        self._inner.stop_sending(stream, code)

    def datagram(self, data: bytes) -> None:
        self._traced.datagram("in", data)
        self._inner.datagram(data)

    def closed(self, code: int, reason: str, remote: bool) -> None:
        self._inner.closed(code, reason, remote)
        self._traced.over(code, reason, remote=remote)


# ------------------------------------------------------------------------------- reading along


class _MessageTap:
    """One direction of a request or control stream."""

    def __init__(self, traced: Traced, way: str, stream: int) -> None:
        self._traced = traced
        self._at = {"way": way, "stream": stream}
        self._splitter: MessageSplitter | None = MessageSplitter(traced.profile)
        #: Of the subscription: what its fills inherit.
        self._order = GroupOrder.ASCENDING

    def feed(self, view: BytesLike) -> None:
        if self._splitter is None:
            return
        try:
            for kind, body in self._splitter.feed(view):
                self._message(m.decode_message(self._traced.profile, kind, body), len(body))
        except MoqtError as fault:
            self._splitter = None
            self._traced.write_event("undecodable", **self._at, why=str(fault))

    def _message(self, message: m.Message, length: int) -> None:
        kind = m.kind_of(message).name
        self._traced.write_event(
            "message", **self._at, message=kind, length=length, fields=plain(message)
        )
        if isinstance(message, m.Fetch):
            order = message.parameters.group_order
            self._traced.expect(message.request_id, order or GroupOrder.ASCENDING)
        elif isinstance(message, m.Subscribe | m.RequestUpdate):
            self._order = message.parameters.group_order or self._order
            self._fill(message.request_id, message.parameters)

    def _fill(self, request_id: int, parameters: Parameters) -> None:
        if parameters.fill is not None:
            self._traced.expect(request_id, parameters.fill.group_order or self._order)


class _DataTap:
    """A unidirectional stream: its type, its header, its objects."""

    def __init__(self, traced: Traced, way: str, stream: int) -> None:
        self._traced = traced
        self._way = way
        self._stream = stream
        self._held = b""
        self._feed: Callable[[BytesLike], None] = self._header

    def feed(self, view: BytesLike) -> None:
        try:
            self._feed(view)
        except MoqtError as fault:
            self._feed = _ignore
            self._event("undecodable", why=str(fault))

    def _header(self, view: BytesLike) -> None:
        octets = self._held + bytes(view)
        if not octets:
            return
        try:
            self._begin(octets)
        except Incomplete:
            self._held = octets

    def _begin(self, octets: bytes) -> None:
        profile = self._traced.profile
        kind, at = read_stream_type(octets, profile), 0
        members: dict[str, Any] = {}
        if kind is StreamType.SUBGROUP:
            header, at = SubgroupHeader.decode(octets)
            members = plain(header)
            self._feed = SubgroupReader(header, 0, self).feed
        elif kind is StreamType.FETCH:
            fetch, at = FetchHeader.decode(octets, 0, profile)
            members = plain(fetch)
            self._feed = FetchReader(self._traced.order(fetch.request_id), self).feed
        elif kind is StreamType.CONTROL:
            self._feed = _MessageTap(self._traced, self._way, self._stream).feed
        else:
            self._feed = _ignore
        self._held = b""
        self._event("stream", kind=kind.name.lower(), **members)
        self._feed(memoryview(octets)[at:])

    def _event(self, event: str, **members: object) -> None:
        self._traced.write_event(event, way=self._way, stream=self._stream, **members)

    # -- ObjectSink ------------------------------------------------------------------------------

    def begin(self, head: ObjectHead) -> None:
        self._last = head
        self._event(
            "object",
            **_object(head.group, head.object, head.length),
            subgroup=head.subgroup,
            status=head.status.name if head.status else None,
            properties=len(head.properties) or None,
        )

    def write(self, view: BytesLike) -> None:
        pass

    def end(self) -> None:
        head = self._last
        self._event("object_end", group=head.group, object=head.object)

    def gap(self, gap: Gap) -> None:
        self._event("gap", kind=gap.kind.name, group=gap.location.group, object=gap.location.object)

    def finish(self) -> None:
        pass

    def abort(self, code: int) -> None:
        pass


_Tap: TypeAlias = _MessageTap | _DataTap


def _ignore(view: BytesLike) -> None:
    """What nobody can read."""


def _object(group: int, number: int, length: int) -> dict[str, int]:
    return {"group": group, "object": number, "length": length}


def plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON can say
    """A protocol value for JSON: defaults left out, no secrets, names in their canonical text."""
    if isinstance(value, Token):
        kind = value.alias_type.name
        return {
            "alias_type": kind,
            "alias": value.alias,
            "type": value.type,
            "octets": len(value.value),
        }
    if isinstance(value, FullTrackName):
        return to_text(value)
    if isinstance(value, Location):
        return list(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        octets = all(isinstance(part, bytes) for part in value)
        return namespace_text(value) if octets else [plain(part) for part in value]
    if is_dataclass(value):
        return _members(value)
    return value


def _members(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    found = {}
    for each in fields(value):
        member = getattr(value, each.name)
        if each.default is MISSING or member != each.default:
            found[each.name] = _public(member) if each.name in _URLS else plain(member)
    return found


#: Members that may hold a query or a user.
_URLS: Final = frozenset({"uri", "path", "authority"})


def _public(url: str) -> str:
    return _USER.sub("...@", _QUERY.sub("?...", url))
