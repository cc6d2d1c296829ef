"""Ranges that are missing, fetched upstream: each once, however many wait for them."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING

from moqt.codec.params import Parameters
from moqt.errors import MalformedTrack, MoqtError, RequestCode, RequestFailed, StreamCode
from moqt.model import (
    MAX_VI64,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    ObjectHead,
)
from moqt.relay.cache import OBJECT_COST
from moqt.relay.spans import last_of, location, place

if TYPE_CHECKING:
    from moqt.model import SubgroupHead
    from moqt.relay.arriving import Arriving
    from moqt.relay.peers import Peer
    from moqt.relay.stock import Stock
    from moqt.session.fetches import OutgoingFetch
    from moqt.session.ports import TrackInfo
    from transport.api import BytesLike


class Outlook(Enum):
    """What becomes of a missing range."""

    COMING = auto()
    NOWHERE = auto()


class UpstreamFetch:
    """One FETCH of ours: TrackReceiver and ObjectSink of its one stream.

    ``last`` is the last place asked for; ``next`` the first, in delivery order, not yet passed.
    """

    def __init__(
        self, filler: Filler, peer: Peer, first: int, last: int, order: GroupOrder
    ) -> None:
        self._filler = filler
        self._stock = filler.stock
        self.peer = peer
        self.first = first
        self.last = last
        self._down = order is GroupOrder.DESCENDING and first >> 64 != last >> 64
        #: In ascending order: everything before it is known. In descending order: in its group.
        self.next = place((last >> 64, 0)) if self._down else first
        self.over = False
        #: As far as the peer had certainly come: what it leaves out up to there does not exist.
        self._sure = self._stock.heard_of(peer)
        self._end: Location | None = None
        self._clean = False
        self._arriving: Arriving | None = None
        # Places received that no reader has passed, with what the cache pays for them.
        self._ahead: deque[tuple[int, int]] = deque()
        self._lead = 0
        self.request: OutgoingFetch | None = None

    def send(self) -> None:
        """FETCH; raises MoqtError when the session takes none."""
        start, end = location(self.first), location(self.last)
        delta = end.group - start.group
        whole = end.object == MAX_VI64
        kind = LocationFilterType
        wanted = LocationFilter(
            kind.ABSOLUTE_START_GROUP_END if whole else kind.ABSOLUTE_RANGE,
            start,
            delta,
            0 if whole else end.object,
        )
        order = GroupOrder.DESCENDING if self._down else GroupOrder.ASCENDING
        asked = Parameters(location_filter=wanted, group_order=order)
        self.request = self.peer.fetch(self._stock.name, asked, self)

    def brings(self, at: int) -> bool:
        """True when the place lies in what is still to come."""
        if self.over or not self.first <= at <= self.last:
            return False
        if not self._down:
            return at >= self.next
        return at >> 64 < self.next >> 64 or (at >> 64 == self.next >> 64 and at >= self.next)

    def passed(self, at: int) -> None:
        """A reader has come as far as ``at``: what it has had is no lead any more."""
        ahead = self._ahead
        while ahead and (ahead[0][0] >= at if self._down else ahead[0][0] <= at):
            self._lead -= ahead.popleft()[1]

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Nobody waits for it, or nobody keeps up."""
        if not self.over:
            self.over = True
            if self.request is not None:
                self.request.cancel(code)

    # -- TrackReceiver ---------------------------------------------------------------------------

    def accepted(self, info: TrackInfo) -> None:
        """FETCH_OK."""
        self._end = info.end
        try:
            self._stock.describe(info.properties.raw)
            if info.end_of_track and info.end is not None:
                self._stock.ends_at(info.end)
        except (RequestFailed, MalformedTrack) as error:
            self.cancel()
            self._filler.failed(self, error)

    def open_subgroup(self, head: SubgroupHead) -> UpstreamFetch:
        """Never: a fetch has one stream of its own."""
        raise MalformedTrack("a subgroup stream for a fetch")

    def open_fetch(self, request_id: int) -> UpstreamFetch:
        """Its data."""
        return self

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """Never."""

    def done(self, code: int, reason: str, complete: bool) -> None:
        """All is in: what was left out does not exist (draft-22 §7.3)."""
        if not self.over:
            self.over = True
            if self._clean:
                self._absent_to_the_end()
            self._filler.ended(self)

    def failed(self, error: MoqtError) -> None:
        """What has come stays."""
        if not self.over:
            self.over = True
            self._filler.failed(self, error)

    # -- ObjectSink ------------------------------------------------------------------------------

    def begin(self, head: ObjectHead) -> None:
        """An object; everything between it and the one before does not exist."""
        at = place(head.location)
        if not self.first <= at <= self.last:
            raise MalformedTrack(f"object {tuple(head.location)} outside the fetched range")
        if not self.brings(at):
            raise MalformedTrack(f"object {tuple(head.location)} out of order in a fetch")
        self._skip_to(at)
        self._arriving = self._stock.arrives(head, None, fetched=True)

    def write(self, view: BytesLike) -> None:
        """Readers that wait for it go on at once."""
        arriving = self._arriving
        if arriving is not None:
            arriving.add(view)
            if arriving.octets > self._filler.window and not arriving.cached:
                self._filler.too_fast(self)

    def end(self) -> None:
        """Whole."""
        arriving, self._arriving = self._arriving, None
        if arriving is None:
            return
        arriving.end()
        cost = arriving.octets + OBJECT_COST
        self._lead += cost
        self._ahead.append((arriving.place, cost))
        self._stock.whole(arriving)
        self._stock.fetched(arriving.head)
        if self._lead > self._filler.window:
            self._filler.too_fast(self)

    def gap(self, gap: Gap) -> None:
        """A stretch that will not come on this stream."""
        at = min(place(gap.location), self.last)
        if not self.brings(at):
            return  # it says nothing of what is still to come
        if gap.kind is GapKind.NON_EXISTENT:
            self._skip_to(at + 1)
        else:
            skipped = self._until(at + 1)
            self.next = at + 1
            for first, last in skipped:
                self._stock.waits.stir(first, last)

    def finish(self) -> None:
        """FIN; FETCH_OK may still be on its way."""
        self._clean = True

    def abort(self, code: int) -> None:
        """Reset: what was begun is lost."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._stock.broken(arriving)

    # -- inside ----------------------------------------------------------------------------------

    def _skip_to(self, at: int) -> None:
        """What lies between ``next`` and ``at`` in delivery order does not exist."""
        for first, last in self._until(at):
            self._absent(first, last)
        self._sure = max(self._sure, at)
        self.next = at + 1

    def _until(self, at: int) -> list[tuple[int, int]]:
        """What lies between ``next`` and ``at`` in delivery order; some of it may be empty."""
        if not self._down or at >> 64 == self.next >> 64:
            return [(self.next, at - 1)]
        group = self.next >> 64
        low = place((at >> 64, 0))
        return [
            (self.next, min(last_of(group), self.last)),
            (last_of(at >> 64) + 1, place((group, 0)) - 1),
            (max(low, self.first), at - 1),
        ]

    def _absent_to_the_end(self) -> None:
        if self._down:
            group = self.next >> 64
            self._absent(min(self.next, last_of(group)), min(last_of(group), self.last))
            self._absent(self.first, place((group, 0)) - 1)
        else:
            self._absent(self.next, self.last)

    def _absent(self, first: int, last: int) -> None:
        """Nothing there, as far as this peer can tell: one may lag behind another."""
        sure = self._sure if self._end is None else max(self._sure, place(self._end))
        last = min(last, sure)
        if first <= last:
            self._stock.absent(first, last)


class Filler:
    """The fetches of one track."""

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self._fetches: list[UpstreamFetch] = []
        # Places that wait until one of these is over, with what to ask for then.
        self._waiting: dict[int, tuple[tuple[int, int], GroupOrder, list[Peer]]] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def window(self) -> int:
        """Octets a fetch may run ahead of the fastest of its readers."""
        return self.stock.context.config.cache // (4 * max(1, len(self._fetches)))

    def want(self, at: int, span: tuple[int, int], order: GroupOrder, tried: list[Peer]) -> Outlook:
        """See that ``at`` comes: by a fetch that is open, or by a new one for the missing ``span``.

        Whoever is newly asked is added to ``tried``.
        """
        if any(fetch.brings(at) for fetch in self._fetches):
            return Outlook.COMING
        context = self.stock.context
        if len(self._fetches) >= context.config.max_fetches:
            self._waiting[at] = span, order, tried
            return Outlook.COMING
        first, last = span
        for fetch in self._fetches:  # what others bring is not asked for again
            if at < fetch.first <= last:
                last = fetch.first - 1
            elif first <= fetch.last < at:
                first = fetch.last + 1
        for peer in self._peers(at):
            if peer in tried or not peer.usable:
                continue
            fetch = UpstreamFetch(self, peer, first, last, order)
            try:
                fetch.send()
            except MoqtError:
                continue  # this session is ending
            context.counts["fetches_upstream"] += 1
            self._fetches.append(fetch)
            tried.append(peer)
            return Outlook.COMING
        return Outlook.NOWHERE

    def let_go(self, at: int) -> None:
        """Nobody waits for this place any more."""
        self._waiting.pop(at, None)

    def _peers(self, at: int) -> list[Peer]:
        """Who may have it: those who publish it to us or announced it; who lags behind last."""
        stock = self.stock
        found = dict.fromkeys(leg.peer for leg in stock.legs if leg.established)
        found.update(dict.fromkeys(stock.context.candidates(stock.name)))
        return sorted(found, key=lambda peer: stock.heard_of(peer) < at)

    def passed(self, at: int) -> None:
        """A reader has come as far as ``at``."""
        for fetch in self._fetches:
            if fetch.first <= at <= fetch.last:
                fetch.passed(at)

    def ended(self, fetch: UpstreamFetch) -> None:
        """It has brought what there is."""
        self._remove(fetch)

    def failed(self, fetch: UpstreamFetch, error: MoqtError) -> None:
        """Another peer may have the rest."""
        self.stock.context.counts["fetches_failed"] += 1
        self._remove(fetch)
        if isinstance(error, RequestFailed) and error.code == RequestCode.UNSUPPORTED_EXTENSION:
            for reader in tuple(self.stock.readers):
                reader.doom()  # draft-22 §3.7
        if isinstance(error, MalformedTrack) and self.stock.on_malformed is not None:
            self.stock.on_malformed(error)

    def too_fast(self, fetch: UpstreamFetch) -> None:
        """Nobody keeps up: stop it; the rest is fetched when somebody comes that far."""
        self.stock.context.counts["fetches_stopped"] += 1
        for reader in self.stock.readers:
            reader.forgive(fetch.peer)
        fetch.cancel(StreamCode.CANCELLED)
        self._remove(fetch)

    def abandon(self) -> None:
        """Nobody reads any more."""
        fetches, self._fetches = self._fetches, []
        self._waiting.clear()
        for fetch in fetches:
            fetch.cancel()

    def _remove(self, fetch: UpstreamFetch) -> None:
        if fetch in self._fetches:
            self._fetches.remove(fetch)
        self.stock.waits.stir(fetch.first, fetch.last)
        while self._waiting and len(self._fetches) < self.stock.context.config.max_fetches:
            at = next(iter(self._waiting))
            asked = self._waiting.pop(at)
            if self.stock.archive.known.holds(at):
                continue  # who waits for it has been told
            if self.want(at, *asked) is Outlook.NOWHERE:
                self.stock.waits.stir(at, at)
