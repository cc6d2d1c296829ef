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


class Known(NamedTuple):
    """A client whose certificate was shown, and when that ends (Unix time)."""

    client: Client
    ends: float


class Clients:
    """Clients by fingerprint, and by subject; raises InvalidInput for a file that breaks a rule.

    The subject counts only because the transport has verified the chain to the CA of clients.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._by_fingerprint: dict[bytes, Client] = {}
        self._by_subject: dict[str, Client] = {}
        for place, entry in enumerate(_entries(Path(path))):
            try:
                self._add(entry)
            except ValueError as error:
                raise InvalidInput(f"clients file {path}, client {place + 1}: {error}") from None

    def __repr__(self) -> str:
        return f"<Clients: {len(self._by_fingerprint) + len(self._by_subject)}>"

    def find(self, certificate: bytes) -> Known | None:
        """The client with this certificate (DER); None when it is not known, or no certificate."""
        try:
            found = load_der_x509_certificate(certificate)
            subject = found.subject.rfc4514_string()
        except ValueError:
            return None
        client = self._by_fingerprint.get(hashlib.sha256(certificate).digest())
        client = client or self._by_subject.get(subject)
        return None if client is None else Known(client, found.not_valid_after_utc.timestamp())

    def _add(self, entry: dict[str, object]) -> None:
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
            _put(self._by_subject, _text(entry, "subject"), client)
        else:
            digits = _text(entry, "fingerprint").replace(":", "")
            digest = octets_of_hex("fingerprint", digits)
            if len(digest) != hashlib.sha256().digest_size:
                raise ValueError("a fingerprint is the SHA-256 of a certificate: 64 digits")
            _put(self._by_fingerprint, digest, client)


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
        raise InvalidInput(f"clients file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"clients file {path}: {error}") from None
    entries = found.pop("client", None)
    is_list = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if found or not entries or not is_list:
        raise InvalidInput(f"clients file {path}: it must hold [[client]] tables, and nothing else")
    return list(entries)


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
