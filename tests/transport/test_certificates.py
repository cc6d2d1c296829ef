"""Self-made certificates."""

from __future__ import annotations

import datetime
import ipaddress
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store

from transport.certificates import (
    SHORT_LIVED,
    make_authority,
    make_certificate,
    write_private_key,
    write_test_certificates,
)


def test_a_server_certificate_verifies_for_its_names_only():
    authority = make_authority("An authority")
    pair = make_certificate(authority, ["relay.example", "127.0.0.1", "::1"])
    policy = PolicyBuilder().store(Store([authority.certificate]))
    for subject in (
        x509.DNSName("relay.example"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ):
        policy.build_server_verifier(subject).verify(pair.certificate, [])
    with pytest.raises(x509.verification.VerificationError):
        policy.build_server_verifier(x509.DNSName("other.example")).verify(pair.certificate, [])
    stranger = PolicyBuilder().store(Store([make_authority().certificate]))
    with pytest.raises(x509.verification.VerificationError):
        stranger.build_server_verifier(x509.DNSName("relay.example")).verify(pair.certificate, [])


def test_kind_and_lifetime():
    authority = make_authority()
    pair = make_certificate(authority)
    assert isinstance(pair.private_key.curve, ec.SECP256R1)
    for certificate in (authority.certificate, pair.certificate):
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert life == SHORT_LIVED == datetime.timedelta(days=14)
    long = make_certificate(authority, ["h"], lifetime=datetime.timedelta(days=300))
    assert (long.certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days > 290


def test_no_name_is_refused():
    with pytest.raises(ValueError, match="needs a name"):
        make_certificate(make_authority(), [])


@pytest.mark.parametrize(
    "name",
    ["a", "relay-1.example", "*.example", "a_b.c.", "x" * 63, "xn--bcher-kva.example", "::1"],
)
def test_names_that_servers_have(name):
    assert make_certificate(make_authority(), [name]).certificate


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "a..b", "-a", "a-", "a b", "*", "a.*", "\u00e4", "a" * 64, "a." * 127 + "a"),
        *("a" * 60 + "!", "a-" * 120 + "!", "a." * 120 + "!", "a" * 250 + "."),
    ],
)
def test_names_that_no_server_has(name):
    """Told at once: how a name is wrong decides nothing about how long that takes."""
    with pytest.raises(ValueError, match="neither a host name nor an IP address"):
        make_certificate(make_authority(), [name])


def test_files_belong_together_and_the_key_is_private(tmp_path):
    key = tmp_path / "deep" / "server.key"
    key.parent.mkdir()
    key.write_text("an older file that all may read")
    key.chmod(0o644)
    paths = write_test_certificates(tmp_path / "deep", names=("h.example",))
    assert paths.private_key == key
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(paths.certificate.read_bytes())
    private = load_pem_private_key(key.read_bytes(), None)
    assert certificate.public_key() == private.public_key()
    authority = x509.load_pem_x509_certificate(paths.ca.read_bytes())
    certificate.verify_directly_issued_by(authority)


def test_no_secret_in_repr(tmp_path):
    pair = make_authority("Somebody")
    assert repr(pair) == "KeyPair('CN=Somebody')"
    write_private_key(tmp_path / "key", pair.private_key_pem())
    assert b"PRIVATE KEY" in (tmp_path / "key").read_bytes()
