"""A line on standard input as something to await."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING

from kvcs.errors import InvalidInput

if TYPE_CHECKING:
    from kvcs.cli.output import Output


async def line_on_stdin(output: Output) -> None:
    """Say so, and wait for any line on standard input; raises InvalidInput when it ends first.

    A thread reads octets: files and /dev/null cannot be watched by an event loop, and a thread of
    the default executor would keep an interrupted command from ending.
    """
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bool] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def settle(found: bool) -> None:
        if not line.done():
            line.set_result(found)

    def read() -> None:
        octet = b" "
        while octet not in (b"", b"\n"):
            try:
                octet = os.read(descriptor, 1)
            except OSError:
                octet = b""
        try:
            loop.call_soon_threadsafe(settle, octet == b"\n")
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    output.say("held", "waiting for a line on standard input")
    threading.Thread(target=read, name="stdin", daemon=True).start()
    if not await line:
        raise InvalidInput(
            "standard input ended before a line came: --hold waits for one; leave it out"
        )
