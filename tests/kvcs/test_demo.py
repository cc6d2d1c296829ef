"""kvcs.demo: five processes, and a comparison that would notice a single bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvcs import demo
from kvcs.demo import Part, Verdict, compare
from kvcs.geometry import Geometry
from kvcs.tensorfile import KvCacheFile, TensorFileWriter
from tests.kvcs.cli.caches import BLOCK_TOKENS, write_cache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """4 layers, 3 blocks of 8 tokens."""
    return write_cache(tmp_path / "cache.safetensors")


def write_part(cache: KvCacheFile, out: Path, part: Part, flip: str | None = None) -> None:
    """The output of a consumer, with one bit of tensor ``flip`` wrong."""
    names = [f"{c}.{n}" for c in "kv" for n in range(part.layers[0], part.layers[1] + 1)]
    spec = cache._file.tensors["k.0"]
    tokens = part.blocks * BLOCK_TOKENS
    shape = spec._replace(shape=(tokens, *spec.shape[1:]))
    with TensorFileWriter(out, dict.fromkeys(names, shape)) as file:
        for name in names:
            octets = bytearray(cache._file.view(name)[: shape.octets])
            if name == flip:
                octets[-1] ^= 1
            file.write(name, octets)
        file.commit()


@pytest.mark.parametrize("part", [Part((0, 3), 3), Part((1, 2), 2)])
def test_compare(part: Part, cache: Path, tmp_path: Path) -> None:
    with KvCacheFile(cache) as source:
        shape = Geometry.of(source.descriptor(BLOCK_TOKENS), 3)
        write_part(source, tmp_path / "out", part)
        verdict = compare(source, tmp_path / "out", part, shape)
        assert verdict.equal
        assert verdict.digest_in == verdict.digest_out


@pytest.mark.parametrize("flip", ["k.1", "v.2"])
def test_compare_notices_one_bit(flip: str, cache: Path, tmp_path: Path) -> None:
    part = Part((1, 2), 2)
    with KvCacheFile(cache) as source:
        shape = Geometry.of(source.descriptor(BLOCK_TOKENS), 3)
        write_part(source, tmp_path / "out", part, flip)
        verdict = compare(source, tmp_path / "out", part, shape)
        assert not verdict.equal
        assert verdict.digest_in != verdict.digest_out


def test_compare_notices_what_is_too_much(cache: Path, tmp_path: Path) -> None:
    with KvCacheFile(cache) as source:
        shape = Geometry.of(source.descriptor(BLOCK_TOKENS), 3)
        write_part(source, tmp_path / "out", Part((0, 3), 3))
        assert not compare(source, tmp_path / "out", Part((0, 2), 3), shape).equal
        assert not compare(source, tmp_path / "out", Part((0, 3), 2), shape).equal


@pytest.mark.e2e
def test_the_whole_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    cache = write_cache(tmp_path / "cache.safetensors", layers=6, tokens=128)
    result = CliRunner().invoke(demo.main, ["--cache", str(cache), "--pace", "0.05"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1] == "every bit of every output is that of the input"
    table = [
        line.split() for line in lines[-6:] if line.split()[:1] in (["a"], ["b"], ["c"], ["d"])
    ]
    assert [row[:2] for row in table] == [
        ["a", "before"],
        ["b", "midway"],
        ["c", "after"],
        ["d", "after"],
    ]
    assert all(row[-1] == "yes" for row in table)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_without_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = CliRunner().invoke(demo.main, ["--cache", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "the demo runs from a checkout" in result.stderr
    assert "--cache FILE" in result.stderr


def test_a_cache_shorter_than_a_block(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = CliRunner().invoke(demo.main, ["--cache", str(cache)])
    assert result.exit_code == 1
    assert "24 tokens fill no block of 64" in result.stderr
    assert list(tmp_path.iterdir()) == [cache]


@pytest.mark.e2e
def test_a_process_that_fails_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "create_scope_key", lambda path: path.write_text("00"))
    cache = write_cache(tmp_path / "cache.safetensors", tokens=64)
    result = CliRunner().invoke(demo.main, ["--cache", str(cache)])
    assert result.exit_code == 1
    assert "error: publisher ended before it said 'listening': key file" in result.stderr
    assert list(tmp_path.iterdir()) == [cache]


@pytest.mark.e2e
def test_a_difference_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "compare", lambda *_: Verdict("00", "01", equal=False))
    cache = write_cache(tmp_path / "cache.safetensors", layers=2, tokens=64)
    result = CliRunner().invoke(demo.main, ["--cache", str(cache), "--pace", "0", "--keep"])
    assert result.exit_code == 1
    assert "output of a, b, c, d differs from what was published" in result.stderr
    (kept,) = set(tmp_path.iterdir()) - {cache}
    assert f"kept: {kept}" in result.stdout
    assert {"a.safetensors", "scope.key", "tls"} <= {path.name for path in kept.iterdir()}
