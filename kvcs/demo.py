"""make demo: a real KV cache from one process to four others over QUIC, checked bit for bit.

One publisher produces the cache layer by layer at the pace of a small model. Consumer a subscribed
before that began, b joins in the middle, c takes all of it afterwards, d only a part. Each is a
process of its own; they report in lines of JSON, and this one draws what they say.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import statistics
import tempfile
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from kvcs.cli.children import Child, Event
from kvcs.cli.command import Command, run
from kvcs.cli.options import gathered
from kvcs.cli.values import FILE, SECONDS
from kvcs.cli.waterfall import Arrival, waterfall
from kvcs.errors import InvalidInput, KvcsError
from kvcs.geometry import Geometry
from kvcs.keys import create_scope_key
from kvcs.names import Component
from kvcs.tensorfile import KvCacheFile, TensorFile
from transport.certificates import write_test_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE: Final = Path(__file__).resolve().parents[1] / "examples/data/smollm2-135m-kv-256.safetensors"
BLOCK_TOKENS: Final = 64
#: What consumer d takes, as far as the cache has it.
PART_LAYERS: Final = (8, 15)
PART_BLOCKS: Final = 2
#: Consumer b joins after this share of the layers.
JOIN_AT: Final = 1 / 3
#: Far beyond what a slow machine needs: a process that hangs must not hang the demo.
TIMEOUT: Final = 120.0
#: Without a terminal: wide enough for the bars of two consumers.
LOG_WIDTH: Final = 120
#: Digits of a digest that tell two apart at a glance; compared are the octets.
SHOWN_DIGITS: Final = 8

#: When each consumer comes, seen from the production.
CAME: Final = {"a": "before", "b": "midway", "c": "after", "d": "after"}


class DemoFailed(KvcsError):
    """What came out is not what went in."""


class Part(NamedTuple):
    """Layers (first, last) and how many leading blocks."""

    layers: tuple[int, int]
    blocks: int

    @property
    def words(self) -> tuple[str, ...]:
        """As options of kvcs-sub."""
        return ("--layers", f"{self.layers[0]}-{self.layers[1]}", "--blocks", str(self.blocks))


class Verdict(NamedTuple):
    """Digests of the same part of input and output, and whether all octets are equal."""

    digest_in: str
    digest_out: str
    equal: bool


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What the demo was told."""

    cache: Path
    pace: float
    keep: bool
    verbose: int


@click.command(cls=Command)
@click.option("--cache", type=FILE, default=CACHE, help="Another safetensors file to stream.")
@click.option(
    "--pace",
    type=SECONDS,
    default=0.12,
    show_default=True,
    help="Seconds in which the publisher produces a layer.",
)
@click.option("--keep", is_flag=True, help="Keep keys and output files, and say where.")
@click.option("-v", "--verbose", count=True, help="Log more; -vv with tracebacks of failures.")
@gathered(DemoOptions)
def main(options: DemoOptions) -> None:
    """Stream a real KV cache to four consumers on this machine, and compare every bit."""
    if not options.cache.is_file():
        raise InvalidInput(
            f"file {options.cache} is not there: the demo runs from a checkout of the repository,"
            " with make demo; or give another cache with --cache FILE"
        )
    run(lambda: Demo(options).play(), "asyncio")


class Demo:
    """One performance: the processes, what they said, and the comparison."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        found = Console()
        self._console = found if found.is_terminal else Console(width=LOG_WIDTH)
        self._progress = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bars = {name: self._progress.add_task(f"{name} ({CAME[name]})") for name in CAME}
        self._bars["publisher"] = self._progress.add_task("publisher")

    async def play(self) -> None:
        """All of it; raises DemoFailed unless every consumer got what was published."""
        with KvCacheFile(self._options.cache) as cache, self._folder() as folder:
            if cache.tokens < BLOCK_TOKENS:
                raise InvalidInput(
                    f"file {self._options.cache}: its {cache.tokens} tokens fill no block of"
                    f" {BLOCK_TOKENS}; give a longer one"
                )
            shape = Geometry.of(cache.descriptor(BLOCK_TOKENS), cache.tokens // BLOCK_TOKENS)
            parts = self._parts(shape)
            self._console.print(
                f"{self._options.cache.name}: {cache.metadata.get('model', 'unnamed model')},"
                f" {shape.layers} layers, {shape.blocks} blocks of {BLOCK_TOKENS} tokens,"
                f" {shape.layers * shape.layer_octets(Component.KV)} octets",
                highlight=False,
                soft_wrap=True,
            )
            try:
                async with asyncio.timeout(TIMEOUT), AsyncExitStack() as stack:
                    with self._progress:
                        children = await self._perform(stack, folder, parts)
            except TimeoutError:
                raise DemoFailed(f"it was not over after {TIMEOUT:.0f} seconds") from None
            verdicts = {
                name: compare(cache, folder / f"{name}.safetensors", part, shape)
                for name, part in parts.items()
            }
        self._draw(children)
        self._conclude(children, parts, verdicts)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="kvcs-demo-"))
        try:
            yield folder
        finally:
            if self._options.keep:
                self._console.print(f"kept: {folder}", highlight=False)
            else:
                shutil.rmtree(folder)

    def _parts(self, shape: Geometry) -> dict[str, Part]:
        last = shape.layers - 1
        whole = Part((0, last), shape.blocks)
        part = Part(
            (min(PART_LAYERS[0], last), min(PART_LAYERS[1], last)), min(PART_BLOCKS, shape.blocks)
        )
        parts = {"a": whole, "b": whole, "c": whole, "d": part}
        for name, wanted in {**parts, "publisher": whole}.items():
            count = wanted.layers[1] - wanted.layers[0] + 1
            self._progress.update(self._bars[name], total=count)
        return parts

    async def _perform(
        self, stack: AsyncExitStack, folder: Path, parts: dict[str, Part]
    ) -> dict[str, Child]:
        """The play itself; each step waits for what a process said, none for time to pass."""
        tls = write_test_certificates(folder / "tls", ("localhost", "127.0.0.1"))
        key = folder / "scope.key"
        create_scope_key(key)
        publisher = await self._start(
            stack, "publisher", "kvcs.cli.pub", self._options.cache, "--scope-key", key,
            "--block-tokens", BLOCK_TOKENS, "--listen", "127.0.0.1:0", "--cert", tls.certificate,
            "--key", tls.private_key, "--pace", self._options.pace, "--hold", "--linger", TIMEOUT,
        )  # fmt: skip
        port = (await publisher.until("listening"))["port"]
        await publisher.until("opened")
        children = {"publisher": publisher}

        async def consumer(name: str, *words: str) -> Child:
            children[name] = await self._start(
                stack, name, "kvcs.cli.sub", f"moqt://127.0.0.1:{port}", "--ca", tls.ca,
                "--scope-key", key, "--like", self._options.cache, "--block-tokens", BLOCK_TOKENS,
                "-o", folder / f"{name}.safetensors", *words,
            )  # fmt: skip
            return children[name]

        self._line(f"publisher listens on 127.0.0.1 port {port}, and waits")
        a, b = await consumer("a"), await consumer("b", "--hold")
        await a.until("retrieving")
        await b.until("held")
        self._line("a has subscribed; b is ready; production begins")
        publisher.say("go")
        layers = parts["a"].layers[1] + 1
        join = max(int(layers * JOIN_AT), 1)
        await publisher.until("published", join)
        self._line(f"{join} of {layers} layers are published: b joins")
        b.say("go")
        await publisher.until("finished")
        self._line("production is over; c fetches all of it, d a part")
        await consumer("c", "--completed")
        await consumer("d", "--completed", *parts["d"].words)
        for name in CAME:
            await children[name].finish()
        self._line("all four consumers have what they asked for")
        return children

    async def _start(self, stack: AsyncExitStack, name: str, module: str, *words: object) -> Child:
        child = await Child.start(name, module, *words, on_event=self._heard)
        stack.push_async_callback(child.stop)
        return child

    def _heard(self, child: Child, event: Event) -> None:
        if event["event"] in ("published", "layer"):
            self._progress.advance(self._bars[child.name])

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _draw(self, children: dict[str, Child]) -> None:
        """Per layer: published, received, verified; for a and b, who saw it being produced."""
        published = {one["layer"]: one["at"] for one in children["publisher"].of("published")}
        arrivals = {
            name: {
                one["layer"]: Arrival(one["received_at"], one["verified_at"])
                for one in children[name].of("layer")
            }
            for name in ("a", "b")
        }
        self._console.print(
            waterfall(
                self._console,
                "Each layer in seconds; the bar runs from published to verified, after its making",
                published,
                arrivals,
            )
        )
        a = arrivals["a"]
        delays = [1000 * (one.verified - published[layer]) for layer, one in a.items()]
        early = sum(one.verified < published.get(layer + 1, 0.0) for layer, one in a.items())
        self._line(
            f"a had a layer verified {statistics.median(delays):.0f} ms after it was published"
            f" (median; longest {max(delays):.0f} ms), and {early} of {len(a) - 1} before the next"
            " one was published"
        )

    def _conclude(
        self, children: dict[str, Child], parts: dict[str, Part], verdicts: dict[str, Verdict]
    ) -> None:
        table = Table(box=box.SIMPLE_HEAD, padding=0)
        for column in ("", "came"):
            table.add_column(column)
        for column in ("layers x\nblocks", "objects", "octets", "dupli-\ncates", "missing"):
            table.add_column(column, justify="right")
        for column in ("SHA-256\nof input", "SHA-256\nof output", "equal"):
            table.add_column(column)
        for name, (digest_in, digest_out, equal) in verdicts.items():
            report = children[name].of("report")[-1]
            (first, last), blocks = parts[name]
            table.add_row(
                *(name, CAME[name], f"{first}-{last} x {blocks}"),
                *(str(report[k]) for k in ("objects", "octets", "duplicates", "missing")),
                *(digest_in[:SHOWN_DIGITS], digest_out[:SHOWN_DIGITS]),
                "[green]yes[/]" if equal else "[bold red]NO[/]",
            )
        self._console.print(table)
        different = [name for name, verdict in verdicts.items() if not verdict.equal]
        if different:
            raise DemoFailed(f"output of {', '.join(different)} differs from what was published")
        self._line("every bit of every output is that of the input")


def compare(cache: KvCacheFile, out: Path, part: Part, shape: Geometry) -> Verdict:
    """Hold the output file against the same part of the input; raises InvalidInput."""
    octets = part.blocks * shape.block_octets(Component.K)
    digests = hashlib.sha256(), hashlib.sha256()
    equal = True
    with TensorFile(out) as found:
        expected = set()
        for layer in range(part.layers[0], part.layers[1] + 1):
            for component in (Component.K, Component.V):
                name = f"{component.label}.{layer}"
                expected.add(name)
                pair = cache.layer(component, layer)[:octets], found.view(name)
                equal = equal and pair[0] == pair[1]
                for digest, view in zip(digests, pair, strict=True):
                    digest.update(view)
        equal = equal and expected == set(found.tensors) - {"tokens"}
    return Verdict(digests[0].hexdigest(), digests[1].hexdigest(), equal)


if __name__ == "__main__":
    main()
