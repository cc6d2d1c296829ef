"""The small parts of a session: request ids, timers, stream codes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import SessionCode, SessionFault, StreamCode
from moqt.session.checks import stream_code
from moqt.session.request_ids import RequestIds
from moqt.session.timers import Timers

# -- request ids ---------------------------------------------------------------------------------


@given(st.permutations(range(0, 40, 2)), st.integers(0, 100))
def test_each_id_once_in_any_order(order: list[int], again: int) -> None:
    ids = RequestIds(is_client=False, max_holes=100)
    for value in order:
        ids.take(value)
    assert ids.holes == 0
    if again < 40 or again % 2:
        with pytest.raises(SessionFault) as fault:
            ids.take(again)
        assert fault.value.code is SessionCode.INVALID_REQUEST_ID
    else:
        ids.take(again)
        assert ids.holes == (again > 40)


@given(st.lists(st.integers(0, 30).map(lambda value: 2 * value), max_size=60))
def test_ids_are_a_set(values: list[int]) -> None:
    ids = RequestIds(is_client=False, max_holes=100)
    seen: set[int] = set()
    for value in values:
        if value in seen:
            with pytest.raises(SessionFault):
                ids.take(value)
        else:
            ids.take(value)
            seen.add(value)
    unused = [value for value in range(0, max(seen, default=0), 2) if value not in seen]
    runs = sum(value - 2 not in unused for value in unused)
    assert ids.holes == runs


def test_holes_are_bounded_and_the_oldest_count_as_used() -> None:
    ids = RequestIds(is_client=True, max_holes=2)
    for value in (3, 7, 11, (1 << 63) + 1):
        ids.take(value)
    assert ids.holes == 2
    for gone in (1, 5):
        with pytest.raises(SessionFault):
            ids.take(gone)
    ids.take(9)
    ids.take(13)
    assert ids.upcoming == 0


# -- timers --------------------------------------------------------------------------------------


class Held:
    """Something a timer must not keep alive."""

    def call(self) -> None:
        """Nothing."""


def test_a_cancelled_timer_pins_nothing() -> None:
    timers = Timers()
    held = Held()
    alive = weakref.ref(held)
    timer = timers.call_at(10.0, held.call)
    del held
    gc.collect()
    assert alive() is not None
    timer.cancel()
    timer.cancel()
    gc.collect()
    assert alive() is None
    assert len(timers) == 0
    assert timers.next_deadline() is None


def test_timers_run_in_order_and_once() -> None:
    timers = Timers()
    ran: list[Any] = []
    later = timers.call_at(3.0, lambda: ran.append(3))
    timers.call_at(1.0, lambda: ran.append(1))
    timers.call_at(1.0, lambda: ran.append("1b"))
    timers.call_at(2.0, lambda: timers.call_at(2.5, lambda: ran.append(2.5)) and None)
    assert timers.next_deadline() == 1.0
    timers.run(0.9)
    assert ran == []
    timers.run(2.5)
    assert ran == [1, "1b", 2.5]
    later.cancel()
    timers.run(99)
    assert ran == [1, "1b", 2.5]
    assert len(timers) == 0


def test_a_delay_from_outside_an_event_begins_with_the_tick() -> None:
    timers = Timers()
    ran: list[float] = []
    timer = timers.call_after_tick(100.0, 5.0, lambda: ran.append(1))
    assert timers.next_deadline() == 100.0  # due at once
    timers.run(1000.0)
    assert timers.next_deadline() == 1005.0
    timers.run(1004.9)
    assert ran == []
    timers.run(1005.0)
    assert ran == [1]
    timer.cancel()
    assert len(timers) == 0


def test_many_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    keep = timers.call_at(1e9, lambda: None)
    for _ in range(100_000):
        timers.call_at(5.0, lambda: None).cancel()
    assert len(timers._heap) < 200
    assert len(timers) == 1
    keep.cancel()
    assert timers.next_deadline() is None


def test_a_nearer_deadline_is_told() -> None:
    timers = Timers()
    told: list[float | None] = []
    timers.on_change = lambda: told.append(timers.next_deadline())
    timers.call_at(5.0, lambda: None)
    timers.call_at(9.0, lambda: None)
    first = timers.call_at(1.0, lambda: None)
    assert told == [5.0, 1.0]
    first.cancel()
    timers.clear()
    assert timers.next_deadline() is None


# -- stream codes --------------------------------------------------------------------------------


@pytest.mark.rule("M483", "M507")
def test_codes_of_streams() -> None:
    for code in StreamCode:
        assert stream_code(code) is code or stream_code(code) == code
        # draft-ietf-webtrans-http3: first + code + code / 0x1e
        assert stream_code(0x52E4A40FA8DB + code + code // 0x1E) == code
    for unknown in (0x8, 0x9D, 0xFFFF, 0x52E4A40FA8DA, 0x52E4A40FA8E3, (1 << 62) - 1):
        assert stream_code(unknown) == StreamCode.INTERNAL_ERROR
    assert stream_code(0x52E4A40FA8E2) == StreamCode.EXPIRED_AUTH_TOKEN  # as a browser sends 7
