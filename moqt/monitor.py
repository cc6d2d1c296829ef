"""The eyes of an endpoint: what all its sessions have counted, and a trace if it is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moqt.counters import Counters
from moqt.driver import Connection

if TYPE_CHECKING:
    from moqt.driver import HandlerFactory
    from moqt.session.config import SessionConfig
    from moqt.trace import Trace
    from transport.api import TransportSession, TransportSink


class Monitor:
    """Given to ``connect`` and ``serve``: watches every session they make, live and ended.

    With a ``trace`` each session is written down as well.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self._live: set[Connection] = set()
        self._ended = Counters()
        #: Sessions so far.
        self.sessions = 0

    @property
    def counters(self) -> Counters:
        """The sum over all sessions so far, a copy."""
        total = Counters()
        total.add(self._ended)
        for connection in self._live:
            total.add(connection.counters)
        return total

    def to_json(self) -> dict[str, Any]:
        """The sum and the number of sessions, for the members of a JSON object."""
        return {
            "sessions": self.sessions,
            "sessions_open": sum(one.is_open for one in self._live),
            **self.counters.to_json(),
        }

    def join(
        self, transport: TransportSession, handler: HandlerFactory, config: SessionConfig
    ) -> tuple[Connection, TransportSink]:
        """A session begins: its Connection, and what its transport reports to."""
        traced = None if self._trace is None else self._trace.session(transport)
        connection = Connection(traced or transport, handler, config)
        self.sessions += 1
        self._live.add(connection)
        connection.when_closed(lambda: self._over(connection))
        return connection, traced.sink(connection.sink) if traced else connection.sink

    def _over(self, connection: Connection) -> None:
        self._live.discard(connection)
        self._ended.add(connection.counters)
