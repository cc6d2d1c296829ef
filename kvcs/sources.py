"""Where a publication can be had: sessions, manifests on them, and other publications like it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcs.discovery import Interest, Prompt, Search
from kvcs.errors import KvcsError, ManifestRejected, UnknownPublication, most_telling_first
from kvcs.manifest_track import MAX_VERSIONS, ManifestWatch
from moqt.errors import MalformedTrack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kvcs.identity import Identities
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.names import PublicationName, TrackName
    from kvcs.relays import Link, Links


#: Publications tried in place of another, in one retrieval: each may take its time to say nothing.
MAX_ALTERNATIVES: Final = 8


class Source(NamedTuple):
    """A session that has a publication, and what its manifest says of the segment wanted."""

    link: Link
    name: PublicationName
    watch: ManifestWatch
    manifest: Manifest
    entry: SegmentEntry


class Sources:
    """Finds sources on the sessions of one consumer."""

    def __init__(self, links: Links, identities: Identities) -> None:
        self._links = links
        self._identities = identities

    # -- manifests -------------------------------------------------------------------------------

    def watch(self, link: Link, name: PublicationName, reunion: float = 0.0) -> ManifestWatch:
        """The manifest of ``name`` on ``link``, shared with others that follow it; release it.

        The publisher may need ``reunion`` seconds to be there.
        """
        watch = link.watches.get(name)
        if watch is None or watch.over:
            watch = link.watches[name] = ManifestWatch(
                link.connection, name, self._identities, reunion
            )
        watch.users += 1
        link.enter()
        return watch

    def release(self, link: Link, watch: ManifestWatch) -> None:
        """One user less; without any it is cancelled."""
        watch.users -= 1
        if watch.users == 0:
            watch.cancel()
            if link.watches.get(watch.name) is watch:
                del link.watches[watch.name]
        link.leave()

    # -- sources ---------------------------------------------------------------------------------

    async def open(
        self,
        name: PublicationName,
        segment: int,
        patience: float,
        avoid: Collection[Link] = (),
    ) -> Source:
        """The first session, none to ``avoid``, that has the manifest of ``name`` and the segment.

        Raises UnknownPublication when no session has, KvcsError when a manifest is unusable.
        """
        notes: dict[str, None] = {}
        tried: list[Link] = list(avoid)
        while (link := await self._next(name, tried, notes, patience)) is not None:
            tried.append(link)
            source = await self._open_on(link, name, segment, patience, notes)
            if source is not None:
                return source
        told = (
            "; ".join(most_telling_first(notes)) or "there is no session: connect or listen first"
        )
        raise UnknownPublication(
            f"publication {name.pub_id.hex()[:8]} of scope {name.scope_id.hex()[:8]} cannot be"
            f" had: {told}"
        )

    async def another_link(
        self, tried: Collection[Link], note: Callable[[str], None], patience: float
    ) -> Link | None:
        """A session not tried yet; None when none is left. ``patience``: see ``Links.another``."""
        return await self._links.another(tried, note, patience)

    async def announced(self, link: Link, name: PublicationName, patience: float) -> bool:
        """Wait until ``link`` offers ``name``; False if it does not within ``patience`` seconds.

        Whoever has just begun learns from its publishers again what there is.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        interest = Interest.on(link, name.namespace)
        link.listeners.add(interest.changed.ring)
        try:
            while not link.offers(name):
                left = deadline - loop.time()
                if left <= 0 or interest.error is not None or not link.open:
                    return False
                await interest.changed.wait(left)
            return True
        finally:
            link.listeners.discard(interest.changed.ring)
            interest.release()

    async def another_publication(
        self,
        like: Source,
        tracks: Sequence[TrackName],
        tried: list[PublicationName],
        patience: float,
        note: Callable[[str], None],
    ) -> Source | None:
        """One of the same prefix, not yet ``tried``, that may be combined with ``like``.

        Only if both manifests say deterministic (draft, Verification and Recovery). Each that is
        looked at is added to ``tried``, of which there are MAX_ALTERNATIVES besides the first.
        Sessions that are silent are not asked again.
        """
        if not like.manifest.deterministic:
            note("another publication may not stand in for it: it is not marked deterministic")
            return None
        name = like.name
        prompt = Prompt(name.scope_id, name.compat_id, (name.anchor_key,), 1)
        try:
            silent = [link for link in self._links.open if link.silent]
            found = await Search(self._links, prompt, probe=False, avoid=silent).run(0.0)
        except UnknownPublication:
            return None
        for one in found:
            if one.name in tried:
                continue
            if len(tried) > MAX_ALTERNATIVES:
                note(f"no more than {MAX_ALTERNATIVES} other publications are tried")
                return None
            tried.append(one.name)
            try:
                other = await self.open(one.name, like.entry.segment, patience, silent)
            except KvcsError as error:
                note(str(error))
                continue
            if _combine(like, other, tracks):
                return other
            note(f"publication {one.name.pub_id.hex()[:8]} differs: it is not combined")
            self.release(other.link, other.watch)
        return None

    # -- inside ----------------------------------------------------------------------------------

    async def _next(
        self, name: PublicationName, tried: list[Link], notes: dict[str, None], patience: float
    ) -> Link | None:
        """Sessions that announced it first, then the others, then URLs without a session."""
        left = [link for link in self._links.open if link not in tried]
        offering = (link for link in left if link.offers(name))
        link = next(offering, left[0] if left else None)
        if link is None:
            link = await self._links.another(
                tried, lambda text: notes.update({text: None}), patience
            )
        return link

    async def _open_on(
        self,
        link: Link,
        name: PublicationName,
        segment: int,
        patience: float,
        notes: dict[str, None],
    ) -> Source | None:
        watch = self.watch(link, name)
        source: Source | None = None
        try:
            source = await self._await_segment(link, watch, segment, patience)
            if source is None:
                link.heard(watch.error)
                notes[f"{link}: {_why_not(watch, segment, patience)}"] = None
        finally:
            if source is None:
                self.release(link, watch)
        return source

    async def _await_segment(
        self, link: Link, watch: ManifestWatch, segment: int, patience: float
    ) -> Source | None:
        """Until the manifest lists the segment, no more comes, or nothing new for ``patience``."""
        loop = asyncio.get_running_loop()
        version, since, versions = watch.version, loop.time(), 0
        while True:
            if watch.rejected is not None:
                raise watch.rejected
            entry = watch.manifest.segment(segment) if watch.manifest is not None else None
            if watch.manifest is not None and entry is not None:
                return Source(link, watch.name, watch, watch.manifest, entry)
            if watch.version != version and versions < MAX_VERSIONS:
                version, since, versions = watch.version, loop.time(), versions + 1
            left = since + patience - loop.time()
            if watch.settled or left <= 0:
                return None
            await watch.changed.wait(left)


def _why_not(watch: ManifestWatch, segment: int, patience: float) -> str:
    if watch.manifest is not None:
        return f"its manifest lists {len(watch.manifest.segments)} segments, not segment {segment}"
    if isinstance(watch.error, MalformedTrack):
        raise ManifestRejected(str(watch.error))
    if watch.error is not None:
        return f"no manifest: {watch.error}"
    if watch.over:
        return "its manifest track is empty"
    return f"no manifest within {patience:g} s"


def _combine(ours: Source, theirs: Source, tracks: Sequence[TrackName]) -> bool:
    """True when two sources are of the same content, both said to be deterministic."""
    same = ("first_block", "blocks", "block_keys_sha256")
    if not theirs.manifest.deterministic or any(
        getattr(ours.entry, name) != getattr(theirs.entry, name) for name in same
    ):
        return False
    for track in tracks:
        listed = (source.entry.object_digests.get(track, ()) for source in (ours, theirs))
        if track not in theirs.entry.tracks or any(a != b for a, b in zip(*listed, strict=False)):
            return False
    return True
