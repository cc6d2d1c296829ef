"""kvcs.cli.command: every end is an exit code and at most one message."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import signal
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from kvcs.cli.command import Command, Standing, run
from kvcs.cli.options import run_options
from kvcs.errors import IncompletePublication, InvalidInput
from moqt.errors import SessionClosed
from transport.errors import ConnectFailed, ConnectFault


def call(work: Callable[[], object], *words: str) -> Result:
    """A command whose function is ``work``."""

    @click.command(cls=Command)
    @run_options
    def command(**_: object) -> None:
        work()

    return CliRunner().invoke(command, words)


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> None:
        raise error

    return work


def test_nothing_went_wrong() -> None:
    result = call(lambda: None)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidInput("file x: too short; give another"), "file x: too short; give another"),
        (SessionClosed(3, "gone\x1b[2J"), "session closed: gone\ufffd[2J (code 0x3)"),
        (ConnectFailed(ConnectFault.TIMEOUT, "no answer"), "no answer"),
        (
            ConnectFailed(
                ConnectFault.CERTIFICATE, "trust the CA (ca_file), or a name it was made for"
            ),
            "trust the CA (--ca FILE), or a name it was made for (--server-name NAME)",
        ),
        (
            InvalidInput("file x: its metadata names no model: give its name (model)"),
            "file x: its metadata names no model: give its name (--model NAME)",
        ),
        (
            IncompletePublication("3 of 8 are missing", causes=("a: gone (2 times)", "b\nc")),
            "3 of 8 are missing\n  setback: a: gone (2 times)\n  setback: b\ufffdc",
        ),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_failures(error: Exception, said: str) -> None:
    result = call(raising(error))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {said}\n")
    told = json.loads(call(raising(error), "--json").stdout)
    assert (told["event"], told["kind"]) == ("error", type(error).__name__)
    assert told["exit_code"] == 1


def test_causes_are_in_the_message_of_the_event() -> None:
    error = IncompletePublication("3 of 8 are missing", causes=("a", "b"))
    assert json.loads(call(raising(error), "--json").stdout)["message"] == str(error)


def test_a_mistake_of_ours() -> None:
    result = call(raising(KeyError("x")))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: internal fault, KeyError: 'x'; please report it")
    assert "Traceback" not in result.stderr
    assert "Traceback" in call(raising(KeyError("x")), "-vv").stderr


def test_usage_found_late_is_usage() -> None:
    result = call(raising(click.UsageError("not both")), "--json")
    assert result.exit_code == 2
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["kind"] == "usage"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "auto"])
def test_signals(number: signal.Signals, code: int, loop: str) -> None:
    cleaned = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    before = signal.getsignal(number)
    result = call(lambda: run(work, loop))
    assert (result.exit_code, result.output) == (code, "interrupted\n")
    assert cleaned == [True]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("signalled", [False, True])
def test_what_an_interruption_leaves(signalled: bool) -> None:
    """Before the loop runs, too."""

    async def wait() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    def work() -> None:
        click.get_current_context().ensure_object(Standing).text = "nothing was written"
        if not signalled:
            raise KeyboardInterrupt
        run(wait, "asyncio")

    result = call(work)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "interrupted; nothing was written\n"
    result = call(work, "--json")
    assert (result.exit_code, result.stderr) == (130, "")
    assert json.loads(result.stdout) == {
        "event": "interrupted",
        "signal": "SIGINT",
        "message": "interrupted; nothing was written",
        "exit_code": 130,
    }


def test_interrupted_while_the_words_are_read() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    @click.command(cls=Command)
    @click.option("--word", callback=stop)
    def command(**_: object) -> None:
        pass

    result = CliRunner().invoke(command, [])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_the_second_signal_does_not_wait() -> None:
    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            # The handlers are gone by now: this is Python's own.
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert call(lambda: run(work, "asyncio")).exit_code == 130


def test_a_failure_while_running() -> None:
    async def work() -> None:
        raise InvalidInput("no")

    assert call(lambda: run(work, "asyncio")).stderr == "error: no\n"


def test_cancelled_by_nobody() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(work, "asyncio")


def test_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def no_uvloop(name: str, *args: object) -> object:
        if name == "uvloop":
            raise ImportError(name)
        return found(name, *args)

    async def work() -> None:
        assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")

    monkeypatch.setattr(builtins, "__import__", no_uvloop)
    assert call(lambda: run(work, "auto")).exit_code == 0
    result = call(lambda: run(work, "uvloop"))
    assert result.exit_code == 1
    assert "pip install 'kvcs[uvloop]'" in result.stderr
