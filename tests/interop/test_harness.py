"""The interop harness itself: when a peer counts as started, and how a case is judged."""

from __future__ import annotations

import sys

import pytest

import moqt
from interop import peers
from interop.cases import Casebook, Failed, NeedsRelay, NotOffered, Outcome, PeerFault, judge
from interop.our_server import at, passed, tap_message
from interop.recording import Collector
from moqt.errors import RequestCode, RequestFailed
from moqt.model import ObjectHead
from transport.certificates import write_test_certificates
from transport.config import ServerTls


async def test_a_quic_server_answers_the_probe(tmp_path):
    paths = write_test_certificates(tmp_path / "certificates")
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    server = await moqt.serve("127.0.0.1", 0, tls=tls)
    command = (sys.executable, "-c", "import sys; sys.stdin.read(); import time; time.sleep(60)")
    async with peers.running(tmp_path / "log", *command) as peer:
        await peer.answers(server.port)
        assert peer.alive
    assert not peer.alive
    assert not server.connections
    await server.close()


async def test_a_peer_that_dies_is_not_waited_for(tmp_path):
    command = (sys.executable, "-c", "import sys; sys.exit('no such option')")
    async with peers.running(tmp_path / "log", *command) as peer:
        with pytest.raises(peers.PeerDied, match="exit code 1: no such option"):
            await peer.answers(peers.free_port())


async def test_a_peer_says_something(tmp_path):
    command = (sys.executable, "-c", "print('listening'); import time; time.sleep(60)")
    async with peers.running(tmp_path / "log", *command) as peer:
        await peer.says("listening")


async def test_output_of_an_earlier_run_does_not_count(tmp_path):
    (tmp_path / "log").write_text("listening")
    async with peers.running(tmp_path / "log", sys.executable, "-c", "") as peer:
        with pytest.raises(peers.PeerDied):
            await peer.says("listening")


def test_a_missing_peer_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("KVCS_PEER_CAPRID", raising=False)
    with pytest.raises(peers.PeerMissing, match="KVCS_PEER_CAPRID is not set"):
        peers.executable("caprid", "python")
    monkeypatch.setenv("KVCS_PEER_CAPRID", str(tmp_path))
    with pytest.raises(peers.PeerMissing, match="has no python"):
        peers.executable("caprid", "python")


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, Outcome.PASS),
        (Failed("missing"), Outcome.FAIL),
        (RequestFailed(RequestCode.TIMEOUT, ""), Outcome.FAIL),
        (TimeoutError(), Outcome.FAIL),
        (PeerFault("known"), Outcome.PEER),
        (NotOffered("no such method"), Outcome.ABSENT),
        (NeedsRelay("none"), Outcome.RELAY),
        (peers.PeerMissing("gone"), Outcome.MISSING),
    ],
)
async def test_judgement(raised, outcome):
    book = Casebook("aiomoqt", "test")

    @book.case()
    async def some_case(stage):
        if raised is not None:
            raise raised

    result = await judge(book.cases[0], None)
    assert result.case.name == "some-case"
    assert result.outcome is outcome


def test_message_of_a_tap_document():
    said = 'TAP version 14\n1..1\nnot ok 1 - fetch\n  ---\n  message: "Failed: x"\n  ...\n'
    assert tap_message(said) == "Failed: x"
    assert tap_message("Traceback\nImportError: y\n") == "ImportError: y"
    assert tap_message("") == "it said nothing"


def test_a_collector_counts_what_came_before():
    heard = Collector()
    for _ in range(3):
        stream = heard.open_fetch(0)
        stream.begin(ObjectHead(1, 0, 2, 128, 1))
        stream.write(b"x")
        stream.end()
    assert heard.twice == [(1, 2), (1, 2)]


def test_every_case_of_the_interop_client_can_be_played_at_any_url():
    book = at("moqt://relay.example:4443")
    names = {case.name for case in book.cases}
    assert len(names) == len(book.cases) == 14
    assert {case.roles for case in book.cases} == {
        "its interop client at moqt://relay.example:4443"
    }


def test_a_case_passes_by_its_own_tap_line():
    said = "TAP version 14\n1..1\nok 1 - fetch\n  ---\n  message: '5 objects'\n  ...\n"
    assert passed("fetch", said) == "5 objects"
    with pytest.raises(Failed, match="5 objects"):
        passed("join", said)
