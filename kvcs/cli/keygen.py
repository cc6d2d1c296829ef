"""kvcs-keygen: scope keys, and certificates for first steps."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

import click

from kvcs.cli.command import Command, Group
from kvcs.cli.options import versioned
from kvcs.cli.values import FILE
from kvcs.errors import OutputFailed
from kvcs.keys import create_scope_key
from transport.certificates import make_authority, make_certificate, write_private_key

if TYPE_CHECKING:
    from pathlib import Path

#: What transport.certificates calls short-lived, in days.
DEFAULT_DAYS: Final = 14
#: Public CAs give no longer ones either.
MAX_DAYS: Final = 397

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
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    metavar="N",
    default=DEFAULT_DAYS,
    show_default=True,
    help="Days of validity.",
)
def certificate(directory: Path, names: tuple[str, ...], days: int) -> None:
    """Make a server certificate in DIRECTORY, and the authority to trust for it.

    Files: ca.pem for --ca of clients, server.pem and server.key for --cert and --key of the server.
    The authority's own key is not kept: a new certificate comes with a new authority.
    """
    lifetime = datetime.timedelta(days=days)
    files = [directory / name for name in ("ca.pem", "server.pem", "server.key")]
    for file in files:
        if file.exists():
            raise OutputFailed(
                f"file {file} exists and is not overwritten: remove it, or name another directory"
            )
    try:
        authority = make_authority("kvcs-keygen authority", lifetime=lifetime)
        server = make_certificate(authority, names, lifetime=lifetime)
    except ValueError as error:
        raise click.UsageError(f"--name: {error}") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_private_key(files[2], server.private_key_pem())
        files[1].write_bytes(server.certificate_pem())
        files[0].write_bytes(authority.certificate_pem())
    except OSError as error:
        raise OutputFailed(
            f"directory {directory}: {error.strerror or error}; name another"
        ) from error
    click.echo(f"certificate for {', '.join(names)}, {days} days, in {directory}:")
    click.echo("  server.pem, server.key: kvcs-pub --cert server.pem --key server.key")
    click.echo("  ca.pem:                 kvcs-sub --ca ca.pem")


if __name__ == "__main__":
    main()
