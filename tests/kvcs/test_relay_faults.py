"""What fails around kvcs-relay, with real processes: nothing lost, nothing doubled.

``RELAY_MIB`` says how much is published where the relay has memory for a tenth of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
import pytest_asyncio

from kvcs.cli.children import Child
from kvcs.keys import create_scope_key
from tests.kvcs.cli.caches import write_cache
from tests.kvcs.cli.stage import Stage
from transport.certificates import CertificatePaths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

LAYERS = 8
MIB = int(os.environ.get("RELAY_MIB", "10"))
#: Who dies is noticed sooner than by default.
SOON = ("--peer-timeout", 3)


@pytest_asyncio.fixture
async def stage(tmp_path: Path, certificates: CertificatePaths) -> AsyncIterator[Stage]:
    cache = write_cache(tmp_path / "cache.safetensors", LAYERS)
    create_scope_key(tmp_path / "scope.key")
    async with AsyncExitStack() as stack:
        yield Stage(tmp_path, cache, tmp_path / "scope.key", certificates, stack)


class Relay:
    """A kvcs-relay; its process can be another one at the same port."""

    def __init__(self, stage: Stage, *words: object) -> None:
        self._stage = stage
        config = stage.folder / "relay.toml"
        if not config.exists():
            config.write_text("drain = 0.1\n")
        self._words = ("--open", "--config", config, *words)
        self.child: Child
        self.port = 0

    async def start(self) -> Relay:
        """Listen, at the same port as before."""
        words = (*self._stage.listening, *self._words, "--listen", f"127.0.0.1:{self.port}")
        self.child = await self._stage.start("relay", "kvcs.cli.relay", *words)
        self.port = (await self.child.until("listening"))["port"]
        return self

    @property
    def url(self) -> str:
        return f"moqt://127.0.0.1:{self.port}/"

    def at(self, uri: str) -> str:
        """Where a publication is found here."""
        return f"{self.url}#{uri.partition('#')[2]}"

    async def kill(self) -> None:
        self.child.signal(signal.SIGKILL)
        await self.child.wait()

    async def numbers(self) -> dict[str, int]:
        """What it tells under /status."""
        port = (await self.child.until("metrics"))["port"]

        def ask() -> dict[str, int]:
            with urlopen(f"http://127.0.0.1:{port}/status") as answer:
                return json.load(answer)

        return await asyncio.to_thread(ask)

    def memory(self) -> int:
        """The most octets that its process has ever had resident."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) << 10


async def publisher(stage: Stage, *words: object) -> tuple[Child, str]:
    """One that dials, and the URI of its publication; ``--linger`` keeps it there."""
    child = await stage.start(
        *("publisher", "kvcs.cli.pub", stage.cache, *stage.scope, *stage.trusting),
        *("--linger", 600, *words),
    )
    return child, (await child.until("opened"))["publication"]


async def assert_once(stage: Stage, consumer: Child, *, again: bool = False) -> None:
    """All of it is there, bit for bit, and nothing was delivered twice.

    ``again``: what was on its way when its subscription was ended may have come a second time.
    """
    await consumer.finish()
    stage.assert_whole(consumer.name)
    (report,) = consumer.of("report")
    assert (report["missing"], report["rejected"]) == (0, {})
    assert again or report["duplicates"] == 0
    assert [event["layer"] for event in consumer.of("layer")] == list(range(LAYERS))


async def test_a_relay_killed_in_the_middle_while_there_is_another(stage: Stage) -> None:
    origin = await Relay(stage).start()
    upstream = ("--upstream", origin.url, "--upstream-ca", stage.certificates.ca)
    first, second = await Relay(stage, *upstream).start(), await Relay(stage, *upstream).start()
    made, uri = await publisher(stage, "--relay", origin.url, "--hold", "--pace", 0.15)
    consumer = await stage.consumer("out", first.at(uri), second.at(uri), *SOON)
    await consumer.until("retrieving")
    made.say("go")
    await consumer.until("layer", 2)
    await first.kill()
    await assert_once(stage, consumer)


async def test_the_relay_killed_and_restarted(stage: Stage) -> None:
    relay = await Relay(stage).start()
    made, uri = await publisher(stage, "--relay", relay.url, "--hold", "--pace", 0.15, *SOON)
    consumer = await stage.consumer("out", relay.at(uri), "--timeout", 50, *SOON)
    await consumer.until("retrieving")
    made.say("go")
    await consumer.until("layer", 2)
    consumer.signal(signal.SIGSTOP)  # or on a busy machine it dials before the relay is there
    await relay.kill()
    await relay.start()
    consumer.signal(signal.SIGCONT)
    await assert_once(stage, consumer)


@pytest.mark.parametrize("layer", [1, 4, LAYERS])
async def test_the_publisher_killed_after_a_layer(stage: Stage, layer: int) -> None:
    """What it had published is delivered once and verified, and what is not whole is not whole."""
    relay = await Relay(stage).start()
    pace = 0.2 if layer < LAYERS else 0.02
    made, uri = await publisher(stage, "--relay", relay.url, "--hold", "--pace", pace)
    consumer = await stage.consumer("out", relay.at(uri), "--timeout", 1)
    await consumer.until("retrieving")
    made.say("go")
    await consumer.until("layer", layer)
    if layer == LAYERS:
        await made.until("finished")
        await assert_once(stage, consumer)
    made.signal(signal.SIGKILL)
    await made.wait()
    if layer == LAYERS:  # the relay has it all: whoever comes later gets it from there
        late = await stage.consumer("late", relay.at(uri))
        await assert_once(stage, late)
        return
    assert await consumer.wait() == 1
    assert "missing" in consumer.of("error")[0]["message"]
    (report,) = consumer.of("report") or [{"duplicates": 0, "rejected": {}}]
    assert (report["duplicates"], report["rejected"]) == (0, {})
    told = [event["layer"] for event in consumer.of("layer")]
    assert told == list(range(len(told)))
    assert not stage.out("out").exists()


def much(stage: Stage) -> int:
    """A cache of MIB to publish; a tenth of it."""
    stage.cache = write_cache(stage.folder / "big.safetensors", LAYERS, tokens=256 * 4 * MIB)
    assert stage.cache.stat().st_size > MIB << 20
    return (MIB << 20) // 10


async def test_memory_for_a_tenth_of_what_is_published(stage: Stage) -> None:
    budget = much(stage)
    relay = await Relay(stage, "--cache", budget, "--metrics", "127.0.0.1:0").start()
    made, uri = await publisher(stage, "--relay", relay.url, "--block-tokens", 256)
    await made.until("finished")
    early = await stage.consumer("early", relay.at(uri))
    await assert_once(stage, early)
    late = await stage.consumer("late", relay.at(uri))
    await assert_once(stage, late)
    numbers = await relay.numbers()
    assert numbers["cache_octets"] <= budget
    assert numbers["cache_evictions"] > 0


async def test_nine_tenths_on_disk_when_the_publisher_is_gone(stage: Stage) -> None:
    """Memory holds a tenth of it; the rest is in the spill directory, which is left empty."""
    budget = much(stage)
    spill = stage.folder / "spill"
    spill.mkdir()
    relay = await Relay(
        *(stage, "--cache", budget, "--spill", spill),
        *("--metrics", "127.0.0.1:0", "--loop", "uvloop"),
    ).start()
    made, uri = await publisher(stage, "--relay", relay.url, "--block-tokens", 256)
    await made.until("finished")
    early = await stage.consumer("early", relay.at(uri))
    await assert_once(stage, early)
    made.signal(signal.SIGKILL)
    await made.wait()
    late = await stage.consumer("late", relay.at(uri))
    await assert_once(stage, late)
    numbers = await relay.numbers()
    assert numbers["cache_octets"] <= budget
    assert numbers["spill_octets"] > 8 * budget
    assert numbers["spill_failures"] == 0
    relay.child.signal(signal.SIGTERM)
    await relay.child.finish()
    assert [path for path in spill.iterdir() if path.suffix == ".spill"] == []


async def test_a_consumer_that_stands_still_and_one_that_does_not(stage: Stage) -> None:
    """The relay ends what the first does not take; once it goes on it fetches what it lacks."""
    stage.cache = write_cache(stage.folder / "big.safetensors", LAYERS, tokens=256 * 80)
    assert stage.cache.stat().st_size > 20 << 20
    blocks = ("--block-tokens", 256)
    config = stage.folder / "relay.toml"
    config.write_text('drain = 0.1\n[cache]\nmemory = "1MiB"\n[limits]\nbacklog = "4MiB"\n')
    relay = await Relay(stage, "--metrics", "127.0.0.1:0").start()
    made, uri = await publisher(stage, "--relay", relay.url, "--hold", "--pace", 0.1, *blocks)
    slow = await stage.consumer("slow", relay.at(uri), "--timeout", 30)
    fast = await stage.consumer("fast", relay.at(uri))
    await asyncio.gather(slow.until("retrieving"), fast.until("retrieving"))
    before = relay.memory()
    made.say("go")
    await slow.until("layer")
    slow.signal(signal.SIGSTOP)
    try:
        await assert_once(stage, fast)
        numbers = await relay.numbers()
        assert numbers["backlog_octets"] <= 2 * (4 << 20)
        assert relay.memory() - before < 20 << 20  # 40 MiB were to go out
    finally:
        slow.signal(signal.SIGCONT)
    await assert_once(stage, slow, again=True)
    assert (await relay.numbers())["too_far_behind"] > 0
