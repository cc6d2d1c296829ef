"""Incoming data streams: type, header, owner, then straight into its sink (draft-22 §11)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from moqt.codec.control import StreamType, read_stream_type
from moqt.codec.data import (
    MAX_STREAM_HEADER,
    FetchHeader,
    FetchReader,
    SubgroupHeader,
    SubgroupReader,
)
from moqt.codec.varint import MAX_SIZE, Incomplete
from moqt.errors import MalformedTrack, ProtocolViolation, SessionCode, SessionFault, StreamCode
from moqt.model import SubgroupHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.errors import SessionClosed
    from moqt.model import ObjectSink
    from moqt.session.context import Context
    from moqt.session.requests import TrackRequest
    from moqt.session.subscriptions import OutgoingSubscribe
    from transport.api import BytesLike

#: Aliases of ended subscriptions whose stragglers are stopped at once (draft-22 §6.5): latest ones.
MAX_RETIRED_ALIASES: Final = 1024
#: A header and, in mode 1, the first Object ID: more is never needed to decide.
_MAX_INTAKE: Final = MAX_STREAM_HEADER + MAX_SIZE


class IncomingStreams:
    """Who owns which alias and which fetch stream; keeps what comes before its owner is known."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._aliases: dict[int, list[OutgoingSubscribe]] = {}
        self._retired: OrderedDict[int, None] = OrderedDict()
        self._fetches: dict[int, TrackRequest] = {}
        self._orphans: dict[int, list[DataStream]] = {}
        self._orphan_count = 0
        self.orphan_octets = 0

    def bind(self, alias: int, subscription: OutgoingSubscribe) -> None:
        """SUBSCRIBE_OK named ``alias``; streams that waited for it start now."""
        bound = self._aliases.setdefault(alias, [])
        if any(other.name != subscription.name for other in bound):
            raise SessionFault(SessionCode.DUPLICATE_TRACK_ALIAS, f"alias {alias} names two tracks")
        bound.append(subscription)
        self._retired.pop(alias, None)
        for stream in self._orphans.pop(alias, ()):
            self._orphan_count -= 1
            stream.attach(subscription)

    def expect_fetch(self, request_id: int, owner: TrackRequest) -> None:
        """A fetch or fill stream with this request id may come."""
        self._fetches[request_id] = owner

    def forget_fetch(self, request_id: int) -> None:
        """It has come, or never will."""
        self._fetches.pop(request_id, None)

    def release(self, owner: TrackRequest, alias: int | None, streams: set[int], code: int) -> None:
        """``owner`` is over: stop its streams, retire its alias."""
        if alias is not None and (bound := self._aliases.get(alias)) is not None:
            if owner in bound:
                bound.remove(owner)
            if not bound:
                del self._aliases[alias]
                self._retired[alias] = None
                if len(self._retired) > MAX_RETIRED_ALIASES:
                    self._retired.popitem(last=False)
        for handle in streams:
            stream = self._context.owners.get(handle)
            if isinstance(stream, DataStream):
                stream.abandon(code)

    def subscription(self, alias: int) -> OutgoingSubscribe | None:
        """The subscription an incoming object with ``alias`` belongs to."""
        bound = self._aliases.get(alias)
        return bound[-1] if bound else None

    def retired(self, alias: int) -> bool:
        """True when the alias was ours and is over."""
        return alias in self._retired

    def fetch(self, request_id: int) -> TrackRequest | None:
        """Who awaits this fetch stream."""
        return self._fetches.get(request_id)

    def adopt_orphan(self, alias: int, stream: DataStream) -> None:
        """Keep a stream of an unknown alias for a while (draft-22 §3.1.3.1)."""
        config = self._context.config
        if self._orphan_count >= config.orphan_streams:
            stream.abandon(StreamCode.EXCESSIVE_LOAD)
            return
        self._orphan_count += 1
        self._orphans.setdefault(alias, []).append(stream)
        self._context.call_at(
            self._context.now + config.orphan_timeout, lambda: self.drop_orphan(alias, stream)
        )

    def drop_orphan(self, alias: int, stream: DataStream) -> None:
        """Its subscription never came, or the stream ended before: let go."""
        waiting = self._orphans.get(alias)
        if waiting is not None and stream in waiting:
            waiting.remove(stream)
            self._orphan_count -= 1
            if not waiting:
                del self._orphans[alias]
            stream.abandon(StreamCode.CANCELLED)


class DataStream:
    """One unidirectional stream of the peer, from its first octet."""

    def __init__(
        self, context: Context, stream: int, control: Callable[[DataStream, bytes, bool], None]
    ) -> None:
        self._context = context
        self.handle = stream
        self._control = control
        self._held = bytearray()
        self._kind: StreamType | None = None
        self._header: SubgroupHeader | None = None
        self._fin = False
        self._waits_alias: int | None = None
        self._reader: SubgroupReader | FetchReader | None = None
        self._sink: ObjectSink | None = None
        self._owner: TrackRequest | None = None

    # -- stream owner ----------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Octets; once the reader stands they pass straight through it."""
        reader = self._reader
        if reader is None:
            self._intake(view, fin)
            return
        try:
            reader.feed(view, fin)
        except MalformedTrack as fault:
            self._malformed(fault)
            return
        if fin:
            self._over(None)

    def reset(self, code: int) -> None:
        """The peer gave the stream up."""
        if self._waits_alias is not None:
            self._context.streams.drop_orphan(self._waits_alias, self)
        self._abort_sink(code)
        self._over(code)

    def stop(self, code: int) -> None:
        """Never: the stream is the peer's."""

    def sent(self) -> None:
        """Never: the stream is the peer's."""

    def closed(self, error: SessionClosed) -> None:
        """The session is gone: what was begun is lost."""
        self._abort_sink(-1)

    # -- from IncomingStreams --------------------------------------------------------------------

    def attach(self, subscription: OutgoingSubscribe) -> None:
        """The alias is known now: replay what was kept."""
        self._waits_alias = None
        self._context.streams.orphan_octets -= len(self._held)
        header = self._header
        if header is None:
            return
        head = SubgroupHead(
            header.group,
            header.subgroup or 0,
            subscription.default_priority if header.priority is None else header.priority,
            header.first_object,
            header.end_of_group,
            header.has_properties,
        )
        held, self._held = bytes(self._held), bytearray()
        if header.subgroup is None:
            try:
                head = head._replace(subgroup=header.subgroup_id(held, 0))
            except (
                Incomplete
            ):  # ended before its first object: nothing to say but that it was there
                self._owner = subscription
                subscription.count_stream(self.handle)
                self._over(None)
                return
        self._owner = subscription
        try:
            self._sink = subscription.open_subgroup(self.handle, head)
        except MalformedTrack as fault:
            subscription.fail(fault)
            return
        self._reader = SubgroupReader(header, head.priority, self._sink)
        self.data(held, self._fin)

    def abandon(self, code: int) -> None:
        """Nobody wants the rest: stop it, abort its sink, forget it."""
        if self._waits_alias is not None:
            self._waits_alias = None
            self._context.streams.orphan_octets -= len(self._held)
        self._held = bytearray()
        self._abort_sink(code)
        self._owner = None
        self._reader = None
        self._context.transport.stop(self.handle, code)
        self._context.forget(self.handle)

    # -- inside ----------------------------------------------------------------------------------

    def _intake(self, view: BytesLike, fin: bool) -> None:
        if self._kind is StreamType.PADDING:
            if fin:
                self._context.forget(self.handle)
            return
        if self._waits_alias is not None:
            self._keep(view, fin)
            return
        if self._kind is not None and not self._context.established:
            self._context.hold(self.handle, self, view, fin)
            return
        self._held += view
        self._fin = fin
        try:
            self._decide()
        except Incomplete:
            if fin:
                raise ProtocolViolation("a unidirectional stream ended inside its header") from None
            if len(self._held) > _MAX_INTAKE:
                raise ProtocolViolation("a stream header longer than any can be") from None

    def _decide(self) -> None:
        kind = self._kind
        if kind is None:
            kind = self._kind = read_stream_type(self._held, self._context.profile)
        held = bytes(self._held)
        if kind is StreamType.CONTROL:
            self._control(self, held, self._fin)
        elif kind is StreamType.PADDING:
            self._held.clear()
            self._intake(b"", self._fin)
        elif not self._context.established:
            self._held.clear()
            self._context.hold(self.handle, self, held, self._fin)
        elif kind is StreamType.FETCH:
            self._start_fetch(held)
        else:
            self._start_subgroup(held)

    def _start_fetch(self, held: bytes) -> None:
        header, at = FetchHeader.decode(held)
        owner = self._context.streams.fetch(header.request_id)
        order = owner.fetch_order(header.request_id) if owner is not None else None
        if (
            owner is None or order is None
        ):  # cancelled meanwhile, or never asked: the session goes on
            self.abandon(StreamCode.CANCELLED)
            return
        self._owner = owner
        self._held.clear()
        try:
            self._sink = owner.open_fetch(self.handle, header.request_id)
        except MalformedTrack as fault:
            owner.fail(fault)
            return
        self._reader = FetchReader(order, self._sink)
        self.data(memoryview(held)[at:], self._fin)

    def _start_subgroup(self, held: bytes) -> None:
        header, at = SubgroupHeader.decode(held)
        if header.subgroup is None and not self._fin:
            header.subgroup_id(held, at)  # mode 1: wait until the first Object ID is there
        streams = self._context.streams
        self._header = header
        self._held = bytearray(held[at:])
        subscription = streams.subscription(header.track_alias)
        if subscription is not None:
            streams.orphan_octets += len(self._held)  # attach() takes them off again
            self.attach(subscription)
        elif streams.retired(header.track_alias):
            self.abandon(StreamCode.CANCELLED)
        else:
            self._waits_alias = header.track_alias
            streams.orphan_octets += len(self._held)
            streams.adopt_orphan(header.track_alias, self)

    def _keep(self, view: BytesLike, fin: bool) -> None:
        streams = self._context.streams
        self._held += view
        self._fin = fin
        streams.orphan_octets += len(view)
        if (
            streams.orphan_octets > self._context.config.orphan_octets
            and self._waits_alias is not None
        ):
            streams.drop_orphan(self._waits_alias, self)

    def _malformed(self, fault: MalformedTrack) -> None:
        owner = self._owner
        if owner is not None:
            owner.fail(fault)

    def _abort_sink(self, code: int) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort(code)

    def _over(self, code: int | None) -> None:
        self._sink = None
        self._reader = None
        self._context.forget(self.handle)
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.stream_over(self.handle, code)
