"""kvcs.relay_metrics: a relay's numbers, and what it answers over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from kvcs import relay_metrics
from kvcs.errors import InvalidInput
from kvcs.relay_metrics import MAX_CLIENTS, MetricsServer, snapshot
from moqt.relay.config import RelayConfig
from moqt.relay.service import RelayService, ServiceConfig
from moqt.relay.spill import Spill
from tests.architecture.sources import ROOT
from tests.kvcs.endpoints import Cache, World, check

pytestmark = pytest.mark.e2e


@pytest_asyncio.fixture
async def service(world: World, tmp_path) -> RelayService:
    made = RelayService(
        ServiceConfig(host="127.0.0.1", port=0, tls=world.server_tls, relay=RelayConfig()),
        spill=Spill(tmp_path / "spill", 1 << 20),
    )
    await made.start()
    world.defer(made.close)
    return made


@pytest_asyncio.fixture
async def server(service: RelayService) -> Any:
    made = MetricsServer(service, "127.0.0.1", 0, Counter(granted=5, denied=2))
    yield made
    made.close()


def ask(server: MetricsServer, path: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    try:
        with urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def get(server: MetricsServer, path: str) -> tuple[int, str, str]:
    """The same, while the event loop goes on."""
    return await asyncio.to_thread(ask, server, path)


async def used(world: World, service: RelayService) -> Cache:
    """One publication went through it, to two consumers one after the other."""
    cache, url = Cache(), f"moqt://127.0.0.1:{service.port}/"
    publisher, _ = await world.publisher()
    await publisher.dial([url], tls=world.client_tls)
    publication = await cache.publish(publisher)
    for _ in range(2):
        await check(await (await world.consumer(url)).retrieve(publication.name), cache)
    return cache


async def test_numbers_of_a_relay_at_work(world: World, service: RelayService) -> None:
    before = snapshot(service)
    assert {name: value for name, value in before.items() if value} == {
        "cache_budget_octets": service.config.relay.cache
    }
    cache = await used(world, service)
    found = snapshot(service)
    assert (found["sessions"], found["sessions_open"], found["upstreams_open"]) == (3, 3, 0)
    assert (found["namespaces"], found["tracks"]) == (1, 3)  # K, V and the manifest
    payload = 2 * cache.layers * cache.blocks * cache.block_octets
    assert payload < found["octets_in"] < 2 * payload
    assert 2 * found["octets_in"] <= found["octets_out"] + 4096
    assert found["objects_in"] == found["cache_objects"]
    assert found["octets_in"] < found["cache_octets"] < found["cache_budget_octets"]
    assert found["objects_from_cache"] > 0
    assert found["duplicates"] == found["objects_refused"] == found["backlog_octets"] == 0
    assert found["identities"] == 1


def test_what_the_gatekeeper_counted(service: RelayService) -> None:
    counts = Counter(verified=1, rejected=2, throttled=3, granted=4, denied=5, known=6)
    found = snapshot(service, counts)
    assert [found[name] for name in relay_metrics._JUDGED] == [1, 2, 3, 4, 5]


async def test_prometheus_reads_them(
    world: World, service: RelayService, server: MetricsServer
) -> None:
    await used(world, service)
    status, kind, text = await get(server, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(found) == len(relay_metrics._GAUGES) + len(relay_metrics._COUNTERS)
    numbers = snapshot(service, Counter(granted=5, denied=2))
    for known, kind in ((relay_metrics._GAUGES, "gauge"), (relay_metrics._COUNTERS, "counter")):
        for name, told in known.items():
            family = found[f"kvcs_relay_{name}"]
            (sample,) = family.samples
            assert (family.type, family.documentation) == (kind, told)
            assert sample.name == family.name + ("_total" if kind == "counter" else "")
            assert (sample.labels, sample.value) == ({}, numbers[name])


async def test_status_is_the_snapshot(service: RelayService, server: MetricsServer) -> None:
    status, kind, text = await get(server, "/status")
    assert (status, kind) == (200, "application/json")
    assert json.loads(text) == snapshot(service, Counter(granted=5, denied=2))


async def test_health_and_readiness(service: RelayService, server: MetricsServer) -> None:
    assert await get(server, "/health") == (200, "text/plain", "ok\n")
    assert await get(server, "/ready") == (200, "text/plain", "ok\n")
    service.relay.leaving = True
    assert await get(server, "/health") == (200, "text/plain", "ok\n")
    assert await get(server, "/ready") == (503, "text/plain", "leaving\n")


async def test_other_paths(server: MetricsServer) -> None:
    for path in ("/", "/metrics/", "/../etc/passwd"):
        status, _, text = await get(server, path)
        assert (status, text) == (404, "try /metrics, /health, /ready or /status\n")


@pytest.mark.parametrize("path", ["/metrics", "/health", "/ready", "/status"])
async def test_a_loop_that_hangs(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(relay_metrics, "LOOP_TIMEOUT", 0.05)
    # Asked from the loop's own thread, which so hangs until there is an answer.
    assert ask(server, path) == (503, "text/plain", "not answering\n")
    monkeypatch.undo()
    assert (await get(server, path))[0] == 200


def test_a_loop_that_is_closed(world_certificates: Any) -> None:
    loop = asyncio.new_event_loop()

    async def make() -> MetricsServer:
        config = ServiceConfig(host="127.0.0.1", port=0, tls=world_certificates)
        return MetricsServer(RelayService(config), "127.0.0.1", 0)

    server = loop.run_until_complete(make())
    loop.close()
    assert ask(server, "/health") == (503, "text/plain", "not answering\n")
    server.close()


@pytest.fixture
def world_certificates(certificates: Any) -> Any:
    return World(certificates).server_tls


async def test_a_port_that_is_taken(service: RelayService, server: MetricsServer) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer(service, "127.0.0.1", server.port)


async def test_without_the_library(service: RelayService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidInput, match=r"pip install 'kvcs\[metrics\]', or leave --metrics"):
        MetricsServer(service, "127.0.0.1", 0)


async def test_closed_it_answers_no_more(service: RelayService) -> None:
    server = MetricsServer(service, "127.0.0.1", 0)
    server.close()
    with pytest.raises(OSError, match="refused"):
        await get(server, "/health")
    assert not server._thread.is_alive()


async def test_clients_that_are_slow_hold_up_nobody(
    world: World, server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One octet now and then, from as many as may ask at once: others wait for none of them."""
    monkeypatch.setattr(relay_metrics, "CLIENT_TIMEOUT", 60.0)
    with ExitStack() as stack:
        slow = [_slow(stack, server) for _ in range(MAX_CLIENTS - 1)]
        assert (await get(server, "/health"))[0] == 200, "there is one place left"
        await world.until(lambda: _taken(server) == MAX_CLIENTS - 1)
        slow.append(_slow(stack, server))
        await world.until(lambda: _taken(server) == MAX_CLIENTS)
        with pytest.raises(OSError, match=r"reset|closed|without response"):
            await get(server, "/health")
    await world.until(lambda: _taken(server) == 0)
    monkeypatch.setattr(relay_metrics, "CLIENT_TIMEOUT", 1.5)
    with ExitStack() as stack:
        slow = [_slow(stack, server) for _ in range(MAX_CLIENTS)]
        await world.until(lambda: _taken(server) == MAX_CLIENTS)
        while _taken(server):
            await asyncio.sleep(0.05)
            for one in slow:
                with suppress(OSError):
                    one.send(b"E")
        assert (await get(server, "/health"))[0] == 200, "slow ones are hung up on"


def _slow(stack: ExitStack, server: MetricsServer) -> socket.socket:
    made = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    made.send(b"G")
    return made


def _taken(server: MetricsServer) -> int:
    """Places of clients."""
    return MAX_CLIENTS - server._server._places._value  # type: ignore[attr-defined]


async def test_the_end_waits_for_no_client(service: RelayService) -> None:
    server = MetricsServer(service, "127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.send(b"GET /he")
        await asyncio.sleep(0.05)
        await asyncio.wait_for(asyncio.to_thread(server.close), 3)
        assert not server._thread.is_alive()


def test_the_page_has_each_of_them() -> None:
    page = (ROOT / "docs" / "relay.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `kvcs_relay_(\w+)` \| (?:gauge|counter) \| (.*?) \|$", page, re.M))
    counters = {f"{name}_total": text for name, text in relay_metrics._COUNTERS.items()}
    assert rows == relay_metrics._GAUGES | counters
