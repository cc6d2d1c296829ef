"""Handles and QUIC ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transport.streams import UNBOUND, StreamTable


def test_ours_and_theirs():
    table = StreamTable(is_client=True)
    ours = table.open(unidirectional=False)
    assert (ours.handle, ours.wire, ours.send_open, ours.recv_open) == (0, UNBOUND, True, True)
    table.bind(ours, 0)
    assert table.by_wire[0] is ours
    assert table.accept(0) is None, "an id of ours is never new"
    theirs = table.accept(3)
    assert (theirs.unidirectional, theirs.send_open, theirs.recv_open) == (True, False, True)
    assert table.end_recv(theirs)
    assert table.accept(3) is None, "ended streams do not come back"
    assert not table.end_send(ours)
    assert table.end_recv(ours)
    assert len(table) == 0
    assert not table.by_wire


def test_one_half_of_ours_that_never_opened():
    table = StreamTable(is_client=False)
    stream = table.open(unidirectional=True)
    assert not stream.recv_open
    assert table.end_send(stream)
    assert len(table) == 0


def test_clear():
    table = StreamTable(is_client=False)
    table.bind(table.open(unidirectional=True), 3)
    table.accept(8)
    table.clear()
    assert len(table) == 0
    assert table.open(unidirectional=True).handle == 2


@given(st.permutations(range(8)), st.booleans(), st.booleans())
def test_peers_ids_in_any_order_are_new_once(order, is_client, unidirectional):
    table = StreamTable(is_client=is_client)
    kind = (1 if is_client else 0) | (2 if unidirectional else 0)
    for number in order:
        stream = table.accept(number * 4 + kind)
        assert stream is not None
        assert table.accept(number * 4 + kind) is None
        table.end_send(stream)
        table.end_recv(stream)
    assert all(table.accept(number * 4 + kind) is None for number in order)
    assert not table._skipped
    assert len(table) == 0
