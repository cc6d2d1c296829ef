"""Session: transport events in, requests out; it dispatches and knows the session's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codec import messages as m
from moqt.codec.datagram import decode_datagram
from moqt.codec.profile import LATEST, Profile
from moqt.codec.properties import SetupOptions
from moqt.counters import code_name
from moqt.errors import (
    Misuse,
    ProtocolViolation,
    SessionClosed,
    SessionCode,
    SessionFault,
)
from moqt.session.checks import (
    check_goaway,
    check_own_goaway,
    check_served,
    check_setup,
    stream_code,
)
from moqt.session.context import Context
from moqt.session.control import OwnControl, PeerControl
from moqt.session.intake import Intake
from moqt.session.padding import PaddingStream, send_padding_datagram
from moqt.session.renewal import Renewal
from moqt.session.requester import Requester
from moqt.session.requests import RequestStream
from moqt.session.state import Phase, Request
from moqt.session.streams import DataStream
from transport.api import SendOrder, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.config import SessionConfig
    from moqt.session.ports import (
        RequestHandler,
    )
    from moqt.session.timers import Timer
    from transport.api import BytesLike, TransportSession


class Session(Requester):
    """One MOQT session over one TransportSession; deterministic, does no I/O.

    The owner passes transport events with the time of each, calls ``tick`` at ``next_deadline``
    (``timers.on_change`` says when that has changed), and makes requests. ``draft-22 §6``.
    """

    def __init__(
        self,
        transport: TransportSession,
        handler: RequestHandler,
        config: SessionConfig,
        profile: Profile = LATEST,
    ) -> None:
        super().__init__(Context(transport, handler, config, profile))
        self.timers = self._context.timers
        self._transport = self._context.transport
        #: What has passed so far: a copy, running streams included.
        self.counters = self._context.counted
        #: Tokens that the peer may keep for us, and in which form each may be sent now.
        self.own_tokens = self._context.own_tokens
        self._over = False
        self._control: int | None = None
        self._peer_control = False
        self._goaway_sent = False
        #: The peer's GOAWAY for the session, once it has come.
        self.told_to_go: m.Goaway | None = None
        #: Called with URI and milliseconds after the handler has heard of a GOAWAY.
        self.on_goaway: Callable[[str, int], None] | None = None
        self._setup_timer: Timer | None = None

    # -- transport events ------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """Open the control stream and say SETUP (draft-22 §6.3)."""
        context = self._context
        context.now = now
        if self._phase is not Phase.CONNECTING:
            return
        self._phase = Phase.OPENING
        config = context.config
        names = self._transport.is_client and not config.webtransport
        options = SetupOptions(
            path=config.path if names else None,
            authority=config.authority if names else None,
            authorization_tokens=config.setup_tokens,
            max_auth_token_cache_size=config.max_auth_token_cache_size,
            max_filter_ranges=config.max_filter_ranges,
            implementation=config.implementation,
            max_request_updates=config.max_request_updates,
        )
        stream = self._transport.open(SendOrder(Tier.CONTROL), unidirectional=True)
        self._control = stream
        context.adopt(stream, OwnControl())
        setup = m.Setup(options)
        self._transport.write(stream, m.encode_message(setup, context.profile))
        context.counters.sent.message(setup)
        self._setup_timer = context.call_later(config.setup_timeout, self._setup_overdue)

    def stream_opened(self, now: float, stream: int, unidirectional: bool) -> None:
        """A stream of the peer."""
        context = self._context
        context.now = now
        if self._phase is Phase.CLOSED:
            return
        context.counters.received.streams += 1
        if unidirectional:
            context.adopt(stream, DataStream(context, stream, self._control_opened))
        else:
            context.peer_requests.add(stream)
            context.adopt(stream, Intake(context, stream))

    def stream_data(self, now: float, stream: int, data: BytesLike, fin: bool) -> None:
        """Octets of a stream; the hot path."""
        context = self._context
        context.now = now
        owner = context.owners.get(stream)
        if owner is None or self._phase is Phase.CLOSED:
            return
        try:
            owner.data(data, fin)
        except SessionFault as fault:
            self.close(fault.code, fault.reason)

    def stream_reset(self, now: float, stream: int, code: int) -> None:
        """RESET_STREAM of the peer."""
        self._context.now = now
        owner = self._context.owners.get(stream)
        if owner is not None:
            known = stream_code(code)
            self._context.counters.received.resets[code_name(known)] += 1
            self._guard(owner.reset, known)

    def stop_sending(self, now: float, stream: int, code: int) -> None:
        """STOP_SENDING of the peer."""
        self._context.now = now
        owner = self._context.owners.get(stream)
        if owner is not None:
            known = stream_code(code)
            self._context.counters.received.stops[code_name(known)] += 1
            self._guard(owner.stop, known)

    def stream_sent(self, now: float, stream: int) -> None:
        """Our FIN has been handed down."""
        self._context.now = now
        owner = self._context.owners.get(stream)
        if owner is not None:
            self._guard(owner.sent)

    def datagram(self, now: float, data: bytes) -> None:
        """An object datagram; of an unknown alias it may wait or is dropped (draft-22 §3.1.3.1)."""
        context = self._context
        context.now = now
        if context.established:
            try:
                self._object(data)
            except SessionFault as fault:
                self.close(fault.code, fault.reason)

    def transport_closed(self, now: float, code: int, reason: str) -> None:
        """The transport is gone: everything open ends, once."""
        context = self._context
        context.now = now
        if self._over:
            return
        self._over = True
        self._phase = Phase.CLOSED
        error = SessionClosed(code, reason)
        # Data first, so that sinks abort before their request reports.
        for owner in sorted(context.clear(), key=lambda owner: isinstance(owner, RequestStream)):
            owner.closed(error)
        context.handler.on_closed(code, reason)

    def tick(self, now: float) -> None:
        """Run what is due."""
        self._context.now = now
        self._guard(self._run_timers)

    def next_deadline(self) -> float | None:
        """When ``tick`` must be called at the latest; None for never."""
        return None if self._phase is Phase.CLOSED else self._context.timers.next_deadline()

    # -- application -----------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Both SETUPs are exchanged and the session is open."""
        return self._phase is Phase.ESTABLISHED

    @property
    def may_request(self) -> bool:
        """True while new requests make sense: open, and no GOAWAY said by either side (§9.2)."""
        leaving = self._context.leaving or self._goaway_sent
        return self._phase is not Phase.CLOSED and not leaving

    @property
    def peer_options(self) -> SetupOptions:
        """The peer's SETUP; defaults before it came."""
        return self._context.peer_options

    def goaway(self, uri: str = "", timeout: int = 0) -> None:
        """Say that the session will end soon (draft-22 §9.2).

        With a ``timeout`` (ms) it is closed then, if requests are still open.
        """
        if self._control is None or self._phase is Phase.CLOSED:
            raise Misuse("GOAWAY is said on an open session")
        if self._goaway_sent:
            raise Misuse("a session sends one GOAWAY on its control stream (§9.2)")
        check_own_goaway(uri, self._context.config, is_client=self._transport.is_client)
        message = m.Goaway(uri, timeout)
        octets = m.encode_message(message, self._context.profile)
        self._goaway_sent = True
        self._transport.write(self._control, octets)
        self._context.counters.sent.message(message)
        if timeout:
            self._context.call_after_tick(timeout / 1000, self._goaway_overdue)

    def padding(self, octets: int) -> PaddingStream:
        """A stream of that many zeros, sent behind all else; Misuse before SETUPs (§11.5.1)."""
        return PaddingStream(self._context, octets)

    def padding_datagram(self, octets: int) -> bool:
        """The same as a datagram, False when it cannot be sent; Misuse before SETUPs (§11.5.2)."""
        return send_padding_datagram(self._context, octets)

    def when_stream_lost(self, callback: Callable[[], None]) -> None:
        """Call back when a data stream is reset before its header: whose it was is unknown."""
        self._context.on_stream_lost = callback

    def close(self, code: int = SessionCode.NO_ERROR, reason: str = "") -> None:
        """End the session; ``transport_closed`` follows from the transport."""
        if self._phase is not Phase.CLOSED:
            self._phase = Phase.CLOSED
            self._context.established = False
            self._transport.close(code, reason)

    # -- inside ----------------------------------------------------------------------------------

    def _control_opened(self, stream: DataStream, octets: bytes, fin: bool) -> None:
        if self._peer_control:
            raise ProtocolViolation("second control stream")
        self._peer_control = True
        control = PeerControl(self._context, self._setup, self._goaway)
        self._context.adopt(stream.handle, control)
        control.data(octets, fin)

    def _setup(self, options: SetupOptions) -> None:
        context = self._context
        config, from_client = context.config, not self._transport.is_client
        check_setup(options, from_client=from_client, webtransport=config.webtransport)
        if from_client and not config.webtransport:
            check_served(options, config)
        context.peer_options = options
        context.own_tokens.setup(context.config.setup_tokens, options.max_auth_token_cache_size)
        context.peer_tokens.setup(options.authorization_tokens, context.now)
        context.handler.on_setup(options)
        if self._setup_timer is not None:
            self._setup_timer.cancel()
        if self._phase is Phase.CLOSED:
            return
        context.established = True
        self._phase = Phase.ESTABLISHED
        if context.config.request_tokens is not None:
            Renewal(context)
        context.release_held()

    def _goaway(self, message: m.Goaway) -> None:
        self._context.leaving = True
        check_goaway(message.uri, from_client=not self._transport.is_client)
        self.told_to_go = message
        self._context.handler.on_goaway(message.uri, message.timeout)
        if self.on_goaway is not None:
            self.on_goaway(message.uri, message.timeout)

    def _setup_overdue(self) -> None:
        raise SessionFault(SessionCode.CONTROL_MESSAGE_TIMEOUT, "no SETUP came")

    def _goaway_overdue(self) -> None:
        owners = self._context.owners.values()
        if any(isinstance(o, RequestStream) and o.state is not Request.CLOSED for o in owners):
            raise SessionFault(SessionCode.GOAWAY_TIMEOUT, "requests are still open after GOAWAY")

    def _object(self, data: bytes) -> None:
        context = self._context
        found = decode_datagram(data, context.profile)
        if found is None:
            return
        context.counters.received.datagram(found.head.length)
        context.streams.datagram(found)

    def _run_timers(self) -> None:
        self._context.timers.run(self._context.now)

    def _guard(self, call: Callable[..., None], *arguments: int) -> None:
        """The receive door for all but data: a peer's fault closes the session."""
        if self._phase is Phase.CLOSED:
            return
        try:
            call(*arguments)
        except SessionFault as fault:
            self.close(fault.code, fault.reason)
