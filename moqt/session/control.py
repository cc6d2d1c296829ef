"""The control streams of a session: ours stays open, the peer's says SETUP (draft-22 §6.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codec import messages as m
from moqt.codec.control import MessageSplitter
from moqt.errors import ProtocolViolation
from moqt.session.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.properties import SetupOptions
    from moqt.errors import SessionClosed
    from moqt.session.context import Context
    from transport.api import BytesLike


class OwnControl:
    """Our control stream: the peer must leave it open."""

    def data(self, view: BytesLike, fin: bool) -> None:
        """Never: the stream is ours."""

    def reset(self, code: int) -> None:
        """Never: the stream is ours."""

    def stop(self, code: int) -> None:
        """STOP_SENDING on it ends the session."""
        raise ProtocolViolation("STOP_SENDING on the control stream")

    def sent(self) -> None:
        """Never: it is not finished."""

    def closed(self, error: SessionClosed) -> None:
        """Nothing waits here."""


class PeerControl:
    """The peer's control stream: SETUP, then GOAWAY at most."""

    def __init__(
        self,
        context: Context,
        setup: Callable[[SetupOptions], None],
        goaway: Callable[[m.Goaway], None],
    ) -> None:
        self._context = context
        self._splitter = MessageSplitter(context.profile)
        self._patience = Patience(context)
        self._setup: Callable[[SetupOptions], None] | None = setup
        self._goaway: Callable[[m.Goaway], None] | None = goaway

    def data(self, view: BytesLike, fin: bool) -> None:
        """Whole messages, in order."""
        for kind, body in self._splitter.feed(view):
            message = m.decode_message(self._context.profile, kind, body, None)
            self._context.counters.received.message(message)
            self._message(message)
        if fin:
            raise ProtocolViolation("the control stream was closed")
        self._patience.watch(self._splitter.pending > 0)

    def reset(self, code: int) -> None:
        """It must stay open."""
        raise ProtocolViolation("the control stream was reset")

    def stop(self, code: int) -> None:
        """Never: the stream is the peer's."""

    def sent(self) -> None:
        """Never: the stream is the peer's."""

    def closed(self, error: SessionClosed) -> None:
        """Nothing waits here."""

    def _message(self, message: m.Message) -> None:
        if isinstance(message, m.Setup) and self._setup is not None:
            setup, self._setup = self._setup, None
            setup(message.options)
        elif isinstance(message, m.Goaway) and self._setup is None:
            if self._goaway is None:
                raise ProtocolViolation("second GOAWAY on the control stream")
            goaway, self._goaway = self._goaway, None
            goaway(message)
        else:
            raise ProtocolViolation(f"{type(message).__name__} out of place on a control stream")
