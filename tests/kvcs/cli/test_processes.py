"""kvcs-pub and kvcs-sub as processes over real QUIC: what arrives is what was published."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from kvcs.names import PublicationName
from kvcs.tensorfile import KvCacheFile, TensorFile
from tests.kvcs.cli.caches import BLOCK_TOKENS, write_cache
from tests.kvcs.cli.stage import Stage

pytestmark = pytest.mark.e2e


async def test_found_by_prompt_and_taken_whole(stage: Stage) -> None:
    _, url, uri = await stage.publisher()
    consumer = await stage.consumer("out", url, *stage.scope, "--like", stage.cache)
    await consumer.finish()
    stage.assert_whole("out")
    (report,) = consumer.of("report")
    assert (report["objects"], report["missing"], report["duplicates"]) == (24, 0, 0)
    assert uri.endswith(report["publication"])
    assert [event["layer"] for event in consumer.of("layer")] == [0, 1, 2, 3]
    with KvCacheFile(stage.cache) as source, KvCacheFile(stage.out("out")) as found:
        assert found.token_ids == source.token_ids
        assert found.descriptor(BLOCK_TOKENS) == source.descriptor(BLOCK_TOKENS)


async def test_taken_by_uri_with_no_key_at_all(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    consumer = await stage.consumer("out", uri)
    await consumer.finish()
    stage.assert_whole("out")


async def test_ready_made_identifiers(stage: Stage) -> None:
    """A publisher and a consumer that know neither prompt nor scope key, only names."""
    _, _, uri = await stage.publisher()
    (report,) = await _reports(stage, "first", uri)
    words = _identifiers(report["publication"])
    again = await stage.start(
        "again",
        *("kvcs.cli.pub", stage.cache, "--block-tokens", BLOCK_TOKENS),
        *(*stage.listening, *words),
    )
    port = (await again.until("listening"))["port"]
    await again.until("finished")
    (other,) = await _reports(stage, "second", f"moqt://127.0.0.1:{port}", *words)
    assert other["digest"] == report["digest"]
    assert other["publication"] == report["publication"]


async def test_a_part(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    consumer = await stage.consumer("out", uri, "--completed", "--layers", "1-2", "--blocks", 2)
    await consumer.finish()
    (report,) = consumer.of("report")
    assert (report["objects"], report["layers"], report["blocks"]) == (8, [1, 2], 2)
    with TensorFile(stage.cache) as source, TensorFile(stage.out("out")) as found:
        assert set(found.tensors) == {"k.1", "k.2", "v.1", "v.2"}
        for name, spec in found.tensors.items():
            assert spec.shape == (2 * BLOCK_TOKENS, 2, 16)
            assert found.view(name) == source.view(name)[: spec.octets]
        assert found.metadata["part"] == "layers 1 to 2"


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
    tls = stage.certificates
    words = (*stage.listening, *stage.scope, "--like", stage.cache, "--wait", 15)
    consumer = await stage.start("out", "kvcs.cli.sub", *words, "-o", stage.out("out"))
    port = (await consumer.until("listening"))["port"]
    publisher = await stage.start(
        "publisher",
        *("kvcs.cli.pub", stage.cache, *stage.scope, "--relay", f"moqt://127.0.0.1:{port}/kv"),
        *("--ca", tls.ca, "--linger", 15),
    )
    await consumer.finish()
    stage.assert_whole("out")
    assert publisher.of("connected")[0]["url"] == f"moqt://127.0.0.1:{port}/kv"


async def test_waiting_for_a_name_that_is_not_there_yet(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    (report,) = await _reports(stage, "first", uri)
    words = _identifiers(report["publication"])
    consumer = await stage.start(
        "out", "kvcs.cli.sub", *stage.listening, *words, "--wait", 15, "-o", stage.out("out")
    )
    port = (await consumer.until("listening"))["port"]
    await stage.start(
        "again",
        *("kvcs.cli.pub", stage.cache, "--block-tokens", BLOCK_TOKENS, *words),
        *("--relay", f"moqt://127.0.0.1:{port}", *stage.trusting),
    )
    await consumer.finish()
    stage.assert_whole("out")


async def test_the_next_url_when_the_first_is_dead(stage: Stage) -> None:
    _, url, uri = await stage.publisher()
    consumer = await stage.consumer("out", "moqt://127.0.0.1:1/", uri)
    await consumer.finish()
    assert consumer.of("connected")[0]["url"] == url
    stage.assert_whole("out")


@pytest.mark.parametrize("loop", ["uvloop", "auto"])
async def test_on_another_loop(stage: Stage, loop: str) -> None:
    _, _, uri = await stage.publisher("--loop", loop)
    consumer = await stage.consumer("out", uri, "--loop", loop)
    await consumer.finish()
    stage.assert_whole("out")


async def test_the_publisher_ends_by_itself(stage: Stage) -> None:
    publisher, _, _ = await stage.publisher("--linger", "0")
    assert await publisher.wait() == 0
    assert publisher.of("finished")[0]["layers"] == 4


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


async def _reports(stage: Stage, name: str, *words: object) -> list[dict[str, object]]:
    consumer = await stage.consumer(name, *words)
    await consumer.finish()
    return consumer.of("report")


def _identifiers(fragment: object) -> tuple[str, ...]:
    """A publication's name as the four options that give it ready-made."""
    options = ("--scope-id", "--compat-id", "--anchor-key", "--publication-id")
    values = PublicationName.from_fragment(str(fragment)).hex
    return tuple(word for pair in zip(options, values, strict=True) for word in pair)
