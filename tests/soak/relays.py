"""kvcs-relay processes of a soak: small caches, closed to strangers, watched from outside."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import IO, Any
from urllib.request import urlopen

from kvcs.cli.children import Child, Event
from kvcs.identity import KVSP_PROFILE_0
from kvcs.issuers import create_issuer_keys, load_issuer_key
from kvcs.scopes import kvcs_scopes
from kvcs.tokenfile import write_token
from kvcs.tokens import SKEW, TOKEN_TYPE, Claims, issue
from moqt.codec.fields import Token
from moqt.relay.spill import MAX_MAPPED
from tests.kvcs.endpoints import SCOPE_KEY
from tests.soak.series import Series, descriptors, resident
from transport.certificates import write_test_certificates
from transport.config import ClientTls
from transport.url import MoqtUrl

#: Octets that may wait for one subscriber: below what a stander misses, above every other cache.
BACKLOG = 2 << 20
#: Identities remembered, fewer than there are: some are forgotten all the time.
IDENTITIES = 64
HOLDERS = 100
#: What the relays keep: a second or two of what is published, and some ten seconds of it on disk.
MEMORY, DISK = 4 << 20, 16 << 20
#: Octets by which a relay may grow for each session of the later two thirds: less than
#: one forgotten session, track or identity takes (docs/security.md, benchmarks.relay_cost).
GROWTH = 1024.0
#: What one sample may have more than another because somebody was behind just then.
SLACK = BACKLOG
#: Fewer sessions than these say nothing: the slack alone would hide 1.6 KiB each.
ENOUGH = 1300
#: Descriptors besides the mapped files: a client or two of the metrics, a file being written.
SPARE = 8
QUARTERS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
#: Gauges of /status that are sampled; those of AT_REST are 0 when everybody has left.
AT_REST = (
    *("tracks", "namespaces", "subscriptions", "backlog_octets"),
    *("cache_octets", "cache_objects", "spill_octets"),
)
GAUGES = (*AT_REST, "sessions_open", "identities")
#: Counters that only a fault moves.
NEVER = ("spill_failures", "tracks_malformed", "objects_refused")
CONFIG = """\
drain = 0.5
[cache]
memory = {memory}
disk = {disk}
directory = "{name}-spill"
[auth]
issuers = ["issuer.pem"]
audience = ["soak"]
[limits]
backlog = {backlog}
identities = {identities}
linger = 1
recovery = 5
"""


class Keys:
    """Certificates, and tokens of an issuer that the relays trust, in ``folder``."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.certificates = write_test_certificates(folder)
        self.tls = ClientTls(ca_file=self.certificates.ca)
        self._random = random
        create_issuer_keys(folder / "issuer.key", folder / "issuer.pem")
        self._key = load_issuer_key(folder / "issuer.key")
        #: The scope that its tokens are for.
        self.scope = KVSP_PROFILE_0.scope_id(SCOPE_KEY)
        self._readers = [self.token(f"reader {number}") for number in range(HOLDERS)]
        self._writers = [self.token(f"writer {number}", writes=True) for number in range(HOLDERS)]
        (folder / "scope.key").write_text(SCOPE_KEY.octets.hex() + "\n")
        (folder / "scope.key").chmod(0o600)
        for name, token in (("reader", self._readers[0]), ("writer", self._writers[0])):
            write_token(folder / f"{name}.token", token)

    def token(self, holder: str, *, writes: bool = False, lasts: float = 86_400.0) -> bytes:
        """One that reads our scope, or publishes in it."""
        scopes = kvcs_scopes(self.scope, publish=writes, read=not writes)
        claims = Claims("issuer", ("soak",), time.time() + lasts - SKEW, scopes, subject=holder)
        return issue(claims, self._key)

    def reader(self) -> Callable[[], Iterable[Token]]:
        """What one of the readers shows."""
        return showing(self._random.choice(self._readers))

    def writer(self) -> Callable[[], Iterable[Token]]:
        """What one of the writers shows."""
        return showing(self._random.choice(self._writers))


def showing(token: bytes) -> Callable[[], Iterable[Token]]:
    """Credentials of one token."""
    shown = (Token.use_value(token, TOKEN_TYPE),)
    return lambda: shown


def _unheard(child: Child, event: Event) -> None:
    """Events are read from the child."""


async def start(
    stack: AsyncExitStack, name: str, module: str, *words: object, log: IO[bytes] | None = None
) -> Child:
    """A command as a process, ended with ``stack``."""
    child = await Child.start(name, module, *words, on_event=_unheard, stderr=log)
    stack.push_async_callback(child.stop)
    return child


class Relay:
    """One relay; ``upstream`` is the one that it asks for what its clients look for."""

    def __init__(self, name: str, keys: Keys, upstream: Relay | None = None) -> None:
        self.name = name
        self.series = Series()
        self.numbers: dict[str, int] = {}
        #: Its figures when everybody had left.
        self.rest: dict[str, int] = {}
        self.faults: list[str] = []
        self._keys = keys
        self._upstream = upstream
        #: Sessions that are open when everybody has left: of relays that ask here.
        self._resting = 0
        self._spill = keys.folder / f"{name}-spill"
        self._child: Child
        self._log: IO[bytes]
        self._status = ""
        self.url: MoqtUrl

    async def start(self, stack: AsyncExitStack) -> Relay:
        """Listen on a free port."""
        folder, certificates = self._keys.folder, self._keys.certificates
        config = folder / f"{self.name}.toml"
        config.write_text(
            CONFIG.format(
                name=self.name, memory=MEMORY, disk=DISK, backlog=BACKLOG, identities=IDENTITIES
            )
        )
        words: tuple[object, ...] = (
            *("--config", config, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
            *("--cert", certificates.certificate, "--key", certificates.private_key),
        )
        if self._upstream is not None:
            self._upstream._resting += 1
            words += ("--upstream", self._upstream.url, "--upstream-ca", certificates.ca)
            words += ("--upstream-token-file", folder / "reader.token")
        self._log = stack.enter_context((folder / f"{self.name}.log").open("wb+"))
        self._child = await start(stack, self.name, "kvcs.cli.relay", *words, log=self._log)
        port = (await self._child.until("listening"))["port"]
        self.url = MoqtUrl.parse(f"moqt://127.0.0.1:{port}/")
        port = (await self._child.until("metrics"))["port"]
        self._status = f"http://127.0.0.1:{port}/status"
        return self

    async def ask(self) -> dict[str, int]:
        """Its own numbers."""

        def answer() -> dict[str, int]:
            with urlopen(self._status) as reply:
                return json.load(reply)

        self.numbers = await asyncio.to_thread(answer)
        return self.numbers

    async def sample(self) -> None:
        """Its figures; what is beyond its limits is a fault."""
        seen = await self._look()
        self.series.sample(self.numbers["sessions"], **seen)
        first = self.series.values["descriptors"][0]
        for what, limit in (
            ("cache_octets", MEMORY),
            ("octets_on_disk", DISK),
            ("identities", IDENTITIES),
            ("descriptors", first + MAX_MAPPED + SPARE),
        ):
            if seen[what] > limit:
                self.faults.append(f"{self.name}: {what} {seen[what]}, more than {limit:.0f}")

    async def at_rest(self) -> list[str]:
        """What it still holds though nobody is there; none when all is well."""
        self.rest = await self._look()
        left = {name: self.rest[name] for name in (*AT_REST, "spill_files")}
        left["sessions_open"] = self.rest["sessions_open"] - self._resting
        before = self.series.values["descriptors"][0]
        left["descriptors"] = max(0, self.rest["descriptors"] - int(before) - SPARE)
        return [f"{self.name}: {name} {value} left" for name, value in left.items() if value]

    async def end(self) -> None:
        """SIGTERM: it ends well and leaves nothing on disk."""
        self._child.signal(signal.SIGTERM)
        if (code := await self._child.wait()) != 0:
            self.faults.append(f"{self.name}: exit code {code}")
        if (files := self._on_disk()[0]) > 0:
            self.faults.append(f"{self.name}: {files} files left on disk")
        self._log.seek(0)
        if log := self._log.read().decode(errors="replace").strip():
            self.faults.append(f"{self.name} has logged: {log[:200]} ... {log[-800:]}")

    def judge(self) -> dict[str, Any]:
        """The slopes of its memory, for the result; what grew is a fault."""
        self.faults += [
            f"{self.name}: {name} {self.numbers[name]}" for name in NEVER if self.numbers[name]
        ]
        return judge(self.name, self.series, self.faults) | {
            "at_rest": self.rest,
            "numbers": self.numbers,
        }

    async def _look(self) -> dict[str, int]:
        """What it takes, seen from outside and by itself."""
        numbers = await self.ask()
        files, octets = self._on_disk()
        seen = {name: numbers[name] for name in GAUGES}
        seen |= {"spill_files": files, "octets_on_disk": octets}
        pid = self._child.pid
        return seen | {"resident": resident(pid), "descriptors": descriptors(pid)}

    def _on_disk(self) -> tuple[int, int]:
        """Files of the spill directory, and their octets."""
        sizes = []
        for path in self._spill.glob("*.spill"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:  # dropped meanwhile
                continue
        return len(sizes), sum(sizes)


def judge(name: str, series: Series, faults: list[str] | None = None) -> dict[str, Any]:
    """Slopes of the resident memory, and the verdict of the later two thirds."""
    slope = series.slope("resident")
    span = series.span()
    allowed = max(GROWTH, SLACK / span) if span else 0.0
    verdict = "flat" if slope < allowed else "GROWS"
    if span < ENOUGH:
        verdict = "too short to say"
    if verdict == "GROWS" and faults is not None:
        faults.append(f"{name}: grows by {slope:.0f} octets a session, {allowed:.0f} are let")
    values = series.values["resident"]
    return {
        "verdict": verdict,
        "sessions": series.units[-1],
        "resident": [values[0], values[-1], max(values)],
        "octets_a_session_by_quarter": [series.slope("resident", *one) for one in QUARTERS],
        "octets_a_session": slope,
        "allowed": allowed,
        "most": {what: max(found) for what, found in series.values.items()},
        "last": {what: found[-1] for what, found in series.values.items()},
        "series": {"sessions": series.units} | series.values,
    }
