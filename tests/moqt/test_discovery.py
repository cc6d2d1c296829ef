"""Namespaces and tracks under a prefix, read with ``async for``: bounded, ended by name."""

from __future__ import annotations

from typing import Any

import pytest

import moqt
from moqt.errors import MoqtError, TooFarBehind
from moqt.reading import ITEM_COST
from moqt.session.ports import Unserved
from tests.moqt.played import NAME, Played, read
from tests.moqt.session.worlds import World

OTHER = moqt.FullTrackName((b"example", b"chat"), b"voice")


async def test_namespaces_come_and_go() -> None:
    played = Played()
    catalog = played.world.catalog
    catalog.announce((b"example", b"one"))
    listing = moqt.namespaces(played.connection, (b"example",))
    played.world.run(0.1)
    await listing.accepted()
    catalog.announce((b"example", b"two"))
    catalog.withdraw((b"example", b"one"))
    played.world.run(0.1)
    async with listing:
        heard = [await anext(listing) for _ in range(3)]
    assert heard == [
        (moqt.Change.FOUND, (b"example", b"one")),
        (moqt.Change.FOUND, (b"example", b"two")),
        (moqt.Change.GONE, (b"example", b"one")),
    ]
    assert not [one async for one in listing]


async def test_namespaces_nobody_reads_are_bounded() -> None:
    played = Played()
    listing = moqt.namespaces(played.connection, (b"n",), limit=10 * ITEM_COST)
    played.world.run(0.1)
    for _ in range(20):
        played.world.catalog.announce((b"n", b"flapping"))
        played.world.catalog.withdraw((b"n", b"flapping"))
        played.world.run(0.1)
    assert await anext(listing) == (moqt.Change.FOUND, (b"n", b"flapping"))
    assert listing.buffered < 10 * ITEM_COST
    with pytest.raises(TooFarBehind):
        [one async for one in listing]
    assert listing.buffered == 0


async def test_namespaces_refused() -> None:
    played = Played(World(server_handler=Unserved()))
    with pytest.raises(MoqtError, match="NOT_SUPPORTED"):
        await anext(moqt_run(played, moqt.namespaces(played.connection)))


def moqt_run(played: Played, made: Any) -> Any:
    """``made`` once the peer has answered."""
    played.world.run(0.1)
    return made


# --------------------------------------------------------------------------------------- tracks


def refusals(played: Played) -> dict[str, int]:
    """How often the publisher has heard which refusal."""
    return dict(played.world.server.session.counters().received.refused)


async def test_tracks_are_offered_now_and_later_and_read_like_any_other() -> None:
    played = Played()
    offers = moqt_run(played, moqt.tracks(played.connection, (b"example",)))
    await offers.accepted()
    later = played.world.catalog.add(moqt.Track(OTHER))
    played.world.run(0.1)
    first, second = await anext(offers), await anext(offers)
    assert [first.name, second.name] == [NAME, OTHER]
    subscription = second.accept()
    first.refuse()
    played.world.run(0.1)
    offers.cancel()
    writer = later.subgroup(0)
    writer.object(0, b"heard")
    writer.finish()
    later.end()
    played.world.run(0.1)
    assert await read(subscription) == [(0, 0, b"heard")]
    assert await read(offers) == []
    assert not played.world.client.leftovers()


async def test_offers_that_nobody_reads_are_refused_with_their_reading() -> None:
    played = Played()
    async with moqt_run(played, moqt.tracks(played.connection)) as offers:
        assert offers.buffered == ITEM_COST + sum(map(len, NAME.namespace)) + len(NAME.name)
    played.world.run(0.1)
    assert refusals(played) == {"UNINTERESTED": 1}
    assert not played.world.client.leftovers()


async def test_offers_beyond_the_limit_are_refused_and_end_it() -> None:
    played = Played()
    offers = moqt_run(played, moqt.tracks(played.connection, limit=ITEM_COST + 50))
    played.world.catalog.add(moqt.Track(OTHER))
    played.world.run(0.1)
    assert refusals(played) == {"EXCESSIVE_LOAD": 1}
    offer = await anext(offers)
    assert offer.name == NAME
    with pytest.raises(TooFarBehind):
        await anext(offers)
    offer.refuse()
    played.world.run(0.1)
    assert not played.world.client.leftovers()


async def test_a_skipped_track_can_be_subscribed_to() -> None:
    class Skipping(Unserved):
        def on_subscribe_tracks(self, request: Any) -> None:
            request.accept()
            request.skip(NAME)

        def on_subscribe(self, request: Any) -> None:
            track.attach(request)

    track = moqt.Track(NAME)
    played = Played(World(server_handler=Skipping()))
    offers = moqt_run(played, moqt.tracks(played.connection))
    offer = await anext(offers)
    assert (offer.name, offer.request) == (NAME, None)
    offer.refuse()  # nothing to refuse
    subscription = moqt_run(played, offer.accept())
    track.subgroup(0).object(0, b"asked for")
    played.world.run(0.1)
    assert (await anext(subscription)).payload == b"asked for"


async def test_tracks_refused() -> None:
    played = Played(World(server_handler=Unserved()))
    with pytest.raises(MoqtError, match="NOT_SUPPORTED"):
        await anext(moqt_run(played, moqt.tracks(played.connection)))


async def test_what_is_wanted_of_tracks_is_updated() -> None:
    played = Played()
    offers = moqt_run(played, moqt.tracks(played.connection, (b"elsewhere",)))
    offers.update(moqt.Parameters(track_namespace_prefix=(b"example",)))
    played.world.run(0.1)
    assert (await anext(offers)).name == NAME
