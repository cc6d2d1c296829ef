"""Tokens in files: read again when another one is put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcs import cose
from kvcs.errors import InvalidInput, OutputFailed
from kvcs.scopes import kvcs_scopes
from kvcs.tokenfile import TokenFile, parse_token, read_token, token_text, write_token
from kvcs.tokens import Claims, issue
from moqt.codec.fields import Token

TEXT = "0oRNogEnBEg_"
OCTETS = bytes.fromhex("d2844da201270448 3f")


KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def signed(name: str, expires: float = 4e9) -> bytes:
    """A token that nobody trusts."""
    scopes = tuple(kvcs_scopes(bytes(16), publish=False, read=True))
    return issue(Claims(issuer=name, audience=("a",), expires=expires, scopes=scopes), KEY)


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
    write_token(path, signed("first"))
    show = TokenFile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert show() == show() == shown(signed("first"))
    write_token(path, signed("next!"))
    assert show() == shown(signed("next!"))
    path.write_text("not one!")
    assert [show(), show()] == [shown(signed("next!"))] * 2
    path.unlink()
    assert [show(), show()] == [shown(signed("next!"))] * 2
    assert caplog.text.count("the token stays as it was") == 2
    write_token(path, signed("last"))
    assert show() == shown(signed("last"))
    assert [one.name for one in tmp_path.iterdir()] == ["t"]
    assert repr(show) == f"<TokenFile {path}>"


def test_a_file_open_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_token(tmp_path / "t", signed("acme"))
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


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"hello world, this is base64", "does not begin as COSE_Sign1"),
        (signed("acme")[:-1], "cut off"),
        (cose.sign(b"no claims", KEY, cose.TOKENS), "token: "),
        (cose.sign(bytes.fromhex("a0"), KEY, cose.TOKENS), "it has no issuer"),
    ],
)
def test_base64_text_that_is_no_token(octets: bytes, why: str, tmp_path: Path) -> None:
    """Whatever else is in a file must not go out as one."""
    write_token(tmp_path / "t", octets)
    with pytest.raises(InvalidInput, match=why) as caught:
        TokenFile(tmp_path / "t")
    told = str(caught.value)
    assert told.startswith(f"token file {tmp_path / 't'} holds no token (")
    assert told.endswith("; kvcs-token issue makes one")


def test_an_expired_token_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_token(tmp_path / "t", signed("acme", 1.0))
    assert TokenFile(tmp_path / "t")() == shown(signed("acme", 1.0))
    assert f"the token in {tmp_path / 't'} has expired: put a new one there" in caplog.text
