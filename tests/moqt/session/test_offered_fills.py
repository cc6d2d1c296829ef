"""Fills that a SUBSCRIBE_TRACKS asks for with the tracks it is offered: found by fuzzing."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import Parameters
from moqt.errors import RequestCode, StreamCode
from moqt.model import FullTrackName, Location, LocationFilter

from .wire import NAME, Wire, leftovers
from .worlds import Receiver

FILL = Parameters(fill=Parameters(location_filter=LocationFilter.since(0)))
#: A fetch stream of request 0 with one object of one octet.
STREAM = bytes.fromhex("05 00 1c 0a 00 80 01 41")


class Offers:
    """A TracksListener that keeps what it is offered."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def accepted(self) -> None:
        """REQUEST_OK."""

    def published(self, request: Any) -> None:
        """An offer."""
        self.requests.append(request)

    def skipped(self, name: FullTrackName) -> None:
        """Not offered."""

    def ended(self, error: Any) -> None:
        """No more."""


def offered() -> tuple[Wire, int, Any]:
    """A PUBLISH that a SUBSCRIBE_TRACKS with a fill has brought, not yet answered."""
    wire, offers = Wire(), Offers()
    tracks = wire.session.subscribe_tracks((b"live",), FILL, offers)
    wire.send(tracks.stream, m.RequestOk())
    stream = wire.bidi(m.Publish(wire.id(), NAME, 7, Parameters(largest_object=Location(12, 3))))
    (request,) = offers.requests
    return wire, stream, request


def test_a_fill_stream_before_our_answer_is_stopped() -> None:
    wire, _, request = offered()
    data = wire.uni(STREAM)
    assert wire.fault is None
    assert wire.stopped(data) == StreamCode.CANCELLED
    receiver = Receiver()
    request.accept(receiver)
    wire.uni(STREAM, fin=True)
    assert [data for _, data in receiver.objects] == [b"A"]
    wire.lose()


@pytest.mark.parametrize("how", ["refused", "reset", "fin", "cancelled"])
def test_an_offer_that_ends_awaits_no_fill(how: str) -> None:
    wire, stream, request = offered()
    if how == "refused":
        request.refuse(RequestCode.UNINTERESTED)
        wire.send(stream, m.PublishDone(0, 0), fin=True)
    elif how == "cancelled":
        request.accept(Receiver())
        request.cancel()
        wire.reset(stream)
    elif how == "reset":
        wire.reset(stream)
    else:
        wire.send(stream, fin=True)
    assert wire.fault is None
    assert "fetches" not in leftovers(wire.session)
    assert wire.stopped(wire.uni(STREAM)) == StreamCode.CANCELLED
    wire.lose()
