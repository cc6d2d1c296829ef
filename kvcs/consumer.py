"""Consumer: finds publications and takes them, whole or in part, live or completed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from kvcs.assembler import MAX_OCTETS
from kvcs.discovery import Found, Probe, Prompt, Search
from kvcs.errors import Difference, IdentityMismatch, InvalidInput, ManifestRejected
from kvcs.geometry import MAX_MANIFEST_OCTETS, manifest_octets
from kvcs.identity import KVSP_PROFILE_0, CompatibilityDescriptor
from kvcs.manifest import UNSTATED, block_keys_sha256
from kvcs.pursuit import Plan
from kvcs.relays import Links, parse_urls
from kvcs.results import Layer, Report
from kvcs.retrieval import PROGRESS_TIMEOUT, Mode, Retrieval
from kvcs.sources import Source, Sources
from moqt.monitor import Monitor
from transport.config import ClientTls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.identity import Identities, JsonObject, ScopeKey
    from kvcs.names import PublicationName
    from kvcs.relays import Credentials
    from moqt.session.config import SessionConfig
    from transport.config import QuicOptions, ServerTls
    from transport.url import MoqtUrl

__all__ = ["Consumer", "Found", "Layer", "Report", "Retrieval"]


class Consumer:
    """Reads publications from every session it has: those it dials, and those it accepts.

    ``credentials`` (a ``TokenFile``) gives what requests show on those it dials.
    Use it as an async context manager, or ``close`` it.
    """

    def __init__(
        self,
        *,
        scope_key: ScopeKey | None = None,
        identities: Identities = KVSP_PROFILE_0,
        config: SessionConfig | None = None,
        quic: QuicOptions | None = None,
        monitor: Monitor | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._scope_key = scope_key
        self._identities = identities
        #: What all sessions have counted, ended ones included.
        self.monitor = monitor or Monitor()
        self._links = Links(config, quic, self.monitor, credentials)
        self._sources = Sources(self._links, identities)
        self._retrievals: set[Retrieval] = set()

    # -- sessions --------------------------------------------------------------------------------

    async def connect(
        self,
        urls: str | MoqtUrl | Sequence[str | MoqtUrl],
        *,
        tls: ClientTls | None = None,
        wait: float = 0.0,
    ) -> str:
        """Open a session to the first of ``urls`` that answers; the others are for later need.

        For ``wait`` seconds it tries again. Returns the URL; raises InvalidUrl, ConnectFailed.
        """
        link = await self._links.connect(parse_urls(urls), tls or ClientTls(), wait)
        return str(link.url)

    async def listen(self, host: str, port: int, *, tls: ServerTls) -> int:
        """Accept publishers that dial us and announce what they have. Returns the port.

        Raises transport.errors.TransportError when the address or the certificate cannot be used.
        """
        return await self._links.listen(host, port, tls)

    # -- what there is ---------------------------------------------------------------------------

    async def discover(
        self,
        descriptor: CompatibilityDescriptor | JsonObject,
        tokens: Sequence[int] = (),
        *,
        block_keys: Sequence[bytes] | None = None,
        scope_id: bytes | None = None,
        extras: JsonObject | None = None,
        wait: float = 0.0,
        probe: Probe = True,
    ) -> list[Found]:
        """Publications for prefixes of ``tokens``, the longest prefix first.

        Those that exist are found in a moment; for ``wait`` seconds it waits for one that does not
        yet. ``block_keys`` and ``scope_id`` may be ready-made. Raises UnknownPublication.
        """
        compat = _compat(descriptor)
        compat_id = self._identities.compatibility_id(compat)
        block_tokens = self._identities.describe(compat).block_tokens
        if scope_id is None:
            scope_id = self._identities.scope_id(self._key("scope_id"))
        if block_keys is None:
            block_keys = self._identities.block_keys(
                self._key("block_keys"), compat_id, tokens, block_tokens, extras
            )
        prompt = Prompt(scope_id, compat_id, tuple(block_keys), block_tokens)
        return await Search(self._links, prompt, probe).run(wait)

    # -- taking it -------------------------------------------------------------------------------

    async def retrieve(
        self,
        publication: PublicationName | Found,
        *,
        mode: Mode = "auto",
        layers: tuple[int, int] | None = None,
        blocks: int | None = None,
        segment: int = 0,
        codec: str = "raw",
        timeout: float | None = None,  # noqa: ASYNC109 - of progress, not of the call
        expect: CompatibilityDescriptor | JsonObject | None = None,
        max_octets: int = MAX_OCTETS,
    ) -> Retrieval:
        """Begin to take one segment: ``layers`` (first, last) and the first ``blocks`` of it.

        Returns once the manifest is there and fits ``expect``. ``timeout`` is in seconds without
        progress. Raises UnknownPublication, IdentityMismatch, ManifestRejected, InvalidInput.
        """
        patience = PROGRESS_TIMEOUT if timeout is None else timeout
        name = publication.name if isinstance(publication, Found) else publication
        source = await self._sources.open(name, segment, patience)
        try:
            _check_size(source)
            if expect is not None:
                self._check_expected(source, _compat(expect))
            if isinstance(publication, Found):
                _check_keys(source, publication.keys)
            tracks = source.entry.choose(codec)
            if not tracks:
                offered = ", ".join(map(str, source.entry.tracks))
                raise InvalidInput(f"codec {codec!r}: the publication has {offered}")
            plan = Plan(tracks, mode, layers, blocks, patience, max_octets)
            retrieval = Retrieval(source, self._sources, plan)
        except BaseException:
            self._sources.release(source.link, source.watch)
            raise
        self._retrievals.add(retrieval)
        retrieval.task.add_done_callback(lambda _: self._retrievals.discard(retrieval))
        return retrieval

    # -- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel what runs, end every session."""
        running = tuple(self._retrievals)
        for retrieval in running:
            retrieval.cancel()
        await asyncio.gather(*(retrieval.task for retrieval in running), return_exceptions=True)
        await self._links.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- inside ----------------------------------------------------------------------------------

    def _key(self, instead: str) -> ScopeKey:
        if self._scope_key is None:
            raise InvalidInput(f"no scope key: give scope_key to the Consumer, or {instead} here")
        return self._scope_key

    def _check_expected(self, source: Source, compat: JsonObject) -> None:
        """Raises IdentityMismatch naming the members that differ."""
        ids = self._identities
        found = source.manifest.compat
        if ids.compatibility_id(compat) != ids.compatibility_id(found):
            differences = ids.describe(compat).differences(source.manifest.descriptor)
            raise IdentityMismatch("the publication is of another model", differences)


def _compat(descriptor: CompatibilityDescriptor | JsonObject) -> JsonObject:
    if isinstance(descriptor, CompatibilityDescriptor):
        return descriptor.to_json()
    return descriptor


def _check_size(source: Source) -> None:
    """Raises ManifestRejected for more objects than a manifest could ever list the digests of."""
    blocks = sum(entry.blocks for entry in source.manifest.segments)
    layers, tracks = source.manifest.descriptor.layers, len(source.entry.tracks)
    if manifest_octets(layers, blocks, tracks) > MAX_MANIFEST_OCTETS:
        raise ManifestRejected(
            f"manifest of {layers} layers x {blocks} blocks x {tracks} tracks: the digests of so"
            f" many objects do not fit into {MAX_MANIFEST_OCTETS >> 20} MiB"
        )


def _check_keys(source: Source, keys: Sequence[bytes]) -> None:
    """Raises IdentityMismatch when the segment covers other tokens than those looked for.

    A segment that goes on beyond our prompt cannot be checked: we have not all of its keys.
    """
    entry = source.entry
    own = keys[entry.first_block : entry.first_block + entry.blocks]
    stated = entry.block_keys_sha256
    if len(own) == entry.blocks and stated not in (UNSTATED, block_keys_sha256(own)):
        raise IdentityMismatch(
            f"segment {entry.segment} covers other tokens than the prompt",
            (Difference("block_keys_sha256", block_keys_sha256(own).hex(), stated.hex()),),
        )
