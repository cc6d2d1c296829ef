"""The draft's picture of a delivery through two relays, played and told from its trace.

``python -m tests.kvcs.two_relays`` plays it on loopback and prints the transcript.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moqt.monitor import Monitor
from moqt.relay.config import RelayConfig
from moqt.trace import Trace
from tests.kvcs.endpoints import Cache, World, check, relay
from transport.certificates import write_test_certificates

LAYERS, CACHED = 7, 5
#: k.raw.s0, as the trace writes names (draft-22 §2.4.1).
TRACK = "--k.2eraw.2es0"
#: Client and server of each session, in the order in which they begin.
ENDS = (("Producer", "Relay A"), ("Relay B", "Relay A"), ("Consumer", "Relay B"))


async def play(world: World) -> list[dict[str, Any]]:
    """Groups 0..4 are at relay B, 5 and 6 still to come when the consumer joins; the trace."""
    file = io.StringIO()
    trace = Trace(file)
    cache = Cache(layers=LAYERS)
    soon = RelayConfig(linger=0.01)  # what nobody follows is left at once
    relay_a, near = await relay(world, relay=soon)
    producer, _ = await world.publisher(monitor=Monitor(trace))
    await producer.dial([near], tls=world.client_tls)
    relay_b, url = await relay(world, near, monitor=Monitor(trace), relay=soon)
    await world.until(lambda: relay_b.relay.upstreams)
    publication = producer.open(cache.descriptor, tokens=cache.tokens)
    await cache.put(publication, 0, CACHED - 1)
    earlier = await world.consumer(url)
    part = await earlier.retrieve(publication.name, layers=(0, CACHED - 1), mode="fetch")
    await check(part, cache)
    await earlier.close()
    tracks = [*relay_a.relay.tracks.values(), *relay_b.relay.tracks.values()]
    await world.until(lambda: not any(track.standing for track in tracks))
    consumer = await world.consumer(url, monitor=Monitor(trace))
    retrieval = await consumer.retrieve(publication.name)
    await retrieval.layer(CACHED - 1)
    for layer in range(CACHED, LAYERS):
        await cache.put(publication, layer, layer)
        await retrieval.layer(layer)
    await publication.finish()
    await check(retrieval, cache)
    trace.flush()
    return [json.loads(line) for line in file.getvalue().splitlines()]


@dataclass
class Step:
    """One arrow of the picture: a message, or a stream with its objects."""

    source: str
    target: str
    what: str
    objects: list[tuple[int, int]] = field(default_factory=list)
    ends_track: bool = False

    def __str__(self) -> str:
        groups = sorted({group for group, _ in self.objects})
        told = self.what
        if self.ends_track:
            told = "End of Track"
        elif groups:
            span = f"group {groups[0]}" if len(groups) == 1 else f"groups {groups[0]}..{groups[-1]}"
            told += f": {span}, {len(self.objects)} objects"
        return f"{self.source:>8} -> {self.target:<8}  {told}"


class _Reader:
    """Follows the sessions of ENDS."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        clients = [line["session"] for line in lines if line.get("role") == "client"]
        self.ends = dict(zip(clients, ENDS, strict=True))
        self.steps: list[Step] = []
        self._requests: set[tuple[int, int]] = set()
        self._kinds: dict[tuple[int, str, int], str] = {}  # of data streams, by alias or request id
        self._streams: dict[tuple[int, int], Step] = {}

    def message(self, line: dict[str, Any], step: Step) -> None:
        """One of the track's requests, or the announcement."""
        session, name, fields = line["session"], line["message"], line["fields"]
        place = session, line["stream"]
        if name == "PUBLISH_NAMESPACE":
            self.steps.append(replace(step, what=f"{name} (5 fields)"))
        if fields.get("name", "").endswith(TRACK):
            self._requests.add(place)
            self._kinds[session, "fetch", fields["request_id"]] = "fill stream"
        if place in self._requests:
            if "track_alias" in fields:
                self._kinds[session, "subgroup", fields["track_alias"]] = "subgroup stream"
            self.steps.append(replace(step, what=name + _asked(fields.get("parameters", {}))))

    def stream(self, line: dict[str, Any], step: Step) -> None:
        """A data stream begins."""
        key = line.get("request_id", line.get("track_alias", -1))
        if kind := self._kinds.get((line["session"], line["kind"], key)):
            self._streams[line["session"], line["stream"]] = step
            step.what = kind
            self.steps.append(step)

    def object(self, line: dict[str, Any], _: Step) -> None:
        """On one of them."""
        if step := self._streams.get((line["session"], line["stream"])):
            step.objects.append((line["group"], line["object"]))
            step.ends_track |= line.get("status") == "END_OF_TRACK"


def read(lines: list[dict[str, Any]]) -> list[Step]:
    """What concerns the track since the consumer came; and, before, who announced it."""
    reader = _Reader(lines)
    since = next(at for at, line in enumerate(lines) if line["session"] == max(reader.ends))
    for at, line in enumerate(lines):
        ends = reader.ends.get(line["session"])
        known = at >= since or line.get("message") == "PUBLISH_NAMESPACE"
        if ends and known and line["event"] in ("message", "stream", "object"):
            source, target = ends if line["way"] == "out" else ends[::-1]
            getattr(reader, line["event"])(line, Step(source, target, ""))
    return reader.steps


def _asked(parameters: dict[str, Any]) -> str:
    """What a SUBSCRIBE asks for, what its answer says."""
    told = ""
    if "location_filter" in parameters:
        told += " " + parameters["location_filter"]["type"]
    if "fill" in parameters:
        start = parameters["fill"]["location_filter"].get("start", [0, 0])
        told += " + fill from {}/{}".format(*start)
    if "largest_object" in parameters:
        told += " largest {}/{}".format(*parameters["largest_object"])
    return told


async def main() -> None:
    """Play and print."""
    with tempfile.TemporaryDirectory() as folder:
        async with World(write_test_certificates(Path(folder))) as world:
            steps = read(await play(world))
    print("\n".join(map(str, steps)))  # noqa: T201 - what it is for


if __name__ == "__main__":
    asyncio.run(main())
