"""kvcs.cli.relayfile: the configuration file, member by member."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import click
import pytest

from kvcs.cli import relayfile
from kvcs.cli.relayfile import RelayFile, UpstreamEntry, load, parse_prefix, parse_size
from kvcs.cli.values import Address
from kvcs.errors import InvalidInput
from moqt.relay.admission import AdmissionLimits
from moqt.relay.config import RelayConfig
from tests.architecture.sources import ROOT
from transport.url import MoqtUrl

EVERYTHING = """
listen = "0.0.0.0:4443"
cert = "server.pem"
key = "/etc/kvcs/server.key"
metrics = "127.0.0.1:9464"
successor = "moqt://other.example:4443/"
drain = 2
peer_timeout = 5

[cache]
memory = "8GiB"
directory = "spill"
disk = 1099511627776

[auth]
issuers = ["issuers", "/etc/kvcs/acme.pem"]
audience = ["relay-1", "relays"]
client_ca = ["clients-ca.pem"]
clients = "clients.toml"
require_certificate = true

[[upstream]]
url = "moqt://origin.example:4443/kv"
prefixes = ["kvcs-1/hex:00ff", "other"]
ca = "ca.pem"
server_name = "origin"
token_file = "origin.token"
client_cert = "edge.pem"
client_key = "edge.key"

[[upstream]]
url = "moqt://last.example/"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "relay.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    """Wrong words, wherever they stand: usage."""
    path = write(folder, text)
    with pytest.raises(click.UsageError) as caught:
        load(path)
    before, _, told = caught.value.message.partition(f"configuration {path}: ")
    assert before == ""
    return told


def test_every_member(tmp_path: Path) -> None:
    assert load(write(tmp_path, EVERYTHING)) == RelayFile(
        listen=Address("0.0.0.0", 4443),
        cert=tmp_path / "server.pem",
        key=Path("/etc/kvcs/server.key"),
        metrics=Address("127.0.0.1", 9464),
        successor="moqt://other.example:4443/",
        drain=2.0,
        peer_timeout=5.0,
        memory=8 << 30,
        spill_directory=tmp_path / "spill",
        spill=1 << 40,
        issuers=(tmp_path / "issuers", Path("/etc/kvcs/acme.pem")),
        audience=("relay-1", "relays"),
        client_ca=(tmp_path / "clients-ca.pem",),
        clients=tmp_path / "clients.toml",
        require_certificate=True,
        upstreams=(
            UpstreamEntry(
                url=MoqtUrl.parse("moqt://origin.example:4443/kv"),
                prefixes=((b"kvcs-1", b"\x00\xff"), (b"other",)),
                ca=tmp_path / "ca.pem",
                server_name="origin",
                token_file=tmp_path / "origin.token",
                client_cert=tmp_path / "edge.pem",
                client_key=tmp_path / "edge.key",
            ),
            UpstreamEntry(url=MoqtUrl.parse("moqt://last.example/")),
        ),
    )


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")) == RelayFile()
    assert UpstreamEntry(url=MoqtUrl.parse("moqt://a/")).prefixes == ((),)


def test_open(tmp_path: Path) -> None:
    assert load(write(tmp_path, "[auth]\nopen = true")).open is True
    assert load(write(tmp_path, "[auth]\nopen = false")).open is False


def limits() -> list[tuple[str, int | float]]:
    """Every limit and a value that is not its default."""
    found = (*dataclasses.fields(RelayConfig), *dataclasses.fields(AdmissionLimits))
    return [(one.name, one.default + 3) for one in found if one.name != "cache"]


@pytest.mark.parametrize(("name", "value"), limits())
def test_every_limit(tmp_path: Path, name: str, value: float) -> None:
    found = load(write(tmp_path, f"[limits]\n{name} = {value}"))
    holder = found.relay if hasattr(found.relay, name) else found.admission
    assert getattr(holder, name) == value
    assert type(getattr(holder, name)) is type(value)
    assert dataclasses.replace(found, relay=RelayConfig(), admission=AdmissionLimits()) == (
        RelayFile()
    )


@pytest.mark.parametrize(("name", "value"), limits())
def test_a_limit_says_what_it_counts(tmp_path: Path, name: str, value: float) -> None:
    """The message for a wrong value is in the unit that the page names."""
    told = refusal(tmp_path, f"[limits]\n{name} = 'x'")
    page = (ROOT / "docs" / "relay.md").read_text("utf-8")
    (unit,) = re.findall(rf"^\| `{name}` \| [^|]* \| ([^|]*) \|", page, re.M)
    rules = {
        "octets": "write octets, such as 1048576",
        "octets a second": "write octets a second",
        "seconds": "write seconds",
        "requests a second": "write how many a second",
        "requests": "write how many requests",
    }
    assert rules.get(unit, "write a whole number") in told


@pytest.mark.parametrize(("name", "value"), limits())
def test_a_limit_at_zero(tmp_path: Path, name: str, value: float) -> None:
    text = f"[limits]\n{name} = 0"
    if name in relayfile._ZERO:
        load(write(tmp_path, text))
    else:
        assert refusal(tmp_path, text) == (
            f"limits.{name}: 0 lets nobody in; write a number above 0"
        )


def test_zero_is_not_the_default(tmp_path: Path) -> None:
    found = load(write(tmp_path, "drain = 0\n[cache]\nmemory = 0\ndisk = 0"))
    assert (found.drain, found.memory, found.spill) == (0.0, 0, 0)


ADDRESS = "is no address: write HOST:PORT"
TEXT = "write text"
SECONDS = "write seconds, 0 or more"
COUNT = "write a whole number"
SIZE = "write octets, such as 1048576, 512MiB or 8GiB"
TEXTS = "write a list of texts"
UNKNOWN = "no such setting; see docs/relay.md"


@pytest.mark.parametrize(
    ("text", "member", "said"),
    [
        ('listen = "4443"', "listen", ADDRESS),
        ("listen = 4443", "listen", "write text"),
        ('metrics = "a:b:c"', "metrics", ADDRESS),
        ("cert = 1", "cert", TEXT),
        ('key = ""', "key", TEXT),
        ('successor = "http://a/"', "successor", "use moqt://"),
        ("drain = -1", "drain", SECONDS),
        ("drain = nan", "drain", SECONDS),
        ("drain = inf", "drain", SECONDS),
        ("drain = true", "drain", SECONDS),
        ("peer_timeout = 0.5", "peer_timeout", "0.5: write 1 to 30 seconds"),
        ("peer_timeout = 31", "peer_timeout", "31: write 1 to 30 seconds"),
        ("peer_timeout = true", "peer_timeout", SECONDS),
        ("cache = 8", "cache", "write it as a table, [name]"),
        ('[cache]\nmemory = "8 GB"', "cache.memory", SIZE),
        ("[cache]\nmemory = -1", "cache.memory", SIZE),
        ("[cache]\nmemory = true", "cache.memory", SIZE),
        ("[cache]\ndisk = 1.5", "cache.disk", SIZE),
        ("[cache]\ndirectory = []", "cache.directory", TEXT),
        ('[auth]\nissuers = "a"', "auth.issuers", TEXTS),
        ("[auth]\naudience = [1]", "auth.audience", TEXTS),
        ("[auth]\nopen = 1", "auth.open", "write true or false"),
        ("[upstream]\nurl = 'moqt://a/'", "upstream", "write it as [[upstream]]"),
        ("[[upstream]]\nurl = 'a'", "upstream 1: url", "moqt://"),
        ("[[upstream]]\nca = 'a'", "upstream 1: url", "is missing: write moqt://HOST:PORT/"),
        (
            "[[upstream]]\nurl = 'moqt://a/'\nprefixes = 'a'",
            "upstream 1: prefixes",
            TEXTS,
        ),
        (
            "[[upstream]]\nurl = 'moqt://a/'\nprefixes = ['a//b']",
            "upstream 1: prefixes",
            "prefix 'a//b': a field is empty",
        ),
        (
            "[[upstream]]\nurl = 'moqt://a/'\nprefixes = ['hex:0']",
            "upstream 1: prefixes",
            "'hex:0' is no hexadecimal number",
        ),
        (
            "[[upstream]]\nurl = 'moqt://a/'\nprefixes = []",
            "upstream 1: prefixes",
            "leave it out for every namespace",
        ),
        ("[[upstream]]\nurl = 'moqt://a/'\nx = 1", "upstream 1: x", UNKNOWN),
        ('[limits]\nbacklog = "much"', "limits.backlog", SIZE),
        ("[limits]\nmax_tracks = -3", "limits.max_tracks", COUNT),
        ('[limits]\nmax_tracks = "64KiB"', "limits.max_tracks", COUNT),
        ("[limits]\nmax_fetches = 1.5", "limits.max_fetches", COUNT),
        ("[limits]\nidentities = true", "limits.identities", COUNT),
        ("[limits]\nsession_rate = -1", "limits.session_rate", "write how many a second"),
        ("[limits]\nidentity_burst = 'a'", "limits.identity_burst", "write how many requests"),
        ("[limits]\negress = -1", "limits.egress", "write octets a second"),
        ('[limits]\nlinger = "5s"', "limits.linger", SECONDS),
        ("[limits]\ncache = 5", "limits.cache", UNKNOWN),
        ("[auth]\nclient = 'a'\n[limits]\nx = 1", "auth.client", UNKNOWN),
        ("[auth]\nclient_ca = 'a'", "auth.client_ca", TEXTS),
        ("[auth]\nclients = ['a']", "auth.clients", TEXT),
        ("[auth]\nrequire_certificate = 1", "auth.require_certificate", "write true or false"),
        (
            "[[upstream]]\nurl = 'moqt://a/'\nclient_cert = 'a'",
            "upstream 1: client_cert and client_key belong together",
            "give both",
        ),
        ("lisen = 'a:1'", "lisen", UNKNOWN),
    ],
)
def test_a_bad_member_is_named_with_its_rule(
    tmp_path: Path, text: str, member: str, said: str
) -> None:
    told = refusal(tmp_path, text)
    assert told.startswith(f"{member}: ")
    assert said in told


def test_all_unknown_members_of_a_table_at_once(tmp_path: Path) -> None:
    assert refusal(tmp_path, "b = 1\na = 2").startswith("a, b: no such setting")


def test_no_toml(tmp_path: Path) -> None:
    assert "line 1" in refusal(tmp_path, "listen: 1")
    path = tmp_path / "relay.toml"
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(click.UsageError, match="line 1 is no UTF-8 text: save the file as UTF-8"):
        load(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be read: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayfile, "MAX_FILE", 8)
    assert refusal(tmp_path, "#" * 9) == "more than 8 octets: it is another kind of file"
    load(write(tmp_path, "#" * 8))


@pytest.mark.parametrize(
    ("text", "octets"),
    [
        (0, 0),
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("2KiB", 2048),
        ("2 MiB", 2 << 20),
        ("3GiB", 3 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: object, octets: int) -> None:
    assert parse_size(text) == octets


@pytest.mark.parametrize("text", ["", "-1", "1.5GiB", "1GB", "GiB", "\u0661", None, 1.0, "1" * 13])
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="write octets"):
        parse_size(text)


def test_prefixes() -> None:
    assert parse_prefix("") == ()
    assert parse_prefix("kvcs-1") == (b"kvcs-1",)
    assert parse_prefix("a/hex:6d1c/ä") == (b"a", b"\x6d\x1c", "ä".encode())


# -------------------------------------------------------------------------------------- its page


def members(table: str) -> dict[str, str]:
    """The rows of a table of docs/relay.md: member and default."""
    page = (ROOT / "docs" / "relay.md").read_text("utf-8")
    section = page[page.index("## Configuration") : page.index("## Closed to strangers")]
    head, *rest = re.split(r"^### `(.*)`$", section, flags=re.M)
    parts = {"": head, **dict(zip(rest[::2], rest[1::2], strict=True))}
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", parts[table], re.M)
    return {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_page_names_every_member() -> None:
    written = tomllib.loads(EVERYTHING)
    told = {table: set(members(table)) for table in ("", "[cache]", "[auth]", "[[upstream]]")}
    assert told[""] == {name for name, value in written.items() if isinstance(value, str | int)}
    assert told["[cache]"] == set(written["cache"])
    assert told["[auth]"] == {*written["auth"], "open"}
    assert told["[[upstream]]"] == set(written["upstream"][0])


def test_the_page_has_every_limit_with_its_default() -> None:
    found = (*dataclasses.fields(RelayConfig), *dataclasses.fields(AdmissionLimits))
    defaults = {one.name: float(one.default) for one in found if one.name != "cache"}
    assert {name: float(value) for name, value in members("[limits]").items()} == defaults


def test_the_defaults_on_the_page() -> None:
    file = RelayFile()
    assert float(members("")["drain"]) == file.drain
    assert float(members("")["peer_timeout"]) == file.peer_timeout
    sizes = members("[cache]")
    assert parse_size(sizes["memory"].strip('`"')) == file.memory
    assert parse_size(sizes["disk"].strip('`"')) == file.spill
