"""What a consumer tells of sources that failed, and of how it got what it got."""

from __future__ import annotations

from typing import Any

import pytest

from kvcs.errors import IncompletePublication, UnknownPublication, most_telling_first
from moqt.errors import RequestCode, RequestRefused
from moqt.model import GroupOrder
from moqt.publisher import CatalogHandler, ServingLimits
from tests.kvcs.endpoints import Cache, World, check
from tests.kvcs.forgery import Forgery
from tests.kvcs.test_through_relays import publisher, relay

pytestmark = pytest.mark.e2e

DENIED = "UNAUTHORIZED: not authorized"


def test_who_must_do_something_comes_first() -> None:
    told = ("a: TIMEOUT: late", f"b: {DENIED}", "c: EXPIRED_AUTH_TOKEN: the token has expired")
    assert most_telling_first(told) == (told[1], told[2], told[0])
    error = IncompletePublication("2 of 3 are missing", None, told)
    assert error.causes == (told[1], told[2], told[0])
    assert str(error) == "; ".join(("2 of 3 are missing", *error.causes))
    assert error.summary == "2 of 3 are missing"


class Refusing(CatalogHandler):
    """Answers every question with one code."""

    code = RequestCode.DOES_NOT_EXIST
    reason = "no such track"

    def _refuse(self, request: Any) -> None:
        raise RequestRefused(self.code, self.reason)

    on_subscribe = on_fetch = on_subscribe_namespace = _refuse


class Denying(Refusing):
    """A relay for which we have no token."""

    code = RequestCode.UNAUTHORIZED
    reason = "not authorized"


async def urls(world: World) -> tuple[list[str], Forgery]:
    """A relay that knows nothing, then one that refuses us."""
    found = []
    for kind in (Refusing, Denying):
        forgery = Forgery(Cache())
        made = await forgery.serve(
            world, lambda c, kind=kind, f=forgery: kind(f.catalog, c, ServingLimits())
        )
        found.append(made)
    return found, forgery


async def test_no_manifest_anywhere(world: World) -> None:
    places, forgery = await urls(world)
    consumer = await world.consumer(*places)
    with pytest.raises(UnknownPublication) as caught:
        await consumer.retrieve(forgery.name, timeout=1)
    told = str(caught.value)
    assert 0 < told.index(DENIED) < told.index("DOES_NOT_EXIST")


async def test_nothing_found(world: World) -> None:
    """Before all guesses, too."""
    places, forgery = await urls(world)
    consumer = await world.consumer()
    for place in places:
        await consumer.connect(place, tls=world.client_tls)
    with pytest.raises(UnknownPublication) as caught:
        await consumer.discover(forgery.cache.descriptor, forgery.cache.tokens)
    told = str(caught.value)
    assert 0 < told.index(DENIED) < told.index("it may not be published")
    assert told.index(DENIED) < told.index("DOES_NOT_EXIST")


class Past(CatalogHandler):
    """A relay whose publisher is gone: what it has it gives to FETCH alone."""

    def on_subscribe(self, request: Any) -> None:
        raise RequestRefused(RequestCode.DOES_NOT_EXIST, "no such track")

    def on_fetch(self, request: Any) -> None:
        if request.name.name != b"manifest":
            super().on_fetch(request)
            return
        place = request.parameters.location_filter
        orders.append((place.type, request.parameters.group_order))
        if len(orders) == 1:  # nothing is newer than the marker of the end
            raise RequestRefused(RequestCode.INVALID_RANGE, "nothing there")
        super().on_fetch(request)


orders: list[tuple[object, object]] = []


async def test_what_was_fetched_is_not_called_live(world: World) -> None:
    """The newest of several manifests counts, whatever earlier ones said to come."""
    orders.clear()
    forgery = Forgery(Cache())
    url = await forgery.serve(world, lambda c: Past(forgery.catalog, c, ServingLimits()))
    forgery.version()
    for layer in range(forgery.cache.layers):
        forgery.layer(layer)
        forgery.version()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name)
    await check(retrieval, forgery.cache)
    report = retrieval.report()
    assert (report.mode, report.setbacks) == ("completed", ())
    assert [order for _, order in orders] == [GroupOrder.ASCENDING, GroupOrder.DESCENDING]


async def test_what_could_only_be_fetched_is_not_called_live(world: World) -> None:
    """Not even when it was to be."""
    orders.clear()
    forgery = Forgery(Cache())
    url = await forgery.serve(world, lambda c: Past(forgery.catalog, c, ServingLimits()))
    forgery.all()
    retrieval = await (await world.consumer(url)).retrieve(forgery.name, mode="live")
    await check(retrieval, forgery.cache)
    assert retrieval.report().mode == "completed"


@pytest.mark.parametrize("depth", [1, 2])
async def test_what_a_relay_kept_is_not_called_live(world: World, depth: int) -> None:
    """Its publisher is gone; the newest thing of the manifest's track is the marker of its end."""
    cache = Cache(layers=8)
    origin, url = await relay(world)
    made = await publisher(world, url)
    for _ in range(depth - 1):
        edge, url = await relay(world, url)
        upstreams = edge.relay.upstreams
        await world.until(lambda known=upstreams: known)
    publication = await cache.publish(made)
    first = await (await world.consumer(url)).retrieve(publication.name)
    await check(first, cache)
    await made.close()
    await world.until(lambda: not len(origin.relay.directory))
    retrieval = await (await world.consumer(url)).retrieve(publication.name)
    await check(retrieval, cache)
    report = retrieval.report()
    assert (report.mode, report.setbacks) == ("completed", ())
