"""A namespace browser: what a peer publishes under a prefix, as it comes and goes."""

import asyncio
import tempfile
from pathlib import Path

import moqt
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls


async def publish(catalog: moqt.Catalog) -> None:
    """Cameras that appear, and one that goes."""
    for camera in (b"door", b"garden"):
        catalog.announce((b"home", b"cameras", camera))
        await asyncio.sleep(0.05)
    catalog.announce((b"home", b"lights"))  # nobody asked for those
    catalog.withdraw((b"home", b"cameras", b"door"))


async def main() -> None:
    ca, certificate, key = write_test_certificates(Path(tempfile.mkdtemp()))
    catalog = moqt.Catalog()
    catalog.announce((b"home", b"cameras", b"attic"))
    tls = ServerTls(certificate=certificate, private_key=key)
    async with await moqt.serve("127.0.0.1", 0, tls=tls, handler=catalog.handler) as server:
        url = f"moqt://127.0.0.1:{server.port}/"
        async with (
            await moqt.connect(url, tls=ClientTls(ca_file=ca)) as connection,
            moqt.namespaces(connection, (b"home", b"cameras")) as cameras,
        ):
            publishing = asyncio.create_task(publish(catalog))
            async for change, namespace in cameras:
                print(f"{change}: {'/'.join(part.decode() for part in namespace)}")
                if change is moqt.Change.GONE:
                    break  # leaving the block ends the request
            await publishing


asyncio.run(main())
