"""Options that the commands share: one name each, and what they say together."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from kvcs.cli.command import LOOPS, words_alone
from kvcs.cli.values import (
    ADDRESS,
    COUNT,
    DESCRIPTOR,
    FILE,
    PEER_TIMEOUT,
    TOKENS,
    Address,
    identifier,
)
from kvcs.errors import OutputFailed
from kvcs.keys import load_scope_key
from kvcs.names import PublicationName
from moqt.monitor import Monitor
from moqt.trace import Trace
from transport import config
from transport.config import ClientTls, QuicOptions, ServerTls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kvcs.cli.output import Output
    from kvcs.identity import CompatibilityDescriptor, ScopeKey
    from kvcs.tokenfile import TokenFile

_F = TypeVar("_F", bound="Callable[..., Any]")
_T = TypeVar("_T")

DEFAULT_BLOCK_TOKENS: Final = 64


def together(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order in which help shows them."""

    def apply(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


def gathered(kind: Callable[..., _T]) -> Callable[[Callable[[_T], None]], Callable[..., None]]:
    """Let a command's function take all its parameters as one ``kind``."""

    def decorate(function: Callable[[_T], None]) -> Callable[..., None]:
        @wraps(function)
        def call(**given: object) -> None:
            function(kind(**given))

        return call

    return decorate


def versioned(function: _F) -> _F:
    """--version; made anew each time, since it remembers whose it is."""
    return click.version_option(package_name="kvcs", message="%(prog)s %(version)s")(function)


# ------------------------------------------------------------------------------------ how it is run


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the command runs and talks."""

    json: bool
    verbose: int
    loop: str
    hold: bool
    trace: Path | None

    @contextmanager
    def watched(self, output: Output) -> Iterator[Monitor]:
        """The eyes of the command: trace from now on, stats at its end. Raises OutputFailed."""
        with self._trace_file() as file:
            monitor = Monitor(None if file is None else Trace(file))
            try:
                yield monitor
            except Exception:
                if monitor.sessions:  # else it failed before there was anything to count
                    self._say_stats(output, monitor)
                raise
            except BaseException:
                self._say_stats(output, monitor)
                raise
            self._say_stats(output, monitor)

    def _say_stats(self, output: Output, monitor: Monitor) -> None:
        if self.json:
            output.say("stats", "", **monitor.to_json())

    def _trace_file(self) -> AbstractContextManager[IO[str] | None]:
        if self.trace is None:
            return nullcontext()
        try:
            return self.trace.open("w", encoding="utf-8")
        except OSError as error:
            raise OutputFailed(
                f"file {self.trace} cannot be written: {error.strerror or error};"
                " choose another --trace"
            ) from error


run_options = together(
    click.option(
        "--hold",
        is_flag=True,
        help="Get ready, then wait for a line on standard input before going on.",
    ),
    click.option(
        "--trace",
        type=FILE,
        help="Write what each session does to this file, as lines of JSON; no payload, no tokens.",
    ),
    versioned,
    click.option("--json", is_flag=True, help="Write each event as a line of JSON."),
    click.option(
        "-v", "--verbose", count=True, help="Log more; -vv logs all, with tracebacks of failures."
    ),
    click.option(
        "--loop",
        type=click.Choice(LOOPS),
        default="asyncio",
        show_default=True,
        help="Event loop; auto takes uvloop if it is installed.",
    ),
)


# --------------------------------------------------------------------------------------- what peers


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Who listens, who dials, and whose certificate is trusted."""

    listen: Address | None
    cert: Path | None
    key: Path | None
    ca: Path | None
    server_name: str | None
    insecure: bool
    token_file: Path | None
    peer_timeout: float
    client_cert: Path | None
    client_key: Path | None

    def check_peers(self, *, dials: bool, dial_option: str) -> None:
        """Raises UsageError unless there is exactly one way to a peer, with what it needs."""
        if (self.listen is not None) == dials:
            raise click.UsageError(
                f"give either --listen HOST:PORT or {dial_option}: the first waits for"
                " connections, the second makes one"
            )
        if self.listen is not None and (self.cert is None or self.key is None):
            raise click.UsageError(
                "--listen needs --cert FILE and --key FILE; kvcs-keygen certificate makes both"
            )
        if self.listen is None and (self.cert or self.key):
            raise click.UsageError("--cert and --key go with --listen; to dial, use --ca FILE")
        if self.listen is not None and (self.ca or self.insecure or self.server_name):
            raise click.UsageError(f"--ca, --server-name and --insecure go with {dial_option}")
        if self.token_file is not None and (self.listen is not None or self.insecure):
            raise click.UsageError(
                f"--token-file goes with {dial_option}, and never with --insecure: whoever gets the"
                " token may use it"
            )
        if (self.client_cert is None) != (self.client_key is None):
            raise click.UsageError(
                "--client-cert and --client-key belong together: a certificate counts only with"
                " its private key"
            )
        if self.client_cert is not None and self.listen is not None:
            raise click.UsageError(f"--client-cert and --client-key go with {dial_option}")
        if self.insecure and (self.ca or self.server_name):
            raise click.UsageError(
                "--insecure checks no certificate: leave --ca and --server-name out"
            )

    @property
    def server_tls(self) -> ServerTls:
        """For listening; after ``check_peers``."""
        if self.cert is None or self.key is None:
            raise click.UsageError("--cert FILE and --key FILE are missing")
        return ServerTls(certificate=self.cert, private_key=self.key)

    @property
    def client_tls(self) -> ClientTls:
        """For dialling."""
        return ClientTls(
            ca_file=self.ca,
            server_name=self.server_name,
            verify=not self.insecure,
            certificate=self.client_cert,
            private_key=self.client_key,
        )

    @property
    def quic(self) -> QuicOptions:
        """For all sessions."""
        return QuicOptions(peer_timeout=self.peer_timeout)

    @property
    def credentials(self) -> TokenFile | None:
        """What requests show on sessions that we dial; raises InvalidInput."""
        if self.token_file is None:
            return None
        from kvcs.tokenfile import TokenFile  # what it loads takes time, and is rarely needed

        return TokenFile(self.token_file)


peer_options = together(
    click.option(
        "--listen", type=ADDRESS, help="Wait for connections here; port 0 takes a free one."
    ),
    click.option("--cert", type=FILE, help="With --listen: own certificate and chain, PEM."),
    click.option("--key", type=FILE, help="With --listen: its private key, PEM."),
    click.option(
        "--ca", type=FILE, help="To dial: trust this CA (PEM) instead of the public ones."
    ),
    click.option(
        "--server-name",
        metavar="NAME",
        help="To dial: the name in the peer's certificate, if not the host's.",
    ),
    click.option(
        "--insecure", is_flag=True, help="To dial: accept any certificate. For experiments only."
    ),
    click.option(
        "--token-file",
        type=FILE,
        help="To dial: show the token in this file, and the next one once it is put there.",
    ),
    click.option(
        "--peer-timeout",
        type=PEER_TIMEOUT,
        metavar="SECONDS",
        default=config.PEER_TIMEOUT,
        show_default=True,
        help="A peer that answers nothing for so long is lost.",
    ),
    click.option(
        "--client-cert", type=FILE, help="To dial: own certificate (PEM), if the peer asks for one."
    ),
    click.option("--client-key", type=FILE, help="Its private key, PEM."),
)


# --------------------------------------------------------------------------------- what publication


@dataclass(frozen=True, kw_only=True)
class IdentityOptions:
    """Which model, prompt and scope; or ready-made identifiers instead."""

    scope_key: Path | None
    tokens: tuple[int, ...] | None
    model: str | None
    block_tokens: int | None
    descriptor: CompatibilityDescriptor | None
    scope_id: bytes | None
    compat_id: bytes | None
    anchor_key: bytes | None
    publication_id: bytes | None

    @property
    def ready_made(self) -> PublicationName | None:
        """The publication that four ready-made identifiers name; None when none is given.

        Raises UsageError for some of them, and for wrong lengths.
        """
        given = {
            "--scope-id": self.scope_id,
            "--compat-id": self.compat_id,
            "--anchor-key": self.anchor_key,
            "--publication-id": self.publication_id,
        }
        found = [value for value in given.values() if value is not None]
        if not found:
            return None
        if len(found) < len(given):
            missing = ", ".join(name for name, value in given.items() if value is None)
            raise click.UsageError(
                f"ready-made identifiers come all four together: {missing} missing"
            )
        if self.scope_key is not None:
            raise click.UsageError(
                "--scope-key computes the identifiers: leave it or the ready-made ones out"
            )
        with words_alone():
            return PublicationName(*found)

    def load_scope_key(self) -> ScopeKey | None:
        """The key in the file; None when no file is given. Raises InvalidInput."""
        return None if self.scope_key is None else load_scope_key(self.scope_key)


identity_options = together(
    click.option(
        "--scope-key",
        type=FILE,
        help="File with the key of the scope; kvcs-keygen scope-key makes one.",
    ),
    click.option("--tokens", type=TOKENS, help="Token ids of the prompt: 1,2,3 or @FILE."),
    click.option(
        "--model", metavar="NAME", help="Name of the model, if not that of the file's metadata."
    ),
    click.option(
        "--block-tokens",
        type=COUNT,
        metavar="N",
        help=f"Tokens in a block: {DEFAULT_BLOCK_TOKENS} unless a descriptor says otherwise.",
    ),
    click.option(
        "--descriptor",
        type=DESCRIPTOR,
        help="Compatibility descriptor: model, layers, kv_heads, head_dim, dtype, ...",
    ),
    click.option("--scope-id", type=identifier("scope id"), help="Ready-made, 16 octets."),
    click.option("--compat-id", type=identifier("compatibility id"), help="Ready-made, 32 octets."),
    click.option("--anchor-key", type=identifier("anchor key"), help="Ready-made, 32 octets."),
    click.option(
        "--publication-id", type=identifier("publication id"), help="Ready-made, 16 octets."
    ),
)
