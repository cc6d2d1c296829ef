"""Two people chat over one session: each publishes a track of lines, and reads the other's."""

import asyncio
import tempfile
from pathlib import Path

import moqt
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

LINES = {b"ann": ("hello bob", "how are you?"), b"bob": ("hello ann",)}
NAMES = {who: moqt.FullTrackName((b"chat", b"room-1"), who) for who in LINES}
# From the first line on: what is new, and what was said before we came.
EVERYTHING = moqt.Parameters(fill=moqt.Parameters(location_filter=moqt.LocationFilter.since(0)))


async def chat(connection: moqt.Connection, track: moqt.Track, me: bytes, other: bytes) -> None:
    async with moqt.subscribe(connection, NAMES[other], EVERYTHING) as heard:
        for number, line in enumerate(LINES[me]):
            subgroup = track.subgroup(number)  # a group a line: each goes on a stream of its own
            subgroup.object(0, line.encode())
            subgroup.finish()
        track.end()
        async for said in heard:
            print(f"{other.decode()} to {me.decode()}: {said.payload.decode()}")


async def main() -> None:
    ca, certificate, key = write_test_certificates(Path(tempfile.mkdtemp()))
    tls = ServerTls(certificate=certificate, private_key=key)
    ann, bob = moqt.Catalog(), moqt.Catalog()
    anns, bobs = ann.add(moqt.Track(NAMES[b"ann"])), bob.add(moqt.Track(NAMES[b"bob"]))
    came: asyncio.Queue[moqt.Connection] = asyncio.Queue()
    async with await moqt.serve(
        "127.0.0.1", 0, tls=tls, handler=ann.handler, on_connection=came.put_nowait
    ) as server:
        url, trust = f"moqt://127.0.0.1:{server.port}/", ClientTls(ca_file=ca)
        async with await moqt.connect(url, handler=bob.handler, tls=trust) as to_ann:
            to_bob = await came.get()
            await to_bob.ready()
            await asyncio.gather(
                chat(to_bob, anns, b"ann", b"bob"), chat(to_ann, bobs, b"bob", b"ann")
            )


asyncio.run(main())
