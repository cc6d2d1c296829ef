"""Transition tables, and nothing else: a missing cell is the protocol error.

(state, message) -> (next state, method that does the work). Each role of a request stream has one.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, TypeAlias

from moqt.codec import messages as m


class Request(Enum):
    """A request stream, from either end."""

    PENDING = auto()
    ESTABLISHED = auto()
    DRAINING = auto()
    CLOSED = auto()


Table: TypeAlias = dict[tuple[Request, type], tuple[Request, str]]

_PENDING, _OPEN, _DRAINING, _CLOSED = (
    Request.PENDING,
    Request.ESTABLISHED,
    Request.DRAINING,
    Request.CLOSED,
)

#: SUBSCRIBE as its sender sees it (draft-22 §3.1).
SUBSCRIBER: Final[Table] = {
    (_PENDING, m.SubscribeOk): (_OPEN, "on_subscribe_ok"),
    (_PENDING, m.RequestError): (_CLOSED, "on_error"),
    (_OPEN, m.RequestOk): (_OPEN, "on_update_ok"),
    (_OPEN, m.RequestError): (_OPEN, "on_update_error"),
    (_OPEN, m.PublishStateNotify): (_OPEN, "on_state_notify"),
    (_OPEN, m.PublishDone): (_DRAINING, "on_publish_done"),
}

#: FETCH as its sender sees it (draft-22 §3.2).
FETCHER: Final[Table] = {
    (_PENDING, m.FetchOk): (_OPEN, "on_fetch_ok"),
    (_PENDING, m.RequestError): (_CLOSED, "on_error"),
    (_OPEN, m.RequestOk): (_OPEN, "on_update_ok"),
    (_OPEN, m.RequestError): (_OPEN, "on_update_error"),
}

#: TRACK_STATUS: one question, one answer (draft-22 §9.13).
STATUS_ASKER: Final[Table] = {
    (_PENDING, m.RequestOk): (_CLOSED, "on_ok"),
    (_PENDING, m.RequestError): (_CLOSED, "on_error"),
}
STATUS_ANSWERER: Final[Table] = {}

#: PUBLISH_NAMESPACE as its sender sees it (draft-22 §4.1).
ANNOUNCER: Final[Table] = {
    (_PENDING, m.RequestOk): (_OPEN, "on_ok"),
    (_PENDING, m.RequestError): (_CLOSED, "on_error"),
    (_OPEN, m.RequestOk): (_OPEN, "on_update_ok"),
    (_OPEN, m.RequestError): (_OPEN, "on_update_error"),
}

#: SUBSCRIBE_TRACKS as its sender sees it (draft-22 §3.6).
TRACKS: Final[Table] = {
    **ANNOUNCER,
    (_OPEN, m.PublishSkipped): (_OPEN, "on_skipped"),
}

#: SUBSCRIBE_NAMESPACE as its sender sees it (draft-22 §4.2).
INTERESTED: Final[Table] = {
    **ANNOUNCER,
    (_OPEN, m.Namespace): (_OPEN, "on_namespace"),
    (_OPEN, m.NamespaceDone): (_OPEN, "on_namespace_done"),
}

#: Every request that may be updated, as its receiver sees it (draft-22 §9.5).
RESPONDER: Final[Table] = {(state, m.RequestUpdate): (state, "on_update") for state in Request}

#: PUBLISH as its sender sees it (draft-22 §3.1); after its end what the peer said before it knew.
PUBLISHER: Final[Table] = {
    (_PENDING, m.RequestOk): (_OPEN, "on_publish_ok"),
    (_PENDING, m.RequestError): (_CLOSED, "on_error"),
    (_OPEN, m.RequestUpdate): (_OPEN, "on_update"),
    (_OPEN, m.RequestOk): (_OPEN, "on_update_ok"),
    (_OPEN, m.RequestError): (_OPEN, "on_update_error"),
    (_DRAINING, m.RequestUpdate): (_DRAINING, "on_update"),
    (_DRAINING, m.RequestOk): (_DRAINING, "on_update_ok"),
    (_DRAINING, m.RequestError): (_DRAINING, "on_update_error"),
    (_CLOSED, m.RequestUpdate): (_CLOSED, "on_update"),
    (_CLOSED, m.RequestOk): (_CLOSED, "ignore"),
    (_CLOSED, m.RequestError): (_CLOSED, "ignore"),
}

#: PUBLISH as its receiver sees it; one refused may have said more before it knew (draft-22 §9.8).
OFFERED: Final[Table] = {
    (_PENDING, m.RequestUpdate): (_PENDING, "on_update"),
    (_PENDING, m.PublishStateNotify): (_PENDING, "ignore"),
    (_PENDING, m.PublishDone): (_PENDING, "on_early_done"),
    (_OPEN, m.RequestUpdate): (_OPEN, "on_update"),
    (_OPEN, m.RequestOk): (_OPEN, "on_update_ok"),
    (_OPEN, m.RequestError): (_OPEN, "on_update_error"),
    (_OPEN, m.PublishStateNotify): (_OPEN, "on_state_notify"),
    (_OPEN, m.PublishDone): (_DRAINING, "on_publish_done"),
    (_CLOSED, m.RequestUpdate): (_CLOSED, "on_update"),
    (_CLOSED, m.PublishStateNotify): (_CLOSED, "ignore"),
    (_CLOSED, m.PublishDone): (_CLOSED, "ignore"),
}


class Phase(Enum):
    """The session itself (draft-22 §3.3)."""

    CONNECTING = auto()
    OPENING = auto()
    ESTABLISHED = auto()
    CLOSED = auto()
