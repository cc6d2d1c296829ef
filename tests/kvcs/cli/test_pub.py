"""kvcs-pub by itself: what it tells, and that it ends when it should."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvcs.cli import pub
from kvcs.names import PublicationName
from transport.certificates import CertificatePaths

pytestmark = pytest.mark.e2e


def call(*words: object) -> Result:
    return CliRunner().invoke(pub.main, [str(word) for word in words])


@pytest.fixture
def listening(certificates: CertificatePaths) -> tuple[object, ...]:
    words = ("--cert", certificates.certificate, "--key", certificates.private_key)
    return ("--listen", "127.0.0.1:0", *words, "--linger", "0")


def test_events(cache: Path, scope_key: Path, listening: tuple[object, ...]) -> None:
    words = ("--scope-key", scope_key, "--block-tokens", 8, *listening, "--json")
    result = call(cache, *words)
    assert result.exit_code == 0
    events = [json.loads(line) for line in result.stdout.splitlines()]
    names = [event["event"] for event in events]
    assert names == ["listening", "opened", "advice", *["published"] * 4, "finished", "stats"]
    listening_on, opened, *_ = events
    assert opened["publication"].startswith(f"moqt://127.0.0.1:{listening_on['port']}/#kvcs:")
    PublicationName.from_fragment(opened["publication"].partition("#")[2])
    assert (opened["layers"], opened["blocks"], opened["block_tokens"]) == (4, 3, 8)
    assert events[-2]["linger"] == 0
    times = [event["at"] for event in events if event["event"] == "published"]
    assert times == sorted(times)


def test_for_people(cache: Path, scope_key: Path, listening: tuple[object, ...]) -> None:
    words = ("--scope-key", scope_key, "--block-tokens", 10, *listening)
    result = call(cache, *words)
    assert result.exit_code == 0
    assert "publication moqt://127.0.0.1:" in result.stdout
    assert "4 layers of 2 blocks of 10 tokens; 4 tokens at the end: no whole block" in result.stdout
    assert "layer 3 published" in result.stdout
    assert "4 layers published in" in result.stdout
    assert "serving" not in result.stdout
    assert scope_key.read_text().strip() not in result.output


def test_who_lingers_says_so(cache: Path, scope_key: Path, listening: tuple[object, ...]) -> None:
    words = ("--scope-key", scope_key, "--block-tokens", 8, *listening, "--linger", "0.01")
    assert "; serving for 0.01 s; Ctrl-C ends\n" in call(cache, *words).stdout
    events = [json.loads(line) for line in call(cache, *words, "--json").stdout.splitlines()]
    assert [event["linger"] for event in events if event["event"] == "finished"] == [0.01]


def test_a_uri_that_can_be_dialled(
    cache: Path, scope_key: Path, listening: tuple[object, ...]
) -> None:
    words = ("--scope-key", scope_key, "--block-tokens", 8, *listening, "--listen", "0.0.0.0:0")
    result = call(cache, *words)
    assert "listening on every address of this host, port" in result.stdout
    assert f"publication moqt://{socket.gethostname()}:" in result.stdout


def test_every_production_has_a_name_of_its_own(
    cache: Path, scope_key: Path, listening: tuple[object, ...]
) -> None:
    words = ("--scope-key", scope_key, "--block-tokens", 8, *listening, "--json")
    names = []
    for _ in range(2):
        opened = json.loads(call(cache, *words).stdout.splitlines()[1])
        names.append(PublicationName.from_fragment(opened["publication"].partition("#")[2]))
    assert names[0].anchor_key == names[1].anchor_key
    assert names[0].pub_id != names[1].pub_id


def test_the_given_prompt_counts(
    cache: Path, scope_key: Path, listening: tuple[object, ...]
) -> None:
    words = ("--scope-key", scope_key, "--block-tokens", 8, *listening, "--json")
    keys = set()
    for tokens in (range(24), range(24), range(1, 25)):
        result = call(cache, *words, "--tokens", ",".join(map(str, tokens)))
        opened = json.loads(result.stdout.splitlines()[1])
        name = PublicationName.from_fragment(opened["publication"].partition("#")[2])
        keys.add(name.anchor_key)
    assert len(keys) == 2


def test_no_certificate(cache: Path, scope_key: Path, tmp_path: Path) -> None:
    words = ("--cert", tmp_path / "none.pem", "--key", tmp_path / "none.key")
    result = call(
        *(cache, "--scope-key", scope_key, "--block-tokens", 8, "--listen", "127.0.0.1:0", *words)
    )
    assert result.exit_code == 1
    assert "none.pem" in result.stderr
