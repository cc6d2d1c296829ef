"""What goes wrong between processes: one message, exit code 1, and nothing left in the folder."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aioquic.asyncio import serve
from aioquic.quic.configuration import QuicConfiguration

from kvcs.cli.children import Child
from kvcs.keys import create_scope_key
from tests.kvcs.cli.stage import Stage
from transport.certificates import CertificatePaths, write_test_certificates

pytestmark = pytest.mark.e2e


async def failure(child: Child) -> str:
    """Its one error, after it has ended with exit code 1."""
    assert await child.wait() == 1
    (error,) = child.of("error")
    assert error["exit_code"] == 1
    return error["message"]


async def test_unknown_publication(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    other = uri[:-3] + (".00" if not uri.endswith(".00") else ".01")
    consumer = await stage.consumer("out", other)
    assert "cannot be had" in await failure(consumer)
    assert stage.leftovers("out") == []


async def test_wrong_scope_key(stage: Stage, tmp_path: Path) -> None:
    _, url, _ = await stage.publisher()
    create_scope_key(tmp_path / "other.key")
    words = ("--scope-key", tmp_path / "other.key", "--block-tokens", 8, "--like", stage.cache)
    consumer = await stage.consumer("out", url, *words)
    message = await failure(consumer)
    assert "no publication for scope" in message
    assert "scope key" in message
    assert (tmp_path / "other.key").read_text().strip() not in message


async def test_another_model(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    consumer = await stage.consumer(
        "out", uri, "--like", stage.cache, "--block-tokens", 8, "--model", "other"
    )
    assert "model: 'other' here, 'test' there" in await failure(consumer)


async def test_layers_that_are_not_there(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    consumer = await stage.consumer("out", uri, "--layers", "2-9")
    assert "layers 2 to 9: the model has 0 to 3" in await failure(consumer)


async def test_certificate_not_trusted(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    consumer = await stage.start("out", "kvcs.cli.sub", uri)
    message = await failure(consumer)
    assert "certificate is not accepted" in message
    assert "--ca FILE" in message


async def test_certificate_for_another_name(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    consumer = await stage.consumer("out", uri, "--server-name", "elsewhere.example")
    assert "certificate is not accepted" in await failure(consumer)


async def test_any_certificate_when_told_so(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    words = ("--insecure", "-o", stage.out("out"))
    await (await stage.start("out", "kvcs.cli.sub", uri, *words)).finish()
    stage.assert_whole("out")


@pytest_asyncio.fixture
async def stranger(certificates: CertificatePaths) -> AsyncIterator[int]:
    """The port of a QUIC server that does not speak MOQT."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(certificates.certificate, certificates.private_key)
    server = await serve("127.0.0.1", 0, configuration=configuration)
    yield server._transport.get_extra_info("sockname")[1]
    server.close()


async def test_a_peer_that_does_not_speak_moqt(stage: Stage, stranger: int) -> None:
    words = (*stage.scope, "--like", stage.cache)
    consumer = await stage.consumer("out", f"moqt://127.0.0.1:{stranger}", *words)
    assert "no protocol in common" in await failure(consumer)


async def test_a_port_that_is_taken(stage: Stage) -> None:
    _, url, _ = await stage.publisher()
    tls = stage.certificates
    place = ("--listen", url.removeprefix("moqt://").removesuffix("/"))
    second = await stage.start(
        "second",
        *("kvcs.cli.pub", stage.cache, *stage.scope, *place),
        *("--cert", tls.certificate, "--key", tls.private_key),
    )
    message = await failure(second)
    assert "127.0.0.1" in message
    assert "in use" in message


async def test_a_key_of_another_certificate(stage: Stage, tmp_path: Path) -> None:
    other = write_test_certificates(tmp_path / "other")
    words = ("--listen", "127.0.0.1:0", "--cert", other.certificate)
    words = (*words, "--key", stage.certificates.private_key)
    publisher = await stage.start("publisher", "kvcs.cli.pub", stage.cache, *stage.scope, *words)
    assert "is not the key of the certificate" in await failure(publisher)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_publisher_is_killed_in_the_middle(stage: Stage, number: int) -> None:
    publisher, _, uri = await stage.publisher("--hold", "--pace", "0.3")
    consumer = await stage.consumer("out", uri, "--timeout", 2)
    await consumer.until("retrieving")
    publisher.say("go")
    await consumer.until("layer")
    publisher.signal(number)
    assert "missing" in await failure(consumer)
    assert stage.leftovers("out") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interrupted(stage: Stage, number: int, code: int) -> None:
    publisher, _, uri = await stage.publisher("--hold", "--pace", "0.3")
    consumer = await stage.consumer("out", uri)
    await consumer.until("retrieving")
    publisher.say("go")
    await consumer.until("layer")
    assert len(stage.leftovers("out")) == 1
    consumer.signal(number)
    assert await consumer.wait() == code
    assert stage.leftovers("out") == []
    publisher.signal(number)
    assert await publisher.wait() == code
    assert not publisher.of("finished")
    assert not publisher.of("error")


async def test_an_output_that_was_there_is_kept_until_the_new_one_is_whole(stage: Stage) -> None:
    stage.out("out").write_text("older")
    publisher, _, uri = await stage.publisher("--hold")
    consumer = await stage.consumer("out", uri)
    await consumer.until("retrieving")
    consumer.signal(signal.SIGTERM)
    assert await consumer.wait() == 143
    assert stage.out("out").read_text() == "older"
    publisher.say("go")
    await (await stage.consumer("out", uri)).finish()
    stage.assert_whole("out")


async def test_the_disk_is_full(stage: Stage) -> None:
    _, _, uri = await stage.publisher()
    out = stage.out("out")
    words = (uri, "--ca", str(stage.certificates.ca), "-o", str(out))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvcs.cli.sub", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"error: file {out} cannot be written: File too large" in errors.decode()
    assert "octets on that disk" in errors.decode()
    assert "Traceback" not in errors.decode()
    assert stage.leftovers("out") == []


async def test_held_and_left_alone(stage: Stage) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvcs.cli.sub", "moqt://127.0.0.1:1", *map(str, stage.scope)),
        *("--like", str(stage.cache), "--hold"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert "standard input ended before a line came" in errors.decode()
