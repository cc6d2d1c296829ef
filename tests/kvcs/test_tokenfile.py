"""Tokens in files: read again when another one is put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kvcs.errors import InvalidInput, OutputFailed
from kvcs.tokenfile import TokenFile, parse_token, read_token, token_text, write_token
from moqt.codec.fields import Token

TEXT = "0oRNogEnBEg_"
OCTETS = bytes.fromhex("d2844da201270448 3f")


def shown(octets: bytes) -> tuple[Token, ...]:
    return (Token.use_value(octets, 1),)


def test_text() -> None:
    assert parse_token(TEXT.encode()) == OCTETS
    assert parse_token(f" {TEXT}\n".encode()) == OCTETS
    assert parse_token(b"0oQ=\n") == OCTETS[:2]
    assert token_text(OCTETS) == TEXT


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "1 to 2048 octets"),
        (b"\n", "1 to 2048 octets"),
        (b"A" * 2732, "1 to 2048 octets"),
        (b"A" * 5000, "1 to 2048 octets|one line of base64url"),
        (b"hu sh!", "one line of base64url"),
        (b"AAAAA", "one line of base64url"),
        (b"AA\nAA", "one line of base64url"),
        (b"\xff\xfe", "one line of base64url"),
        (b"====", "one line of base64url"),
    ],
)
def test_what_is_no_token(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(InvalidInput, match=why) as caught:
        TokenFile(tmp_path / "t")
    assert "hu sh" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="kvcs-token issue makes one"):
        TokenFile(tmp_path / "none")


def test_a_fresh_token_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    write_token(path, b"first")
    show = TokenFile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert show() == show() == shown(b"first")
    write_token(path, b"next!")
    assert show() == shown(b"next!")
    path.write_text("not one!")
    assert [show(), show()] == [shown(b"next!")] * 2
    path.unlink()
    assert [show(), show()] == [shown(b"next!")] * 2
    assert caplog.text.count("the token stays as it was") == 2
    write_token(path, b"last")
    assert show() == shown(b"last")
    assert [one.name for one in tmp_path.iterdir()] == ["t"]
    assert repr(show) == f"<TokenFile {path}>"


def test_a_file_open_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_token(tmp_path / "t", b"token")
    TokenFile(tmp_path / "t")
    assert not caplog.records
    (tmp_path / "t").chmod(0o644)
    TokenFile(tmp_path / "t")
    assert "run chmod 600" in caplog.text


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match="No such file or directory"):
        write_token(tmp_path / "none" / "t", b"token")
    os.mkdir(tmp_path / "folder")
    with pytest.raises(OutputFailed, match="cannot be written"):
        write_token(tmp_path / "folder", b"token")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]
    write_token(tmp_path / "t", b"token")
    assert read_token(tmp_path / "t") == b"token"


def test_a_scope_key_is_never_taken_for_a_token(tmp_path: Path) -> None:
    """Shown to a relay it would be a secret given away."""
    key = tmp_path / "scope.key"
    key.write_text("ab" * 32 + "\n")
    with pytest.raises(InvalidInput, match="a key in hexadecimal, not a token") as raised:
        TokenFile(key)
    assert "abab" not in str(raised.value)
