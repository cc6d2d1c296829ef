"""Scope key files: one line of hexadecimal (or base64) text, readable by its owner alone."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from kvcs.errors import InvalidInput, OutputFailed
from kvcs.identity import SCOPE_KEY_MIN, ScopeKey

_log = logging.getLogger(__name__)

#: A key of 32 octets is 64 digits; whatever passes this is another kind of file.
MAX_FILE: Final = 4096
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})+")


def create_scope_key(path: str | os.PathLike[str]) -> ScopeKey:
    """Write a new random key of 32 octets, mode 0600; raises OutputFailed, also if it exists."""
    key = secrets.token_bytes(SCOPE_KEY_MIN)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise OutputFailed(
            f"key file {path} exists and is not overwritten: caches under the old key would be"
            " lost; remove it first if that is meant"
        ) from None
    except OSError as error:
        raise OutputFailed(f"key file {path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        Path(path).unlink(missing_ok=True)
        raise OutputFailed(f"key file {path} cannot be written: {error.strerror}") from None
    return ScopeKey(key)


def load_scope_key(path: str | os.PathLike[str]) -> ScopeKey:
    """Read a key: text all of hexadecimal digits is hex, else base64.

    Logs a warning when others than the owner can read it. Raises InvalidInput, never with content.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise InvalidInput(
            f"key file {path} cannot be read: {error.strerror}; make one with kvcs-keygen"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("key file %s is open to others: run chmod 600 on it", path)
    octets = _decode(content)
    if octets is None:
        raise InvalidInput(
            f"key file {path}: it must hold one line of hexadecimal or base64 text; kvcs-keygen"
            " scope-key makes one"
        )
    try:
        return ScopeKey(octets)
    except InvalidInput as error:
        raise InvalidInput(f"key file {path}: {error}") from None


def _decode(content: bytes) -> bytes | None:
    if len(content) > MAX_FILE:
        return None
    text = content.strip()
    try:
        if _HEX.fullmatch(text.decode("ascii")):
            return bytes.fromhex(text.decode("ascii"))
        return base64.b64decode(text, validate=True)
    except (UnicodeDecodeError, binascii.Error):
        return None
