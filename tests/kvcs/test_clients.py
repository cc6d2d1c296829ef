"""Clients known by their certificates."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kvcs.clients import MAX_FILE, Clients
from kvcs.errors import InvalidInput
from kvcs.scopes import READS, Match, Scope, kvcs_scopes
from transport.watch import LOOK_EVERY

ID = bytes(range(16))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ENDS = NOW + datetime.timedelta(days=30)


def certificate(name: str) -> bytes:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(ENDS)
    )
    return made.sign(KEY, None).public_bytes(Encoding.DER)


SITE_A, SITE_B, SITE_C = map(certificate, ("site-a", "site-b", "site-c"))
PRINT = hashlib.sha256(SITE_A).hexdigest()


def clients(folder: Path, text: str) -> Clients:
    (folder / "clients.toml").write_text(text)
    return Clients(folder / "clients.toml")


def test_by_fingerprint_and_by_subject(tmp_path: Path) -> None:
    colons = ":".join(PRINT.upper()[at : at + 2] for at in range(0, 64, 2))
    found = clients(
        tmp_path,
        f"""
        [[client]]
        name = "a"
        fingerprint = "{colons}"
        publish = ["{ID.hex()}"]
        read = ["{ID.hex()}"]

        [[client]]
        name = "b"
        subject = "CN=site-b,O=Example"
        read = ["*"]
        """,
    )
    first, second = found.find(SITE_A), found.find(SITE_B)
    assert first == ("a", kvcs_scopes(ID, publish=True, read=True))
    assert second == ("b", (Scope(tuple(map(int, READS)), (Match(b"kvcs-1"),)),))
    assert found.find(SITE_C) is None
    assert repr(found) == "<Clients: 2>"


ENTRY = f'[[client]]\nname = "a"\nfingerprint = "{PRINT}"\nread = ["*"]\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must hold"),
        ("[client]\nname = 'a'", "must hold"),
        ("client = [1]", "must hold"),
        (ENTRY + "[other]\n", "and nothing else"),
        ("[[client", "clients.toml: "),
        ("# \udcff", "clients.toml: "),
        (ENTRY + "rite = []\n", "client 1: 'rite' is not one of"),
        (ENTRY.replace('"a"', "7"), "name must be text"),
        (ENTRY.replace('"a"', '"a\\n"'), "name must be text"),
        (ENTRY.replace(PRINT, "00"), "64 digits"),
        (ENTRY.replace(PRINT, "xx"), "not hexadecimal"),
        (ENTRY + 'subject = "CN=a"', "either fingerprint or subject"),
        (ENTRY.replace(f'fingerprint = "{PRINT}"', ""), "either fingerprint or subject"),
        (ENTRY.replace('["*"]', "[]"), "may do nothing"),
        (ENTRY.replace('["*"]', '"*"'), "read must be a list"),
        (ENTRY.replace('["*"]', "[1]"), "read must be a list"),
        (ENTRY.replace('["*"]', '["00"]'), "scope id of 1 octets"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), "client 2: 'b' and 'a' have the same certificate"),
        ("#" * (MAX_FILE + 1), "more than 1048576 octets"),
    ],
)
def test_a_file_that_breaks_a_rule(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "clients.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InvalidInput, match=why):
        Clients(tmp_path / "clients.toml")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        Clients(tmp_path / "none")


def test_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = clients(tmp_path, ENTRY)
    other = ENTRY.replace(PRINT, hashlib.sha256(SITE_B).hexdigest())
    (tmp_path / "clients.toml").write_text(other)
    found.refresh(1.0)
    assert (found.find(SITE_A), found.generation) == (None, 2)
    assert found.find(SITE_B) is not None
    (tmp_path / "clients.toml").write_text(ENTRY)
    found.refresh(1.0 + LOOK_EVERY / 2)
    assert found.find(SITE_A) is None  # it has looked just now
    for place, content in enumerate(("half", None)):
        path = tmp_path / "clients.toml"
        path.unlink() if content is None else path.write_text(content)
        for turn in range(1, 4):
            found.refresh(100.0 * (place + 1) + LOOK_EVERY * turn)
    assert found.find(SITE_B) is not None
    assert caplog.text.count("clients stay as they were") == 2
    (tmp_path / "clients.toml").write_text(ENTRY)
    for now in (1000.0, 2000.0):
        found.refresh(now)
        assert found.generation == 3  # it is read once
