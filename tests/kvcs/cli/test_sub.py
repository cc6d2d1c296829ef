"""kvcs-sub against a publisher in another process: what it takes, and what it says of failures."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvcs.cli import sub
from kvcs.keys import create_scope_key
from kvcs.names import PublicationName
from kvcs.tensorfile import KvCacheFile, TensorFile
from tests.kvcs.cli.caches import BLOCK_TOKENS, descriptor, write_cache
from tests.kvcs.cli.stage import Event, Served, assert_equal

pytestmark = pytest.mark.e2e


def call(*words: object) -> Result:
    return CliRunner().invoke(sub.main, [str(word) for word in words])


def events(result: Result) -> list[Event]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def identifiers(served: Served) -> list[str]:
    """A publication's name as the four options that give it ready-made."""
    options = ("--scope-id", "--compat-id", "--anchor-key", "--publication-id")
    values = PublicationName.from_fragment(served.uri.partition("#")[2]).hex
    return [word for pair in zip(options, values, strict=True) for word in pair]


def failure(result: Result, out: Path) -> str:
    """Its one message; it ended with exit code 1 and left nothing."""
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert list(out.parent.glob("*")) == []
    return result.stderr


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.safetensors"


# ------------------------------------------------------------------------------------- what arrives


def test_found_by_prompt(served: Served, out: Path) -> None:
    result = call(served.url, *served.prompt, "-o", out, "--json")
    assert result.exit_code == 0
    told = events(result)
    names = [event["event"] for event in told]
    assert names == ["connected", "found", "retrieving", *["layer"] * 4, "report", "stats"]
    assert [event["layer"] for event in told if event["event"] == "layer"] == [0, 1, 2, 3]
    report = told[-2]
    assert (report["objects"], report["missing"], report["duplicates"]) == (24, 0, 0)
    assert report["mode"] == "completed"
    assert served.uri.endswith(report["publication"])
    assert_equal(served.cache, out)
    with KvCacheFile(served.cache) as source, KvCacheFile(out) as found:
        assert found.token_ids == source.token_ids
        assert found.descriptor(BLOCK_TOKENS) == source.descriptor(BLOCK_TOKENS)


def test_trace_and_stats(served: Served, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    result = call(served.url, *served.prompt, "-o", out, "--json", "--trace", file)
    assert result.exit_code == 0
    stats = events(result)[-1]
    assert (stats["event"], stats["sessions"], stats["sessions_open"]) == ("stats", 1, 0)
    assert stats["sent"]["messages"]["SETUP"] == stats["received"]["messages"]["SETUP"] == 1
    assert stats["received"]["objects"] >= 24
    traced = [json.loads(line) for line in file.read_text("ascii").splitlines()]
    assert [one["event"] for one in traced[:2]] == ["begin", "connected"]
    assert traced[-1]["event"] == "end"
    assert sum(one["event"] == "object_end" for one in traced) == stats["received"]["objects"]
    assert not [one for one in traced if one["event"] == "undecodable"]
    messages = [one["message"] for one in traced if one["event"] == "message"]
    assert len(messages) == sum(
        sum(stats[way]["messages"].values()) for way in ("sent", "received")
    )
    assert served.scope_key.read_text().strip() not in file.read_text("ascii")


def test_a_trace_that_cannot_be_written(served: Served, tmp_path: Path) -> None:
    result = call(served.url, *served.prompt, "--trace", tmp_path / "no such" / "file")
    assert result.exit_code == 1
    assert "choose another --trace" in result.output


def test_found_by_descriptor_and_tokens(served: Served, out: Path, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps(descriptor(4).to_json()))
    with KvCacheFile(served.cache) as cache:
        (tmp_path / "ids").write_text(" ".join(map(str, cache.token_ids or ())))
    words = ("--scope-key", served.scope_key, "--ca", served.certificates.ca)
    words = (*words, "--descriptor", tmp_path / "d.json", "--tokens", f"@{tmp_path / 'ids'}")
    assert call(served.url, *words, "-o", out).exit_code == 0
    assert_equal(served.cache, out)


def test_a_longer_prompt_finds_its_prefix(served: Served, out: Path, tmp_path: Path) -> None:
    with KvCacheFile(served.cache) as cache:
        ids = (*(cache.token_ids or ()), *range(2 * BLOCK_TOKENS))
    longer = write_cache(tmp_path / "longer", tokens=len(ids), ids=ids)
    words = ("--scope-key", served.scope_key, "--ca", served.certificates.ca)
    words = (*words, "--like", longer, "--block-tokens", BLOCK_TOKENS)
    result = call(served.url, *words, "-o", out, "--json")
    assert result.exit_code == 0
    assert events(result)[1]["tokens"] == 3 * BLOCK_TOKENS
    with KvCacheFile(out) as found:
        assert found.token_ids == ids[: 3 * BLOCK_TOKENS]


@pytest.mark.parametrize("mode", ["auto", "live", "completed"])
def test_by_uri_with_no_key_at_all(mode: str, served: Served, out: Path) -> None:
    words = ("--ca", served.certificates.ca, "--mode", mode)
    assert call(served.uri, *words, "-o", out).exit_code == 0
    assert_equal(served.cache, out)


def test_by_ready_made_identifiers(served: Served, out: Path) -> None:
    words = (*identifiers(served), "--ca", served.certificates.ca, "-o", out)
    assert call(served.url, *words).exit_code == 0
    assert_equal(served.cache, out)


def test_a_part(served: Served, out: Path) -> None:
    words = ("--ca", served.certificates.ca, "--layers", "1-2", "--blocks", 2, "-o", out, "--json")
    result = call(served.uri, *words)
    assert result.exit_code == 0
    report = events(result)[-2]
    assert (report["objects"], report["layers"], report["blocks"]) == (8, [1, 2], 2)
    with TensorFile(served.cache) as source, TensorFile(out) as found:
        assert set(found.tensors) == {"k.1", "k.2", "v.1", "v.2"}
        for name, spec in found.tensors.items():
            assert spec.shape == (2 * BLOCK_TOKENS, 2, 16)
            assert found.view(name) == source.view(name)[: spec.octets]
        assert found.metadata["part"] == "layers 1 to 2"


def test_for_people(served: Served) -> None:
    """Without a file it only looks and verifies."""
    result = call(served.uri, "--ca", served.certificates.ca, "--waterfall")
    assert result.exit_code == 0
    assert "layers 0 to 3, 3 blocks of 8 tokens" in result.stdout
    assert "layer 3 verified after" in result.stdout
    assert "24 objects, 12288 octets verified" in result.stdout
    assert "0 missing, 0 duplicates" in result.stdout
    assert "When each layer came" in result.stdout


def test_the_next_url_when_the_first_is_dead(served: Served, out: Path) -> None:
    words = ("--ca", served.certificates.ca, "-o", out, "--json")
    result = call("moqt://127.0.0.1:1/", served.uri, *words)
    assert result.exit_code == 0
    assert events(result)[0]["url"] == served.url
    assert_equal(served.cache, out)


def test_any_certificate_when_told_so(served: Served, out: Path) -> None:
    assert call(served.uri, "--insecure", "-o", out).exit_code == 0
    assert_equal(served.cache, out)


# ------------------------------------------------------------------------------- what does not work


def test_one_of_each(served: Served, out: Path) -> None:
    words = (served.uri, "--ca", served.certificates.ca, "--layers", "2", "--blocks", "1")
    result = call(*words, "-o", out)
    assert "layer 2, 1 block of 8 tokens" in result.stdout


def test_a_prompt_shorter_than_what_was_published(served: Served, out: Path) -> None:
    with KvCacheFile(served.cache) as cache:
        ids = (cache.token_ids or ())[:BLOCK_TOKENS]
    words = (*served.prompt, "--tokens", ",".join(map(str, ids)), "-o", out)
    message = failure(call(served.url, *words), out)
    assert "(1 block)" in message
    assert "a prefix shorter than what was published cannot be found by its tokens" in message


def test_unknown_publication(served: Served, out: Path) -> None:
    name = PublicationName.from_fragment(served.uri.partition("#")[2])
    other = replace(name, pub_id=bytes(16))
    result = call(f"{served.url}#{other.fragment}", "--ca", served.certificates.ca, "-o", out)
    assert "cannot be had" in failure(result, out)


def test_wrong_scope_key(served: Served, out: Path, tmp_path: Path) -> None:
    create_scope_key(tmp_path / "other.key")
    result = call(served.url, *served.prompt, "--scope-key", tmp_path / "other.key", "-o", out)
    message = failure(result, out)
    assert "no publication for scope" in message
    assert "scope key" in message
    assert (tmp_path / "other.key").read_text().strip() not in result.output


def test_another_model(served: Served, out: Path) -> None:
    words = ("--like", served.cache, "--block-tokens", BLOCK_TOKENS, "--model", "other")
    result = call(served.uri, *words, "--ca", served.certificates.ca, "-o", out)
    assert "model: 'other' here, 'test' there" in failure(result, out)


def test_layers_that_are_not_there(served: Served, out: Path) -> None:
    result = call(served.uri, "--ca", served.certificates.ca, "--layers", "2-9", "-o", out)
    assert "layers 2 to 9: the model has 0 to 3" in failure(result, out)


def test_certificate_not_trusted(served: Served, out: Path) -> None:
    message = failure(call(served.uri, "-o", out), out)
    assert "certificate is not accepted" in message
    assert "(--ca FILE)" in message
    assert "ca_file" not in message


def test_certificate_for_another_name(served: Served, out: Path) -> None:
    words = ("--ca", served.certificates.ca, "--server-name", "elsewhere.example")
    result = call(served.uri, *words, "-o", out)
    assert "certificate is not accepted" in failure(result, out)


def test_an_output_that_was_there_is_kept(served: Served, out: Path) -> None:
    out.write_text("older")
    result = call(served.uri, "--ca", served.certificates.ca, "--layers", "2-9", "-o", out)
    assert result.exit_code == 1
    assert out.read_text() == "older"
    assert call(served.uri, "--ca", served.certificates.ca, "-o", out).exit_code == 0
    assert_equal(served.cache, out)


def test_the_disk_is_full(served: Served, out: Path) -> None:
    words = (served.uri, "--ca", str(served.certificates.ca), "-o", str(out))
    result = subprocess.run(
        [sys.executable, "-m", "kvcs.cli.sub", *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert result.returncode == 1
    assert f"error: file {out} cannot be written: File too large" in result.stderr
    assert "octets on that disk" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(out.parent.glob("*")) == []
