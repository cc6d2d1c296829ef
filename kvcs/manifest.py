"""The manifest: what a publication holds, as JSON both ways and as rules (kvcs.md §4)."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from kvcs import strictjson
from kvcs.errors import (
    Difference,
    IdentityMismatch,
    InvalidInput,
    ManifestRejected,
    ManifestTooLarge,
)
from kvcs.geometry import MAX_BLOCKS, MAX_MANIFEST_OCTETS, Geometry
from kvcs.identity import KVSP_PROFILE_0, CompatibilityDescriptor, Identities, JsonObject
from kvcs.names import Component, PublicationName, TrackName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION: Final = 1
#: A full manifest holds a million digests; commas and brackets beyond twice that are an attack.
MAX_VALUES: Final = 2_000_000
#: draft, Manifest Track: a new version at least every eight completed layers.
LAYERS_PER_VERSION: Final = 8
DIGEST_LENGTH: Final = 32

#: In place of block_keys_sha256 by a publisher with ready-made names and no Block Keys.
UNSTATED: Final = bytes(DIGEST_LENGTH)

_PRODUCTION: Final = re.compile(r"[0-9a-f]{32}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment of a manifest.

    ``object_digests`` maps a track to its completed layers from 0 on; each element joins the raw
    32-octet digests of that layer's objects.
    """

    segment: int
    first_block: int
    blocks: int
    block_keys_sha256: bytes
    tracks: tuple[TrackName, ...]
    complete: bool = False
    object_digests: Mapping[TrackName, tuple[bytes, ...]] = field(default_factory=dict, hash=False)

    def digest(self, track: TrackName, layer: int, block: int) -> bytes | None:
        """The listed digest of one object; None when it is not listed (yet)."""
        layers = self.object_digests.get(track, ())
        if layer >= len(layers):
            return None
        at = block * DIGEST_LENGTH
        return layers[layer][at : at + DIGEST_LENGTH] or None

    def choose(self, codec: str = "raw") -> tuple[TrackName, ...]:
        """The tracks to take of one codec: k and v, else kv; empty when it has neither."""
        k, v, kv = (TrackName(component, codec, self.segment) for component in Component)
        if k in self.tracks and v in self.tracks:
            return (k, v)
        return (kv,) if kv in self.tracks else ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a manifest. ``compat`` is the descriptor's JSON object as it came."""

    compat: JsonObject
    descriptor: CompatibilityDescriptor
    segments: tuple[SegmentEntry, ...] = ()
    deterministic: bool = False
    production: str | None = None

    def geometry(self, entry: SegmentEntry) -> Geometry:
        """Shape of one segment; raises InvalidInput when its kind of layers is not supported."""
        return Geometry.of(self.descriptor, entry.blocks, entry.first_block)

    def segment(self, number: int) -> SegmentEntry | None:
        """The entry with that segment id; None when this version has none."""
        return next((entry for entry in self.segments if entry.segment == number), None)


def block_keys_sha256(keys: Sequence[bytes]) -> bytes:
    """SHA-256 of the raw Block Keys of a segment, concatenated."""
    return hashlib.sha256(b"".join(keys)).digest()


def verify_identity(
    manifest: Manifest, name: PublicationName, identities: Identities = KVSP_PROFILE_0
) -> None:
    """Raises IdentityMismatch unless the id of ``compat`` is field 2 of the namespace."""
    found = identities.compatibility_id(manifest.compat)
    if found != name.compat_id:
        raise IdentityMismatch(
            "the manifest describes another model than its namespace names",
            (Difference("compatibility id", name.compat_id.hex(), found.hex()),),
        )


def check_successor(old: Manifest, new: Manifest) -> None:
    """Raises ManifestRejected unless ``new`` only adds to ``old``."""
    for name in ("compat", "deterministic", "production"):
        if getattr(old, name) != getattr(new, name):
            raise ManifestRejected(f"a later version changes {name!r}")
    if len(new.segments) < len(old.segments):
        raise ManifestRejected("a later version drops a segment")
    for before, after in zip(old.segments, new.segments, strict=False):
        _check_entry_successor(before, after)


def _check_entry_successor(before: SegmentEntry, after: SegmentEntry) -> None:
    where = f"segment {before.segment}: a later version"
    for name in ("segment", "first_block", "blocks", "block_keys_sha256"):
        if getattr(before, name) != getattr(after, name):
            raise ManifestRejected(f"{where} changes {name!r}")
    if not set(before.tracks) <= set(after.tracks):
        raise ManifestRejected(f"{where} drops a track")
    if before.complete and not after.complete:
        raise ManifestRejected(f"{where} takes 'complete' back")
    for track, layers in before.object_digests.items():
        if after.object_digests.get(track, ())[: len(layers)] != layers:
            raise ManifestRejected(f"{where} changes digests of {track}")


class _Open:
    """A segment while it is produced."""

    __slots__ = ("digests", "entry")

    def __init__(self, entry: SegmentEntry) -> None:
        self.entry = entry
        self.digests: dict[TrackName, list[bytes]] = {track: [] for track in entry.tracks}

    @property
    def layers_done(self) -> int:
        """Layers of which every track has all objects."""
        return min(map(len, self.digests.values()))


class ManifestBuilder:
    """Keeps what a publisher has produced, and says when a new version is due.

    ``compat`` is the descriptor's JSON object; raises InvalidInput when it is none.
    """

    def __init__(
        self,
        compat: JsonObject,
        *,
        deterministic: bool = False,
        production: str | None = None,
        identities: Identities = KVSP_PROFILE_0,
    ) -> None:
        if production is not None and not _PRODUCTION.fullmatch(production):
            raise InvalidInput(f"production {production!r}: it must be 32 lower-case hex digits")
        self.descriptor = identities.describe(compat)
        self._compat = compat
        self._deterministic = deterministic
        self._production = production
        self._segments: list[_Open] = []
        self._changed = False
        self._fresh_layers = 0

    @property
    def due(self) -> bool:
        """True when a segment was added or completed, or eight layers are not yet listed."""
        return self._changed or self._fresh_layers >= LAYERS_PER_VERSION

    def add_segment(
        self, block_keys: Sequence[bytes] | int, components: Sequence[Component], codec: str = "raw"
    ) -> SegmentEntry:
        """The next segment, covering the blocks that ``block_keys`` (raw octets) name.

        Where only their number is known, the entry says UNSTATED. Raises InvalidInput without
        blocks or components.
        """
        blocks = block_keys if isinstance(block_keys, int) else len(block_keys)
        if blocks < 1:
            raise InvalidInput(
                "segment without a complete block: give at least block_tokens tokens"
            )
        if not components or len(set(components)) != len(components):
            raise InvalidInput("segment needs each of its components once: k and v, or kv")
        last = self._segments[-1].entry if self._segments else None
        segment = len(self._segments)
        entry = SegmentEntry(
            segment=segment,
            first_block=last.first_block + last.blocks if last else 0,
            blocks=blocks,
            block_keys_sha256=(
                UNSTATED if isinstance(block_keys, int) else block_keys_sha256(block_keys)
            ),
            tracks=tuple(TrackName(component, codec, segment) for component in components),
        )
        self._segments.append(_Open(entry))
        self._changed = True
        return entry

    def add_layer(self, track: TrackName, layer: int, digests: Sequence[bytes]) -> None:
        """The digests of one layer's objects in object order; layers come in order, per track.

        The last layer of the last track completes the segment. Raises InvalidInput for a layer
        out of turn or a wrong number of digests.
        """
        if not 0 <= track.segment < len(self._segments):
            raise InvalidInput(f"track {track}: segment {track.segment} was not added")
        opened = self._segments[track.segment]
        listed = opened.digests.get(track)
        if listed is None:
            raise InvalidInput(f"track {track}: not one of its segment, {opened.entry.tracks}")
        if layer != len(listed) or layer >= self.descriptor.layers:
            raise InvalidInput(
                f"track {track}: layer {layer} out of turn, layer {len(listed)} of"
                f" {self.descriptor.layers} is next"
            )
        if len(digests) != opened.entry.blocks or any(len(one) != DIGEST_LENGTH for one in digests):
            raise InvalidInput(
                f"track {track}, layer {layer}: give {opened.entry.blocks} digests of 32 octets"
            )
        before = opened.layers_done
        listed.append(b"".join(digests))
        self._fresh_layers += opened.layers_done - before
        if before < opened.layers_done == self.descriptor.layers:
            self._changed = True

    def build(self) -> Manifest:
        """This moment's version; nothing is due afterwards."""
        self._changed = False
        self._fresh_layers = 0
        return Manifest(
            compat=self._compat,
            descriptor=self.descriptor,
            segments=tuple(
                replace(
                    opened.entry,
                    complete=opened.layers_done == self.descriptor.layers,
                    object_digests={
                        track: tuple(layers) for track, layers in opened.digests.items() if layers
                    },
                )
                for opened in self._segments
            ),
            deterministic=self._deterministic,
            production=self._production,
        )


# ------------------------------------------------------------------------------------------ encode


def encode(manifest: Manifest) -> bytes:
    """Compact JSON, members in the draft's order; raises ManifestTooLarge above 64 MiB."""
    shown: dict[str, object] = {
        "kvcs": VERSION,
        "compat": manifest.compat,
        "layers": manifest.descriptor.layers,
        "block_tokens": manifest.descriptor.block_tokens,
        "deterministic": manifest.deterministic,
        "segments": [_entry_json(entry) for entry in manifest.segments],
    }
    if manifest.production is not None:
        shown["production"] = manifest.production
    text = json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    octets = text.encode("utf-8")
    if len(octets) > MAX_MANIFEST_OCTETS:
        raise ManifestTooLarge(
            f"manifest of {len(octets)} octets, the limit is {MAX_MANIFEST_OCTETS}:"
            " use larger blocks"
        )
    return octets


def _entry_json(entry: SegmentEntry) -> dict[str, object]:
    shown: dict[str, object] = {
        "segment": entry.segment,
        "first_block": entry.first_block,
        "blocks": entry.blocks,
        "block_keys_sha256": entry.block_keys_sha256.hex(),
        "tracks": [str(track) for track in entry.tracks],
        "complete": entry.complete,
    }
    if entry.object_digests:
        shown["object_digests"] = {
            str(track): [layer.hex(" ", DIGEST_LENGTH).split() for layer in layers]
            for track, layers in entry.object_digests.items()
        }
    return shown


# ------------------------------------------------------------------------------------------ decode


def decode(octets: bytes, identities: Identities = KVSP_PROFILE_0) -> Manifest:
    """Read one version; unknown members are ignored. Raises ManifestRejected, naming the rule."""
    try:
        value = strictjson.loads(octets, max_octets=MAX_MANIFEST_OCTETS, max_values=MAX_VALUES)
    except ValueError as error:
        raise ManifestRejected(f"manifest: {error}") from None
    top = _Members("manifest", value)
    if top.number("kvcs", 0, MAX_BLOCKS) != VERSION:
        top.refuse("kvcs", f"must be {VERSION}")
    compat = top.get("compat", dict)
    try:
        descriptor = identities.describe(compat)
        identities.compatibility_id(compat)
    except InvalidInput as error:
        raise ManifestRejected(f"manifest: {error}") from None
    for name in ("layers", "block_tokens"):
        if top.number(name, 1, MAX_BLOCKS) != getattr(descriptor, name):
            top.refuse(name, f"differs from compat ({getattr(descriptor, name)})")
    production = top.get("production", str) if "production" in top.members else None
    if production is not None and not _PRODUCTION.fullmatch(production):
        top.refuse("production", "must be 32 lower-case hex digits")
    return Manifest(
        compat=compat,
        descriptor=descriptor,
        segments=_segments(top.get("segments", list), descriptor.layers),
        deterministic=top.get("deterministic", bool),
        production=production,
    )


class _Members:
    """Typed access to one JSON object, every fault a ManifestRejected that says where."""

    __slots__ = ("members", "where")

    def __init__(self, where: str, value: object) -> None:
        self.where = where
        if not isinstance(value, dict):
            raise ManifestRejected(f"{where}: must be a JSON object")
        self.members: dict[str, object] = value

    def refuse(self, name: str, rule: str) -> NoReturn:
        raise ManifestRejected(f"{self.where}: {name!r} {rule}")

    def get(self, name: str, kind: type[_T]) -> _T:
        value = self.members.get(name)
        if name not in self.members:
            self.refuse(name, "is missing")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.refuse(name, f"must be of type {kind.__name__}")
        return value

    def number(self, name: str, low: int, high: int) -> int:
        value = self.get(name, int)
        if not low <= value <= high:
            self.refuse(name, f"must be from {low} to {high}")
        return value


def _segments(values: list[object], layers: int) -> tuple[SegmentEntry, ...]:
    found: list[SegmentEntry] = []
    for index, value in enumerate(values):
        entry = _entry(_Members(f"manifest, segments[{index}]", value), layers)
        # kvcs.md §4: contiguous, ids rising; the anchor makes segment 0 the first.
        if not found:
            fits = entry.segment == 0 and entry.first_block == 0
        else:
            last = found[-1]
            fits = (
                entry.segment > last.segment and entry.first_block == last.first_block + last.blocks
            )
        if not fits:
            raise ManifestRejected(
                f"manifest, segments[{index}]: segments must start with segment 0 at block 0,"
                " have rising ids and follow one another without gap"
            )
        found.append(entry)
    return tuple(found)


def _entry(members: _Members, layers: int) -> SegmentEntry:
    segment = members.number("segment", 0, MAX_BLOCKS)
    blocks = members.number("blocks", 1, MAX_BLOCKS)
    tracks = tuple(_track(members, name, segment) for name in members.get("tracks", list))
    if not tracks or len(set(tracks)) != len(tracks):
        members.refuse("tracks", "must name at least one track, each once")
    complete = members.get("complete", bool)
    digests: dict[TrackName, tuple[bytes, ...]] = {}
    if "object_digests" in members.members:
        for name, groups in members.get("object_digests", dict).items():
            track = _track(members, name, segment)
            if track not in tracks:
                members.refuse("object_digests", f"lists {track}, which 'tracks' does not")
            digests[track] = _groups(members, groups, layers, blocks)
            if complete and len(digests[track]) != layers:
                members.refuse("object_digests", f"of {track} must list all {layers} layers")
    return SegmentEntry(
        segment=segment,
        first_block=members.number("first_block", 0, MAX_BLOCKS),
        blocks=blocks,
        block_keys_sha256=_digests(
            members, "block_keys_sha256", [members.get("block_keys_sha256", str)]
        ),
        tracks=tracks,
        complete=complete,
        object_digests=digests,
    )


def _track(members: _Members, name: object, segment: int) -> TrackName:
    try:
        track = TrackName.parse(name if isinstance(name, str) else "")
    except InvalidInput as error:
        raise ManifestRejected(f"{members.where}: {error}") from None
    if track.segment != segment:
        members.refuse("tracks", f"names {track}, which is not of segment {segment}")
    return track


def _groups(members: _Members, groups: object, layers: int, blocks: int) -> tuple[bytes, ...]:
    if not isinstance(groups, list) or len(groups) > layers:
        members.refuse("object_digests", f"must be lists of at most {layers} layers")
    found = []
    for group in groups:
        if not isinstance(group, list) or len(group) != blocks:
            members.refuse("object_digests", f"must have {blocks} digests a layer")
        found.append(_digests(members, "object_digests", group))
    return tuple(found)


def _digests(members: _Members, name: str, texts: list[object]) -> bytes:
    if all(isinstance(text, str) and len(text) == 2 * DIGEST_LENGTH for text in texts):
        try:
            found = bytes.fromhex("".join(texts))  # type: ignore[arg-type]
        except ValueError:
            found = b""
        # fromhex skips blanks, so a short result is a fault too.
        if len(found) == DIGEST_LENGTH * len(texts):
            return found
    members.refuse(name, "must be 64 hex digits each")
