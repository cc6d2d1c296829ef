"""kvcs.cli.waiting: a line, or the end of standard input."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from kvcs.cli.output import JsonLines
from kvcs.cli.waiting import line_on_stdin
from kvcs.errors import InvalidInput


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of standard input."""
    out, into = os.pipe()
    with os.fdopen(out) as reader:
        monkeypatch.setattr("sys.stdin", reader)
        yield into
    try:
        os.close(into)
    except OSError:
        return  # the test has closed it


async def test_a_line(stdin: int, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = asyncio.create_task(line_on_stdin(JsonLines()))
    await asyncio.sleep(0)
    assert capsys.readouterr().out == '{"event": "held"}\n'
    os.write(stdin, b"g")
    assert not waiting.done()
    os.write(stdin, b"o\nmore")
    await waiting


async def test_only_its_own_line_is_read(stdin: int) -> None:
    os.write(stdin, b"one\ntwo\n")
    await line_on_stdin(JsonLines())
    await line_on_stdin(JsonLines())


async def test_the_end(stdin: int) -> None:
    os.write(stdin, b"no end of line")
    os.close(stdin)
    with pytest.raises(InvalidInput, match="standard input ended before a line came"):
        await line_on_stdin(JsonLines())


async def test_cancelled(stdin: int) -> None:
    waiting = asyncio.create_task(line_on_stdin(JsonLines()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.write(stdin, b"\n")
