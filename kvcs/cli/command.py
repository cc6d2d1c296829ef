"""How a command runs and ends: one message, an exit code, no traceback, nothing left behind.

0 done; 1 failed; 2 wrong usage; 128 and the number after a signal: 130 SIGINT, 143 SIGTERM.

Wrong usage is what the words alone show, those of the configuration and of other files that stand
for words included: the same again cannot succeed. All else depends on files, network, peers: 1.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import click

from kvcs.cli.output import emit_json, one_line, printable
from kvcs.errors import IncompletePublication, InvalidInput, KvcsError
from moqt.errors import MoqtError
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

#: What ends a command in good order.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOPS: Final = ("asyncio", "uvloop", "auto")
_LEVELS: Final = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
#: What parameters that an error advises to give are called on a command line.
_OPTIONS: Final = {
    "(ca_file)": "(--ca FILE)",
    "a name it was made for": "a name it was made for (--server-name NAME)",
    "(ClientTls.certificate)": "(--client-cert FILE with --client-key FILE)",
    "(model)": "(--model NAME)",
}
#: From this -v on, a failure shows where it came from.
_TRACEBACK_FROM: Final = 2


class Failure(click.ClickException):
    """The command failed; exit code 1. ``kind`` is the class of the error behind it.

    ``causes`` are told in lines of their own; the JSON event has them in its message.
    """

    exit_code = 1

    def __init__(
        self, message: str, kind: str, causes: tuple[str, ...] = (), *, as_json: bool = False
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self._causes = causes
        self._as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """As an error event in JSON, or, else or if nobody reads that, on standard error."""
        if self._as_json:
            message = "; ".join((self.message, *self._causes))
            with suppress(BrokenPipeError):
                emit_json("error", kind=self.kind, message=message, exit_code=self.exit_code)
                return
        click.echo(f"error: {one_line(self.message)}", err=True)
        for cause in self._causes:
            click.echo(f"  setback: {one_line(cause)}", err=True)


@dataclass
class Standing:
    """What an interruption leaves behind, in words; the work keeps it up to date."""

    text: str = ""


class Interrupted(click.ClickException):
    """A signal ended the command; exit code 128 and its number."""

    def __init__(self, number: int, left: str = "", *, as_json: bool = False) -> None:
        super().__init__(f"interrupted; {left}" if left else "interrupted")
        self.exit_code = 128 + number  # type: ignore[misc]  # click reads it from the instance
        self._signal = signal.Signals(number).name
        self._as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Like Failure."""
        if self._as_json:
            with suppress(BrokenPipeError):
                emit_json(
                    "interrupted",
                    signal=self._signal,
                    message=self.message,
                    exit_code=self.exit_code,
                )
                return
        click.echo(self.message, err=True)


class Command(click.Command):
    """A command that ends as this module says, in JSON too when ``--json`` is among its words."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Read the words; a usage error in JSON is an event as well."""
        as_json = "--json" in args
        with _usage_reported(as_json=as_json):
            try:
                return super().make_context(info_name, args, parent, **extra)
            except KeyboardInterrupt:
                raise Interrupted(signal.SIGINT, as_json=as_json) from None
            except KvcsError as error:  # a file that stands for words
                raise _failure(error, str(error), as_json=as_json, verbose=0) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run; whatever is raised becomes a message and an exit code."""
        as_json = bool(ctx.params.get("json"))
        standing = ctx.obj = Standing()
        verbose = int(ctx.params.get("verbose") or 0)
        _log_to_stderr(verbose)
        try:
            with _usage_reported(as_json=as_json):
                return super().invoke(ctx)
        except _Signalled as caught:
            raise Interrupted(caught.number, standing.text, as_json=as_json) from None
        except KeyboardInterrupt:
            raise Interrupted(signal.SIGINT, standing.text, as_json=as_json) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click's own; it ends quietly when nobody reads the output any more
        except (KvcsError, MoqtError, TransportError, OSError) as error:
            raise _failure(error, _advised(error), as_json=as_json, verbose=verbose) from error
        except Exception as error:
            message = (
                f"internal fault, {type(error).__name__}: {error}; please report it with the"
                " traceback that -vv shows"
            )
            raise _failure(error, message, as_json=as_json, verbose=verbose) from error


class Group(click.Group):
    """Commands under one name; a wrong one is told as ``Command`` tells it."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Like Command."""
        with _usage_reported(as_json="--json" in args):
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like Command: there may be none of that name."""
        with _usage_reported(as_json="--json" in args):
            return super().resolve_command(ctx, args)


class HarmlessFormatter(logging.Formatter):
    """One line a message, and no control characters: a peer's reason must not steer a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The message, in one line."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802, ANN401 - logging's name and type
        """The traceback, in the lines it has."""
        return printable(super().formatException(ei))


def _log_to_stderr(verbose: int) -> None:
    """aioquic stays one step quieter: at first its warnings repeat what we say ourselves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=_LEVELS[min(verbose + 1, len(_LEVELS) - 1)], handlers=[handler])
    logging.getLogger("quic").setLevel(_LEVELS[min(verbose, len(_LEVELS) - 1)])


class _Signalled(Exception):
    """One of SIGNALS ended the work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(
    work: Callable[[], Coroutine[Any, Any, None]], loop: str, *, until_signal: bool = False
) -> None:
    """Run ``work`` on a new event loop of the kind named; the first of SIGNALS cancels it.

    Raises what ``Command`` ends with after a signal, unless the work is meant to run
    ``until_signal``; InvalidInput without uvloop.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
            caught = runner.run(_until_signal(work))
    finally:
        # A loop gives back the default, not what was there: ignored, under nohup and in a script.
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught is not None and not until_signal:
        raise _Signalled(caught)


async def _until_signal(work: Callable[[], Coroutine[Any, Any, None]]) -> int | None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work())
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()
        # Who signals again does not want to wait for the cleaning up.
        for one in SIGNALS:
            loop.remove_signal_handler(one)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not caught:
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return caught[0] if caught else None


def _loop_factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if loop == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if loop == "auto":
            return None
        raise InvalidInput(
            "--loop uvloop: uvloop is not installed; pip install 'kvcs[uvloop]', or take asyncio"
        ) from None
    return uvloop.new_event_loop


@contextmanager
def words_alone(option: str = "", cure: str = "") -> Iterator[None]:
    """What is refused in here was wrong in the words that were given: UsageError."""
    try:
        yield
    except InvalidInput as error:
        told = f"{option}: {error}" if option else str(error)
        raise click.UsageError(f"{told}; {cure}" if cure else told) from None


@contextmanager
def _usage_reported(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if as_json:
            emit_json(
                "error", kind="usage", message=error.format_message(), exit_code=error.exit_code
            )
            raise click.exceptions.Exit(error.exit_code) from None
        raise


def _failure(error: Exception, message: str, *, as_json: bool, verbose: int) -> Failure:
    if verbose >= _TRACEBACK_FROM:
        click.echo(printable("".join(traceback.format_exception(error))), nl=False, err=True)
    causes = error.causes if isinstance(error, IncompletePublication) else ()
    kind = type(error).__name__
    return Failure(message or kind, kind, causes, as_json=as_json)


def _advised(error: Exception) -> str:
    """What is told of an error, in terms of the command line."""
    text = error.summary if isinstance(error, IncompletePublication) else str(error)
    for parameter, option in _OPTIONS.items():
        text = text.replace(parameter, option)
    return text
