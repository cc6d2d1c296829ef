"""The 68-octet header of an object's payload, and the digests (kvcs.md §3)."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcs.errors import InvalidInput, ObjectRejected, RejectReason
from kvcs.names import Codec, Component

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.geometry import Geometry
    from transport.api import BytesLike

MAGIC: Final = b"KVO1"
VERSION: Final = 1

#: magic, version, component, flags, layer, block, token start, token count, codec, reserved,
#: data length, data digest; big-endian.
_HEADER: Final = struct.Struct(">4sBBHIIQIHHI32s")
HEADER_OCTETS: Final = _HEADER.size


class PayloadHeader(NamedTuple):
    """What an object says of itself; flags and reserved octets are 0 sent, ignored received."""

    component: int
    layer: int
    block: int
    token_start: int
    token_count: int
    codec: int
    data_length: int
    digest: bytes


class Expectation(NamedTuple):
    """What the header of an object must say, as name, place and manifest imply.

    The first seven are those of ``PayloadHeader``, ``data_length`` being that of the decoded
    tensor; ``digest`` is the manifest's, None if it lists none.
    """

    component: int
    layer: int
    block: int
    token_start: int
    token_count: int
    codec: int
    data_length: int
    payload_length: int
    digest: bytes | None = None


def header_of(
    geometry: Geometry, component: Component, layer: int, block: int, data: Sequence[BytesLike]
) -> PayloadHeader:
    """Header of a raw object whose data are ``data``: one view, or K and V for a kv object.

    Raises InvalidInput unless the octets are exactly those of one block.
    """
    length = sum(memoryview(view).nbytes for view in data)
    wanted = geometry.block_octets(component)
    if length != wanted:
        raise InvalidInput(
            f"layer {layer}, block {block} of {component.label}: {length} octets, but"
            f" {geometry.block_tokens} tokens x {geometry.kv_heads} heads x {geometry.head_dim}"
            f" of {geometry.dtype} take {wanted}"
        )
    return PayloadHeader(
        component,
        layer,
        block,
        geometry.token_start(block),
        geometry.block_tokens,
        Codec.RAW,
        length,
        digest_of(*data),
    )


def encode_header(header: PayloadHeader) -> bytes:
    """The 68 octets; raises InvalidInput when a value does not fit its field."""
    component, layer, block, token_start, token_count, codec, length, digest = header
    try:
        return _HEADER.pack(
            *(MAGIC, VERSION, component, 0, layer, block, token_start, token_count),
            *(codec, 0, length, digest),
        )
    except struct.error as error:
        raise InvalidInput(f"payload header {header[:7]}: {error}") from None


def decode_header(octets: BytesLike) -> PayloadHeader:
    """Read the first 68 octets; raises ObjectRejected (LENGTH, MAGIC, VERSION)."""
    if len(octets) < HEADER_OCTETS:
        raise ObjectRejected(
            RejectReason.LENGTH, f"{len(octets)} octets, a header has {HEADER_OCTETS}"
        )
    magic, version, component, _, layer, block, start, count, codec, _, length, digest = (
        _HEADER.unpack_from(octets)
    )
    if magic != MAGIC:
        raise ObjectRejected(RejectReason.MAGIC, f"{magic.hex()} instead of {MAGIC.hex()}")
    if version != VERSION:
        raise ObjectRejected(RejectReason.VERSION, f"{version} instead of {VERSION}")
    return PayloadHeader(component, layer, block, start, count, codec, length, digest)


def check_header(header: PayloadHeader, expected: Expectation) -> None:
    """Compare a received header with its place; raises ObjectRejected with the first that fails."""
    if header[:7] != expected[:7] or expected.payload_length != HEADER_OCTETS + header.data_length:
        raise _rejected(header, expected)
    if expected.digest is not None and header.digest != expected.digest:
        raise ObjectRejected(
            RejectReason.MANIFEST_DIGEST,
            f"{header.digest.hex()}, the manifest lists {expected.digest.hex()}",
        )


def _rejected(header: PayloadHeader, expected: Expectation) -> ObjectRejected:
    checks = (
        (RejectReason.LAYER, header.layer, expected.layer),
        (RejectReason.BLOCK, header.block, expected.block),
        (RejectReason.LENGTH, HEADER_OCTETS + header.data_length, expected.payload_length),
        (RejectReason.COMPONENT, header.component, expected.component),
        (RejectReason.CODEC, header.codec, expected.codec),
        (RejectReason.TOKEN_START, header.token_start, expected.token_start),
        (RejectReason.TOKEN_COUNT, header.token_count, expected.token_count),
        (RejectReason.DECODED_LENGTH, header.data_length, expected.data_length),
    )
    reason, found, wanted = next(check for check in checks if check[1] != check[2])
    return ObjectRejected(reason, f"{found} instead of {wanted}")


def digest_of(*views: BytesLike) -> bytes:
    """SHA-256 of the views one after the other.

    Of a k and a v object at one Location this is the KVSP layer digest, which is the data digest
    of the kv object there (draft, Object Payload).
    """
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return digest.digest()
