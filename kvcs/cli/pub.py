"""kvcs-pub: publishes the KV cache in a safetensors file, layer by layer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from kvcs.cli.command import Command, Standing, run
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
from kvcs.cli.output import choose_output, counted, wall_clock
from kvcs.cli.values import FILE, SECONDS, URL
from kvcs.cli.waiting import line_on_stdin
from kvcs.errors import InvalidInput, OutputFailed, PublicationRefused
from kvcs.names import STOPPED, Component
from kvcs.publisher import DEFAULT_RETENTION, Publisher
from kvcs.tensorfile import KvCacheFile
from moqt.errors import RequestCode

if TYPE_CHECKING:
    from pathlib import Path

    from kvcs.cli.output import Output
    from kvcs.identity import CompatibilityDescriptor
    from kvcs.names import PublicationName
    from kvcs.publisher import Publication
    from transport.url import MoqtUrl

#: Seconds between two looks whether the peer has refused the publication.
LOOK: Final = 0.2
#: Refusals that do not pass by themselves.
NOT_ALLOWED: Final = frozenset(
    {
        RequestCode.UNAUTHORIZED,
        RequestCode.MALFORMED_AUTH_TOKEN,
        RequestCode.EXPIRED_AUTH_TOKEN,
    }
)

EPILOG: Final = """\b
Examples

\b
  A key of your own, a certificate, and a cache on port 4443:
    kvcs-keygen scope-key scope.key
    kvcs-keygen certificate tls
    kvcs-pub cache.safetensors --scope-key scope.key \\
        --listen 127.0.0.1:4443 --cert tls/server.pem --key tls/server.key
\b
  To a relay, or the next one when that does not answer, as fast as a model would:
    kvcs-pub cache.safetensors --scope-key scope.key --pace 0.1 \\
        --relay moqt://relay-1.example/kv --relay moqt://relay-2.example/kv

\b
Consumers take the URI that it prints, or find it by model and prompt.
The file holds k.<layer> and v.<layer>, each [token, head, dim], and perhaps tokens.
Exit code: 0 done, 1 failed, 2 wrong usage, 130 and 143 after Ctrl-C and SIGTERM.
"""


@dataclass(frozen=True, kw_only=True)
class PubOptions(RunOptions, PeerOptions, IdentityOptions):
    """Everything that kvcs-pub was told."""

    cache: Path
    relay: tuple[MoqtUrl, ...]
    pace: float
    retention: float
    wait: float
    linger: float | None

    @property
    def lingers(self) -> float:
        """Seconds to serve after the last layer."""
        return self.retention if self.linger is None else self.linger


@click.command(cls=Command, epilog=EPILOG)
@click.argument("cache", type=FILE)
@click.option(
    "--relay",
    type=URL,
    multiple=True,
    help="Dial this relay; repeat it for others to try in order.",
)
@peer_options
@identity_options
@click.option(
    "--pace",
    type=SECONDS,
    default=0.0,
    show_default=True,
    help="Seconds a layer takes: publishes as a model would that computes them now.",
)
@click.option(
    "--retention",
    type=SECONDS,
    default=DEFAULT_RETENTION,
    show_default=True,
    help="Seconds for which it is kept, here and by relays.",
)
@click.option(
    "--wait",
    type=SECONDS,
    default=0.0,
    show_default=True,
    help="Seconds to go on trying when no relay answers at first; one that is lost later is dialled"
    " again in any case.",
)
@click.option(
    "--linger",
    type=SECONDS,
    help="Seconds to serve after the last layer; as long as --retention, if not given.",
)
@run_options
@gathered(PubOptions)
def main(options: PubOptions) -> None:
    """Publish the KV cache in the safetensors file CACHE, layer by layer."""
    options.check_peers(dials=bool(options.relay), dial_option="--relay URL")
    name = options.ready_made
    if name is None and options.scope_key is None:
        raise click.UsageError(
            "in which scope? Give --scope-key FILE (kvcs-keygen scope-key makes one), or"
            " ready-made identifiers"
        )
    output = choose_output(as_json=options.json)
    standing = click.get_current_context().ensure_object(Standing)
    standing.text = "nothing was published"
    try:
        run(lambda: publish(options, name, output, standing), options.loop)
    finally:
        output.close()


async def publish(
    options: PubOptions, name: PublicationName | None, output: Output, standing: Standing
) -> None:
    """Open the file, get in touch, produce layer by layer, and serve on."""
    with KvCacheFile(options.cache) as cache:
        descriptor = _descriptor(options, cache)
        tokens = _tokens(options, cache, ready_made=name is not None)
        blocks = cache.tokens // descriptor.block_tokens
        if blocks == 0:
            raise InvalidInput(
                f"file {options.cache}: its {cache.tokens} tokens fill no block of"
                f" {descriptor.block_tokens}; give --block-tokens {cache.tokens} or less"
            )
        with options.watched(output) as monitor:
            async with Publisher(
                scope_key=options.load_scope_key(),
                retention=options.retention,
                monitor=monitor,
                credentials=options.credentials,
                quic=options.quic,
            ) as publisher:
                publication = publisher.open(descriptor, tokens=tokens, name=name, blocks=blocks)
                uri = await _reach(options, publisher, publication, output)
                _opened(publication, uri, cache, output)
                if options.hold:
                    await line_on_stdin(output)
                standing.text = "the publication was not finished"
                await _produce(options, cache, publication, output)
                standing.text = "every layer had been published"
                await _serve(options, publisher, publication)


async def _serve(options: PubOptions, publisher: Publisher, publication: Publication) -> None:
    """For as long as asked; raises PublicationRefused as soon as the peer dialled says no."""
    time = asyncio.get_running_loop().time
    end = time() + options.lingers
    while time() < end:
        _check_refusal(options, publisher, publication)
        await asyncio.sleep(min(LOOK, max(end - time(), 0.0)))
    await publisher.close()
    _check_refusal(options, publisher, publication)


def _check_refusal(options: PubOptions, publisher: Publisher, publication: Publication) -> None:
    refusal = publisher.refusal(publication)
    if options.listen is None and refusal is not None and refusal.code in NOT_ALLOWED:
        raise PublicationRefused(
            f"the relay refuses the publication ({refusal}): nobody can get it there; give"
            " --token-file with a token that may publish in this scope (kvcs-token issue --publish)"
        )


def _descriptor(options: PubOptions, cache: KvCacheFile) -> CompatibilityDescriptor:
    """From the file, or the given one if the file agrees with it."""
    given = options.descriptor
    if given is None:
        return cache.descriptor(options.block_tokens or DEFAULT_BLOCK_TOKENS, options.model)
    block_tokens = options.block_tokens or given.block_tokens
    found = cache.descriptor(block_tokens, options.model or given.model)
    for member in ("model", "layers", "local_heads", "head_dim", "dtype", "block_tokens"):
        ours, theirs = getattr(found, member), getattr(given, member)
        if ours != theirs:
            raise InvalidInput(
                f"--descriptor says {member} {theirs}, but it is {ours} in {options.cache} or"
                " another option: let them agree"
            )
    return given


def _tokens(options: PubOptions, cache: KvCacheFile, *, ready_made: bool) -> tuple[int, ...] | None:
    """The prompt whose cache it is, given or in the file; a ready-made name can do without."""
    tokens = cache.token_ids if options.tokens is None else options.tokens
    if tokens is None:
        if ready_made:
            return None
        raise InvalidInput(
            f"file {options.cache} holds no tensor 'tokens': give the prompt with --tokens"
        )
    if len(tokens) != cache.tokens:
        raise InvalidInput(
            f"--tokens: {len(tokens)} token ids, but the tensors in {options.cache} hold"
            f" {cache.tokens} tokens; give one id for each"
        )
    return tokens


async def _reach(
    options: PubOptions, publisher: Publisher, publication: Publication, output: Output
) -> str:
    """Listen or dial; the URI under which a consumer finds the publication."""
    if options.listen is None:
        url = await publisher.dial(options.relay, tls=options.client_tls, wait=options.wait)
        output.say("connected", f"connected to {url}", url=url)
        return f"{url}#{publication.name.fragment}"
    (host, port), place = options.listen, options.listen
    try:
        port = await publisher.listen(host, port, tls=options.server_tls)
    except OSError as error:
        raise OutputFailed(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --listen"
        ) from error
    output.say("listening", f"listening on {place.told(port)}", host=host, port=port)
    return publication.uri(place.dialled, port)


def _opened(publication: Publication, uri: str, cache: KvCacheFile, output: Output) -> None:
    shape = publication.geometry
    rest = cache.tokens - shape.tokens
    output.say(
        "opened",
        f"publication {uri}\n{counted(shape.layers, 'layer')} of"
        f" {counted(shape.blocks, 'block')} of {counted(shape.block_tokens, 'token')}"
        + (f"; {counted(rest, 'token')} at the end: no whole block, left out" if rest else ""),
        publication=uri,
        layers=shape.layers,
        blocks=shape.blocks,
        block_tokens=shape.block_tokens,
        tokens_left_out=rest,
    )
    if (advice := shape.size_advice(Component.K)) is not None:
        output.say("advice", advice, message=advice)


async def _produce(
    options: PubOptions, cache: KvCacheFile, publication: Publication, output: Output
) -> None:
    """Layer by layer at the pace asked for; whatever stops it ends the publication as failed."""
    loop = asyncio.get_running_loop()
    clock = wall_clock(loop.time)
    shape = publication.geometry
    output.expect(shape.layers, "published")
    started = loop.time()
    try:
        for layer in range(shape.layers):
            await asyncio.sleep(started + (layer + 1) * options.pace - loop.time())
            at = loop.time()
            await publication.put_layer(
                layer,
                cache.layer(Component.K, layer),
                cache.layer(Component.V, layer),
            )
            output.step("published", f"layer {layer} published", layer=layer, at=clock(at))
        await publication.finish()
    except BaseException as error:
        stopped = isinstance(error, asyncio.CancelledError)
        await publication.fail(STOPPED if stopped else "the producer failed")
        raise
    seconds, linger = loop.time() - started, options.lingers
    output.say(
        "finished",
        f"{counted(shape.layers, 'layer')} published in {seconds:.2f} s"
        + (f"; serving for {linger:g} s; Ctrl-C ends" if linger else ""),
        layers=shape.layers,
        linger=linger,
        at=clock(loop.time()),
    )


if __name__ == "__main__":
    main()
