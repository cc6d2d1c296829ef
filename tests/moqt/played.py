"""A world with one track, read with ``async for``: what tests of readings share."""

from __future__ import annotations

from typing import Any

import moqt
from tests.moqt.session.worlds import World

NAME = moqt.FullTrackName((b"example", b"chat"), b"text")
ALL = moqt.Parameters(fill=moqt.Parameters(location_filter=moqt.LocationFilter.since(0)))


class Asking:
    """The client of a World as a Connection: what a reading needs of one."""

    def __init__(self, world: World) -> None:
        self.session = world.client.session

    def subscribe(self, name: Any, receiver: Any, parameters: Any) -> Any:
        return self.session.subscribe(name, parameters, receiver)

    def fetch(self, name: Any, receiver: Any, parameters: Any) -> Any:
        return self.session.fetch(name, parameters, receiver)

    def subscribe_tracks(self, prefix: Any, listener: Any, parameters: Any) -> Any:
        return self.session.subscribe_tracks(prefix, parameters, listener)

    def subscribe_namespace(self, prefix: Any, listener: Any, parameters: Any) -> Any:
        return self.session.subscribe_namespace(prefix, parameters, listener)


class Played:
    """A world with one track, and the reading of it."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.track = self.world.catalog.add(moqt.Track(NAME))
        self.world.run()
        self.connection: Any = Asking(self.world)

    def subscribe(self, *parameters: moqt.Parameters, **options: Any) -> moqt.Subscription:
        made = moqt.subscribe(self.connection, NAME, *parameters, **options)
        self.world.run()
        return made

    def fetch(self, *parameters: moqt.Parameters, **options: Any) -> moqt.Fetch:
        made = moqt.fetch(self.connection, NAME, *parameters, **options)
        self.world.run()
        return made

    def put(self, group: int, *payloads: bytes, seconds: float | None = None) -> None:
        subgroup = self.track.subgroup(group)
        for number, payload in enumerate(payloads):
            subgroup.object(number, payload)
        subgroup.finish()
        self.world.run(seconds)

    def end(self) -> None:
        self.track.end()
        self.world.run()


async def read(reading: Any) -> list[tuple[int, int, bytes]]:
    """All of it, up to its good end."""
    return [(one.group, one.object, one.payload) async for one in reading]
