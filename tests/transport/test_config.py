"""Settings that cannot work are refused."""

from __future__ import annotations

import dataclasses

import pytest

from transport.config import LARGEST_DATAGRAM, QuicOptions


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_datagram_size", 1199, "choose 1200 to 16384"),
        ("max_datagram_size", LARGEST_DATAGRAM + 1, "choose 1200 to 16384"),
        ("idle_timeout", 0, "above 0"),
        ("peer_timeout", 0, "above 0"),
        ("connect_timeout", -1, "above 0"),
        ("unsent_budget", 0, "above 0"),
        ("piece", 0, "above 0"),
        ("hot_streams", 0, "above 0"),
    ],
)
def test_refused(name, value, words):
    with pytest.raises(ValueError, match=words) as caught:
        QuicOptions(**{name: value})
    assert name in str(caught.value)


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        QuicOptions().piece = 1
    assert QuicOptions(max_datagram_size=1200).max_datagram_size == 1200
