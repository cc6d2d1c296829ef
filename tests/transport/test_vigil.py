"""A peer that is gone is noticed, one that is slow, deaf for a moment or far away is not given up.

Real sessions over a modelled path in virtual time, each with an event loop that may hang.
"""

from __future__ import annotations

from random import Random

import pytest
from aioquic.quic.configuration import QuicConfiguration

from tests.transport.sinks import ORDER, Sink
from transport._aioquic import Connection
from transport.config import QuicOptions
from transport.network import Clock
from transport.quic import QuicSession
from transport.vigil import QUESTIONS, Vigil


class Handle:
    def __init__(self, call, arguments) -> None:
        self.call, self.arguments = call, arguments

    def cancel(self) -> None:
        self.call = None

    def run(self) -> None:
        if self.call is not None:
            self.call(*self.arguments)


class Loop:
    """An event loop on a virtual clock; while it hangs nothing runs, then timers go first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hangs_until = 0.0

    def call_soon(self, call, *arguments) -> Handle:
        return self.call_later(0.0, call, *arguments)

    def call_later(self, delay, call, *arguments) -> Handle:
        handle = Handle(call, arguments)
        late = 1e-6 if delay else 0.0  # as timers are: QUIC's deadlines are beyond the last digit
        self.clock.call_later(delay + late, lambda: self.run(handle.run))
        return handle

    def run(self, action, last: float = 0.0) -> None:
        if self.clock.now < self.hangs_until:
            self.clock.call_at(self.hangs_until + last, action)
        else:
            action()

    def hang(self, seconds: float) -> None:
        self.hangs_until = self.clock.now + seconds


class Side:
    """One session, its host and its socket."""

    blocked = False

    def __init__(self, path: Path, quic: Connection, options: QuicOptions) -> None:
        self.path = path
        self.loop = Loop(path.clock)
        self.sink = Sink()
        self.sent = 0
        self.gone: float | None = None
        self.session = QuicSession(quic, self, self, options, self.loop)

    def send(self, datagrams) -> bool:
        for data, _address in datagrams:
            self.sent += 1
            self.path.carry(self, data)
        return True

    def receive(self, data: bytes) -> None:
        self.session.receive(data, ("peer", 1), self.path.clock.now)
        self.session.turn()

    def session_ready(self, _session) -> Sink:
        return self.sink

    def session_ended(self, _session, _end) -> None:
        self.gone = self.path.clock.now

    def session_gone(self, _session) -> None:
        pass

    def connection_id_added(self, *_arguments) -> None:
        pass

    connection_id_removed = connection_id_added


class Path:
    """A client and a server, connected, and what lies between them."""

    def __init__(self, certificates, monkeypatch, *, latency=0.01, seed=0, **options) -> None:
        self.clock = Clock()
        self.latency = latency
        self.loss = 0.0
        self.cut: set[Side] = set()  #: nothing that these send arrives
        self._random = Random(seed)
        monkeypatch.setattr("transport.quic.monotonic", lambda: self.clock.now)
        shared = {"alpn_protocols": ["moqt-22"], "idle_timeout": 30.0}
        configuration = QuicConfiguration(
            **shared, cadata=certificates.ca.read_bytes(), server_name="localhost"
        )
        quic = Connection(configuration=configuration)
        configuration = QuicConfiguration(**shared, is_client=False)
        configuration.load_cert_chain(certificates.certificate, certificates.private_key)
        far = Connection(
            configuration=configuration,
            original_destination_connection_id=quic.original_destination_connection_id,
        )
        mine = QuicOptions(protocols=("moqt-22",), **options)
        self.client, self.server = Side(self, quic, mine), Side(self, far, mine)
        quic.connect(("peer", 1), self.clock.now)
        self.client.session.turn()
        self.run(10.0)
        assert self.client.session.connected
        assert self.server.session.connected

    def carry(self, source: Side, data: bytes) -> None:
        target = self.server if source is self.client else self.client
        if source not in self.cut and self._random.random() >= self.loss:
            take = target.loop.run
            action = lambda: take(lambda: target.receive(data), last=1e-6)  # noqa: E731
            self.clock.call_later(self.latency, action)

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    def lost(self) -> list[tuple]:
        return self.client.sink.of("closed") + self.server.sink.of("closed")


@pytest.fixture
def path(certificates, monkeypatch):
    return lambda **options: Path(certificates, monkeypatch, **options)


def busy(side: Side, clock: Clock, octets: int = 3000) -> None:
    """Something to send, for ever."""

    def more() -> None:
        if side.session.unacknowledged() < 10 * octets:
            stream = side.session.open(ORDER, unidirectional=True)
            side.session.write(stream, bytes(octets))
            side.session.finish(stream)
        clock.call_later(0.2, more)

    more()


@pytest.mark.parametrize("active", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("seed", range(2))
def test_a_far_and_bad_line_is_no_reason(path, active, seed) -> None:
    """1 s there and back, one in ten lost each way."""
    line = path(latency=0.5, seed=seed)
    line.loss = 0.1
    if active:
        busy(line.server, line.clock)
    line.run(300.0 if active else 3600.0)
    assert line.lost() == []


@pytest.mark.parametrize("active", [False, True], ids=["idle", "busy"])
def test_a_path_that_is_dead_is_noticed_in_time_by_both(path, active) -> None:
    line = path()
    if active:
        busy(line.server, line.clock)
    line.run(60.0)
    since = line.clock.now
    line.cut = {line.client, line.server}
    line.run(60.0)
    assert [code for _, code, _, _ in line.lost()] == [-1, -1]
    assert "answers no more" in line.lost()[0][2]
    for side in (line.client, line.server):
        assert 7.5 < side.gone - since <= 12.1  # 12 s from what was heard last


def test_a_window_that_is_full_keeps_no_question_back(path) -> None:
    """Data in flight fill the window; QUIC's own probes come ever more seldom."""
    line = path()
    busy(line.server, line.clock, 100_000)
    line.loss = 0.1  # the window becomes small
    line.run(3.0)
    line.cut = {line.client, line.server}
    line.run(3.9)
    before = line.server.sent
    line.run(8.0)
    assert line.server.sent - before >= QUESTIONS


@pytest.mark.parametrize("whose", ["client", "server"])
@pytest.mark.parametrize("active", [False, True], ids=["idle", "busy"])
def test_an_event_loop_that_hangs_is_not_given_up(path, whose, active) -> None:
    line = path()
    if active:
        busy(line.client, line.clock)
        busy(line.server, line.clock)
    for _ in range(20):
        getattr(line, whose).loop.hang(7.0)
        line.run(7.3)
    assert line.lost() == []


def test_who_has_hung_gives_nobody_up(path) -> None:
    """However long it was: what came meanwhile still lies in the socket."""
    line = path()
    line.server.session._vigil = Vigil(None)  # it waits for us
    line.run(3.0)
    for seconds in (20.0, 25.0):
        line.client.loop.hang(seconds)
        line.run(seconds + 0.5)
    assert line.lost() == []


def test_a_path_that_is_cut_for_a_while_goes_on(path) -> None:
    line = path()
    busy(line.server, line.clock)
    line.run(5.0)
    line.cut = {line.client, line.server}
    line.run(5.0)
    line.cut = set()
    streams = len(line.client.sink.ended)
    line.run(5.0)
    assert len(line.client.sink.ended) > streams
    assert line.lost() == []


def test_who_can_still_hear_us_is_told(path) -> None:
    line = path()
    line.cut = {line.server}
    line.run(13.0)
    assert [one[1:] for one in line.client.sink.of("closed")] == [
        (-1, "lost: the peer answers no more", False)
    ]
    ((_, code, reason, remote),) = line.server.sink.of("closed")
    assert (code, remote) == (-1, True)
    assert "no answer" in reason


def test_idle_sessions_cost_little_and_without_a_timeout_nothing(path) -> None:
    line = path()
    before = line.client.sent + line.server.sent
    line.run(400.0)
    assert 100 <= (line.client.sent + line.server.sent - before) / 2 <= 210
    line = path(peer_timeout=None)
    before = line.client.sent
    line.run(25.0)
    assert line.client.sent == before
    line.run(10.0)
    assert len(line.lost()) == 2  # QUIC's own idle timeout


def test_questions_are_as_far_apart_as_answers_may_take() -> None:
    vigil = Vigil(12.0)
    assert vigil.due == float("inf")
    vigil.heard(100.0)
    asked = []
    while vigil.ask(vigil.due, 2.5):
        asked.append(vigil.due - 100.0)
    assert asked == [4.0 + 2.5 * number for number in range(1, QUESTIONS + 1)]
    vigil.heard(200.0)
    assert (vigil.due, vigil.ask(204.0, 0.1)) == (204.0, True)
