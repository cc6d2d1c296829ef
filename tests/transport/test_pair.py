"""The in-memory pair: order, faults, repeatability."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.sinks import Sink
from transport.api import Chunk, SendOrder, Tier
from transport.errors import StreamAbort
from transport.network import Clock
from transport.testing import Pair, RecordingSession

OBJECT = SendOrder(Tier.OBJECT)


def joined(**options) -> tuple[Pair, Sink, Sink]:
    pair = Pair(**options)
    pair.client.sink, pair.server.sink = Sink(), Sink()
    return pair, pair.client.sink, pair.server.sink


def streams_of(sink: Sink) -> list[bytes]:
    return [bytes(data) for data in sink.data.values()]


@given(
    seed=st.integers(0, 1000),
    split=st.sampled_from([None, 1, 7, 1500]),
    loss=st.sampled_from([0.0, 0.3]),
    reorder=st.sampled_from([0.0, 0.5]),
    jitter=st.sampled_from([0.0, 0.02]),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
)
def test_faults_never_change_the_octets_of_a_stream(seed, split, loss, reorder, jitter, sizes):
    pair, client, server = joined(seed=seed, split=split, loss=loss, reorder=reorder, jitter=jitter)
    sent = {}
    for number, size in enumerate(sizes):
        data = bytes((number + i) % 256 for i in range(size))
        stream = pair.client.open(OBJECT._replace(flow=number), unidirectional=True)
        pair.client.write(stream, data[:100], memoryview(data)[100:])
        pair.client.finish(stream)
        sent[stream] = data
    pair.run()
    assert sorted(streams_of(server)) == sorted(sent.values())
    assert {event[1] for event in client.of("sent")} == set(sent)
    assert len(server.ended) == len(sizes)
    assert pair.client.streams == pair.server.streams == 0
    assert pair.client.unsent() == pair.client.unacknowledged() == 0


def test_the_same_seed_gives_the_same_run():
    def transcript(seed: int) -> list[tuple]:
        pair, _client, server = joined(seed=seed, jitter=0.05, reorder=0.5, loss=0.2, split=300)
        for number in range(8):
            stream = pair.client.open(OBJECT._replace(flow=number), unidirectional=True)
            pair.client.write(stream, bytes([number]) * 2000)
            pair.client.finish(stream)
        pair.run()
        return server.events

    assert transcript(7) == transcript(7)
    assert transcript(7) != transcript(8)


def test_independent_streams_overtake_each_other():
    pair, _client, server = joined(seed=3, jitter=0.1)
    for number in range(20):
        stream = pair.client.open(OBJECT._replace(flow=number), unidirectional=True)
        pair.client.write(stream, bytes([number]))
        pair.client.finish(stream)
    pair.run()
    arrived = [data[0] for data in server.data.values()]
    assert sorted(arrived) == list(range(20))
    assert arrived != sorted(arrived)


def test_both_directions_of_a_bidirectional_stream_and_late_calls():
    pair, client, server = joined()
    stream = pair.client.open(SendOrder(Tier.REQUEST), unidirectional=False)
    assert not pair.client.started(stream)
    pair.client.write(stream, b"question")
    pair.client.finish(stream)
    pair.run()
    assert pair.client.started(stream)
    (answer,) = server.data
    assert server.events[1:] == [("opened", answer, False), ("fin", answer)]
    pair.server.write(answer, b"answer")
    pair.server.finish(answer)
    pair.run()
    assert bytes(client.data[stream]) == b"answer"
    assert pair.client.streams == pair.server.streams == 0
    for session, handle in ((pair.client, stream), (pair.server, answer), (pair.server, 99)):
        session.write(handle, b"late")
        session.finish(handle)
        session.reset(handle, 1)
        session.stop(handle, 1)
        session.wake(handle)
        session.reorder(handle, OBJECT)
    events = len(client.events), len(server.events)
    pair.run()
    assert (len(client.events), len(server.events)) == events


def test_reset_and_stop():
    pair, client, server = joined(rate=100_000)
    one = pair.client.open(OBJECT, unidirectional=True)
    two = pair.client.open(OBJECT._replace(flow=1), unidirectional=True)
    for stream in (one, two):
        pair.client.write(stream, bytes(200_000))
    pair.run(until=0.5)
    first, second = server.data
    pair.server.stop(second, 6)
    pair.client.reset(one, 5)
    pair.run()
    assert ("reset", first, 5) in server.events
    assert ("stop", two, 6) in client.events
    assert not server.of("fin")
    assert [event for event in server.events if event[1:2] == (second,)] == [
        ("opened", second, True)
    ]
    assert pair.client.streams == pair.server.streams == 0
    assert pair.client.unacknowledged() == 0


def test_a_stream_reset_before_its_first_octet_is_never_seen():
    pair, _client, server = joined()
    stream = pair.client.open(OBJECT, unidirectional=True)
    pair.client.write(stream, b"never")
    pair.client.reset(stream, 1)
    other = pair.client.open(OBJECT, unidirectional=False)
    pair.client.reset(other, 1)
    pair.run()
    assert [event[0] for event in server.events] == ["connected"]
    assert pair.client.streams == 0


def test_sources_park_wake_reorder_and_abort():
    pair, client, server = joined()
    items: list[bytes | int | None] = [b"a", None, b"b"]

    def source():
        while items:
            item = items.pop(0)
            if isinstance(item, int):
                raise StreamAbort(item)
            yield None if item is None else Chunk((item,))

    stream = pair.client.open(OBJECT, unidirectional=True)
    pair.client.feed(stream, source())
    pair.run()
    assert streams_of(server) == [b"a"]
    pair.client.wake(stream)
    pair.run()
    assert streams_of(server) == [b"ab"]
    assert client.of("sent") == [("sent", stream)]

    items.extend([b"c", 9])
    stream = pair.client.open(OBJECT, unidirectional=True)
    pair.client.feed(stream, source())
    pair.run()
    assert server.of("reset")[-1][2] == 9
    assert pair.client.streams == pair.server.streams == 0


def test_stream_credit_opens_the_urgent_first():
    pair, _client, server = joined(max_streams=2)
    for number in range(6):
        stream = pair.client.open(SendOrder(Tier.OBJECT, 10 - number), unidirectional=True)
        pair.client.write(stream, bytes([number]))
        pair.client.finish(stream)
    pair.run()
    assert [data[0] for data in server.data.values()] == [5, 4, 3, 2, 1, 0]


def test_datagrams():
    pair, _client, server = joined(seed=2, loss=0.5, latency=0.01)
    pair.run()
    assert not pair.client.send_datagram(bytes(2000))
    assert all(pair.client.send_datagram(bytes([n])) for n in range(100))
    pair.run()
    assert 20 < len(server.of("datagram")) < 80


def test_close_reaches_both_once_and_ends_everything():
    pair, client, server = joined()
    pair.client.write(pair.client.open(OBJECT, unidirectional=True), bytes(100))
    pair.run()
    pair.client.close(3, "why")
    pair.client.close(4)
    assert not client.of("closed"), "no sink method runs inside a call"
    pair.run()
    assert client.of("closed") == [("closed", 3, "why", False)]
    assert server.of("closed") == [("closed", 3, "why", True)]
    pair.server.close(1)
    late = pair.client.open(OBJECT, unidirectional=True)
    pair.client.write(late, b"late")
    assert not pair.client.send_datagram(b"x")
    pair.run()
    assert pair.client.streams == pair.server.streams == 0
    assert len(server.of("closed")) == 1


def test_kill_freeze_and_stop_reading():
    pair, client, server = joined(window=50_000)
    pair.run()
    start = pair.now
    pair.freeze("to_server", 1.0)
    stream = pair.client.open(OBJECT, unidirectional=True)
    pair.client.write(stream, b"x")
    pair.run(until=start + 0.9)
    assert not server.data
    pair.run()
    assert pair.now >= start + 1.0
    assert streams_of(server) == [b"x"]

    pair.stop_reading("to_server")
    pair.client.write(stream, bytes(200_000))
    pair.run()
    assert streams_of(server) == [b"x"]
    assert 50_000 <= pair.client.unacknowledged() - pair.client.unsent() <= 50_000 + 32768
    pair.resume_reading("to_server")
    pair.run()
    assert len(streams_of(server)[0]) == 200_001

    pair.kill()
    pair.run()
    assert client.of("closed") == server.of("closed") == [("closed", -1, "connection lost", False)]


def test_a_late_urgent_stream_takes_at_most_twice_the_ideal_time():
    rate = 8 << 20
    pair, _client, server = joined(rate=rate, latency=0.010)
    for number in range(16):
        low = pair.client.open(SendOrder(Tier.OBJECT, 200, 128, number), unidirectional=True)
        pair.client.write(low, bytes([1]) * (1 << 20))
        pair.client.finish(low)
    done = {}

    def urgent() -> None:
        high = pair.client.open(SendOrder(Tier.OBJECT, 0), unidirectional=True)
        pair.client.write(high, bytes([2]) * (1 << 20))
        pair.client.finish(high)

    def watch(now: float) -> None:
        for stream in server.ended:
            done.setdefault(server.data[stream][0], now)

    pair.on_time = watch
    pair.call_at(0.7, urgent)
    pair.run()
    ideal = (1 << 20) / rate + 0.010
    assert done[2] - 0.7 <= 2 * ideal
    assert done[1] >= done[2]


def test_control_is_not_held_back_by_objects():
    pair, _client, server = joined(rate=1 << 20, latency=0.0)
    bulk = pair.client.open(OBJECT, unidirectional=True)
    pair.client.write(bulk, bytes(8 << 20))
    pair.run(until=1.0)
    control = pair.client.open(SendOrder(Tier.CONTROL), unidirectional=True)
    pair.client.write(control, b"now")
    pair.run(until=1.1)
    assert b"now" in streams_of(server)


def test_pairs_may_share_a_clock():
    clock = Clock()
    pairs = [joined(clock=clock, seed=n)[0] for n in range(3)]
    seen = []
    clock.on_time = seen.append
    clock.run()
    assert all(pair.client.sink.events == [("connected",)] for pair in pairs)
    assert seen == sorted(seen)


def test_endless_chatter_is_reported(monkeypatch):
    monkeypatch.setattr("transport.network.MAX_EVENTS", 100)
    pair, _client, _server = joined()

    def again() -> None:
        pair.call_later(0.1, again)

    again()
    with pytest.raises(RuntimeError, match="run\\(until=\\)"):
        pair.run()


def test_recording_session():
    session = RecordingSession()
    stream = session.open(OBJECT, unidirectional=True)
    session.write(stream, b"a", memoryview(b"b"))
    session.feed(stream, iter([Chunk((b"c", b"d")), None, Chunk((b"e",), OBJECT)]))
    assert session.pull(stream) == [(b"cd", None)]
    assert session.pull(stream) == [(b"e", OBJECT)]
    assert stream not in session.sources
    session.reset(session.arrive(), 1)
    assert session.take() == [
        ("open", 0, OBJECT, True),
        ("write", 0, b"ab"),
        ("feed", 0),
        ("reset", 1, 1),
    ]
    assert session.take() == []
