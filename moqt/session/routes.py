"""Who owns which alias and which fetch stream, and what waits for an owner (draft-22 §3.1.3)."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from moqt.errors import MalformedTrack, SessionCode, SessionFault, StreamCode
from moqt.session.state import Request
from moqt.session.streams import DataStream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.codec.datagram import Datagram
    from moqt.model import FullTrackName, GroupOrder
    from moqt.session.context import Context
    from moqt.session.subscriptions import SubscriberHalf
    from moqt.session.track_requests import TrackRequest

#: Aliases of ended subscriptions whose stragglers are stopped at once (draft-22 §6.5): latest ones.
MAX_RETIRED_ALIASES: Final = 1024


class IncomingStreams:
    """Routes data streams to their requests; keeps, for a while, what comes too early."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._aliases: dict[int, list[SubscriberHalf]] = {}
        self._retired: OrderedDict[int, None] = OrderedDict()
        self._unanswered: set[SubscriberHalf] = set()
        self._offers: dict[int, set[SubscriberHalf]] = {}
        #: Who awaits which fetch stream, and in which order of groups.
        self.awaited: dict[int, tuple[TrackRequest, GroupOrder]] = {}
        self._orphans: dict[int, dict[DataStream, None]] = {}
        self._orphan_count = 0
        self._orphan_octets = 0
        self._datagrams: deque[tuple[float, Datagram]] = deque()
        self._datagram_octets = 0

    # -- aliases ---------------------------------------------------------------------------------

    def expect_alias(self, subscription: SubscriberHalf) -> None:
        """A SUBSCRIBE is out: any alias, a retired one too, may turn out to be its."""
        self._unanswered.add(subscription)

    def check_alias(self, alias: int, name: FullTrackName) -> None:
        """SessionFault(DUPLICATE_TRACK_ALIAS) when another track in force or on offer has it."""
        offers = self._offers.get(alias, ())
        for other in (*self._aliases.get(alias, ()), *offers):
            live = other.state is Request.ESTABLISHED or other in offers
            if other.name != name and live:
                raise SessionFault(
                    SessionCode.DUPLICATE_TRACK_ALIAS, f"alias {alias} names two tracks"
                )

    def bind(self, alias: int, subscription: SubscriberHalf) -> None:
        """SUBSCRIBE_OK named ``alias``; streams that waited for it start now."""
        self._unanswered.discard(subscription)
        self._aliases.setdefault(alias, []).append(subscription)
        for stream in tuple(self._orphans.get(alias, ())):
            owner = self.owner_of(stream)
            if owner is None:  # what came before has ended the subscription
                stream.abandon(StreamCode.CANCELLED)
            else:
                self.leave(stream)
                stream.attach(owner)
        early, self._datagrams = self._datagrams, deque()
        self._datagram_octets = 0
        for due, found in early:
            if due > self._context.now:
                self.datagram(found)

    def offer(self, alias: int, subscription: SubscriberHalf) -> None:
        """A PUBLISH has come: its data waits until it is answered."""
        self.check_alias(alias, subscription.name)
        self._retired.pop(alias, None)
        self._offers.setdefault(alias, set()).add(subscription)

    def answered(self, alias: int, subscription: SubscriberHalf) -> None:
        """It waits no longer."""
        offers = self._offers.get(alias)
        if offers is not None:
            offers.discard(subscription)
            if not offers:
                del self._offers[alias]

    def refused(self, alias: int) -> None:
        """A PUBLISH is refused: its data streams are stopped (draft-22 §9.8)."""
        if alias not in self._aliases and alias not in self._offers:
            self._retire(alias)
            if self.retired(alias):
                for stream in tuple(self._orphans.get(alias, ())):
                    stream.abandon(StreamCode.CANCELLED)

    def retired(self, alias: int) -> bool:
        """True when an alias without owner is over, and no SUBSCRIBE of ours may yet get it."""
        return alias in self._retired and not self._unanswered

    def subscription(self, alias: int, group: int) -> SubscriberHalf | None:
        """The subscription that a datagram of ``group`` belongs to."""
        return self._choose(alias, group, None)

    def owner_of(self, stream: DataStream) -> SubscriberHalf | None:
        """The subscription that a subgroup stream belongs to."""
        header = stream.header
        if header is None:
            return None
        return self._choose(header.track_alias, header.group, stream.subgroup)

    def _choose(self, alias: int, group: int, subgroup: int | None) -> SubscriberHalf | None:
        """Subscriptions to one track may share an alias: the likeliest one (draft-22 §3.1)."""
        bound = self._aliases.get(alias)
        if not bound:
            return None
        if len(bound) == 1:
            return bound[0]
        return min(bound, key=lambda one: one.reluctance(group, subgroup))

    def release(
        self, owner: SubscriberHalf, alias: int | None, streams: Iterable[int], code: int
    ) -> None:
        """A subscription is over: stop its streams, retire its alias."""
        self._unanswered.discard(owner)
        bound = self._aliases.get(alias) if alias is not None else None
        if alias is not None and bound is not None and owner in bound:
            bound.remove(owner)
            if not bound:
                del self._aliases[alias]
                self._retire(alias)
        self.stop(streams, code)

    def _retire(self, alias: int) -> None:
        self._retired[alias] = None
        self._retired.move_to_end(alias)
        if len(self._retired) > MAX_RETIRED_ALIASES:
            self._retired.popitem(last=False)

    # -- fetches ---------------------------------------------------------------------------------

    def expect_fetch(self, request_id: int, owner: TrackRequest, order: GroupOrder) -> None:
        """A fetch or fill stream with this request id may come."""
        self.awaited[request_id] = owner, order

    def forget_fetch(self, request_id: int) -> None:
        """It has come, or never will."""
        self.awaited.pop(request_id, None)

    # -- datagrams -------------------------------------------------------------------------------

    def datagram(self, found: Datagram) -> None:
        """Hand it to its subscription, or keep it shortly for one that is unanswered (§3.1.3.1)."""
        owner = self.subscription(found.track_alias, found.head.group)
        if owner is None:
            self._keep(found)
            return
        try:
            head = found.head.resolve(owner.default_priority)
            owner.integrity.datagram(head, ends_group=found.head.end_of_group)
            owner.receiver.datagram(head, found.payload)
        except MalformedTrack as fault:
            owner.malformed(fault)

    def _keep(self, found: Datagram) -> None:
        config, size = self._context.config, _size(found)
        if not self._unanswered or size > config.orphan_datagram_octets:
            return
        kept = self._datagrams
        kept.append((self._context.now + config.orphan_timeout, found))
        self._datagram_octets += size
        while (
            len(kept) > config.orphan_datagrams
            or self._datagram_octets > config.orphan_datagram_octets
        ):
            self._datagram_octets -= _size(kept.popleft()[1])

    # -- streams ---------------------------------------------------------------------------------

    def stop(self, streams: Iterable[int], code: int) -> None:
        """Nobody wants these any more."""
        for handle in streams:
            stream = self._context.owners.get(handle)
            if isinstance(stream, DataStream):
                stream.abandon(code)

    def heard(self, streams: Iterable[int]) -> float:
        """When the last octets of any of these came."""
        owners = (self._context.owners.get(handle) for handle in streams)
        return max((one.heard for one in owners if isinstance(one, DataStream)), default=0.0)

    def wait(self, stream: DataStream) -> None:
        """Keep a stream of an unknown alias for a while (draft-22 §3.1.3.1)."""
        context, header = self._context, stream.header
        if header is None or self._orphan_count >= context.config.orphan_streams:
            stream.abandon(StreamCode.EXCESSIVE_LOAD)
            return
        self._orphan_count += 1
        self._orphans.setdefault(header.track_alias, {})[stream] = None
        stream.timer = context.call_later(
            context.config.orphan_timeout, lambda: stream.abandon(StreamCode.CANCELLED)
        )
        self.grown(stream, stream.waiting)

    def grown(self, stream: DataStream, octets: int) -> None:
        """A waiting stream keeps ``octets`` more."""
        self._orphan_octets += octets
        if self._orphan_octets > self._context.config.orphan_octets:
            stream.abandon(StreamCode.EXCESSIVE_LOAD)

    def leave(self, stream: DataStream) -> None:
        """A stream waits no longer; does nothing when it never did."""
        timer, stream.timer = stream.timer, None
        header = stream.header
        if timer is None or header is None:
            return
        timer.cancel()
        self._orphan_count -= 1
        self._orphan_octets -= stream.waiting
        waiting = self._orphans[header.track_alias]
        del waiting[stream]
        if not waiting:
            del self._orphans[header.track_alias]

    def clear(self) -> None:
        """The session is over."""
        self._aliases.clear()
        self._retired.clear()
        self._unanswered.clear()
        self._offers.clear()
        self.awaited.clear()
        self._orphans.clear()
        self._datagrams.clear()
        self._orphan_count = self._orphan_octets = 0


def _size(found: Datagram) -> int:
    return len(found.payload) + len(found.head.properties)
