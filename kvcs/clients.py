"""Clients known by their certificates: who may do what, from a file (mutual TLS).

[[client]]
name = "site-a"                     # for logs and limits
fingerprint = "5f3c..."             # SHA-256 of the certificate, hexadecimal; or
subject = "CN=site-a,O=Example"     # its subject (RFC 4514), of any certificate of the CA
publish = ["<scope id>"]            # 16 octets in hexadecimal
read = ["<scope id>", "*"]          # "*" is every scope
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography.x509 import load_der_x509_certificate

from kvcs.errors import InvalidInput
from kvcs.names import PROTOCOL, octets_of_hex
from kvcs.scopes import PUBLISHES, READS, Match, Scope, kvcs_scopes
from transport.watch import Watch, file_mark

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

#: A client takes 300 octets: room for a thousand.
MAX_FILE: Final = 1 << 20
EVERY: Final = "*"
_MEMBERS: Final = {"name", "fingerprint", "subject", "publish", "read"}


class Client(NamedTuple):
    """A client as the file has it."""

    name: str
    scopes: tuple[Scope, ...]


class _Known(NamedTuple):
    """All clients of a file."""

    by_fingerprint: dict[bytes, Client]
    by_subject: dict[str, Client]


class Clients:
    """Clients by fingerprint, and by subject; raises InvalidInput for a file that breaks a rule.

    The file is read again when it changes. The subject counts only because the transport has
    verified the chain to a CA of clients.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        #: Goes up whenever other clients count.
        self.generation = 0
        self._watch = Watch("clients", self._mark, self._load, (InvalidInput,))

    def __repr__(self) -> str:
        return f"<Clients: {len(self._known.by_fingerprint) + len(self._known.by_subject)}>"

    def refresh(self, now: float) -> None:
        """Look at the file again, now and then; one that cannot be read changes nothing."""
        self._watch.look(now)

    def find(self, certificate: bytes) -> Client | None:
        """The client with this certificate (DER); None when it is not known."""
        client = self._known.by_fingerprint.get(hashlib.sha256(certificate).digest())
        return client or self._known.by_subject.get(subject_of(certificate))

    def _mark(self) -> tuple[int, ...]:
        try:
            return file_mark(self._path)
        except OSError as error:
            raise _unreadable(self._path, error) from None

    def _load(self) -> None:
        known = _Known({}, {})
        for place, entry in enumerate(_entries(self._path)):
            try:
                _add(known, entry)
            except ValueError as error:
                raise InvalidInput(
                    f"clients file {self._path}, client {place + 1}: {error}"
                ) from None
        self._known = known
        self.generation += 1


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER), as RFC 4514 writes it."""
    return load_der_x509_certificate(certificate).subject.rfc4514_string()


def _add(known: _Known, entry: dict[str, object]) -> None:
    unknown = entry.keys() - _MEMBERS
    if unknown:
        raise ValueError(f"{min(unknown)!r} is not one of {', '.join(sorted(_MEMBERS))}")
    name = _text(entry, "name")
    scopes = (
        *_scopes(_texts(entry, "publish"), publish=True),
        *_scopes(_texts(entry, "read"), publish=False),
    )
    if not scopes:
        raise ValueError(f"{name!r} may do nothing: give publish or read")
    client = Client(name, scopes)
    if ("fingerprint" in entry) == ("subject" in entry):
        raise ValueError(f"{name!r} needs either fingerprint or subject")
    if "subject" in entry:
        _put(known.by_subject, _text(entry, "subject"), client)
    else:
        digits = _text(entry, "fingerprint").replace(":", "")
        digest = octets_of_hex("fingerprint", digits)
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError("a fingerprint is the SHA-256 of a certificate: 64 digits")
        _put(known.by_fingerprint, digest, client)


def _put(table: dict, key: object, client: Client) -> None:  # type: ignore[type-arg]
    if key in table:
        raise ValueError(f"{client.name!r} and {table[key].name!r} have the same certificate")
    table[key] = client


def _entries(path: Path) -> list[dict[str, object]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ValueError(f"more than {MAX_FILE} octets")
        found = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise InvalidInput(f"clients file {path}: {error}") from None
    entries = found.pop("client", None)
    is_list = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if found or not entries or not is_list:
        raise InvalidInput(f"clients file {path}: it must hold [[client]] tables, and nothing else")
    return list(entries)


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"clients file {path} cannot be read: {error.strerror}")


def _scopes(ids: Iterable[str], *, publish: bool) -> Iterable[Scope]:
    for text in ids:
        if text == EVERY:
            actions = PUBLISHES if publish else READS
            yield Scope(tuple(map(int, actions)), (Match(PROTOCOL),))
        else:
            scope_id = octets_of_hex("scope id", text)
            yield from kvcs_scopes(scope_id, publish=publish, read=not publish)


def _text(entry: dict[str, object], member: str) -> str:
    value = entry.get(member)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{member} must be text")
    return value


def _texts(entry: dict[str, object], member: str) -> list[str]:
    value = entry.get(member, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{member} must be a list of scope ids")
    return [str(one) for one in value]
