"""The laws of the feeder: order, fairness, conservation, and nothing left behind."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from transport.api import Chunk, SendOrder, Tier
from transport.errors import StreamAbort
from transport.scheduler import SMALL_VIEW, Feeder, Gate, unsent_budget

OBJECT = SendOrder(Tier.OBJECT)


def feeder() -> Feeder:
    def refuse(key: int, code: int) -> None:
        raise AssertionError((key, code))

    return Feeder(refuse)


def drain(queue: Feeder, limit: int = 1 << 20) -> list[tuple[int, bytes, bool]]:
    pieces = []
    while (piece := queue.next(limit)) is not None:
        key, view, fin = piece
        pieces.append((key, bytes(view), fin))
    return pieces


def assert_empty(queue: Feeder) -> None:
    assert len(queue) == 0
    assert queue.unsent() == 0
    assert not queue._levels
    assert not queue._ranking
    assert queue._waiting == [0, 0, 0]


def test_levels_are_strict():
    queue = feeder()
    orders = [
        SendOrder(Tier.PADDING, 0, 0),
        SendOrder(Tier.OBJECT, 128, 128),
        SendOrder(Tier.OBJECT, 128, 3),
        SendOrder(Tier.OBJECT, 7, 200),
        SendOrder(Tier.REQUEST, 255, 255),
        SendOrder(Tier.CONTROL, 255, 255),
    ]
    for key, order in enumerate(orders):
        queue.open(key, order)
        queue.write(key, b"x" * 10)
        queue.finish(key)
    assert [key for key, _view, fin in drain(queue, 5) if fin] == [5, 4, 3, 2, 1, 0]
    assert_empty(queue)


def test_equal_flows_take_turns_and_ranks_rule_inside_a_flow():
    queue = feeder()
    queue.open(1, OBJECT._replace(flow=1, rank=(4, 0)))
    queue.open(2, OBJECT._replace(flow=1, rank=(3, 9)))
    queue.open(3, OBJECT._replace(flow=2))
    for key in (1, 2, 3):
        queue.write(key, b"x" * 4)
        queue.finish(key)
    assert [key for key, _view, _fin in drain(queue, 2)] == [2, 3, 2, 3, 1, 1]


def test_a_smaller_rank_that_comes_late_goes_first():
    queue = feeder()
    queue.open(1, OBJECT._replace(rank=(5,)))
    queue.write(1, bytes(4))
    assert queue.next(2) == (1, bytes(2), False)
    queue.open(2, OBJECT._replace(rank=(4,)))
    queue.write(2, bytes(2))
    assert queue.next(2) == (2, bytes(2), False)
    assert queue.next(2) == (1, bytes(2), False)
    assert queue.next(2) is None


def test_reorder_moves_what_is_queued():
    queue = feeder()
    for key in (1, 2):
        queue.open(key, OBJECT._replace(flow=key))
        queue.write(key, bytes(4))
        queue.finish(key)
    queue.reorder(2, SendOrder(Tier.OBJECT, 1))
    queue.reorder(2, SendOrder(Tier.OBJECT, 1))
    assert queue.order(2).subscriber == 1
    assert [key for key, _view, _fin in drain(queue, 2)] == [2, 2, 1, 1]
    assert_empty(queue)


def test_views_are_slices_and_small_ones_travel_with_what_follows():
    queue = feeder()
    head, small, block = b"h" * 6, b"p" * 68, bytearray(32768)
    queue.open(1, OBJECT)
    queue.write(1, head, small, memoryview(block))
    key, view, fin = queue.next(33 << 10)
    assert (key, len(view), fin) == (1, 6 + 68 + 32768, False)
    queue.write(1, block)
    _key, view, _fin = queue.next(20_000)
    assert isinstance(view, memoryview)
    assert view.obj is block
    _key, view, _fin = queue.next(20_000)
    assert view.obj is block
    assert queue.unsent() == 0
    large = bytes(SMALL_VIEW)
    queue.write(1, large, b"tail")
    assert queue.next(1 << 20)[1] is large
    queue.write(1, memoryview(bytes(8)).cast("I"), memoryview(b"").cast("B"))
    assert queue.unsent(1) == 12
    queue.drop(1)
    assert_empty(queue)


def test_a_joined_piece_keeps_to_the_limit():
    queue = feeder()
    queue.open(1, OBJECT)
    queue.write(1, b"ab", b"cdef", b"ghi")
    queue.finish(1)
    assert drain(queue, 4) == [(1, b"abcd", False), (1, b"efgh", False), (1, b"i", True)]
    assert_empty(queue)


def test_fin_alone_and_limit_zero():
    queue = feeder()
    queue.open(1, OBJECT)
    assert queue.peek() is None
    queue.write(1, b"x")
    assert queue.next(0) is None
    assert queue.next(9) == (1, b"x", False)
    queue.finish(1)
    queue.write(1, b"too late")
    assert queue.next(0) == (1, b"", True)
    assert 1 not in queue
    assert_empty(queue)


def test_sources_are_pulled_when_their_turn_comes():
    queue = feeder()
    pulled = []

    def source(name: str, count: int):
        for n in range(count):
            pulled.append(f"{name}{n}")
            yield Chunk((b"%d" % n, name.encode()))

    queue.open(1, SendOrder(Tier.OBJECT, 200))
    queue.feed(1, source("low", 2))
    queue.open(2, SendOrder(Tier.OBJECT, 100))
    queue.write(2, b"first")
    queue.feed(2, source("high", 2))
    assert pulled == []
    assert queue.next(100) == (2, b"first", False)
    assert pulled == []
    assert queue.next(100) == (2, b"0high", False)
    assert pulled == ["high0"]
    assert drain(queue) == [
        (2, b"1high", False),
        (2, b"", True),
        (1, b"0low", False),
        (1, b"1low", False),
        (1, b"", True),
    ]
    assert_empty(queue)


def test_a_chunk_may_bring_a_new_order():
    queue = feeder()
    queue.open(1, SendOrder(Tier.OBJECT, 1))
    queue.feed(1, iter([Chunk((b"now",)), Chunk((b"later",), SendOrder(Tier.OBJECT, 9))]))
    queue.open(2, SendOrder(Tier.OBJECT, 5))
    queue.write(2, b"between")
    assert [view for _key, view, _fin in drain(queue)] == [b"now", b"between", b"later", b""]


def test_parked_sources_wait_for_wake():
    queue = feeder()
    queue.open(1, OBJECT)
    queue.feed(1, iter([None, Chunk(()), Chunk((b"x",)), None]))
    assert queue.peek() is None
    assert queue.peek() is None
    queue.wake(1)
    queue.wake(1)
    assert queue.next(9) == (1, b"x", False)
    assert queue.next(9) is None
    queue.write(1, b"y")
    assert queue.next(9) == (1, b"y", False), "written octets do not wait for the source"
    queue.wake(1)
    assert queue.next(9) == (1, b"", True)
    assert_empty(queue)


def test_an_aborting_source_is_reported_and_a_broken_one_raises():
    reports = []
    queue = Feeder(lambda key, code: reports.append((key, code)))

    def source(error: Exception):
        yield Chunk((b"x",))
        raise error

    queue.open(1, OBJECT)
    queue.feed(1, source(StreamAbort(5)))
    queue.open(2, OBJECT._replace(flow=2))
    queue.feed(2, source(KeyError("bug")))
    assert queue.next(9) == (1, b"x", False)
    assert queue.next(9) == (2, b"x", False)
    with pytest.raises(KeyError):
        queue.next(9)
    assert reports == [(1, 5)]
    assert_empty(queue)


def test_a_source_may_call_back():
    queue = feeder()

    def dropping_itself():
        queue.drop(1)
        yield Chunk((b"never",))

    def opening_another():
        queue.open(3, SendOrder(Tier.CONTROL))
        queue.write(3, b"urgent")
        queue.finish(3)
        yield Chunk((b"mine",))

    queue.open(1, OBJECT)
    queue.feed(1, dropping_itself())
    queue.open(2, OBJECT)
    queue.feed(2, opening_another())
    assert drain(queue) == [(3, b"urgent", True), (2, b"mine", False), (2, b"", True)]
    assert_empty(queue)


def test_blocked_streams_keep_their_place():
    queue = feeder()
    for key in range(3):
        queue.open(key, OBJECT._replace(rank=(key,)))
        queue.write(key, b"%d" % key)
        queue.finish(key)
    queue.block(0)
    assert queue.peek() == 1
    queue.unblock(0)
    assert queue.peek() == 0
    queue.block(0)
    queue.block(1)
    assert queue.next(9) == (2, b"2", True)
    assert queue.next(9) is None
    queue.write(1, b"never, after its finish")
    queue.unblock(1)
    queue.unblock(0)
    assert [key for key, _view, _fin in drain(queue)] == [0, 1]
    assert_empty(queue)


def test_shut_gates_pass_over_unopened_streams_only():
    queue = feeder()
    queue.open(1, OBJECT._replace(rank=(1,)), Gate.UNI)
    queue.open(2, OBJECT._replace(rank=(2,)), Gate.UNI)
    queue.open(3, OBJECT._replace(rank=(3,)), Gate.BIDI)
    for key in (1, 2, 3):
        queue.write(key, bytes(4))
    assert queue.next(2)[0] == 1
    queue.shut(Gate.UNI, True)
    assert queue.next(2)[0] == 1
    assert queue.next(4)[0] == 3
    assert queue.next(4) is None
    queue.shut(Gate.UNI, False)
    assert queue.next(4)[0] == 2
    queue.shut(Gate.BIDI, True)
    queue.write(3, b"open already")
    assert queue.next(40)[0] == 3


def test_open_twice_is_refused_and_unknown_keys_are_ignored():
    queue = feeder()
    queue.open(1, OBJECT)
    with pytest.raises(ValueError, match="use a new key"):
        queue.open(1, OBJECT)
    for call in (queue.wake, queue.finish, queue.drop, queue.block, queue.unblock):
        call(2)
    queue.write(2, b"x")
    queue.feed(2, iter([]))
    queue.reorder(2, OBJECT)
    assert queue.unsent(2) == 0
    assert queue.peek() is None


def test_cancelling_many_streams_leaves_no_stale_entries():
    queue = feeder()
    for key in range(10_000):
        queue.open(key, OBJECT._replace(rank=(key,)), Gate.UNI)
        queue.write(key, b"x")
    for key in range(9_999):
        queue.drop(10_000 - 1 - key)
    (level,) = queue._levels.values()
    (flow,) = level.values()
    assert sum(map(len, flow.heaps)) < 100
    queue.drop(0)
    assert_empty(queue)


def test_budget_follows_the_rate():
    assert unsent_budget(None) == unsent_budget(1e12) == 256 << 10
    assert unsent_budget(1000.0) == 64 << 10
    assert unsent_budget(8 << 20) == int((8 << 20) * 0.02)
    assert unsent_budget(None, 128 << 10) == 128 << 10


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=8),
    limit=st.integers(1, 16),
)
def test_equals_progress_together(sizes, limit):
    """Between two pieces of one flow, each other waiting flow of its level has had one."""
    queue = feeder()
    for key, size in enumerate(sizes):
        queue.open(key, OBJECT._replace(flow=key))
        queue.write(key, bytes(size))
        queue.finish(key)
    served = [key for key, _view, _fin in drain(queue, limit)]
    for key in set(served):
        turns = [n for n, other in enumerate(served) if other == key]
        for this, following in pairwise(turns):
            waiting = set(served[following:])
            assert waiting - {key} <= set(served[this + 1 : following])


class FeederMachine(RuleBasedStateMachine):
    """Any calls in any order: octets are conserved, each piece is the best, nothing remains."""

    keys = st.integers(0, 7)
    orders = st.builds(
        SendOrder,
        st.sampled_from([Tier.CONTROL, Tier.OBJECT]),
        st.sampled_from([0, 128]),
        st.just(128),
        st.integers(0, 2),
        st.tuples(st.integers(0, 3)),
    )

    def __init__(self) -> None:
        super().__init__()
        self.queue = Feeder(lambda key, code: self.ended(key))
        self.orders_now: dict[int, SendOrder] = {}
        self.waiting: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        self.blocked: set[int] = set()
        self.gated: dict[int, int] = {}
        self.is_shut: dict[int, bool] = defaultdict(bool)

    def ended(self, key: int) -> None:
        for table in (self.orders_now, self.waiting, self.gated):
            table.pop(key, None)
        self.finished.discard(key)
        self.blocked.discard(key)

    def ready(self, key: int) -> bool:
        return (
            key not in self.blocked
            and not self.is_shut[self.gated[key]]
            and bool(self.waiting[key] or key in self.finished)
        )

    @rule(key=keys, order=orders, gate=st.sampled_from(Gate))
    def open(self, key, order, gate):
        if key not in self.orders_now:
            self.queue.open(key, order, gate)
            self.orders_now[key] = order
            self.waiting[key] = bytearray()
            self.gated[key] = gate

    @rule(key=keys, data=st.binary(max_size=40))
    def write(self, key, data):
        self.queue.write(key, data[:3], memoryview(data)[3:])
        if key in self.waiting and key not in self.finished:
            self.waiting[key] += data

    @rule(key=keys)
    def finish(self, key):
        self.queue.finish(key)
        if key in self.waiting:
            self.finished.add(key)

    @rule(key=keys, order=orders)
    def reorder(self, key, order):
        self.queue.reorder(key, order)
        if key in self.orders_now:
            self.orders_now[key] = order

    @rule(key=keys)
    def drop(self, key):
        self.queue.drop(key)
        self.ended(key)

    @rule(key=keys, blocked=st.booleans())
    def block(self, key, blocked):
        (self.queue.block if blocked else self.queue.unblock)(key)
        if key in self.orders_now:
            (self.blocked.add if blocked else self.blocked.discard)(key)

    @rule(gate=st.sampled_from([Gate.UNI, Gate.BIDI]), closed=st.booleans())
    def shut(self, gate, closed):
        self.queue.shut(gate, closed)
        self.is_shut[gate] = closed

    @rule(limit=st.integers(1, 50))
    def take(self, limit):
        piece = self.queue.next(limit)
        ready = [key for key in self.waiting if self.ready(key)]
        assert (piece is None) == (not ready)
        if piece is None:
            return
        key, view, fin = piece
        order = self.orders_now[key]
        assert order[:3] == min(self.orders_now[other][:3] for other in ready)
        same_flow = [
            self.orders_now[other].rank
            for other in ready
            if self.orders_now[other][:4] == order[:4]
        ]
        assert order.rank == min(same_flow)
        assert len(view) <= limit
        assert self.waiting[key][: len(view)] == view
        del self.waiting[key][: len(view)]
        assert fin == (key in self.finished and not self.waiting[key])
        self.gated[key] = Gate.NONE
        if fin:
            self.ended(key)

    @invariant()
    def octets_are_conserved(self):
        assert self.queue.unsent() == sum(map(len, self.waiting.values()))
        for key, data in self.waiting.items():
            assert self.queue.unsent(key) == len(data)

    @precondition(lambda self: self.orders_now)
    @rule()
    def end_all(self):
        for key in list(self.orders_now):
            self.queue.drop(key)
            self.ended(key)
        assert_empty(self.queue)


TestFeederMachine = FeederMachine.TestCase
