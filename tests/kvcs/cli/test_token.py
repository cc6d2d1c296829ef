"""kvcs-token: keys of issuers, tokens, and what they say."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kvcs import cose
from kvcs.cli import together
from kvcs.cli.token import main
from kvcs.identity import KVSP_PROFILE_0
from kvcs.issuers import Issuers, load_issuer_key
from kvcs.keys import load_scope_key
from kvcs.scopes import Match, Scope, kvcs_scopes
from kvcs.tokenfile import parse_token, read_token, write_token
from kvcs.tokens import Claims, decode, issue

ID = bytes(range(16))
ISSUE = ("issue", "--key", "acme.key", "--audience", "relay-1")
ONE = (*ISSUE, "--scope-id", ID.hex(), "--read")


def call(*words: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present directory, with the keys of an issuer."""
    monkeypatch.chdir(tmp_path)
    assert call("keygen", "acme").exit_code == 0
    return tmp_path


def verified(token: bytes) -> Claims:
    return decode(cose.verify(token, Issuers(["acme.pem"]).keys, cose.TOKENS).payload)


@pytest.mark.parametrize("kind", ["EdDSA", "ES256"])
def test_keys_of_an_issuer(kind: str, tmp_path: Path) -> None:
    result = call("keygen", tmp_path / "acme", "--kind", kind)
    assert result.exit_code == 0
    issuers = Issuers([tmp_path])
    (kid,) = issuers.keys
    assert issuers.issuer_of(kid) == "acme"
    assert kid.hex() in result.output
    assert stat.S_IMODE((tmp_path / "acme.key").stat().st_mode) == 0o600
    again = call("keygen", tmp_path / "acme", "--json")
    assert again.exit_code == 1
    event = json.loads(again.stdout)
    assert event["kind"] == "OutputFailed"
    assert "exists and is not overwritten" in event["message"]


def test_keys_in_json(tmp_path: Path) -> None:
    event = json.loads(call("keygen", tmp_path / "acme", "--json").stdout)
    assert event["event"] == "keys"
    assert event["issuer"] == "acme"
    assert Path(event["private"]).exists()
    assert bytes.fromhex(event["kid"]) in Issuers([event["public"]]).keys


def test_a_token_for_a_reader(folder: Path) -> None:
    claims = verified(parse_token(call(*ONE).stdout_bytes))
    assert claims.issuer == "acme"
    assert claims.audience == ("relay-1",)
    assert claims.scopes == kvcs_scopes(ID, publish=False, read=True)
    assert claims.issued_at is not None
    assert claims.expires - claims.issued_at == 3600
    assert claims.token_id is not None
    assert len(claims.token_id) == 8
    assert (claims.subject, claims.reval, claims.not_before) == (None, None, None)


def test_a_token_with_everything(folder: Path, scope_key: Path) -> None:
    words = (
        *("--audience", "relay-2", "--scope-key", scope_key, "--scope-id", ID.hex()),
        *("--publish", "--read", "--setup", "--expires", "2d", "--subject", "site-a"),
        *("--reval", "30", "--issuer", "acme", "--out", "t"),
    )
    result = call(*ISSUE, *words)
    assert result.exit_code == 0
    assert "token in t, until " in result.output
    assert stat.S_IMODE(Path("t").stat().st_mode) == 0o600
    claims = verified(read_token(Path("t")))
    own = KVSP_PROFILE_0.scope_id(load_scope_key(scope_key))
    assert claims.scopes == (
        Scope((0,)),
        *kvcs_scopes(ID, publish=True, read=True),
        *kvcs_scopes(own, publish=True, read=True),
    )
    assert claims.audience == ("relay-1", "relay-2")
    assert (claims.subject, claims.reval) == ("site-a", 30.0)
    assert call(*ONE, "--out", "t").exit_code == 0  # the next one, in its place
    assert verified(read_token(Path("t"))).scopes == kvcs_scopes(ID, publish=False, read=True)


def test_a_token_in_json(folder: Path) -> None:
    event = json.loads(call(*ONE, "--json").stdout)
    assert verified(parse_token(event["token"].encode())).issuer == "acme"
    event = json.loads(call(*ONE, "--json", "-o", "t").stdout)
    assert (event["event"], event["out"], event["audience"]) == ("token", "t", ["relay-1"])
    assert "token" not in event
    assert event["scopes"][0]["namespace"] == ["kvcs-1", f"0x{ID.hex()}"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("issue",), "Missing option '--key'"),
        (("issue", "--key", "acme.key"), "Missing option '--audience'"),
        ((*ISSUE, "--scope-id", ID.hex()), "Give --publish, --read or both"),
        ((*ISSUE, "--read"), "Give --scope-key FILE or --scope-id HEX"),
        ((*ISSUE, "--read", "--scope-id", "xx"), "not hexadecimal"),
        ((*ONE, "--expires", "soon"), "90s, 30m, 12h or 7d"),
        ((*ONE, "--expires", "0"), "90s, 30m, 12h or 7d"),
        ((*ONE, "--reval", "-1"), "number of seconds"),
        ((*ONE, "--reval", "90000"), "moqt-reval of 90000 s"),
        ((*ONE, "--subject", "a\nb"), "printable characters"),
        ((*ISSUE, "--read", "--scope-id", "00"), "scope id of 1 octets"),
        (("keygen",), "Missing argument 'NAME'"),
        (("keygen", "other", "--kind", "RSA"), "'RSA' is not one of"),
        (("show",), "Missing argument 'FILE'"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], said: str, folder: Path) -> None:
    before = set(folder.iterdir())
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.output
    event = json.loads(call(*words, "--json").stdout)
    assert (event["kind"], event["exit_code"]) == ("usage", 2)
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*ONE, "--key", "none"), "issuer key none cannot be read"),
        ((*ONE, "--key", "acme.pem"), "no unencrypted private key in PEM"),
        ((*ISSUE, "--read", "--scope-key", "none"), "key file none cannot be read"),
        ((*ONE, "--out", "none/t"), "token file none/t cannot be written"),
        (("show", "none"), "kvcs-token issue makes one"),
        (("show", "acme.key"), "one line of base64url"),
    ],
)
def test_failures(words: tuple[str, ...], said: str, folder: Path) -> None:
    result = call(*words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert json.loads(call(*words, "--json").stdout)["exit_code"] == 1


# ------------------------------------------------------------------------------------------ showing


def put(path: str, *scopes: Scope, **more: object) -> None:
    claims = Claims("acme", ("relay-1",), 4_000_000_000.0, scopes)._replace(**more)
    write_token(Path(path), issue(claims, load_issuer_key("acme.key")))


def test_what_is_shown(folder: Path) -> None:
    odd = Scope((4, 99), (Match(b"a*"), Match(b"b", 1)), longer=False, track=Match(b"\xff", 2))  # type: ignore[arg-type]
    put("t", *kvcs_scopes(ID, publish=True, read=False), odd, subject="s", reval=9.0)
    result = call("show", "t")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith("issuer      acme, key ")
    assert lines[0].endswith("signature NOT verified: give --issuers")
    assert lines[1:] == [
        "audience    relay-1",
        "expires     2096-10-02 07:06:40 UTC",
        "subject     s",
        "checked     again every 9 s",
        "allows      PUBLISH_NAMESPACE, REQUEST_UPDATE, PUBLISH",
        f"  namespace kvcs-1 / 0x{ID.hex()}",
        "allows      SUBSCRIBE, action 99",
        "  namespace 0x612a / b*, no more fields",
        "  track     *0xff",
    ]
    assert "signature verified" in call("show", "t", "--issuers", "acme.pem").output


def test_shown_in_json_and_from_standard_input(folder: Path) -> None:
    put("t", *kvcs_scopes(ID, publish=False, read=True), expires=5.0)
    words = ("--json", "--issuers", ".")
    events = [
        json.loads(call("show", "t", *words).stdout),
        json.loads(call("show", "-", *words, stdin=Path("t").read_bytes()).stdout),
    ]
    assert events[0] == events[1]
    assert events[0]["event"] == "token"
    assert (events[0]["verified"], events[0]["expired"], events[0]["expires"]) == (True, True, 5.0)
    assert "it has expired" in call("show", "t").output
    bad = call("show", "-", stdin=b"?")
    assert bad.exit_code == 1
    assert "standard input: a token is one line" in bad.stderr


def test_the_last_date_that_there_is(folder: Path) -> None:
    put("t", *kvcs_scopes(ID, publish=False, read=True), expires=253_402_300_799)
    assert "expires     9999-12-31 23:59:59 UTC" in call("show", "t").output


def test_a_token_that_nobody_vouches_for(folder: Path) -> None:
    put("t", *kvcs_scopes(ID, publish=False, read=True))
    call("keygen", "other")
    result = call("show", "t", "--issuers", "other.pem")
    assert result.exit_code == 1
    assert "is not known here" in result.stderr
    put("t", *kvcs_scopes(ID, publish=False, read=True), issuer="other")
    result = call("show", "t", "--issuers", "acme.pem")
    assert result.exit_code == 1
    assert "names 'other' as its issuer, but its key is that of 'acme'" in result.stderr
    Path("t").write_text("AAAA")
    assert "does not begin as COSE_Sign1" in call("show", "t").stderr


# ---------------------------------------------------------------------------------------- its place


@pytest.mark.parametrize("command", [main, *main.commands.values()])
def test_help(command: click.Command) -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_help_teaches() -> None:
    told = call("--help").output
    assert "Examples" in told
    assert "kvcs-token issue --key acme.key" in told
    assert "--token-file pub.token" in told


def test_kvcs_has_all_commands(folder: Path) -> None:
    runner = CliRunner()
    told = runner.invoke(together.main, ["--help"]).output
    for name in together.COMMANDS:
        assert f"\n  {name} " in told
    assert runner.invoke(together.main, ["token", *ONE]).exit_code == 0
    unknown = runner.invoke(together.main, ["tokens"])
    assert unknown.exit_code == 2
    assert "No such command 'tokens'" in unknown.output
