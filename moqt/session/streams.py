"""Incoming data streams: type, header, owner, then straight into its sink (draft-22 §11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codec.control import StreamType, read_stream_type
from moqt.codec.data import FetchHeader, FetchReader, SubgroupHeader, SubgroupReader
from moqt.codec.varint import Incomplete
from moqt.errors import MalformedTrack, ProtocolViolation, StreamCode
from moqt.model import SubgroupHead
from moqt.session.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import SessionClosed
    from moqt.model import ObjectSink
    from moqt.session.context import Context
    from moqt.session.subscriptions import SubscriberHalf
    from moqt.session.timers import Timer
    from moqt.session.track_requests import TrackRequest
    from transport.api import BytesLike


class DataStream:
    """One unidirectional stream of the peer, from its first octet."""

    __slots__ = (
        "_context",
        "_control",
        "_dropped",
        "_feeding",
        "_fin",
        "_held",
        "_kind",
        "_owner",
        "_patience",
        "_reader",
        "_sink",
        "handle",
        "header",
        "heard",
        "subgroup",
        "timer",
    )

    def __init__(
        self, context: Context, stream: int, control: Callable[[DataStream, bytes, bool], None]
    ) -> None:
        self._context = context
        self.handle = stream
        self._control = control
        self._held = bytearray()
        self._kind: StreamType | None = None
        self._fin = False
        self._reader: SubgroupReader | FetchReader | None = None
        self._sink: ObjectSink | None = None
        self._owner: TrackRequest | None = None
        self._feeding = False
        self._dropped = 0
        self._patience = Patience(context, self._stalled)
        #: When its last octets came.
        self.heard = context.now
        #: Of a subgroup stream, once read; ``subgroup`` None is a stream without any object.
        self.header: SubgroupHeader | None = None
        self.subgroup: int | None = None
        #: Set while the stream waits for its alias.
        self.timer: Timer | None = None

    # -- stream owner ----------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets; once the reader stands they pass straight through it."""
        reader = self._reader
        if reader is None:
            self._intake(view, fin)
            return
        self.heard = self._context.now
        self._feeding = True
        try:
            reader.feed(view, fin)
        except MalformedTrack as fault:
            self._feeding = False
            self._malformed(fault)
            return
        self._feeding = False
        if self._reader is None:  # abandoned by what the sink was told
            if not fin:
                self._abort_sink(self._dropped)
            self._sink = None
        elif fin:
            self._over(None)
        else:
            self._patience.watch(reader.pending)

    def reset(self, code: int) -> None:
        """The peer gave the stream up."""
        context = self._context
        lost = self._owner is None and self._kind is not StreamType.PADDING
        context.streams.leave(self)
        self._abort_sink(code)
        self._over(code)
        if lost:
            for owner, _ in tuple(context.streams.awaited.values()):
                owner.stream_lost()  # any of them may be it
            if context.on_stream_lost is not None:
                context.on_stream_lost()

    def stop(self, code: int) -> None:
        """Never: the stream is the peer's."""

    def sent(self) -> None:
        """Never: the stream is the peer's."""

    def closed(self, error: SessionClosed) -> None:
        """The session is gone: what was begun is lost."""
        self._count()
        self._abort_sink(-1)

    # -- from its owner and from the routes ------------------------------------------------------

    @property
    def tally(self) -> tuple[int, int]:
        """Objects begun, octets of their payload that have come."""
        return (0, 0) if self._reader is None else self._reader.tally

    @property
    def waiting(self) -> int:
        """Octets kept until it has an owner."""
        return len(self._held)

    def attach(self, owner: SubscriberHalf) -> None:
        """Its alias is known: hand over what was kept."""
        held, self._held = bytes(self._held), bytearray()
        self._start(owner, held)

    def abandon(self, code: int) -> None:
        """Nobody wants the rest: stop it, abort its sink, forget it.

        A sink that is just being written to hears of it when the present octets are through.
        """
        self._context.streams.leave(self)
        self._patience.watch(False)
        self._held.clear()
        self._owner = None
        self._count()
        self._dropped = code
        if not self._feeding:
            self._abort_sink(code)
        self._context.transport.stop(self.handle, code)
        self._context.forget(self.handle)

    # -- inside ----------------------------------------------------------------------------------

    def _intake(self, view: BytesLike, fin: bool) -> None:
        if self._kind is StreamType.PADDING:
            if fin:
                self._context.forget(self.handle)
            return
        if self.timer is not None:
            self._held += view
            self._fin = fin
            self._context.streams.grown(self, len(view))
            return
        if self._kind is not None and not self._context.established:
            self._hold(view, fin)
            return
        self._fin = fin
        octets = bytes(self._held) + view if self._held else view
        try:
            self._decide(octets)
        except Incomplete:
            if fin:
                raise ProtocolViolation("a unidirectional stream ended inside its header") from None
            self._held = bytearray(octets)
            self._patience.watch(True)
        else:
            self._patience.watch(self._reader is not None and self._reader.pending)

    def _decide(self, octets: BytesLike) -> None:
        """What the stream is; Incomplete leaves no trace."""
        profile = self._context.profile
        kind = self._kind = self._kind or read_stream_type(octets, profile)
        if kind is StreamType.CONTROL:
            self._control(self, bytes(octets), self._fin)
        elif kind is StreamType.PADDING:
            self._held.clear()
            self._intake(b"", self._fin)
        elif not self._context.established:
            self._held.clear()
            self._hold(octets, self._fin)
        elif kind is StreamType.FETCH:
            header, at = FetchHeader.decode(octets, 0, profile)
            self._start_fetch(header, memoryview(octets)[at:])
        else:
            self._start_subgroup(octets)

    def _hold(self, octets: BytesLike, fin: bool) -> None:
        if not self._context.hold(self.handle, octets, fin):
            self.abandon(StreamCode.EXCESSIVE_LOAD)

    def _start_fetch(self, header: FetchHeader, rest: memoryview) -> None:
        awaited = self._context.streams.awaited.get(header.request_id)
        if awaited is None:  # cancelled, served, or never asked for
            self.abandon(StreamCode.CANCELLED)
            return
        owner, order = awaited
        self._held.clear()
        self._owner = owner
        try:
            sink = owner.integrity.fetch(owner.open_fetch(self.handle, header.request_id))
        except MalformedTrack as fault:
            self._malformed(fault)
            return
        self._begin(sink, FetchReader(order, sink), rest)

    def _start_subgroup(self, octets: BytesLike) -> None:
        header, at = SubgroupHeader.decode(octets)
        # Without a Subgroup ID field the first Object ID is it: without an object there is none.
        empty = header.subgroup is None and self._fin and at == len(octets)
        subgroup = None if empty else header.subgroup_id(octets, at)
        self.header, self.subgroup = header, subgroup
        self._held.clear()
        streams = self._context.streams
        owner = streams.owner_of(self)
        if owner is not None:
            self._start(owner, memoryview(octets)[at:])
        elif streams.retired(header.track_alias):
            self.abandon(StreamCode.CANCELLED)
        else:
            self._held += memoryview(octets)[at:]
            streams.wait(self)

    def _start(self, owner: SubscriberHalf, rest: BytesLike) -> None:
        header = self.header
        if header is None:
            return
        self._owner = owner
        owner.count_stream(self.handle, (header.group, self.subgroup))
        if self.subgroup is None:
            self._over(None)
            return
        default = owner.default_priority
        head = SubgroupHead(
            header.group,
            self.subgroup,
            default if header.priority is None else header.priority,
            header.first_object,
            header.end_of_group,
            header.has_properties,
        )
        try:
            sink = owner.integrity.subgroup(head, owner.receiver.open_subgroup)
        except MalformedTrack as fault:
            self._malformed(fault)
            return
        self._begin(sink, SubgroupReader(header, default, sink), rest)

    def _begin(
        self, sink: ObjectSink, reader: SubgroupReader | FetchReader, rest: BytesLike
    ) -> None:
        if self._owner is None:  # the request was cancelled while it opened the sink
            sink.abort(self._dropped)
            return
        self._sink = sink
        self._reader = reader
        self.data(rest, self._fin)

    def _malformed(self, fault: MalformedTrack) -> None:
        owner = self._owner
        if owner is not None:
            owner.malformed(fault)
        else:
            self._abort_sink(self._dropped)

    def _abort_sink(self, code: int) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort(code)

    def _count(self) -> None:
        """Nothing more is read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._context.counters.received.carried(*reader.tally)

    def _stalled(self) -> None:
        """A header was begun and not finished: stop this stream alone (draft-22 §12.2)."""
        owner = self._owner
        self.abandon(StreamCode.CANCELLED)
        if owner is not None:
            owner.stream_over(self.handle, StreamCode.CANCELLED)

    def _over(self, code: int | None) -> None:
        self._patience.watch(False)
        self._sink = None
        self._count()
        self._context.forget(self.handle)
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.stream_over(self.handle, code)
