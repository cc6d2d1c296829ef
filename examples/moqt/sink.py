"""A receiver of one's own: 8 MiB straight into one buffer, no object in between, no queue."""

import asyncio
import os
import tempfile
from pathlib import Path

import moqt
from transport.api import BytesLike
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

NAME, SIZE, PARTS = moqt.FullTrackName((b"files",), b"big"), 1 << 20, 8


class Into:
    """ObjectSink and TrackReceiver at once: object n goes to octets n * SIZE of ``buffer``."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer, self.at = memoryview(buffer), 0
        self.outcome: asyncio.Future[moqt.MoqtError | None] = asyncio.Future()
        self.failed = self.outcome.set_result
        self.open_subgroup = self.open_fetch = lambda *_: self
        # Of no interest here: the answer, and how single objects and streams end.
        self.accepted = self.datagram = lambda *_: None
        self.end = self.gap = self.finish = self.abort = lambda *_: None

    def begin(self, head: moqt.ObjectHead) -> None:
        if head.object >= PARTS or head.length != SIZE:
            raise moqt.MalformedTrack("another size than agreed")  # ends this request alone
        self.at = head.object * SIZE

    def write(self, view: BytesLike) -> None:  # called from the receive path, as octets arrive
        self.buffer[self.at : self.at + len(view)] = view
        self.at += len(view)

    def done(self, code: int, reason: str, complete: bool) -> None:
        self.outcome.set_result(None)


async def main() -> None:
    ca, certificate, key = write_test_certificates(Path(tempfile.mkdtemp()))
    source, buffer = os.urandom(PARTS * SIZE), bytearray(PARTS * SIZE)
    catalog = moqt.Catalog()
    subgroup = catalog.add(moqt.Track(NAME)).subgroup(0)
    for part in range(PARTS):
        subgroup.object(part, memoryview(source)[part * SIZE : (part + 1) * SIZE])  # no copy either
    tls, receiver = ServerTls(certificate=certificate, private_key=key), Into(buffer)
    async with await moqt.serve("127.0.0.1", 0, tls=tls, handler=catalog.handler) as server:
        url = f"moqt://127.0.0.1:{server.port}/"
        async with await moqt.connect(url, tls=ClientTls(ca_file=ca)) as connection:
            connection.fetch(NAME, receiver)
            error = await receiver.outcome
            print(error or f"{len(buffer)} octets, equal: {buffer == source}")


asyncio.run(main())
