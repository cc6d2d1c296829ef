"""kvcs: all commands under one name; each is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from kvcs.cli.command import Group
from kvcs.cli.options import versioned

COMMANDS: Final = ("keygen", "pub", "relay", "sub", "token")


class _Together(Group):
    """A group whose commands are the modules beside this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In alphabetical order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """``kvcs pub`` is kvcs-pub, and so on."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"kvcs.cli.{cmd_name}").main
        return command


@click.command(cls=_Together)
@versioned
def main() -> None:
    """KV cache streaming: publish, relay and take caches; make keys and tokens."""


if __name__ == "__main__":
    main()
