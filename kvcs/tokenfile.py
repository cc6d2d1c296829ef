"""A token in a file: one line of base64url text, read again when another one is put there."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from kvcs import cose
from kvcs.errors import InvalidInput, OutputFailed
from kvcs.tokens import TOKEN_TYPE, TokenInvalid, decode
from moqt.codec.fields import Token
from transport.watch import file_mark

_log = logging.getLogger(__name__)

#: The longest token is 2731 characters; what passes this is another kind of file.
MAX_FILE: Final = 4096
#: What a scope key looks like: it must never go out as a token because of a mistaken option.
_HEXADECIMAL: Final = re.compile(rb"[0-9a-fA-F]{64,512}")


class TokenFile:
    """What a publisher or consumer shows: ``SessionConfig.request_tokens``, ``credentials`` here.

    Calling it gives the token that is in the file now; what is none changes nothing. Raises
    InvalidInput when there is none at first. Its signature is for the relay to judge.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._mark: tuple[int, ...] = ()
        self._complaint = ""
        self._tokens = self._read()
        self._mark = file_mark(self._path)
        if self._path.stat().st_mode & 0o077:
            _log.warning("token file %s is open to others: run chmod 600 on it", path)

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"

    def __call__(self) -> tuple[Token, ...]:
        """The token, by value."""
        try:
            mark = file_mark(self._path)
            if mark != self._mark:
                self._tokens = self._read()
                self._mark = mark
                self._complaint = ""
        except (InvalidInput, OSError) as error:
            if str(error) != self._complaint:  # once, not for every request
                _log.warning("the token stays as it was: %s", error)
            self._complaint = str(error)
        return self._tokens

    def _read(self) -> tuple[Token, ...]:
        """What has the form of a token, whoever signed it; raises InvalidInput."""
        octets = read_token(self._path)
        try:
            claims = decode(cose.peek(octets, cose.TOKENS).payload)
        except (cose.CoseRejected, TokenInvalid) as error:
            raise InvalidInput(
                f"token file {self._path} holds no token ({error}); kvcs-token issue makes one"
            ) from None
        if time.time() >= claims.ends:
            _log.warning("the token in %s has expired: put a new one there", self._path)
        return (Token.use_value(octets, TOKEN_TYPE),)


def token_text(token: bytes) -> str:
    """A token as text: base64url without padding."""
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode("ascii")


def parse_token(text: bytes) -> bytes:
    """The opposite; raises ValueError, never with content."""
    digits = text.strip()
    if _HEXADECIMAL.fullmatch(digits):
        raise ValueError("this is a key in hexadecimal, not a token; kvcs-token issue makes one")
    try:
        padded = digits + b"=" * (-len(digits) % 4)
        token = base64.b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError(
            "a token is one line of base64url text; kvcs-token issue makes one"
        ) from None
    if not 0 < len(token) <= cose.TOKENS.max_octets:
        raise ValueError(
            f"a token has 1 to {cose.TOKENS.max_octets} octets; kvcs-token issue makes one"
        )
    return token


def read_token(path: Path) -> bytes:
    """The token in a file; raises InvalidInput, never with content."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise InvalidInput(
            f"token file {path} cannot be read: {error.strerror}; kvcs-token issue makes one"
        ) from None
    try:
        return parse_token(content)
    except ValueError as error:
        raise InvalidInput(f"token file {path}: {error}") from None


def write_token(path: Path, token: bytes) -> None:
    """Put a token there in one step, mode 0600, instead of an older one; raises OutputFailed."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(token_text(token) + "\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise OutputFailed(f"token file {path} cannot be written: {error.strerror}") from None
