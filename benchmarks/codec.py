"""Times the codec's hot paths on one core: ``python -m benchmarks.codec [seconds per case]``.

``--peer-python PATH`` times the same work in turn there, with aiomoqt's codec.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moqt.codec import messages as m
from moqt.codec import varint
from moqt.codec.control import MessageSplitter
from moqt.codec.data import (
    FetchEncoder,
    FetchReader,
    SubgroupEncoder,
    SubgroupHeader,
    SubgroupReader,
)
from moqt.codec.params import Parameters
from moqt.codec.profile import LATEST
from moqt.model import FullTrackName, GroupOrder, ObjectHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.model import Gap
    from transport.api import BytesLike

OBJECTS: Final = 64
OBJECT: Final = 32 << 10
HEADER: Final = SubgroupHeader(track_alias=7, group=12, subgroup=0, priority=128)
SMALL: Final = 100
SMALL_HEADS: Final = tuple(ObjectHead(12, 0, number, 128, SMALL) for number in range(OBJECTS))
SUBSCRIBE: Final = m.Subscribe(
    4,
    FullTrackName((b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16)), b"k.raw.s0"),
    Parameters(subscriber_priority=100, forward=True),
)
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


def write_objects() -> int:
    """Whole objects of 100 octets, each joined into one piece, as the other codec does."""
    encoder, payload = SubgroupEncoder(HEADER), bytes(SMALL)
    for head in SMALL_HEADS:
        b"".join((encoder.head(head), payload))
    return OBJECTS


def read_objects() -> Callable[[], int]:
    """A stream of them in one chunk."""
    encoder = SubgroupEncoder(HEADER)
    stream = b"".join(encoder.head(head) + bytes(SMALL) for head in SMALL_HEADS)

    def work() -> int:
        SubgroupReader(HEADER, 128, Discard()).feed(stream, True)
        return OBJECTS

    return work


def write_subscribe() -> int:
    """A SUBSCRIBE with two parameters."""
    for _ in range(100):
        m.encode_message(SUBSCRIBE)
    return 100


def read_subscribe() -> Callable[[], int]:
    """The same, from octets."""
    octets = m.encode_message(SUBSCRIBE)

    def work() -> int:
        for _ in range(100):
            for kind, body in MessageSplitter(LATEST).feed(octets):
                m.decode_message(LATEST, kind, body, None)
        return 100

    return work


def compare(python: str, seconds: float) -> None:
    """The cases that both have, five times in turn; medians and ratios."""
    ours: dict[str, Callable[[], int]] = {
        "write whole objects of 100 octets": write_objects,
        "read whole objects of 100 octets": read_objects(),
        "write SUBSCRIBE": write_subscribe,
        "read SUBSCRIBE": read_subscribe(),
    }
    rounds: list[tuple[dict[str, float], dict[str, float]]] = []
    script = str(Path(__file__).with_name("codec_peer.py"))
    for _ in range(5):
        mine = {name: rate(work, seconds) for name, work in ours.items()}
        done = subprocess.run(  # noqa: S603 - a command that the user named
            [python, script, str(seconds)], capture_output=True, text=True, check=True
        )
        rounds.append((mine, json.loads(done.stdout)))
    for name in ours:
        mine, theirs = (statistics.median(one[at][name] for one in rounds) for at in (0, 1))
        print(f"{name:40} {mine:12,.0f}/s {theirs:12,.0f}/s {mine / theirs:6.2f}x")  # noqa: T201


def main() -> None:
    """Print one line per case, then the same as JSON; or compare with another codec."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=0.5)
    parser.add_argument("--peer-python", help="a Python that has aiomoqt: compare with its codec")
    given = parser.parse_args()
    seconds = given.seconds
    if given.peer_python:
        compare(given.peer_python, seconds)
        return
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
