"""One track at the relay: where it comes from, and who gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.errors import (
    DoneCode,
    MalformedTrack,
    MoqtError,
    RequestCode,
    RequestFailed,
    RequestRefused,
)
from moqt.relay.legs import Leg
from moqt.relay.questions import Questions, refuse
from moqt.relay.recovery import Recovery
from moqt.relay.source import StockedTrack
from moqt.relay.spans import MAX_PLACE, place
from moqt.relay.stock import Stock

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import FullTrackName, GroupOrder, Location
    from moqt.relay.clock import Planned
    from moqt.relay.context import RelayContext
    from moqt.relay.peers import Peer
    from moqt.relay.questions import Asked
    from moqt.session.context import Context
    from moqt.session.fetches import IncomingFetch
    from moqt.session.ports import TrackInfo
    from moqt.session.publications import IncomingSubscribe, PublisherHalf
    from moqt.session.publishing import IncomingPublish
    from moqt.session.status import IncomingTrackStatus

#: Ends after which a track is not asked for again.
_FINAL_ENDS: Final = frozenset(
    {DoneCode.TRACK_ENDED, DoneCode.UNAUTHORIZED, DoneCode.MALFORMED_TRACK}
)
#: Nobody is there who may have it.
NO_SUCH_TRACK: Final = RequestFailed(RequestCode.DOES_NOT_EXIST, "no such track")


class RelayTrack(StockedTrack):
    """A track that is fed from upstream; made when it is first asked for or offered."""

    def __init__(
        self, context: RelayContext, name: FullTrackName, on_idle: Callable[[RelayTrack], None]
    ) -> None:
        """``on_idle`` is called when nothing but its cached objects keeps it."""
        super().__init__(Stock(context, name))
        self.context = context
        self.stock.on_malformed = self.malformed
        self.stock.on_read = self._check_idle
        self._legs = self.stock.legs
        self._on_idle = on_idle
        self._pending: dict[IncomingSubscribe, None] = {}
        self._questions = Questions(self._check_idle)
        self._settled = False
        self._last_end = DoneCode.INTERNAL_ERROR
        self._recovery: Recovery | None = None
        self._linger: Planned | None = None

    # -- downstream ------------------------------------------------------------------------------

    @property
    def order(self) -> GroupOrder:
        """DEFAULT_PUBLISHER_GROUP_ORDER."""
        return self.stock.order

    @property
    def standing(self) -> bool:
        """True while an upstream subscription is established."""
        return any(leg.established for leg in self._legs)

    @property
    def live(self) -> bool:
        """True while an upstream subscription brings objects."""
        return any(leg.live for leg in self._legs)

    @property
    def wanted(self) -> bool:
        """True while anybody downstream waits for, follows or reads it."""
        stock = self.stock
        return bool(stock.subscriptions or self._pending or self._questions or stock.readers)

    @property
    def busy(self) -> bool:
        """True while anything but its cached objects keeps it."""
        return self.wanted or bool(self._legs) or self._recovery is not None

    def awaiting(self) -> list[Context]:
        """Sessions of which a SUBSCRIBE waits for a publisher."""
        return [request.session for request in self._pending]

    def subscribe(self, request: IncomingSubscribe) -> None:
        """Serve it once an upstream subscription stands (draft-22 §7.4, §7.6)."""
        paused = request.parameters.forward is False
        if self.live:
            self._attach(request)
            return
        if paused and self.standing:
            self._ask(request, lambda: request.ask(self._attach_paused))
            return
        self._pending[request] = None
        request.on_end = lambda: self._pending_over(request)
        asked = request.parameters
        wait = self._may_wait(asked.rendezvous_timeout or 0)
        if wait:
            request.refuse_after(wait)
            waiting = self.context.waiting
            waiting.add(request)
            request.when_ended(lambda: waiting.discard(request))
        if self.standing:
            self._adjust_forward()
            return
        self._connect(
            forward=not paused,
            new_group=asked.new_group_request,
            rendezvous=wait or None,
        )
        if not self._legs and not wait:
            self._pending.pop(request, None)
            request.on_end = None
            self._check_idle()
            raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")

    def fetch(self, request: IncomingFetch) -> None:
        """From the cache when it has all; else once upstream has said how far the track is."""
        wanted, largest = request.parameters.location_filter, self.largest
        asked = None if wanted is None else wanted.on_subscription(largest)
        end = None if asked is None else asked.end
        known = self.stock.archive.known
        if asked is not None and end is not None and largest is not None and end <= largest:
            here = self.standing or known.covers(place(asked.start), place(end))
        else:
            here = False
        if here or self._up_to_date:
            self.accept(request)
        else:
            self._ask(request, lambda: request.ask(self.accept))

    def status(self, request: IncomingTrackStatus) -> None:
        """TRACK_STATUS, from an upstream subscription."""
        if self._up_to_date:
            request.accept(self)
        else:
            self._ask(request, lambda: request.accept(self))

    def serve(self, request: PublisherHalf) -> None:
        """A subscription takes part: a SUBSCRIBE just accepted, or a PUBLISH of ours."""
        if not request.active:
            return
        request.on_end = lambda: self._detach(request)
        request.on_forward = self._adjust_forward
        request.on_new_group = self._new_group
        self.stock.join(request)
        self._adjust_forward()

    # -- upstream --------------------------------------------------------------------------------

    def offered(self, request: IncomingPublish, peer: Peer) -> None:
        """PUBLISH of a peer: one more upstream (draft-22 §7.6)."""
        leg = Leg(self, peer)
        self._legs.append(leg)
        leg.accept(request)
        self._check_idle()

    def publisher_came(self, peer: Peer) -> None:
        """A peer announces it: follow it there as well when it is followed (draft-22 §7.6)."""
        if self.stock.subscriptions or self._pending or self._questions:
            self._connect(forward=self._wants_objects(), only=peer)

    def let_go(self, peer: Peer, *, has_none: bool = False) -> None:
        """Leave a session that another one replaces, or that has none of what it seemed to."""
        legs = [leg for leg in self._legs if leg.peer is peer]
        if has_none:
            for leg in legs:
                leg.cancel()
                self.leg_failed(leg, NO_SUCH_TRACK)
        elif any(leg.established and leg not in legs for leg in self._legs):
            for leg in legs:
                leg.cancel()
                self._legs.remove(leg)

    def leg_stands(self, leg: Leg, info: TrackInfo) -> None:
        """An upstream subscription is established: what waited for it is answered."""
        try:
            self.stock.describe(info.properties.raw)
        except RequestFailed as error:
            leg.established = False  # or it would be asked for again at once
            leg.cancel()
            self.leg_failed(leg, error)
            return
        if info.largest is not None:
            self.stock.archive.advance(info.largest)
        self._settled = False
        if leg.live:
            self._begins(leg)
        if leg.live or not self._wants_objects():
            self._attach_pending()
        self.answer()
        if self._recovery is not None and leg.live:
            self._recovery.upstream(self.largest)
        self._adjust_forward()
        self.stock.waits.stir()
        self._check_idle()

    def leg_resumes(self) -> None:
        """An upstream was paused: what it has kept from those who follow comes before the rest."""
        stock, largest = self.stock, self.largest
        if any(request.forward for request in stock.subscriptions) and self._recovery is None:
            first = 0 if largest is None else place(largest) + 1
            self._recovery = Recovery(stock, self._recovered, first)

    def leg_live(self, leg: Leg, largest: Location | None) -> None:
        """It brings every object after ``largest``."""
        self._begins(leg)
        self._attach_pending()
        if self._recovery is not None and leg.live:
            self._recovery.upstream(largest)
        self.answer()

    def leg_done(self, leg: Leg, code: int, reason: str) -> None:
        """PUBLISH_DONE of an upstream, all of its streams in."""
        self._legs.remove(leg)
        if code not in _FINAL_ENDS:
            self._lost()
        else:
            self._last_end = DoneCode(code)
            if not self._legs:
                # One that was paused has not told how far the track came; who follows has to know.
                ended = code == DoneCode.TRACK_ENDED
                self._settled = ended and leg.live
                if ended and not leg.live and self._wants_objects():
                    self._connect(forward=True)
            if not self._legs:
                self._end(self._last_end, reason)
        self.stock.waits.stir()

    def leg_failed(self, leg: Leg, error: MoqtError) -> None:
        """An upstream refused, broke the track, or is gone."""
        if leg in self._legs:
            self._legs.remove(leg)
        if isinstance(error, MalformedTrack):
            self.malformed(error)
        elif leg.established:
            self._lost()
        elif not self._legs:
            self._refuse(error)
            if self._recovery is None:  # others have ended while this one was being asked
                self._end(self._last_end, "")
        self.stock.waits.stir()
        self._check_idle()

    def malformed(self, fault: MalformedTrack) -> None:
        """End everything of the track at once, keep nothing of it (draft-22 §12.1)."""
        stock = self.stock
        if stock.fault is not None:
            return
        stock.fault = fault
        self.context.counts["tracks_malformed"] += 1
        for leg in tuple(self._legs):
            leg.cancel()
        self._legs.clear()
        stock.filler.abandon()
        for request in tuple(stock.subscriptions):
            request.abort(DoneCode.MALFORMED_TRACK, "malformed upstream")
        self._refuse(fault)
        stock.archive.clear()
        stock.waits.stir()
        self._on_idle(self)

    # -- inside ----------------------------------------------------------------------------------

    def _attach(self, request: IncomingSubscribe) -> None:
        request.on_end = None
        request.accept(self, self.order)
        self.serve(request)

    def _attach_paused(self, request: IncomingSubscribe) -> None:
        """How far the track has come is known now, unless the upstream has gone meanwhile."""
        if self.standing:
            self._attach(request)
        else:
            self.subscribe(request)

    def _attach_pending(self) -> None:
        for request in tuple(self._pending):  # those that still wait are wanted for, too
            self._pending.pop(request, None)
            self.context.waiting.discard(request)
            request.ask(self._attach)

    def _detach(self, request: PublisherHalf) -> None:
        self.stock.leave(request)
        self._adjust_forward()
        self._check_idle()

    def _may_wait(self, asked: int) -> int:
        """Milliseconds of RENDEZVOUS_TIMEOUT that are granted (draft-22 §9.20.6)."""
        config = self.context.config
        if len(self.context.waiting) >= config.max_rendezvous:
            return 0
        return min(asked, int(config.rendezvous * 1000))

    def _pending_over(self, request: IncomingSubscribe) -> None:
        self._pending.pop(request, None)
        self._check_idle()

    def _ask(self, request: Asked, answer: Callable[[], None]) -> None:
        """Answer once an upstream stands; from the cache alone when none does."""
        self._questions.add(request, answer)
        if self.standing:
            if not any([leg.refresh() for leg in self._legs]):
                self.answer()
            return
        self._connect(forward=False)
        if not self._legs:
            self._refuse(NO_SUCH_TRACK)
            self._check_idle()

    def answer(self) -> None:
        """Answer what has waited to hear how far the track has come."""
        if any(leg.refreshing for leg in self._legs):
            return  # what another upstream has just said may be less
        self._questions.answer()

    def _connect(
        self,
        *,
        forward: bool,
        new_group: int | None = None,
        rendezvous: int | None = None,
        only: Peer | None = None,
    ) -> None:
        """SUBSCRIBE to every publisher that is not asked yet (draft-22 §7.6)."""
        if rendezvous is None:
            rendezvous = self._patience()
        peers = self.context.candidates(self.name) if only is None else (only,)
        taken = {leg.peer for leg in self._legs}
        for peer in peers:
            if peer in taken or not peer.usable:
                continue
            leg = Leg(self, peer)
            self._legs.append(leg)
            try:
                leg.subscribe(forward=forward, new_group=new_group, rendezvous=rendezvous)
            except MoqtError:
                self._legs.remove(leg)  # this session is ending

    def _patience(self) -> int | None:
        """Milliseconds that an upstream may take to find the track: somebody waits for it."""
        config = self.context.config
        if any(request.parameters.rendezvous_timeout for request in self._pending):
            return int(config.rendezvous * 1000)
        return None if self._recovery is None else int(config.recovery * 1000)

    @property
    def _up_to_date(self) -> bool:
        """True when Largest Object is what it is upstream, but for what is on its way."""
        if self._settled or self.ended:
            return True
        return self.live and not any(leg.refreshing for leg in self._legs)

    @property
    def _all_passed_on(self) -> bool:
        """True when the track has ended and its subscriptions lack nothing."""
        largest = self.largest
        return self.ended and largest is not None and self.stock.account.lacking() > place(largest)

    def _wants_objects(self) -> bool:
        return any(request.forward for request in self.stock.subscriptions) or any(
            request.parameters.forward is not False for request in self._pending
        )

    def _adjust_forward(self) -> None:
        """Upstream is not paused while anybody downstream is not (draft-22 §7.2).

        While nobody is there it goes on until ``_idle``: whoever comes back soon misses nothing.
        """
        wants = self._wants_objects()
        if wants or self.stock.subscriptions or self._pending:
            for leg in self._legs:
                leg.resume(wants)

    def _new_group(self, wanted: int) -> None:
        for leg in self._legs:
            leg.ask_group(wanted)

    def _refuse(self, error: MoqtError) -> None:
        """No upstream stands: what cannot wait is answered, from the cache if possible."""
        self._refuse_pending(error)
        if self.stock.fault is None and self.stock.archive.objects and self.largest is not None:
            self.answer()
            return
        self._questions.refuse(error)

    def _refuse_pending(self, error: MoqtError) -> None:
        pending, self._pending = self._pending, {}
        for request in pending:
            if request.parameters.rendezvous_timeout and not isinstance(error, MalformedTrack):
                self._pending[request] = None
            else:
                refuse(request, error)

    def _begins(self, leg: Leg) -> None:
        """It is live; if others were before it, what only those bring comes first."""
        stock, since = self.stock, leg.live_from
        if self._recovery is not None or since is None:
            return
        if not any(other.live for other in self._legs if other is not leg):
            stock.account.floor = since
        elif any(request.forward for request in stock.subscriptions):
            lacking = stock.account.lacking()
            if lacking < since and not stock.archive.known.covers(lacking, since - 1):
                self._recovery = Recovery(stock, self._recovered, lacking)
                self._recovery.upstream(self.largest)

    def _lost(self) -> None:
        """An upstream that stood is gone: go on with another, or wait for one to come."""
        stock = self.stock
        for fan in tuple(stock.fans.values()):
            fan.advance()
        if not self.standing and self._recovery is None and self._all_passed_on:
            self._end(DoneCode.TRACK_ENDED, "")
        if stock.subscriptions and self._recovery is None:
            self._recovery = Recovery(stock, self._recovered, stock.account.lacking())
            if self.live:  # what the other one is not to bring has to be fetched
                self._recovery.upstream(self.largest)
        if not self.standing and self._recovery is not None:
            self._recovery.alone()
        if not self.standing and (stock.subscriptions or self._pending):
            self._connect(forward=self._wants_objects())
            if not self._legs:
                self._refuse_pending(NO_SUCH_TRACK)
        self._check_idle()

    def _recovered(self, succeeded: bool) -> None:
        """Live streams go on from here; or nobody came."""
        ending = self._recovery is not None and self._recovery.ending
        self._recovery = None
        if not succeeded and not self.standing and not ending:
            self._end(DoneCode.INTERNAL_ERROR, "the publisher is lost")
            self.stock.waits.stir()
            return
        largest = self.largest
        self.stock.account.floor = 0 if largest is None else place(largest) + 1
        for fan in tuple(self.stock.fans.values()):
            fan.advance()
            if largest is None or fan.head.group < largest.group:
                fan.settle()
        if not self._legs:  # it has ended meanwhile
            self._end(self._last_end, "")

    def _end(self, code: DoneCode, reason: str) -> None:
        if self._recovery is not None:
            self._recovery.ending = True
            self._recovery.upstream(self.largest)
            return  # it ends when all that was missed has been passed on
        if not self._legs and code == DoneCode.TRACK_ENDED:
            self._attach_pending()
        elif not self._legs:
            self._refuse_pending(NO_SUCH_TRACK)
        ended = code == DoneCode.TRACK_ENDED and self.largest is not None
        for fan in tuple(self.stock.fans.values()):
            fan.advance()
            fan.settle(place(self.largest) if ended and self.largest else MAX_PLACE)
        for request in tuple(self.stock.subscriptions):
            self.stock.leave(request)  # its fills may go on for a while
            request.done(code, reason)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self.wanted and self._linger is None:
            delay = self.context.config.linger
            self._linger = self.context.clock.call_later(delay, self._idle)

    def _idle(self) -> None:
        self._linger = None
        if self.wanted:
            return
        for leg in tuple(self._legs):
            if leg.idle():
                self._legs.remove(leg)
        if not self._legs:
            self.stock.forget_fans()
            self._on_idle(self)
