"""Scope key files: made once, read strictly, shown nowhere."""

from __future__ import annotations

import base64
import logging
import os
import resource
import stat
from pathlib import Path

import pytest

from kvcs.errors import InvalidInput, OutputFailed
from kvcs.identity import ScopeKey
from kvcs.keys import create_scope_key, load_scope_key

SECRET = bytes(range(100, 132))


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "scope.key"
    key = create_scope_key(path)
    assert len(key.octets) == 32
    assert path.read_text() == key.octets.hex() + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_scope_key(path) == key
    assert create_scope_key(tmp_path / "another") != key
    assert caplog.records == []


def test_a_wide_umask_does_not_open_the_file(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        create_scope_key(tmp_path / "k")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "scope.key"
    key = create_scope_key(path)
    with pytest.raises(OutputFailed, match="exists and is not overwritten"):
        create_scope_key(path)
    assert load_scope_key(path) == key


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match="cannot be written: No such file"):
        create_scope_key(tmp_path / "none" / "key")


def test_a_full_disk_leaves_no_empty_key(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OutputFailed, match="cannot be written"):
            create_scope_key(tmp_path / "k")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        SECRET.hex(),
        f"  {SECRET.hex().upper()}\n\n",
        base64.b64encode(SECRET).decode() + "\n",
    ],
)
def test_forms_of_a_key(tmp_path: Path, text: str) -> None:
    assert load_scope_key(write(tmp_path / "k", text)) == ScopeKey(SECRET)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "scope key of 0 octets: at least 32"),
        (SECRET[:31].hex(), "scope key of 31 octets: at least 32"),
        (base64.b64encode(SECRET[:31]).decode(), "scope key of 31 octets"),
        (SECRET.hex()[1:], "must hold one line"),
        (SECRET.hex() + "\n" + SECRET.hex(), "must hold one line"),
        ("-----BEGIN PRIVATE KEY-----", "must hold one line"),
        ("\u00e9" * 64, "must hold one line"),
        ("00" * 3000, "must hold one line"),
    ],
)
def test_what_is_no_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "k", text)
    with pytest.raises(InvalidInput, match=message) as caught:
        load_scope_key(path)
    assert str(path) in str(caught.value)
    assert text.strip() == "" or text.strip() not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be read: No such file.*kvcs-keygen"):
        load_scope_key(tmp_path / "none")
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        load_scope_key(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_open_to_others_is_warned_of(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "k", SECRET.hex(), mode)
    with caplog.at_level(logging.WARNING):
        assert load_scope_key(path) == ScopeKey(SECRET)
    assert f"key file {path} is open to others: run chmod 600" in caplog.text
    assert SECRET.hex() not in caplog.text
