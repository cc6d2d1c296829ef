"""kvcs-sub: takes a KV cache, layer by layer, verified, into a safetensors file."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from rich.console import Console

from kvcs.cli.command import Command, Standing, run, words_alone
from kvcs.cli.options import (
    DEFAULT_BLOCK_TOKENS,
    IdentityOptions,
    PeerOptions,
    RunOptions,
    gathered,
    identity_options,
    peer_options,
    run_options,
)
from kvcs.cli.output import choose_output, counted, one_line, stretch, wall_clock
from kvcs.cli.values import COUNT, FILE, LAYERS, SECONDS, URL
from kvcs.cli.waiting import line_on_stdin
from kvcs.cli.waterfall import Arrival, waterfall
from kvcs.consumer import Consumer
from kvcs.errors import InvalidInput, OutputFailed, UnknownPublication
from kvcs.names import FRAGMENT, PublicationName
from kvcs.retrieval import PROGRESS_TIMEOUT
from kvcs.tensorfile import CODES, KvCacheFile, TensorFileWriter, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kvcs.cli.output import Output
    from kvcs.discovery import Found
    from kvcs.identity import CompatibilityDescriptor
    from kvcs.results import Layer, Report
    from kvcs.retrieval import Mode, Retrieval
    from transport.url import MoqtUrl

EPILOG: Final = """\b
Examples

\b
  The publication that kvcs-pub printed the URI of, whatever of it there is and will be:
    kvcs-sub 'moqt://127.0.0.1:4443/#kvcs:...' --ca tls/ca.pem -o cache.safetensors
\b
  Found by model and prompt, which FILE is an example of; waiting a minute for it:
    kvcs-sub moqt://relay.example/kv --scope-key scope.key --like FILE --wait 60 -o out.safetensors
\b
  Layers 8 to 15 of what is complete, the first 2 blocks, from the first relay that answers:
    kvcs-sub 'moqt://relay-1.example/kv#kvcs:...' moqt://relay-2.example/kv \\
        --completed --layers 8-15 --blocks 2 -o part.safetensors

\b
OUT appears only when all of it has arrived and is verified. It holds k.<layer> and v.<layer>,
each [token, head, dim] in the dtype that was published, of whole blocks only; and, if all layers
were asked for and the token ids are known (--like, --tokens), "tokens" as 32-bit integers (U32).
A publication found by model and prompt covers the prompt or a prefix of it: one for more tokens
than yours is not found, since only its own tokens lead to it.

\b
Exit code: 0 done, 1 failed, 2 wrong usage, 130 and 143 after Ctrl-C and SIGTERM.
"""

#: Between two questions for a publication that is not there yet, in seconds.
ASK_AGAIN: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class SubOptions(RunOptions, PeerOptions, IdentityOptions):
    """Everything that kvcs-sub was told."""

    url: tuple[MoqtUrl, ...]
    like: Path | None
    mode: Mode
    layers: tuple[int, int] | None
    blocks: int | None
    segment: int
    wait: float
    timeout: float
    out: Path | None
    waterfall: bool

    @property
    def publication(self) -> PublicationName | None:
        """The publication asked for by name; raises UsageError when it is asked for twice."""
        fragments = {url.fragment for url in self.url if url.fragment is not None}
        if len(fragments) > 1:
            raise click.UsageError("the URLs name different publications: ask for one at a time")
        ready_made = self.ready_made
        if not fragments:
            return ready_made
        if ready_made is not None:
            raise click.UsageError(f"a URL with #{FRAGMENT} needs no --scope-id and so on")
        with words_alone("URL", "take the one that kvcs-pub printed"):
            return PublicationName.from_fragment(fragments.pop())


class Prompt(NamedTuple):
    """What to look for, as far as it is known."""

    descriptor: CompatibilityDescriptor | None
    tokens: tuple[int, ...] | None


@click.command(cls=Command, epilog=EPILOG)
@click.argument("url", type=URL, nargs=-1)
@click.option("-o", "--out", type=FILE, help="Safetensors file to write.")
@click.option(
    "--mode",
    type=click.Choice(("auto", "live", "completed")),
    default="auto",
    show_default=True,
    help="live subscribes and takes what was before, too; completed fetches; auto sees which fits.",
)
@click.option("--live", "mode", flag_value="live", help="The same as --mode live.")
@click.option("--completed", "mode", flag_value="completed", help="The same as --mode completed.")
@click.option(
    "--layers", type=LAYERS, help="Only these layers: FIRST-LAST, such as 8-15, or one layer."
)
@click.option("--blocks", type=COUNT, metavar="N", help="Only so many leading blocks.")
@click.option(
    "--segment",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Segment of a chunked prefill.",
)
@click.option(
    "--like", type=FILE, help="Take model, shape and tokens from this safetensors file's header."
)
@identity_options
@peer_options
@click.option(
    "--wait",
    type=SECONDS,
    default=0.0,
    show_default=True,
    help="Seconds to wait for a peer that does not answer yet, then as long for a publication that"
    " nobody announces yet; layers to come are a matter of --timeout.",
)
@click.option(
    "--timeout",
    type=SECONDS,
    default=PROGRESS_TIMEOUT,
    show_default=True,
    help="Seconds without anything new after which a source is given up.",
)
@click.option("--waterfall", is_flag=True, help="Draw at the end when each layer came.")
@run_options
@gathered(SubOptions)
def main(options: SubOptions) -> None:
    """Take a KV cache from the first URL that answers, verify it, write it to a file.

    Which one is told by a URL's fragment, by ready-made identifiers, or by scope key, model and
    prompt: the publication of the longest prefix is taken then.
    """
    options.check_peers(dials=bool(options.url), dial_option="URL")
    wanted = options.publication
    prompt = _prompt(options)
    if wanted is None:
        _check_prompt(options, prompt)
    if options.out is not None and not options.out.absolute().parent.is_dir():
        raise OutputFailed(
            f"file {options.out} cannot be written: there is no such directory; make it, or choose"
            " another --out"
        )
    output = choose_output(as_json=options.json)
    standing = click.get_current_context().ensure_object(Standing)
    standing.text = "nothing was written"
    try:
        run(lambda: subscribe(options, wanted, prompt, output, standing), options.loop)
    finally:
        output.close()


async def subscribe(
    options: SubOptions,
    wanted: PublicationName | None,
    prompt: Prompt,
    output: Output,
    standing: Standing,
) -> None:
    """Get in touch, find the publication, take it."""
    with options.watched(output) as monitor:
        async with Consumer(
            scope_key=options.load_scope_key(),
            monitor=monitor,
            credentials=options.credentials,
            quic=options.quic,
        ) as consumer:
            if options.hold:
                await line_on_stdin(output)
            await _reach(options, consumer, output)
            found = wanted or await _discover(options, consumer, prompt, output)
            async with await _begin(options, consumer, found, prompt) as retrieval:
                await _receive(options, retrieval, prompt.tokens, output)
                if options.out is not None:
                    standing.text = f"{options.out} was written"


# -------------------------------------------------------------------------------- before the octets


def _prompt(options: SubOptions) -> Prompt:
    """Descriptor and tokens, from options and from the file that it is like."""
    descriptor, tokens = options.descriptor, options.tokens
    if options.like is not None:
        if descriptor is not None:
            raise click.UsageError("--like and --descriptor say the same: leave one out")
        with KvCacheFile(options.like) as like:
            descriptor = like.descriptor(
                options.block_tokens or DEFAULT_BLOCK_TOKENS, options.model
            )
            tokens = like.token_ids if tokens is None else tokens
    elif options.model is not None or options.block_tokens is not None:
        raise click.UsageError(
            "--model and --block-tokens go with --like; a --descriptor has them inside"
        )
    return Prompt(descriptor, tokens)


def _check_prompt(options: SubOptions, prompt: Prompt) -> None:
    missing = [
        name
        for name, value in {
            "--scope-key FILE": options.scope_key,
            "--like FILE or --descriptor FILE.json": prompt.descriptor,
            "--tokens IDS": prompt.tokens,
        }.items()
        if value is None
    ]
    if missing:
        raise click.UsageError(
            f"which publication? Give {', '.join(missing)}; or a URL with #{FRAGMENT}, or"
            " ready-made identifiers"
        )
    if prompt.descriptor and len(prompt.tokens or ()) < prompt.descriptor.block_tokens:
        wrong = InvalidInput if options.like else click.UsageError
        raise wrong(
            f"the prompt: {len(prompt.tokens or ())} tokens fill no block of"
            f" {prompt.descriptor.block_tokens}, so there is nothing to look for; publishers and"
            " consumers must use the same, smaller --block-tokens"
        )


async def _reach(options: SubOptions, consumer: Consumer, output: Output) -> None:
    if options.listen is None:
        url = await consumer.connect(options.url, tls=options.client_tls, wait=options.wait)
        output.say("connected", f"connected to {url}", url=url)
        return
    (host, port), place = options.listen, options.listen
    try:
        port = await consumer.listen(host, port, tls=options.server_tls)
    except OSError as error:
        raise OutputFailed(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --listen"
        ) from error
    output.say("listening", f"listening on {place.told(port)}", host=host, port=port)


async def _discover(
    options: SubOptions, consumer: Consumer, prompt: Prompt, output: Output
) -> Found:
    if prompt.descriptor is None or prompt.tokens is None:
        raise InvalidInput("nothing to look for: descriptor and tokens are needed")
    found = await consumer.discover(prompt.descriptor, prompt.tokens, wait=options.wait)
    best = found[0]
    output.say(
        "found",
        f"found {counted(len(found), 'publication')}; the best covers {best.tokens} of"
        f" {counted(len(prompt.tokens), 'token')}",
        publications=[one.name.fragment for one in found],
        tokens=best.tokens,
    )
    return best


async def _begin(
    options: SubOptions, consumer: Consumer, found: PublicationName | Found, prompt: Prompt
) -> Retrieval:
    """A publication known by name may not be there yet: ask again, as long as --wait says."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.wait
    while True:
        try:
            return await consumer.retrieve(
                found,
                mode=options.mode,
                layers=options.layers,
                blocks=options.blocks,
                segment=options.segment,
                timeout=options.timeout,
                expect=prompt.descriptor,
            )
        except UnknownPublication:
            if loop.time() + ASK_AGAIN > deadline:
                raise
        await asyncio.sleep(ASK_AGAIN)


# --------------------------------------------------------------------------------------- the octets


async def _receive(
    options: SubOptions, retrieval: Retrieval, tokens: Sequence[int] | None, output: Output
) -> None:
    """Each layer to the file as it comes; the file is put in place when all are verified.

    One thread writes, in order: an interruption waits for it before the file is removed.
    """
    loop = asyncio.get_running_loop()
    clock = wall_clock(loop.time)
    layers = retrieval.wanted_layers
    arrivals: dict[int, Arrival] = {}
    output.say(
        "retrieving",
        f"{stretch('layer', layers[0], layers[-1])}, {counted(retrieval.blocks, 'block')} of"
        f" {counted(retrieval.geometry.block_tokens, 'token')}",
        publication=retrieval.name.fragment,
        layers=[layers[0], layers[-1]],
        blocks=retrieval.blocks,
        at=clock(loop.time()),
    )
    output.expect(len(layers), "verified")
    began = loop.time()
    with _file(options, retrieval, tokens) as file, ThreadPoolExecutor(1) as disk:
        async for layer in retrieval.layers():
            if file is not None:
                await loop.run_in_executor(disk, _write, file, layer)
            arrival = Arrival(clock(layer.received_at), clock(layer.verified_at))
            arrivals[layer.index] = arrival
            output.step(
                "layer",
                f"layer {layer.index} verified after {layer.verified_at - began:.3f} s",
                layer=layer.index,
                received_at=arrival.received,
                verified_at=arrival.verified,
            )
        report = await retrieval.wait()
        if file is not None:
            await loop.run_in_executor(disk, file.commit)
    _summary(options, report, output)
    if options.waterfall and not options.json:
        console = Console()
        console.print(waterfall(console, "When each layer came", {}, {"": arrivals}))


def _file(
    options: SubOptions, retrieval: Retrieval, tokens: Sequence[int] | None
) -> AbstractContextManager[TensorFileWriter | None]:
    """The file to write, with the tensors of the part that was asked for."""
    if options.out is None:
        return nullcontext()
    shape, layers = retrieval.geometry, retrieval.wanted_layers
    descriptor = retrieval.manifest.descriptor
    count = retrieval.blocks * shape.block_tokens
    first = shape.token_start(0)
    known = None if tokens is None or len(tokens) < first + count else tokens[first : first + count]
    metadata = {"publication": retrieval.name.fragment}
    if len(layers) == shape.layers:
        return TensorFileWriter.for_kv_cache(
            options.out, descriptor, count, token_ids=known, metadata=metadata
        )
    # A part: the layers keep their numbers, so it is no whole cache, and says so.
    spec = TensorSpec(CODES[shape.dtype], (count, shape.kv_heads, shape.head_dim))
    specs = {f"{component}.{layer}": spec for component in "kv" for layer in layers}
    metadata |= {"model": descriptor.model, "part": stretch("layer", layers[0], layers[-1])}
    return TensorFileWriter(options.out, specs, metadata)


def _write(file: TensorFileWriter, layer: Layer) -> None:
    for component, octets in layer.buffers.items():
        file.write(f"{component}.{layer.index}", octets)


def _summary(options: SubOptions, report: Report, output: Output) -> None:
    setbacks = "".join(f"\n  setback: {one_line(setback)}" for setback in report.setbacks)
    place = "" if options.out is None else f"\nwritten: {options.out}"
    output.say(
        "report",
        f"{counted(report.objects, 'object')}, {report.octets} octets verified in"
        f" {report.seconds:.2f} s ({report.mode}); {report.missing} missing,"
        f" {counted(report.duplicates, 'duplicate')}, {report.surplus} surplus,"
        f" {sum(report.rejected.values())} rejected\n"
        f"SHA-256 {report.digest}{setbacks}{place}",
        **report.to_json(),
        out=None if options.out is None else str(options.out),
    )


if __name__ == "__main__":
    main()
