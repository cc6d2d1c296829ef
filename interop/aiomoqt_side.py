"""aiomoqt's client, one request at a time; runs in aiomoqt's environment, reports in JSON.

Arguments: case, port of the server on loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

from aiomoqt.client import MOQTClient
from aiomoqt.messages.params import D20ParamType, LocationFilter, RangeFilter
from aiomoqt.types import GroupOrder, ObjectStatus, ParamType

TIMEOUT = 12.0
SIZE = 5_021
#: A group that is published to whoever is subscribed.
LIVE = 4
TRACK = {"namespace": "fixed", "track_name": "track"}


class Heard:
    """Objects, in order of arrival."""

    def __init__(self, enough: int = 0) -> None:
        self.objects: list[list[Any]] = []
        self.event = asyncio.Event()
        self.enough = enough

    def __call__(self, msg: Any, size: int, when: float, group: int, *_: Any) -> None:  # noqa: ANN401
        if msg.payload:
            digest = hashlib.sha256(bytes(msg.payload)).hexdigest()
            group = getattr(msg, "group_id", group)  # objects of a FETCH name their own
            self.objects.append([group, msg.object_id, digest])
            if len(self.objects) == self.enough:
                self.event.set()


async def setup(session: Any) -> dict[str, Any]:  # noqa: ANN401 - aiomoqt's, here and below
    return {"alpn": f"moqt-{session.negotiated_draft}"}


async def subscribe_namespace(session: Any) -> dict[str, Any]:  # noqa: ANN401
    await session.subscribe_namespace("fixed", wait_response=True)
    found = await session.await_namespace()
    suffix = [bytes(field).decode() for field in found.namespace_suffix]
    return {"namespaces": [["fixed", *suffix]]}


async def publish_namespace(session: Any) -> dict[str, Any]:  # noqa: ANN401
    await session.publish_namespace("theirs", wait_response=True)
    session.publish_namespace_done("theirs")
    await asyncio.sleep(0.3)  # nothing answers a withdrawal
    return {}


async def subscribe_with_fill(session: Any) -> dict[str, Any]:  # noqa: ANN401
    fill, live = Heard(), Heard(LIVE)
    session.on_fetch_object = fill
    inside = {ParamType.LOCATION_FILTER: LocationFilter.relative(3)}
    ok = await session.subscribe(
        **TRACK,
        location_filter=LocationFilter.next_object(),
        parameters={D20ParamType.FILL_PARAMETERS: inside},
        on_object=live,
        wait_response=True,
    )
    await session.await_fetch_done(ok.request_id, timeout=5)
    await live.event.wait()
    return {"fill": fill.objects, "live": live.objects}


async def fetched(session: Any, **asked: Any) -> dict[str, Any]:  # noqa: ANN401
    heard = Heard()
    ok = await session.fetch(**TRACK, on_object=heard, wait_response=True, **asked)
    await session.await_fetch_done(ok.request_id, timeout=5)
    return {"objects": heard.objects}


async def fetch_ascending(session: Any) -> dict[str, Any]:  # noqa: ANN401
    return await fetched(session, start_group=1, end_group=4)


async def fetch_descending(session: Any) -> dict[str, Any]:  # noqa: ANN401
    return await fetched(session, start_group=1, end_group=4, group_order=GroupOrder.DESCENDING)


async def fetch_part(session: Any) -> dict[str, Any]:  # noqa: ANN401
    wanted = LocationFilter.absolute(1, 2, 3, 2)
    return await fetched(session, location_filter=wanted)


async def range_filter(session: Any) -> dict[str, Any]:  # noqa: ANN401
    wanted = {D20ParamType.OBJECTID_FILTER: RangeFilter(ranges=((0, 0), (2, None)))}
    return await fetched(session, start_group=1, end_group=2, parameters=wanted)


async def cancel(session: Any) -> dict[str, Any]:  # noqa: ANN401
    heard = Heard()
    ok = await session.subscribe(**TRACK, on_object=heard, wait_response=True)
    session.unsubscribe(ok.request_id)
    asked = session.fetch(**TRACK, start_group=0, end_group=5, on_object=heard)
    session.unsubscribe(asked.request_id)
    await asyncio.sleep(0.3)  # nothing answers a cancellation
    return {"after": (await track_status(session))["largest"]}


async def track_status(session: Any) -> dict[str, Any]:  # noqa: ANN401
    ok = await session.track_status(**TRACK, wait_response=True)
    largest = ok.parameters[ParamType.LARGEST_OBJECT]
    return {"largest": list(largest)}


async def publish(session: Any) -> dict[str, Any]:  # noqa: ANN401
    offer = session.publish("theirs", "track", forward=1)
    await asyncio.sleep(0.3)  # its own waiting for PUBLISH_OK hides the alias
    for group in range(2):
        header = session.subgroup_header(
            track_alias=offer.track_alias,
            group_id=group,
            subgroup_id=0,
            publisher_priority=7,
            extensions_present=False,
        )
        stream = await session.open_uni_stream()
        octets = bytes(header.serialize().data)
        for obj in range(4):
            payload = hashlib.shake_128(b"%d.%d" % (group, obj)).digest(SIZE)
            octets += bytes(header.next_object_bytes(payload, None, ObjectStatus.NORMAL, obj))
        session.stream_write(stream, octets, end_stream=True)
    session.subscribe_done(offer.request_id, stream_count=2)
    await asyncio.sleep(1.0)  # nothing answers PUBLISH_DONE
    return {}


async def subscribe_tracks(session: Any) -> dict[str, Any]:  # noqa: ANN401
    heard = Heard(LIVE)
    await session.subscribe_tracks("fixed", wait_response=True)
    offer = await session.await_publish()
    session.register_object_handler(offer.track_alias, heard)
    session.publish_ok(offer)
    await heard.event.wait()
    return {"objects": heard.objects}


async def main() -> None:
    """One case, within TIMEOUT."""
    case, port = sys.argv[1:]
    client = MOQTClient(
        "localhost", int(port), path="/", use_quic=True, verify_tls=False, supported_drafts=22
    )
    async with asyncio.timeout(TIMEOUT), client.connect() as session:
        await session.client_session_init()
        report = await globals()[case.replace("-", "_")](session)
        session.close()
    sys.stdout.write("\n" + json.dumps(report) + "\n")


asyncio.run(main())
