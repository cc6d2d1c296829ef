"""kvcs-relay: usage, configuration, events, endings, health; as its operator meets it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
from io import StringIO
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kvcs.cli import relay, relaystatus
from kvcs.cli.children import Child
from kvcs.cli.relayfile import UpstreamEntry
from kvcs.gatekeeper import Gatekeeper
from kvcs.issuers import Issuers, create_issuer_keys, load_issuer_key
from kvcs.relay_metrics import snapshot
from kvcs.scopes import kvcs_scopes
from kvcs.tokenfile import write_token
from kvcs.tokens import TOKEN_TYPE, Claims
from kvcs.tokens import issue as sign
from moqt.relay.service import RelayService, ServiceConfig
from tests.architecture.sources import ROOT
from tests.kvcs.cli.stage import Stage
from tests.kvcs.endpoints import Cache, World, check
from transport.certificates import CertificatePaths, write_test_certificates
from transport.url import MoqtUrl
from transport.watch import LOOK_EVERY

pytestmark = pytest.mark.e2e

LISTENS = ("--listen", "127.0.0.1:0", "--cert", "c", "--key", "k")


def call(*words: object) -> Result:
    return CliRunner().invoke(relay.main, [str(word) for word in words])


@pytest.fixture
def listening(certificates: CertificatePaths) -> tuple[object, ...]:
    words = ("--cert", certificates.certificate, "--key", certificates.private_key)
    return ("--listen", "127.0.0.1:0", *words)


def failure(*words: object) -> str:
    """What it says when it fails with exit code 1, the same in JSON."""
    plain, machine = call(*words), call(*words, "--json")
    assert (plain.exit_code, machine.exit_code) == (1, 1)
    event = json.loads(machine.stdout.splitlines()[-1])
    assert event["event"] == "error"
    assert plain.stderr.startswith("error: ")
    assert "Traceback" not in plain.output
    return event["message"]


# ------------------------------------------------------------------------------------------- usage


def test_help_teaches() -> None:
    result = call("--help")
    assert result.exit_code == 0
    told = " ".join(result.output.split())
    assert "Examples" in told
    assert "kvcs-relay --config /etc/kvcs/relay.toml --check" in told
    assert "clients are told to go elsewhere (GOAWAY)" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Give --listen HOST:PORT"),
        (("--listen", "h:1"), "kvcs-keygen certificate makes both"),
        (LISTENS, "Give either --issuers PATH with --audience NAME"),
        ((*LISTENS, "--issuers", "i"), "no audience: say what tokens call this relay"),
        ((*LISTENS, "--open", "--audience", "a"), "--open asks for no token"),
        ((*LISTENS, "--open", "--status", "--json"), "--status draws on the terminal"),
        ((*LISTENS, "--open", "--issuers", "i"), "Give either --issuers PATH with --audience NAME"),
        ((*LISTENS, "--open", "--upstream-ca", "c"), "go with --upstream URL"),
        ((*LISTENS, "--open", "--upstream-token-file", "t"), "go with --upstream URL"),
        ((*LISTENS, "--open", "--upstream-client-key", "k"), "go with --upstream URL"),
        (
            (*LISTENS, "--open", "--upstream", "moqt://a/", "--upstream-client-cert", "c"),
            "belong together: give both",
        ),
        ((*LISTENS, "--clients", "c"), "need --client-ca FILE"),
        ((*LISTENS, "--open", "--require-certificate"), "need --client-ca FILE"),
        ((*LISTENS, "--client-ca", "c"), "or --clients FILE with --client-ca FILE"),
        ((*LISTENS, "--open", "--clients", "c", "--client-ca", "c"), "or --open for everybody"),
        (("--listen", "4443"), "write HOST:PORT"),
        (("--metrics", "x"), "write HOST:PORT"),
        (("--cache", "8GB"), "write octets, such as 1048576, 512MiB or 8GiB"),
        (("--upstream", "http://a/"), "use moqt://"),
        (("--loop", "trio"), "'trio' is not one of"),
        (("--bogus",), "No such option"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    event = json.loads(call(*words, "--json").stdout)
    assert (event["event"], event["kind"], event["exit_code"]) == ("error", "usage", 2)


def test_what_cannot_be_used(listening: tuple[object, ...], tmp_path: Path) -> None:
    opened = (*listening, "--open")
    (tmp_path / "bad.toml").write_text("lisen = 1")
    (tmp_path / "words").write_text("aGVsbG8gd29ybGQ")
    create_issuer_keys(tmp_path / "a.key", tmp_path / "a.pem")
    upstream = ("--upstream", "moqt://127.0.0.1:1/")
    other = write_test_certificates(tmp_path / "other")
    for words, said in (
        (("--config", tmp_path / "none"), "cannot be read: No such file"),
        ((*listening, "--issuers", tmp_path / "none", "--audience", "a"), "there is no such file"),
        ((*opened, *upstream, "--upstream-token-file", tmp_path / "none"), "kvcs-token issue"),
        ((*opened, *upstream, "--upstream-token-file", tmp_path / "words"), "holds no token"),
        ((*opened, *upstream, "--upstream-ca", tmp_path / "none"), "the CA file"),
        (
            (
                *(*opened, *upstream, "--upstream-client-cert", other.certificate),
                *("--upstream-client-key", tmp_path / "a.key"),
            ),
            "is not the key of the certificate",
        ),
        ((*opened, "--client-ca", tmp_path / "none"), "with CAs of clients cannot be used"),
        (
            (*listening, "--client-ca", other.ca, "--clients", tmp_path / "bad.toml"),
            "it must hold [[client]] tables",
        ),
        ((*opened, "--cert", tmp_path / "none"), "give a PEM certificate"),
        ((*opened, "--key", other.private_key), "is not the key of the certificate"),
        ((*opened, "--trace", tmp_path / "no" / "trace"), "cannot be written"),
        ((*opened, "--spill", tmp_path / "bad.toml"), "bad.toml"),
    ):
        assert said in failure(*words, "--check")


def test_check_says_that_all_is_right(
    certificates: CertificatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_issuer_keys(tmp_path / "acme.key", tmp_path / "acme.pem")
    config = tmp_path / "relay.toml"
    config.write_text(
        f"""
listen = "127.0.0.1:0"
cert = "{certificates.certificate}"
key = "{certificates.private_key}"
[auth]
issuers = ["acme.pem"]
audience = ["relay-1"]
client_ca = ["{certificates.ca}"]
clients = "clients.toml"
[[upstream]]
url = "moqt://127.0.0.1:1/"
ca = "{certificates.ca}"
"""
    )
    (tmp_path / "clients.toml").write_text(
        '[[client]]\nname = "a"\nsubject = "CN=a"\nread = ["*"]\n'
    )
    monkeypatch.chdir("/")  # paths are relative to the file
    result = call("--config", config, "--check", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"event": "checked", "config": str(config)}
    assert call("--config", config, "--check").stdout == "the configuration is right\n"


def test_the_page_has_its_events() -> None:
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    told = set(re.findall(r"^\| `(\w+)` \| (?:all|kvcs-relay) \|", page, re.M))
    source = Path(relay.__file__).read_text("utf-8")
    said = set(re.findall(r"\.say\(\s*\"(\w+)\"", source))
    assert said | {"error", "interrupted"} == told


def test_options_go_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text('listen = "a:1"\ncert = "c"\nkey = "k"\n[auth]\nopen = true\n')
    words = ["--config", str(config), "--listen", "b:2", "--cache", "1MiB", "--spill", "s"]
    params = relay.main.make_context("kvcs-relay", words).params
    file = relay.RelayOptions(**params).settled()
    assert (file.listen, file.memory, file.spill_directory) == (("b", 2), 1 << 20, Path("s"))
    assert (file.cert, file.open) == (tmp_path / "c", True)
    closed = {**params, "issuers": (Path("i"),), "audience": ("a",)}
    file = relay.RelayOptions(**closed).settled()
    assert (file.open, file.issuers, file.audience) == (False, (Path("i"),), ("a",))
    config.write_text(
        'listen = "a:1"\ncert = "c"\nkey = "k"\n[auth]\nissuers = ["i"]\naudience = ["a"]'
    )
    file = relay.RelayOptions(
        **params,
    ).settled()
    assert (file.open, file.issuers) == (False, (tmp_path / "i",))
    file = relay.RelayOptions(**{**params, "open": True}).settled()
    assert (file.open, file.issuers, file.audience) == (True, (), ())
    assert relay.RelayOptions(**{**params, "listen": None}).settled().listen == ("a", 1)


# ----------------------------------------------------------------------------------- as a process


async def start(stage: Stage, *words: object) -> tuple[Child, str]:
    """A relay that listens, and its URL."""
    child = await stage.start("relay", "kvcs.cli.relay", *stage.listening, *words)
    port = (await child.until("listening"))["port"]
    return child, f"moqt://127.0.0.1:{port}/"


async def publisher(stage: Stage, url: str, *words: object) -> tuple[Child, str]:
    """One that dials ``url``, and the URI of its publication there."""
    child = await stage.start(
        "publisher", "kvcs.cli.pub", stage.cache, *stage.scope, "--relay", url, *stage.trusting,
        *("--linger", 60), *words,
    )  # fmt: skip
    uri = (await child.until("opened"))["publication"]
    return child, uri


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_its_life_in_events(stage: Stage, tmp_path: Path, number: int) -> None:
    (tmp_path / "relay.toml").write_text("drain = 0.3\n")
    words = ("--metrics", "127.0.0.1:0", "--upstream", "moqt://127.0.0.1:1/")
    words = ("--config", tmp_path / "relay.toml", *words)
    child, url = await start(stage, "--open", *words)
    port = (await child.until("metrics"))["port"]
    _, uri = await publisher(stage, url)
    consumer = await stage.consumer("out", uri)
    await consumer.finish()
    stage.assert_whole("out")
    assert (await asyncio.to_thread(get, port, "/ready"))[0] == 200
    status = json.loads((await asyncio.to_thread(get, port, "/status"))[1])
    assert (status["namespaces"], status["sessions"]) == (1, 2)
    child.signal(number)
    await child.finish()
    names = [event["event"] for event in child.events]
    assert names == ["listening", "upstream", "metrics", "leaving", "stats"]
    assert child.of("leaving")[0]["sessions"] >= 1
    stats = child.of("stats")[0]
    assert stats["sent"]["messages"]["GOAWAY"] >= 1
    assert stats["sent"]["octets"] > 0


@pytest.mark.rule("M169")
async def test_downstream_is_told_before_upstream_is_left(stage: Stage, tmp_path: Path) -> None:
    """The consumer's session hears GOAWAY, and only then the subscriptions upstream end."""
    (tmp_path / "relay.toml").write_text("drain = 0.2\n")
    _, url, uri = await stage.publisher("--hold")
    words = ("--open", "--config", tmp_path / "relay.toml", "--trace", tmp_path / "trace")
    child, near = await start(stage, *words, "--upstream", url, "--upstream-ca", stage.trusting[1])
    consumer = await stage.consumer("out", near + "#" + uri.partition("#")[2])
    await consumer.until("retrieving")
    child.signal(signal.SIGTERM)
    await child.finish()
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    upstream = {one["session"] for one in lines if one.get("role") == "client"}
    told = [
        at for at, one in enumerate(lines) if one.get("message") == "GOAWAY" and one["way"] == "out"
    ]
    requests = {
        one["stream"]
        for one in lines
        if one["session"] in upstream and one.get("message") == "SUBSCRIBE"
    }
    assert requests
    left = [
        at
        for at, one in enumerate(lines)
        if one["session"] in upstream
        and one.get("way") != "in"
        and (
            one["event"] == "close"
            or (one["event"] == "stream_end" and one.get("stream") in requests)
        )
    ]
    assert max(told) < min(left)
    assert {lines[at]["session"] for at in told}.isdisjoint(upstream)


async def test_a_second_signal_does_not_wait(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text("drain = 600\n")
    child, url = await start(stage, "--open", "--config", tmp_path / "relay.toml")
    made, _ = await publisher(stage, url, "--hold")
    await made.until("held")
    child.signal(signal.SIGTERM)
    await child.until("leaving")
    child.signal(signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM


async def test_a_port_that_is_taken(stage: Stage) -> None:
    child, url = await start(stage, "--open", "--metrics", "127.0.0.1:0")
    place = url.removeprefix("moqt://").removesuffix("/")
    second = await stage.start(
        "second", "kvcs.cli.relay", *stage.listening, "--open", "--listen", place
    )
    assert await second.wait() == 1
    assert "in use" in second.of("error")[0]["message"]
    metrics = (await child.until("metrics"))["port"]
    third = await stage.start(
        "third", "kvcs.cli.relay", *stage.listening, "--open", "--metrics", f"127.0.0.1:{metrics}"
    )
    assert await third.wait() == 1
    assert "choose another --metrics" in third.of("error")[0]["message"]
    # It never said that it listens, and there is nothing to count.
    for child in (second, third):
        assert [event["event"] for event in child.events] == ["error"]


async def test_systemd_is_notified(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        child, url = await start(stage, "--open")
        loop = asyncio.get_running_loop()
        port = url.rpartition(":")[2].removesuffix("/")
        ready = f"READY=1\nSTATUS=listening on port {port}"
        assert (await loop.sock_recv(heard, 256)).decode() == ready
        for _ in range(2):
            assert await loop.sock_recv(heard, 256) == b"WATCHDOG=1"
        child.signal(signal.SIGTERM)
        while (last := await loop.sock_recv(heard, 256)) == b"WATCHDOG=1":
            pass
        assert last == b"STOPPING=1"
        await child.finish()


def test_nobody_is_notified_without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    relay._notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "@kvcs-test-nobody")
    relay._notify("READY=1")


# ------------------------------------------------------------------------------------------ tokens


def issue(stage: Stage, out: Path, audience: str, *words: object) -> Path:
    """A token of the issuer ``acme``."""
    from kvcs.cli import token

    done = CliRunner().invoke(
        token.main,
        [
            *("issue", "--key", str(stage.folder / "acme.key"), "--audience", audience),
            *("--scope-key", str(stage.scope_key), "--out", str(out), *map(str, words)),
        ],
    )
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.timeout(60)  # ten processes
async def test_closed_to_strangers_in_a_chain(stage: Stage) -> None:
    """Origin and edge trust one issuer; the edge shows a token of its own to the origin."""
    folder = stage.folder
    create_issuer_keys(folder / "acme.key", folder / "acme.pem")
    trusted = ("--issuers", folder / "acme.pem", "--audience")
    _, far = await start(stage, *trusted, "origin")
    shown = ("--upstream-ca", stage.trusting[1], "--upstream-token-file")
    own = issue(stage, folder / "edge", "origin", "--read")
    edge, near = await start(stage, *trusted, "edge", "--upstream", far, *shown, own)
    _, uri = await publisher(
        stage, far, "--token-file", issue(stage, folder / "pub", "origin", "--publish")
    )
    at_edge = near + "#" + uri.partition("#")[2]
    reader = issue(stage, folder / "sub", "edge", "--read")
    consumer = await stage.consumer("out", at_edge, "--token-file", reader)
    await consumer.finish()
    stage.assert_whole("out")

    async def refuse(*words: object) -> None:
        refused, _ = await publisher(stage, near, *words)
        assert await refused.wait() == 1
        assert "the relay refuses the publication" in refused.of("error")[0]["message"]

    async def turn_away(name: str, *words: object) -> None:
        stranger = await stage.consumer(name, at_edge, *words, "--timeout", 1)
        assert await stranger.wait() == 1
        assert "UNAUTHORIZED: not authorized" in stranger.of("error")[0]["message"]
        assert not stage.out(name).exists()

    writer = issue(stage, folder / "w", "edge", "--publish")
    await asyncio.gather(
        *(refuse(), refuse("--token-file", reader)),
        *(turn_away("nothing"), turn_away("writer", "--token-file", writer)),
        turn_away("elsewhere", "--token-file", own),
    )
    edge.signal(signal.SIGTERM)
    await edge.finish()


def test_the_token_for_upstream_is_read_again(tmp_path: Path) -> None:
    key = create_issuer_keys(tmp_path / "k", tmp_path / "k.pem") and load_issuer_key(tmp_path / "k")
    scopes = tuple(kvcs_scopes(bytes(16), publish=False, read=True))
    one, another = (
        sign(Claims(issuer=name, audience=("a",), expires=4e9, scopes=scopes), key)
        for name in ("one", "another")
    )
    write_token(tmp_path / "t", one)
    entry = UpstreamEntry(url=MoqtUrl.parse("moqt://a/"), token_file=tmp_path / "t")
    shown = relay._upstream(entry).credentials
    assert [(one.type, one.value) for one in shown()] == [(TOKEN_TYPE, one)]
    write_token(tmp_path / "t", another)
    assert [one.value for one in shown()] == [another]


class Reviewed:
    """A relay that is asked to judge everything again."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def review(self) -> None:
        self.asked.set()


async def test_everything_is_judged_again_when_an_issuer_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "REVIEW", 0.001)
    for name in ("a", "b"):
        create_issuer_keys(tmp_path / f"{name}.key", tmp_path / f"{name}.pem")
    times = itertools.count(0.0, LOOK_EVERY)  # at every question it is time for a look
    gatekeeper = Gatekeeper(
        issuers=Issuers([tmp_path]), audiences=["here"], wall=lambda: next(times)
    )
    gatekeeper.refresh()
    reviewed = Reviewed()
    with relay._running(relay._review(reviewed, gatekeeper)):
        (tmp_path / "b.pem").unlink()
        await reviewed.asked.wait()
    assert len(gatekeeper._issuers.keys) == 1


# ------------------------------------------------------------------------------------- status view


def recorder() -> Console:
    return Console(record=True, width=80, file=StringIO(), force_terminal=True)


async def test_the_status_view(world: World) -> None:
    service = RelayService(ServiceConfig(host="127.0.0.1", port=0, tls=world.server_tls))
    await service.start()
    world.defer(service.close)
    before = snapshot(service)
    cache, url = Cache(), f"moqt://127.0.0.1:{service.port}/"
    made, _ = await world.publisher()
    await made.dial([url], tls=world.client_tls)
    console = recorder()
    console.print(relaystatus.summary(before, before))
    assert figures(console)["budget MiB"] == "1024"
    publication = await cache.publish(made)
    await check(await (await world.consumer(url)).retrieve(publication.name), cache)
    console.print(relaystatus.summary(before, snapshot(service)))
    told = figures(console)
    assert (told["sessions"], told["upstreams"], told["tracks"]) == ("2", "0", "3")
    assert float(told["egress MiB/s"]) >= 0
    assert told["hit ratio"].endswith(" %")
    console.print(relaystatus.tracks(service))
    head, _, *rows = [line for line in console.export_text().splitlines() if line.strip()]
    assert head.split() == ["track", "followers", "objects", "MiB", "largest", "state"]
    names = sorted(row.split()[0] for row in rows)
    assert names == ["k.raw.s0", "manifest", "v.raw.s0"]
    assert all(row.split()[-1] in ("live", "whole", "cached") for row in rows)


async def test_the_status_view_of_a_busy_relay_in_80_columns(world: World) -> None:
    """Figures of every length: headings stay whole, and nothing is broken over lines."""
    service = RelayService(ServiceConfig(host="127.0.0.1", port=0, tls=world.server_tls))
    await service.start()
    world.defer(service.close)
    before = snapshot(service)
    busy = {name: value + 10**6 for name, value in before.items()}
    busy |= {"octets_in": 10**10, "octets_out": 10**12, "cache_octets": 1 << 40}
    busy |= {"cache_budget_octets": 1 << 40, "backlog_octets": 1 << 35, "octets_from_cache": 10**11}
    console = recorder()
    console.print(relaystatus.summary(before, busy))
    told = figures(console)
    assert told["hit ratio"] == "10 %"
    assert told["egress MiB/s"] == "953674.3"
    assert (told["sessions"], told["cache MiB"]) == ("1000000", "1048576")


def figures(console: Console) -> dict[str, str]:
    """What the summary shows, each value by its name; no line longer than 80 columns."""
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert len([line for line in lines if line]) == 4
    assert all(len(line) <= 80 for line in lines)
    found: dict[str, str] = {}
    for line in lines:
        found |= dict(re.findall(r"([a-z/]+(?: [a-zA-Z/]+)?) +([-\d.]+(?: %)?)", line))
    return found


async def test_the_status_view_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaystatus, "EVERY", 0.01)
    service = RelayService(ServiceConfig(host="127.0.0.1", port=0, tls=world.server_tls))
    await service.start()
    world.defer(service.close)
    console = recorder()
    task = asyncio.ensure_future(relaystatus.show(service, console))
    await world.until(lambda: console.file.getvalue().count("egress MiB/s") > 2)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
