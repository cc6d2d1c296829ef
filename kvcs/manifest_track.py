"""The manifest of one publication, followed on one session: the newest version, checked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kvcs.bell import Bell, off_loop
from kvcs.errors import IdentityMismatch, ManifestRejected
from kvcs.geometry import MAX_MANIFEST_OCTETS
from kvcs.manifest import Manifest, check_successor, decode, verify_identity
from kvcs.names import MANIFEST
from moqt.codec.params import Parameters
from moqt.errors import MalformedTrack, MoqtError
from moqt.model import FullTrackName, GroupOrder, LocationFilter, ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcs.errors import KvcsError
    from kvcs.identity import Identities
    from kvcs.names import PublicationName
    from moqt.driver import Connection
    from moqt.model import Gap, ObjectHead, ObjectSink, SubgroupHead
    from moqt.session.fetches import OutgoingFetch
    from moqt.session.ports import TrackInfo
    from moqt.session.subscriptions import OutgoingSubscribe
    from transport.api import BytesLike

#: Octets of versions that are arriving at once; there is rarely more than one.
MAX_HELD: Final = 2 * MAX_MANIFEST_OCTETS
#: Versions that count as progress without an object: a peer may not spin them out for ever.
MAX_VERSIONS: Final = 4096

#: draft, Retrieval during Production: what is current on the fill, what follows live.
_FOLLOW: Final = Parameters(
    location_filter=LocationFilter.next_object(),
    group_order=GroupOrder.ASCENDING,
    fill=Parameters(location_filter=LocationFilter.back(1)),
)
#: Where nobody can be subscribed to any more: the newest version, else any there is, the newest
#: first: what an earlier one says to come has come.
_FETCHES: Final = (
    Parameters(location_filter=LocationFilter.back(1), group_order=GroupOrder.ASCENDING),
    Parameters(location_filter=LocationFilter.since(0), group_order=GroupOrder.DESCENDING),
)


class ManifestWatch:
    """A TrackReceiver of the manifest track; several retrievals may share it.

    ``manifest`` is the newest version so far and ``version`` its group. ``rejected`` says that the
    publication must not be used, ``error`` why no (further) version comes.
    """

    def __init__(
        self,
        connection: Connection,
        name: PublicationName,
        identities: Identities,
        reunion: float = 0.0,
    ) -> None:
        self.changed = Bell()
        self.manifest: Manifest | None = None
        self.version = -1
        self.rejected: KvcsError | None = None
        self.error: MoqtError | None = None
        #: True once no further version can come.
        self.over = False
        #: How many share it, and whom else to call at each change.
        self.users = 0
        self.listeners: set[Callable[[], None]] = set()
        self.held = 0
        self._connection = connection
        self.name = name
        self._track = FullTrackName(name.namespace, MANIFEST)
        self._identities = identities
        self._fetches = iter(_FETCHES)
        self._request: OutgoingSubscribe | OutgoingFetch | None = None
        self._newest: tuple[int, bytes] | None = None
        self._decoding: asyncio.Task[None] | None = None
        self._octets = b""
        follow = replace(_FOLLOW, rendezvous_timeout=int(reunion * 1000) or None)
        try:
            self._request = connection.subscribe(self._track, self, follow)
        except MoqtError as error:
            self._end(error)

    @property
    def settled(self) -> bool:
        """True when nothing more will come and nothing waits to be read."""
        return self.over and self._decoding is None

    def cancel(self) -> None:
        """Nobody needs it any more."""
        self.over = True
        if self._request is not None:
            self._request.cancel()
        if self._decoding is not None:
            self._decoding.cancel()

    def take(self, group: int, octets: bytes) -> None:
        """One version has arrived; of several that wait only the newest is read."""
        if self._newest is None or group > self._newest[0]:
            self._newest = (group, octets)
        if self._decoding is None and self.rejected is None:
            self._decoding = asyncio.get_running_loop().create_task(self._decode())

    # -- TrackReceiver ---------------------------------------------------------------------------

    def accepted(self, info: TrackInfo) -> None:
        """SUBSCRIBE_OK or FETCH_OK."""

    def open_subgroup(self, head: SubgroupHead) -> ObjectSink:
        """A new version."""
        return _Versions(self)

    def open_fetch(self, request_id: int) -> ObjectSink:
        """The current version, or all."""
        return _Versions(self)

    def datagram(self, head: ObjectHead, payload: BytesLike) -> None:
        """No manifest travels so."""

    def done(self, code: int, reason: str, complete: bool) -> None:
        """PUBLISH_DONE, or a fetch is served."""
        self._request = None
        if self.manifest is None and self._decoding is None:
            self._fetch_next(None)
        else:
            self._end(None)

    def failed(self, error: MoqtError) -> None:
        """Without a subscription the newest version may still be fetched (kvcs.md §6)."""
        self._request = None
        if self.manifest is None and self._connection.is_open:
            self._fetch_next(error)
        else:
            self._end(error)

    # -- inside ----------------------------------------------------------------------------------

    def _tell(self) -> None:
        self.changed.ring()
        for listener in tuple(self.listeners):
            listener()

    def _fetch_next(self, error: MoqtError | None) -> None:
        self.error = self.error or error
        parameters = next(self._fetches, None)
        if parameters is None:
            self._end(error)
            return
        try:
            self._request = self._connection.fetch(self._track, self, parameters)
        except MoqtError as fault:
            self._end(fault)

    def _end(self, error: MoqtError | None) -> None:
        self.over = True
        self.error = self.error or error
        self._tell()

    def _refuse(self, error: KvcsError) -> None:
        self.rejected = error
        self.cancel()
        self._tell()

    async def _decode(self) -> None:
        while (newest := self._newest) is not None:
            self._newest = None
            group, octets = newest
            try:
                self._check_repeated(group, octets)
                if group > self.version:
                    manifest = await off_loop(len(octets), partial(self._read, octets))
                    if self.manifest is not None:
                        check_successor(self.manifest, manifest)
                    self.manifest, self.version, self._octets = manifest, group, octets
            except (ManifestRejected, IdentityMismatch) as error:
                self._decoding = None
                self._refuse(error)
                return
            self._tell()
        self._decoding = None
        self._tell()

    def _read(self, octets: bytes) -> Manifest:
        manifest = decode(octets, self._identities)
        verify_identity(manifest, self.name, self._identities)
        return manifest

    def _check_repeated(self, group: int, octets: bytes) -> None:
        if group == self.version and octets != self._octets:
            raise ManifestRejected(f"manifest version {group} came with two contents")


class _Versions:
    """The sink of one stream of the manifest track."""

    __slots__ = ("_group", "_length", "_octets", "_watch")

    def __init__(self, watch: ManifestWatch) -> None:
        self._watch = watch
        self._group: int | None = None
        self._length = 0
        self._octets = bytearray()

    def begin(self, head: ObjectHead) -> None:
        """Each version is Object 0 of its group; raises MalformedTrack above the size cap."""
        if head.status is not ObjectStatus.NORMAL or head.object != 0:
            return
        watch, length = self._watch, head.length
        if length > MAX_MANIFEST_OCTETS or watch.held + length > MAX_HELD:
            raise MalformedTrack(
                f"manifest of {length} octets: at most {MAX_MANIFEST_OCTETS} are taken"
            )
        watch.held += length
        self._group, self._length = head.group, length

    def write(self, view: BytesLike) -> None:
        """Octets of the version."""
        if self._group is not None:
            self._octets += view

    def end(self) -> None:
        """The version is whole."""
        group, octets = self._group, bytes(self._octets)
        self.abort(0)
        if group is not None:
            self._watch.take(group, octets)

    def gap(self, gap: Gap) -> None:
        """A version that is not here: a newer one will do."""

    def finish(self) -> None:
        """The stream is over."""

    def abort(self, code: int) -> None:
        """A begun version is lost."""
        if self._group is not None:
            self._watch.held -= self._length
            self._group = None
            self._octets.clear()
