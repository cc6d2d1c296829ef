"""What can go wrong below MOQT."""

from __future__ import annotations

from enum import StrEnum


class TransportError(Exception):
    """Base of everything this package raises."""


class ConnectFault(StrEnum):
    """Why a connection could not be made, for exit messages and for choosing the next URL."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    CERTIFICATE = "certificate"
    PROTOCOL = "protocol"
    REFUSED = "refused"


class ConnectFailed(TransportError):
    """No session came up. ``fault`` says which step failed."""

    def __init__(self, fault: ConnectFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class CertificateRefused(TransportError):
    """A client's certificate does not count; ``alert`` is TLS's word for it (RFC 8446 §6)."""

    def __init__(self, alert: int, message: str) -> None:
        super().__init__(message)
        self.alert = alert


class InvalidUrl(TransportError, ValueError):
    """A URL that is not moqt://host[:port]/path[?query]."""


class StreamAbort(TransportError):
    """Raised inside a ChunkSource: reset this stream with ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(f"stream aborted with code {code:#x}")
        self.code = code
