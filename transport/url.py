"""MOQT URLs: ``moqt://host[:port]/path[?query][#type:value]``, strictly parsed."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from transport.errors import InvalidUrl

DEFAULT_PORT: Final = 443

#: Longer ones are refused: authority and path travel in SETUP, whose length field ends at 65535.
MAX_URL: Final = 8192

# RFC 3986 appendix B, then the character sets of its section 3, each part for itself.
_PARTS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?",
    re.DOTALL,
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?", re.DOTALL)
_PCHAR: Final = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PATH: Final = re.compile(rf"(?:/{_PCHAR}*)*")
_QUERY: Final = re.compile(rf"(?:{_PCHAR}|[/?])*")
_FRAGMENT: Final = re.compile(rf"[a-z0-9-]+:(?:{_PCHAR}|[/?])*")


@dataclass(frozen=True, slots=True)
class MoqtUrl:
    """A parsed URL (draft-22 §6.1.1). ``host`` has no brackets; ``fragment`` is never sent."""

    scheme: str
    host: str
    port: int = DEFAULT_PORT
    path: str = ""
    query: str | None = None
    fragment: str | None = None

    @classmethod
    def parse(cls, text: str) -> MoqtUrl:
        """Parse ``text``. InvalidUrl names the input, the broken rule and the fix."""
        if len(text) > MAX_URL:
            raise InvalidUrl(f"a URL of {len(text)} characters: at most {MAX_URL} are allowed")
        parts = _PARTS.fullmatch(text)
        if parts is None:
            raise _invalid(text, "it has no scheme", "write moqt://host[:port]/path")
        _check_scheme(text, parts["scheme"])
        host, port = _split_authority(text, parts["authority"])
        for name, pattern, rule in (
            ("path", _PATH, "the path"),
            ("query", _QUERY, "the query"),
        ):
            if parts[name] and not pattern.fullmatch(parts[name]):
                raise _invalid(
                    text, f"{rule} has a character outside RFC 3986", "percent-encode it as %XX"
                )
        fragment = parts["fragment"]
        if fragment is not None and not _FRAGMENT.fullmatch(fragment):
            raise _invalid(
                text,
                "its fragment is not type:value with a type of a-z, 0-9 and '-'",
                "write #kvcs:<namespace>, or leave the fragment out",
            )
        return cls(
            scheme="moqt",
            host=host,
            port=port,
            path=parts["path"],
            query=parts["query"],
            fragment=fragment,
        )

    @property
    def authority(self) -> str:
        """Host and port as sent in the AUTHORITY option; the default port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORT else f"{host}:{self.port}"

    @property
    def path_and_query(self) -> str:
        """Path and query as sent in the PATH option; may be empty."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    def __str__(self) -> str:
        """The URL again, normalised: lower-case host, default port left out."""
        tail = "" if self.fragment is None else f"#{self.fragment}"
        return f"{self.scheme}://{self.authority}{self.path_and_query}{tail}"


def _invalid(text: str, rule: str, fix: str) -> InvalidUrl:
    return InvalidUrl(f"{text!r} is not a MOQT URL: {rule}; {fix}")


def _check_scheme(text: str, scheme: str) -> None:
    if scheme.lower() == "https":
        raise _invalid(
            text, "https means WebTransport, which is not supported yet", "use moqt:// instead"
        )
    if scheme.lower() != "moqt":
        raise _invalid(text, f"its scheme is {scheme!r}", "use moqt://")


def _split_authority(text: str, authority: str) -> tuple[str, int]:
    if "@" in authority:
        raise _invalid(
            text, "a user name has no place in it", "remove what stands before '@' and the '@'"
        )
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise _invalid(text, "its host is malformed", "write an IPv6 address as [::1]")
    host = parts["host"]
    if host.startswith("["):
        host = _ipv6(text, host[1:-1])
    elif not host:
        raise _invalid(text, "the host is empty", "write moqt://host[:port]/path")
    elif not _HOST.fullmatch(host):
        raise _invalid(
            text, "the host has a character outside RFC 3986", "write its ASCII (IDNA) form"
        )
    return host.lower(), _port(text, parts["port"])


def _ipv6(text: str, host: str) -> str:
    try:
        return ipaddress.IPv6Address(host).compressed
    except ipaddress.AddressValueError:
        raise _invalid(
            text, f"[{host}] is no IPv6 address", "write it like [2001:db8::1]"
        ) from None


def _port(text: str, port: str | None) -> int:
    if not port:  # RFC 3986 §3.2.3 allows the colon without a port
        return DEFAULT_PORT
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise _invalid(text, f"its port is {port!r}", "use a number from 1 to 65535")
    return int(port)
