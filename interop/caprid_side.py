"""caprid's client and publisher, one request at a time; runs in caprid's environment.

Arguments: case, port of the server on loopback. Reports in JSON; "absent" says what caprid lacks.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import ssl
import sys
from functools import partial
from typing import Any

import moq_core as core
from aioquic.quic.configuration import QuicConfiguration
from caprid_relay.quic import connect_quic
from moq_core import control_messages, publish_session, session

TIMEOUT = 12.0
SIZE = 5_021
#: A group that is published to whoever is subscribed.
LIVE = 4
TRACK = {"track_namespace": ["fixed"], "track_name": "track"}


class Session:
    """caprid's session, and futures for its callbacks."""

    def __init__(self, transport: Any, session: Any) -> None:  # noqa: ANN401 - caprid's
        self.transport = transport
        self.session = session

    def future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


def settle(future: asyncio.Future[Any], value: Any = None) -> None:  # noqa: ANN401
    if not future.done():
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: object) -> None:
    """REQUEST_ERROR."""
    if not future.done():
        future.set_exception(RuntimeError(str(error)))


def told(one: Any) -> list[Any]:  # noqa: ANN401
    return [one.group_id, one.object_id, hashlib.sha256(bytes(one.payload)).hexdigest()]


async def setup(one: Session) -> dict[str, Any]:
    return {"alpn": one.transport.protocol_id}


async def subscribe_namespace(one: Session) -> dict[str, Any]:
    found = one.future()
    one.session.subscribe_namespace(
        core.MoqtSubscribeNamespaceOptions(track_namespace_prefix=["fixed"]),
        core.NamespaceSubscriptionHandlers(
            on_namespace=partial(settle, found), on_error=partial(fail, found)
        ),
    )
    return {"namespaces": [["fixed", *(await found)]]}


def unsent(encoder: str) -> dict[str, Any]:
    """Evidence that none of its sessions sends what ``encoder`` makes; else an error."""
    if not hasattr(control_messages, encoder):
        return {"absent": f"moq_core.control_messages has no {encoder}"}
    for module in (session, publish_session):
        if f"{encoder}(" in inspect.getsource(module):
            raise NotImplementedError(f"{module.__name__} has {encoder}: play the case")
    return {"absent": f"moq_core has {encoder}, but neither of its sessions uses it"}


async def publish_namespace(one: Session) -> dict[str, Any]:
    return unsent("encode_publish_namespace")


async def subscribe_with_fill(one: Session) -> dict[str, Any]:
    live: list[list[Any]] = []
    over = one.future()

    def on_object(got: Any) -> None:  # noqa: ANN401
        live.append(told(got))
        if len(live) == LIVE:
            settle(over)

    wanted = core.MessageParameters(
        location_filter=core.NextObjectFilter(),
        fill_parameters=core.MessageParameters(location_filter=core.RelativeGroupFilter(3)),
    )
    one.session.subscribe(
        core.MoqtSubscribeOptions(**TRACK, parameters=wanted),
        core.SubscriptionHandlers(on_object=on_object, on_error=partial(fail, over)),
    )
    await over
    fill = [got for got in live if got[0] < 6]
    return {"fill": fill, "live": [got for got in live if got[0] >= 6]}


async def fetched(one: Session, **asked: Any) -> dict[str, Any]:  # noqa: ANN401
    objects: list[list[Any]] = []
    over = one.future()
    one.session.fetch(
        core.MoqtFetchOptions(**TRACK, parameters=core.MessageParameters(**asked)),
        core.FetchHandlers(
            on_entry=lambda got: objects.append(told(got)) if got.kind == "object" else None,
            on_end=partial(settle, over),
            on_error=partial(fail, over),
        ),
    )
    await over
    return {"objects": objects}


GROUPS_1_TO_4 = core.AbsoluteLocationFilter(core.Location(1, 0), end_group_delta=3)


async def fetch_ascending(one: Session) -> dict[str, Any]:
    return await fetched(one, location_filter=GROUPS_1_TO_4)


async def fetch_descending(one: Session) -> dict[str, Any]:
    return await fetched(one, location_filter=GROUPS_1_TO_4, group_order="descending")


async def fetch_part(one: Session) -> dict[str, Any]:
    wanted = core.AbsoluteLocationFilter(core.Location(1, 2), end_group_delta=2, end_object=2)
    return await fetched(one, location_filter=wanted)


async def range_filter(one: Session) -> dict[str, Any]:
    """Its API takes the value as octets: SetID 0, 0 to 0, from 2 on."""
    wanted = control_messages.RangeFilter(
        control_messages.PARAMETER_TYPE.OBJECTID_FILTER, bytes((0, 0, 0, 2))
    )
    groups = core.AbsoluteLocationFilter(core.Location(1, 0), end_group_delta=1)
    return await fetched(one, location_filter=groups, range_filters=[wanted])


async def cancel(one: Session) -> dict[str, Any]:
    ok = one.future()
    request = one.session.subscribe(
        core.MoqtSubscribeOptions(**TRACK),
        core.SubscriptionHandlers(on_ok=partial(settle, ok), on_error=partial(fail, ok)),
    )
    await ok
    request.cancel()
    wanted = core.AbsoluteLocationFilter(core.Location(0, 0), end_group_delta=5)
    one.session.fetch(
        core.MoqtFetchOptions(**TRACK, parameters=core.MessageParameters(location_filter=wanted)),
        core.FetchHandlers(),
    ).cancel()
    await asyncio.sleep(0.3)  # nothing answers a cancellation
    return {"after": (await track_status(one))["largest"]}


async def track_status(one: Session) -> dict[str, Any]:
    ok = one.future()
    one.session.track_status(
        core.MoqtSubscribeOptions(**TRACK),
        core.TrackStatusHandlers(on_ok=partial(settle, ok), on_error=partial(fail, ok)),
    )
    largest = (await ok).parameters.largest_object
    return {"largest": [largest.group, largest.object]}


async def publish(one: Session) -> dict[str, Any]:
    return unsent("encode_publish")


async def subscribe_tracks(one: Session) -> dict[str, Any]:
    return unsent("encode_subscribe_tracks")


async def serve(transport: Any) -> None:  # noqa: ANN401
    """Its publisher: two groups of theirs/track to whoever subscribes; ends with the session."""
    bound, gone = (asyncio.get_running_loop().create_future() for _ in range(2))

    def on_track_binding(binding: Any) -> None:  # noqa: ANN401
        if binding.track_alias is not None:
            settle(bound, binding.track_alias)

    serving = core.create_moqt_publish_session(
        transport,
        core.MoqtPublishSessionConfig(
            callbacks=core.MoqtPublishSessionCallbacks(
                on_track_binding=on_track_binding, on_closed=partial(settle, gone)
            )
        ),
    )
    track = serving.register_track(
        core.RegisterTrackOptions(track_namespace=["theirs"], track_name="track")
    )
    serving.announce(["theirs"])
    alias = await bound
    for group in range(2):
        stream = await transport.create_unidirectional_stream()
        writer = core.create_subgroup_writer(stream, track_alias=alias, group_id=group)
        for obj in range(4):
            payload = hashlib.shake_128(b"%d.%d" % (group, obj)).digest(SIZE)
            await writer.write_object(object_id=obj, payload=payload)
        await writer.fin()
    await asyncio.sleep(0.5)
    track.end()
    await gone


async def main() -> None:
    """One case, within TIMEOUT."""
    case, port = sys.argv[1:]
    loop = asyncio.get_running_loop()
    quic = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE)
    connecting = connect_quic(f"https://localhost:{port}/", ["moqt-22"], configuration=quic)
    report: dict[str, Any] = {}
    async with asyncio.timeout(TIMEOUT):
        await connecting.ready
        if case == "serve":
            await serve(connecting.transport)
        else:
            ready = loop.create_future()
            asking = core.create_moqt_session(
                connecting.transport,
                core.MoqtSessionConfig(
                    callbacks=core.MoqtSessionCallbacks(on_ready=partial(settle, ready))
                ),
            )
            await ready
            made = Session(connecting.transport, asking)
            report = await globals()[case.replace("-", "_")](made)
            asking.close()
            await asyncio.sleep(0.1)
    sys.stdout.write("\n" + json.dumps(report) + "\n")


asyncio.run(main())
