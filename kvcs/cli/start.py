"""Where the commands start: an interruption while they are still loading is one, too."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from signal import SIGINT


def pub() -> None:
    """kvcs-pub."""
    _start("pub")


def sub() -> None:
    """kvcs-sub."""
    _start("sub")


def keygen() -> None:
    """kvcs-keygen."""
    _start("keygen")


def relay() -> None:
    """kvcs-relay."""
    _start("relay")


def token() -> None:
    """kvcs-token."""
    _start("token")


def kvcs() -> None:
    """kvcs, whose subcommands are the commands above."""
    _start("together", "kvcs")


def _start(name: str, called: str | None = None) -> None:
    try:
        main = import_module(f"kvcs.cli.{name}").main
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            event = {"event": "interrupted", "signal": "SIGINT", "message": "interrupted"}
            sys.stdout.write(json.dumps({**event, "exit_code": 128 + SIGINT}) + "\n")
        else:
            sys.stderr.write("interrupted\n")
        sys.exit(128 + SIGINT)
    main(prog_name=called or f"kvcs-{name}")
