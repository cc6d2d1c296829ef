"""Fetch a past range of a track, oldest group first and newest first."""

import asyncio
import tempfile
from pathlib import Path

import moqt
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

NAME = moqt.FullTrackName((b"news", b"example"), b"headlines")


def published() -> moqt.Track:
    """Six groups of two objects; a Track keeps what it has published."""
    track = moqt.Track(NAME)
    for group in range(6):
        subgroup = track.subgroup(group)
        subgroup.object(0, f"headline of day {group}".encode())
        subgroup.object(1, b"more about it")
        subgroup.finish()
    return track


async def main() -> None:
    ca, certificate, key = write_test_certificates(Path(tempfile.mkdtemp()))
    catalog = moqt.Catalog()
    catalog.add(published())
    tls = ServerTls(certificate=certificate, private_key=key)
    async with await moqt.serve("127.0.0.1", 0, tls=tls, handler=catalog.handler) as server:
        url = f"moqt://127.0.0.1:{server.port}/"
        async with await moqt.connect(url, tls=ClientTls(ca_file=ca)) as connection:
            days = moqt.LocationFilter.groups(2, 4)  # both inclusive
            for order in moqt.GroupOrder:
                wanted = moqt.Parameters(location_filter=days, group_order=order)
                async with moqt.fetch(connection, NAME, wanted) as past:
                    print(f"{order.name}, up to {past.info.end}")
                    async for one in past:
                        print(f"  {one.group}, {one.object}: {one.payload.decode()}")
            # Nothing there is an answer of its own, with a code.
            beyond = moqt.Parameters(location_filter=moqt.LocationFilter.groups(70, 80))
            try:
                async with moqt.fetch(connection, NAME, beyond):
                    print("not reached")
            except moqt.RequestFailed as error:
                print(f"refused: {error}")


asyncio.run(main())
