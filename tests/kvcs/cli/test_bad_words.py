"""Every command, told something wrong: the exit code says whose fault, the message how to cure it.

2: the words alone show it, those of a configuration or of another file that stands for words
included. 1: a file, the network or a peer is not as it should be.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from kvcs.cli import keygen, pub, relay, sub, together, token
from kvcs.issuers import create_issuer_keys
from kvcs.keys import create_scope_key
from tests.kvcs.cli.caches import descriptor, write_cache
from transport.certificates import write_test_certificates

pytestmark = pytest.mark.e2e

COMMANDS = {
    "pub": pub.main,
    "sub": sub.main,
    "relay": relay.main,
    "keygen": keygen.main,
    "token": token.main,
    "kvcs": together.main,
}
FRAGMENT = "kvcs:kvcs.2d1-" + "-".join(".00" * count for count in (16, 32, 32, 16))
IDS = f"--scope-id {'00' * 16} --compat-id {'11' * 32} --anchor-key {'22' * 32}"
NAME = f"{IDS} --publication-id {'33' * 16}"
NOBODY = "moqt://127.0.0.1:1/"
TLS = "--cert tls/server.pem --key tls/server.key"
PUB = f"pub cache --scope-key scope.key --block-tokens 8 --relay {NOBODY}"
PUB_LISTENS = f"pub cache --scope-key scope.key --block-tokens 8 --listen 127.0.0.1:0 {TLS}"
SUB = f"sub {NOBODY} --scope-key scope.key --like cache --block-tokens 8"
RELAY = f"relay --listen 127.0.0.1:0 {TLS}"
OPEN = f"{RELAY} --open"
UP = f"{OPEN} --upstream {NOBODY}"
ISSUE = "token issue --key acme.key --audience a --scope-key scope.key --read"

#: Words, exit code, and what the message says: the input, the rule, the fix.
CASES: list[tuple[str, int, str, str, str]] = [
    # kvcs-pub: words
    ("pub", 2, "CACHE", "Missing argument", "--help"),
    ("pub cache --bogus", 2, "--bogus", "No such option", "--help"),
    ("pub cache --scope-key scope.key", 2, "--listen", "either", "--relay URL"),
    (f"{PUB} --listen 127.0.0.1:0 {TLS}", 2, "--relay URL", "either", "--listen HOST:PORT"),
    ("pub cache --scope-key scope.key --listen 127.0.0.1:0", 2, "--listen", "needs", "kvcs-keygen"),
    (f"{PUB} --cert tls/server.pem", 2, "--cert", "go with --listen", "use --ca FILE"),
    (f"{PUB_LISTENS} --insecure", 2, "--insecure", "go with", "--relay URL"),
    (f"{PUB} --insecure --ca tls/ca.pem", 2, "--insecure", "no certificate", "leave --ca"),
    (f"{PUB} --insecure --token-file x", 2, "--token-file", "never with --insecure", "--relay URL"),
    (f"{PUB_LISTENS} --token-file x", 2, "--token-file", "goes with", "--relay URL"),
    (f"pub cache --relay {NOBODY}", 2, "scope", "in which", "Give --scope-key FILE"),
    (f"pub cache --relay {NOBODY} --scope-id 00", 2, "--compat-id", "all four", "missing"),
    (f"{PUB} {NAME}", 2, "--scope-key", "computes the identifiers", "out"),
    (f"pub cache --relay {NOBODY} {NAME} --scope-id 00", 2, "scope id", "1 octets", "16"),
    (f"{PUB} --scope-id xx", 2, "'xx'", "not hexadecimal", "--help"),
    ("pub cache --relay http://a/", 2, "--relay", "http", "use moqt://"),
    ("pub cache --listen 4443", 2, "'4443'", "no address", "write HOST:PORT"),
    ("pub cache --listen h:65536", 2, "'h:65536'", "no address", "write HOST:PORT"),
    (f"{PUB} --pace nan", 2, "--pace", "'nan'", "write a number of seconds"),
    (f"{PUB} --linger -1", 2, "--linger", "'-1'", "write a number of seconds"),
    (f"{PUB} --block-tokens 0", 2, "--block-tokens", "0 is not in the range", "x>=1"),
    (f"{PUB} --tokens 1,x", 2, "--tokens", "'x'", "integers from 0"),
    (f"{PUB} --tokens @bad", 2, "--tokens", "no UTF-8", "must hold token ids"),
    (f"{PUB} --loop trio", 2, "--loop", "'trio'", "asyncio"),
    (f"{PUB} --descriptor empty.json", 2, "empty.json", "JSON object", "write a JSON object"),
    (f"{PUB} --descriptor bad", 2, "bad", "not UTF-8", "write a JSON object"),
    # kvcs-pub: files, network
    (f"{PUB} --descriptor none", 1, "--descriptor: file none", "cannot be read", "name another"),
    (f"{PUB} --tokens @none", 1, "--tokens: file none", "cannot be read", "name another"),
    (f"{PUB} --tokens 1,2", 1, "--tokens", "2 token ids", "give one id for each"),
    (f"{PUB} --block-tokens 25", 1, "cache", "no block of 25", "--block-tokens 24 or less"),
    (f"{PUB} --descriptor five.json", 1, "--descriptor", "layers 5", "let them agree"),
    (f"pub none --scope-key scope.key --relay {NOBODY}", 1, "none", "cannot be read", "No such"),
    (f"pub bad --scope-key scope.key --relay {NOBODY}", 1, "file bad", "safetensors", "8 octets"),
    (PUB.replace("scope.key", "none"), 1, "none", "cannot be read", "kvcs-keygen"),
    (PUB.replace("scope.key", "bad"), 1, "key file bad", "must hold", "kvcs-keygen"),
    (f"{PUB} --token-file none", 1, "none", "cannot be read", "kvcs-token issue makes one"),
    (f"{PUB} --token-file bad", 1, "bad", "base64url text", "kvcs-token issue makes one"),
    (f"{PUB} --token-file scope.key", 1, "scope.key", "not a token", "kvcs-token issue makes one"),
    (f"{PUB} --token-file words", 1, "words", "holds no token", "kvcs-token issue makes one"),
    (f"{PUB} --ca none", 1, "CA file none", "cannot be read: No such", "give a PEM file"),
    (f"{PUB} --ca bad", 1, "CA file bad", "holds no certificate in PEM", "give a PEM file"),
    (PUB, 1, NOBODY, "nothing answers at 127.0.0.1 port 1", "check host and port"),
    (f"{PUB} --trace none/x", 1, "none/x", "cannot be written", "choose another --trace"),
    (f"{PUB_LISTENS} --listen 127.0.0.1:TAKEN", 1, "TAKEN", "in use", "choose another"),
    (f"{PUB_LISTENS} --listen 192.0.2.1:0", 1, "192.0.2.1", "cannot", "choose another"),
    (f"{PUB_LISTENS} --cert none", 1, "certificate file none", "cannot be read", "give a PEM"),
    (f"{PUB_LISTENS} --cert bad", 1, "certificate file bad", "no certificate in PEM", "give a PEM"),
    (f"{PUB_LISTENS} --key none", 1, "key file none", "cannot be read: No such", "give a PEM"),
    (f"{PUB_LISTENS} --key bad", 1, "key file bad", "no private key in PEM", "give a PEM"),
    (f"{PUB_LISTENS} --key sealed", 1, "key file sealed", "encrypted", "unencrypted PEM key"),
    (f"{PUB_LISTENS} --key acme.key", 1, "acme.key", "is not the key of", "made together"),
    # kvcs-sub: words
    ("sub", 2, "--listen", "either", "URL"),
    (f"sub {NOBODY}", 2, "--like FILE", "which publication?", "Give --scope-key FILE"),
    (f"sub {NOBODY}#{FRAGMENT} {NAME}", 2, "URL", "#kvcs", "needs no --scope-id"),
    (f"sub {NOBODY}#{FRAGMENT} {NOBODY}#kvcs:x", 2, "URLs", "different", "one at a time"),
    (f"sub {NOBODY}#kvcs:x", 2, "URL", "five fields", "take the one that kvcs-pub printed"),
    (f"sub {NOBODY}#nonsense", 2, "nonsense", "fragment is not type:value", "--help"),
    (f"sub {NOBODY}#{FRAGMENT} --model m", 2, "--model", "go with --like", "--descriptor"),
    (f"{SUB} --descriptor four.json", 2, "--like and --descriptor", "say the same", "leave one"),
    (f"{SUB} --layers 9-3", 2, "--layers", "'9-3'", "write FIRST-LAST"),
    (f"{SUB} --mode fast", 2, "--mode", "'fast'", "completed"),
    (f"{SUB} --segment -1", 2, "--segment", "-1 is not in the range", "x>=0"),
    (f"{SUB} --timeout soon", 2, "--timeout", "'soon'", "write a number of seconds"),
    (
        f"sub {NOBODY} --scope-key scope.key --descriptor four.json --tokens 1",
        *(2, "the prompt", "no block of 8", "smaller --block-tokens"),
    ),
    # kvcs-sub: files, network
    (f"{SUB} --block-tokens 25", 1, "the prompt", "no block of 25", "smaller --block-tokens"),
    (f"{SUB} --like none", 1, "none", "cannot be read", "No such"),
    (f"{SUB} -o none/out", 1, "none/out", "no such directory", "make it, or choose another --out"),
    (SUB, 1, NOBODY, "nothing answers", "check host and port"),
    (f"{SUB} --ca tls/server.key", 1, "tls/server.key", "no certificate in PEM", "give a PEM file"),
    # kvcs-relay: words
    ("relay", 2, "where to listen?", "Give", "--listen HOST:PORT"),
    ("relay --listen 127.0.0.1:0", 2, "--cert FILE and --key FILE", "give", "kvcs-keygen"),
    (RELAY, 2, "who may use it?", "either --issuers PATH", "--open"),
    (
        f"{RELAY} --issuers acme.pem",
        2,
        "audience",
        "what tokens call this relay",
        "--audience NAME",
    ),
    (f"{RELAY} --audience a", 2, "who may use it?", "either --issuers PATH", "--open"),
    (f"{OPEN} --issuers acme.pem", 2, "--issuers PATH", "either", "--open"),
    (f"{OPEN} --audience a", 2, "--open", "asks for no token", "leave --audience out"),
    (f"{OPEN} --status --json", 2, "--status", "draws on the terminal", "one"),
    (f"{OPEN} --upstream-ca tls/ca.pem", 2, "--upstream-ca", "go with", "--upstream URL"),
    (f"{OPEN} --cache 8GB", 2, "--cache", "'8GB'", "8GiB"),
    (f"{OPEN} --metrics x", 2, "--metrics", "'x'", "write HOST:PORT"),
    (f"{OPEN} --upstream http://a/", 2, "--upstream", "http", "use moqt://"),
    ("relay --config bad", 2, "configuration bad", "line 2 is no UTF-8", "save the file as UTF-8"),
    ("relay --config colon.toml", 2, "colon.toml", "no TOML", "write NAME = VALUE"),
    ("relay --config typo.toml", 2, "typo.toml: lisen", "no such setting", "docs/relay.md"),
    ("relay --config tracks.toml", 2, "limits.max_tracks", "-3", "write a whole number"),
    ("relay --config zero.toml", 2, "limits.linger", "'5s'", "write seconds"),
    # kvcs-relay: files, network
    ("relay --config none", 1, "configuration none", "cannot be read: No such", "--config"),
    (f"{RELAY} --issuers none --audience a", 1, "none", "no such file", "kvcs-token keygen"),
    (f"{RELAY} --issuers bad --audience a", 1, "file bad", "must hold public keys", "PEM"),
    (f"{RELAY} --issuers acme.key --audience a", 1, "acme.key", "private key", "put the public"),
    (f"{RELAY} --issuers tls --audience a", 1, "tls/ca.pem", "must hold public keys", "PEM"),
    (f"{RELAY} --issuers void --audience a", 1, "no issuer", "is trusted", "kvcs-token keygen"),
    (f"{OPEN} --cert none", 1, "certificate file none", "cannot be read", "give a PEM certificate"),
    (f"{OPEN} --key acme.key", 1, "acme.key", "is not the key of", "made together"),
    (f"{OPEN} --spill bad", 1, "bad", "directory", "spill"),
    (f"{OPEN} --trace none/x", 1, "none/x", "cannot be written", "choose another --trace"),
    (f"{OPEN} --listen 127.0.0.1:TAKEN", 1, "TAKEN", "in use", "choose another"),
    (f"{OPEN} --metrics 127.0.0.1:TAKEN", 1, "TAKEN", "in use", "choose another --metrics"),
    (f"{UP} --upstream-ca none --check", 1, "CA file none", "cannot be read", "give a PEM file"),
    (f"{UP} --upstream-token-file none", 1, "none", "cannot be read", "kvcs-token issue"),
    (f"{UP} --upstream-token-file words --check", 1, "words", "holds no token", "kvcs-token issue"),
    # kvcs-keygen
    ("keygen bogus", 2, "'bogus'", "No such command", "--help"),
    ("keygen scope-key", 2, "FILE", "Missing argument", "--help"),
    ("keygen certificate new --days 0", 2, "--days", "0 is not in the range", "1<=x<=397"),
    ("keygen certificate new --name ä..b", 2, "--name", "ä..b", "neither a host name nor an IP"),
    ("keygen certificate new --name ", 2, "--name", "''", "neither a host name nor an IP"),
    ("keygen scope-key scope.key", 1, "scope.key", "not overwritten", "remove it first"),
    ("keygen scope-key none/key", 1, "none/key", "cannot be written", "No such"),
    ("keygen certificate tls", 1, "tls/ca.pem", "not overwritten", "name another directory"),
    ("keygen certificate bad", 1, "bad", "directory", "another"),
    # kvcs-token
    ("token bogus", 2, "'bogus'", "No such command", "--help"),
    ("token issue --audience a", 2, "--key", "Missing option", "--help"),
    ("token issue --key acme.key", 2, "--audience", "Missing option", "--help"),
    (ISSUE.replace(" --read", ""), 2, "what is it for?", "Give", "--publish, --read or both"),
    (ISSUE.replace(" --scope-key scope.key", ""), 2, "for which scope?", "Give", "--scope-id HEX"),
    (f"{ISSUE} --scope-id 00", 2, "--scope-id", "1 octets", "16"),
    (f"{ISSUE} --expires 5x", 2, "--expires", "'5x'", "write how long, such as 90s"),
    (f"{ISSUE} --expires 0", 2, "--expires", "'0'", "write how long, such as 90s"),
    (f"{ISSUE} --reval 0.1", 2, "reval", "0.1 s", "0 is never"),
    (f"{ISSUE} --subject {'x' * 999}", 2, "--subject", "a name is text", "printable"),
    (f"{ISSUE} --audience ", 2, "--audience", "a name is text", "printable"),
    ("token keygen acme --kind RSA", 2, "--kind", "'RSA'", "EdDSA"),
    (f"{ISSUE} --key none", 1, "issuer key none", "cannot be read", "kvcs-token keygen"),
    (f"{ISSUE} --key bad", 1, "issuer key bad", "no unencrypted private key", "kvcs-token keygen"),
    (f"{ISSUE} --scope-key none", 1, "key file none", "cannot be read", "kvcs-keygen"),
    (f"{ISSUE} --out none/t", 1, "none/t", "cannot be written", "No such"),
    ("token keygen acme", 1, "acme.key", "not overwritten", "remove it, or name another"),
    ("token show none", 1, "token file none", "cannot be read", "kvcs-token issue"),
    ("token show bad", 1, "token file bad", "base64url text", "kvcs-token issue"),
    ("token show words", 1, "token", "COSE_Sign1", "kvcs-token issue"),
    ("token show good --issuers other.pem", 1, "token", "is not known here", "--issuers"),
    # kvcs
    ("kvcs bogus", 2, "'bogus'", "No such command", "--help"),
    ("kvcs relay", 2, "where to listen?", "Give", "--listen HOST:PORT"),
    ("kvcs token bogus", 2, "'bogus'", "No such command", "--help"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files and bad ones."""
    made = tmp_path_factory.mktemp("words")
    write_cache(made / "cache")
    create_scope_key(made / "scope.key")
    tls = write_test_certificates(made / "tls")
    for name in ("acme", "other"):
        create_issuer_keys(made / f"{name}.key", made / f"{name}.pem", "ES256")
    key = load_pem_private_key(tls.private_key.read_bytes(), None)
    lock = BestAvailableEncryption(b"x")
    (made / "sealed").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    (made / "bad").write_bytes(b"x = 1\n\xff\xfe")
    (made / "words").write_text("aGVsbG8gd29ybGQ\n")
    (made / "void").mkdir()
    (made / "empty.json").write_text("[]")
    for name, layers in (("four", 4), ("five", 5)):
        (made / f"{name}.json").write_text(json.dumps(descriptor(layers).to_json()))
    for name, text in (
        ("colon", "listen: 1"),
        ("typo", "lisen = 1"),
        ("tracks", "[limits]\nmax_tracks = -3"),
        ("zero", "[limits]\nlinger = '5s'"),
    ):
        (made / f"{name}.toml").write_text(text)
    return made


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """A port in use, by UDP and TCP."""
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", one.getsockname()[1]))
        two.listen()
        yield str(one.getsockname()[1])


def run(words: list[str]) -> tuple[int, str, str]:
    command: click.Command = COMMANDS[words[0]]
    done = CliRunner().invoke(command, words[1:])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:60])
def test_what_is_wrong_is_named_with_its_rule_and_its_cure(
    case: tuple[str, int, str, str, str], folder: Path, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, code, *said = case
    monkeypatch.chdir(folder)
    if "token show good" in line:
        run([*ISSUE.split(), "--out", "good"])
    words = line.replace("TAKEN", taken).split(" ")
    found, output, told = run(words)
    assert found == code, told
    plain = " ".join((told or output).replace("|", " ").split())
    for part in said:
        assert part.replace("TAKEN", taken) in plain, plain
    for raw in ("Traceback", "[Errno", "codec", "https://cryptography", "internal fault"):
        assert raw not in plain
    # For a program: one event, nothing else, and it is the last.
    found, output, told = run([*words, "--json"])
    if words[0] == "keygen" or (words[0] == "kvcs" and "keygen" in words):
        return  # it has nothing for programs
    events = [json.loads(one) for one in output.splitlines()]
    assert (found, told) == (code, "")
    assert [event["event"] for event in events] == ["error"]
    assert events[0]["exit_code"] == code
    assert (events[0]["kind"] == "usage") == (code == 2)


def test_every_command_has_cases_of_both_kinds() -> None:
    told = {(line.split(" ")[0], code) for line, code, *_ in CASES}
    assert told >= {(name, code) for name in COMMANDS if name != "kvcs" for code in (1, 2)}
