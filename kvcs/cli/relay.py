"""kvcs-relay: publications come in once and go to many; cached, and closed to strangers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import time
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from kvcs.cli import relayfile
from kvcs.cli.command import LOOPS, Command, run
from kvcs.cli.options import gathered, versioned
from kvcs.cli.output import choose_output, counted
from kvcs.cli.relayfile import RelayFile, UpstreamEntry
from kvcs.cli.values import ADDRESS, FILE, URL, Address, Parsed
from kvcs.errors import OutputFailed
from kvcs.gatekeeper import Gatekeeper, Guard
from kvcs.tokenfile import TokenFile
from moqt.endpoint import quic_options
from moqt.monitor import Monitor
from moqt.relay.service import RelayService, ServiceConfig, relay_quic
from moqt.relay.spill import Spill
from moqt.relay.upstreams import Upstream
from moqt.trace import Trace
from transport.config import ClientTls, ServerTls

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from kvcs.cli.output import Output
    from transport.api import TransportSession
    from transport.authorities import ClientAuthorities
    from transport.url import MoqtUrl

_log = logging.getLogger(__name__)

#: Seconds between two questions whether keys of issuers have changed.
REVIEW: Final = 5.0
SIZE: Final = Parsed("size", relayfile.parse_size)

EPILOG: Final = """\b
Examples

\b
  A first try on one machine, open to everybody who reaches it:
    kvcs-keygen certificate tls
    kvcs-relay --listen 127.0.0.1:4443 --cert tls/server.pem --key tls/server.key --open
    kvcs-pub cache.safetensors --scope-key scope.key --relay moqt://127.0.0.1:4443/ --ca tls/ca.pem
    kvcs-sub moqt://127.0.0.1:4443/ --scope-key scope.key --like cache.safetensors --ca tls/ca.pem
\b
  For those who show a token of an issuer, with 32 GiB of cache, numbers for Prometheus, and a
  relay upstream that is asked for what nobody has announced here:
    kvcs-relay --listen 0.0.0.0:4443 --cert server.pem --key server.key \\
      --issuers /etc/kvcs/issuers --audience relay-1 --cache 32GiB --metrics 127.0.0.1:9464 \\
      --upstream moqt://relay-0.example:4443/
\b
  All of it from a file (docs/relay.md lists its members), and a look whether it is right:
    kvcs-relay --config /etc/kvcs/relay.toml --check
"""


@dataclass(frozen=True, kw_only=True)
class RelayOptions:
    """Everything that kvcs-relay was told."""

    config: Path | None
    check: bool
    listen: Address | None
    cert: Path | None
    key: Path | None
    cache: int | None
    spill: Path | None
    upstream: tuple[MoqtUrl, ...]
    upstream_ca: Path | None
    upstream_token_file: Path | None
    upstream_client_cert: Path | None
    upstream_client_key: Path | None
    issuers: tuple[Path, ...]
    audience: tuple[str, ...]
    open: bool
    client_ca: tuple[Path, ...]
    clients: Path | None
    require_certificate: bool
    metrics: Address | None
    status: bool
    trace: Path | None
    json: bool
    verbose: int
    loop: str

    def settled(self) -> RelayFile:
        """The file with what the options say instead. Raises UsageError, InvalidInput."""
        if self.status and self.json:
            raise click.UsageError("--status draws on the terminal and --json is for programs: one")
        file = RelayFile() if self.config is None else relayfile.load(self.config)
        given: dict[str, Any] = {
            "listen": self.listen,
            "cert": self.cert,
            "key": self.key,
            "memory": self.cache,
            "spill_directory": self.spill,
            "issuers": self.issuers or None,
            "audience": self.audience or None,
            "open": self.open or None,
            "client_ca": self.client_ca or None,
            "clients": self.clients,
            "require_certificate": self.require_certificate or None,
            "metrics": self.metrics,
        }
        if upstreams := self._upstreams():
            given["upstreams"] = upstreams
        chosen = {name: value for name, value in given.items() if value is not None}
        if self.open and not self.issuers:  # instead of those in the file
            chosen |= {"issuers": (), "audience": self.audience}
        elif self.issuers and not self.open:
            chosen["open"] = False
        file = dataclasses.replace(file, **chosen)
        if file.listen is None:
            raise click.UsageError("where to listen? Give --listen HOST:PORT")
        if file.cert is None or file.key is None:
            raise click.UsageError(
                "give --cert FILE and --key FILE; kvcs-keygen certificate makes both"
            )
        _check_who(file)
        return file

    def _upstreams(self) -> tuple[UpstreamEntry, ...]:
        shown = self.upstream_client_cert, self.upstream_client_key
        given = (self.upstream_ca, self.upstream_token_file, *shown)
        if not self.upstream and any(given):
            raise click.UsageError(
                "--upstream-ca, --upstream-token-file, --upstream-client-cert and"
                " --upstream-client-key go with --upstream URL"
            )
        if any(shown) and not all(shown):
            raise click.UsageError(
                "--upstream-client-cert and --upstream-client-key belong together: give both"
            )
        return tuple(
            UpstreamEntry(
                url=url,
                ca=self.upstream_ca,
                token_file=self.upstream_token_file,
                client_cert=self.upstream_client_cert,
                client_key=self.upstream_client_key,
            )
            for url in self.upstream
        )


def _check_who(file: RelayFile) -> None:
    """Raises UsageError unless it is said who may use the relay, in one way."""
    if bool(file.issuers or file.clients) == file.open:
        raise click.UsageError(
            "who may use it? Give either --issuers PATH with --audience NAME (kvcs-token makes"
            " both keys and tokens), or --clients FILE with --client-ca FILE (kvcs-keygen makes"
            " certificates), or both of these; or --open for everybody"
        )
    if (file.clients or file.require_certificate) and not file.client_ca:
        raise click.UsageError(
            "--clients and --require-certificate need --client-ca FILE: the CA that the"
            " certificates of clients come from"
        )
    if file.issuers and not file.audience:
        raise click.UsageError(
            "no audience: say what tokens call this relay, --audience NAME, the same as"
            " in kvcs-token issue"
        )
    if file.audience and not file.issuers:
        raise click.UsageError(
            ("--open" if file.open else "a relay without --issuers PATH")
            + " asks for no token: leave --audience out"
        )


@click.command(cls=Command, epilog=EPILOG)
@click.option("--config", type=FILE, help="Read a TOML file first; the options below go before it.")
@click.option("--check", is_flag=True, help="Only say whether configuration and files are right.")
@click.option("--listen", type=ADDRESS, help="Wait for sessions here; port 0 takes a free one.")
@click.option("--cert", type=FILE, help="Own certificate and chain, PEM.")
@click.option("--key", type=FILE, help="Its private key, PEM.")
@click.option("--cache", type=SIZE, help="Memory for objects, such as 8GiB.  [default: 1GiB]")
@click.option("--spill", type=FILE, help="Directory for what memory does not hold.")
@click.option(
    "--upstream",
    type=URL,
    multiple=True,
    help="Relay to ask for what nobody has announced here; repeat it for more.",
)
@click.option("--upstream-ca", type=FILE, help="Trust this CA (PEM) there.")
@click.option(
    "--upstream-token-file",
    type=FILE,
    help="Show the token in this file there, and the next one once it is put there.",
)
@click.option("--upstream-client-cert", type=FILE, help="Show this certificate (PEM) there.")
@click.option("--upstream-client-key", type=FILE, help="Its private key, PEM.")
@click.option(
    "--issuers",
    type=FILE,
    multiple=True,
    help="Public keys of token issuers: a PEM file, or a directory of them; read again when they"
    " change.",
)
@click.option(
    "--audience", metavar="NAME", multiple=True, help="What tokens for this relay are called."
)
@click.option("--open", is_flag=True, help="Let everybody do everything, and know it.")
@click.option(
    "--client-ca",
    type=FILE,
    multiple=True,
    help="Ask clients for a certificate of these CAs (PEM).",
)
@click.option("--clients", type=FILE, help="Who may do what with which certificate, TOML.")
@click.option(
    "--require-certificate", is_flag=True, help="Turn away whoever has no such certificate."
)
@click.option(
    "--metrics", type=ADDRESS, help="Serve /metrics, /health, /ready and /status over HTTP here."
)
@click.option("--status", is_flag=True, help="Show sessions, tracks, hits and traffic, live.")
@click.option(
    "--trace",
    type=FILE,
    help="Write what each session does to this file, as lines of JSON; no payload, no tokens.",
)
@versioned
@click.option("--json", is_flag=True, help="Write each event as a line of JSON.")
@click.option("-v", "--verbose", count=True, help="Log more; -vv logs all.")
@click.option(
    "--loop",
    type=click.Choice(LOOPS),
    default="asyncio",
    show_default=True,
    help="Event loop; auto takes uvloop if it is installed.",
)
@gathered(RelayOptions)
def main(options: RelayOptions) -> None:
    """Relay publications: take each once, keep it, and serve it to many.

    SIGTERM and SIGINT end it in good order: clients are told to go elsewhere (GOAWAY) and have the
    drain time of the configuration to do so; a second signal ends it at once.
    """
    file = options.settled()
    output = choose_output(as_json=options.json)
    try:
        run(lambda: serve(options, file, output), options.loop, until_signal=True)
    finally:
        output.close()


async def serve(options: RelayOptions, file: RelayFile, output: Output) -> None:
    """Until a signal comes."""
    gatekeeper, authorities = _gatekeeper(file), _authorities(file)
    with _watched(options) as monitor, _spill(file) as spill:
        service = RelayService(_config(file, gatekeeper, authorities), monitor=monitor, spill=spill)
        _check(service.config)
        if options.check:
            output.say("checked", "the configuration is right", config=str(options.config or ""))
            return
        async with AsyncExitStack() as stack:
            # Whatever may fail comes before the relay says that it listens.
            numbers = stack.enter_context(_metrics(service, gatekeeper, file.metrics))
            port = await _start(service, file, output)
            if options.json:
                stack.callback(lambda: output.say("stats", "", **monitor.to_json()))
            stack.push_async_callback(service.close)
            if file.metrics is not None:
                host = file.metrics.host
                place = f"[{host}]" if ":" in host else host
                told = f"metrics on http://{place}:{numbers}/metrics"
                output.say("metrics", told, host=host, port=numbers)
            stack.enter_context(_running(_review(service, gatekeeper, authorities)))
            stack.enter_context(_running(_watchdog()))
            _notify("READY=1", f"STATUS=listening on port {port}")
            try:
                await _for_ever(service, options)
            finally:
                _notify("STOPPING=1")
                await _leave(service, file, output)


async def _start(service: RelayService, file: RelayFile, output: Output) -> int:
    place = file.listen
    if place is None:
        raise click.UsageError("where to listen? Give --listen HOST:PORT")
    await service.start()
    output.say(
        "listening",
        f"listening on {place.told(service.port)}",
        host=place.host,
        port=service.port,
    )
    for upstream in file.upstreams:
        output.say("upstream", f"upstream {upstream.url}", url=str(upstream.url))
    return service.port


async def _for_ever(service: RelayService, options: RelayOptions) -> None:
    """Until a signal cancels it."""
    if not options.status:
        await asyncio.Event().wait()
    from kvcs.cli.relaystatus import show

    await show(service)


async def _leave(service: RelayService, file: RelayFile, output: Output) -> None:
    """Tell clients to go elsewhere, and wait for them as long as configured."""
    count = len(service.connections)
    if count:
        output.say("leaving", f"leaving: {counted(count, 'session')} told to move", sessions=count)
        await service.leave(file.drain)


def _config(
    file: RelayFile, gatekeeper: Gatekeeper, authorities: ClientAuthorities | None
) -> ServiceConfig:
    if file.listen is None or file.cert is None or file.key is None:
        raise click.UsageError("--listen, --cert and --key are needed")

    def judge(transport: TransportSession) -> Guard:
        return gatekeeper.guard(lambda: transport.peer_certificate)

    return ServiceConfig(
        host=file.listen.host,
        port=file.listen.port,
        tls=ServerTls(certificate=file.cert, private_key=file.key, client_ca=authorities),
        relay=dataclasses.replace(file.relay, cache=file.memory),
        admission=file.admission,
        judge=None if file.open and authorities is None else judge,
        upstreams=tuple(map(_upstream, file.upstreams)),
        successor=file.successor,
        quic=relay_quic(file.peer_timeout),
    )


def _upstream(entry: UpstreamEntry) -> Upstream:
    return Upstream(
        url=entry.url,
        prefixes=entry.prefixes,
        tls=ClientTls(
            ca_file=entry.ca,
            server_name=entry.server_name,
            certificate=entry.client_cert,
            private_key=entry.client_key,
        ),
        credentials=None if entry.token_file is None else TokenFile(entry.token_file),
    )


def _gatekeeper(file: RelayFile) -> Gatekeeper:
    from kvcs.clients import Clients
    from kvcs.issuers import Issuers

    return Gatekeeper(
        issuers=Issuers(file.issuers) if file.issuers else None,
        audiences=file.audience,
        clients=None if file.clients is None else Clients(file.clients),
        open_to_all=file.open,
        certified=file.require_certificate,
        wall=time.time,
    )


def _authorities(file: RelayFile) -> ClientAuthorities | None:
    if not file.client_ca:
        return None
    from transport.authorities import ClientAuthorities

    return ClientAuthorities(file.client_ca, required=file.require_certificate)


def _check(config: ServiceConfig) -> None:
    """What is read only when it is needed is read now; raises TransportError, ConnectFailed."""
    from transport.handshake import client_configuration, server_configuration

    quic = quic_options(config.quic)
    server_configuration(config.tls, quic)
    for upstream in config.upstreams:
        client_configuration(upstream.url, upstream.tls, quic)


@contextmanager
def _watched(options: RelayOptions) -> Iterator[Monitor]:
    if options.trace is None:
        yield Monitor()
        return
    try:
        file = options.trace.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputFailed(
            f"file {options.trace} cannot be written: {error.strerror}; choose another --trace"
        ) from error
    with file:
        yield Monitor(Trace(file))


@contextmanager
def _spill(file: RelayFile) -> Iterator[Spill | None]:
    if file.spill_directory is None:
        yield None
        return
    spill = Spill(file.spill_directory, file.spill)
    try:
        yield spill
    finally:
        spill.close()


@contextmanager
def _metrics(service: RelayService, gatekeeper: Gatekeeper, place: Address | None) -> Iterator[int]:
    """Numbers over HTTP, if they are wanted; their port."""
    if place is None:
        yield 0
        return
    from kvcs.relay_metrics import MetricsServer

    try:
        server = MetricsServer(service, place.host, place.port, gatekeeper.counts)
    except OSError as error:
        raise OutputFailed(
            f"cannot listen on {place.host}:{place.port} for metrics: {error.strerror or error};"
            " choose another --metrics"
        ) from error
    try:
        yield server.port
    finally:
        server.close()


@contextmanager
def _running(work: Coroutine[None, None, None]) -> Iterator[None]:
    """Beside the rest."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


async def _review(
    service: RelayService, gatekeeper: Gatekeeper, authorities: ClientAuthorities | None = None
) -> None:
    """Whatever stands is judged again when issuers, clients or CAs of clients have changed."""

    def generation() -> tuple[int, int]:
        return gatekeeper.generation, 0 if authorities is None else authorities.generation

    known = generation()
    while True:
        await asyncio.sleep(REVIEW)
        gatekeeper.refresh()
        if authorities is not None:
            authorities.refresh()
        if generation() != known:
            known = generation()
            _log.info("who is trusted has changed: everything is judged again")
            service.review()


async def _watchdog() -> None:
    """Tell systemd now and then that the event loop turns, if it wants to know (WatchdogSec=)."""
    every = os.environ.get("WATCHDOG_USEC", "")
    if not every.isdecimal():
        return
    while True:
        _notify("WATCHDOG=1")
        await asyncio.sleep(int(every) / 2e6)


def _notify(*lines: str) -> None:
    """Tell systemd, if it has started us (Type=notify)."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.sendto("\n".join(lines).encode(), address)


if __name__ == "__main__":
    main()
