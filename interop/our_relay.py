"""aiomoqt's interop client at our relay: every case, none needs another relay."""

from __future__ import annotations

from functools import partial
from typing import Final

from interop import peers
from interop.cases import Casebook, Stage, expect
from interop.our_server import FOR_RELAYS, FOR_SERVERS, tap_message
from moqt.relay.service import RelayService, ServiceConfig
from transport.config import ServerTls

book: Final = Casebook("aiomoqt", "its interop client at our relay")


async def play(name: str, stage: Stage) -> str:
    """One case, judged by its TAP."""
    tls = ServerTls(
        certificate=stage.certificates.certificate, private_key=stage.certificates.private_key
    )
    async with (
        RelayService(ServiceConfig(host="127.0.0.1", port=0, tls=tls)) as relay,
        peers.running(
            stage.logs / f"aiomoqt-client-at-relay-{name}.log",
            peers.executable("aiomoqt", "moq-interop-client"),
            *("-r", f"moqt://localhost:{relay.port}", "-t", name),
            *("--draft", "22", "--tls-disable-verify"),
        ) as client,
    ):
        await client.ended()
        said = client.said()
    message = tap_message(said)
    expect(f"\nok 1 - {name}" in said, message)
    return message


for _name in (*FOR_SERVERS, *FOR_RELAYS):
    book.add(_name, partial(play, _name), 20.0)
