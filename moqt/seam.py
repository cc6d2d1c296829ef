"""The seam between two sessions that serve one subscription: each object passes once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from moqt.codec.params import Parameters
from moqt.errors import DoneCode, MoqtError, RequestFailed
from moqt.model import LocationFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.driver import Connection
    from moqt.migration import RoamingSubscription
    from moqt.model import Gap, Location, ObjectHead, ObjectSink, SubgroupHead
    from moqt.session.ports import TrackInfo
    from transport.api import BytesLike


#: Lost streams after which one session is asked anew for what they may have brought.
MAX_SWEEPS: Final = 64


class Leg:
    """The subscription on one session: a TrackReceiver of that session."""

    def __init__(
        self,
        owner: RoamingSubscription,
        connection: Connection,
        parameters: Parameters,
        *,
        late: bool = False,
    ) -> None:
        self._owner = owner
        self.connection = connection
        self.moving = False  # it is being left
        self.awaited = False  # it is being moved to
        self._left = False
        self.late = late  # another one was before
        # Groups of which something may have been begun, but not ended, when this one began.
        self._newest = -1
        self._earliest = 0
        self._sweeps = MAX_SWEEPS
        self._lost = False
        # First and last group whose streams were reset, and what is asked anew of earlier ones.
        self._cut: tuple[int, int] | None = None
        self._mending: LocationFilter | None = None
        self.error: MoqtError | None = None
        fill = parameters.fill
        self.filling = fill is not None
        if fill is not None and fill.location_filter is not None:
            self._earliest = fill.location_filter.start.group
        self._seams: set[Seam] = set()
        self.caught_up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.request = connection.subscribe(owner.name, self, parameters)
        self.request.on_move = lambda uri, _: owner.roamer.move_one(owner, uri)

    def cancel(self) -> None:
        """Leave this session; what it has begun and not ended breaks."""
        self._settle(succeeded=False)
        self._left = True
        self.request.cancel()

    def open_groups(self) -> list[int]:
        """Groups of streams that have not ended."""
        return [seam.group for seam in self._seams if seam.group is not None]

    def fetch(self, wanted: LocationFilter) -> None:
        """What neither session will bring by itself."""
        try:
            parameters = Parameters(location_filter=wanted)
            self.connection.fetch(self._owner.name, Repair(self, wanted), parameters)
        except MoqtError:
            self._owner.owe(wanted)

    def stream_lost(self) -> None:
        """It may have been the end of anything begun before we came, or the fill."""
        self._lost = True  # before SUBSCRIBE_OK it is not known which
        if self._newest >= self._earliest and not self._left and self._sweeps:
            self._sweeps -= 1
            self.fetch(self._unsure)

    # -- TrackReceiver ---------------------------------------------------------------------------

    def accepted(self, info: TrackInfo) -> None:
        """SUBSCRIBE_OK: with nothing to fill it has caught up."""
        if self.late and info.largest is not None:
            self._newest = info.largest.group
            if self._lost:
                self.stream_lost()
        self._owner.accepted(info)
        if not info.fill:
            self.filling = False
            self._settle(succeeded=True)

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        """A stream; the application hears of it with its first object that is new."""
        return self._seam(lambda: self._owner.receiver.open_subgroup(head), head.group)

    def open_fetch(self, request_id: int) -> ObjectSink:
        """A fill; the same."""
        return self._seam(lambda: self._owner.receiver.open_fetch(request_id), None, fills=True)

    def open_repair(self, request_id: int) -> ObjectSink:
        """The stream of objects asked for anew."""
        return self._seam(lambda: self._owner.receiver.open_fetch(request_id), None)

    def repaired(self, wanted: LocationFilter, *, came: bool) -> None:
        """What was asked for anew is in, or will not come; it stands for a fill that was lost."""
        if not came:
            self._owner.again(self, wanted)
        if wanted is self._mending:
            self._mending = None
            self._mend()
        if self.filling and self._fill_lost and wanted == self._unsure:
            self.filling = False
            self._settle(succeeded=True)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A datagram object, if it is new."""
        owner = self._owner
        if head.location not in owner.seen and head.location not in owner.running:
            owner.ends(head.location)
            owner.receiver.datagram(head, payload)

    def done(self, code: int, reason: str, complete: bool) -> None:
        """PUBLISH_DONE."""
        self._settle(succeeded=False)
        if code == DoneCode.GOING_AWAY and self.moving:
            self.error = RequestFailed(code, reason)
        else:
            self._owner.done(self, code, reason, complete)

    def failed(self, error: MoqtError) -> None:
        """It is over on this session."""
        self.error = error
        self._settle(succeeded=False)
        if not self.awaited and not self.moving:
            self._owner.failed(self, error)

    # -- from its streams ------------------------------------------------------------------------

    def stream_over(self, seam: Seam, *, reset: bool = False) -> None:
        """One has ended; after its fill it has caught up."""
        self._seams.discard(seam)
        if not seam.fills:
            return
        if reset and self._newest >= self._earliest and self._sweeps and not self._left:
            self.stream_lost()
        else:
            self.filling = False
            self._settle(succeeded=True)

    @property
    def _unsure(self) -> LocationFilter:
        return LocationFilter.groups(self._earliest, self._newest)

    @property
    def _fill_lost(self) -> bool:
        return not any(seam.fills for seam in self._seams)

    def reset(self, group: int) -> None:
        """What was begun before we came ends with a reset (draft-22 §11.3.2), perhaps too soon."""
        if group <= self._newest and not self._left:
            low, high = self._cut or (group, group)
            self._cut = min(low, group), max(high, group)
            self._mend()

    def _mend(self) -> None:
        """Ask anew for the groups that were cut, with one fetch at a time however many they are."""
        if self._cut is not None and self._mending is None:
            (low, high), self._cut = self._cut, None
            self._mending = LocationFilter.groups(low, high)
            self.fetch(self._mending)

    def _seam(
        self, opener: Callable[[], ObjectSink], group: int | None, *, fills: bool = False
    ) -> ObjectSink:
        seam = Seam(self._owner, self, opener, group, fills=fills)
        self._seams.add(seam)
        return seam

    def _settle(self, *, succeeded: bool) -> None:
        if not self.caught_up.done():
            self.caught_up.set_result(succeeded)


class Seam:
    """An ObjectSink that lets through what is new."""

    def __init__(
        self,
        owner: RoamingSubscription,
        leg: Leg,
        opener: Callable[[], ObjectSink],
        group: int | None,
        *,
        fills: bool = False,
    ) -> None:
        self._owner = owner
        self._leg = leg
        self.fills = fills
        self._opener = opener
        self._sink: ObjectSink | None = None
        self._place: Location | None = None
        self.group = group

    def begin(self, head: ObjectHead) -> None:
        """An object; it passes when it is new, and ours: what is asked anew is whole groups."""
        scope = self._owner.scope
        if self.group is None and self._leg.late and scope and head.location not in scope:
            return
        if not self._owner.begins(head, self):
            return
        if self._sink is None:
            self._sink = self._opener()
        self._place = head.location
        self._sink.begin(head)

    def write(self, view: BytesLike) -> None:
        """Its payload."""
        if self._place is not None and self._sink is not None:
            self._sink.write(view)

    def end(self) -> None:
        """It is whole."""
        place, self._place = self._place, None
        if place is not None and self._sink is not None:
            self._owner.ends(place)
            self._sink.end()

    def gap(self, gap: Gap) -> None:
        """A range of a fill will not come."""
        if self._sink is not None:
            self._sink.gap(gap)

    def finish(self) -> None:
        """FIN."""
        self._leg.stream_over(self)
        if self._sink is not None:
            self._sink.finish()

    def abort(self, code: int) -> None:
        """Reset, or left behind."""
        self._leg.stream_over(self, reset=True)
        place, self._place = self._place, None
        if self._sink is not None:
            self._sink.abort(code)
        if place is not None:
            self._owner.breaks(place)
        if self.group is not None:
            self._leg.reset(self.group)


class Repair:
    """The receiver of objects that were left out or lost at the seam."""

    def __init__(self, leg: Leg, wanted: LocationFilter) -> None:
        self._leg = leg
        self._wanted = wanted

    def accepted(self, info: TrackInfo) -> None:
        """It will come."""

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        """A fetch has none."""
        return self._leg.open_subgroup(head)

    def open_fetch(self, request_id: int) -> ObjectSink:
        """Its stream."""
        return self._leg.open_repair(request_id)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """A fetch has none."""

    def done(self, code: int, reason: str, complete: bool) -> None:
        """It is in."""
        self._leg.repaired(self._wanted, came=True)

    def failed(self, error: MoqtError) -> None:
        """It is not to be had any more, from here."""
        self._leg.repaired(self._wanted, came=False)
