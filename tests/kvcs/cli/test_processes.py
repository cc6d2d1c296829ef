"""kvcs-pub and kvcs-sub as processes over real QUIC: live, waiting, interrupted, refused."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aioquic.asyncio import serve
from aioquic.quic.configuration import QuicConfiguration

from kvcs.cli.children import Child
from kvcs.identity import KVSP_PROFILE_0
from kvcs.tensorfile import KvCacheFile
from tests.kvcs.cli.caches import BLOCK_TOKENS, write_cache
from tests.kvcs.cli.stage import Stage
from transport.certificates import CertificatePaths, write_test_certificates

pytestmark = pytest.mark.e2e

IDS = (*("--scope-id", "00" * 16, "--anchor-key", "22" * 32, "--publication-id", "33" * 16),)


async def failure(child: Child) -> str:
    """Its one error, after it has ended with exit code 1."""
    assert await child.wait() == 1
    (error,) = child.of("error")
    assert error["exit_code"] == 1
    return error["message"]


# --------------------------------------------------------------------------------------------- live


async def test_live_before_and_in_the_middle(stage: Stage) -> None:
    publisher, url, uri = await stage.publisher("--hold", "--pace", "0.1")
    early = await stage.consumer("early", url, *stage.scope, "--like", stage.cache, "--live")
    late = await stage.consumer("late", uri, "--hold")
    await early.until("retrieving")
    await late.until("held")
    assert not publisher.of("published")
    publisher.say("go")
    await publisher.until("published", 2)
    late.say("go")
    await early.finish()
    await late.finish()
    stage.assert_whole("early")
    stage.assert_whole("late")
    produced = publisher.of("published")
    first = early.of("layer")[0]
    assert produced[0]["at"] <= first["received_at"] <= first["verified_at"]
    assert first["verified_at"] < produced[-1]["at"]


async def test_the_consumer_listens_and_waits(stage: Stage) -> None:
    words = (*stage.listening, *stage.scope, "--like", stage.cache, "--wait", 15)
    consumer = await stage.start("out", "kvcs.cli.sub", *words, "-o", stage.out("out"))
    port = (await consumer.until("listening"))["port"]
    relay = ("--relay", f"moqt://127.0.0.1:{port}/kv", *stage.trusting)
    publisher = await stage.start(
        "publisher", "kvcs.cli.pub", stage.cache, *stage.scope, *relay, "--linger", 15
    )
    await consumer.finish()
    stage.assert_whole("out")
    assert publisher.of("connected")[0]["url"] == f"moqt://127.0.0.1:{port}/kv"


async def test_the_next_relay_when_the_first_goes_away(stage: Stage) -> None:
    words = (*stage.listening, *stage.scope, "--like", stage.cache, "--wait", 15)
    first = await stage.start("first", "kvcs.cli.sub", *words, "-o", stage.out("first"))
    second = await stage.start("second", "kvcs.cli.sub", *words, "-o", stage.out("second"))
    urls = [
        f"moqt://127.0.0.1:{(await relay.until('listening'))['port']}" for relay in (first, second)
    ]
    relays = ("--relay", urls[0], "--relay", urls[1], *stage.trusting)
    publisher = await stage.start("publisher", "kvcs.cli.pub", stage.cache, *stage.scope, *relays)
    await first.finish()
    await second.finish()
    stage.assert_whole("second")
    assert publisher.of("connected")[0]["url"] == urls[0]


async def test_ready_made_names_and_waiting_for_one(stage: Stage) -> None:
    """Neither side knows prompt or scope key, and the consumer was there first."""
    with KvCacheFile(stage.cache) as cache:
        compat = cache.descriptor(BLOCK_TOKENS).to_json()
    words = (*IDS, "--compat-id", KVSP_PROFILE_0.compatibility_id(compat).hex())
    consumer = await stage.start(
        "out", "kvcs.cli.sub", *stage.listening, *words, "--wait", 15, "-o", stage.out("out")
    )
    port = (await consumer.until("listening"))["port"]
    await stage.start(
        "publisher",
        *("kvcs.cli.pub", stage.cache, "--block-tokens", BLOCK_TOKENS, *words),
        *("--relay", f"moqt://127.0.0.1:{port}", *stage.trusting),
    )
    await consumer.finish()
    stage.assert_whole("out")


@pytest.mark.parametrize("loop", ["uvloop", "auto"])
async def test_on_another_loop(stage: Stage, loop: str) -> None:
    _, _, uri = await stage.publisher("--loop", loop)
    consumer = await stage.consumer("out", uri, "--loop", loop)
    await consumer.finish()
    stage.assert_whole("out")


async def test_tokens_beyond_the_last_block_are_left_out(stage: Stage, tmp_path: Path) -> None:
    stage.cache = write_cache(tmp_path / "odd.safetensors", tokens=3 * BLOCK_TOKENS + 5)
    publisher, url, _ = await stage.publisher()
    (opened,) = publisher.of("opened")
    assert (opened["blocks"], opened["tokens_left_out"]) == (3, 5)
    consumer = await stage.consumer("out", url, *stage.scope, "--like", stage.cache)
    await consumer.finish()
    with KvCacheFile(stage.out("out")) as found, KvCacheFile(stage.cache) as source:
        assert found.tokens == 24
        assert found.token_ids == (source.token_ids or ())[:24]


# ------------------------------------------------------------------------------------------ endings


async def test_one_consumer_dies_and_the_others_do_not_notice(stage: Stage) -> None:
    publisher, _, uri = await stage.publisher("--hold", "--pace", "0.1")
    names = ("dies", "first", "second")
    consumers = [await stage.consumer(name, uri) for name in names]
    await asyncio.gather(*(consumer.until("retrieving") for consumer in consumers))
    publisher.say("go")
    await consumers[0].until("layer")
    consumers[0].signal(signal.SIGKILL)
    assert await consumers[0].wait() == -signal.SIGKILL
    for consumer in consumers[1:]:
        await consumer.finish()
        stage.assert_whole(consumer.name)
    assert not stage.out("dies").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_publisher_is_killed_in_the_middle(stage: Stage, number: int) -> None:
    publisher, _, uri = await stage.publisher("--hold", "--pace", "0.3")
    consumer = await stage.consumer("out", uri, "--timeout", "0.5")
    await consumer.until("retrieving")
    publisher.say("go")
    await consumer.until("layer")
    publisher.signal(number)
    message = await failure(consumer)
    assert "missing" in message
    stopped = "the producer stopped before the last layer (2 times)" in message
    assert stopped == (number == signal.SIGTERM)
    assert "INTERNAL_ERROR" not in message
    assert stage.leftovers("out") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupted(stage: Stage, number: int, code: int) -> None:
    publisher, _, uri = await stage.publisher("--hold", "--pace", "0.3")
    consumer = await stage.consumer("out", uri)
    await consumer.until("retrieving")
    publisher.say("go")
    await consumer.until("layer")
    assert len(stage.leftovers("out")) == 1
    consumer.signal(number)
    assert await consumer.wait() == code
    assert stage.leftovers("out") == []
    publisher.signal(number)
    assert await publisher.wait() == code
    assert not publisher.of("finished")
    assert not publisher.of("error")
    left = {consumer: "nothing was written", publisher: "the publication was not finished"}
    for child, text in left.items():
        assert child.events[-1] == {
            "event": "interrupted",
            "signal": signal.Signals(number).name,
            "message": f"interrupted; {text}",
            "exit_code": code,
        }


async def test_nobody_reads_the_output(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvcs.cli.sub", uri, "--ca", str(stage.certificates.ca), "--json"),
        *("-o", str(stage.out("out")), "--hold"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()
    _, errors = await process.communicate(b"\n")
    assert process.returncode == 1
    assert errors == b""
    assert stage.leftovers("out") == []


async def test_held_and_left_alone(stage: Stage) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvcs.cli.sub", "moqt://127.0.0.1:1", *map(str, stage.scope[:2])),
        *("--block-tokens", "8", "--like", str(stage.cache), "--hold"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert "standard input ended before a line came" in errors.decode()


# ------------------------------------------------------------------------------------------ no peer


@pytest_asyncio.fixture
async def stranger(certificates: CertificatePaths) -> AsyncIterator[int]:
    """The port of a QUIC server that does not speak MOQT."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(certificates.certificate, certificates.private_key)
    server = await serve("127.0.0.1", 0, configuration=configuration)
    yield server._transport.get_extra_info("sockname")[1]
    server.close()


async def test_a_peer_that_does_not_speak_moqt(stage: Stage, stranger: int) -> None:
    words = (*stage.scope, "--like", stage.cache)
    consumer = await stage.consumer("out", f"moqt://127.0.0.1:{stranger}", *words)
    assert "no protocol in common" in await failure(consumer)
    assert stage.leftovers("out") == []


async def test_a_port_that_is_taken(stage: Stage) -> None:
    _, url, _ = await stage.publisher()
    tls = stage.certificates
    place = ("--listen", url.removeprefix("moqt://").removesuffix("/"))
    second = await stage.start(
        "second",
        *("kvcs.cli.pub", stage.cache, *stage.scope, *place),
        *("--cert", tls.certificate, "--key", tls.private_key),
    )
    message = await failure(second)
    assert "127.0.0.1" in message
    assert "in use" in message


async def test_a_key_of_another_certificate(stage: Stage, tmp_path: Path) -> None:
    other = write_test_certificates(tmp_path / "other")
    words = ("--listen", "127.0.0.1:0", "--cert", other.certificate)
    words = (*words, "--key", stage.certificates.private_key)
    publisher = await stage.start("publisher", "kvcs.cli.pub", stage.cache, *stage.scope, *words)
    assert "is not the key of the certificate" in await failure(publisher)
