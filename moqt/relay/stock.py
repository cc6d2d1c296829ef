"""What the relay has of one track: objects cached and on their way, and where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codec.properties import TrackProperties
from moqt.errors import DoneCode, MalformedTrack, RequestCode, RequestFailed
from moqt.model import GroupOrder, Location, ObjectStatus, StoredObject
from moqt.relay.account import Account
from moqt.relay.archive import Archive
from moqt.relay.arriving import Arriving
from moqt.relay.cache import FINISHED_COST
from moqt.relay.filling import Filler
from moqt.relay.spans import MAX_PLACE, last_of, place
from moqt.relay.subgroups import FanOut
from moqt.relay.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.model import FullTrackName, ObjectHead, SubgroupHead
    from moqt.relay.context import RelayContext
    from moqt.relay.legs import Leg
    from moqt.relay.peers import Peer
    from moqt.relay.reading import Reader
    from moqt.session.publications import PublisherHalf
    from transport.api import BytesLike


class Stock:
    """Objects come in here, from subscriptions and fetches, and go to subscriptions and readers."""

    def __init__(self, context: RelayContext, name: FullTrackName) -> None:
        self.context = context
        self.name = name
        self.archive = Archive(context.cache, name, context.clock)
        self.filler = Filler(self)
        self.legs: list[Leg] = []
        self.subscriptions: dict[PublisherHalf, None] = {}
        self.fans: dict[tuple[int, int], FanOut] = {}
        # Of how many of these the cache knows.
        self._paid = 0
        self.arriving: dict[int, Arriving] = {}
        self.readers: set[Reader] = set()
        self.waits = Waits(self.filler.let_go)
        #: Why its fetches are reset, once it is malformed.
        self.fault: MalformedTrack | None = None
        #: The last upstream is gone and subscriptions wait for one that goes on at this place.
        self.recovering = False
        self.recovering_from = 0
        self.account = Account(self.archive, self.fans)
        #: DEFAULT_PUBLISHER_GROUP_ORDER.
        self.order = GroupOrder.ASCENDING
        self.on_malformed: Callable[[MalformedTrack], None] | None = None
        #: Called when the last reader has left.
        self.on_read: Callable[[], None] | None = None

    @property
    def largest(self) -> Location | None:
        """The largest that any upstream has named or sent live (draft-22 §9.20.17)."""
        return self.archive.largest

    @property
    def lost(self) -> bool:
        """True while there is no upstream, and one is expected to come."""
        return self.recovering and not any(leg.established for leg in self.legs)

    # -- in --------------------------------------------------------------------------------------

    def fan(self, head: SubgroupHead) -> FanOut:
        """The fan-out of a subgroup that an upstream stream starts or goes on with."""
        key = head.group, head.subgroup
        known = self.fans.get(key)
        if known is not None and (not known.closed or known.complete):
            return known
        made = self.fans[key] = FanOut(self, head)
        if known is not None:
            made.last = known.passed
        self._bound_fans()
        return made

    def _bound_fans(self) -> None:
        """Finished subgroups are remembered while there is room for that; the oldest go first."""
        fans = self.fans
        while len(fans) > self._paid and self.archive.spare(FINISHED_COST):
            self._paid += 1
        while len(fans) > min(self._paid, self.context.config.max_finished):
            oldest = next((key for key, fan in fans.items() if fan.closed), None)
            if oldest is None:
                break
            del fans[oldest]

    def forget_fans(self) -> None:
        """Nothing comes from upstream any more."""
        self.fans.clear()
        self.archive.spare(-FINISHED_COST * self._paid)
        self._paid = 0

    def arrives(self, head: ObjectHead, before: int | None, *, fetched: bool = False) -> Arriving:
        """An object begins, ``before`` is the one before it on its stream.

        What is fetched does not move Largest Object.
        """
        if not fetched:
            self.archive.advance(head.location)
        at = place(head.location)
        context = self.context
        cached = head.length <= context.config.max_cached_object
        kept = cached or at in self.waits
        arriving = Arriving(
            head, at, context.clock.time(), before, context.unfinished, kept=kept, cached=cached
        )
        context.counts["objects_in"] += 1
        context.counts["octets_in"] += head.length
        if at not in self.arriving and not self.archive.known.holds(at):
            self.arriving[at] = arriving
            self.waits.stir_at(at, arriving)
        return arriving

    def refuses(self, at: int) -> bool:
        """True for an object that is known not to exist (draft-22 §7.1)."""
        return self.archive.known.holds(at) and self.archive.after(at, at, statuses=True) is None

    def whole(self, arriving: Arriving) -> None:
        """An object is here: into the cache, and on to whoever waits for it.

        Raises MalformedTrack when it contradicts what is known.
        """
        if self.arriving.get(arriving.place) is arriving:
            del self.arriving[arriving.place]
        head = arriving.head
        if arriving.cached:
            stored = StoredObject(head, tuple(arriving.views))
            if not self.archive.put(stored, arriving.born):
                self.context.counts["duplicates"] += 1
            fan = None if head.subgroup is None else self.fans.get((head.group, head.subgroup))
            if fan is not None and not fan.closed:
                fan.superseded(stored, arriving)
            if head.status:  # it tells what does not exist
                whole = head.status is ObjectStatus.END_OF_TRACK
                self.waits.stir(arriving.place, MAX_PLACE if whole else last_of(head.group))
        self.waits.stir_at(arriving.place)

    def broken(self, arriving: Arriving) -> None:
        """An object will not be finished by its source."""
        if self.arriving.get(arriving.place) is arriving:
            del self.arriving[arriving.place]
        arriving.fail()
        self.waits.stir_at(arriving.place)

    def fetched(self, head: ObjectHead) -> None:
        """An object came by fetch: a subgroup that waits for it goes on."""
        if head.subgroup is not None:
            fan = self.fans.get((head.group, head.subgroup))
            if fan is not None:
                fan.advance()

    def absent(self, first: int, last: int) -> None:
        """These places hold nothing; there may be none."""
        if last < first:
            return
        self.archive.absent(first, last)
        self.waits.stir(first, last, absent=last)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A datagram object: to everyone, unless it came before."""
        again = self.archive.known.holds(place(head.location))
        arriving = self.arrives(head, None)
        arriving.add(payload)
        arriving.end()
        self.whole(arriving)
        if not again:
            for request in self.subscriptions:
                request.datagram(head, payload)

    def describe(self, raw: bytes) -> None:
        """Track Properties: the newest set counts, whole (draft-22 §8.4).

        RequestFailed when they are long, and those of others are already.
        """
        if raw != self.archive.properties:
            while not self.archive.describe(raw):
                if not self.context.make_room():
                    code = RequestCode.EXCESSIVE_LOAD
                    raise RequestFailed(code, "no room for its properties", 1000)
            self.order = TrackProperties.decode(raw).default_publisher_group_order

    def ends_at(self, final: Location) -> None:
        """An upstream says which object is the last."""
        self.archive.ends_at(final)
        self.waits.stir(place(final) + 1)

    # -- out -------------------------------------------------------------------------------------

    def join(self, request: PublisherHalf) -> None:
        """A subscription takes part."""
        self.subscriptions[request] = None
        for fan in self.fans.values():
            if not fan.closed:
                fan.join(request)

    def leave(self, request: PublisherHalf) -> None:
        """It is over."""
        self.subscriptions.pop(request, None)
        for fan in self.fans.values():
            fan.leave(request)

    def read(self, reader: Reader) -> None:
        """A delivery is over."""
        self.readers.discard(reader)
        if not self.readers and not self.recovering:
            self.filler.abandon()
        if self.on_read is not None:
            self.on_read()

    def may_come_live(self, at: int, *, late: bool) -> bool:
        """True when the object at this place is still expected on a subscription.

        What the cache has forgotten is not, unless a stream may bring it.
        """
        late = late or at <= self.archive.forgotten
        return any(leg.may_bring(at) and (not late or leg.on_its_way(at)) for leg in self.legs)

    def heard_of(self, peer: Peer) -> int:
        """The last place that a peer has certainly come to, from what it has said or sent."""
        heard = [leg.heard for leg in self.legs if leg.peer is peer]
        if heard:
            return max(heard)
        return -1 if self.largest is None else place(self.largest)

    def before_arrivals(self, at: int, end: int) -> int:
        """The last place from ``at`` to ``end`` before the first object that is on its way."""
        soonest = min((one for one in self.arriving if at < one <= end), default=None)
        return end if soonest is None else soonest - 1

    def too_far_behind(self, requests: Iterable[PublisherHalf]) -> None:
        """These do not keep up: they can fetch what they lack (draft-22 §9.9)."""
        for request in requests:
            self.context.counts["too_far_behind"] += 1
            request.abort(DoneCode.TOO_FAR_BEHIND, "fetch what is missing")
