"""Public keys of issuers in files, and what happens when the files change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kvcs.cose import key_id
from kvcs.errors import InvalidInput, OutputFailed
from kvcs.issuers import (
    MAX_FILE,
    MAX_FILES,
    Issuers,
    create_issuer_keys,
    load_issuer_key,
)
from transport.watch import LOOK_EVERY

EDDSA_PEM = (
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n"
    "-----END PUBLIC KEY-----\n"
)
EDDSA_ID = bytes.fromhex("a050837d85070582")


def pair(folder: Path, name: str, kind: str = "EdDSA") -> bytes:
    """The id of a new key."""
    return key_id(create_issuer_keys(folder / f"{name}.key", folder / f"{name}.pem", kind))


def public_pem(key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_key_as_others_write_it(tmp_path: Path) -> None:
    (tmp_path / "issuer.example.pem").write_text("what it is for\n" + EDDSA_PEM)
    issuers = Issuers([tmp_path])
    assert list(issuers.keys) == [EDDSA_ID]
    assert issuers.issuer_of(EDDSA_ID) == "issuer.example"
    assert repr(issuers) == "<Issuers: 1 keys>"


@pytest.mark.parametrize("kind", ["EdDSA", "ES256"])
def test_a_pair_of_our_own(kind: str, tmp_path: Path) -> None:
    kid = pair(tmp_path, "a", kind)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600
    assert key_id(load_issuer_key(tmp_path / "a.key").public_key()) == kid
    assert Issuers([tmp_path / "a.pem"]).issuer_of(kid) == "a"


@pytest.mark.parametrize("there", ["a.key", "a.pem"])
def test_nothing_is_overwritten(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("kept")
    with pytest.raises(OutputFailed, match="exists and is not overwritten"):
        pair(tmp_path, "a")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "kept")]


def test_files_and_directories_together(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    ids = {pair(tmp_path / "all", "a"), pair(tmp_path / "all", "b", "ES256"), pair(tmp_path, "c")}
    issuers = Issuers([tmp_path / "all", tmp_path / "c.pem"])
    assert set(issuers.keys) == ids
    assert sorted(map(issuers.issuer_of, ids)) == ["a", "b", "c"]


def test_several_keys_of_one_issuer(tmp_path: Path) -> None:
    ids = {pair(tmp_path, "a"), pair(tmp_path, "b")}
    both = (tmp_path / "a.pem").read_bytes() + (tmp_path / "b.pem").read_bytes()
    (tmp_path / "c.pem").write_bytes(both)
    issuers = Issuers([tmp_path / "c.pem"])
    assert set(issuers.keys) == ids
    assert set(map(issuers.issuer_of, ids)) == {"c"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "must hold public keys in PEM"),
        (b"nonsense", "must hold public keys in PEM"),
        (EDDSA_PEM.encode() + b"-----BEGIN CERTIFICATE-----\n", "and nothing else"),
        (EDDSA_PEM.replace("MCow", "AAAA").encode(), "a key in it cannot be read"),
        (EDDSA_PEM.replace("BEGIN PUBLIC", "BEGIN PRIVATE").encode(), "it holds a private key"),
        (public_pem(ec.derive_private_key(7, ec.SECP384R1()).public_key()), "use Ed25519"),
        (bytes(MAX_FILE + 1), "another kind of file"),
    ],
)
def test_a_file_of_another_kind(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"issuer file {tmp_path}/a\.pem: .*{why}"):
        Issuers([tmp_path])


def test_a_private_key_is_not_shown(tmp_path: Path) -> None:
    pair(tmp_path, "a")
    content = (tmp_path / "a.key").read_text()
    (tmp_path / "a.key").rename(tmp_path / "b.pem")
    with pytest.raises(InvalidInput) as caught:
        Issuers([tmp_path])
    assert content.splitlines()[1] not in str(caught.value)
    with pytest.raises(InvalidInput, match="no unencrypted private key in PEM"):
        load_issuer_key(tmp_path / "a.pem")


def test_nothing_to_trust(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no issuer is trusted"):
        Issuers([tmp_path])
    with pytest.raises(InvalidInput, match="there is no such file"):
        Issuers([tmp_path / "none.pem"])
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.pem").write_text(EDDSA_PEM)
    with pytest.raises(InvalidInput, match="more than 256 issuers"):
        Issuers([tmp_path])


def test_one_key_for_two_issuers(tmp_path: Path) -> None:
    for name in ("a.pem", "b.pem"):
        (tmp_path / name).write_text(EDDSA_PEM)
    with pytest.raises(InvalidInput, match="'a' and 'b' have the same key"):
        Issuers([tmp_path])


def test_a_key_open_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair(tmp_path, "a")
    load_issuer_key(tmp_path / "a.key")
    assert not caplog.records
    (tmp_path / "a.key").chmod(0o640)
    load_issuer_key(tmp_path / "a.key")
    assert "run chmod 600" in caplog.text


# ----------------------------------------------------------------------------------- changing files


def test_files_that_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = pair(tmp_path, "a")
    issuers = Issuers([tmp_path])
    generation = issuers.generation
    issuers.refresh(100.0)
    assert issuers.generation == generation
    second = pair(tmp_path, "b")
    issuers.refresh(100.0 + LOOK_EVERY / 2)
    assert set(issuers.keys) == {first}  # it has looked just now
    issuers.refresh(100.0 + LOOK_EVERY)
    assert set(issuers.keys) == {first, second}
    assert issuers.generation == generation + 1
    (tmp_path / "a.pem").unlink()
    issuers.refresh(200.0)
    assert set(issuers.keys) == {second}
    (tmp_path / "b.pem").write_text("half")
    for now in (300.0, 400.0, 500.0):
        issuers.refresh(now)
    assert set(issuers.keys) == {second}
    assert caplog.text.count("issuers stay as they were") == 1
    (tmp_path / "b.pem").unlink()
    issuers.refresh(600.0)
    assert not issuers.keys


def test_a_file_replaced_by_one_of_the_same_size_and_time(tmp_path: Path) -> None:
    pair(tmp_path, "a")
    issuers = Issuers([tmp_path / "a.pem"])
    times = (tmp_path / "a.pem").stat()
    fresh = pair(tmp_path, "b")
    os.utime(tmp_path / "b.pem", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(tmp_path / "b.pem", tmp_path / "a.pem")
    issuers.refresh(1.0)
    assert set(issuers.keys) == {fresh}


def test_a_clock_that_is_set_back_does_not_stop_the_looking(tmp_path: Path) -> None:
    pair(tmp_path, "a")
    issuers = Issuers([tmp_path])
    issuers.refresh(1_000_000.0)
    fresh = pair(tmp_path, "b")
    issuers.refresh(10.0)
    assert fresh in issuers.keys
