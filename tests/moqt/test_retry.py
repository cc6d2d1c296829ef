"""After a refusal: when and where to ask again, and never where one must not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from moqt.errors import Misuse, RequestCode, RequestFailed, RequestRefused
from moqt.model import FullTrackName, Redirect
from moqt.publisher import Catalog, CatalogHandler, ServingLimits
from moqt.retry import MAX_ATTEMPTS, Attempt, insist, next_attempt
from moqt.track import Track
from transport.certificates import write_test_certificates
from transport.config import ClientTls, ServerTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAME = FullTrackName((b"live",), b"video")
OTHER = FullTrackName((b"live", b"copy"), b"video")
LATER = RequestCode.EXCESSIVE_LOAD


@pytest.mark.rule("M308", "M309", "M477", "M478", "M303")
@pytest.mark.parametrize(
    ("refused", "step"),
    [
        (RequestFailed(LATER, ""), None),
        (RequestFailed(LATER, "", 0), Attempt(0.0, "", NAME)),
        (RequestFailed(LATER, "", 1500), Attempt(1.5, "", NAME)),
        (
            RequestFailed(RequestCode.REDIRECT, "", None, Redirect("", OTHER)),
            Attempt(0.0, "", OTHER),
        ),
        (
            RequestFailed(RequestCode.REDIRECT, "", 9000, Redirect("moqt://b/", NAME)),
            Attempt(0.0, "moqt://b/", NAME),
        ),
    ],
)
def test_what_may_follow(refused: RequestFailed, step: Attempt | None) -> None:
    assert next_attempt(refused, NAME) == step


class Two:
    """Two servers; what each is asked for is written down, and answered as ``answers`` says."""

    def __init__(self) -> None:
        self.servers: list[Any] = []
        self.asked: list[tuple[int, FullTrackName]] = []
        self.times: list[float] = []
        self.answers: list[RequestRefused] = []
        self.client: Any = None
        self.dial: Any = None

    def uri(self, number: int) -> str:
        return f"moqt://127.0.0.1:{self.servers[number].port}/"

    def refuse(self, code: RequestCode, after: int | None = None, **where: Any) -> None:
        """The next request that comes is refused so."""
        redirect = Redirect(where["uri"], where["name"]) if where else None
        self.answers.append(RequestRefused(code, "not here", after, redirect))


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    paths = write_test_certificates(tmp_path)
    tls = ServerTls(certificate=paths.certificate, private_key=paths.private_key)
    made = Two()
    catalog = Catalog()
    for name in (NAME, OTHER):
        catalog.add(Track(name))

    class Handler(CatalogHandler):
        def __init__(self, number: int, connection: Any) -> None:
            super().__init__(catalog, connection, ServingLimits())
            self._number = number

        def on_subscribe(self, request: Any) -> None:
            made.asked.append((self._number, request.name))
            made.times.append(asyncio.get_running_loop().time())
            if made.answers:
                raise made.answers.pop(0)
            super().on_subscribe(request)

    async with AsyncExitStack() as stack:
        for number in range(2):
            server = await moqt.serve(
                "127.0.0.1", 0, tls=tls, handler=lambda c, number=number: Handler(number, c)
            )
            made.servers.append(await stack.enter_async_context(server))
        made.dial = lambda uri: moqt.connect(uri, tls=ClientTls(ca_file=paths.ca))
        made.client = await stack.enter_async_context(await made.dial(made.uri(0)))
        yield made


async def closed(two: Two, number: int) -> None:
    async with asyncio.timeout(10):
        while two.servers[number].connections:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)


@pytest.mark.rule("M308")
async def test_the_interval_is_waited_for(two: Two) -> None:
    two.refuse(LATER, 60)
    two.refuse(LATER, 0)
    async with insist(two.client, NAME, moqt.subscribe) as subscription:
        assert subscription.info.largest is None
    assert two.asked == [(0, NAME)] * 3
    assert two.times[1] - two.times[0] >= 0.06


@pytest.mark.rule("M309", "M478")
@pytest.mark.parametrize("code", [LATER, RequestCode.DOES_NOT_EXIST])
async def test_what_must_not_be_repeated_is_not(two: Two, code: RequestCode) -> None:
    two.refuse(code)
    with pytest.raises(RequestFailed, match="not here"):
        async with insist(two.client, NAME, moqt.subscribe):
            pass
    assert two.asked == [(0, NAME)]


@pytest.mark.rule("M303", "M477")
async def test_a_redirect_within_the_session(two: Two) -> None:
    two.refuse(RequestCode.REDIRECT, uri="", name=OTHER)
    async with insist(two.client, NAME, moqt.subscribe, dial=two.dial):
        assert two.asked == [(0, NAME), (0, OTHER)]
        assert not two.servers[1].connections


@pytest.mark.rule("M477", "M478")
async def test_a_redirect_to_another_place_and_from_there_on(two: Two) -> None:
    two.refuse(RequestCode.REDIRECT, uri=two.uri(1), name=OTHER)
    two.refuse(RequestCode.REDIRECT, uri="", name=NAME)  # "" is the second session here
    async with insist(two.client, NAME, moqt.subscribe, dial=two.dial):
        assert two.asked == [(0, NAME), (1, OTHER), (1, NAME)]
    await closed(two, 1)
    assert two.client.is_open


async def test_without_a_dial_nothing_else_is_opened(two: Two) -> None:
    two.refuse(RequestCode.REDIRECT, uri=two.uri(1), name=OTHER)
    with pytest.raises(RequestFailed) as caught:
        async with insist(two.client, NAME, moqt.subscribe):
            pass
    assert caught.value.redirect == Redirect(two.uri(1), OTHER)
    assert two.asked == [(0, NAME)]


async def test_circles_and_long_waits_end(two: Two) -> None:
    for _ in range(MAX_ATTEMPTS):
        two.refuse(RequestCode.REDIRECT, uri="", name=NAME)
    two.refuse(LATER, 60_001)
    with pytest.raises(RequestFailed, match="REDIRECT"):
        async with insist(two.client, NAME, moqt.subscribe):
            pass
    assert len(two.asked) == MAX_ATTEMPTS
    with pytest.raises(RequestFailed, match="EXCESSIVE_LOAD"):
        async with insist(two.client, NAME, moqt.subscribe):
            pass
    assert len(two.asked) == MAX_ATTEMPTS + 1


async def test_what_else_fails_is_not_tried_again(two: Two) -> None:
    calls = []

    def ask(connection: Any, name: FullTrackName) -> Any:
        calls.append(name)
        raise Misuse("no")

    with pytest.raises(Misuse):
        async with insist(two.client, NAME, ask):
            pass
    assert calls == [NAME]
