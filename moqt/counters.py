"""What a session has done so far, in numbers: cheap enough to be always on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from moqt.codec.messages import RequestError, kind_of
from moqt.errors import RequestCode, StreamCode

if TYPE_CHECKING:
    from moqt.codec.messages import Message
    from transport.api import PeerCertificate, PeerInfo, SendOrder, TransportSession


@dataclass(slots=True)
class Traffic:
    """One direction. Codes and messages count under their names; unknown codes as INTERNAL_ERROR.

    ``objects`` have begun, ``octets`` are of their payload; both include datagrams. ``streams`` are
    those that this side opened, of every kind.
    """

    messages: Counter[str] = field(default_factory=Counter)
    #: REQUEST_ERROR by code.
    refused: Counter[str] = field(default_factory=Counter)
    #: RESET_STREAM and STOP_SENDING by code.
    resets: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    streams: int = 0
    datagrams: int = 0
    objects: int = 0
    octets: int = 0

    def message(self, message: Message) -> None:
        """A control message has passed."""
        self.messages[kind_of(message).name] += 1
        if isinstance(message, RequestError):
            known = message.code in RequestCode._value2member_map_
            code = RequestCode(message.code) if known else RequestCode.INTERNAL_ERROR
            self.refused[code.name] += 1

    def carried(self, objects: int, octets: int) -> None:
        """So many objects, with so much payload, have passed."""
        self.objects += objects
        self.octets += octets

    def datagram(self, octets: int) -> None:
        """An object datagram with so much payload has passed."""
        self.datagrams += 1
        self.carried(1, octets)

    def add(self, other: Traffic) -> None:
        """Sum up; ``other`` stays as it is."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, each.name, mine + theirs)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the members of a JSON object."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(sorted(value.items())) if isinstance(value, Counter) else value
            for name, value in values.items()
        }


@dataclass(slots=True)
class Counters:
    """Both directions of one session, or the sum of several; ``streams_open`` is of now."""

    received: Traffic = field(default_factory=Traffic)
    sent: Traffic = field(default_factory=Traffic)
    streams_open: int = 0

    def add(self, other: Counters) -> None:
        """Sum up; ``other`` stays as it is."""
        self.received.add(other.received)
        self.sent.add(other.sent)
        self.streams_open += other.streams_open

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the members of a JSON object."""
        return {
            "received": self.received.to_json(),
            "sent": self.sent.to_json(),
            "streams_open": self.streams_open,
        }


def code_name(code: int) -> str:
    """A stream code by its name (§12.5)."""
    known = code in StreamCode._value2member_map_
    return (StreamCode(code) if known else StreamCode.INTERNAL_ERROR).name


class Counted:
    """A TransportSession that counts the streams we open, reset and stop; the rest is not touched.

    What carries octets is the other's own method, so it costs nothing.
    """

    def __init__(self, transport: TransportSession, counters: Counters) -> None:
        self._transport = transport
        self._sent = counters.sent
        self.write = transport.write
        self.feed = transport.feed
        self.wake = transport.wake
        self.reorder = transport.reorder
        self.finish = transport.finish
        self.send_datagram = transport.send_datagram
        self.started = transport.started
        self.stream_slots = transport.stream_slots
        self.unacknowledged = transport.unacknowledged
        self.unsent = transport.unsent
        self.close = transport.close

    @property
    def is_client(self) -> bool:
        """See TransportSession."""
        return self._transport.is_client

    @property
    def peer(self) -> PeerInfo:
        """See TransportSession."""
        return self._transport.peer

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """See TransportSession."""
        return self._transport.peer_certificate

    def open(self, order: SendOrder, *, unidirectional: bool) -> int:
        """See TransportSession."""
        self._sent.streams += 1
        return self._transport.open(order, unidirectional=unidirectional)

    def reset(self, stream: int, code: int) -> None:
        """See TransportSession."""
        self._sent.resets[code_name(code)] += 1
        self._transport.reset(stream, code)

    def stop(self, stream: int, code: int) -> None:
        """See TransportSession."""
        self._sent.stops[code_name(code)] += 1
        self._transport.stop(stream, code)
