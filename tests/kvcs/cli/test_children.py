"""kvcs.cli.children: processes that are heard, told things, and always ended."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from kvcs.cli.children import Child, ChildFailed, Event

PLAY = """
import json, sys, time
def say(event, **fields): print(json.dumps({"event": event, **fields}), flush=True)
"""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Start a child that runs the given lines."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    heard: list[Event] = []

    async def start(lines: str) -> tuple[Child, list[Event]]:
        (tmp_path / "playing.py").write_text(PLAY + lines)
        child = await Child.start("it", "playing", 7, on_event=lambda _, event: heard.append(event))
        return child, heard

    return start


async def test_events_words_and_lines(play) -> None:
    child, heard = await play(
        'say("words", given=sys.argv[1:])\nsay("line", text=input())\nsay("n", n=1); say("n", n=2)'
    )
    assert (await child.until("words"))["given"] == ["7", "--json"]
    child.say("hello")
    assert (await child.until("line"))["text"] == "hello"
    assert (await child.until("n", 2))["n"] == 2
    await child.finish()
    assert heard == child.events
    assert [event["n"] for event in child.of("n")] == [1, 2]
    child.say("nobody hears this")
    child.signal(signal.SIGTERM)
    await child.stop()


async def test_an_end_before_the_event(play) -> None:
    child, _ = await play('say("error", message="no luck")\nsys.exit(1)')
    with pytest.raises(ChildFailed, match="it ended before it said 'done': no luck"):
        await child.until("done")
    with pytest.raises(ChildFailed, match="it ended with exit code 1: no luck"):
        await child.finish()
    assert await child.wait() == 1


async def test_no_json(play) -> None:
    child, _ = await play('print("oops")')
    with pytest.raises(ChildFailed, match="a line that is no JSON"):
        await child.until("done")
    await child.stop()


async def test_stop_ends_it_politely(play) -> None:
    child, _ = await play('say("here"); time.sleep(60)')
    await child.until("here")
    await child.stop()
    assert await child.wait() == -signal.SIGTERM


async def test_stop_ends_it_in_any_case(play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcs.cli.children.GRACE", 0.01)
    child, _ = await play(
        'import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay("here"); time.sleep(60)'
    )
    await child.until("here")
    await child.stop()
    assert await child.wait() == -signal.SIGKILL


async def test_two_wait_for_two_events(play) -> None:
    child, _ = await play('say("a"); input(); say("b")')
    both = asyncio.gather(child.until("a"), child.until("b"))
    await child.until("a")
    child.say("")
    assert [event["event"] for event in await both] == ["a", "b"]
    await child.finish()
