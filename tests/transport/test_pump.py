"""What goes down into QUIC, and what waits: two real connections, exchanging datagrams by hand."""

from __future__ import annotations

import pytest
from aioquic.quic import events

from transport import _aioquic
from transport.api import SendOrder, Tier
from transport.config import QuicOptions
from transport.pump import Pump
from transport.scheduler import Gate
from transport.streams import StreamTable

OBJECT = SendOrder(Tier.OBJECT)


class Client:
    """A pump on the client's connection; the server grants 5000 octets a stream, 7 streams."""

    def __init__(self, joined, **options) -> None:
        self.quic, self.server, self.exchange = joined
        self.table = StreamTable(is_client=True)
        self.sent: list[int] = []
        self.pump = Pump(
            self.quic,
            self.table,
            QuicOptions(**options),
            aborted=lambda handle, code: self.sent.append(-handle),
            sent=self.sent.append,
        )

    def write(self, order: SendOrder, size: int, *, unidirectional: bool = True) -> int:
        stream = self.table.open(unidirectional=unidirectional)
        gate = Gate.UNI if unidirectional else Gate.BIDI
        self.pump.feeder.open(stream.handle, order, gate)
        self.pump.feeder.write(stream.handle, bytes(size))
        self.pump.feeder.finish(stream.handle)
        return stream.handle

    def inside(self) -> dict[int, int]:
        """Never-sent octets inside QUIC by stream id."""
        return {wire: _aioquic.never_sent(s) for wire, s in self.quic._streams.items()}


@pytest.fixture
def client(joined):
    return Client(joined, unsent_budget=64 << 10)


def test_a_stream_without_window_lets_others_pass(client):
    urgent = client.write(OBJECT._replace(publisher=0), 20_000)
    other = client.write(OBJECT, 100)
    assert client.pump.run()
    assert client.inside() == {2: 5000, 6: 100}
    assert client.sent == [other]
    assert not client.pump.run()
    while client.sent != [other, urgent]:
        client.exchange(1)
        client.pump.run()
        assert all(_aioquic.stream_credit(s) >= 0 for s in client.quic._streams.values())
    client.exchange()
    assert client.pump.feeder.unsent() == 0
    assert len(client.table) == 0


def test_streams_without_a_slot_wait_and_the_best_goes_first(joined):
    client = Client(joined, hot_streams=100)
    handles = [client.write(OBJECT._replace(publisher=9 - n), 10) for n in range(10)]
    client.write(SendOrder(Tier.REQUEST), 10, unidirectional=False)
    assert client.pump.run()
    assert client.sent == [10, *handles[:2:-1]]
    assert sorted(client.inside()) == [0, *range(2, 30, 4)]
    for _ in range(5):
        client.exchange()
        client.pump.run()
    assert client.sent == [10, *handles[::-1]]


def test_the_budget_bounds_objects_but_not_control(joined):
    client = Client(joined, unsent_budget=64 << 10, piece=4000, hot_streams=100)
    client.quic._remote_max_stream_data_uni = 1 << 20
    for flow in range(4):
        client.write(OBJECT._replace(flow=flow), 200_000)
    client.pump.run()
    inside = sum(client.inside().values())
    assert 64 << 10 <= inside < (64 << 10) + 4000
    client.write(SendOrder(Tier.CONTROL), 30_000)
    client.write(SendOrder(Tier.REQUEST), 30_000)
    client.pump.run()
    assert sum(client.inside().values()) == inside + 60_000
    assert client.pump.run() is False


def test_few_streams_are_hot_unless_one_is_more_urgent_than_all(joined):
    client = Client(joined, hot_streams=2, unsent_budget=64 << 10, piece=1000)
    for flow in range(5):
        client.write(OBJECT._replace(flow=flow, publisher=100), 4000)
    client.pump.run()
    assert len([n for n in client.inside().values() if n]) == 2
    client.write(OBJECT._replace(publisher=100, rank=(-1,), flow=0), 500)
    before = client.inside()
    client.pump.run()
    assert client.inside() == before
    client.write(OBJECT._replace(publisher=99), 500)
    client.pump.run()
    assert sorted(client.inside().values())[0] == 500


def test_an_empty_stream_is_opened_by_its_fin(client):
    handle = client.write(OBJECT, 0)
    assert client.pump.run()
    assert client.sent == [handle]
    assert client.quic.get_next_available_stream_id(is_unidirectional=True) == 6


def test_forgotten_streams_leave_no_trace(client):
    first = client.write(OBJECT._replace(publisher=0), 20_000)
    second = client.write(OBJECT, 20_000)
    client.pump.run()
    for handle in (first, second):
        client.quic.reset_stream(client.table.by_handle[handle].wire, 1)
        client.pump.forget(handle)
        client.table.end_send(client.table.by_handle[handle])
    assert not client.pump._hot
    assert not client.pump._blocked
    assert not client.pump.run()
    client.write(OBJECT, 10)
    client.pump.run()
    client.pump.clear()
    assert not client.pump._hot


def test_a_connection_without_credit_waits(client):
    client.quic._remote_max_data = client.quic._remote_max_data_used + 150
    client.write(OBJECT, 100)
    client.write(OBJECT._replace(flow=1), 100)
    client.pump.run()
    assert sum(client.inside().values()) == 150
    client.quic._remote_max_data += 50
    client.pump.run()
    assert sum(client.inside().values()) == 200


def test_a_stop_before_the_first_octet_is_sent_with_it(client):
    stream = client.table.open(unidirectional=False)
    client.pump.feeder.open(stream.handle, OBJECT, Gate.BIDI)
    stream.stop_code = 9
    client.pump.feeder.write(stream.handle, b"x")
    client.pump.run()
    stops = [e for e in client.exchange() if isinstance(e, events.StopSendingReceived)]
    assert [(event.stream_id, event.error_code) for event in stops] == [(0, 9)]
