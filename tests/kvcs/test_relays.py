"""URLs tried in order, and what is told when none answers."""

from __future__ import annotations

import pytest

from kvcs.errors import InvalidInput
from kvcs.relays import dial_first, parse_urls
from moqt.errors import SessionClosed
from transport.errors import ConnectFailed, ConnectFault, InvalidUrl
from transport.url import MoqtUrl

A, B = parse_urls(["moqt://a.example/kv", "moqt://b.example/kv"])


def test_urls_of_every_kind() -> None:
    assert parse_urls("moqt://a.example/kv#kvcs:x") == (A,)
    assert parse_urls(A) == (A,)
    assert parse_urls([str(A), B]) == (A, B)
    with pytest.raises(InvalidInput, match="no URL"):
        parse_urls([])
    with pytest.raises(InvalidUrl):
        parse_urls([str(A), "https://b.example/"])


class Dialling:
    """Fails as told, URL by URL, then answers with the URL itself."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.dialled: list[MoqtUrl] = []

    async def __call__(self, url: MoqtUrl) -> str:
        self.dialled.append(url)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return url.host


def lost(fault: ConnectFault = ConnectFault.UNREACHABLE) -> ConnectFailed:
    return ConnectFailed(fault, f"{fault} it was")


async def test_the_first_that_answers() -> None:
    dial = Dialling(lost(ConnectFault.CERTIFICATE))
    assert await dial_first((A, B), dial) == (B, "b.example")
    assert dial.dialled == [A, B]


async def test_the_only_error_is_told_as_it_is() -> None:
    failure = lost(ConnectFault.TIMEOUT)
    with pytest.raises(ConnectFailed) as told:
        await dial_first((A,), Dialling(failure))
    assert told.value is failure


async def test_all_errors_are_told() -> None:
    dial = Dialling(lost(), SessionClosed(0x2, "who are you"))
    with pytest.raises(ConnectFailed, match="none of 2 URLs answers: unreachable it was; ") as told:
        await dial_first((A, B), dial)
    assert "moqt://b.example/kv: session closed: who are you" in str(told.value)
    assert told.value.fault is ConnectFault.REFUSED


async def test_again_while_there_is_time(monkeypatch) -> None:
    monkeypatch.setattr("kvcs.relays.ROUND_PAUSE", 0.001)
    dial = Dialling(lost(), lost(), lost())
    assert await dial_first((A, B), dial, wait=10) == (B, "b.example")
    assert dial.dialled == [A, B, A, B]


async def test_not_again_where_time_cures_nothing() -> None:
    dial = Dialling(lost(ConnectFault.CERTIFICATE), lost(ConnectFault.PROTOCOL))
    with pytest.raises(ConnectFailed):
        await dial_first((A, B), dial, wait=10)
    assert dial.dialled == [A, B]
