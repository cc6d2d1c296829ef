"""GOAWAY of a hostile or careless server: what a session that moves keeps of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from moqt.codec.params import Parameters
from moqt.codec.properties import TrackProperties
from moqt.migration import FIRST_REST, LONGEST_REST
from moqt.model import Location, LocationFilter
from moqt.seam import Leg
from moqt.session.ports import TrackInfo
from tests.moqt.session.worlds import Receiver
from tests.moqt.test_migration import LIVE, NAME, Two, publish, two

__all__ = ["two"]


async def test_a_session_that_one_subscription_moved_to_is_closed_with_the_rest(
    two: Two,
) -> None:
    receiver = Receiver()
    publish(two.track, range(1))
    subscription = two.roamer.subscribe(NAME, receiver, LIVE)
    await two.until(lambda: receiver.info is not None)
    two.roamer.move_one(subscription, two.there)
    await two.until(lambda: subscription.stays_on(subscription._leg.connection))
    await two.until(lambda: subscription._leg.connection is not two.roamer.connection)
    await two.until(lambda: two.second.connections)
    await two.until(lambda: not two.roamer._tasks)
    await two.roamer.close()
    await two.until(lambda: not two.second.connections)


class _Asked:
    """A session that only remembers what was fetched on it, and by whom."""

    def __init__(self) -> None:
        self.fetches: list[tuple[Any, LocationFilter]] = []

    def subscribe(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace()

    def fetch(self, _: object, receiver: Any, parameters: Parameters) -> None:
        assert parameters.location_filter is not None
        self.fetches.append((receiver, parameters.location_filter))


def test_streams_that_are_reset_one_after_another_cost_one_fetch_at_a_time() -> None:
    asyncio.run(_reset_in_a_row())


async def _reset_in_a_row() -> None:
    session, owner = _Asked(), SimpleNamespace(name=NAME, accepted=lambda _: None)
    leg = Leg(owner, session, LIVE, late=True)  # type: ignore[arg-type]
    leg.accepted(TrackInfo(TrackProperties(), Location(999, 0)))
    for group in range(1000):
        leg.reset(group)
    assert [wanted for _, wanted in session.fetches] == [LocationFilter.groups(0, 0)]
    session.fetches[0][0].done(0, "", True)
    assert session.fetches[1][1] == LocationFilter.groups(1, 999)
    session.fetches[1][0].done(0, "", True)
    assert len(session.fetches) == 2


async def test_a_server_that_sends_away_again_and_again_is_followed_with_a_rest(two: Two) -> None:
    rests = [two.roamer._pause() for _ in range(10)]
    assert rests[:4] == [0.0, FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST]
    assert rests[-1] == LONGEST_REST
    two.roamer._moved -= 2 * LONGEST_REST
    assert two.roamer._pause() == 0.0
