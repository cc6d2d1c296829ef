"""kvcs-relay and who may use it by certificate: publishers, consumers, strangers, as processes."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from kvcs.cli import keygen, relay
from kvcs.cli.children import Child
from kvcs.cli.relayfile import RelayFile
from kvcs.cli.values import Address
from kvcs.gatekeeper import Gatekeeper
from moqt.session.tokens import Action, Claim
from tests.kvcs.cli.stage import Stage
from tests.kvcs.cli.test_relay import Reviewed, publisher, start
from transport.authorities import ClientAuthorities, Verified
from transport.certificates import CertificatePaths, make_authority
from transport.testing import RecordingSession
from transport.watch import LOOK_EVERY

pytestmark = pytest.mark.e2e

WRITER, READER, UNLISTED = "site-a", "site-b", "site-c"
CLIENTS = """
[[client]]
name = "writer"
subject = "CN=site-a"
publish = ["{scope}"]

[[client]]
name = "reader"
subject = "CN=site-b"
read = ["{scope}"]
"""


def keys(folder: Path, *clients: str) -> Path:
    words = [word for name in clients for word in ("--client", name)]
    done = CliRunner().invoke(keygen.main, ["certificate", str(folder), *words])
    assert done.exit_code == 0, done.output
    return folder


def shown(folder: Path, name: str) -> tuple[object, ...]:
    return ("--client-cert", folder / f"{name}.pem", "--client-key", folder / f"{name}.key")


@pytest.fixture
def site(stage: Stage) -> Path:
    """Server, clients and their authority; the stage trusts it."""
    folder = keys(stage.folder / "tls", WRITER, READER, UNLISTED)
    stage.certificates = CertificatePaths(
        folder / "ca.pem", folder / "server.pem", folder / "server.key"
    )
    scope = CliRunner().invoke(keygen.main, ["scope-id", str(stage.scope_key)]).output.strip()
    (folder / "clients.toml").write_text(CLIENTS.format(scope=scope))
    return folder


def closed(site: Path) -> tuple[object, ...]:
    return ("--client-ca", site / "ca.pem", "--clients", site / "clients.toml")


async def refused(child: Child) -> str:
    assert await child.wait() == 1
    return child.of("error")[0]["message"]


async def begin(stage: Stage, url: str, *words: object) -> tuple[Child, str]:
    """A publisher that may be refused before it says what it opens."""
    child = await stage.start(
        "publisher", "kvcs.cli.pub", stage.cache, *stage.scope, "--relay", url, *stage.trusting,
        *("--linger", 60), *words,
    )  # fmt: skip
    return child, url


async def test_by_certificate_alone(stage: Stage, site: Path) -> None:
    """A publisher and a consumer get in; another CA's client and one without hear why not."""
    _, url = await start(stage, *closed(site), "--require-certificate")
    other = keys(stage.folder / "other", READER)
    _, uri = await publisher(stage, url, *shown(site, WRITER))
    consumer = await stage.consumer("out", uri, *shown(site, READER))
    strange = await stage.consumer("no1", uri, *shown(other, READER))
    bare = await stage.consumer("no2", uri)
    await consumer.finish()
    stage.assert_whole("out")
    for child, why in ((strange, "unknown_ca"), (bare, "certificate_required")):
        message = await refused(child)
        assert why in message
        assert "(--client-cert FILE with --client-key FILE)" in message
    assert not [path for path in stage.folder.glob("no*.safetensors")]


async def test_who_may_not_hears_the_same_whoever_it_is(stage: Stage, site: Path) -> None:
    """Nobody is turned away at the door; who may only publish, or nothing, learns nothing."""
    _, url = await start(stage, *closed(site))
    _, uri = await publisher(stage, url, *shown(site, WRITER))
    consumers = [
        await stage.consumer(f"no{number}", uri, *words, "--timeout", 1)
        for number, words in enumerate((shown(site, WRITER), ()))
    ]
    intruder, _ = await begin(stage, url, *shown(site, READER))
    told = {(await refused(child)).partition("UNAUTHORIZED")[2] for child in consumers}
    assert told == {": not authorized"}
    assert "the relay refuses the publication" in await refused(intruder)
    assert not [path for path in stage.folder.glob("no*.safetensors")]


async def test_a_chain_by_certificates_and_openness_upstream(stage: Stage, site: Path) -> None:
    """The edge shows its certificate to the origin, and is open to everybody, known or not."""
    _, far = await start(stage, *closed(site), "--require-certificate")
    words = itertools.chain.from_iterable(
        (f"--upstream-{word[2:]}" if isinstance(word, str) else word,)
        for word in ("--ca", site / "ca.pem", *shown(site, READER))
    )
    _, near = await start(
        stage, "--open", "--client-ca", site / "ca.pem", "--upstream", far, *words
    )
    _, uri = await publisher(stage, far, *shown(site, WRITER))
    at_edge = near + "#" + uri.partition("#")[2]
    for name, more in (("bare", ()), ("known", shown(site, UNLISTED))):
        consumer = await stage.consumer(name, at_edge, *more)
        await consumer.finish()
        stage.assert_whole(name)


@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
def test_an_open_relay_knows_its_clients_by_their_certificates(site: Path, required: bool) -> None:
    own = {"cert": site / "server.pem", "key": site / "server.key", "open": True}
    file = RelayFile(
        listen=Address("127.0.0.1", 0),
        client_ca=(site / "ca.pem",),
        require_certificate=required,
        **own,
    )
    config = relay._config(file, relay._gatekeeper(file), relay._authorities(file))
    session = RecordingSession(is_client=False)
    judge = config.judge(session)
    claim = Claim(Action.SUBSCRIBE, (b"x",), b"y")
    assert (judge(claim, 0.0) is None) != required
    der = x509.load_pem_x509_certificate((site / "site-c.pem").read_bytes()).public_bytes(
        Encoding.DER
    )
    session.peer_certificate = Verified(der, time.time() + 60)
    assert judge.grant(claim).identity == "certificate CN=site-c"
    bare = RelayFile(listen=Address("127.0.0.1", 0), **own)
    assert relay._config(bare, relay._gatekeeper(bare), relay._authorities(bare)).judge is None


async def test_everything_is_judged_again_when_an_authority_or_a_client_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcs.clients import Clients

    monkeypatch.setattr(relay, "REVIEW", 0.001)
    times = itertools.count(0.0, LOOK_EVERY)  # at every question it is time for a look
    (tmp_path / "ca.pem").write_bytes(make_authority().certificate_pem())
    (tmp_path / "clients.toml").write_text(CLIENTS.format(scope="00" * 16))
    authorities = ClientAuthorities([tmp_path / "ca.pem"], wall=lambda: next(times))
    gatekeeper = Gatekeeper(clients=Clients(tmp_path / "clients.toml"), wall=lambda: next(times))
    gatekeeper.refresh()
    reviewed = Reviewed()
    with relay._running(relay._review(reviewed, gatekeeper, authorities)):
        (tmp_path / "ca.pem").write_bytes(make_authority().certificate_pem())
        await reviewed.asked.wait()
        reviewed.asked.clear()
        (tmp_path / "clients.toml").write_text(CLIENTS.format(scope="01" * 16))
        await reviewed.asked.wait()
    assert authorities.generation == 2


@pytest.mark.parametrize("which", ["pub", "sub"])
async def test_files_that_cannot_be_shown(stage: Stage, site: Path, which: str) -> None:
    other = keys(stage.folder / "other", WRITER)
    mixed = ("--client-cert", site / f"{WRITER}.pem", "--client-key", other / f"{WRITER}.key")
    none = ("--client-cert", site / "none.pem", "--client-key", other / f"{WRITER}.key")
    for words, said in (
        (mixed, f"the key {other / WRITER}.key is not the key of the certificate"),
        (none, f"the certificate file {site}/none.pem cannot be read"),
    ):
        if which == "pub":
            child, _ = await begin(stage, "moqt://127.0.0.1:1/", *words)
        else:
            child = await stage.consumer(
                "out", "moqt://127.0.0.1:1/", *stage.scope, "--like", stage.cache, *words
            )
        assert said in await refused(child)
