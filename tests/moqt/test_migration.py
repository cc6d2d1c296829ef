"""Sessions that move: over real sockets from one server to another, nothing lost or doubled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import MoqtError, SessionCode
from moqt.migration import Roamer, roam
from moqt.model import FullTrackName, Location, LocationFilter, ObjectHead
from moqt.publisher import Catalog
from moqt.session.ports import Unserved
from moqt.track import Track
from tests.moqt.session.worlds import Receiver
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAME = FullTrackName((b"live",), b"video")
FROM_THE_START = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0)),
)
LIVE = Parameters(location_filter=LocationFilter.next_object())


class Two:
    """Two servers of the same catalog, and a client of the first."""

    def __init__(self, first: Any, second: Any, roamer: Roamer, catalog: Catalog) -> None:
        self.first = first
        self.second = second
        self.roamer = roamer
        self.catalog = catalog
        self.track = catalog.add(Track(NAME))
        self.announced: list[Any] = []

    @property
    def there(self) -> str:
        return f"moqt://127.0.0.1:{self.second.port}/"

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is awaited tells nobody
                await asyncio.sleep(0.002)

    async def moved(self) -> None:
        """Nobody is left on the first server."""
        await self.until(lambda: not self.first.connections)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    paths = write_test_certificates(tmp_path)
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    catalog = Catalog()

    class Handler(Unserved):
        def __init__(self, connection: Any) -> None:
            self._inner = catalog.handler(connection)
            self.on_subscribe = self._inner.on_subscribe
            self.on_fetch = self._inner.on_fetch
            self.on_closed = self._inner.on_closed

        def on_publish_namespace(self, request: Any) -> None:
            made.announced.append(request)
            request.accept()

    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            server = await moqt.serve("127.0.0.1", 0, tls=tls, handler=Handler)
            stack.push_async_callback(server.close)
            servers.append(server)
        url = f"moqt://127.0.0.1:{servers[0].port}/"
        roamer = await roam(url, tls=ClientTls(ca_file=paths.ca))
        stack.push_async_callback(roamer.close)
        made = Two(servers[0], servers[1], roamer, catalog)
        yield made


def places(receiver: Receiver) -> list[Location]:
    """All that came, in order of arrival and twice if it came twice."""
    heads: list[ObjectHead] = [head for head, _ in receiver.objects]
    return sorted(head.location for head in heads)


def publish(track: Track, groups: range, size: int = 3000) -> None:
    for group in groups:
        writer = track.subgroup(group)
        for number in range(3):
            writer.object(number, bytes([group % 256]) * size)
        writer.finish()


def expected(groups: range) -> list[Location]:
    return [Location(group, number) for group in groups for number in range(3)]


@pytest.mark.rule("M293", "M297", "M170", "M301")
@pytest.mark.parametrize("parameters", [FROM_THE_START, LIVE], ids=["fill", "live"])
async def test_subscriptions_follow_while_objects_flow(two: Two, parameters: Parameters) -> None:
    publish(two.track, range(10))
    receiver = Receiver()
    two.roamer.subscribe(NAME, receiver, parameters)
    await two.until(lambda: receiver.info)
    publish(two.track, range(10, 20))
    first = 0 if parameters is FROM_THE_START else 10
    await two.until(lambda: len(receiver.objects) >= 5)
    old = two.roamer.connection
    two.first.goaway(two.there)
    for group in range(20, 60):
        publish(two.track, range(group, group + 1))
        await asyncio.sleep(0.001)
    await two.moved()
    assert (await old.wait_closed()).code == SessionCode.NO_ERROR
    publish(two.track, range(60, 70))
    await two.until(lambda: len(receiver.objects) >= 3 * (70 - first))
    assert places(receiver) == expected(range(first, 70))
    assert receiver.error is None
    assert len(two.second.connections) == 1


async def test_what_is_remembered_for_the_seam_is_bounded(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moqt.migration.MAX_SEEN", 20)
    publish(two.track, range(20))
    receiver = Receiver()
    subscription = two.roamer.subscribe(NAME, receiver, FROM_THE_START)
    await two.until(lambda: len(receiver.objects) == 60)
    assert list(subscription.seen) == expected(range(20))[-20:]


@pytest.mark.rule("M293")
async def test_an_object_that_is_just_arriving_comes_once(two: Two) -> None:
    publish(two.track, range(3))
    receiver = Receiver()
    two.roamer.subscribe(NAME, receiver, FROM_THE_START)
    await two.until(lambda: receiver.info)
    publish(two.track, range(3, 5), size=2_000_000)
    two.first.goaway(two.there)
    await two.moved()
    await two.until(lambda: len(receiver.objects) >= 15)
    assert places(receiver) == expected(range(5))
    assert all(len(payload) == head.length for head, payload in receiver.objects)


async def test_the_end_of_a_track_is_told_once(two: Two) -> None:
    publish(two.track, range(2))
    receiver = Receiver()
    two.roamer.subscribe(NAME, receiver, FROM_THE_START)
    await two.until(lambda: len(receiver.objects) == 6)
    two.first.goaway(two.there)
    await two.moved()
    two.track.end()
    await two.until(lambda: receiver.end)
    assert places(receiver) == expected(range(2))


@pytest.mark.rule("M293")
async def test_announcements_follow(two: Two) -> None:
    answers: list[Any] = []
    two.roamer.publish_namespace((b"mine",), answers.append)
    await two.until(lambda: answers)
    two.first.goaway(two.there)
    await two.moved()
    before, after = two.announced
    assert (before.active, after.active) == (False, True)
    assert answers == [None]


@pytest.mark.rule("M295", "M297")
async def test_one_request_moves_alone(two: Two) -> None:
    publish(two.track, range(3))
    receiver, other = Receiver(), Receiver()
    two.roamer.subscribe(NAME, receiver, FROM_THE_START)
    two.roamer.subscribe(NAME, other, FROM_THE_START)
    await two.until(lambda: len(receiver.objects) == 9 and len(other.objects) == 9)
    requests = sorted(two.track._subscriptions, key=lambda one: one.request_id)
    requests[0].goaway(two.there)
    await two.until(lambda: not requests[0].active)
    assert requests[1].active
    publish(two.track, range(3, 6))
    await two.until(lambda: len(receiver.objects) >= 18 and len(other.objects) >= 18)
    assert places(receiver) == places(other) == expected(range(6))
    assert [len(server.connections) for server in (two.first, two.second)] == [1, 1]


@pytest.mark.rule("M295", "M296", "M297")
async def test_one_request_moves_within_its_session(two: Two) -> None:
    publish(two.track, range(3))
    receiver = Receiver()
    two.roamer.subscribe(NAME, receiver, FROM_THE_START)
    await two.until(lambda: len(receiver.objects) == 9)
    (request,) = two.track._subscriptions
    request.goaway()
    await two.until(lambda: not request.active)
    publish(two.track, range(3, 6))
    await two.until(lambda: len(receiver.objects) >= 18)
    assert places(receiver) == expected(range(6))


async def test_a_session_that_single_requests_were_sent_to_is_followed(two: Two) -> None:
    publish(two.track, range(2))
    receivers = [Receiver() for _ in range(3)]
    for receiver in receivers:
        two.roamer.subscribe(NAME, receiver, FROM_THE_START)
    await two.until(lambda: all(len(one.objects) == 6 for one in receivers))
    requests = sorted(two.track._subscriptions, key=lambda one: one.request_id)
    for request in requests[:2]:
        request.goaway(two.there)
    await two.until(lambda: not any(one.active for one in requests[:2]))
    assert len(two.second.connections) == 1, "one session for all that are sent to one place"
    back = f"moqt://127.0.0.1:{two.first.port}/"
    two.second.goaway(back)
    await two.until(lambda: not two.second.connections)
    assert len(two.first.connections) == 2
    publish(two.track, range(2, 4))
    await two.until(lambda: all(len(one.objects) >= 12 for one in receivers))
    assert all(places(one) == expected(range(4)) for one in receivers)


async def test_where_nobody_answers_all_stays(two: Two) -> None:
    receiver = Receiver()
    stuck: list[Exception] = []
    two.roamer.on_stuck = stuck.append
    two.roamer.subscribe(NAME, receiver, NO_PARAMETERS)
    await two.until(lambda: receiver.info)
    uri = two.there
    await two.second.close()
    two.roamer._dial = _refuse
    two.first.goaway(uri)
    await two.until(lambda: stuck)
    publish(two.track, range(2))
    await two.until(lambda: len(receiver.objects) == 6)
    assert receiver.error is None


async def _refuse(uri: str) -> Any:
    raise MoqtError(f"{uri} is down")


@pytest.mark.rule("M168")
async def test_who_does_not_move_in_time_is_closed(two: Two) -> None:
    receiver = Receiver()
    connection = two.roamer.connection
    connection.when_goaway(lambda *_: None)
    two.roamer.subscribe(NAME, receiver, NO_PARAMETERS)
    await two.until(lambda: receiver.info)
    two.first.goaway(two.there, 50)
    two.first.goaway(two.there, 50)  # said once
    assert (await connection.wait_closed()).code == SessionCode.GOAWAY_TIMEOUT
    assert receiver.error is not None
