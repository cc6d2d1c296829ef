"""Times the codec's hot paths on one core: ``python -m benchmarks.codec [seconds per case]``."""

from __future__ import annotations

import json
import platform
import sys
import time
from typing import TYPE_CHECKING, Final

from moqt.codec import varint
from moqt.codec.data import (
    FetchEncoder,
    FetchReader,
    SubgroupEncoder,
    SubgroupHeader,
    SubgroupReader,
)
from moqt.model import GroupOrder, ObjectHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import Gap
    from transport.api import BytesLike

OBJECTS: Final = 64
OBJECT: Final = 32 << 10
HEADER: Final = SubgroupHeader(track_alias=7, group=12, subgroup=0, priority=128)
HEADS: Final = tuple(ObjectHead(12, 0, number, 128, OBJECT) for number in range(OBJECTS))


class Discard:
    """An ObjectSink that does nothing."""

    def begin(self, head: ObjectHead) -> None:
        """Ignored."""

    def write(self, view: BytesLike) -> None:
        """Ignored."""

    def end(self) -> None:
        """Ignored."""

    def gap(self, gap: Gap) -> None:
        """Ignored."""

    def finish(self) -> None:
        """Ignored."""

    def abort(self, code: int) -> None:
        """Ignored."""


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units per second of ``work``, which returns how many it did."""
    work()
    done = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        done += work()
    return done / spent


def cut(stream: bytes, size: int) -> tuple[bytes, ...]:
    """``stream`` in chunks, as a transport would hand it over."""
    return tuple(stream[at : at + size] for at in range(0, len(stream), size))


def decode_varints(value: int) -> Callable[[], int]:
    """One value, decoded a thousand times."""
    data = varint.encode(value) * 1000

    def work() -> int:
        at = 0
        decode = varint.decode
        while at < len(data):
            _, at = decode(data, at)
        return 1000

    return work


def read_subgroup(chunk: int) -> Callable[[], int]:
    """A subgroup stream of 32 KiB objects, read in chunks."""
    encoder = SubgroupEncoder(HEADER)
    chunks = cut(b"".join(encoder.head(head) + bytes(OBJECT) for head in HEADS), chunk)

    def work() -> int:
        reader = SubgroupReader(HEADER, 128, Discard())
        for data in chunks:
            reader.feed(data)
        reader.feed(b"", True)
        return OBJECTS

    return work


def read_fetch(chunk: int) -> Callable[[], int]:
    """A fetch stream of 32 KiB objects, read in chunks."""
    encoder = FetchEncoder(GroupOrder.ASCENDING)
    chunks = cut(b"".join(encoder.head(head) + bytes(OBJECT) for head in HEADS), chunk)

    def work() -> int:
        reader = FetchReader(GroupOrder.ASCENDING, Discard())
        for data in chunks:
            reader.feed(data)
        reader.feed(b"", True)
        return OBJECTS

    return work


def inside_payload() -> int:
    """Chunks of one packet inside one payload: the cost of ours per chunk."""
    chunk = bytes(1200)
    reader = SubgroupReader(HEADER, 128, Discard())
    reader.feed(b"\x00" + varint.encode(1200 * 1000))
    for _ in range(1000):
        reader.feed(chunk)
    return 1000


def write_subgroup() -> int:
    """Object heads of a subgroup stream."""
    encoder = SubgroupEncoder(HEADER)
    for head in HEADS:
        encoder.head(head)
    return OBJECTS


def write_fetch() -> int:
    """Object heads of a fetch stream."""
    encoder = FetchEncoder(GroupOrder.ASCENDING)
    for head in HEADS:
        encoder.head(head)
    return OBJECTS


def main() -> None:
    """Print one line per case, then the same as JSON."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    cases = {
        "varint decode, 1 octet": decode_varints(37),
        "varint decode, 2 octets": decode_varints(15_293),
        "varint decode, 4 octets": decode_varints(226_442_877),
        "subgroup read, 32 KiB objects in 16 KiB chunks": read_subgroup(16 << 10),
        "subgroup read, 32 KiB objects in 1200 octet chunks": read_subgroup(1200),
        "fetch read, 32 KiB objects in 16 KiB chunks": read_fetch(16 << 10),
        "payload chunk": inside_payload,
        "subgroup object head written": write_subgroup,
        "fetch object head written": write_fetch,
    }
    found = {name: rate(work, seconds) for name, work in cases.items()}
    for name, value in found.items():
        print(f"{name:52} {value:14,.0f}/s {1e6 / value:8.3f} us")  # noqa: T201
    record = {"python": platform.python_version(), "per_second": found}
    print(json.dumps(record))  # noqa: T201


if __name__ == "__main__":
    main()
