"""What a peer may ask of us and we of it: rules that need no state, each in one place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moqt.codec.params import Scope
from moqt.errors import (
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestRefused,
    SessionCode,
    SessionFault,
    StreamCode,
)
from moqt.session.filters import RangeFilters

if TYPE_CHECKING:
    from moqt.codec.params import Parameters
    from moqt.codec.properties import SetupOptions
    from moqt.model import Redirect, TrackNamespace
    from moqt.session.config import SessionConfig

#: draft-22 §2.4.3, §6.5: first fields under which nothing of ours is ever published or asked for.
RESERVED_FIELDS: Final = (b".", b".session")

#: Requests whose target is no track.
_PREFIX_SCOPES: Final = (
    Scope.PUBLISH_NAMESPACE,
    Scope.SUBSCRIBE_NAMESPACE,
    Scope.SUBSCRIBE_TRACKS,
)

#: RFC 3986: authority without an empty host, and path-abempty with a query.
_PCHAR: Final = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"
_PATH: Final = re.compile(rf"(?:/{_PCHAR}*)*(?:\?(?:{_PCHAR}|[/?])*)?")
_AUTHORITY: Final = re.compile(
    r"(?:(?:[A-Za-z0-9\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})*@)?"
    r"(?:\[[0-9A-Fa-f:.]+\]|\[v[0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+\]"
    r"|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})+)"
    r"(?::[0-9]*)?"
)

#: The HTTP/3 code that stands for 0 of a WebTransport stream; some peers map on raw QUIC too.
_MAPPED: Final = 0x52E4A40FA8DB


def stream_code(code: int) -> int:
    """A code of RESET_STREAM or STOP_SENDING as draft-22 §12.5 knows it; unknown is INTERNAL_ERROR.

    Codes mapped for WebTransport count as what they stand for: those below 30 in plain order.
    """
    if code >= _MAPPED:
        code -= _MAPPED
    return code if code in StreamCode._value2member_map_ else StreamCode.INTERNAL_ERROR


# -- what the peer sends -------------------------------------------------------------------------


def check_setup(options: SetupOptions, *, from_client: bool, webtransport: bool) -> None:
    """PATH and AUTHORITY are a client's, on raw QUIC (draft-22 §9.1.1, §9.1.2); SessionFault."""
    if webtransport or not from_client:
        where = "over WebTransport" if webtransport else "from a server"
        if options.path is not None:
            raise SessionFault(SessionCode.INVALID_PATH, f"PATH {where}")
        if options.authority is not None:
            raise SessionFault(SessionCode.INVALID_AUTHORITY, f"AUTHORITY {where}")
        return
    if options.path is not None and not _PATH.fullmatch(options.path):
        raise SessionFault(SessionCode.MALFORMED_PATH, "PATH is no path of a URI")
    if options.authority is not None and not _AUTHORITY.fullmatch(options.authority):
        raise SessionFault(SessionCode.MALFORMED_AUTHORITY, "AUTHORITY is no host with a port")


def check_served(options: SetupOptions, config: SessionConfig) -> None:
    """What a client asks for must be served here (draft-22 §9.1.1, §9.1.2); SessionFault."""
    paths, authorities = config.served_paths, config.served_authorities
    if paths is not None and _scope_path(options.path or "") not in map(_scope_path, paths):
        raise SessionFault(SessionCode.INVALID_PATH, "no such path is served here")
    if authorities is not None and (
        options.authority is None
        or _scope_host(options.authority) not in map(_scope_host, authorities)
    ):
        raise SessionFault(SessionCode.INVALID_AUTHORITY, "that authority is not served here")


def _scope_path(path: str) -> str:
    """The query is no part of a scope, and an empty path is the root (draft-22 §2.5)."""
    return path.partition("?")[0] or "/"


def _scope_host(authority: str) -> str:
    """Host and port, without user, in one case; 443 is the default port."""
    place = authority.rpartition("@")[2].lower()
    host, colon, port = place.rpartition(":")
    if not colon or "]" in port:
        return f"{place}:443"
    return f"{host}:{port or 443}"


def check_parameters(parameters: Parameters, config: SessionConfig) -> RequestRefused | None:
    """Why a request of the peer with these parameters cannot be served, if it cannot."""
    refusal: RequestRefused | None = None
    for scope in (parameters, parameters.fill):
        if scope is None or refusal is not None:
            continue
        if scope.invalid_filter is not None:
            return RequestRefused(RequestCode.INVALID_FILTER, scope.invalid_filter)
        refusal = check_spans(RangeFilters(scope.range_filters), config)
    return refusal


def check_spans(filters: RangeFilters, config: SessionConfig) -> RequestRefused | None:
    """MAX_FILTER_RANGES of ours (draft-22 §9.1.6)."""
    limit = config.max_filter_ranges
    if filters.spans > limit:
        return RequestRefused(
            RequestCode.INVALID_FILTER, f"{filters.spans} ranges, at most {limit} are taken"
        )
    return None


def check_goaway(uri: str, *, from_client: bool) -> None:
    """A client names no URI (draft-22 §9.2)."""
    if from_client and uri:
        raise ProtocolViolation("GOAWAY of a client carries a URI")


def check_redirect(redirect: Redirect | None, *, from_client: bool) -> None:
    """A client sends nobody elsewhere (draft-22 §9.4.2)."""
    if from_client and redirect is not None and redirect.uri:
        raise ProtocolViolation("REDIRECT of a client carries a URI")


def reserved(namespace: TrackNamespace) -> RequestRefused | None:
    """Why nobody need be asked about a namespace (draft-22 §2.4.3, §6.5)."""
    if namespace and namespace[0] in RESERVED_FIELDS:
        return RequestRefused(
            RequestCode.DOES_NOT_EXIST, "nothing is published under a reserved namespace"
        )
    return None


# -- what we send: Misuse before anything is written ---------------------------------------------


def check_own_goaway(uri: str, config: SessionConfig, *, is_client: bool) -> None:
    """A client names no URI, a server one of the scheme in use (draft-22 §9.2)."""
    if is_client and uri:
        raise Misuse("a client's GOAWAY carries no URI (§9.2)")
    scheme = "https://" if config.webtransport else "moqt://"
    if "://" in uri and not uri.startswith(scheme):
        raise Misuse(f"GOAWAY to {uri!r}: name a {scheme} URI, as this session has (§9.2)")


def check_own_redirect(refused: RequestRefused, scope: Scope | None, *, is_client: bool) -> None:
    """What our REDIRECT may say (draft-22 §9.4.2)."""
    redirect = refused.redirect
    if (redirect is not None) != (refused.code == RequestCode.REDIRECT):
        raise Misuse("a redirect goes with the code REDIRECT, and the code with a redirect")
    if redirect is None:
        return
    if is_client and redirect.uri:
        raise Misuse("a client's REDIRECT carries no URI: leave it empty")
    if scope in _PREFIX_SCOPES and redirect.name.name:
        raise Misuse("the redirect of a namespace request has an empty track name")


def check_own_namespace(namespace: TrackNamespace) -> None:
    """Nothing of ours lives under a reserved first field (draft-22 §2.4.3, §6.5)."""
    if namespace and namespace[0] in RESERVED_FIELDS:
        raise Misuse(f"the first field {namespace[0]!r} is reserved: choose another namespace")


def check_own_parameters(
    parameters: Parameters, peer: SetupOptions, filters: RangeFilters | None = None
) -> None:
    """What the peer's SETUP allows (draft-22 §9.1.6); ``filters`` are all then in force."""
    fill = RangeFilters(parameters.fill.range_filters if parameters.fill else ())
    spans = max((filters or RangeFilters(parameters.range_filters)).spans, fill.spans)
    if spans > peer.max_filter_ranges:
        raise Misuse(
            f"{spans} filter ranges: the peer takes {peer.max_filter_ranges} (MAX_FILTER_RANGES), "
            "0 until its SETUP is in"
        )
