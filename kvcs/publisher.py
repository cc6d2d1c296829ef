"""Publisher: an endpoint that serves publications, to consumers and relays."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final, Self

from kvcs.block_keys import UNKNOWN, BlockKeys
from kvcs.errors import IdentityMismatch, InvalidInput
from kvcs.identity import KVSP_PROFILE_0, CompatibilityDescriptor
from kvcs.manifest import ManifestBuilder
from kvcs.names import PUB_ID_LENGTH, Component, PublicationName
from kvcs.publication import Publication
from kvcs.relays import parse_urls, showing
from kvcs.uplink import Uplink
from moqt.endpoint import serve
from moqt.monitor import Monitor
from moqt.publisher import Catalog, ServingLimits
from transport.config import ClientTls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.identity import Identities, JsonObject, ScopeKey
    from kvcs.relays import Credentials
    from moqt.endpoint import Server
    from moqt.errors import RequestFailed
    from moqt.model import TrackNamespace
    from moqt.session.config import SessionConfig
    from transport.config import QuicOptions, ServerTls
    from transport.url import MoqtUrl

__all__ = ["Publication", "Publisher"]

_log = logging.getLogger(__name__)

#: Seconds for which publisher and relays keep a finished publication.
DEFAULT_RETENTION: Final = 3600.0
#: Seconds that closing may take in all: 10 GiB at 20 MB/s.
CLOSE_LIMIT: Final = 600.0


class Publisher:
    """Serves publications on every session it has: those it accepts, and those it dials.

    ``retention`` is in seconds, ``limits`` bounds what one consumer may ask at once,
    ``credentials`` (a ``TokenFile``) gives what requests show on sessions it dials. Use it as an
    async context manager, or ``close`` it.
    """

    def __init__(
        self,
        *,
        scope_key: ScopeKey | None = None,
        identities: Identities = KVSP_PROFILE_0,
        retention: float | None = None,
        limits: ServingLimits | None = None,
        config: SessionConfig | None = None,
        quic: QuicOptions | None = None,
        monitor: Monitor | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._retention = DEFAULT_RETENTION if retention is None else retention
        if self._retention < 0:
            raise InvalidInput(f"retention of {retention} s: it cannot be negative")
        self._scope_key = scope_key
        self._identities = identities
        self._config = config
        self._dialled = showing(config, credentials)
        self._quic = quic
        #: What all sessions have counted, ended ones included.
        self.monitor = monitor or Monitor()
        self._limits = limits or ServingLimits()
        self._catalog = Catalog(self._limits)
        self._catalog.on_refused = self._refused
        self._refusals: dict[TrackNamespace, RequestFailed] = {}
        self._servers: list[Server] = []
        self._uplinks: list[Uplink] = []
        self._publications: set[Publication] = set()

    # -- sessions --------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, *, tls: ServerTls) -> int:
        """Accept consumers and relays; port 0 takes a free one. Returns the port.

        Raises transport.errors.TransportError when the address or the certificate cannot be used.
        """
        server = await serve(
            host,
            port,
            tls=tls,
            handler=self._catalog.handler,
            config=self._config,
            quic=self._quic,
            monitor=self.monitor,
        )
        self._servers.append(server)
        return server.port

    async def dial(
        self,
        urls: str | MoqtUrl | Sequence[str | MoqtUrl],
        *,
        tls: ClientTls | None = None,
        wait: float = 0.0,
    ) -> str:
        """Open a session to the first of ``urls`` that answers, and announce everything there.

        For ``wait`` seconds it tries again; a session lost later is made again by itself. Returns
        the URL; raises InvalidUrl, ConnectFailed.
        """
        uplink = Uplink(
            self._catalog,
            parse_urls(urls),
            tls or ClientTls(),
            self._limits,
            self._dialled,
            self._quic,
            self.monitor,
        )
        url = await uplink.open(wait)
        self._uplinks.append(uplink)
        return url

    def refusal(self, publication: Publication) -> RequestFailed | None:
        """Why a peer has refused, or taken back, the announcement of ``publication``, last time."""
        return self._refusals.get(publication.name.namespace)

    def _refused(self, namespace: TrackNamespace, error: RequestFailed) -> None:
        self._refusals[namespace] = error
        _log.warning("publication %s was refused by a peer: %s", namespace[-1].hex(), error)

    @property
    def sessions(self) -> int:
        """Open sessions, accepted and dialled."""
        return self.consumers + sum(len(uplink.connections) for uplink in self._uplinks)

    @property
    def consumers(self) -> int:
        """Open sessions that others have dialled."""
        return sum(len(server.connections) for server in self._servers)

    # -- publications ----------------------------------------------------------------------------

    def open(
        self,
        descriptor: CompatibilityDescriptor | JsonObject,
        *,
        tokens: Sequence[int] | None = None,
        name: PublicationName | None = None,
        block_keys: Sequence[bytes] | None = None,
        blocks: int | None = None,
        components: Sequence[str] = ("k", "v"),
        extras: JsonObject | None = None,
        deterministic: bool = False,
        production: str | None = None,
    ) -> Publication:
        """Begin a publication: announced, its manifest published, its layers still to come.

        Segment 0 covers the first ``blocks`` blocks (default: all complete ones) of ``tokens`` or
        of ready-made ``block_keys``; with a ready-made ``name`` their number is enough.
        ``components`` are ("k", "v") or ("kv",). Raises InvalidInput, IdentityMismatch.
        """
        compat = (
            descriptor.to_json() if isinstance(descriptor, CompatibilityDescriptor) else descriptor
        )
        builder = ManifestBuilder(
            compat,
            deterministic=deterministic,
            production=production,
            identities=self._identities,
        )
        compat_id = self._identities.compatibility_id(compat)
        keys = BlockKeys(
            self._identities, self._scope_key, compat_id, builder.descriptor.block_tokens, extras
        )
        keys.add(tokens, block_keys, blocks)
        anchor = keys.peek(blocks)[-1]
        chosen = self._choose_name(compat_id, anchor, name)
        publication = Publication(
            chosen, builder, keys, _components(components), self._catalog, self._retention
        )
        publication.start(blocks)
        publication.on_withdrawn = lambda: self._publications.discard(publication)
        self._publications.add(publication)
        self._catalog.announce(chosen.namespace)
        return publication

    def _choose_name(
        self, compat_id: bytes, anchor: bytes, name: PublicationName | None
    ) -> PublicationName:
        """The given name, if it fits; else our scope and a new random id."""
        if name is None:
            if anchor == UNKNOWN:
                raise InvalidInput("no prompt: give tokens or block_keys, or a ready-made name")
            if self._scope_key is None:
                raise InvalidInput(
                    "no scope: give scope_key to the Publisher, or a ready-made name here"
                )
            scope_id = self._identities.scope_id(self._scope_key)
            return PublicationName(scope_id, compat_id, anchor, secrets.token_bytes(PUB_ID_LENGTH))
        for what, given, found in (
            ("compatibility id", name.compat_id, compat_id),
            ("anchor key", name.anchor_key, anchor),
        ):
            if given != found and found != UNKNOWN:
                raise IdentityMismatch(
                    f"the {what} of the name is {given.hex()}, but descriptor and blocks give"
                    f" {found.hex()}"
                )
        return name

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, linger: float = 0.0) -> None:
        """Serve for ``linger`` more seconds, then end: what was asked for is still delivered.

        That takes as long as its consumers take, but CLOSE_LIMIT at most. Publications without
        their last layer end as failed.
        """
        if linger > 0:
            await asyncio.sleep(linger)
        publications = tuple(self._publications)
        for publication in publications:
            publication.end()
        self._catalog.leave()
        served = [one for server in self._servers for one in server.connections]
        closing = [one.close() for one in served] + [one.close() for one in self._uplinks]
        try:
            async with asyncio.timeout(CLOSE_LIMIT):
                await asyncio.gather(*closing)
        except TimeoutError:
            _log.warning("closing: what was queued is cut off after %g s", CLOSE_LIMIT)
        for publication in publications:
            publication.withdraw()
        await asyncio.gather(*(server.close(limit=0.0) for server in self._servers))
        self._servers.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _components(names: Sequence[str]) -> tuple[Component, ...]:
    try:
        found = tuple(Component[name.upper()] for name in names)
    except KeyError as error:
        raise InvalidInput(f"component {error}: there are k, v and kv") from None
    if sorted(found) not in ([Component.K, Component.V], [Component.KV]):
        raise InvalidInput(f"components {', '.join(names)}: publish k and v, or kv")
    return found
