"""One leg of a retrieval: what is asked for on one session, and how that fares (kvcs.md §5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from kvcs.errors import PublicationConflict
from kvcs.names import STOPPED
from moqt.codec.params import Parameters
from moqt.errors import DoneCode, MoqtError, RequestCode, RequestFailed
from moqt.model import (
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    LocationRange,
    RangeFilter,
    RangeFilterType,
    Span,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvcs.assembler import Assembly
    from kvcs.bell import Bell
    from kvcs.names import PublicationName, TrackName
    from kvcs.relays import Link
    from moqt.model import Gap, ObjectHead, ObjectSink, SubgroupHead
    from moqt.session.fetches import OutgoingFetch
    from moqt.session.ports import TrackInfo
    from moqt.session.subscriptions import OutgoingSubscribe
    from transport.api import BytesLike

#: Missing runs of one track that are fetched one by one; more are fetched as one stretch.
MAX_RUNS: Final = 16
#: Times a damaged group is asked for again while its track goes on, and looks for such groups:
#: whoever sends damage only is left to the next round.
REPAIRS: Final = 1
MAX_REPAIRS: Final = 64
#: Seconds that we wait at least before we ask again, and the longest that a peer may make us wait:
#: asked for more, the feed is over, and other sources get their turn.
MIN_RETRY: Final = 0.05
MAX_RETRY: Final = 5.0

#: Seconds for which whoever we turn to next is asked to wait for the publisher (draft-22 §9.20.6):
#: it may have lost the same relay, which it notices a little later than we, or sooner.
REUNION: Final = 10.0

#: Endings after which another subscription may bring what is still to come.
_PASSING: Final = frozenset(
    {DoneCode.GOING_AWAY, DoneCode.TOO_FAR_BEHIND, DoneCode.EXPIRED, DoneCode.EXCESSIVE_LOAD}
)


class Feed:
    """One request for one data track, again and again while the peer says "later".

    A TrackReceiver. ``over`` is set when nothing more comes of it; ``error`` or ``done_code`` say
    how it ended.
    """

    def __init__(self, leg: Leg, track: TrackName, parameters: Parameters, *, live: bool) -> None:
        self.track = track
        self.live = live
        self.over = False
        self.error: MoqtError | None = None
        self.done_code: int | None = None
        #: Data streams that have started and not ended.
        self.streams = 0
        #: A fill stream is to come, or is here.
        self.filling = parameters.fill is not None
        #: Groups below this one come on the fill alone.
        self.past = 0
        self._leg = leg
        self._parameters = parameters
        self._request: OutgoingSubscribe | OutgoingFetch | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._ask()

    def cancel(self) -> None:
        """Want nothing more of it."""
        self.over = True
        if self._retry is not None:
            self._retry.cancel()
        if self._request is not None:
            self._request.cancel()

    # -- TrackReceiver ---------------------------------------------------------------------------

    def accepted(self, info: TrackInfo) -> None:
        """SUBSCRIBE_OK or FETCH_OK."""
        self._leg.subscribed |= self.live
        self._leg.link.silent = False
        if info.largest is not None:
            self.past = info.largest.group
        if self.live and not info.fill:
            self.filling = False
            self._leg.bell.ring()

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        """A group starts."""
        return self._tail(head.group)

    def open_fetch(self, request_id: int) -> ObjectSink:
        """The fill, or the fetch itself, starts."""
        return self._tail(None)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """KVCS objects travel on streams; this one is not counted on and stays missing."""

    def done(self, code: int, reason: str, complete: bool) -> None:
        """PUBLISH_DONE, or the fetch is served."""
        self.done_code = code if self.live else None
        if self.live and code != DoneCode.TRACK_ENDED:
            self._leg.note(f"{self._leg.link}: {_why_done(code, reason)}")
        self._finish()

    def failed(self, error: MoqtError) -> None:
        """Refused, cut off, or contradictory."""
        if isinstance(error, RequestFailed) and error.retry_after is not None:
            wait = max(error.retry_after / 1000, MIN_RETRY)
            if wait <= MAX_RETRY:
                self._retry = asyncio.get_running_loop().call_later(wait, self._ask)
                return
        self.error = error
        self._leg.link.heard(error)
        self._leg.note(f"{self._leg.link}: {error}")
        self._finish()

    # -- inside ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        connection = self._leg.link.connection
        name = FullTrackName(self._leg.name.namespace, self.track.wire)
        try:
            if self.live:
                self._request = connection.subscribe(name, self, self._parameters)
            else:
                self._request = connection.fetch(name, self, self._parameters)
        except MoqtError as error:
            self.failed(error)

    def _finish(self) -> None:
        self.over = True
        self.filling = False
        self._leg.bell.ring()

    def _tail(self, group: int | None) -> ObjectSink:
        self.streams += 1
        self._leg.opened += 1
        self._leg.opened_at = self._leg.time()
        self._leg.link.silent = False
        return _Tail(self._leg.assembly.stream(self.track), self, group)

    def stream_over(self, group: int | None) -> None:
        """A data stream has ended: whatever is missing of it will not come on it."""
        self.streams -= 1
        if group is None:
            self.filling = False
        self._leg.stream_over(self, group)

    def whole(self) -> None:
        """An object is complete and about to be verified."""
        self._leg.whole_at = self._leg.time()


class _Tail:
    """An assembler's sink that also tells when objects are whole and when the stream is over."""

    __slots__ = ("_feed", "_group", "_inner", "begin", "gap", "write")

    def __init__(self, inner: ObjectSink, feed: Feed, group: int | None) -> None:
        self._inner = inner
        self._feed = feed
        self._group = group
        # Straight through: what runs for every chunk gains no call.
        self.begin: Callable[[ObjectHead], None] = inner.begin
        self.write: Callable[[BytesLike], None] = inner.write
        self.gap: Callable[[Gap], None] = inner.gap

    def end(self) -> None:
        """An object is whole."""
        self._feed.whole()
        self._inner.end()

    def finish(self) -> None:
        """FIN."""
        self._inner.finish()
        self._feed.stream_over(self._group)

    def abort(self, code: int) -> None:
        """Reset, or the session died."""
        self._inner.abort(code)
        self._feed.stream_over(self._group)


class Leg:
    """The requests of one retrieval on one session, until they are over or cancelled.

    ``bell`` rings when something ended; ``note`` is told what went wrong.
    """

    def __init__(
        self,
        link: Link,
        name: PublicationName,
        assembly: Assembly,
        bell: Bell,
        note: Callable[[str], None],
    ) -> None:
        self.link = link
        self.name = name
        self.assembly = assembly
        self.bell = bell
        self.note = note
        self.time = asyncio.get_running_loop().time
        #: When the newest object was whole, before it was verified.
        self.whole_at = self.time()
        #: When the newest data stream started, and the newest manifest was taken.
        self.opened_at = self.version_at = self.whole_at
        #: Data streams that have started.
        self.opened = 0
        #: The session is to end, but there is no other: stay as long as it lasts.
        self.stays = False
        #: Nothing came for too long.
        self.silent = False
        #: A SUBSCRIBE was accepted.
        self.subscribed = False
        #: Objects of a group whose stream is over were rejected or lost: ask again.
        self.damaged = False
        link.enter()
        link.listeners.add(bell.ring)
        self._feeds: list[Feed] = []
        self._ended: set[tuple[TrackName, int]] = set()
        self._repaired: Counter[tuple[TrackName, int]] = Counter()
        self._flaws = self._count_flaws()
        self._looks = 0

    # -- asking ----------------------------------------------------------------------------------

    def follow(self, reunion: float = 0.0) -> None:
        """SUBSCRIBE every track: what there is on a fill, what is to come live, each once.

        The publisher may need ``reunion`` seconds to be there.
        """
        wanted = self.assembly.wanted
        for track, runs in self.assembly.missing().items():
            first, last = runs[0].start.group, wanted.layers[-1]
            to_the_end = last == wanted.geometry.layers - 1
            past = LocationFilter.since(first) if to_the_end else LocationFilter.groups(first, last)
            # From the start it is the draft's pattern; a part of the track is said in both.
            live = LocationFilter.next_object() if to_the_end and first == 0 else past
            parameters = Parameters(
                location_filter=live,
                group_order=GroupOrder.ASCENDING,
                fill=Parameters(location_filter=past, range_filters=self._blocks_filter()),
                rendezvous_timeout=int(reunion * 1000) or None,
            )
            self._feeds.append(Feed(self, track, parameters, live=True))

    def fetch_missing(self) -> None:
        """FETCH what each track lacks, whole layers as groups (kvcs.md §5)."""
        for track, runs in self.assembly.missing().items():
            few = runs if len(runs) <= MAX_RUNS else (LocationRange(runs[0].start, runs[-1].end),)
            for run in few:
                self._fetch(track, run)

    def repair(self) -> None:
        """FETCH what has been lost of groups that are otherwise through, without waiting."""
        self.damaged = False
        self._looks += 1
        missing = self.assembly.missing()
        for feed in tuple(self._feeds):
            if not feed.live or feed.filling:
                continue
            for part in self._by_group(missing.get(feed.track, ())):
                place = (feed.track, part.start.group)
                through = part.start.group < feed.past or place in self._ended
                if through and self._repaired[place] < REPAIRS:
                    self._repaired[place] += 1
                    self._fetch(feed.track, part)

    def cancel(self) -> None:
        """Want nothing more; call it once."""
        for feed in self._feeds:
            feed.cancel()
        self.link.listeners.discard(self.bell.ring)
        self.link.leave()

    # -- how it fares ----------------------------------------------------------------------------

    @property
    def heard_at(self) -> float:
        """When something came last."""
        return max(self.whole_at, self.opened_at, self.version_at)

    @property
    def over(self) -> bool:
        """True when every request has ended."""
        return all(feed.over for feed in self._feeds)

    @property
    def refused(self) -> bool:
        """A fetch is not to be repeated, or not soon; a refused SUBSCRIBE never is (§9.4.2)."""
        errors = (feed.error for feed in self._feeds if not feed.live)
        return any(isinstance(error, RequestFailed) and error.refused for error in errors)

    @property
    def unknown(self) -> bool:
        """Nobody there has it, or not yet."""
        errors = (feed.error for feed in self._feeds)
        return any(
            isinstance(error, RequestFailed)
            and error.code in (RequestCode.DOES_NOT_EXIST, RequestCode.TIMEOUT)
            for error in errors
        )

    @property
    def conflict(self) -> PublicationConflict | None:
        """Two payloads at one Location: the publication cannot be trusted."""
        errors = (feed.error for feed in self._feeds)
        return next((error for error in errors if isinstance(error, PublicationConflict)), None)

    @property
    def resumable(self) -> bool:
        """True when subscribing again may bring what is still to come."""
        return any(feed.done_code in _PASSING for feed in self._feeds)

    def drained(self, *, complete: bool) -> bool:
        """True when nothing can be on its way any more, though requests are open.

        The draft's conditions, per track: End of Track, or all of the fill and a manifest that
        marks the segment ``complete``; and no stream is open.
        """
        return all(
            feed.over
            or (
                feed.live
                and not feed.streams
                and not feed.filling
                and (complete or self.assembly.ended(feed.track))
            )
            for feed in self._feeds
        )

    def stream_over(self, feed: Feed, group: int | None) -> None:
        """A data stream of ``feed`` has ended."""
        if group is not None:
            self._ended.add((feed.track, group))
        flaws = self._count_flaws()
        if flaws != self._flaws:
            self._flaws = flaws
            self.damaged = self._looks < MAX_REPAIRS
        if self.damaged or group is None:
            self.bell.ring()

    # -- inside ----------------------------------------------------------------------------------

    def _fetch(self, track: TrackName, run: LocationRange) -> None:
        parameters = Parameters(
            location_filter=self._range_filter(run),
            group_order=GroupOrder.ASCENDING,
            range_filters=self._blocks_filter(),
        )
        self._feeds.append(Feed(self, track, parameters, live=False))

    def _range_filter(self, run: LocationRange) -> LocationFilter:
        start, end = run.start, run.end or run.start
        if start.object == 0 and end.object == self.assembly.wanted.blocks - 1:
            return LocationFilter.groups(start.group, end.group)
        kind = LocationFilterType.ABSOLUTE_RANGE
        return LocationFilter(kind, start, end.group - start.group, end.object)

    def _blocks_filter(self) -> tuple[RangeFilter, ...]:
        """First blocks only, where the peer filters; else the surplus is dropped here."""
        wanted = self.assembly.wanted
        if wanted.blocks == wanted.geometry.blocks:
            return ()
        if not self.link.connection.peer_options.max_filter_ranges:
            return ()
        return (RangeFilter(RangeFilterType.OBJECT_ID, (Span(0, wanted.blocks - 1),)),)

    def _by_group(self, runs: Iterable[LocationRange]) -> Iterator[LocationRange]:
        """For each group that lacks something, the stretch that does."""
        last = self.assembly.wanted.blocks - 1
        parts: dict[int, LocationRange] = {}
        for start, end in runs:
            end = end or start
            for group in range(start.group, end.group + 1):
                first = parts[group].start if group in parts else Location(group, 0)
                if group == start.group and group not in parts:
                    first = start
                until = end if group == end.group else Location(group, last)
                parts[group] = LocationRange(first, until)
        yield from parts.values()

    def _count_flaws(self) -> int:
        counters = self.assembly.counters
        return counters.rejected.total() + counters.lost


def _why_done(code: int, reason: str) -> str:
    if reason == STOPPED:
        return reason
    name = DoneCode(code).name if code in DoneCode._value2member_map_ else f"code {code:#x}"
    return f"the publisher ended it: {name} {reason}"
