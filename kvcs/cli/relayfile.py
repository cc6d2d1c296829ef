"""The configuration file of kvcs-relay: TOML, every member checked, unknown ones refused."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from kvcs.cli.values import PEER_TIMEOUTS, Address, parse_address
from kvcs.errors import InvalidInput
from moqt.relay.admission import AdmissionLimits
from moqt.relay.config import RelayConfig
from transport.config import PEER_TIMEOUT
from transport.errors import InvalidUrl
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moqt.model import TrackNamespace

#: A configuration is a page or two.
MAX_FILE: Final = 1 << 20
_SIZE: Final = re.compile(r"(\d{1,12})\s*(B|KiB|MiB|GiB|TiB)?", re.ASCII)
_UNITS: Final = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
#: Written before a field of a namespace that is no text.
_HEX: Final = "hex:"
#: Memory for objects, and disk if there is a directory, when nothing is said.
DEFAULT_CACHE: Final = 1 << 30
DEFAULT_DISK: Final = 64 << 30
#: Seconds that clients have to move when the relay ends.
DEFAULT_DRAIN: Final = 5.0
#: Limits that may be 0; with any other one at 0 nobody would be served.
_ZERO: Final = frozenset(
    (
        *("egress", "prefix_fields", "rendezvous", "max_rendezvous", "fill_timeout"),
        *("straggler", "linger", "recovery", "max_cached_object"),
    )
)
#: The size of the cache has a member of its own, ``cache.memory``.
_ELSEWHERE: Final = frozenset(("cache",))


@dataclass(frozen=True, kw_only=True)
class UpstreamEntry:
    """One ``[[upstream]]``."""

    url: MoqtUrl
    prefixes: tuple[TrackNamespace, ...] = ((),)
    ca: Path | None = None
    server_name: str | None = None
    token_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RelayFile:
    """All that a file may say; what is not said has its default or comes from an option."""

    listen: Address | None = None
    cert: Path | None = None
    key: Path | None = None
    metrics: Address | None = None
    successor: str = ""
    drain: float = DEFAULT_DRAIN
    peer_timeout: float = PEER_TIMEOUT
    memory: int = DEFAULT_CACHE
    spill_directory: Path | None = None
    spill: int = DEFAULT_DISK
    issuers: tuple[Path, ...] = ()
    audience: tuple[str, ...] = ()
    open: bool = False
    client_ca: tuple[Path, ...] = ()
    clients: Path | None = None
    require_certificate: bool = False
    upstreams: tuple[UpstreamEntry, ...] = ()
    relay: RelayConfig = field(default_factory=RelayConfig)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)


def parse_size(text: object) -> int:
    """Octets: a number, or text such as 512MiB; raises ValueError."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r}: write octets, such as 1048576, 512MiB or 8GiB")
    return int(found[1]) << _UNITS[found[2] or "B"]


def parse_prefix(text: str) -> TrackNamespace:
    """Fields between slashes, ``kvcs-1/hex:6d1c``; empty is every namespace. Raises ValueError."""
    if not text:
        return ()
    fields = []
    for word in text.split("/"):
        try:
            octets = bytes.fromhex(word[4:]) if word.startswith(_HEX) else word.encode()
        except ValueError:
            raise ValueError(f"prefix {text!r}: {word!r} is no hexadecimal number") from None
        if not octets:
            raise ValueError(f"prefix {text!r}: a field is empty")
        fields.append(octets)
    return tuple(fields)


def load(path: Path) -> RelayFile:
    """Read and check; raises UsageError that names the member, the rule and the fix.

    InvalidInput when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ValueError(f"more than {MAX_FILE} octets: it is another kind of file")
        return _read(_toml(content), path.parent)
    except OSError as error:
        raise InvalidInput(
            f"configuration {path} cannot be read: {error.strerror}; name another --config, or let"
            " it be read"
        ) from None
    except ValueError as error:
        raise click.UsageError(f"configuration {path}: {error}") from None


def _toml(content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is no UTF-8 text: save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is no TOML: {error}; write NAME = VALUE, texts in quotes") from None


def _read(found: dict[str, Any], base: Path) -> RelayFile:
    read = _Reader(found, "", base)
    cache = read.table("cache")
    auth = read.table("auth")
    limits = read.table("limits")
    file = RelayFile(
        listen=read.take("listen", _address),
        cert=read.path("cert"),
        key=read.path("key"),
        metrics=read.take("metrics", _address),
        successor=read.take("successor", _url_text, ""),
        drain=read.take("drain", _seconds, DEFAULT_DRAIN),
        peer_timeout=read.take("peer_timeout", _peer_timeout, PEER_TIMEOUT),
        memory=cache.take("memory", parse_size, DEFAULT_CACHE),
        spill_directory=cache.path("directory"),
        spill=cache.take("disk", parse_size, DEFAULT_DISK),
        issuers=auth.paths("issuers"),
        audience=tuple(auth.take("audience", _texts, ())),
        open=auth.take("open", _flag, False),
        client_ca=auth.paths("client_ca"),
        clients=auth.path("clients"),
        require_certificate=auth.take("require_certificate", _flag, False),
        upstreams=tuple(_upstream(one) for one in read.tables("upstream")),
        relay=limits.fill(RelayConfig()),
        admission=limits.fill(AdmissionLimits()),
    )
    for part in (cache, auth, limits, read):
        part.nothing_left()
    return file


def _upstream(read: _Reader) -> UpstreamEntry:
    url = read.take("url", _url, "")
    if not url:
        raise ValueError(f"{read.where}url: it is missing: write moqt://HOST:PORT/")
    entry = UpstreamEntry(
        url=url,
        prefixes=read.take("prefixes", _prefixes, ((),)),
        ca=read.path("ca"),
        server_name=read.take("server_name", _text),
        token_file=read.path("token_file"),
        client_cert=read.path("client_cert"),
        client_key=read.path("client_key"),
    )
    read.nothing_left()
    if (entry.client_cert is None) != (entry.client_key is None):
        raise ValueError(f"{read.where}client_cert and client_key belong together: give both")
    return entry


class _Reader:
    """One table, member by member; what nobody took is a mistake."""

    def __init__(self, found: dict[str, Any], where: str, base: Path) -> None:
        self._found = dict(found)
        self.where = where
        self._base = base

    def take(
        self,
        member: str,
        parse: Callable[[Any], Any],
        default: Any = None,  # noqa: ANN401 - as parsed
    ) -> Any:  # noqa: ANN401 - as parsed
        value = self._found.pop(member, None)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{self.where}{member}: {error}") from None

    def path(self, member: str) -> Path | None:
        """A file, relative to the configuration's directory."""
        text = self.take(member, _text)
        return None if text is None else self._base / text

    def paths(self, member: str) -> tuple[Path, ...]:
        """Several."""
        return tuple(self._base / text for text in self.take(member, _texts) or ())

    def table(self, member: str) -> _Reader:
        """A table inside."""
        return _Reader(self.take(member, _table) or {}, f"{member}.", self._base)

    def tables(self, member: str) -> list[_Reader]:
        """An array of tables."""
        found = self._found.pop(member, [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ValueError(f"{member}: write it as [[{member}]]")
        return [_Reader(one, f"{member} {at + 1}: ", self._base) for at, one in enumerate(found)]

    def fill(self, limits: Any) -> Any:  # noqa: ANN401 - the dataclass that it gets
        """``limits`` with the members of that name."""
        changes = {}
        for name in {known.name for known in dataclasses.fields(limits)} - _ELSEWHERE:
            before = getattr(limits, name)
            parse = _reader_of(name, before)
            value = changes[name] = self.take(name, parse, before)
            if not value and name not in _ZERO:
                raise ValueError(f"{self.where}{name}: 0 lets nobody in; write a number above 0")
        return dataclasses.replace(limits, **changes)

    def nothing_left(self) -> None:
        """ValueError for a member that means nothing."""
        if self._found:
            names = ", ".join(self.where + name for name in sorted(self._found))
            raise ValueError(f"{names}: no such setting; see docs/relay.md for those there are")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r}: write text")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{value!r}: write a list of texts")
    return value


def _prefixes(value: object) -> tuple[TrackNamespace, ...]:
    if not (found := tuple(map(parse_prefix, _texts(value)))):
        raise ValueError("an upstream with none serves nothing; leave it out for every namespace")
    return found


def _address(value: object) -> Address:
    return parse_address(_text(value))


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError(f"{value!r}: write seconds, 0 or more, such as 0.5")
    return float(value)


def _peer_timeout(value: object) -> float:
    least, most = PEER_TIMEOUTS
    seconds = _seconds(value)
    if not least <= seconds <= most:
        raise ValueError(f"{seconds:g}: write {least:g} to {most:g} seconds")
    return seconds


def _rate(value: object) -> float:
    try:
        return _seconds(value)
    except ValueError:
        raise ValueError(f"{value!r}: write how many a second, such as 200") from None


def _requests(value: object) -> float:
    try:
        return _seconds(value)
    except ValueError:
        raise ValueError(f"{value!r}: write how many requests, such as 2000") from None


def _egress(value: object) -> float:
    try:
        return _seconds(value) if isinstance(value, float) else float(parse_size(value))
    except ValueError:
        raise ValueError(f'{value!r}: write octets a second, such as "100MiB"') from None


#: What the limits are that are neither a number of things nor a time.
_READERS: Final[dict[str, Callable[[object], float]]] = {
    "max_cached_object": parse_size,
    "unfinished": parse_size,
    "backlog": parse_size,
    "egress": _egress,
    "session_rate": _rate,
    "identity_rate": _rate,
    "session_burst": _requests,
    "identity_burst": _requests,
}


def _reader_of(limit: str, default: float) -> Callable[[object], float]:
    return _READERS.get(limit) or (_count if isinstance(default, int) else _seconds)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r}: write a whole number, such as 4096")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r}: write true or false")
    return value


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("write it as a table, [name]")
    return value


def _url(value: object) -> MoqtUrl:
    try:
        return MoqtUrl.parse(_text(value))
    except InvalidUrl as error:
        raise ValueError(str(error)) from None


def _url_text(value: object) -> str:
    return str(_url(value))
