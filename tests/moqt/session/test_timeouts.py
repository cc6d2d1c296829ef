"""Delivery timeouts as a publisher keeps them (draft-22 §5.2)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import write_pairs
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import (
    OBJECT_DELIVERY_TIMEOUT,
    SUBGROUP_DELIVERY_TIMEOUT,
    TrackProperties,
)
from moqt.errors import StreamCode
from moqt.session.config import SessionConfig
from moqt.track import Track

from .wire import NAME, Wire, leftovers

LATE = StreamCode.DELIVERY_TIMEOUT


class Served:
    """A track of ours with one subscriber whose stream is pulled when the test says so."""

    def __init__(
        self, track: TrackProperties | None = None, asked: Parameters = NO_PARAMETERS
    ) -> None:
        self.wire = Wire(config=SessionConfig(setup_timeout=1e9))
        self.request = self.wire.bidi(m.Subscribe(0, NAME, asked))
        self.track = Track(NAME, track or TrackProperties())
        self.track.attach(self.wire.handler.requests[0])
        self.wire.now += 1000  # what the application does is long after the last event

    @property
    def streams(self) -> list[int]:
        return self.wire.opened(unidirectional=True)[1:]

    def end(self, stream: int) -> Any:
        return self.wire.data(stream)[1]


@pytest.mark.rule("M124", "M126", "M127")
@pytest.mark.parametrize(
    ("track", "asked", "seconds"),
    [
        (None, None, None),
        (0, 0, None),
        (2000, None, 2),
        (None, 3000, 3),
        (2000, 3000, 2),
        (3000, 2000, 2),
        (0, 3000, 3),
        (2000, 0, 2),
    ],
)
@pytest.mark.parametrize("kind", ["object", "subgroup"])
def test_the_smaller_of_both(
    kind: str, track: int | None, asked: int | None, seconds: int | None
) -> None:
    name = f"{kind}_delivery_timeout"
    served = Served(TrackProperties(**{name: track}), Parameters(**{name: asked}))  # type: ignore[arg-type]
    writer = served.track.subgroup(0)
    writer.object(0, b"x")
    writer.finish()
    (stream,) = served.streams
    if seconds is None:
        served.wire.wait(10_000)
        assert served.wire.pulled(stream)[1] == "fin"
        return
    served.wire.wait(seconds - 0.1)
    assert served.end(stream) is None
    served.wire.wait(0.2)
    assert served.end(stream) == LATE
    assert not leftovers(served.wire.session).get("timers")


@pytest.mark.rule("M126")
def test_each_object_has_its_own_time() -> None:
    served = Served(asked=Parameters(object_delivery_timeout=1000))
    writer = served.track.subgroup(0)
    writer.object(0, b"a")
    (stream,) = served.streams
    served.wire.wait(0.6)
    served.wire.pulled(stream)
    writer.object(1, b"b")
    served.wire.wait(0.6)  # the first would be late by now, and has long gone
    assert served.end(stream) is None
    served.wire.wait(0.5)
    assert served.end(stream) == LATE


@pytest.mark.rule("M128")
def test_no_second_stream_for_what_was_late() -> None:
    served = Served(asked=Parameters(object_delivery_timeout=1000))
    writer = served.track.subgroup(0)
    writer.object(0, b"a")
    served.wire.wait(1.1)
    writer.object(1, b"b")
    writer.finish()
    assert len(served.streams) == 1
    served.track.subgroup(0, 1).object(2, b"c")
    assert len(served.streams) == 2


@pytest.mark.rule("M133", "M134")
def test_a_subgroups_time_begins_when_all_of_it_is_known() -> None:
    served = Served(asked=Parameters(subgroup_delivery_timeout=1000))
    writer = served.track.subgroup(0)
    writer.object(0, b"a")
    (stream,) = served.streams
    served.wire.wait(50)
    assert served.end(stream) is None
    writer.finish()
    served.wire.wait(0.9)
    assert served.end(stream) is None
    served.wire.wait(0.2)
    assert served.end(stream) == LATE


@pytest.mark.rule("M133")
def test_what_is_sent_in_time_is_finished() -> None:
    served = Served(asked=Parameters(subgroup_delivery_timeout=1000, object_delivery_timeout=500))
    writer = served.track.subgroup(0)
    writer.object(0, b"a")
    writer.finish()
    (stream,) = served.streams
    assert served.wire.pulled(stream)[1] == "fin"
    assert not leftovers(served.wire.session).get("timers")
    served.wire.wait(10)
    assert served.end(stream) == "fin"


@pytest.mark.rule("M125", "M124")
@pytest.mark.parametrize("kind", [OBJECT_DELIVERY_TIMEOUT, SUBGROUP_DELIVERY_TIMEOUT])
@pytest.mark.parametrize(("first", "seconds"), [(True, 4), (False, 2)])
def test_only_the_first_object_speaks_for_its_subgroup(
    kind: int, first: bool, seconds: int
) -> None:
    both = TrackProperties(object_delivery_timeout=2000, subgroup_delivery_timeout=2000)
    served = Served(both)
    said = write_pairs(sorted([(OBJECT_DELIVERY_TIMEOUT, 4000), (SUBGROUP_DELIVERY_TIMEOUT, 4000)]))
    writer = served.track.subgroup(0, has_properties=True)
    writer.object(0, b"a", properties=said if first else b"")
    (stream,) = served.streams
    if kind == SUBGROUP_DELIVERY_TIMEOUT:
        served.wire.pulled(stream)
        writer.finish()
    else:
        writer.object(1, b"b", properties=b"" if first else said)
    served.wire.wait(seconds - 0.1)
    assert served.end(stream) is None
    served.wire.wait(0.2)
    assert served.end(stream) == LATE


@pytest.mark.rule("M124")
def test_an_update_changes_the_time_of_what_follows() -> None:
    served = Served(asked=Parameters(object_delivery_timeout=1000))
    wire = served.wire
    wire.send(served.request, m.RequestUpdate(2, Parameters(object_delivery_timeout=5000)))
    served.track.subgroup(0).object(0, b"a")
    (stream,) = served.streams
    wire.wait(4)
    assert served.end(stream) is None
    wire.send(served.request, m.RequestUpdate(4, NO_PARAMETERS))  # what is not named stays
    served.track.subgroup(1).object(0, b"a")
    wire.wait(2)
    assert [served.end(stream) for stream in served.streams] == [LATE, None]
    wire.wait(4)
    assert [served.end(stream) for stream in served.streams] == [LATE, LATE]


def test_a_fetch_knows_no_timeout() -> None:
    wire = Wire()
    track = Track(NAME, TrackProperties(object_delivery_timeout=1, subgroup_delivery_timeout=1))
    writer = track.subgroup(0)
    writer.object(0, b"a")
    writer.finish()
    wire.bidi(m.Fetch(0, NAME))
    wire.handler.requests[0].accept(track)
    (stream,) = wire.opened(unidirectional=True)[1:]
    wire.wait(100)
    assert wire.pulled(stream)[1] == "fin"


def test_timers_end_with_their_subscription() -> None:
    both = TrackProperties(object_delivery_timeout=2000, subgroup_delivery_timeout=2000)
    served = Served(both)
    writer = served.track.subgroup(0)
    for number in range(10):
        writer.object(number, b"a")
    writer.finish()
    served.wire.stop(served.request)
    assert not leftovers(served.wire.session).get("timers")
