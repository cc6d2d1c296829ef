"""Spans against a plain set of places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moqt.model import MAX_VI64, Location
from moqt.relay.spans import MAX_PLACE, Spans, last_of, location, place

SIZE = 24
Change = tuple[bool, int, int]
changes = st.lists(
    st.tuples(st.booleans(), st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=30
)


def made(steps: list[Change]) -> tuple[Spans, set[int]]:
    spans, model = Spans(), set[int]()
    for taken_in, first, last in steps:
        if taken_in:
            spans.add(first, last)
            model |= set(range(first, last + 1))
        else:
            spans.remove(first, last)
            model -= set(range(first, last + 1))
    return spans, model


def runs(places: list[int]) -> list[tuple[int, int]]:
    """Intervals of sorted places."""
    found: list[tuple[int, int]] = []
    for at in places:
        if found and found[-1][1] == at - 1:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


@given(changes)
def test_intervals_are_those_of_the_set(steps: list[Change]) -> None:
    spans, model = made(steps)
    assert list(spans) == runs(sorted(model))
    assert len(spans) == len(runs(sorted(model)))


@given(changes, st.integers(0, SIZE - 1))
def test_questions_about_a_place(steps: list[Change], at: int) -> None:
    spans, model = made(steps)
    assert spans.holds(at) is (at in model)
    until = since = at
    while until in model:
        until += 1
    while since in model:
        since -= 1
    assert spans.until(at) == until - 1
    assert spans.since(at) == since + 1
    before = at
    while before not in model and before > 0 and before - 1 not in model:
        before -= 1
    assert spans.gap_before(at) == (at + 1 if at in model else before)


@given(changes, st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))
def test_questions_about_a_range(steps: list[Change], first: int, last: int) -> None:
    spans, model = made(steps)
    lacking = runs([at for at in range(first, last + 1) if at not in model])
    assert spans.missing(first, last) == lacking
    assert spans.covers(first, last) is (not lacking)
    assert spans.gap(first, last) == (lacking[0] if lacking else None)


def test_groups_join_where_one_ends_and_the_next_begins() -> None:
    spans = Spans()
    spans.add(place((3, 5)), last_of(3))
    spans.add(place((4, 0)), place((4, 2)))
    assert list(spans) == [(place((3, 5)), place((4, 2)))]


def test_places_order_like_locations_to_the_last() -> None:
    at = Location(7, MAX_VI64)
    assert location(place(at)) == at
    assert place(at) + 1 == place((8, 0))
    assert last_of(7) == place(at)
    assert place((MAX_VI64, MAX_VI64)) == MAX_PLACE


def test_cleared() -> None:
    spans = Spans()
    spans.add(0, MAX_PLACE)
    spans.clear()
    assert list(spans) == []
    assert spans.missing(2, 3) == [(2, 3)]
