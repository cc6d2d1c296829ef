"""aiomoqt's interop client at our relay: every case, none needs another relay."""

from __future__ import annotations

from functools import partial
from typing import Final

from interop.cases import Casebook, Stage
from interop.our_server import FOR_RELAYS, FOR_SERVERS, passed, tap_of
from moqt.relay.service import RelayService, ServiceConfig
from transport.config import ServerTls

book: Final = Casebook("aiomoqt", "its interop client at our relay")


async def play(name: str, stage: Stage) -> str:
    """One case, judged by its TAP."""
    tls = ServerTls(
        certificate=stage.certificates.certificate, private_key=stage.certificates.private_key
    )
    async with RelayService(ServiceConfig(host="127.0.0.1", port=0, tls=tls)) as relay:
        return passed(name, await tap_of(name, stage, f"moqt://localhost:{relay.port}"))


for _name in (*FOR_SERVERS, *FOR_RELAYS):
    book.add(_name, partial(play, _name), 20.0)
