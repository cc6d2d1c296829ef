"""Padding of ours: zeros, behind everything else (draft-22 §11.5)."""

from __future__ import annotations

import pytest

from moqt.codec.params import NO_PARAMETERS
from moqt.errors import Misuse, StreamCode
from moqt.publisher import Track
from transport.api import SendOrder, Tier

from .wire import NAME, Wire, leftovers
from .worlds import Receiver, World

TYPE = bytes.fromhex("f0132b3e28")
DATAGRAM_TYPE = bytes.fromhex("f0132b3e29")


@pytest.mark.rule("M461")
@pytest.mark.parametrize("octets", [0, 1, 16 << 10, (16 << 10) + 1, 100_000])
def test_a_padding_stream_is_zeros(octets: int) -> None:
    wire = Wire()
    wire.session.padding(octets)
    stream = wire.opened(unidirectional=True)[-1]
    assert wire.pulled(stream) == (TYPE + bytes(octets), "fin")
    assert not leftovers(wire.session)


@pytest.mark.rule("M463")
def test_a_padding_datagram_is_zeros() -> None:
    wire = Wire()
    assert wire.session.padding_datagram(100)
    ((_, octets),) = wire.calls("send_datagram")
    assert octets == DATAGRAM_TYPE + bytes(100)
    assert not wire.session.padding_datagram(1 << 40)
    assert len(wire.calls("send_datagram")) == 1


@pytest.mark.rule("M460")
def test_padding_goes_last() -> None:
    wire = Wire()
    wire.session.padding(1)
    (order,) = (call[2] for call in wire.calls("open") if call[2].tier == Tier.PADDING)
    assert order > SendOrder(Tier.OBJECT, 255, 255, 1 << 62, (1 << 62,))


@pytest.mark.rule("M460")
def test_objects_pass_padding_that_began_before_them() -> None:
    world = World(rate=1_000_000)
    track = world.catalog.add(Track(NAME))
    receiver = Receiver()
    world.run()
    world.client.session.subscribe(NAME, NO_PARAMETERS, receiver)
    world.run()
    padding = world.server.session.padding(1 << 40)
    world.run(0.5)
    writer = track.subgroup(0)
    writer.object(0, bytes(100_000))
    writer.finish()
    world.run(1)
    assert receiver.locations == [(0, 0)]
    padding.cancel()
    world.run()
    assert world.client.ended is None


def test_either_side_ends_it() -> None:
    wire = Wire()
    padding = wire.session.padding(100)
    padding.cancel()
    padding.cancel()
    wire.session.padding(100)
    ours, theirs = wire.opened(unidirectional=True)[1:]
    wire.stop(theirs, 7)
    assert [wire.data(one)[1] for one in (ours, theirs)] == [StreamCode.CANCELLED, 7]
    assert not leftovers(wire.session)


def test_misuse_is_said() -> None:
    early = Wire(options=None)
    for pad in (early.session.padding, early.session.padding_datagram):
        with pytest.raises(Misuse, match="both SETUPs"):
            pad(1)
    wire = Wire()
    for pad in (wire.session.padding, wire.session.padding_datagram):
        with pytest.raises(Misuse, match="0 or more"):
            pad(-1)
