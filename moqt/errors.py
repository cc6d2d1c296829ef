"""The error tree and the wire codes: the only place that knows which belongs to which."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moqt.model import Redirect


class SessionCode(IntEnum):
    """Session termination codes (draft-22 §12.2)."""

    NO_ERROR = 0x0
    INTERNAL_ERROR = 0x1
    UNAUTHORIZED = 0x2
    PROTOCOL_VIOLATION = 0x3
    INVALID_REQUEST_ID = 0x4
    DUPLICATE_TRACK_ALIAS = 0x5
    KEY_VALUE_FORMATTING_ERROR = 0x6
    INVALID_PATH = 0x8
    MALFORMED_PATH = 0x9
    GOAWAY_TIMEOUT = 0x10
    CONTROL_MESSAGE_TIMEOUT = 0x11
    DATA_STREAM_TIMEOUT = 0x12
    AUTH_TOKEN_CACHE_OVERFLOW = 0x13
    DUPLICATE_AUTH_TOKEN_ALIAS = 0x14
    MALFORMED_AUTH_TOKEN = 0x16
    UNKNOWN_AUTH_TOKEN_ALIAS = 0x17
    EXPIRED_AUTH_TOKEN = 0x18
    INVALID_AUTHORITY = 0x19
    MALFORMED_AUTHORITY = 0x1A
    TOO_MANY_REQUEST_UPDATES = 0x1B


class RequestCode(IntEnum):
    """REQUEST_ERROR codes (draft-22 §12.3)."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TIMEOUT = 0x2
    NOT_SUPPORTED = 0x3
    MALFORMED_AUTH_TOKEN = 0x4
    EXPIRED_AUTH_TOKEN = 0x5
    GOING_AWAY = 0x6
    EXCESSIVE_LOAD = 0x9
    DOES_NOT_EXIST = 0x10
    INVALID_RANGE = 0x11
    MALFORMED_TRACK = 0x12
    UNKNOWN_AUTH_TOKEN_ALIAS = 0x17
    UNINTERESTED = 0x20
    PREFIX_OVERLAP = 0x30
    NAMESPACE_TOO_LARGE = 0x31
    UNSUPPORTED_EXTENSION = 0x33
    REDIRECT = 0x34
    CONFLICTING_FILTERS = 0x35
    INVALID_FILTER = 0x36


class DoneCode(IntEnum):
    """PUBLISH_DONE codes (draft-22 §12.4)."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TRACK_ENDED = 0x2
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    EXPIRED = 0x6
    UPDATE_FAILED = 0x8
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


class StreamCode(IntEnum):
    """RESET_STREAM and STOP_SENDING codes (draft-22 §12.5)."""

    INTERNAL_ERROR = 0x0
    CANCELLED = 0x1
    DELIVERY_TIMEOUT = 0x2
    SESSION_CLOSED = 0x3
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    UNKNOWN_OBJECT_STATUS = 0x6
    EXPIRED_AUTH_TOKEN = 0x7
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


class MoqtError(Exception):
    """Base of everything this package raises."""


class SessionFault(MoqtError):
    """The peer broke a rule that ends the session; ``code`` is what we close with."""

    def __init__(self, code: SessionCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class ProtocolViolation(SessionFault):
    """The commonest session fault: close(PROTOCOL_VIOLATION)."""

    def __init__(self, reason: str) -> None:
        super().__init__(SessionCode.PROTOCOL_VIOLATION, reason)


class MalformedTrack(MoqtError):
    """A track broke the data model (draft-22 §12.1): its subscription ends, the session lives."""


class Misuse(MoqtError, ValueError):
    """Our caller broke a rule: raised to the caller, the wire is untouched."""


class StreamReset(MoqtError):
    """The one data stream of a fetch was reset; what came before stays valid."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the data stream was reset with code {code:#x}")
        self.code = code


class SubscriptionEnded(MoqtError):
    """PUBLISH_DONE for another reason than the end of the track, or with streams missing.

    ``complete`` is False when fewer streams came than the publisher has counted.
    """

    def __init__(self, code: DoneCode, reason: str, *, complete: bool) -> None:
        missing = "" if complete else "; not all of its streams came"
        super().__init__(f"{code.name}: {reason or 'no reason given'}{missing}")
        self.code = code
        self.reason = reason
        self.complete = complete


class TooFarBehind(MoqtError):
    """More has come than may wait for the application: we have cancelled the request."""


class RequestFailed(MoqtError):
    """A request of ours was answered with REQUEST_ERROR, or could not be answered any more.

    ``retry_after`` is in milliseconds, None when the same request must not be repeated;
    ``redirect`` says where to repeat it instead. ``refused``: the peer's REQUEST_ERROR said so.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        retry_after: int | None = None,
        redirect: Redirect | None = None,
        *,
        refused: bool = False,
    ) -> None:
        known = RequestCode._value2member_map_.get(code)
        name = f"code {code:#x}" if known is None else known.name
        super().__init__(f"{name}: {reason}" if reason else name)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.redirect = redirect
        self.refused = refused


class RequestRefused(MoqtError):
    """Raised by an application's handler to answer a peer's request with REQUEST_ERROR.

    ``redirect`` goes with the code REDIRECT and no other (draft-22 §9.4.2).
    """

    def __init__(
        self,
        code: RequestCode,
        reason: str = "",
        retry_after: int | None = None,
        redirect: Redirect | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.redirect = redirect


class SessionClosed(MoqtError):
    """The session under a request is gone; ``code`` -1 means the connection was lost."""

    def __init__(self, code: int, reason: str) -> None:
        closed = f"session closed: {reason or 'no reason given'} (code {code:#x})"
        super().__init__(closed if code >= 0 else f"connection lost: {reason}")
        self.code = code
        self.reason = reason
