"""What a command tells: JSON lines, plain lines, or a progress bar on a terminal.

One vocabulary for all three: each event has a name and fields for programs, and a sentence for
people.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable


class Output(Protocol):
    """Where events go; texts may hold a peer's words and are made harmless here."""

    def say(self, event: str, text: str, **fields: object) -> None:
        """Something worth a line."""
        ...

    def expect(self, total: int, label: str) -> None:
        """So many steps will come."""
        ...

    def step(self, event: str, text: str, **fields: object) -> None:
        """One of the expected steps is done."""
        ...

    def close(self) -> None:
        """Nothing more comes; the terminal is given back."""
        ...


class JsonLines:
    """Each event as one line of JSON on standard output, ``event`` first."""

    def say(self, event: str, text: str, **fields: object) -> None:
        """See ``Output``; ``text`` is for people."""
        emit_json(event, **fields)

    def expect(self, total: int, label: str) -> None:
        """Programs count themselves."""

    step = say

    def close(self) -> None:
        """Lines are flushed one by one."""


class PlainLines:
    """Each event as a sentence, for pipes and logs."""

    def say(self, event: str, text: str, **fields: object) -> None:
        """See ``Output``."""
        click.echo(printable(text))

    def expect(self, total: int, label: str) -> None:
        """Lines speak for themselves."""

    step = say

    def close(self) -> None:
        """Lines are flushed one by one."""


class Terminal:
    """Sentences above one moving bar."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console or Console(),
        )
        self._task = self._progress.add_task("", start=False, visible=False)

    def say(self, event: str, text: str, **fields: object) -> None:
        """See ``Output``."""
        self._progress.console.print(Text(printable(text)), soft_wrap=True)

    def expect(self, total: int, label: str) -> None:
        """See ``Output``."""
        self._progress.reset(self._task, total=total, description=label, visible=True)
        self._progress.start()

    def step(self, event: str, text: str, **fields: object) -> None:
        """See ``Output``; after the last step the bar stands still."""
        self._progress.advance(self._task)
        if self._progress.finished:
            self._progress.stop()

    def close(self) -> None:
        """See ``Output``."""
        self._progress.stop()


def choose_output(*, as_json: bool) -> Output:
    """The output that fits standard output."""
    if as_json:
        return JsonLines()
    console = Console()
    return Terminal(console) if console.is_terminal else PlainLines()


def emit_json(event: str, **fields: object) -> None:
    """One line on standard output."""
    click.echo(json.dumps({"event": event, **fields}, ensure_ascii=True))


def printable(text: str) -> str:
    """Without control characters: a peer's reason must not steer a terminal."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


def counted(number: int, what: str) -> str:
    """One block, 2 blocks: in figures, with the plural where it belongs."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def stretch(what: str, first: int, last: int) -> str:
    """``what`` and its number, or its first and its last."""
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def one_line(text: str) -> str:
    """``printable`` without line ends: a peer's words must not look like lines of ours."""
    return printable(text.replace("\n", "\N{REPLACEMENT CHARACTER}"))


def wall_clock(loop_time: Callable[[], float]) -> Callable[[float], float]:
    """Turns times of an event loop into Unix time, comparable between processes."""
    offset = time.time() - loop_time()
    return lambda at: round(at + offset, 6)
