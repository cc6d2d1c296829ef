"""A fetch whose data stream is reset before its header: nobody can tell whose it was."""

from __future__ import annotations

import pytest

from moqt.errors import StreamReset

from .test_fetch import OBJECT, OK, ours


@pytest.mark.parametrize(
    ("fin", "reset", "limit"), [(True, False, 10), (False, True, 10), (True, True, 1)]
)
@pytest.mark.parametrize("before_the_answer", [False, True])
def test_a_stream_that_was_reset_before_its_header_is_not_waited_for(
    fin: bool, reset: bool, limit: int, before_the_answer: bool
) -> None:
    wire, request, receiver = ours()
    if reset and before_the_answer:
        wire.reset(wire.uni(b""), 0)
    wire.send(request.stream, OK, fin=fin)
    if reset and not before_the_answer:
        wire.reset(wire.uni(b""), 0)
    wire.wait(0.9 * limit)
    assert receiver.error is None
    wire.wait(0.2 * limit)
    assert isinstance(receiver.error, StreamReset)


def test_a_stream_that_another_one_was_lost_beside_may_still_come() -> None:
    wire, request, receiver = ours()
    wire.send(request.stream, OK)
    wire.reset(wire.uni(b""), 0)
    wire.reset(wire.uni(b""), 0)
    wire.wait(9)
    stream = wire.uni(bytes.fromhex("05 00"))
    wire.wait(20)
    assert receiver.error is None
    wire.send(stream, OBJECT, fin=True)
    wire.send(request.stream, fin=True)
    assert receiver.end == (0, "", True)
