"""The same codec work in another implementation's own environment; run by ``benchmarks.codec``.

    PYTHON benchmarks/codec_peer.py SECONDS

PYTHON is one in which aiomoqt is installed. Prints one JSON object: units a second by case.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECTS = 64
OCTETS = 100


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units per second of ``work``, which returns how many it did."""
    work()
    done = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        done += work()
    return done / spent


def cases() -> dict[str, Callable[[], int]]:
    """By the names that ``benchmarks.codec`` gives them."""
    from aiomoqt.context import profile_for
    from aiomoqt.messages.data import ObjectHeader, SubgroupHeader
    from aiomoqt.messages.subscribe import Subscribe
    from aiopquic.buffer import Buffer

    prof = profile_for(22)
    payload = bytes(OCTETS)

    def header() -> SubgroupHeader:
        return SubgroupHeader(7, 12, 0, 128, prof=prof)

    def write_objects() -> int:
        subgroup = header()
        for _ in range(OBJECTS):
            subgroup.next_object_bytes(payload)
        return OBJECTS

    subgroup = header()
    wire = b"".join(bytes(subgroup.next_object_bytes(payload)) for _ in range(OBJECTS))

    def read_objects() -> int:
        buffer, found, last = Buffer(data=wire), ObjectHeader(0), None
        for _ in range(OBJECTS):
            found.deserialize_into(buffer, len(wire), False, last, True, True)
            last = found.object_id
        return OBJECTS

    message = Subscribe(
        4, (b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16)), b"k.raw.s0", 100, forward=1
    )
    octets = bytes(message.serialize(prof=prof).data)

    def write_subscribe() -> int:
        for _ in range(100):
            message.serialize(prof=prof)
        return 100

    def read_subscribe() -> int:
        for _ in range(100):
            buffer = Buffer(data=octets, vi64=True)
            buffer.pull_vint()
            buffer.pull_uint16()
            Subscribe.deserialize(buffer, prof=prof)
        return 100

    return {
        "write whole objects of 100 octets": write_objects,
        "read whole objects of 100 octets": read_objects,
        "write SUBSCRIBE": write_subscribe,
        "read SUBSCRIBE": read_subscribe,
    }


def main() -> None:
    """Time every case that works there; one that does not is told by its error."""
    found: dict[str, float | str] = {}
    for name, work in cases().items():
        try:
            found[name] = rate(work, float(sys.argv[1]))
        except Exception as error:  # another library's: whatever it raises is worth telling
            found[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
