"""kvcs-keygen: scope keys, and certificates for first steps."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Final

import click

from kvcs.cli.command import Command, Group
from kvcs.cli.options import versioned
from kvcs.cli.values import FILE
from kvcs.errors import OutputFailed
from kvcs.identity import KVSP_PROFILE_0
from kvcs.keys import create_scope_key, load_scope_key
from transport.certificates import (
    fingerprint,
    make_authority,
    make_certificate,
    make_client_certificate,
    write_private_key,
)

if TYPE_CHECKING:
    from pathlib import Path

#: What transport.certificates calls short-lived, in days.
DEFAULT_DAYS: Final = 14
#: Public CAs give no longer ones either.
MAX_DAYS: Final = 397

CA: Final = "ca.pem"
_CLIENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

EPILOG: Final = """\b
Examples

\b
  The secret that all publishers and consumers of a scope share; copy it to them safely:
    kvcs-keygen scope-key scope.key
\b
  A server certificate for two names, and the authority that signed it:
    kvcs-keygen certificate tls --name cache-1.example --name 192.0.2.7
    kvcs-pub ... --listen 0.0.0.0:4443 --cert tls/server.pem --key tls/server.key
    kvcs-sub ... --ca tls/ca.pem
\b
  With certificates of two clients that a relay is to know (kvcs-relay --client-ca, --clients):
    kvcs-keygen certificate tls --client site-a --client site-b
    kvcs-pub ... --ca tls/ca.pem --client-cert tls/site-a.pem --client-key tls/site-a.key
"""


@click.group(cls=Group, epilog=EPILOG)
@versioned
def main() -> None:
    """Make the keys that kvcs-pub and kvcs-sub need; nothing is ever overwritten."""


@main.command("scope-key", cls=Command)
@click.argument("file", type=FILE)
def scope_key(file: Path) -> None:
    """Write a new random scope key to FILE, which only its owner can read."""
    create_scope_key(file)
    click.echo(f"scope key of 32 random octets in {file}: keep it secret, keep a copy")


@main.command("scope-id", cls=Command)
@click.argument("file", type=FILE)
def scope_id(file: Path) -> None:
    """Say which scope the scope key in FILE is of; its id is no secret.

    It stands in the names of its publications, and in the clients file of a relay.
    """
    click.echo(KVSP_PROFILE_0.scope_id(load_scope_key(file)).hex())


@main.command("certificate", cls=Command)
@click.argument("directory", type=FILE)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    default=("localhost", "127.0.0.1"),
    show_default=True,
    help="Host name or IP address that clients dial; repeat it for more.",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    help="Make a client certificate too, NAME.pem with NAME.key; repeat it for more.",
)
@click.option(
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    metavar="N",
    default=DEFAULT_DAYS,
    show_default=True,
    help="Days of validity.",
)
def certificate(
    directory: Path, names: tuple[str, ...], clients: tuple[str, ...], days: int
) -> None:
    """Make a server certificate in DIRECTORY, client certificates, and the authority of both.

    Files: ca.pem for --ca of clients and --client-ca of a relay, server.pem and server.key for
    --cert and --key of the server, NAME.pem and NAME.key for --client-cert and --client-key.
    The authority's own key is not kept: a new certificate comes with a new authority.
    """
    _check_clients(clients)
    lifetime = datetime.timedelta(days=days)
    files = [f"{name}{suffix}" for name in ("server", *clients) for suffix in (".pem", ".key")]
    for file in (directory / name for name in (CA, *files)):
        if file.exists():
            raise OutputFailed(
                f"file {file} exists and is not overwritten: remove it, or name another directory"
            )
    try:
        authority = make_authority("kvcs-keygen authority", lifetime=lifetime)
        made = {"server": make_certificate(authority, names, lifetime=lifetime)}
    except ValueError as error:
        raise click.UsageError(f"--name: {error}") from None
    for name in clients:
        made[name] = make_client_certificate(authority, name, lifetime=lifetime)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, pair in made.items():
            write_private_key(directory / f"{name}.key", pair.private_key_pem())
            (directory / f"{name}.pem").write_bytes(pair.certificate_pem())
        (directory / CA).write_bytes(authority.certificate_pem())
    except OSError as error:
        raise OutputFailed(
            f"directory {directory}: {error.strerror or error}; name another"
        ) from error
    click.echo(f"certificate for {', '.join(names)}, {days} days, in {directory}:")
    click.echo("  server.pem, server.key: kvcs-pub --cert server.pem --key server.key")
    click.echo("  ca.pem:                 kvcs-sub --ca ca.pem")
    for name in clients:
        click.echo(f"client certificate {name}.pem, {name}.key:")
        click.echo(f"  fingerprint {fingerprint(made[name].certificate)}")


def _check_clients(names: tuple[str, ...]) -> None:
    for name in names:
        if not _CLIENT.fullmatch(name) or name in ("server", "ca"):
            raise click.UsageError(
                f"--client: {name!r} names a file too: write letters, digits, '.', '-' and '_', 64"
                " at most, and neither server nor ca"
            )
    if len(set(names)) < len(names):
        raise click.UsageError("--client: each name once")


if __name__ == "__main__":
    main()
