"""Run by caprid's own interpreter: SUBSCRIBE, then FETCH; one line of JSON at the end.

Arguments: https URL of the server (raw QUIC all the same), namespace with slashes, track name.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from caprid_relay.quic import connect_quic
from moq_core import (
    AbsoluteLocationFilter,
    FetchHandlers,
    Location,
    MessageParameters,
    MoqtFetchOptions,
    MoqtSessionCallbacks,
    MoqtSessionConfig,
    MoqtSubscribeOptions,
    RelativeGroupFilter,
    SubscriptionHandlers,
    create_moqt_session,
)

TIMEOUT = 10.0
#: Live objects to wait for.
ENOUGH = 12


async def meet(url: str, namespace: list[str], track: str) -> dict[str, object]:
    """What caprid's client received."""
    loop = asyncio.get_running_loop()
    quic = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE)
    connecting = connect_quic(url, ["moqt-22"], configuration=quic)
    await connecting.ready
    ready, live_over, fetch_over = (loop.create_future() for _ in range(3))
    callbacks = MoqtSessionCallbacks(on_ready=ready.set_result)
    session = create_moqt_session(connecting.transport, MoqtSessionConfig(callbacks=callbacks))
    await ready

    live: list[tuple[int, int, str]] = []
    fetched: list[tuple[int, int, str]] = []
    ends: list[Any] = []

    def on_object(one: Any) -> None:  # noqa: ANN401 - caprid's
        live.append((one.group_id, one.object_id, bytes(one.payload).decode()))
        if len(live) == ENOUGH:
            live_over.set_result(None)

    session.subscribe(
        MoqtSubscribeOptions(
            track_namespace=namespace,
            track_name=track,
            parameters=MessageParameters(location_filter=RelativeGroupFilter(1)),
        ),
        SubscriptionHandlers(on_object=on_object, on_error=lambda e: fail(live_over, e)),
    )
    await live_over

    def on_entry(one: Any) -> None:  # noqa: ANN401 - caprid's
        if one.kind == "object":
            fetched.append((one.group_id, one.object_id, bytes(one.payload).decode()))

    session.fetch(
        MoqtFetchOptions(
            track_namespace=namespace,
            track_name=track,
            parameters=MessageParameters(
                location_filter=AbsoluteLocationFilter(Location(0, 0), end_group_delta=1)
            ),
        ),
        FetchHandlers(
            on_ok=ends.append,
            on_entry=on_entry,
            on_end=lambda: fetch_over.set_result(None),
            on_error=lambda e: fail(fetch_over, e),
        ),
    )
    await fetch_over
    end = ends[0].end_location
    session.close()
    return {
        "alpn": connecting.transport.protocol_id,
        "live": live,
        "fetched": fetched,
        "end": [end.group, end.object],
    }


def fail(future: asyncio.Future[None], error: object) -> None:
    """REQUEST_ERROR ends the meeting."""
    if not future.done():
        future.set_exception(RuntimeError(str(error)))


async def main() -> None:
    """Meet, within TIMEOUT."""
    url, namespace, track = sys.argv[1:]
    async with asyncio.timeout(TIMEOUT):
        report = await meet(url, namespace.split("/"), track)
    sys.stdout.write("\n" + json.dumps(report) + "\n")


asyncio.run(main())
