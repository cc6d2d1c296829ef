"""A retrieval: one segment, or a part of it, from first request to last verified octet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeAlias

from kvcs.assembler import Assembly
from kvcs.bell import Bell, off_loop
from kvcs.errors import (
    IncompletePublication,
    InvalidInput,
    KvcsError,
    ManifestRejected,
)
from kvcs.legs import Leg
from kvcs.manifest import check_successor
from kvcs.names import Component
from kvcs.results import Layer, Report, digest_of_layers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kvcs.geometry import Geometry
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.names import PublicationName, TrackName
    from kvcs.relays import Link
    from kvcs.sources import Source, Sources
    from kvcs.track_assembler import Counters

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
#: Manifest versions that count as progress, beyond the objects: a peer may not spin them out.
MAX_VERSIONS: Final = 4096


class Plan(NamedTuple):
    """What is asked for; ``layers`` (first, last), ``blocks`` leading ones, None for all."""

    tracks: tuple[TrackName, ...]
    mode: Mode
    layers: tuple[int, int] | None
    blocks: int | None
    timeout: float
    max_octets: int


class Mark(NamedTuple):
    """When the last object of a layer was whole, and when it was verified; event loop time."""

    layer: int
    received_at: float
    verified_at: float


class Retrieval:
    """Made by ``Consumer.retrieve``; runs by itself until it is complete, failed or cancelled.

    ``wait`` gives the whole, ``layer`` and ``layers`` each layer as soon as it can be used. Used
    as an async context manager it is cancelled at the end.
    """

    def __init__(self, source: Source, sources: Sources, plan: Plan) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._plan = plan
        self._sources = sources
        self._source = source
        self._version = source.watch.version
        self._watched = True
        self._assembly = Assembly(
            source.manifest.geometry(source.entry),
            plan.tracks,
            layers=plan.layers,
            blocks=plan.blocks,
            entry=source.entry,
            on_layer=self._layer_usable,
            max_octets=plan.max_octets,
        )
        self._bell = Bell()
        self._marks: dict[int, Mark] = {}
        self._handed: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._callbacks: list[Callable[[Layer], None]] = []
        self._setbacks: dict[str, None] = {}
        self._tried: list[Link] = [source.link]
        self._names: list[PublicationName] = [source.name]
        self._leg: Leg | None = None
        self._live = plan.mode == "live" or (plan.mode == "auto" and not source.entry.complete)
        self._mode: Mode = "live" if self._live else "completed"
        self._began = loop.time()
        self._ended: float | None = None
        self._outcome: asyncio.Future[None] = loop.create_future()
        source.watch.listeners.add(self._bell.ring)
        #: Ends with the retrieval, however that ends.
        self.task = loop.create_task(self._run())

    # -- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> PublicationName:
        """The publication it reads."""
        return self._source.name

    @property
    def manifest(self) -> Manifest:
        """The newest version."""
        return self._source.manifest

    @property
    def geometry(self) -> Geometry:
        """Shape of the segment."""
        return self._assembly.wanted.geometry

    @property
    def wanted_layers(self) -> range:
        """The layers that were asked for."""
        return self._assembly.wanted.layers

    @property
    def blocks(self) -> int:
        """How many leading blocks of each layer were asked for."""
        return self._assembly.wanted.blocks

    @property
    def counters(self) -> Counters:
        """What has arrived so far."""
        return self._assembly.counters

    @property
    def events(self) -> tuple[Mark, ...]:
        """The layers that became usable, in that order, with their times."""
        return tuple(self._marks.values())

    @property
    def done(self) -> bool:
        """True when nothing more will happen."""
        return self._outcome.done()

    # -- layers ----------------------------------------------------------------------------------

    def on_layer(self, callback: Callable[[Layer], None]) -> None:
        """Call back with every layer that becomes usable, those that are so already first."""
        self._callbacks.append(callback)
        for index in self._marks:
            self._loop.call_soon(callback, self._hand_out(index))

    async def layer(self, index: int) -> Layer:
        """One layer, as soon as all wanted objects of all tracks are verified.

        Raises InvalidInput for one that was not asked for, IncompletePublication when it cannot
        be had, and what else ended the retrieval.
        """
        if index not in self.wanted_layers:
            wanted = self.wanted_layers
            raise InvalidInput(f"layer {index}: layers {wanted[0]} to {wanted[-1]} were asked for")
        if index not in self._marks:
            if self._outcome.done():
                self._outcome.result()
            waiting = self._waiting.get(index)
            if waiting is None:
                waiting = self._waiting[index] = self._loop.create_future()
            await asyncio.shield(waiting)
        return self._hand_out(index)

    async def layers(self) -> AsyncIterator[Layer]:
        """All layers in order, each as soon as it can be used; raises what ``layer`` raises."""
        for index in self.wanted_layers:
            yield await self.layer(index)

    # -- the whole -------------------------------------------------------------------------------

    async def wait(self) -> Report:
        """Until every layer is verified; its figures with the digest over all layers.

        Raises IncompletePublication, ``missing`` says of what, or what else ended the retrieval.
        """
        await asyncio.shield(self._outcome)
        layers = [self._hand_out(index) for index in self.wanted_layers]
        digest = await off_loop(self.counters.octets, lambda: digest_of_layers(layers))
        return self.report(digest)

    def report(self, digest: str | None = None) -> Report:
        """The figures so far."""
        wanted, counters = self._assembly.wanted, self.counters
        listed = all(
            self._source.entry.digest(track, layer, 0) is not None
            for track in self._assembly.tracks
            for layer in wanted.layers
        )
        return Report(
            publication=self._source.name.fragment,
            segment=self._source.entry.segment,
            mode=self._mode,
            layers=(wanted.layers[0], wanted.layers[-1]),
            blocks=wanted.blocks,
            tokens=wanted.blocks * wanted.geometry.block_tokens,
            objects=counters.objects,
            octets=counters.octets,
            missing=self._assembly.missing_count,
            duplicates=counters.duplicates,
            surplus=counters.surplus,
            lost=counters.lost,
            gaps=counters.gaps,
            rejected={str(reason): count for reason, count in counters.rejected.items()},
            listed=listed,
            seconds=(self._ended or self._loop.time()) - self._began,
            sources=tuple(str(link) for link in self._tried),
            setbacks=tuple(self._setbacks),
            digest=digest,
        )

    def cancel(self) -> None:
        """Stop; whoever waits gets IncompletePublication."""
        self.task.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()
        await asyncio.wait((self.task,))

    # -- the run ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            if self._source.entry.complete:
                self._unwatch()
            while not await self._use_link():
                await self._next_source()
        except asyncio.CancelledError:
            error = self._incomplete("the retrieval was cancelled")
        except KvcsError as fault:
            error = fault
        except BaseException as fault:
            error = fault
            raise
        finally:
            self._ended = self._loop.time()
            self._unwatch()
            self._settle(error)

    async def _use_link(self) -> bool:
        """Rounds on one session, each asking for what is missing; True when nothing is."""
        fruitless = 0
        follow = self._live
        while True:
            before = self.counters.objects
            leg = await self._one_leg(follow=follow)
            if self._assembly.complete:
                return True
            if not leg.link.open:
                self._note(f"{leg.link}: the session ended")
                return False
            fruitless = 0 if self.counters.objects > before else fruitless + 1
            if fruitless >= FRUITLESS_ROUNDS:
                return False
            follow = self._live and leg.resumable and not self._source.entry.complete

    async def _one_leg(self, *, follow: bool) -> Leg:
        source = self._source
        leg = self._leg = Leg(source.link, source.name, self._assembly, self._bell, self._note)
        try:
            if follow:
                leg.follow()
            else:
                leg.fetch_missing()
            await self._watch_leg(leg)
            # The end of a fetch is due in any case, that of a live track after its last layer.
            if not follow or self.wanted_layers[-1] == self.geometry.layers - 1:
                await self._settle_leg(leg)
        finally:
            leg.cancel()
        return leg

    async def _watch_leg(self, leg: Leg) -> None:
        """Until all is here, or nothing more comes, or nothing has come for too long."""
        last, since = self._progress(leg), self._loop.time()
        while not self._assembly.complete:
            self._take_version()
            if leg.conflict is not None:
                raise leg.conflict
            if leg.over:
                return
            if leg.damaged:
                leg.repair()
            drained = leg.drained(complete=self._source.entry.complete)
            limit = min(DRAIN_TIMEOUT, self._plan.timeout) if drained else self._plan.timeout
            if (progress := self._progress(leg)) != last:
                last, since = progress, self._loop.time()
            left = since + limit - self._loop.time()
            if left <= 0:
                if not drained:
                    self._note(f"{leg.link}: nothing came for {limit:g} s")
                return
            await self._bell.wait(left)

    async def _settle_leg(self, leg: Leg) -> None:
        """All objects are here: let the ends of the tracks and the last manifest come, briefly.

        A relay that sees the end of a track knows that it has all of it.
        """
        deadline = self._loop.time() + SETTLE_TIMEOUT
        while self._assembly.complete and leg.link.open:
            self._take_version()
            settled = self._source.entry.complete or self._source.watch.settled
            left = deadline - self._loop.time()
            if (leg.over and settled) or left <= 0:
                break
            await self._bell.wait(left)
        self._take_version()
        if leg.conflict is not None:
            raise leg.conflict

    def _progress(self, leg: Leg) -> tuple[int, int]:
        """Changes while something useful happens; what a peer can repeat for ever is capped."""
        counters, wanted = self.counters, self._assembly.wanted
        noise = counters.duplicates + counters.surplus + leg.opened + max(self._version, 0)
        limit = 4 * wanted.geometry.layers * wanted.geometry.blocks + MAX_VERSIONS
        return counters.objects, min(noise, limit)

    # -- manifest --------------------------------------------------------------------------------

    def _take_version(self) -> None:
        """Apply a newer manifest; raises ManifestRejected when it takes something back."""
        source, watch = self._source, self._source.watch
        if watch.rejected is not None:
            raise watch.rejected
        if watch.manifest is None or watch.version <= self._version:
            return
        check_successor(source.manifest, watch.manifest)
        entry = watch.manifest.segment(source.entry.segment)
        if entry is None:
            raise ManifestRejected("a later version drops a segment")
        self._version = watch.version
        self._source = source._replace(manifest=watch.manifest, entry=entry)
        self._apply(entry)

    def _apply(self, entry: SegmentEntry) -> None:
        for layer in self._assembly.apply_manifest(entry):
            del self._marks[layer]
            if layer in self._handed:
                raise ManifestRejected(
                    f"the manifest lists other digests for layer {layer} than those received and"
                    " handed out: do not use it"
                )
            self._note(f"layer {layer} was not what the manifest lists")

    # -- sources ---------------------------------------------------------------------------------

    async def _next_source(self) -> None:
        """Another session, else another publication where mixing is allowed; else give up."""
        sources, source = self._sources, self._source
        self._unwatch()
        link = await sources.another_link(self._tried, self._note)
        if link is not None:
            self._tried.append(link)
            self._watched = True
            watch = sources.watch(link, source.name)
            self._source = source._replace(link=link, watch=watch)
        else:
            tracks, timeout = self._plan.tracks, self._plan.timeout
            other = await sources.another_publication(
                source, tracks, self._names, timeout, self._note
            )
            if other is None:
                raise self._incomplete("no other source has them")
            self._names.append(other.name)
            self._watched = True
            self._source, self._version = other, other.watch.version
            self._apply(other.entry)
        self._source.watch.listeners.add(self._bell.ring)

    def _unwatch(self) -> None:
        """The manifest is of no more interest, or its session is left."""
        if self._watched:
            self._watched = False
            self._source.watch.listeners.discard(self._bell.ring)
            self._sources.release(self._source.link, self._source.watch)

    # -- ends ------------------------------------------------------------------------------------

    def _layer_usable(self, index: int) -> None:
        """From the receive path: note it, wake who waits; callbacks run after the event."""
        now = self._loop.time()
        whole_at = now if self._leg is None else self._leg.whole_at
        self._marks[index] = Mark(index, min(whole_at, now), now)
        waiting = self._waiting.pop(index, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._callbacks:
            layer = self._hand_out(index)
            for callback in self._callbacks:
                self._loop.call_soon(callback, layer)
        if self._assembly.complete:
            self._bell.ring()

    def _hand_out(self, index: int) -> Layer:
        mark = self._marks[index]
        self._handed.add(index)
        buffers = {
            component.label: self._assembly.layer_buffer(component, index)
            for component in (Component.K, Component.V)
        }
        return Layer(index, self.geometry, buffers, mark.received_at, mark.verified_at)

    def _note(self, setback: str) -> None:
        self._setbacks[setback] = None

    def _incomplete(self, why: str) -> IncompletePublication:
        missing = self._assembly.missing()
        told = "; ".join((why, *self._setbacks))
        total = self._assembly.missing_count
        return IncompletePublication(
            f"{total} of {total + self.counters.objects} objects of publication"
            f" {self._source.name.pub_id.hex()[:8]} are missing: {told}",
            missing,
        )

    def _settle(self, error: BaseException | None) -> None:
        """Tell everyone who waits, now or later, how it ended."""
        futures = [self._outcome, *self._waiting.values()]
        self._waiting.clear()
        for future in futures:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # nobody may be waiting
