"""The committed inputs of every fuzz target keep its contract, whole, cut and damaged."""

from __future__ import annotations

from random import Random

import pytest

from .codec_targets import MANIFEST, ODD, reshaped
from .codec_targets import TARGETS as CODECS
from .run import CORPUS, Harness, corpus, names
from .session_targets import TARGETS as SESSIONS
from .supply import Supply

TARGETS = {**CODECS, **SESSIONS}


def test_every_target_has_a_corpus_of_few_octets() -> None:
    assert names() == sorted(TARGETS)
    for name in names():
        assert corpus(name), name
        assert (CORPUS / f"{name}.hex").stat().st_size < 16_000, name


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_corpus(name: str) -> None:
    for octets in corpus(name):
        TARGETS[name](octets)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_corpus_damaged(name: str) -> None:
    random = Random(name)
    inputs = corpus(name)
    for _ in range(30):
        data = bytearray(random.choice(inputs))
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data)) :] = random.randbytes(random.randrange(1, 20))
        TARGETS[name](bytes(data))


def test_a_finding_is_kept_once_per_place(tmp_path) -> None:
    def broken(data: bytes) -> None:
        if data == b"x":
            raise IndexError("x")

    harness = Harness("any", broken, tmp_path)
    for data in (b"", b"x", b"x"):
        harness(data)
    assert harness.executions == 3
    assert harness.octets == 2
    assert [path.read_bytes() for path in tmp_path.glob("found/*.bin")] == [b"x"]


def test_a_changed_document_shares_nothing_with_the_next() -> None:
    before = repr((ODD, MANIFEST))
    for seed in range(300):
        reshaped(MANIFEST, Supply(Random(seed).randbytes(40)))
    assert repr((ODD, MANIFEST)) == before
