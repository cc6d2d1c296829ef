"""Getting all that a retrieval lacks: session by session, within bounds (kvcs.md §5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from kvcs.bell import Bell
from kvcs.errors import IncompletePublication, ManifestRejected, most_telling_first
from kvcs.legs import REUNION, Leg
from kvcs.manifest import check_successor
from kvcs.manifest_track import MAX_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcs.assembler import Assembly
    from kvcs.manifest import SegmentEntry
    from kvcs.names import PublicationName, TrackName
    from kvcs.relays import Link
    from kvcs.sources import Source, Sources

#: "auto": completed when the manifest marks the segment so, else live.
Mode: TypeAlias = Literal["auto", "live", "completed"]

#: Without progress for so many seconds a source is given up: recomputing a prefix takes about that.
PROGRESS_TIMEOUT: Final = 20.0
#: When nothing can be on its way any more, stragglers get so long before they are asked for.
DRAIN_TIMEOUT: Final = 0.5
#: All objects are here: so long the last manifest and the ends of the tracks are waited for.
SETTLE_TIMEOUT: Final = 1.0
#: Rounds on one session that bring nothing new, before the next session is tried.
FRUITLESS_ROUNDS: Final = 2
#: A session that was silent for the whole timeout is asked once more: what hung on one stream
#: comes within a round trip, what is dead costs no second timeout.
SECOND_CHANCE: Final = 0.5
#: Kinds of setback that are told, and characters of each: their words are the peers'.
MAX_SETBACKS: Final = 16
MAX_SETBACK: Final = 240


class Plan(NamedTuple):
    """What is asked for; ``layers`` (first, last), ``blocks`` leading ones, None for all."""

    tracks: tuple[TrackName, ...]
    mode: Mode
    layers: tuple[int, int] | None
    blocks: int | None
    timeout: float
    max_octets: int


class Pursuit:
    """The work of one retrieval: ``run`` it once.

    ``assembly`` is filled from ``source``, then from whatever else may have it. ``revoked`` is
    told of layers whose octets a later manifest denies. ``leave`` it in any case.
    """

    def __init__(
        self,
        source: Source,
        sources: Sources,
        plan: Plan,
        assembly: Assembly,
        revoked: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.source = source
        #: Sessions and publications tried, in that order.
        self.tried: list[Link] = [source.link]
        self.names: list[PublicationName] = [source.name]
        self.live = plan.mode == "live" or (plan.mode == "auto" and not source.entry.complete)
        self._sources = sources
        self._plan = plan
        self._assembly = assembly
        self._revoked = revoked
        self._version = source.watch.version
        self._watched = True
        self._bell = Bell()
        self._leg: Leg | None = None
        self._subscribed = False
        self._setbacks: Counter[str] = Counter()
        #: Where to go on, once the present session is to end; and the search for that.
        self._next: Link | None = None
        self._moving: asyncio.Task[Link | None] | None = None
        #: Until then whoever sent us back may not know yet what it had.
        self._back_until = 0.0
        #: The first session did not know any more what it had offered.
        self._forgotten = False
        source.watch.listeners.add(self._bell.ring)

    @property
    def whole_at(self) -> float:
        """When the newest object was whole, before it was verified."""
        return self._loop.time() if self._leg is None else self._leg.whole_at

    @property
    def mode(self) -> Mode:
        """How it came: live as soon as one SUBSCRIBE was accepted, else completed."""
        leg = self._leg
        return "live" if self._subscribed or (leg is not None and leg.subscribed) else "completed"

    def completed(self) -> None:
        """The last layer has become usable."""
        self._bell.ring()

    async def run(self) -> None:
        """Until everything is verified; raises IncompletePublication and other KvcsErrors."""
        if self.source.entry.complete:
            self.leave()
        try:
            while not await self._use_link():
                await self._next_source()
        finally:
            if self._moving is not None:
                self._moving.cancel()

    def leave(self) -> None:
        """The manifest is of no more interest, or its session is left."""
        if self._watched:
            self._watched = False
            self.source.watch.listeners.discard(self._bell.ring)
            self._sources.release(self.source.link, self.source.watch)

    def incomplete(self, why: str) -> IncompletePublication:
        """What is missing, and how that came about."""
        count = self._assembly.missing_count
        return IncompletePublication(
            f"{count} of {count + self._assembly.counters.objects} objects of publication"
            f" {self.source.name.pub_id.hex()[:8]} are missing: {why}",
            self._assembly.missing(),
            self.setbacks,
        )

    @property
    def setbacks(self) -> tuple[str, ...]:
        """What went wrong on the way, each kind once."""
        return most_telling_first(
            text if count == 1 else f"{text} ({count} times)"
            for text, count in self._setbacks.items()
        )

    # -- one session -----------------------------------------------------------------------------

    async def _use_link(self) -> bool:
        """Rounds on one session, each asking for what is missing; True when nothing is."""
        fruitless = 0
        follow, silent, timeout = self.live, False, self._plan.timeout
        while True:
            before = self._assembly.counters.objects
            patience = min(SECOND_CHANCE, timeout) if silent else timeout
            leg = await self._one_leg(patience, follow=follow)
            if self._assembly.complete:
                return True
            if not leg.link.open:
                self._note(f"{leg.link}: the session {'ended' if leg.link.over else 'is to end'}")
                return False
            if leg.unknown and await self._known_again(leg.link):
                follow = self.live
                continue
            if leg.refused:
                if not (leg.unknown and self._may_be_back()):
                    return False
                follow = True
                continue
            fruitless = 0 if self._assembly.counters.objects > before else fruitless + 1
            if leg.silent and not silent:
                self._note(f"{leg.link}: nothing came for {timeout:g} s")
            elif leg.silent and not leg.opened:
                leg.link.silent = True
                return False
            silent = leg.silent
            if fruitless >= FRUITLESS_ROUNDS:
                return False
            follow = self.live and leg.resumable and not self.source.entry.complete

    async def _one_leg(self, patience: float, *, follow: bool) -> Leg:
        source = self.source
        leg = self._leg = Leg(source.link, source.name, self._assembly, self._bell, self._note)
        try:
            if follow:
                leg.follow(self._reunion)
            else:
                leg.fetch_missing()
            await self._watch_leg(leg, patience)
            # The end of a fetch is due in any case, that of a live track after its last layer.
            if not follow or self._wants_the_end:
                await self._settle_leg(leg, last_version=follow)
        finally:
            self._subscribed |= leg.subscribed
            leg.cancel()
        return leg

    async def _watch_leg(self, leg: Leg, patience: float) -> None:
        """Until all is here, or nothing more comes, or nothing has come for too long.

        ``patience`` is for the first of it, the timeout of the plan from then on.
        """
        last, since = self._progress(leg), self._loop.time()
        while not self._assembly.complete:
            self._take_version()
            if leg.conflict is not None:
                raise leg.conflict
            if leg.over:
                return
            if leg.damaged:
                leg.repair()
            if leg.link.leaving and not leg.stays:
                # Connect there first: what comes here meanwhile is not lost.
                moving = self._moving or self._move()
                if moving.done():
                    self._next, self._moving = moving.result(), None
                    leg.stays = self._next is None
                    if self._next is not None:
                        return
            drained = leg.drained(complete=self.source.entry.complete)
            if (progress := self._progress(leg)) != last:
                # What came may have come long ago: objects ring no bell.
                last, since, patience = progress, leg.heard_at, self._plan.timeout
            limit = min(DRAIN_TIMEOUT, patience) if drained else patience
            left = since + limit - self._loop.time()
            if left <= 0:
                leg.silent = not drained
                return
            await self._bell.wait(left)

    async def _settle_leg(self, leg: Leg, *, last_version: bool) -> None:
        """All objects are here: let the ends of the tracks and the last manifest come, briefly.

        A relay that sees the end of a track knows that it has all of it.
        """
        deadline = self._loop.time() + SETTLE_TIMEOUT
        while self._assembly.complete and leg.link.open:
            self._take_version()
            settled = self.source.entry.complete or self.source.watch.settled or not last_version
            left = deadline - self._loop.time()
            if (leg.over and settled) or left <= 0:
                break
            await self._bell.wait(left)
        self._take_version()
        if leg.conflict is not None:
            raise leg.conflict

    @property
    def _reunion(self) -> float:
        """Not on a first session: to it somebody has said who has what, unless it has forgotten."""
        waits = len(self.tried) > 1 or self._forgotten
        return min(REUNION, self._plan.timeout) if waits else 0.0

    @property
    def _wants_the_end(self) -> bool:
        wanted = self._assembly.wanted
        return wanted.layers[-1] == wanted.geometry.layers - 1

    def _progress(self, leg: Leg) -> tuple[int, int]:
        """Changes while something useful happens; what a peer can repeat for ever is capped."""
        counters, wanted = self._assembly.counters, self._assembly.wanted
        noise = counters.duplicates + counters.surplus + leg.opened + max(self._version, 0)
        limit = 4 * wanted.geometry.layers * wanted.geometry.blocks + MAX_VERSIONS
        return counters.objects, min(noise, limit)

    def _move(self) -> asyncio.Task[Link | None]:
        """Begin to look for the next session, beside what still comes on this one."""
        search = self._sources.another_link(tuple(self.tried), self._note, self._plan.timeout)
        self._moving = self._loop.create_task(search)
        self._moving.add_done_callback(lambda _: self._bell.ring())
        return self._moving

    async def _known_again(self, link: Link) -> bool:
        """True once a place that has sent us back offers the publication again."""
        left = self._back_until - self._loop.time()
        if left <= 0 or not await self._sources.announced(link, self.source.name, left):
            return False
        self._back_until = 0.0
        self.leave()
        self._arrive(self.source._replace(watch=self._sources.watch(link, self.source.name)))
        return True

    def _may_be_back(self) -> bool:
        """True once: what is being published is unknown while its publisher dials again."""
        if self._reunion or not self.live or self.source.entry.complete:
            return False
        self._forgotten = True
        return True

    # -- manifest --------------------------------------------------------------------------------

    def _take_version(self) -> None:
        """Apply a newer manifest; raises ManifestRejected when it takes something back."""
        source, watch = self.source, self.source.watch
        if watch.rejected is not None:
            raise watch.rejected
        if watch.manifest is None or watch.version <= self._version:
            return
        check_successor(source.manifest, watch.manifest)
        entry = watch.manifest.segment(source.entry.segment)
        if entry is None:
            raise ManifestRejected("a later version drops a segment")
        self._version = watch.version
        if self._leg is not None:
            self._leg.version_at = self._loop.time()
        self.source = source._replace(manifest=watch.manifest, entry=entry)
        self._apply(entry)

    def _apply(self, entry: SegmentEntry) -> None:
        denied = self._assembly.apply_manifest(entry)
        if denied:
            self._note(f"the manifest denies layers {', '.join(map(str, denied))}")
            self._revoked(denied)

    # -- sources ---------------------------------------------------------------------------------

    async def _next_source(self) -> None:
        """Another session, else another publication where mixing is allowed; else give up."""
        sources, source = self._sources, self.source
        self.leave()
        link = self._next or await (self._moving or self._move())
        self._next = self._moving = None
        if link is not None:
            if source.link.sent_back and link.url == source.link.url:
                self._back_until = self._loop.time() + self._plan.timeout
            self.tried.append(link)
            watch = sources.watch(link, source.name, self._reunion)
            self._arrive(source._replace(link=link, watch=watch))
        else:
            tracks, timeout = self._plan.tracks, self._plan.timeout
            other = await sources.another_publication(
                source, tracks, self.names, timeout, self._note
            )
            if other is None:
                raise self.incomplete("no other source has them")
            self._arrive(other)
            self._version = other.watch.version
            self._apply(other.entry)

    def _arrive(self, source: Source) -> None:
        self.source, self._watched = source, True
        source.watch.listeners.add(self._bell.ring)

    def _note(self, setback: str) -> None:
        setback = setback[:MAX_SETBACK]
        if setback in self._setbacks or len(self._setbacks) < MAX_SETBACKS:
            self._setbacks[setback] += 1
