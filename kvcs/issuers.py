"""Issuers of tokens: their public keys in PEM files, read again when the files change."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from kvcs.cose import PrivateKey, PublicKey, check_public_key, key_id
from kvcs.errors import InvalidInput, OutputFailed
from transport.watch import Watch, file_mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_log = logging.getLogger(__name__)

#: A PEM key takes 200 octets: room for many, and not for a file of another kind.
MAX_FILE: Final = 1 << 16
#: Files of one directory: an issuer has one, and nobody trusts more issuers.
MAX_FILES: Final = 256
SUFFIX: Final = ".pem"
_BEGIN: Final = b"-----BEGIN "
_END: Final = b"-----END PUBLIC KEY-----"
#: What kinds of keys are called.
KINDS: Final = ("EdDSA", "ES256")


class Trusted(NamedTuple):
    """A public key and the issuer (iss) whose tokens it may sign."""

    issuer: str
    key: PublicKey


class Issuers:
    """Who may issue tokens: each file holds an issuer's public keys and is called as the issuer is.

    ``paths`` are files, or directories of ``*.pem``; keys are known by ``cose.key_id``. Raises
    InvalidInput for what cannot be read, or without a key.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._paths = tuple(map(Path, paths))
        self._trusted: dict[bytes, Trusted] = {}
        #: Goes up whenever another set of keys counts.
        self.generation = 0
        self._watch = Watch("issuers", self._marks, self._load, (InvalidInput,))
        if not self._trusted:
            raise InvalidInput(
                "no issuer is trusted: give files of public keys; kvcs-token keygen makes them"
            )

    def __repr__(self) -> str:
        return f"<Issuers: {len(self._trusted)} keys>"

    @property
    def keys(self) -> dict[bytes, PublicKey]:
        """Public keys by key id."""
        return self._keys

    def issuer_of(self, kid: bytes) -> str:
        """Whose tokens this known key signs."""
        return self._trusted[kid].issuer

    def refresh(self, now: float) -> None:
        """Look at the files again, now and then (``transport.watch``).

        A file that is gone is trusted no longer; one that has become unreadable changes nothing.
        """
        self._watch.look(now)

    def _marks(self) -> dict[Path, tuple[int, ...]]:
        marks: dict[Path, tuple[int, ...]] = {}
        for path in self._paths:
            files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
            if len(files) > MAX_FILES:
                raise InvalidInput(f"directory {path}: more than {MAX_FILES} issuers in it")
            for file in files:
                try:
                    marks[file] = file_mark(file)
                except FileNotFoundError:
                    if not self.generation:
                        raise InvalidInput(
                            f"issuer file {file}: there is no such file; kvcs-token keygen makes"
                            " one"
                        ) from None
                except OSError as error:
                    raise InvalidInput(f"issuer file {file}: {error.strerror}") from None
        return marks

    def _load(self) -> None:
        self._take([_read_file(path) for path in self._marks()])

    def _take(self, files: Sequence[tuple[Trusted, ...]]) -> None:
        trusted: dict[bytes, Trusted] = {}
        for one in (one for file in files for one in file):
            known = trusted.setdefault(key_id(one.key), one)
            if known.issuer != one.issuer:
                raise InvalidInput(
                    f"issuers {known.issuer!r} and {one.issuer!r} have the same key: each needs"
                    " its own"
                )
        self._trusted = trusted
        self._keys = {kid: one.key for kid, one in trusted.items()}
        self.generation += 1


def _read_file(path: Path) -> tuple[Trusted, ...]:
    """The public keys in a file; raises InvalidInput, never with content."""
    content = _content(path, "issuer file")
    if b"PRIVATE KEY" in content:
        raise InvalidInput(
            f"issuer file {path}: it holds a private key, which only its issuer may have; put the"
            " public one there, and make a new pair"
        )
    parts = [part[part.find(_BEGIN) :] + _END for part in content.split(_END)[:-1]]
    if not parts or content.count(_BEGIN) != len(parts):
        raise InvalidInput(f"issuer file {path}: it must hold public keys in PEM, and nothing else")
    try:
        keys = [check_public_key(load_pem_public_key(part)) for part in parts]
    except (ValueError, UnsupportedAlgorithm) as error:
        told = str(error) if isinstance(error, InvalidInput) else "a key in it cannot be read"
        raise InvalidInput(f"issuer file {path}: {told}") from None
    return tuple(Trusted(path.name.removesuffix(SUFFIX), key) for key in keys)


def _content(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise InvalidInput(
            f"{what} {path} cannot be read: {error.strerror}; kvcs-token keygen makes one"
        ) from None
    if len(content) > MAX_FILE:
        raise InvalidInput(
            f"{what} {path}: more than {MAX_FILE} octets; it is another kind of file"
        )
    return content


def load_issuer_key(path: str | os.PathLike[str]) -> PrivateKey:
    """An issuer's private key (PEM); raises InvalidInput, never with content.

    Logs a warning when others than the owner can read it.
    """
    content = _content(Path(path), "issuer key")
    try:
        key = load_pem_private_key(content, None)
        check_public_key(key.public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        told = (
            str(error)
            if isinstance(error, InvalidInput)
            else "no unencrypted private key in PEM; kvcs-token keygen makes one"
        )
        raise InvalidInput(f"issuer key {path}: {told}") from None
    if Path(path).stat().st_mode & 0o077:
        _log.warning("issuer key %s is open to others: run chmod 600 on it", path)
    return key  # type: ignore[return-value]  # check_public_key has seen what it is


def create_issuer_keys(private: Path, public: Path, kind: str = "EdDSA") -> PublicKey:
    """Write a new pair, the private key with mode 0600; raises OutputFailed, also if one exists."""
    key: PrivateKey
    key = generate_private_key(SECP256R1()) if kind == "ES256" else Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    told = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_new(private, secret, 0o600)
    try:
        write_new(public, told, 0o644)
    except OutputFailed:
        private.unlink(missing_ok=True)
        raise
    return key.public_key()


def write_new(path: Path, content: bytes, mode: int) -> None:
    """A file that was not there before; raises OutputFailed."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise OutputFailed(
            f"file {path} exists and is not overwritten: remove it, or name another"
        ) from None
    except OSError as error:
        raise OutputFailed(f"file {path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputFailed(f"file {path} cannot be written: {error.strerror}") from None
