"""A kvcs command as a process of its own, heard through its lines of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from signal import SIGKILL, SIGTERM
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeAlias

from kvcs.errors import KvcsError

if TYPE_CHECKING:
    from collections.abc import Callable

#: One line of JSON.
Event: TypeAlias = dict[str, Any]

#: Seconds a process gets to end by itself once it is told to.
GRACE: Final = 5.0
#: The longest line, a report with many ranges missing, is far shorter.
MAX_LINE: Final = 1 << 20


class ChildFailed(KvcsError):
    """A process ended, or said what it should not, before it did its part."""


class Child:
    """One process; ``events`` are all that it has said so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.events: list[Event] = []
        self._process = process
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        *words: object,
        on_event: Callable[[Child, Event], None],
        stderr: IO[bytes] | None = None,
    ) -> Self:
        """Run ``python -m module words... --json``; ``on_event`` hears each event.

        Its log goes to ``stderr``, or where ours goes.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *map(str, words), "--json"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            limit=MAX_LINE,
        )
        child = cls(name, process)
        child._reader = asyncio.create_task(child._read(on_event), name=name)
        return child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def of(self, event: str) -> list[Event]:
        """The events of one name, in order."""
        return [one for one in self.events if one["event"] == event]

    async def until(self, event: str, count: int = 1) -> Event:
        """Wait for the ``count``-th event of that name; raises ChildFailed if the process ends."""
        while len(found := self.of(event)) < count:
            if self._reader.done():
                self._reader.result()
                raise ChildFailed(self._complaint(f"ended before it said {event!r}"))
            self._news.clear()
            await self._news.wait()
        return found[count - 1]

    def say(self, line: str) -> None:
        """One line on its standard input; a process that has ended is told nothing."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        """Send it a signal, by its id."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end and its last word; the exit code, negative after a fatal signal."""
        code = await self._process.wait()
        await self._reader
        return code

    async def finish(self) -> None:
        """Wait for its end; raises ChildFailed unless the exit code is 0."""
        if (code := await self.wait()) != 0:
            raise ChildFailed(self._complaint(f"ended with exit code {code}"))

    async def stop(self) -> None:
        """End it, whatever it is doing."""
        if self._process.returncode is None:
            self.signal(SIGTERM)
            try:
                async with asyncio.timeout(GRACE):
                    await self._process.wait()
            except TimeoutError:
                self.signal(SIGKILL)
                await self._process.wait()
        await asyncio.wait([self._reader])
        self._reader.exception()  # whoever waited for an event has been told

    async def _read(self, on_event: Callable[[Child, Event], None]) -> None:
        stdout = self._process.stdout
        try:
            while stdout is not None and (line := await stdout.readline()):
                event = json.loads(line)
                self.events.append(event)
                on_event(self, event)
                self._news.set()
        except ValueError as error:
            raise ChildFailed(f"{self.name}: a line that is no JSON ({error})") from None
        finally:
            self._news.set()

    def _complaint(self, what: str) -> str:
        errors = self.of("error")
        return f"{self.name} {what}" + (f": {errors[-1]['message']}" if errors else "")
