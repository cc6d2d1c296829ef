"""Usage of kvcs-pub and kvcs-sub: what is refused before anything is sent, and how."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kvcs.cli import keygen, pub, sub
from tests.kvcs.cli.caches import descriptor, write_cache

URL = "moqt://localhost:4443/kv"
FRAGMENT = "kvcs:kvcs.2d1-" + "-".join(".00" * count for count in (16, 32, 32, 16))
IDS = (
    *("--scope-id", "00" * 16, "--compat-id", "11" * 32),
    *("--anchor-key", "22" * 32, "--publication-id", "33" * 16),
)


def call(command: click.Command, *words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.mark.parametrize("command", [pub.main, sub.main])
def test_help_teaches(command: click.Command) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert "--scope-key scope.key" in result.output
    assert "Exit code" in result.output


def test_help_tells_what_comes_out() -> None:
    told = " ".join(call(sub.main, "--help").output.split())
    assert "in the dtype that was published, of whole blocks only" in told
    assert '"tokens" as 32-bit integers (U32)' in told
    assert "one for more tokens than yours is not found" in told
    assert "FIRST-LAST, such as 8-15, or one layer" in told
    assert "moqt://127.0.0.1:4443/#kvcs:" in told
    assert "--name localhost" not in call(pub.main, "--help").output


@pytest.mark.parametrize("command", [pub.main, sub.main, keygen.main])
def test_version(command: click.Command) -> None:
    assert call(command, "--version").output.split()[-1] == version("kvcs")


def test_both_commands_name_shared_options_alike() -> None:
    names = [{p.name: p.opts for p in command.params} for command in (pub.main, sub.main)]
    shared = names[0].keys() & names[1].keys()
    assert {"scope_key", "listen", "ca", "json", "hold", "loop", "verbose", "tokens"} <= shared
    assert all(names[0][name] == names[1][name] for name in shared)


PUB_LISTENS = ("cache", "--scope-key", "k", "--listen", "h:1", "--cert", "c", "--key", "k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing argument 'CACHE'"),
        (("cache", "--scope-key", "k"), "either --listen HOST:PORT or --relay URL"),
        ((*PUB_LISTENS, "--relay", URL), "either --listen HOST:PORT or --relay URL"),
        (("cache", "--listen", "h:1"), "--listen needs --cert FILE and --key FILE"),
        (("cache", "--relay", URL, "--cert", "c"), "--cert and --key go with --listen"),
        ((*PUB_LISTENS, "--insecure"), "--insecure go with --relay URL"),
        (("cache", "--relay", URL, "--insecure", "--ca", "c"), "--insecure checks no certificate"),
        (("cache", "--relay", URL, "--insecure", "--token-file", "t"), "never with --insecure"),
        ((*PUB_LISTENS, "--token-file", "t"), "--token-file goes with --relay URL"),
        (("cache", "--relay", URL, "--client-cert", "c"), "counts only with its private key"),
        (("cache", "--relay", URL, "--client-key", "k"), "counts only with its private key"),
        (
            (*PUB_LISTENS, "--client-cert", "c", "--client-key", "k"),
            "--client-key go with --relay URL",
        ),
        (("cache", "--relay", URL), "Give --scope-key FILE"),
        (("cache", "--relay", URL, "--scope-id", "00" * 16), "--compat-id, --anchor-key"),
        (("cache", "--relay", URL, *IDS, "--scope-key", "k"), "leave it or the ready-made ones"),
        (("cache", "--relay", URL, "--scope-id", "xx"), "scope id 'xx': not hexadecimal"),
        (("cache", "--relay", "http://a"), "use moqt://"),
        (("cache", "--listen", "4443"), "write HOST:PORT"),
        (("cache", "--pace", "nan"), "number of seconds"),
        (("cache", "--block-tokens", "0"), "0 is not in the range"),
        (("cache", "--loop", "trio"), "'trio' is not one of"),
    ],
)
def test_wrong_usage_of_pub(words: tuple[str, ...], said: str) -> None:
    result = call(pub.main, *words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "either --listen HOST:PORT or URL"),
        ((URL,), "Give --scope-key FILE, --like FILE or --descriptor FILE.json, --tokens IDS"),
        ((URL, "--scope-key", "k", "--tokens", "1"), "Give --like FILE or --descriptor FILE.json;"),
        ((f"{URL}#{FRAGMENT}", *IDS), "needs no --scope-id"),
        ((f"{URL}#{FRAGMENT}", f"{URL}#kvcs:other"), "name different publications"),
        ((f"{URL}#{FRAGMENT}", "--model", "m"), "go with --like"),
        ((f"{URL}#{FRAGMENT}", "--layers", "9-3"), "write FIRST-LAST"),
        ((f"{URL}#{FRAGMENT}", "--mode", "fast"), "'fast' is not one of"),
        ((f"{URL}#{FRAGMENT}", "--blocks", "0"), "0 is not in the range"),
        ((f"{URL}#nonsense",), "fragment is not type:value"),
    ],
)
def test_wrong_usage_of_sub(words: tuple[str, ...], said: str) -> None:
    result = call(sub.main, *words)
    assert result.exit_code == 2
    assert said in result.output


def test_like_or_descriptor_not_both(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps(descriptor(4).to_json()))
    words = ("--like", cache, "--descriptor", tmp_path / "d.json")
    result = call(sub.main, f"{URL}#{FRAGMENT}", *words)
    assert result.exit_code == 2
    assert "leave one out" in result.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (pub.main, ("cache", "--json", "--pace", "x")),
        (sub.main, ("--json",)),
        (sub.main, ("--json", "--bogus")),
    ],
)
def test_wrong_usage_in_json(command: click.Command, words: tuple[str, ...]) -> None:
    result = call(command, *words)
    assert result.exit_code == 2
    (line,) = result.stdout.splitlines()
    event = json.loads(line)
    assert (event["event"], event["kind"], event["exit_code"]) == ("error", "usage", 2)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ((), "auto"),
        (("--live",), "live"),
        (("--completed",), "completed"),
        (("--mode", "live"), "live"),
        (("--mode", "completed"), "completed"),
    ],
)
def test_mode_and_its_short_forms(flags: tuple[str, ...], mode: str) -> None:
    context = sub.main.make_context("kvcs-sub", [*flags, URL])
    assert context.params["mode"] == mode


# ------------------------------------------------------------------- files and prompts: exit code 1


def publish(cache: Path, scope_key: Path, *words: object) -> Result:
    """Refused before it dials: nothing answers at port 1."""
    dial = ("--relay", "moqt://127.0.0.1:1/")
    return call(pub.main, cache, "--scope-key", scope_key, *dial, *words)


def test_a_file_of_another_kind(scope_key: Path) -> None:
    result = publish(scope_key, scope_key)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: file {scope_key}: ")
    assert "Traceback" not in result.output


def test_no_file(tmp_path: Path, scope_key: Path) -> None:
    result = publish(tmp_path / "none", scope_key)
    assert result.exit_code == 1
    assert "cannot be read: No such file" in result.stderr


def test_shapes_disagree(tmp_path: Path, scope_key: Path) -> None:
    cache = write_cache(tmp_path / "odd.safetensors")
    content = cache.read_bytes()
    head = content.replace(
        b'"k.3":{"dtype":"BF16","shape":[24,2,16]', b'"k.3":{"dtype":"BF16","shape":[24,1,32]'
    )
    assert head != content
    cache.write_bytes(head)
    result = publish(cache, scope_key)
    assert result.exit_code == 1
    assert "tensors 'k.0' and 'k.3' differ" in result.stderr


def test_a_file_that_names_no_model(cache: Path, scope_key: Path) -> None:
    content = cache.read_bytes()
    bare = content.replace(b'"model":"test"', b'"titel":"test"')
    assert bare != content
    cache.write_bytes(bare)
    result = publish(cache, scope_key)
    assert result.exit_code == 1
    assert "its metadata names no model: give its name (--model NAME)" in result.stderr


def test_a_prompt_shorter_than_a_block(cache: Path, scope_key: Path) -> None:
    result = publish(cache, scope_key, "--block-tokens", "25")
    assert result.exit_code == 1
    assert "24 tokens fill no block of 25; give --block-tokens 24 or less" in result.stderr
    words = ("--scope-key", scope_key, "--like", cache, "--block-tokens", "25")
    result = call(sub.main, "moqt://127.0.0.1:1/", *words)
    assert result.exit_code == 1
    assert "24 tokens fill no block of 25, so there is nothing to look for" in result.stderr


def test_a_prompt_of_another_length(cache: Path, scope_key: Path) -> None:
    result = publish(cache, scope_key, "--tokens", "1,2,3")
    assert result.exit_code == 1
    assert "3 token ids" in result.stderr
    assert "24 tokens; give one id for each" in result.stderr


def test_a_file_without_token_ids(tmp_path: Path, scope_key: Path) -> None:
    cache = write_cache(tmp_path / "bare.safetensors", ids=None)
    result = publish(cache, scope_key)
    assert result.exit_code == 1
    assert "give the prompt with --tokens" in result.stderr


def test_a_descriptor_of_another_model(cache: Path, tmp_path: Path, scope_key: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps(descriptor(5).to_json()))
    result = publish(cache, scope_key, "--descriptor", tmp_path / "d.json")
    assert result.exit_code == 1
    assert "--descriptor says layers 5, but it is 4 in" in result.stderr


def test_ready_made_identifiers_of_another_model(cache: Path) -> None:
    words = ("--relay", "moqt://127.0.0.1:1/", "--block-tokens", "8", *IDS)
    result = call(pub.main, cache, *words)
    assert result.exit_code == 1
    assert "compatibility id of the name is 1111" in result.stderr


def test_a_short_identifier(cache: Path) -> None:
    result = call(pub.main, cache, "--relay", URL, *IDS, "--scope-id", "00")
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert "scope id of 1 octets: exactly 16 raw octets are needed" in told


def test_no_scope_key_file(cache: Path, tmp_path: Path) -> None:
    result = publish(cache, tmp_path / "none", "--block-tokens", "8")
    assert result.exit_code == 1
    assert "make one with kvcs-keygen" in result.stderr


def test_no_token_file(cache: Path, scope_key: Path, tmp_path: Path) -> None:
    result = publish(cache, scope_key, "--block-tokens", "8", "--token-file", tmp_path / "none")
    assert result.exit_code == 1
    assert "kvcs-token issue makes one" in result.stderr
    words = (
        "--scope-key",
        scope_key,
        "--like",
        cache,
        "--block-tokens",
        "8",
        "--token-file",
        cache,
    )
    result = call(sub.main, "moqt://127.0.0.1:1/", *words)
    assert result.exit_code == 1
    assert f"token file {cache}: a token is one line of base64url text" in result.stderr


def test_nobody_answers(cache: Path, scope_key: Path) -> None:
    result = publish(cache, scope_key, "--block-tokens", "8")
    assert result.exit_code == 1
    assert "nothing answers at 127.0.0.1 port 1" in result.stderr


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    out = tmp_path / "none" / "out"
    result = call(sub.main, f"{URL}#{FRAGMENT}", "--out", out)
    assert result.exit_code == 1
    assert f"file {out} cannot be written: there is no such directory" in result.stderr


def test_failures_in_json(cache: Path, scope_key: Path) -> None:
    result = publish(cache, scope_key, "--block-tokens", "8", "--json")
    assert result.exit_code == 1
    event = json.loads(result.stdout.splitlines()[-1])
    assert (event["event"], event["kind"], event["exit_code"]) == ("error", "ConnectFailed", 1)
    assert "nothing answers" in event["message"]
    assert "nothing answers" not in result.stderr


def test_very_verbose_failures_have_a_traceback(cache: Path, scope_key: Path) -> None:
    result = publish(cache, scope_key, "--block-tokens", "25", "-vv")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "InvalidInput" in result.stderr
