"""GOAWAY of a hostile or careless server: what a session that moves keeps of it."""

from __future__ import annotations

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
