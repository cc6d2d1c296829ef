"""Clients that show certificates: whose count, whose do not, and what each is told."""

from __future__ import annotations

import datetime
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.tls import AlertDescription
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import InvalidVersion, load_der_x509_certificate

from tests.transport.client_chains import DAY, Site, issue, join, signing
from tests.transport.relay import Relay
from tests.transport.sinks import MOQT, ORDER, Sink, until
from transport import _aioquic
from transport.authorities import MAX_CHAIN, MAX_FILE, ClientAuthorities
from transport.certificates import (
    KeyPair,
    make_authority,
    make_certificate,
    make_client_certificate,
)
from transport.config import ClientTls, ServerTls
from transport.endpoint import connect, serve
from transport.errors import CertificateRefused, ConnectFailed, ConnectFault, TransportError
from transport.handshake import (
    LONGEST_CHAIN,
    alert_name,
    certificate_advice,
    client_configuration,
    server_configuration,
)
from transport.listener import Listener
from transport.url import MoqtUrl
from transport.watch import LOOK_EVERY


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def past(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - days * DAY


def alert(site: Site, pair: KeyPair | None, *above: KeyPair) -> AlertDescription:
    """How the handshake ends; nothing of the client has been read, and it knows the reason."""
    client, server, heard = site.meet(pair, *(one.certificate for one in above))
    assert not [e for e in heard if isinstance(e, events.StreamDataReceived)]
    assert not [e for e in heard if isinstance(e, events.HandshakeCompleted)]
    assert server.shown is None
    end, told = _aioquic.close_event(server), _aioquic.close_event(client)
    assert (told.error_code, told.reason_phrase) == (end.error_code, end.reason_phrase)
    assert end.error_code & ~0xFF == 0x100
    return AlertDescription(end.error_code & 0xFF)


# ------------------------------------------------------------------------------------- who gets in


def test_a_certificate_of_the_authority(site: Site) -> None:
    pair = site.client()
    client, server, heard = site.meet(pair)
    assert [e.data for e in heard if isinstance(e, events.StreamDataReceived)]
    found = server.shown
    assert found.der == pair.certificate.public_bytes(Encoding.DER)
    ends = min(pair.certificate.not_valid_after_utc, site.ca.certificate.not_valid_after_utc)
    assert found.ends == ends.timestamp()
    assert _aioquic.close_event(client) is None


@pytest.mark.parametrize("required", [True, False])
def test_none_given(tmp_path: Path, required: bool) -> None:
    site = Site(tmp_path, required=required)
    if required:
        assert alert(site, None) is AlertDescription.certificate_required
        return
    client, server, heard = site.meet(None)
    assert [e.data for e in heard if isinstance(e, events.StreamDataReceived)]
    assert server.shown is None
    assert _aioquic.close_event(client) is None


def of_others(site: Site) -> KeyPair:
    return make_client_certificate(make_authority("another"), "site-a")


def same_name(site: Site) -> KeyPair:
    """An authority of one's own that is called as the right one is."""
    return make_client_certificate(make_authority("ca of clients"), "site-a")


def self_signed(site: Site) -> KeyPair:
    return issue("site-a", ca=False)


def stolen(site: Site) -> KeyPair:
    """Somebody else's certificate, without its key."""
    return KeyPair(site.client().certificate, site.client().private_key)


def forged(site: Site) -> KeyPair:
    """Names the authority and its key, and was signed by another key."""
    return make_client_certificate(
        KeyPair(site.ca.certificate, make_authority().private_key), "site-a"
    )


REFUSED = [
    (of_others, AlertDescription.unknown_ca),
    (same_name, AlertDescription.unknown_ca),
    (self_signed, AlertDescription.unknown_ca),
    (forged, AlertDescription.unknown_ca),
    (stolen, AlertDescription.decrypt_error),
    (lambda site: site.client(now=past(20)), AlertDescription.certificate_expired),
    (lambda site: site.client(now=past(-2)), AlertDescription.certificate_expired),
    (lambda site: make_certificate(site.ca), AlertDescription.unsupported_certificate),
    (lambda site: site.server, AlertDescription.unsupported_certificate),
    (lambda site: site.ca, AlertDescription.bad_certificate),
]


@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
@pytest.mark.parametrize(("made", "expected"), REFUSED)
def test_what_does_not_count_is_refused(
    tmp_path: Path, made, expected: AlertDescription, required: bool
) -> None:
    """A bad one is refused even where none is needed: its owner should hear of it."""
    site = Site(tmp_path, required=required)
    assert alert(site, made(site)) is expected


def test_reasons_are_told_and_hold_no_words_of_the_client(site: Site) -> None:
    for pair, words in (
        (site.client("evil\x1b[31m", now=past(20)), "the client certificate has expired"),
        (of_others(site), "no CA that is trusted has issued it"),
        (make_certificate(site.ca, ["evil.example"]), "not for clients"),
        (issue("evil", site.ca), "the client certificate is refused: basicConstraints"),
        (None, "a client certificate is required"),
    ):
        client, _, _ = site.meet(pair)
        told = _aioquic.close_event(client).reason_phrase
        assert words in told
        assert "evil" not in told


# ------------------------------------------------------------------------------------------- chains


def test_authorities_in_between(site: Site) -> None:
    root = issue("root")
    first, second = issue("first", root, days=3), None
    second = issue("second", first)
    pair = issue("site-a", second, ca=False)
    site.file.write_bytes(root.certificate_pem())
    site.authorities = site.read()
    above = [second.certificate, first.certificate]
    for chain in (above, above[::-1], [*above, root.certificate]):
        _, server, _ = site.meet(pair, *chain)
        assert server.shown.ends == first.certificate.not_valid_after_utc.timestamp()
    assert alert(site, pair) is AlertDescription.unknown_ca
    assert alert(site, pair, second) is AlertDescription.unknown_ca
    site.file.write_bytes(second.certificate_pem())
    site.authorities = site.read()
    _, server, _ = site.meet(pair)
    assert server.shown is not None, "an authority in between may be the trusted one"


@pytest.mark.parametrize(
    "above",
    [
        issue("above", days=-1),
        issue("above", usage=signing(certificates=False)),
    ],
    ids=["expired", "may not sign"],
)
def test_whoever_vouches_must_be_one_who_may(site: Site, above: KeyPair) -> None:
    pair = issue("site-a", above, ca=False)
    site.file.write_bytes(above.certificate_pem())
    site.authorities = site.read()
    assert alert(site, pair) is AlertDescription.bad_certificate
    root = issue("root")
    between = KeyPair(
        issue("between", root, key=above.private_key, days=-1).certificate, above.private_key
    )
    site.file.write_bytes(root.certificate_pem())
    site.authorities = site.read()
    assert alert(site, issue("site-a", between, ca=False), between)


def test_an_authority_as_it_should_be_made(site: Site) -> None:
    above = issue("above", usage=signing(certificates=True))
    site.file.write_bytes(above.certificate_pem())
    site.authorities = site.read()
    _, server, _ = site.meet(issue("site-a", above, ca=False))
    assert server.shown is not None


def test_an_ordinary_client_is_no_authority(site: Site) -> None:
    own = site.client()
    assert alert(site, issue("site-b", own, ca=False), own) is AlertDescription.bad_certificate


def test_chains_are_short_and_have_one_way_up(site: Site) -> None:
    """Else a stranger could make us try every way up: a hundred signatures of a millisecond."""
    key = issue("x").private_key
    loops = [issue(f"x{n}", KeyPair(issue("x").certificate, key), key=key) for n in range(9)]
    own = issue("own", KeyPair(issue("x").certificate, key), ca=False)
    assert alert(site, own, *loops[:MAX_CHAIN]) is AlertDescription.bad_certificate
    assert alert(site, own, *loops[: MAX_CHAIN - 1]) is AlertDescription.unknown_ca
    twice = [issue("x", KeyPair(issue("x").certificate, key), key=key) for _ in range(2)]
    assert alert(site, own, *twice) is AlertDescription.bad_certificate


def test_odd_keys(site: Site) -> None:
    key = rsa.generate_private_key(65537, 1024)
    pair = KeyPair(issue("site-a", site.ca, ca=False, key=key).certificate, key)
    assert alert(site, pair) is AlertDescription.bad_certificate
    key = rsa.generate_private_key(65537, 2048)
    pair = KeyPair(issue("site-a", site.ca, ca=False, key=key).certificate, key)
    _, server, _ = site.meet(pair)
    assert server.shown is not None


class Octets:
    """A certificate that can be sent, whatever it is."""

    def __init__(self, der: bytes) -> None:
        self.der = der

    def public_bytes(self, _: Encoding) -> bytes:
        return self.der


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_every_octet_of_a_certificate_changed(site: Site) -> None:
    """Whatever a client makes of its own certificate or of one above it, it is only refused."""
    root = issue("root")
    site.file.write_bytes(root.certificate_pem())
    site.authorities = site.read()
    above = issue("above", root)
    pair = issue("site-a", above, ca=False)
    chain = [pair.certificate, above.certificate]
    assert site.authorities.verify(chain)
    dice = random.Random(5)
    unread = refused = 0
    for place, one in enumerate(chain):
        der = one.public_bytes(Encoding.DER)
        for at in range(len(der)):
            changed = der[:at] + bytes([der[at] ^ dice.randrange(1, 256)]) + der[at + 1 :]
            try:
                odd = load_der_x509_certificate(changed)
            except (ValueError, InvalidVersion):
                unread += 1
                continue
            try:
                site.authorities.verify([odd, chain[1]] if place == 0 else [chain[0], odd])
            except CertificateRefused:
                refused += 1
    assert unread > 100
    assert refused > 400


def test_what_the_library_cannot_read(site: Site) -> None:
    pair = site.client()
    der = pair.certificate.public_bytes(Encoding.DER)
    version = der.index(bytes.fromhex("a003020102")) + 4
    for octets in (b"", b"no certificate", der[:version] + b"\x43" + der[version + 1 :]):
        odd = KeyPair(Octets(octets), pair.private_key)  # type: ignore[arg-type]
        assert alert(site, odd) is AlertDescription.bad_certificate


# ------------------------------------------------------------------------------------- resumption


def test_there_is_no_way_around_by_a_ticket(site: Site) -> None:
    """A server that asks gives no tickets and takes none, so every session shows a certificate."""
    tickets: list[object] = []
    config = QuicConfiguration(
        alpn_protocols=["x"], server_name="localhost", cadata=site.ca.certificate_pem()
    )
    generous = QuicConfiguration(is_client=False, alpn_protocols=["x"])
    generous.certificate, generous.private_key = site.server.certificate, site.server.private_key
    client = QuicConnection(configuration=config, session_ticket_handler=tickets.append)
    join(
        client,
        QuicConnection(
            configuration=generous,
            original_destination_connection_id=client.original_destination_connection_id,
            session_ticket_handler=tickets.append,
        ),
    )
    assert len(tickets) == 2
    for pair in (None, site.client()):
        again = replace(config, session_ticket=tickets[0])
        if pair is not None:
            again.certificate, again.private_key = pair.certificate, pair.private_key
        given: list[object] = []
        client = QuicConnection(configuration=again, session_ticket_handler=given.append)
        server = site.accept(client)
        heard = join(client, server, early=b"early")
        assert not given
        if pair is None:
            assert _aioquic.close_event(server).error_code == 0x174
            assert not [e for e in heard if isinstance(e, events.StreamDataReceived)]
        else:
            (done,) = [e for e in heard if isinstance(e, events.HandshakeCompleted)]
            assert not done.session_resumed
            assert not done.early_data_accepted
            assert server.shown is not None


# -------------------------------------------------------------------------------- files that change


def test_authorities_that_change(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = site.client(), of_others(site)
    _, server, _ = site.meet(ours)
    assert server.shown.ends > 0
    other = make_authority("another")
    site.file.write_bytes(site.ca.certificate_pem() + other.certificate_pem())
    site.ahead += LOOK_EVERY
    _, joined, _ = site.meet(make_client_certificate(other, "site-b"))
    assert joined.shown.ends > 0
    assert server.shown.ends > 0
    assert alert(site, theirs) is AlertDescription.unknown_ca
    site.file.write_bytes(other.certificate_pem())
    site.ahead += LOOK_EVERY
    site.authorities.refresh()
    assert site.authorities.generation == 3
    assert server.shown.ends == 0
    assert joined.shown.ends > 0
    assert alert(site, ours) is AlertDescription.unknown_ca
    for content in (b"half", None):
        site.file.unlink() if content is None else site.file.write_bytes(content)
        for _ in range(3):
            site.ahead += LOOK_EVERY
            site.authorities.refresh()
    assert joined.shown.ends > 0
    assert caplog.text.count("CAs of clients stay as they were") == 2


def test_a_file_that_is_replaced_in_place_of_one_like_it(site: Site) -> None:
    times = site.file.stat()
    fresh = site.file.with_name("fresh")
    fresh.write_bytes(make_authority("ca of clients").certificate_pem())
    os.utime(fresh, ns=(times.st_atime_ns, times.st_mtime_ns))
    fresh.replace(site.file)
    site.authorities.refresh()
    assert alert(site, site.client()) is AlertDescription.unknown_ca


@pytest.mark.parametrize(
    "content",
    [None, b"", b"text", bytes(MAX_FILE + 1), issue("leaf", ca=False).certificate_pem()],
    ids=["missing", "empty", "text", "large", "no CA"],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(TransportError, match=rf"the file {tmp_path}/ca\.pem with CAs of clients"):
        ClientAuthorities([tmp_path / "ca.pem"])


def test_no_file_at_all() -> None:
    with pytest.raises(TransportError, match="no CA of clients"):
        ClientAuthorities([])


# ------------------------------------------------------------------------------- over real sockets


def written(folder: Path, name: str, pair: KeyPair) -> tuple[Path, Path]:
    """Its certificate and key as files."""
    (folder / f"{name}.pem").write_bytes(pair.certificate_pem())
    pem = pair.private_key.private_bytes(
        Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / f"{name}.key").write_bytes(pem)
    return folder / f"{name}.pem", folder / f"{name}.key"


@pytest.mark.e2e
@pytest.mark.parametrize("retry_from", [64, 0], ids=["at once", "after Retry"])
def test_a_listener_that_asks(run, site: Site, tmp_path: Path, retry_from: int) -> None:
    """Who has one is known by it; who has none hears why, and what to do, and is no session."""
    pair = site.client()
    certificate, key = written(tmp_path, "server", site.server)
    own, own_key = written(tmp_path, "client", pair)
    trust = ClientTls(ca_file=site.file, server_name="localhost")

    async def scenario() -> None:
        sinks: list[Sink] = []

        def made(session):
            sinks.append(Sink(session))
            return sinks[-1]

        listener = await serve(
            "127.0.0.1",
            0,
            made,
            tls=ServerTls(certificate=certificate, private_key=key, client_ca=site.authorities),
            options=replace(MOQT, retry_from=retry_from),
        )
        url = MoqtUrl.parse(f"moqt://127.0.0.1:{listener.port}/")
        known = replace(trust, certificate=own, private_key=own_key)
        session = await connect(url, Sink, tls=known, options=MOQT)
        await until(lambda: sinks)
        assert session.peer_certificate is None
        shown = sinks[0].session.peer_certificate
        assert shown.der == pair.certificate.public_bytes(Encoding.DER)
        heard: list[Sink] = []
        nobody = await connect(
            url, lambda one: heard.append(Sink(one)) or heard[0], tls=trust, options=MOQT
        )
        nobody.write(nobody.open(ORDER, unidirectional=True), b"at once")
        await until(lambda: heard[0].of("closed"))
        ((_, code, reason, remote),) = heard[0].of("closed")
        assert (code, remote) == (-1, True)
        assert reason == (
            "a client certificate is required (QUIC error 0x174, certificate_required); give a"
            " client certificate of a CA that the server trusts (ClientTls.certificate)"
        )
        assert len(sinks) == 1
        session.close(0)
        await until(lambda: listener.entries == 0)
        await listener.close()

    run(scenario())


@pytest.mark.e2e
def test_a_refusal_that_is_lost_is_repeated(
    run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_aioquic, "probe_timeout", lambda _quic: 0.3)  # it waits for strays so long
    certificate, key = written(tmp_path, "server", site.server)
    lost = 0

    def lose(_data: bytes, to_server: bool) -> bool:
        nonlocal lost
        refusing = any(one._quic.refused for one in listener_of[0]._members)
        lost += (drop := not to_server and refusing and not lost)
        return drop

    listener_of: list[Listener] = []

    async def scenario() -> None:
        listener = await serve(
            "127.0.0.1",
            0,
            Sink,
            tls=ServerTls(certificate=certificate, private_key=key, client_ca=site.authorities),
            options=MOQT,
        )
        listener_of.append(listener)
        relay = await Relay.open(("127.0.0.1", listener.port), lose)
        heard: list[Sink] = []
        await connect(
            MoqtUrl.parse(f"moqt://127.0.0.1:{relay.port}/"),
            lambda one: heard.append(Sink(one)) or heard[0],
            tls=ClientTls(ca_file=site.file, server_name="localhost"),
            options=MOQT,
        )
        await until(lambda: heard[0].of("closed"))
        assert lost == 1
        assert "a client certificate is required" in heard[0].of("closed")[0][2]
        await until(lambda: listener.entries == 0)
        await listener.close()
        relay.transport.close()

    run(scenario())


def refusal(site: Site, **tls: Path) -> str:
    """What is said of files that a client cannot use."""
    with pytest.raises(ConnectFailed) as caught:
        client_configuration(MoqtUrl.parse("moqt://a/"), ClientTls(**tls), MOQT)
    assert caught.value.fault is ConnectFault.CERTIFICATE
    return str(caught.value)


def test_files_of_our_own(site: Site, tmp_path: Path) -> None:
    good, key = written(tmp_path, "good", site.client())
    _, other = written(tmp_path, "other", site.client())
    odd, odd_key = written(tmp_path, "odd", issue("a", key=ec.generate_private_key(ec.SECP521R1())))
    long = tmp_path / "long.pem"
    long.write_bytes(good.read_bytes() * 40)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        site.client().private_key.private_bytes(
            Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    client_configuration(
        MoqtUrl.parse("moqt://a/"), ClientTls(certificate=good, private_key=key), MOQT
    )
    for certificate, private_key, words in (
        (good, other, f"the key {other} is not the key of the certificate {good}"),
        (good, locked, "its unencrypted PEM key"),
        (good, tmp_path / "none", "No such file"),
        (key, key, "give a PEM certificate"),
        (odd, odd_key, "of P-256 or P-384"),
        (long, key, f"more than {LONGEST_CHAIN} octets"),
    ):
        assert words in refusal(site, certificate=certificate, private_key=private_key)
    assert "give both, or neither" in refusal(site, certificate=good)
    assert "give both, or neither" in refusal(site, private_key=key)
    with pytest.raises(TransportError, match="its unencrypted PEM key"):
        server_configuration(ServerTls(certificate=good, private_key=locked), MOQT)


def test_the_longest_chain_of_our_own_can_be_sent(site: Site) -> None:
    """No longer than what the library has room for, with the largest signature beside it."""
    key = rsa.generate_private_key(65537, 4096)
    pair = KeyPair(issue("site-a", site.ca, ca=False, key=key).certificate, key)
    filler = issue("x" * 60).certificate
    own, one = (len(c.public_bytes(Encoding.DER)) for c in (pair.certificate, filler))
    client, server, _ = site.meet(pair, *[filler] * ((LONGEST_CHAIN - own) // one))
    assert _aioquic.close_event(server).error_code == 0x12A
    assert _aioquic.close_event(client).error_code == 0x12A


@pytest.mark.parametrize(
    ("code", "name", "advised"),
    [
        (0x174, ", certificate_required", True),
        (0x130, ", unknown_ca", True),
        (0x178, ", no_application_protocol", False),
        (0x1FF, "", False),
        (0x74, "", False),
        (0x2, "", False),
    ],
)
def test_what_a_code_is_called(code: int, name: str, advised: bool) -> None:
    assert alert_name(code) == name
    assert bool(certificate_advice(code)) == advised
