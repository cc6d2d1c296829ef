"""One subgroup on its way through the relay: from any upstream to every subscription.

Octets go on as they come. An object may be appended to the downstream streams only when it is the
next of its subgroup, whichever upstream brought it (draft-22 §7.7, §11.3.2); otherwise it waits for
what is missing, and when that cannot come any more the streams are reset and new ones begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.errors import StreamCode
from moqt.model import MAX_VI64, Location, ObjectStatus, StoredObject
from moqt.relay.arriving import Arriving, beyond
from moqt.relay.spans import MAX_PLACE, last_of, place

#: Objects of one subgroup that may wait for one before them which a stream may yet bring: each
#: stream is in order, so only another publisher's overtake, and not by so many.
MAX_WAITING: Final = 1024

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.model import Gap, ObjectHead, ObjectSink, SubgroupHead
    from moqt.relay.legs import Leg
    from moqt.relay.stock import Stock
    from moqt.session.publications import PublisherHalf
    from transport.api import BytesLike


class FanOut:
    """One subgroup of one track and its streams to every subscription.

    ``last`` is the object passed on last, None before the first; while ``_open`` it is not whole
    downstream and ``_sent`` octets of it have gone.
    """

    __slots__ = (
        *("_current", "_final", "_first", "_from", "_given", "_limit", "_open", "_receiving"),
        *("_sent", "_since", "_sinks", "_stock", "closed", "complete", "follows", "head"),
        *("inflows", "last"),
    )

    def __init__(self, stock: Stock, head: SubgroupHead) -> None:
        self._stock = stock
        self._limit = stock.context.config.backlog
        self.head = head
        self.last: int | None = None
        self.closed = False
        #: Closed with all that the subgroup has.
        self.complete = False
        self.inflows: dict[Inflow, None] = {}
        #: The first object that an upstream has begun of it: it goes on from there.
        self._from = MAX_VI64
        #: Of objects begun live that wait for their turn: which one precedes them, if known.
        self.follows: dict[int, int | None] = {}
        self._first = head.first_object
        self._final: int | None = None
        self._given: StoredObject | None = None
        self._since = 0
        self._current: Arriving | None = None
        self._open = False
        self._sent = 0
        self._sinks: dict[PublisherHalf, ObjectSink] = {}
        self._receiving: tuple[tuple[PublisherHalf, ObjectSink], ...] = ()
        for request in stock.subscriptions:
            self.join(request)

    @property
    def passed(self) -> int | None:
        """The last object that has gone whole to everyone."""
        return None if self.last is None else self.last - self._open

    # -- subscriptions ---------------------------------------------------------------------------

    def join(self, request: PublisherHalf) -> None:
        """A subscription takes part from the next object on."""
        last, group, missed = self.last, self.head.group, self._stock.account.missed
        if last is None and missed >> 64 == group:
            last = missed & MAX_VI64  # FIN must not say that nothing is missing
        self._join(request, None if last is None else Location(group, last))

    def leave(self, request: PublisherHalf) -> None:
        """A subscription is over."""
        self._sinks.pop(request, None)

    # -- from upstream ---------------------------------------------------------------------------

    def advance(self) -> None:
        """Pass on all that can be passed on now."""
        while not self.closed and self._current is None:
            found = self._next()
            if isinstance(found, Arriving):
                self._stream(found)
            elif found is not None:
                self._pass(found)
            elif not self._blocked():
                break
        self._end_if_final()

    def grown(self, arriving: Arriving, view: BytesLike) -> None:
        """More of the object that is passed on, or of another one."""
        if arriving is not self._current:
            return
        end, sent = arriving.octets, self._sent
        if end <= sent:
            return
        if sent > end - len(view):
            view = memoryview(view)[sent - end :]
        self._sent = end
        self._write(view)

    def ended(self, arriving: Arriving) -> None:
        """An object is whole: its end follows, and what waited for it."""
        if arriving is self._current:
            self._close_object()
        self.advance()

    def begun(self, number: int, before: int | None) -> None:
        """An upstream has begun an object, right after ``before`` of its stream."""
        self._from = min(self._from, number)
        if self.last is None or number > self.last:
            self.follows[number] = before
            if len(self.follows) > MAX_WAITING:
                self._blocked()

    def offer(self, stored: StoredObject, since: int) -> None:
        """Pass this object on, even when the cache has forgotten it.

        All that exists from ``since`` to it has been offered; if that leaves a hole behind what
        was passed on last, it begins new streams.
        """
        self._given, self._since = stored, since
        self.advance()
        number, passed = stored.head.object, self.passed
        held = self.closed or self._current is not None
        if not held and (passed is None or passed < number):
            self._start_anew(number)
            self.advance()
        self._given = None

    def superseded(self, stored: StoredObject, arriving: Arriving) -> None:
        """An object came whole by another way: that serves as well."""
        current = self._current
        if current not in (None, arriving) and self.last == stored.head.object:
            self._current = None
            self._pass(stored)

    def broken(self, arriving: Arriving) -> None:
        """The rest of an object does not come this way."""
        if arriving is self._current:
            self._current = None

    def finished(self, inflow: Inflow) -> None:
        """An upstream stream ended with FIN: nothing follows its last object."""
        self.inflows.pop(inflow, None)
        if inflow.last is not None:
            self._final = max(inflow.last, -1 if self._final is None else self._final)
        elif self.last is None and not self.inflows:
            self.close()
            return
        self.advance()

    def lost(self, inflow: Inflow, code: int) -> None:
        """An upstream stream was reset, or its session died (code -1)."""
        self.inflows.pop(inflow, None)
        self.advance()
        if code >= 0 and not self.inflows and not self._stock.recovering:
            self.abort(code)

    # -- ends ------------------------------------------------------------------------------------

    def abort(self, code: int) -> None:
        """Reset every stream."""
        if not self.closed:
            self.closed = True
            self._current = None
            for sink in self._take_sinks():
                sink.abort(code)

    def close(self) -> None:
        """FIN every stream: all that the subgroup has has been passed on."""
        if not self.closed:
            self.closed = self.complete = True
            for sink in self._take_sinks():
                sink.finish()

    def settle(self, end: int = MAX_PLACE) -> None:
        """Nothing more is on its way: end in the way that fits what has been passed on.

        ``end`` is the last place of the track.
        """
        if not self.closed and not self.inflows:
            self._conclude(min(last_of(self.head.group), end))

    # -- inside ----------------------------------------------------------------------------------

    def _next(self) -> Arriving | StoredObject | None:
        archive, group, last = self._stock.archive, self.head.group, self.last
        given = self._given
        if self._open and last is not None:
            if given is not None and given.head.object == last:
                return given
            return archive.get(place((group, last))) or self._from_inflows(last, self._sent)
        coming = self._soonest()
        if last is None:
            last = -1 if self._stock.recovering else self._from - 1
        found = self._stored(last, coming) or coming
        if given is not None and last < given.head.object:
            found = min(found or given, given, key=_object_id)
        if found is None or not self._follows(self.last, found):
            return None
        return found

    def _from_inflows(self, number: int, sent: int = 0) -> Arriving | None:
        for inflow in self.inflows:
            arriving = inflow.arriving
            if arriving is not None and arriving.head.object == number and arriving.serves(sent):
                return arriving
        return None

    def _soonest(self) -> Arriving | None:
        found: Arriving | None = None
        for inflow in self.inflows:
            arriving = inflow.arriving
            if (
                arriving is not None
                and arriving.serves(0)
                and (self.last is None or arriving.head.object > self.last)
                and (found is None or arriving.head.object < found.head.object)
            ):
                found = arriving
        return found

    def _stored(self, last: int, coming: Arriving | None) -> StoredObject | None:
        """The first stored object of this subgroup after ``last`` and before ``coming``."""
        archive, head = self._stock.archive, self.head
        end = last_of(head.group) if coming is None else coming.place - 1
        at = place((head.group, last + 1))
        return None if at > end else archive.after_in(head.subgroup, at, end)

    def _follows(self, last: int | None, found: Arriving | StoredObject) -> bool:
        number, group = found.head.object, self.head.group
        stock = self._stock
        first = place((group, 0 if last is None else last + 1))
        if last is None:
            first = max(first, stock.recovering_from)
        given = self._given
        if given is not None and given.head.object == number and self._since <= first:
            return True
        if last is None:
            end = place((group, number)) - 1
            return not stock.recovering or first > end or stock.archive.known.covers(first, end)
        if number == last + 1:
            return True
        before = found.follows if isinstance(found, Arriving) else self.follows.get(number)
        if before is not None and before <= last:
            return True
        return stock.account.covers(first, place((group, number)) - 1)

    def _blocked(self) -> bool:
        """Something waits for what cannot come any more: begin new streams with it (§7.7)."""
        if self._stock.recovering or (len(self.follows) <= MAX_WAITING and self._from_before()):
            return False
        for number in sorted(self.follows):
            del self.follows[number]  # it goes on now; or it has, or does not come any more
            passed = self.last is not None and number <= self.last
            if not passed and (self._from_inflows(number) or self._whole(number)):
                self._start_anew(number)
                return True
        return False

    def _whole(self, number: int) -> StoredObject | None:
        """Of this subgroup: another publisher may have the ID in another one."""
        at = place((self.head.group, number))
        return self._stock.archive.after_in(self.head.subgroup, at, at)

    def _start_anew(self, number: int) -> None:
        """Reset every stream; new ones begin with that object."""
        for sink in self._take_sinks():
            sink.abort(StreamCode.INTERNAL_ERROR)
        self._current = None
        self._open = False
        self.last = number - 1
        self._first = False
        after = Location(self.head.group, number - 1) if number else None
        for request in self._stock.subscriptions:
            self._join(request, after)

    def _from_before(self) -> bool:
        """True when a stream may yet bring what comes before the soonest object."""
        last = -1 if self.last is None else self.last
        return any(inflow.last is None or inflow.last <= last for inflow in self.inflows)

    def _stream(self, arriving: Arriving) -> None:
        self._begin(arriving.head)
        self._current = arriving
        for view in beyond(tuple(arriving.views), self._sent):
            self._write(view)
        self._sent = max(self._sent, arriving.octets)
        if arriving.whole:
            self._close_object()

    def _pass(self, stored: StoredObject) -> None:
        self._begin(stored.head)
        for view in beyond(stored.payload, self._sent):
            self._write(view)
        self._close_object()

    def _begin(self, head: ObjectHead) -> None:
        if self._open:
            return
        self._open = True
        self._sent = 0
        self.last = head.object
        self.follows.pop(head.object, None)
        self._receiving = tuple(self._sinks.items())
        for _, sink in self._receiving:
            sink.begin(head)
        self._end_those_behind()

    def _write(self, view: BytesLike) -> None:
        for _, sink in self._receiving:
            sink.write(view)
        self._end_those_behind()

    def _end_those_behind(self) -> None:
        limit = self._limit
        behind = [request for request, _ in self._receiving if request.backlog > limit]
        if behind:
            self._stock.too_far_behind(behind)

    def _close_object(self) -> None:
        self._current = None
        self._open = False
        for _, sink in self._receiving:
            sink.end()
        self._receiving = ()

    def _end_if_final(self) -> None:
        if not self.closed and not self._open and self._final is not None:
            if self.last is None and self._stock.recovering:
                return  # what has come waits for what was missed
            if self.last is None or self.last >= self._final:
                self.close()
            elif not self.inflows and not self._stock.recovering:
                self._conclude(place((self.head.group, self._final)))

    def _conclude(self, end: int) -> None:
        """Nothing more comes: FIN when no object up to ``end`` is lacking, else reset."""
        first = place((self.head.group, 0 if self.last is None else self.last + 1))
        if self._stock.account.covers(first, end) and not self._open:
            self.close()
        else:
            self.abort(StreamCode.INTERNAL_ERROR)

    def _join(self, request: PublisherHalf, after: Location | None) -> None:
        head = self.head._replace(first_object=self._first and self.last is None)
        self._sinks[request] = request.subgroup(head, after)

    def _take_sinks(self) -> Iterable[ObjectSink]:
        sinks, self._sinks = self._sinks, {}
        self._receiving = ()
        return sinks.values()


def _object_id(found: Arriving | StoredObject) -> int:
    return found.head.object


class Inflow:
    """The ObjectSink of one subgroup stream of an upstream; ``last``: the object begun last."""

    __slots__ = (
        *("_ends_group", "_fan", "_first", "_leg", "_stock", "_turns", "arriving", "group"),
        "last",
    )

    def __init__(self, stock: Stock, fan: FanOut, leg: Leg, head: SubgroupHead) -> None:
        self._stock = stock
        self._fan = fan
        self._leg = leg
        self.group = head.group
        self._first = head.first_object
        self._ends_group = head.end_of_group
        self._turns = leg.turns
        self.arriving: Arriving | None = None
        self.last: int | None = None
        fan.inflows[self] = None

    def begin(self, head: ObjectHead) -> None:
        """An object starts; a status that says what does not exist is none to refuse."""
        at, leg = place(head.location), self._leg
        if at > leg.heard:
            leg.heard = at
        if head.status is ObjectStatus.NORMAL and self._stock.refuses(at):
            self._stock.context.counts["objects_refused"] += 1
            return
        before = self.last
        if before is None and self._first:
            before = -1
        if leg.turns != self._turns:
            before, self._turns = None, leg.turns  # what came meanwhile was left out
        self.last = head.object
        arriving = self._stock.arrives(head, before)
        self.arriving = arriving
        self._fan.begun(head.object, before)
        self._fan.advance()

    def write(self, view: BytesLike) -> None:
        """On its way at once, and kept for the cache."""
        arriving = self.arriving
        if arriving is not None:
            arriving.add(view)
            self._fan.grown(arriving, view)

    def end(self) -> None:
        """The object is whole: now it may be cached."""
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            arriving.end()
            self._stock.whole(arriving)
            self._fan.ended(arriving)

    def gap(self, gap: Gap) -> None:
        """Never on a subgroup stream."""

    def finish(self) -> None:
        """FIN."""
        self._leg.inflow_over(self)
        if self._ends_group and self.last is not None:
            self._stock.absent(
                place((self._fan.head.group, self.last + 1)), last_of(self._fan.head.group)
            )
        self._fan.finished(self)

    def abort(self, code: int) -> None:
        """Reset, or the session died."""
        self._leg.inflow_over(self)
        arriving, self.arriving = self.arriving, None
        if arriving is not None:
            self._stock.broken(arriving)
            self._fan.broken(arriving)
        self._fan.lost(self, code)
