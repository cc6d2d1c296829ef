"""A track that ends while its upstream subscription is paused: nobody waits in vain."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import Parameters
from moqt.errors import DoneCode
from moqt.publisher import Track

from .test_publishers import PAUSED, offer
from .test_relaying import ALL, end, layer, normal
from .worlds import LIVE, NAME, Desk, RelayWorld


def ask(desk: Desk, how: str) -> Any:
    """What makes a relay subscribe upstream without objects."""
    _, receiver = desk.fetch() if how == "fetch" else desk.subscribe(NAME, PAUSED)
    return receiver


@pytest.mark.parametrize("first", ["fetch", "paused"])
@pytest.mark.parametrize("asked", [LIVE, PAUSED])
def test_who_subscribes_while_another_one_asks(first: str, asked: Parameters) -> None:
    """Upstream answers with SUBSCRIBE_OK and PUBLISH_DONE at once, before it can be resumed."""
    world = RelayWorld(latency=0.01)
    track = Track(NAME)
    layer(track, 0)
    end(track)
    world.publisher(track)
    desks = world.desk(), world.desk()
    other = ask(desks[0], first)
    _, receiver = desks[1].subscribe(NAME, asked)
    world.run(1)
    assert other.info is not None
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.TRACK_ENDED
    assert normal(receiver) == (ALL[:4] if asked is LIVE else [])


@pytest.mark.parametrize("first", ["fetch", "paused"])
@pytest.mark.parametrize("after", [number / 200 for number in range(40)])
def test_who_follows_while_the_publisher_comes_back_with_the_end(first: str, after: float) -> None:
    """Whenever another one asks: nothing is missing, and the end is that of the track."""
    world = RelayWorld(latency=0.01)
    track = Track(NAME)
    before = world.publisher(track)
    _, follower = world.desk().subscribe()
    world.run(0.2)
    layer(track, 0)
    world.run(0.2)
    another = world.desk()
    before.kill()
    layer(track, 1)
    end(track)
    back = world.link_up()
    back.catalog.add(track)
    back.catalog.announce(NAME.namespace)
    back.catalog.announce_on(back.side)  # type: ignore[arg-type]
    world.run(after)
    other = ask(another, first)
    world.run(1)
    assert normal(follower) == ALL[:8]
    assert follower.end is not None
    assert follower.end[0] == DoneCode.TRACK_ENDED
    world.run(5)
    assert other.info is not None or other.error is not None


def test_who_waits_for_an_offer_to_resume_that_ends_instead() -> None:
    world = RelayWorld(latency=0.01)
    track = Track(NAME)
    offer(world, track)
    layer(track, 0)
    world.run(30)  # nobody is there: it is paused
    reader = world.desk()
    _, receiver = reader.subscribe()
    world.run(0.015)  # it is being resumed
    end(track)
    world.run(5)
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.TRACK_ENDED
    assert normal(receiver) == ALL[:4]
