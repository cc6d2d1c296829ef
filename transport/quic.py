"""One aioquic connection as a ``TransportSession``.

Order of one turn: datagrams in, events to the sink, then feed and send until QUIC takes no more.
A call of the owner outside a turn plans one; no sink method runs inside such a call.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from aioquic.quic import events
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from transport import _aioquic
from transport.api import PeerInfo, SendOrder, Tier
from transport.config import SMALLEST_DATAGRAM
from transport.handshake import alert_name, certificate_advice
from transport.pump import Pump
from transport.scheduler import Gate
from transport.streams import UNBOUND, Stream, StreamTable
from transport.vigil import Vigil

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from transport.api import BytesLike, ChunkSource, PeerCertificate, TransportSink
    from transport.config import QuicOptions
    from transport.udp import Address, UdpChannel

logger = logging.getLogger(__name__)

#: draft-22 §12.2: what a session is closed with when its owner raises.
INTERNAL_ERROR: Final = 0x1

#: Octets of a close reason: it must fit the smallest datagram together with its headers.
MAX_REASON: Final = 512

#: DATAGRAM frames that wait for the congestion window; more are refused, they would only be late.
MAX_DATAGRAMS: Final = 64

#: Longest stay after our CONNECTION_CLOSE, to repeat it to a peer that did not get it.
MAX_LINGER: Final = 2.0

#: Probe timeouts in a row after which large datagrams are suspected to be the reason.
BLACK_HOLE_PROBES: Final = 3


class End(NamedTuple):
    """How a session ended. ``code`` as in ``TransportSink.closed``, ``quic_code`` if QUIC's own."""

    code: int
    reason: str
    remote: bool
    quic_code: int | None = None


class Host(Protocol):
    """The endpoint of a session: it owns the socket and knows which datagrams are whose."""

    def session_ready(self, session: QuicSession) -> TransportSink:
        """The handshake is done: who is to be told what happens?"""
        ...

    def session_ended(self, session: QuicSession, end: End) -> None:
        """Over, before or after ``session_ready``; it may still repeat its close."""
        ...

    def session_gone(self, session: QuicSession) -> None:
        """Nothing more is sent; the socket and the connection ids are free."""
        ...

    def connection_id_added(self, session: QuicSession, connection_id: bytes) -> None:
        """Datagrams with this id belong to the session."""
        ...

    def connection_id_removed(self, session: QuicSession, connection_id: bytes) -> None:
        """They no longer do."""
        ...


class QuicSession:
    """A ``TransportSession``; its methods do what that class says."""

    def __init__(
        self,
        quic: _aioquic.Connection,
        channel: UdpChannel,
        host: Host,
        options: QuicOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.is_client: bool = quic.configuration.is_client
        self.peer = PeerInfo(("", 0), "", 0)
        self.peer_certificate: PeerCertificate | None = None
        self._quic = quic
        self._channel = channel
        self._host = host
        self._options = options
        self._loop = loop
        self._sink: TransportSink | None = None
        self._table = StreamTable(is_client=self.is_client)
        self._pump = Pump(quic, self._table, options, aborted=self.reset, sent=self._on_sent)
        self._feeder = self._pump.feeder
        self._busy = False
        self._closing: End | None = None
        self._ended = False
        self._released = False
        self._farewell: list[tuple[bytes, Address]] = []
        self._strays = 0
        self._planned: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._vigil = Vigil(options.peer_timeout)
        _aioquic.set_stream_limits(quic, bidi=options.max_streams_bidi, uni=options.max_streams_uni)

    # -- TransportSession ------------------------------------------------------------------------

    def open(self, order: SendOrder, *, unidirectional: bool) -> int:
        stream = self._table.open(unidirectional=unidirectional)
        if self._over:
            self._table.clear()
        else:
            self._feeder.open(stream.handle, order, Gate.UNI if unidirectional else Gate.BIDI)
        return stream.handle

    def write(self, stream: int, *views: BytesLike) -> None:
        self._feeder.write(stream, *views)
        self._plan()

    def feed(self, stream: int, source: ChunkSource) -> None:
        self._feeder.feed(stream, source)
        self._plan()

    def wake(self, stream: int) -> None:
        self._feeder.wake(stream)
        self._plan()

    def reorder(self, stream: int, order: SendOrder) -> None:
        self._feeder.reorder(stream, order)

    def finish(self, stream: int) -> None:
        self._feeder.finish(stream)
        self._plan()

    def reset(self, stream: int, code: int) -> None:
        entry = self._table.by_handle.get(stream)
        if entry is None or not entry.send_open:
            return
        if entry.wire == UNBOUND:
            entry.recv_open = False
        else:
            self._quic.reset_stream(entry.wire, code)
            self._plan()
        self._end_send(entry)

    def stop(self, stream: int, code: int) -> None:
        """After this neither data nor FIN nor reset of the peer's direction is reported."""
        entry = self._table.by_handle.get(stream)
        if entry is None or not entry.recv_open or entry.stop_code is not None:
            return
        entry.stop_code = code
        if _aioquic.stream_of(self._quic, entry.wire) is not None:
            self._quic.stop_stream(entry.wire, code)
            self._plan()

    def send_datagram(self, data: bytes) -> bool:
        if self._over or len(data) > self.peer.datagram_size:
            return False
        if _aioquic.datagrams_waiting(self._quic) >= MAX_DATAGRAMS:
            return False
        self._quic.send_datagram_frame(data)
        self._plan()
        return True

    def stream_slots(self, *, unidirectional: bool) -> int:
        """0 once the session is over."""
        return 0 if self._over else _aioquic.stream_slots(self._quic, unidirectional=unidirectional)

    def started(self, stream: int) -> bool:
        """Also True for a stream that is gone."""
        entry = self._table.by_handle.get(stream)
        return entry is None or entry.wire != UNBOUND

    def unacknowledged(self) -> int:
        return 0 if self._over else self._feeder.unsent() + _aioquic.unacknowledged(self._quic)

    def unsent(self, stream: int | None = None) -> int:
        return self._feeder.unsent(stream)

    def close(self, code: int, reason: str = "") -> None:
        if self._over:
            return
        self._closing = End(code, reason, remote=False)
        self._forget_streams()
        text = reason.encode()[:MAX_REASON].decode(errors="ignore")
        self._quic.close(error_code=code, reason_phrase=text)
        if not self._busy:
            self._send_close()
        self._plan()

    # -- what the host calls ---------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """The handshake is done and the session not over."""
        return self._sink is not None and not self._over

    @property
    def streams(self) -> int:
        """Streams with an open half."""
        return len(self._table)

    def receive(self, data: bytes, address: Address, now: float) -> None:
        """Take a datagram; ``turn`` must follow once the batch is done."""
        if self._ended:
            self._repeat_close()
            return
        self._quic.receive_datagram(data, address, now)
        if self._sink is not None:  # the handshake has a limit of its own
            self._vigil.heard(now)

    def turn(self) -> None:
        """Events to the sink, then feed and send, then the timer."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        if self._ended:
            return
        self._busy = True
        try:
            self._dispatch()
            self._flush()
        except Exception as error:  # whatever a sink or a source raises costs this session alone
            self.fail(error)
        finally:
            self._busy = False
        self._settle()

    def fail(self, error: Exception) -> None:
        """The owner (or QUIC itself) raised: close this session alone, say where it happened."""
        logger.error("session with %s is closed: internal error", self.peer.address, exc_info=error)
        self.close(INTERNAL_ERROR, "internal error")

    def abandon(self, end: End) -> None:
        """Over at once, without a word to the peer."""
        if not self._ended:
            self._end(end)
        self._gone()

    # -- in ----------------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        return self._ended or self._closing is not None

    def _dispatch(self) -> None:
        next_event = self._quic.next_event
        data_received = events.StreamDataReceived
        while (event := next_event()) is not None:
            if type(event) is data_received:
                self._on_data(event.stream_id, event.data, event.end_stream)
            else:
                handler = _HANDLERS.get(type(event))
                if handler is not None:
                    handler(self, event)

    def _on_data(self, wire: int, data: bytes, fin: bool) -> None:
        sink = self._sink
        entry = self._table.by_wire.get(wire) or self._accept(wire)
        if entry is None or sink is None or not entry.recv_open:
            return
        if fin:
            self._table.end_recv(entry)
        if entry.stop_code is None:
            sink.stream_data(entry.handle, data, fin)

    def _accept(self, wire: int) -> Stream | None:
        """A stream of the peer not seen before, announced; None when it has ended."""
        sink = self._sink
        if sink is None or self._over:
            return None
        entry = self._table.accept(wire)
        if entry is not None:
            if entry.send_open:
                self._feeder.open(entry.handle, SendOrder(Tier.REQUEST))
            sink.stream_opened(entry.handle, entry.unidirectional)
        return entry

    def _on_reset(self, event: events.StreamReset) -> None:
        wire = event.stream_id
        entry = self._table.by_wire.get(wire) or self._accept(wire)
        if entry is None or self._sink is None or not entry.recv_open:
            return
        self._table.end_recv(entry)
        if entry.stop_code is None:
            self._sink.stream_reset(entry.handle, event.error_code)

    def _on_stop(self, event: events.StopSendingReceived) -> None:
        """QUIC has answered with a reset of its own (RFC 9000 §3.5)."""
        wire = event.stream_id
        entry = self._table.by_wire.get(wire) or self._accept(wire)
        if entry is None or self._sink is None or not entry.send_open:
            return
        self._end_send(entry)
        self._sink.stop_sending(entry.handle, event.error_code)

    def _on_datagram(self, event: events.DatagramFrameReceived) -> None:
        if self._sink is not None and not self._over:
            self._sink.datagram(event.data)

    def _on_handshake(self, event: events.HandshakeCompleted) -> None:
        quic = self._quic
        size = min(_aioquic.datagram_size(quic), _aioquic.peer_udp_payload(quic))
        _aioquic.set_datagram_size(quic, max(size, SMALLEST_DATAGRAM))
        address = quic.get_peer_address() or ("", 0)
        self.peer = PeerInfo(
            (str(address[0]), int(address[1])),
            event.alpn_protocol or "",
            _aioquic.datagram_payload(quic),
        )
        self.peer_certificate = quic.shown
        if self._over:
            return
        self._sink = self._host.session_ready(self)
        self._vigil.heard(monotonic())
        if not self._over:
            self._sink.connected()

    def _on_id_issued(self, event: events.ConnectionIdIssued) -> None:
        self._host.connection_id_added(self, event.connection_id)

    def _on_id_retired(self, event: events.ConnectionIdRetired) -> None:
        self._host.connection_id_removed(self, event.connection_id)

    # -- out ---------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """One turn after the present callback, unless it is part of one."""
        if not self._busy and self._planned is None and not self._ended:
            self._planned = self._loop.call_soon(self.turn)

    def _flush(self) -> None:
        """Feed and send until QUIC takes no more."""
        channel, quic = self._channel, self._quic
        if quic.refused:  # its client thinks that it is connected: it must hear why it is not
            self._send_close()
        while not channel.blocked and not self._over:
            fed = self._sink is not None and self._pump.run()
            if self._over:
                break
            datagrams = quic.datagrams_to_send(monotonic())
            if datagrams and not channel.send(datagrams):
                self._shrink()
            if not fed or not datagrams or not _aioquic.may_send(quic):
                break

    def _shrink(self) -> None:
        """The path does not carry our datagrams: send the smallest ones."""
        if _aioquic.datagram_size(self._quic) > SMALLEST_DATAGRAM:
            logger.info("path to %s takes only small datagrams", self.peer.address)
            _aioquic.set_datagram_size(self._quic, SMALLEST_DATAGRAM)
            address, protocol, _size = self.peer
            self.peer = PeerInfo(address, protocol, _aioquic.datagram_payload(self._quic))

    def _end_send(self, entry: Stream) -> None:
        self._pump.forget(entry.handle)
        self._table.end_send(entry)

    def _on_sent(self, handle: int) -> None:
        if self._sink is not None:
            self._sink.stream_sent(handle)

    # -- timer -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """After a turn: is it over, and when is the next one due?"""
        if self._closing is not None:
            self._send_close()
            self._end(self._closing)
            return
        event = _aioquic.close_event(self._quic)
        if event is not None:
            self._end(_end_of(event, self.is_client, remote=_aioquic.closed_by_peer(self._quic)))
            return
        due = self._quic.get_timer()
        due = self._vigil.due if due is None else min(due, self._vigil.due)
        if self._timer is None or due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = max(monotonic(), self._timer_at)
        quic = self._quic
        due = quic.get_timer()
        if due is not None and now < min(due, self._vigil.due):
            self._settle()  # the deadline has moved
            return
        if due is not None and now >= due:
            try:
                quic.handle_timer(now)
            except Exception as error:  # a bug below us costs this session alone
                self.fail(error)
            if _aioquic.unanswered_probes(quic) >= BLACK_HOLE_PROBES:
                self._shrink()
        if now >= self._vigil.due and not self._over:
            if self._vigil.ask(now, _aioquic.probe_timeout(quic)):
                _aioquic.probe(quic)
            else:
                self._give_up()
        self.turn()

    def _give_up(self) -> None:
        """The peer is lost; should it hear us after all, it is told."""
        self._closing = End(-1, "lost: the peer answers no more", remote=False)
        self._forget_streams()
        self._quic.close(QuicErrorCode.NO_ERROR, QuicFrameType.PADDING, "no answer")

    # -- the end -----------------------------------------------------------------------------------

    def _send_close(self) -> None:
        """Send CONNECTION_CLOSE, once, and keep it for a peer that missed it."""
        if not self._farewell:
            self._farewell = self._quic.datagrams_to_send(monotonic())
            self._channel.send(self._farewell)

    def _repeat_close(self) -> None:
        """Answer the 1st, 2nd, 4th... datagram that comes after our close (RFC 9000 §10.2.1)."""
        self._strays += 1
        if self._farewell and not self._strays & (self._strays - 1):
            self._channel.send(self._farewell)

    def _end(self, end: End) -> None:
        """Tell the owner, once; then wait for strays if it was us who closed."""
        self._ended = True
        if self._closing is None:
            self._closing = end
        self._forget_streams()
        self._cancel_timers()
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.closed(end.code, end.reason, end.remote)
            except Exception:  # it is over anyway; whoever reads the log learns where
                logger.exception("the owner of a session raised while told of its end")
        self._host.session_ended(self, end)
        if self._farewell:
            linger = min(3 * _aioquic.probe_timeout(self._quic), MAX_LINGER)
            self._timer = self._loop.call_later(linger, self._gone)
        else:
            self._gone()

    def _gone(self) -> None:
        if not self._released:
            self._released = True
            self._cancel_timers()
            self._farewell = []
            self._host.session_gone(self)

    def _forget_streams(self) -> None:
        self._pump.clear()
        self._table.clear()

    def _cancel_timers(self) -> None:
        for handle in (self._timer, self._planned):
            if handle is not None:
                handle.cancel()
        self._timer = self._planned = None


def _end_of(event: events.ConnectionTerminated, is_client: bool, *, remote: bool) -> End:
    """Only an application's CONNECTION_CLOSE has a code for the owner; QUIC's own are a loss."""
    if event.frame_type is None:
        return End(event.error_code, event.reason_phrase, remote)
    code = event.error_code
    told = f"{event.reason_phrase or 'no reason given'} (QUIC error {code:#x}{alert_name(code)})"
    if remote and is_client:
        told += certificate_advice(code)
    return End(-1, told, remote, code)


_HANDLERS: Final[dict[type, Callable[[QuicSession, Any], None]]] = {
    events.StreamReset: QuicSession._on_reset,
    events.StopSendingReceived: QuicSession._on_stop,
    events.DatagramFrameReceived: QuicSession._on_datagram,
    events.HandshakeCompleted: QuicSession._on_handshake,
    events.ConnectionIdIssued: QuicSession._on_id_issued,
    events.ConnectionIdRetired: QuicSession._on_id_retired,
}
