"""Data streams that are reset before anyone knows whose they are."""

from __future__ import annotations

import pytest

from .test_subscribe_wire import subscribed

HEADER = "54 07 0c 01 64"


@pytest.mark.parametrize(
    ("octets", "lost"),
    [
        pytest.param("", 1, id="nothing"),
        pytest.param("54 07", 1, id="part-of-its-header"),
        pytest.param("54 09 0c 01 64 00 01 41", 1, id="an-alias-that-nobody-has-yet"),
        pytest.param(HEADER + "00 01 41", 0, id="its-owner-hears-of-it"),
    ],
)
def test_a_stream_whose_owner_is_unknown_is_told_as_lost(octets: str, lost: int) -> None:
    wire, _, receiver = subscribed()
    told: list[None] = []
    wire.session.when_stream_lost(lambda: told.append(None))
    stream = wire.uni(bytes.fromhex(octets))
    wire.reset(stream)
    assert len(told) == lost
    assert len(receiver.streams) == 1 - lost
    assert wire.fault is None
