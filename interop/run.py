"""Play the cases and print how each ended: ``python -m interop.run [--peer NAME] [--json]``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from interop import (
    caprid_publisher,
    isolation,
    kvcs_relay,
    meeting,
    our_client,
    our_relay,
    our_server,
    through_relay,
)
from interop.cases import Outcome, Stage, judge
from interop.peers import HOMES
from transport.certificates import write_test_certificates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interop.cases import Case, Result

BOOKS = (
    our_client.book,
    our_server.tap,
    our_server.dialling,
    our_relay.book,
    through_relay.book,
    kvcs_relay.book,
    meeting.aiomoqt,
    our_server.caprid,
    meeting.caprid,
    caprid_publisher.book,
)
COLOURS = {
    Outcome.PASS: "green",
    Outcome.FAIL: "red",
    Outcome.PEER: "yellow",
    Outcome.ABSENT: "blue",
}


async def play(cases: Sequence[Case], logs: Path) -> list[Result]:
    """All cases, one after the other, on one stage."""
    certificates = write_test_certificates(logs / "certificates")
    async with contextlib.AsyncExitStack() as stack:
        stage = Stage(logs, certificates, stack)
        return [await judge(case, stage) for case in cases]


def table(results: Sequence[Result]) -> Table:
    """For people."""
    made = Table("peer", "roles", "case", "result", "s", "what")
    for case, outcome, reason, seconds in results:
        colour = COLOURS.get(outcome, "cyan")
        made.add_row(
            case.peer,
            case.roles,
            case.name,
            f"[{colour}]{outcome}[/]",
            f"{seconds:.1f}",
            reason.replace("[", "\\["),
        )
    return made


def lines(results: Sequence[Result]) -> str:
    """For programs."""
    return json.dumps(
        [
            {
                "peer": case.peer,
                "roles": case.roles,
                "case": case.name,
                "result": outcome.value,
                "seconds": round(seconds, 2),
                "reason": reason,
            }
            for case, outcome, reason, seconds in results
        ],
        indent=1,
    )


@click.command()
@click.option("--peer", type=click.Choice(sorted(HOMES)), help="Only cases with this peer.")
@click.option("--only", default="", metavar="TEXT", help="Only cases with TEXT in roles or name.")
@click.option(
    "--server",
    metavar="URL",
    help="Only aiomoqt's interop client, against the relay at this moqt:// URL.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON in place of a table.")
@click.option(
    "--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep the peers' output here."
)
def main(peer: str | None, only: str, server: str | None, as_json: bool, logs: Path | None) -> None:
    """Our stack against real implementations of draft-22, on a network of its own.

    KVCS_PEER_AIOMOQT and KVCS_PEER_CAPRID name the bin folders the peers are installed in. Exit
    code 1 when a case failed that is not the peer's fault.
    """
    if server is None:  # else nothing is started that listens, and the URL is out there
        code = isolation.enter("interop.run", sys.argv[1:])
        if code is not None:
            sys.exit(code)
    cases = [
        case
        for book in (BOOKS if server is None else (our_server.at(server),))
        for case in book.cases
        if peer in (None, case.peer) and only in f"{case.roles}: {case.name}"
    ]
    with tempfile.TemporaryDirectory() as scratch:
        place = logs or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        results = asyncio.run(play(cases, place))
    if as_json:
        click.echo(lines(results))
    else:
        Console(width=None if sys.stdout.isatty() else 180).print(table(results))
    sys.exit(any(result.outcome is Outcome.FAIL for result in results))


if __name__ == "__main__":
    main()
