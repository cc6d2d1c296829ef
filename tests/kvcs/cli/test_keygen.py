"""kvcs-keygen: what it writes, and that it overwrites nothing."""

from __future__ import annotations

import datetime
import hashlib
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from kvcs.cli.keygen import main
from kvcs.clients import subject_of
from kvcs.identity import KVSP_PROFILE_0
from kvcs.keys import load_scope_key
from transport.authorities import ClientAuthorities


def call(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_scope_key(tmp_path: Path) -> None:
    file = tmp_path / "scope.key"
    result = call("scope-key", file)
    assert result.exit_code == 0
    assert len(load_scope_key(file).octets) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in result.output
    kept = file.read_bytes()
    again = call("scope-key", file)
    assert again.exit_code == 1
    assert "is not overwritten" in again.stderr
    assert file.read_bytes() == kept


def test_scope_id(tmp_path: Path) -> None:
    file = tmp_path / "scope.key"
    call("scope-key", file)
    result = call("scope-id", file)
    assert result.output == KVSP_PROFILE_0.scope_id(load_scope_key(file)).hex() + "\n"
    assert len(result.output) == 33
    missing = call("scope-id", tmp_path / "none")
    assert missing.exit_code == 1
    assert "none" in missing.stderr


def test_certificate(tmp_path: Path) -> None:
    result = call("certificate", tmp_path / "tls", "--name", "cache.example", "--name", "192.0.2.7")
    assert result.exit_code == 0
    names = {path.name for path in (tmp_path / "tls").iterdir()}
    assert names == {"ca.pem", "server.pem", "server.key"}
    assert stat.S_IMODE((tmp_path / "tls/server.key").stat().st_mode) == 0o600
    ca, server = (
        x509.load_pem_x509_certificate((tmp_path / "tls" / name).read_bytes())
        for name in ("ca.pem", "server.pem")
    )
    server.verify_directly_issued_by(ca)
    found = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == ["cache.example"]
    assert [str(one) for one in found.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    validity = server.not_valid_after_utc - server.not_valid_before_utc
    assert validity <= datetime.timedelta(days=14)


def test_client_certificates(tmp_path: Path) -> None:
    result = call("certificate", tmp_path, "--client", "site-a", "--client", "site-b.example")
    assert result.exit_code == 0
    assert len(list(tmp_path.iterdir())) == 7
    authorities = ClientAuthorities([tmp_path / "ca.pem"])
    for name in ("site-a", "site-b.example"):
        assert stat.S_IMODE((tmp_path / f"{name}.key").stat().st_mode) == 0o600
        made = x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes())
        found = authorities.verify([made])
        assert subject_of(found.der) == f"CN={name}"
        digits = hashlib.sha256(found.der).hexdigest()
        assert (
            f"client certificate {name}.pem, {name}.key:\n  fingerprint {digits}" in result.output
        )


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "server.key", "site-a.pem", "site-a.key"])
def test_no_certificate_file_is_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("kept")
    result = call("certificate", tmp_path, "--client", "site-a")
    assert result.exit_code == 1
    assert f"file {tmp_path / name} exists and is not overwritten" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_certificate_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("certificate", tmp_path / "file" / "tls")
    assert result.exit_code == 1
    assert "Not a directory" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("certificate", "d", "--days", "0"), "0 is not in the range"),
        (("certificate",), "Missing argument 'DIRECTORY'"),
        (("scope-key",), "Missing argument 'FILE'"),
        (("certificate", "d", "--name", "\u00e9"), "--name"),
        (("certificate", "d", "--client", "../a"), "--client"),
        (("certificate", "d", "--client", "server"), "neither server nor ca"),
        (("certificate", "d", "--client", "a", "--client", "a"), "each name once"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [main, *main.commands.values()])
def test_help(command: click.Command) -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
