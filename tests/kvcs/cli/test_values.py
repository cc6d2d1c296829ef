"""kvcs.cli.values: what an option takes, and what it says of anything else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kvcs.cli import values
from kvcs.cli.values import Address
from tests.kvcs.cli.caches import descriptor


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:4443", Address("0.0.0.0", 4443)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_address(text: str, address: Address) -> None:
    assert values.parse_address(text) == address


@pytest.mark.parametrize("text", ["", "4443", ":4443", "host:", "host:65536", "::1:4443", "a:b:1"])
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        values.parse_address(text)


def test_seconds() -> None:
    assert values.parse_seconds("0.25") == 0.25
    for text in ("-1", "nan", "inf", "soon", ""):
        with pytest.raises(ValueError, match="number of seconds"):
            values.parse_seconds(text)


def test_layers() -> None:
    assert values.parse_layers("8-15") == (8, 15)
    assert values.parse_layers("3") == (3, 3)
    for text in ("15-8", "8-", "-8", "a", "", "1-2-3", "99999"):
        with pytest.raises(ValueError, match="FIRST-LAST"):
            values.parse_layers(text)


@pytest.mark.parametrize("text", ["1,2,3", "1 2\n3", "[1, 2, 3]", " 1,,2 3 "])
def test_tokens(text: str, tmp_path: Path) -> None:
    assert values.parse_tokens(text) == (1, 2, 3)
    (tmp_path / "ids").write_text(text)
    assert values.parse_tokens(f"@{tmp_path / 'ids'}") == (1, 2, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no token ids"),
        ("1,x", "token 1 is 'x'"),
        ("1,-2", "token 1 is '-2'"),
        ("4294967296", "token 0 is '4294967296'"),
        ("1" * 100_000, "token 0 is '1111"),
        ("\u0661", "token 0"),
    ],
)
def test_no_tokens(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        values.parse_tokens(text)


def test_tokens_of_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="no UTF-8 text"):
        values.parse_tokens(f"@{tmp_path / 'ids'}")


def test_tokens_of_a_file_that_is_too_long(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(values, "MAX_TOKEN_TEXT", 3)
    (tmp_path / "ids").write_text("1,2,3")
    with pytest.raises(ValueError, match="more than 3 characters"):
        values.parse_tokens(f"@{tmp_path / 'ids'}")


def test_descriptor(tmp_path: Path) -> None:
    file = tmp_path / "descriptor.json"
    file.write_text(json.dumps(descriptor(4).to_json()))
    assert values.parse_descriptor(str(file)) == descriptor(4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "must be a JSON object"),
        ("{", "descriptor.json"),
        ("{}", "member 'kvsp' is missing"),
        ('{"kvsp":0,"kvsp":0}', "occurs twice"),
    ],
)
def test_no_descriptor(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "descriptor.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=said):
        values.parse_descriptor(str(file))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """No fault of the option's: not a ValueError."""
    none = str(tmp_path / "none")
    for parse, text in ((values.parse_descriptor, none), (values.parse_tokens, f"@{none}")):
        with pytest.raises(values.Unreadable, match="cannot be read: No such file"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "told", "dialled"),
    [
        ("127.0.0.1:0", "127.0.0.1, port 7", "127.0.0.1"),
        ("cache.example:0", "cache.example, port 7", "cache.example"),
        ("0.0.0.0:0", "every address of this host, port 7", socket.gethostname()),
        ("[::]:0", "every address of this host, port 7", socket.gethostname()),
    ],
)
def test_where_it_listens(text: str, told: str, dialled: str) -> None:
    address = values.parse_address(text)
    assert (address.told(7), address.dialled) == (told, dialled)
