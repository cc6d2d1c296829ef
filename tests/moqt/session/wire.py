"""A Session facing a peer made of octets: what comes in is written here, what goes out is read."""

from __future__ import annotations

from typing import Any, NamedTuple

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.codec.profile import LATEST
from moqt.codec.properties import SetupOptions
from moqt.errors import SessionCode
from moqt.model import FullTrackName
from moqt.session.config import SessionConfig
from moqt.session.core import Session
from moqt.session.ports import Unserved
from transport.errors import StreamAbort
from transport.testing import RecordingSession

NAME = FullTrackName((b"live", b"room1"), b"video")
OTHER = FullTrackName((b"live", b"room1"), b"audio")

#: What a peer offers unless a test says otherwise.
GENEROUS = SetupOptions(max_filter_ranges=16, max_request_updates=4)


class Asked(Unserved):
    """Writes requests down and answers nothing: the test decides."""

    def __init__(self) -> None:
        self.options: SetupOptions | None = None
        self.requests: list[Any] = []
        self.goaways: list[tuple[str, int]] = []
        self.ended: tuple[int, str] | None = None

    def on_setup(self, options: SetupOptions) -> None:
        self.options = options

    def _note(self, request: Any) -> None:
        self.requests.append(request)

    on_subscribe = on_fetch = on_track_status = _note
    on_publish_namespace = on_subscribe_namespace = _note

    def on_goaway(self, uri: str, timeout: int) -> None:
        self.goaways.append((uri, timeout))

    def on_closed(self, code: int, reason: str) -> None:
        assert self.ended is None, "closed twice"
        self.ended = (code, reason)


class Answer(NamedTuple):
    """What we have sent on one stream: messages, and how our direction ended."""

    messages: list[m.Message]
    end: str | int | None  # "fin", a reset code, or None


class Wire:
    """One Session under test; ``is_client`` says which side we are, the peer is the other."""

    def __init__(
        self,
        *,
        is_client: bool = False,
        handler: Any = None,
        config: SessionConfig | None = None,
        options: SetupOptions | None = GENEROUS,
    ) -> None:
        self.transport = RecordingSession(is_client=is_client)
        self.handler = handler or Asked()
        self.session = Session(self.transport, self.handler, config or SessionConfig())
        self.now = 100.0
        self.log: list[tuple[Any, ...]] = []
        self.session.connected(self.now)
        self.next_id = 1 if is_client else 0
        self.control = -1
        if options is not None:
            self.control = self.uni(m.Setup(options))

    # -- the peer --------------------------------------------------------------------------------

    def bidi(self, *parts: m.Message | bytes, fin: bool = False) -> int:
        """The peer opens a request stream."""
        return self._open(parts, fin, unidirectional=False)

    def uni(self, *parts: m.Message | bytes, fin: bool = False) -> int:
        """The peer opens a unidirectional stream."""
        return self._open(parts, fin, unidirectional=True)

    def send(self, stream: int, *parts: m.Message | bytes, fin: bool = False) -> None:
        """The peer goes on, in one piece."""
        octets = b"".join(p if isinstance(p, bytes) else m.encode_message(p) for p in parts)
        self.session.stream_data(self.now, stream, octets, fin)

    def reset(self, stream: int, code: int = 1) -> None:
        """RESET_STREAM of the peer."""
        self.session.stream_reset(self.now, stream, code)

    def stop(self, stream: int, code: int = 1) -> None:
        """STOP_SENDING of the peer; QUIC resets our direction by itself."""
        self.session.stop_sending(self.now, stream, code)

    def datagram(self, data: bytes) -> None:
        """A datagram of the peer."""
        self.session.datagram(self.now, data)

    def id(self) -> int:
        """The peer's next request id."""
        self.next_id += 2
        return self.next_id - 2

    def wait(self, seconds: float) -> None:
        """Time passes; ticks come when they are due."""
        end = self.now + seconds
        while (due := self.session.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.session.tick(self.now)
        self.now = end

    def lose(self, code: int = -1, reason: str = "gone") -> None:
        """The transport reports the end; afterwards nothing is kept."""
        self.session.transport_closed(self.now, code, reason)
        assert not leftovers(self.session)

    # -- what we did -----------------------------------------------------------------------------

    def calls(self, *kinds: str) -> list[tuple[Any, ...]]:
        """All calls to the transport of some kinds, so far."""
        self.log += self.transport.take()
        return [call for call in self.log if not kinds or call[0] in kinds]

    def answer(self, stream: int) -> Answer:
        """What we have sent on a request stream, and how it ended."""
        octets, end = self._sent(stream)
        found = [m.decode_message(LATEST, *one) for one in MessageSplitter().feed(octets)]
        return Answer(found, end)

    def last(self, stream: int) -> m.Message:
        """The latest message that we have sent on a request stream."""
        return self.answer(stream).messages[-1]

    def data(self, stream: int) -> tuple[bytes, str | int | None]:
        """Pull what one of our data streams has now; the octets, and how it has ended."""
        return self._sent(stream)

    def pulled(self, stream: int) -> tuple[bytes, str | int | None]:
        """Play the transport for a data stream of ours: pull all there is, report FIN as sent."""
        octets = b""
        try:
            for chunk in self.transport.sources.get(stream, ()):
                if chunk is None:
                    break
                self.transport.started_streams.add(stream)
                octets += b"".join(chunk.views)
            else:
                if self.transport.sources.pop(stream, None) is not None:
                    self.transport.finish(stream)
                    self.session.stream_sent(self.now, stream)
        except StreamAbort as abort:
            self.transport.reset(stream, abort.code)
        return octets, self._sent(stream)[1]

    def stopped(self, stream: int) -> int | None:
        """The code of our STOP_SENDING on a stream, if any."""
        return next((call[2] for call in self.calls("stop") if call[1] == stream), None)

    def opened(self, *, unidirectional: bool) -> list[int]:
        """Streams of ours, in the order of opening."""
        return [call[1] for call in self.calls("open") if call[3] is unidirectional]

    @property
    def fault(self) -> SessionCode | None:
        """What we closed the session with."""
        closed = self.calls("close")
        return SessionCode(closed[0][1]) if closed else None

    # -- inside ----------------------------------------------------------------------------------

    def _open(
        self, parts: tuple[m.Message | bytes, ...], fin: bool, *, unidirectional: bool
    ) -> int:
        stream = self.transport.arrive()
        self.session.stream_opened(self.now, stream, unidirectional)
        if parts or fin:
            self.send(stream, *parts, fin=fin)
        return stream

    def _sent(self, stream: int) -> tuple[bytes, str | int | None]:
        octets, end = b"", None
        for call in self.calls("write", "finish", "reset"):
            if call[1] == stream and end is None:
                if call[0] == "write":
                    octets += call[2]
                else:
                    end = "fin" if call[0] == "finish" else call[2]
        return octets, end


def leftovers(session: Session) -> dict[str, int]:
    """What a session keeps besides its control streams: empty when all is over."""
    context = session._context
    streams = context.streams
    kept = {
        "owners": sum(type(o).__name__[-7:] != "Control" for o in context.owners.values()),
        "peer_requests": len(context.peer_requests),
        "interests": len(context.interests),
        "timers": len(context.timers),
        "aliases": len(streams._aliases),
        "unanswered": len(streams._unanswered),
        "fetches": len(streams.awaited),
        "orphans": len(streams._orphans),
        "orphan_count": streams._orphan_count,
        "orphan_octets": streams._orphan_octets,
        "held": len(context._held),
        "held_octets": context._held_octets,
    }
    return {what: count for what, count in kept.items() if count}
