"""One row per draft: the only module that knows a draft's number and its type codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class MessageKind(Enum):
    """The control messages (draft-22 §9), whatever a draft's code for them."""

    SETUP = auto()
    GOAWAY = auto()
    REQUEST_UPDATE = auto()
    SUBSCRIBE = auto()
    SUBSCRIBE_OK = auto()
    REQUEST_ERROR = auto()
    PUBLISH_NAMESPACE = auto()
    REQUEST_OK = auto()
    NAMESPACE = auto()
    PUBLISH_DONE = auto()
    TRACK_STATUS = auto()
    NAMESPACE_DONE = auto()
    PUBLISH_SKIPPED = auto()
    FETCH = auto()
    FETCH_OK = auto()
    PUBLISH = auto()
    PUBLISH_STATE_NOTIFY = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()


@dataclass(frozen=True, slots=True)
class Profile:
    """What differs between drafts. ``messages`` maps wire codes to kinds, ``codes`` back."""

    alpn: str
    messages: Mapping[int, MessageKind]
    codes: Mapping[MessageKind, int]
    control_stream: int
    fetch_stream: int
    padding_stream: int
    padding_datagram: int


_MESSAGES: Final = {
    0x2F00: MessageKind.SETUP,
    0x10: MessageKind.GOAWAY,
    0x02: MessageKind.REQUEST_UPDATE,
    0x03: MessageKind.SUBSCRIBE,
    0x04: MessageKind.SUBSCRIBE_OK,
    0x05: MessageKind.REQUEST_ERROR,
    0x06: MessageKind.PUBLISH_NAMESPACE,
    0x07: MessageKind.REQUEST_OK,
    0x08: MessageKind.NAMESPACE,
    0x0B: MessageKind.PUBLISH_DONE,
    0x0D: MessageKind.TRACK_STATUS,
    0x0E: MessageKind.NAMESPACE_DONE,
    0x0F: MessageKind.PUBLISH_SKIPPED,
    0x16: MessageKind.FETCH,
    0x18: MessageKind.FETCH_OK,
    0x1D: MessageKind.PUBLISH,
    0x22: MessageKind.PUBLISH_STATE_NOTIFY,
    0x50: MessageKind.SUBSCRIBE_NAMESPACE,
    0x51: MessageKind.SUBSCRIBE_TRACKS,
}

#: draft-ietf-moq-transport-22.
DRAFT_22: Final = Profile(
    alpn="moqt-22",
    messages=MappingProxyType(_MESSAGES),
    codes=MappingProxyType({kind: code for code, kind in _MESSAGES.items()}),
    control_stream=0x2F00,
    fetch_stream=0x05,
    padding_stream=0x132B3E28,
    padding_datagram=0x132B3E29,
)

#: What we speak when nobody says otherwise.
LATEST: Final = DRAFT_22
