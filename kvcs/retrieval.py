"""A retrieval as its user holds it: layers as they become usable, and the whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Self

from kvcs.assembler import Assembly
from kvcs.bell import off_loop
from kvcs.errors import InvalidInput, KvcsError, ManifestRejected
from kvcs.names import Component
from kvcs.pursuit import PROGRESS_TIMEOUT, Mode, Pursuit
from kvcs.results import Layer, Report, digest_of_layers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kvcs.geometry import Geometry
    from kvcs.manifest import Manifest
    from kvcs.names import PublicationName
    from kvcs.pursuit import Plan
    from kvcs.sources import Source, Sources
    from kvcs.track_assembler import Counters


__all__ = ["PROGRESS_TIMEOUT", "Mark", "Mode", "Retrieval"]


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
        self._assembly = Assembly(
            source.manifest.geometry(source.entry),
            plan.tracks,
            layers=plan.layers,
            blocks=plan.blocks,
            entry=source.entry,
            on_layer=self._layer_usable,
            max_octets=plan.max_octets,
        )
        self._pursuit = Pursuit(source, sources, plan, self._assembly, self._revoked)
        self._marks: dict[int, Mark] = {}
        self._handed: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._callbacks: list[Callable[[Layer], None]] = []
        self._began = loop.time()
        self._ended: float | None = None
        self._outcome: asyncio.Future[None] = loop.create_future()
        #: Ends with the retrieval, however that ends.
        self.task = loop.create_task(self._pursuit.run())
        self.task.add_done_callback(self._finished)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> PublicationName:
        """The publication it reads."""
        return self._pursuit.source.name

    @property
    def manifest(self) -> Manifest:
        """The newest version."""
        return self._pursuit.source.manifest

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
            self._pursuit.source.entry.digest(track, layer, 0) is not None
            for track in self._assembly.tracks
            for layer in wanted.layers
        )
        return Report(
            publication=self._pursuit.source.name.fragment,
            segment=self._pursuit.source.entry.segment,
            mode=self._pursuit.mode,
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
            sources=tuple(str(link) for link in self._pursuit.tried),
            setbacks=self._pursuit.setbacks,
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

    # -- ends ------------------------------------------------------------------------------------

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Tell everyone who waits, now or later, how it ended."""
        self._ended = self._loop.time()
        self._pursuit.leave()
        if task.cancelled():
            error: BaseException | None = self._pursuit.incomplete("the retrieval was cancelled")
        else:
            error = task.exception()
        if error is not None and not isinstance(error, KvcsError):
            told = {"message": "a retrieval has failed", "exception": error, "task": task}
            self._loop.call_exception_handler(told)
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

    def _layer_usable(self, index: int) -> None:
        """From the receive path: note it, wake who waits; callbacks run after the event."""
        now = self._loop.time()
        self._marks[index] = Mark(index, min(self._pursuit.whole_at, now), now)
        waiting = self._waiting.pop(index, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._callbacks:
            layer = self._hand_out(index)
            for callback in self._callbacks:
                self._loop.call_soon(callback, layer)
        if self._assembly.complete:
            self._pursuit.completed()

    def _hand_out(self, index: int) -> Layer:
        mark = self._marks[index]
        self._handed.add(index)
        buffers = {
            component.label: self._assembly.layer_buffer(component, index)
            for component in (Component.K, Component.V)
        }
        return Layer(index, self.geometry, buffers, mark.received_at, mark.verified_at)

    def _revoked(self, layers: tuple[int, ...]) -> None:
        """These are not usable after all; raises ManifestRejected when one has been used."""
        for index in layers:
            del self._marks[index]
        used = self._handed.intersection(layers)
        if used:
            raise ManifestRejected(
                f"the manifest lists other digests for layer {min(used)} than those received and"
                " handed out: do not use it"
            )
