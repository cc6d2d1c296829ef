"""Fuzz targets of the codecs. Contract: only documented exceptions; what is read can be said.

Each target takes any octets. It returns when the contract holds and raises when it does not.
"""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcs import manifest, payload
from kvcs.errors import InvalidInput, ManifestRejected, ObjectRejected
from kvcs.tensorfile import KvCacheFile, TensorFile
from moqt.codec import varint
from moqt.codec.control import MessageSplitter, read_stream_type
from moqt.codec.cursor import Reader
from moqt.codec.data import (
    FetchEncoder,
    FetchHeader,
    FetchReader,
    SubgroupEncoder,
    SubgroupHeader,
    SubgroupReader,
    encode_fetch_header,
    encode_subgroup_header,
)
from moqt.codec.datagram import decode_datagram, encode_datagram
from moqt.codec.fields import Token, from_text, read_name, to_text
from moqt.codec.filters import InvalidFilter, read_location_filter, read_range_filter
from moqt.codec.messages import decode_message, encode_message
from moqt.codec.params import Scope
from moqt.codec.profile import LATEST
from moqt.codec.properties import SetupOptions, TrackProperties, check_object_properties, find
from moqt.codec.varint import Incomplete
from moqt.errors import MalformedTrack, Misuse, SessionFault
from moqt.model import Gap, GroupOrder, Location, RangeFilterType
from tests.moqt.codec.recording import Recorder

from .supply import Supply, cut

FAULTS = (SessionFault, MalformedTrack)
SCOPES = (None, *Scope)
STATES = (None, True, False)
Outcome = tuple[list[Any], Any, str]


def control(data: bytes) -> None:
    """A control stream: cutting changes nothing; each message means what its octets say."""
    supply = Supply(data)
    scope, updates = SCOPES[supply.below(len(SCOPES))], STATES[supply.below(3)]
    seed, octets = supply.octet(), supply.rest()
    whole = _split([octets])
    pieces = _split(cut(octets, seed))
    assert whole == pieces or (whole is None) is (pieces is None)
    for kind, body in whole or ():
        with contextlib.suppress(SessionFault):
            message = decode_message(LATEST, kind, body, scope, answers_update=updates)
            _say_again(kind, message)


def _split(pieces: list[bytes]) -> list[tuple[int, bytes]] | None:
    splitter = MessageSplitter()
    try:
        return [found for piece in pieces for found in splitter.feed(piece)]
    except SessionFault:
        return None


def _say_again(kind: int, message: Any) -> None:
    """What we tolerate but do not say is Misuse; all else comes back the same."""
    try:
        said = encode_message(message)
    except Misuse:
        return
    [(code, body)] = MessageSplitter().feed(said)
    assert code == kind
    assert encode_message(decode_message(LATEST, code, body)) == said


def _read(make: Callable[[Recorder], Any], pieces: list[bytes]) -> Outcome:
    sink = Recorder()
    fault = ""
    reader = make(sink)
    try:
        for number, piece in enumerate(pieces, 1):
            reader.feed(piece, number == len(pieces))
    except FAULTS as found:
        fault = str(found)
    return sink.records, sink.begun, fault


def _pack(outcome: Outcome, encoder: Any, *, with_fin: bool) -> bytes | None:
    """The records of a faultless stream, written by us; None when we would not write them."""
    records, _, fault = outcome
    assert with_fin or fault
    octets = b""
    for record in records:
        if isinstance(record, str):
            continue
        try:
            if isinstance(record, Gap):
                octets += encoder.gap(record)
            else:
                octets += encoder.head(record[0]) + record[1]
        except Misuse:
            return None
    return octets


def subgroup(data: bytes) -> None:
    """A subgroup stream: header, objects, any cutting, and written again."""
    supply = Supply(data)
    seed = supply.octet()
    octets = supply.rest()
    try:
        header, at = SubgroupHeader.decode(octets)
    except (Incomplete, SessionFault):
        return
    assert SubgroupHeader.decode(encode_subgroup_header(header))[0] == header

    def make(sink: Recorder) -> SubgroupReader:
        return SubgroupReader(header, 128, sink)

    rest = octets[at:]
    whole = _read(make, [rest])
    assert _read(make, cut(rest, seed)) == whole
    assert _read(make, cut(rest, 1)) == whole
    if not whole[2]:
        again = _pack(whole, SubgroupEncoder(header), with_fin=True)
        assert again is None or _read(make, [again]) == whole


def fetch(data: bytes) -> None:
    """A fetch stream in either order: the same."""
    supply = Supply(data)
    seed = supply.octet()
    order = tuple(GroupOrder)[supply.below(2)]
    octets = supply.rest()
    try:
        header, at = FetchHeader.decode(octets)
    except (Incomplete, SessionFault):
        return
    assert FetchHeader.decode(encode_fetch_header(header))[0] == header

    def make(sink: Recorder) -> FetchReader:
        return FetchReader(order, sink)

    rest = octets[at:]
    whole = _read(make, [rest])
    assert _read(make, cut(rest, seed)) == whole
    assert _read(make, cut(rest, 1)) == whole
    if not whole[2]:
        again = _pack(whole, FetchEncoder(order), with_fin=True)
        assert again is None or _read(make, [again]) == whole


def datagram(data: bytes) -> None:
    """One datagram, read and written again."""
    try:
        found = decode_datagram(data)
        if found is None:
            return
        head = found.head.resolve(128)
    except FAULTS:
        return
    assert head.length == len(found.payload)
    ends = found.head.end_of_group
    default = 128 if found.head.priority is None else None
    said = encode_datagram(
        found.track_alias, head, found.payload, end_of_group=ends, default_priority=default
    )
    again = decode_datagram(said)
    assert again is not None
    assert (again.track_alias, again.head.resolve(128)) == (found.track_alias, head)
    assert bytes(again.payload) == bytes(found.payload)


def properties(data: bytes) -> None:
    """Everything that fills its octets by itself: never Incomplete."""
    supply = Supply(data)
    which, octets = supply.octet(), supply.rest()
    location = Location(which, supply.octet())
    with contextlib.suppress(SessionFault):
        options = SetupOptions.decode(octets)
        assert SetupOptions.decode(options.encode()) == options
    with contextlib.suppress(*FAULTS):
        track = TrackProperties.decode(octets)
        known = TrackProperties.decode(track.encode())
        assert known.default_publisher_priority == track.default_publisher_priority
    with contextlib.suppress(*FAULTS):
        check_object_properties(octets, location)
    with contextlib.suppress(*FAULTS):
        find(octets, which)
    with contextlib.suppress(SessionFault):
        assert Token.decode(Token.decode(octets).encode()) == Token.decode(octets)
    for kind in RangeFilterType:
        with contextlib.suppress(InvalidFilter):
            read_range_filter(kind, octets)
    for read in (read_stream_type, varint.decode, lambda raw: read_location_filter(Reader(raw))):
        with contextlib.suppress(SessionFault, Incomplete):
            read(octets)  # type: ignore[operator]
    with contextlib.suppress(SessionFault, Incomplete):
        name = read_name(Reader(octets))
        assert from_text(to_text(name)) == name
    with contextlib.suppress(Misuse):
        from_text(octets.decode("latin-1"))


#: What a stranger may put in any place of a JSON document.
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 3, 1 << 31, (1 << 63) - 1, 1 << 64, 10**400, 0.5, 1e300, "", "0"),
    *("k.raw.s0", "v.raw.s1", "kv.raw.s0", "\ud800", "\0", "é", "ab" * 32, "A" * 64, "U8", "F64"),
    *(
        [],
        {},
        [0],
        [[]],
        [0, 4],
        [1 << 62] * 300,
        [{}],
        {"": 0},
        {"segment": 0},
        [-1],
        [[[[[[]]]]]],
    ),
)


def reshaped(document: Any, supply: Supply) -> Any:
    """``document`` with members changed, added, doubled or gone, as the fuzzer chooses."""
    document = copy.deepcopy(document)
    for _ in range(1 + supply.below(4)):
        node, path = document, supply.below(6)
        for _ in range(path):
            children = list(node.values()) if isinstance(node, dict) else node
            inner = [child for child in children if isinstance(child, dict | list) and child]
            if not inner:
                break
            node = inner[supply.octet() % len(inner)]
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[supply.octet() % len(keys)] if keys else 0
        act, value = supply.below(5), copy.deepcopy(ODD[supply.below(len(ODD))])
        if act == 0 and keys:
            del node[key]
        elif act == 1 and isinstance(node, dict):
            node[f"x{supply.octet()}"] = value
        elif act == 2 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]) if node else value)
        elif keys:
            node[key] = value
    return document


def _json(data: bytes, model: Any) -> bytes:
    """Octets as they are, or (after 0x01) a changed ``model``."""
    if data[:1] != b"\x01":
        return data
    return json.dumps(reshaped(model, Supply(data[1:])), ensure_ascii=True).encode()


DIGEST = "ab" * 32
MANIFEST = {
    "kvcs": 1,
    "compat": {
        **{"kvsp": 0, "model": "m", "layers": 2, "kv_heads": 3, "head_dim": 64},
        **{"dtype": "bfloat16", "block_tokens": 16, "layout": "token,head,dim"},
        **{"positions": "applied", "heads": [0, 2], "layer_kinds": ["full", "sliding"]},
        **{"model_digest": "ab", "adapter": "a", "x": {"y": [1, 2.5]}},
    },
    **{"layers": 2, "block_tokens": 16, "deterministic": False, "production": "ab" * 16},
    "segments": [
        {
            **{"segment": 0, "first_block": 0, "blocks": 1, "block_keys_sha256": DIGEST},
            **{"tracks": ["k.raw.s0", "v.raw.s0"], "complete": True},
            "object_digests": {
                "k.raw.s0": [[DIGEST], [DIGEST]],
                "v.raw.s0": [[DIGEST], [DIGEST]],
            },
        },
        {
            **{"segment": 2, "first_block": 1, "blocks": 2, "block_keys_sha256": DIGEST},
            **{"tracks": ["kv.raw.s2"], "complete": False},
            "object_digests": {"kv.raw.s2": [[DIGEST, DIGEST]]},
        },
    ],
}
TENSORS = {
    "__metadata__": {"model": "m"},
    "k.0": {"dtype": "BF16", "shape": [1, 1, 2], "data_offsets": [0, 4]},
    "v.0": {"dtype": "BF16", "shape": [1, 1, 2], "data_offsets": [4, 8]},
    "tokens": {"dtype": "I32", "shape": [1], "data_offsets": [8, 12]},
}


def manifest_json(data: bytes) -> None:
    """A manifest: ManifestRejected, or one that is the same after a second reading."""
    try:
        found = manifest.decode(_json(data, MANIFEST))
    except ManifestRejected:
        return
    again = manifest.decode(manifest.encode(found))
    assert again == found
    manifest.check_successor(found, again)


def payload_header(data: bytes) -> None:
    """The header of a KVCS object against what its place implies."""
    try:
        header = payload.decode_header(data)
    except ObjectRejected:
        return
    again = payload.decode_header(payload.encode_header(header))
    assert again == header
    fits = payload.Expectation(
        *header[:7], payload_length=payload.HEADER_OCTETS + header.data_length
    )
    payload.check_header(header, fits)
    for at in range(7):
        values = list(fits)
        values[at] = header[at] ^ 1
        with contextlib.suppress(ObjectRejected):
            payload.check_header(header, payload.Expectation(*values))
            raise AssertionError(f"field {at} is not compared")


SCRATCH = Path(tempfile.gettempdir()) / f"kvcs-fuzz-{Path('/proc/self').resolve().name}"


def safetensors(data: bytes) -> None:
    """A file with any octets; and with a header of them, followed by data."""
    supply = Supply(data)
    size, header = supply.octet(), _json(supply.rest(), TENSORS)
    for octets in (data, len(header).to_bytes(8, "little") + header + bytes(size)):
        SCRATCH.write_bytes(octets)
        try:
            with TensorFile(SCRATCH) as file:
                for name, spec in file.tensors.items():
                    assert len(file.view(name)) == spec.octets
        except InvalidInput:
            continue
        finally:
            SCRATCH.unlink()
        SCRATCH.write_bytes(octets)
        with contextlib.suppress(InvalidInput):
            KvCacheFile(SCRATCH)
        SCRATCH.unlink()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "control": control,
    "subgroup": subgroup,
    "fetch": fetch,
    "datagram": datagram,
    "properties": properties,
    "manifest": manifest_json,
    "payload": payload_header,
    "safetensors": safetensors,
}
