"""A clock: a track that ticks, live. Groups are minutes, objects are seconds.

python examples/moqt/clock.py [TICKS] [SECONDS BETWEEN TICKS]
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import moqt
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

NAME = moqt.FullTrackName((b"clock", b"example"), b"seconds")


async def tick(track: moqt.Track, ticks: int, pause: float) -> None:
    """The publisher: whoever subscribes hears from the next tick on."""
    minute = track.subgroup(0)
    for second in range(ticks):
        await asyncio.sleep(pause)
        if second and second % 60 == 0:
            minute.finish()
            minute = track.subgroup(second // 60)
        minute.object(second % 60, time.strftime("%H:%M:%S").encode())
    minute.finish()
    track.end()  # PUBLISH_DONE: the subscriber's loop ends


async def watch(url: str, ca: Path, watching: asyncio.Event) -> None:
    """The subscriber: may start at any time."""
    async with (
        await moqt.connect(url, tls=ClientTls(ca_file=ca)) as connection,
        moqt.subscribe(connection, NAME) as seconds,
    ):
        watching.set()
        async for second in seconds:
            print(f"minute {second.group}, second {second.object}: {second.payload.decode()}")


async def main() -> None:
    """Both in one process; they could be on two machines."""
    ticks, pause = sys.argv[1:] + ["5", "1"][len(sys.argv) - 1 :]
    ca, certificate, key = write_test_certificates(Path(tempfile.mkdtemp()))
    catalog = moqt.Catalog()
    track = catalog.add(moqt.Track(NAME))
    tls = ServerTls(certificate=certificate, private_key=key)
    async with await moqt.serve("127.0.0.1", 0, tls=tls, handler=catalog.handler) as server:
        watching = asyncio.Event()
        watch_task = asyncio.create_task(watch(f"moqt://127.0.0.1:{server.port}/", ca, watching))
        await watching.wait()  # so that nothing is missed here
        await asyncio.gather(watch_task, tick(track, int(ticks), float(pause)))


asyncio.run(main())
