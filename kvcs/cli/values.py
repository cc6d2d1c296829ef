"""What stands in one option: addresses, ranges, token ids, identifiers, files of JSON."""

from __future__ import annotations

import math
import re
import socket
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from kvcs import strictjson
from kvcs.errors import KvcsError
from kvcs.identity import KVSP_PROFILE_0, CompatibilityDescriptor
from kvcs.names import octets_of_hex
from transport.config import IDLE_TIMEOUT
from transport.url import MoqtUrl

if TYPE_CHECKING:
    from collections.abc import Callable

#: Ten digits and a comma for each of a million tokens are 11 MB; what passes this is no prompt.
MAX_TOKEN_TEXT: Final = 64 << 20
#: A descriptor is a handful of members.
MAX_DESCRIPTOR: Final = 1 << 20
MAX_DESCRIPTOR_VALUES: Final = 1 << 16

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:]+)):(?P<port>\d{1,5})", re.ASCII
)
_LAYERS: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_SEPARATORS: Final = re.compile(r"[\s,\[\]]+")


class Unreadable(KvcsError):
    """A file that an option names cannot be read: not the option is wrong."""


class Parsed(click.ParamType):  # type: ignore[type-arg]  # older ones take no argument
    """An option whose text ``parse`` reads; its ValueError is the usage error."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """See click.ParamType; what is no text has been read already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except Unreadable as error:
            raise Unreadable(f"{'/'.join(param.opts)}: {error}" if param else str(error)) from None
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Address(NamedTuple):
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    def told(self, port: int) -> str:
        """The place for people, once it has its ``port``."""
        return f"{'every address of this host' if self._everywhere else self.host}, port {port}"

    @property
    def dialled(self) -> str:
        """A host that others can dial: our name, when it is every address."""
        return (socket.gethostname() or "localhost") if self._everywhere else self.host

    @property
    def _everywhere(self) -> bool:
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """HOST:PORT, an IPv6 host in brackets; raises ValueError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(
            f"{text!r} is no address: write HOST:PORT, such as 0.0.0.0:4443 or [::1]:4443;"
            " port 0 takes a free one"
        )
    return Address(found["v6"] or found["host"], int(found["port"]))


def parse_seconds(text: str) -> float:
    """A number of seconds, 0 or more; raises ValueError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r}: write a number of seconds, 0 or more, such as 0.5")
    return seconds


def parse_layers(text: str) -> tuple[int, int]:
    """FIRST-LAST, both inclusive, or one layer; raises ValueError."""
    found = _LAYERS.fullmatch(text)
    if found is None or int(found[1]) > int(found[2] or found[1]):
        raise ValueError(f"{text!r}: write FIRST-LAST, such as 8-15, or one layer")
    return int(found[1]), int(found[2] or found[1])


def parse_tokens(text: str) -> tuple[int, ...]:
    """Token ids: ``1,2,3``, or ``@FILE`` with ids between commas or blanks; raises ValueError."""
    words = [word for word in _SEPARATORS.split(_read_at(text)) if word]
    if not words:
        raise ValueError("no token ids: write 1,2,3 or @FILE")
    for place, word in enumerate(words):
        if not (word.isascii() and word.isdecimal() and len(word) < 11 and int(word) < 1 << 32):
            raise ValueError(
                f"token {place} is {word[:40]!r}: token ids are integers from 0 to 4294967295"
            )
    return tuple(map(int, words))


def _read_at(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        with Path(text[1:]).open(encoding="utf-8") as file:
            content = file.read(MAX_TOKEN_TEXT + 1)
    except OSError as error:
        raise Unreadable(_unreadable(text[1:], error)) from None
    except UnicodeDecodeError:
        raise ValueError(f"file {text[1:]} is no UTF-8 text: it must hold token ids") from None
    if len(content) > MAX_TOKEN_TEXT:
        raise ValueError(f"file {text[1:]}: more than {MAX_TOKEN_TEXT} characters of token ids")
    return content


def _unreadable(path: str, error: OSError) -> str:
    return f"file {path} cannot be read: {error.strerror}; name another, or let it be read"


def parse_descriptor(path: str) -> CompatibilityDescriptor:
    """A Compatibility Descriptor from a file of JSON; raises ValueError."""
    try:
        with Path(path).open("rb") as file:
            octets = file.read(MAX_DESCRIPTOR + 1)
    except OSError as error:
        raise Unreadable(_unreadable(path, error)) from None
    try:
        compat = strictjson.loads(
            octets, max_octets=MAX_DESCRIPTOR, max_values=MAX_DESCRIPTOR_VALUES
        )
        if not isinstance(compat, dict):
            raise ValueError("it must be a JSON object")
        return KVSP_PROFILE_0.describe(compat)
    except ValueError as error:
        raise ValueError(
            f"file {path}: {error}; write a JSON object with model, layers, kv_heads, head_dim,"
            " dtype, block_tokens"
        ) from None


ADDRESS: Final = Parsed("HOST:PORT", parse_address)
URL: Final = Parsed("URL", MoqtUrl.parse)
SECONDS: Final = Parsed("SECONDS", parse_seconds)
LAYERS: Final = Parsed("FIRST-LAST|LAYER", parse_layers)
TOKENS: Final = Parsed("IDS|@FILE", parse_tokens)
DESCRIPTOR: Final = Parsed("FILE.json", parse_descriptor)
FILE: Final = Parsed("FILE", Path)
COUNT: Final = click.IntRange(min=1)
#: Seconds until a silent peer is lost: one second is none for a busy one; QUIC has its own limit.
PEER_TIMEOUTS: Final = (1.0, IDLE_TIMEOUT)
PEER_TIMEOUT: Final = click.FloatRange(*PEER_TIMEOUTS)


def identifier(name: str) -> Parsed:
    """A ready-made identifier in hexadecimal, called ``name`` in messages."""
    return Parsed("HEX", partial(octets_of_hex, name))
