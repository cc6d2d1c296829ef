"""One upstream subscription of a track: a SUBSCRIBE of ours, or a PUBLISH that we accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from moqt.codec.params import Parameters
from moqt.errors import Misuse, MoqtError
from moqt.model import MAX_VI64, LocationFilter
from moqt.relay.spans import place
from moqt.relay.subgroups import Inflow
from moqt.session.publishing import IncomingPublish

if TYPE_CHECKING:
    from moqt.codec.messages import RequestOk
    from moqt.model import Location, ObjectHead, ObjectSink, SubgroupHead
    from moqt.relay.clock import Planned
    from moqt.relay.peers import Peer
    from moqt.relay.track import RelayTrack
    from moqt.session.ports import TrackInfo
    from moqt.session.subscriptions import OutgoingSubscribe
    from transport.api import BytesLike

    Upstream: TypeAlias = OutgoingSubscribe | IncomingPublish


#: A peer that does not say how far a track has come is believed to have said all, in seconds.
REFRESH_TIME: Final = 1.0


class Leg:
    """A TrackReceiver of one session; ``live_from`` is the first place it brings, if any."""

    def __init__(self, track: RelayTrack, peer: Peer) -> None:
        self._track = track
        self._stock = track.stock
        self.peer = peer
        self.request: Upstream | None = None
        self.established = False
        self.forward = True
        self.over = False
        self.live_from: int | None = None
        #: How often it was paused or resumed: a stream that goes on afterwards may leave out.
        self.turns = 0
        #: The last place that this peer is known to have come to.
        self.heard = -1
        self._refreshing: Planned | None = None
        self._resuming: Planned | None = None
        #: The update that resumes it: only its answer says from where.
        self._update = -1
        self._inflows: set[Inflow] = set()
        #: What Largest Object was when the last NEW_GROUP_REQUEST went up, and its value.
        self._wanted_group: tuple[Location | None, int] | None = None

    # -- from the track --------------------------------------------------------------------------

    def subscribe(self, *, forward: bool, new_group: int | None, rendezvous: int | None) -> None:
        """SUBSCRIBE from the next object on; raises MoqtError when the session is ending.

        Nothing of a subscriber's request is copied: several will share this one (§5.1.3, §9.20).
        """
        self.forward = forward
        asked = Parameters(
            location_filter=LocationFilter.next_object(),
            forward=forward,
            new_group_request=new_group,
            rendezvous_timeout=rendezvous,
        )
        self.request = self.peer.subscribe(self._track.name, asked, self)
        if new_group is not None:
            self._wanted_group = None, new_group

    def accept(self, request: IncomingPublish) -> None:
        """Take a PUBLISH."""
        self.request = request
        self.forward = request.parameters.forward is not False
        request.accept(self)

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self._ends()
        if self.request is not None:
            self.request.cancel()

    @property
    def live(self) -> bool:
        """True while it brings every object after a Largest Object that is known."""
        return self.established and self.live_from is not None

    @property
    def refreshing(self) -> bool:
        """True while it is asked how far the track has come."""
        return self._refreshing is not None

    def resume(self, forward: bool) -> None:
        """Pause it, or let it bring objects again, from its Largest Object on (draft-22 §7.6)."""
        request = self.request
        if not self.established or request is None or forward == self.forward:
            return
        asked = Parameters(forward=forward)
        if forward:
            asked = replace(asked, location_filter=LocationFilter.next_object())
        try:
            update = request.update(asked)
        except Misuse:
            return  # the peer owes too many answers: asked again later
        self.forward = forward
        self.turns += 1
        self.live_from = None
        self._stop_resuming()
        if forward:
            # A relay that is paused itself answers the update with what it knew before.
            self.refresh()
            self._track.leg_resumes()
            request.on_updated = self._resumed
            self._update = update
            clock = self._stock.context.clock
            self._resuming = clock.call_later(
                REFRESH_TIME, lambda: self._resumed(update, Parameters())
            )

    def _resumed(self, update: int, said: Parameters) -> None:
        """It says how far the track has come without us; or does not, and is not waited for."""
        if self._resuming is None or update != self._update:
            return
        self._stop_resuming()
        archive = self._stock.archive
        largest = said.largest_object or archive.largest  # objects may have overtaken the answer
        self._hears(said.largest_object)
        if largest is not None:
            archive.advance(largest)
        self.live_from = 0 if largest is None else place(largest) + 1
        self._track.leg_live(self, largest)

    def _stop_resuming(self) -> None:
        timer, self._resuming = self._resuming, None
        if timer is not None:
            timer.cancel()

    def refresh(self) -> bool:
        """Ask a paused upstream how far the track has come; False when it cannot be asked."""
        if not self.established or self.over:
            return False
        if self._refreshing is None:
            try:
                self.peer.track_status(self._track.name, self._told)
            except MoqtError:
                return False
            clock = self._stock.context.clock
            self._refreshing = clock.call_later(REFRESH_TIME, self._refreshed)
        return True

    def _told(self, said: RequestOk | MoqtError) -> None:
        if not isinstance(said, MoqtError) and said.parameters.largest_object is not None:
            self._hears(said.parameters.largest_object)
            self._stock.archive.advance(said.parameters.largest_object)
        self._refreshed()

    def _hears(self, largest: Location | None) -> None:
        if largest is not None:
            self.heard = max(self.heard, place(largest))

    def _ends(self) -> None:
        self.over = True
        self._stop_resuming()

    def _refreshed(self) -> None:
        timer, self._refreshing = self._refreshing, None
        if timer is not None:
            timer.cancel()
            self._track.answer()

    def ask_group(self, wanted: int) -> None:
        """NEW_GROUP_REQUEST, unless one as good is outstanding (draft-22 §9.20.19)."""
        largest = self._track.largest
        if wanted and largest is not None and wanted <= largest.group:
            return
        if self._wanted_group is not None:
            asked_at, value = self._wanted_group
            moved = largest is not None and (asked_at is None or largest.group > asked_at.group)
            if not moved and value >= wanted:
                return
        if self.request is None or not self.established:
            return
        try:
            self.request.update(Parameters(new_group_request=wanted))
        except Misuse:
            return  # the track has no dynamic groups
        self._wanted_group = largest, wanted

    def may_bring(self, at: int) -> bool:
        """True when the object at this place may yet come live."""
        return self.established and self.live_from is not None and at >= self.live_from

    def on_its_way(self, at: int) -> bool:
        """True when a stream that is open may yet bring the object at this place."""
        group, number = at >> 64, at & MAX_VI64
        return any(
            inflow.group == group and (inflow.last is None or inflow.last < number)
            for inflow in self._inflows
        )

    def idle(self) -> bool:
        """Nobody downstream wants it: leave it, or pause what a publisher offered. True if left."""
        if isinstance(self.request, IncomingPublish):
            self.resume(False)
            return False
        self.cancel()
        return True

    def inflow_over(self, inflow: Inflow) -> None:
        """One of its streams has ended."""
        self._inflows.discard(inflow)

    # -- TrackReceiver ---------------------------------------------------------------------------

    def accepted(self, info: TrackInfo) -> None:
        """SUBSCRIBE_OK, or PUBLISH as it came."""
        self.established = True
        self._hears(info.largest)
        if self._wanted_group is not None:
            self._wanted_group = info.largest, self._wanted_group[1]
        if self.forward:
            self.live_from = 0 if info.largest is None else place(info.largest) + 1
        self._track.leg_stands(self, info)

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        """A subgroup stream."""
        inflow = Inflow(self._stock, self._stock.fan(head), self, head)
        self._inflows.add(inflow)
        return inflow

    def open_fetch(self, request_id: int) -> ObjectSink:
        """Never: fills are fetched."""
        raise Misuse("no fill was asked for")

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A datagram object."""
        self._hears(head.location)
        self._stock.datagram(head, payload)

    def done(self, code: int, reason: str, complete: bool) -> None:
        """PUBLISH_DONE."""
        self._ends()
        self._track.leg_done(self, code, reason)

    def failed(self, error: MoqtError) -> None:
        """Refused, malformed, or the session is gone."""
        self._ends()
        self._track.leg_failed(self, error)
