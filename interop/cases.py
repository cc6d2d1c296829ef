"""What a case is, where it plays, and how one is judged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import moqt
from interop import peers
from kvcs.errors import KvcsError
from moqt.endpoint import unserved
from moqt.errors import MoqtError
from transport.config import ClientTls, ServerTls
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import TypeAlias

    from moqt.driver import Connection, HandlerFactory
    from transport.certificates import CertificatePaths


class Outcome(StrEnum):
    """How a case ended."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    PEER = "peer's fault"
    ABSENT = "not offered by peer"
    RELAY = "needs a relay"
    MISSING = "not installed"


class Failed(Exception):
    """What was promised did not happen."""


class PeerFault(Exception):
    """What did not happen is a known fault of the peer; our side survived it."""


class NotOffered(Exception):
    """The peer has nothing for this message; the text is what shows it."""


class NeedsRelay(Exception):
    """The case is one for a relay, and our server is none."""


def expect(holds: object, otherwise: str) -> None:
    """Failed with the reason unless ``holds``."""
    if not holds:
        raise Failed(otherwise)


class Stage:
    """Everything a case may use; what is started on it lives until the run ends."""

    def __init__(
        self, logs: Path, certificates: CertificatePaths, stack: contextlib.AsyncExitStack
    ) -> None:
        self.logs = logs
        self.certificates = certificates
        self._stack = stack
        self._relay: str | None = None
        self._origins: dict[str, peers.Peer] = {}

    async def relay(self) -> str:
        """URL of aiomoqt's relay."""
        if self._relay is None:
            _, url = await self._stack.enter_async_context(
                peers.aiomoqt_relay(self.logs, self.certificates)
            )
            self._relay = url
        return self._relay

    async def origin(self, namespace: str, *options: str) -> peers.Peer:
        """aiomoqt's publisher of ``namespace``/events into its relay; 3 objects a group."""
        if namespace not in self._origins:
            self._origins[namespace] = await self._stack.enter_async_context(
                peers.aiomoqt_origin(
                    self.logs, await self.relay(), namespace, "events", "--pub-both", *options
                )
            )
        return self._origins[namespace]

    @contextlib.asynccontextmanager
    async def session(self, handler: HandlerFactory = unserved) -> AsyncIterator[Connection]:
        """A session of ours to aiomoqt's relay, which must outlive the block."""
        connection = await moqt.connect(
            await self.relay(), handler=handler, tls=ClientTls(ca_file=self.certificates.ca)
        )
        try:
            yield connection
            if not connection.is_open:
                raise await connection.wait_closed()
        finally:
            await connection.close()

    @contextlib.asynccontextmanager
    async def server(self, handler: HandlerFactory) -> AsyncIterator[moqt.Server]:
        """A server of ours on a free port."""
        tls = ServerTls(
            certificate=self.certificates.certificate, private_key=self.certificates.private_key
        )
        server = await moqt.serve("127.0.0.1", 0, tls=tls, handler=handler)
        try:
            yield server
        finally:
            await server.close()


if TYPE_CHECKING:
    Play: TypeAlias = Callable[[Stage], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One meeting: ``play`` returns what is worth saying of it, or raises. Seconds."""

    peer: str
    roles: str
    name: str
    play: Play
    timeout: float


class Result(NamedTuple):
    """A case and how it ended."""

    case: Case
    outcome: Outcome
    reason: str
    seconds: float


class Casebook:
    """The cases of one pair of roles, in order."""

    def __init__(self, peer: str, roles: str) -> None:
        self.cases: list[Case] = []
        self._peer = peer
        self._roles = roles

    def case(self, timeout: float = 10.0) -> Callable[[Play], Play]:
        """Decorator: a case named like its function."""

        def register(play: Play) -> Play:
            self.add(play.__name__.replace("_", "-"), play, timeout)
            return play

        return register

    def add(self, name: str, play: Play, timeout: float) -> None:
        """A case made by the caller."""
        self.cases.append(Case(self._peer, self._roles, name, play, timeout))


async def judge(case: Case, stage: Stage) -> Result:
    """Play one case and say how it ended."""
    start = time.monotonic()
    outcome, reason = Outcome.FAIL, ""
    try:
        async with asyncio.timeout(case.timeout):
            reason = await case.play(stage) or ""
            outcome = Outcome.PASS
    except PeerFault as fault:
        outcome, reason = Outcome.PEER, str(fault)
    except NotOffered as absence:
        outcome, reason = Outcome.ABSENT, str(absence)
    except NeedsRelay as fault:
        outcome, reason = Outcome.RELAY, str(fault)
    except peers.PeerMissing as missing:
        outcome, reason = Outcome.MISSING, str(missing)
    except TimeoutError:
        reason = f"not within {case.timeout:g} s"
    except (Failed, KvcsError, MoqtError, TransportError, peers.PeerDied) as error:
        reason = f"{type(error).__name__}: {error}"
    return Result(case, outcome, reason, time.monotonic() - start)
