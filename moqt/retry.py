"""What a refusal says to do next, and doing it: Retry Interval, REDIRECT (draft-22 §9.4)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from moqt.errors import RequestFailed
from moqt.reading import Reading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from moqt.driver import Connection
    from moqt.model import FullTrackName

    #: Opens a session where a REDIRECT points.
    Dial = Callable[[str], Awaitable[Connection]]

_R = TypeVar("_R", bound=Reading[Any])

#: Requests made for one, the first included: peers that send us in a circle get no more.
MAX_ATTEMPTS: Final = 5
#: Seconds that a peer may make us wait before we ask again; asked for more, we give up.
MAX_WAIT: Final = 60.0


class Attempt(NamedTuple):
    """Ask for ``name`` after ``wait`` seconds, at ``uri``; "" is the session that refused."""

    wait: float
    uri: str
    name: FullTrackName


def next_attempt(refused: RequestFailed, name: FullTrackName) -> Attempt | None:
    """What may follow a refusal of ``name``; None when that is nothing.

    A REDIRECT is followed at once: its interval is about the request that was refused (§12.3).
    """
    if refused.redirect is not None:
        return Attempt(0.0, refused.redirect.uri, refused.redirect.name)
    if refused.retry_after is None:
        return None
    return Attempt(refused.retry_after / 1000, "", name)


@asynccontextmanager
async def insist(
    connection: Connection,
    name: FullTrackName,
    ask: Callable[[Connection, FullTrackName], _R],
    *,
    dial: Dial | None = None,
    max_wait: float = MAX_WAIT,
) -> AsyncIterator[_R]:
    """``ask`` (``moqt.subscribe``, say) whenever and wherever refusals say; yields what stands.

    Without ``dial`` no other session is opened; those that it opens are closed at the end.
    Raises the last refusal when it allows no more, and what ``ask`` and ``dial`` raise.
    """
    left = MAX_ATTEMPTS
    async with AsyncExitStack() as opened:
        while True:
            left -= 1
            reading = ask(connection, name)
            try:
                await opened.enter_async_context(reading)
            except RequestFailed as refused:
                step = next_attempt(refused, name)
                if step is None or step.wait > max_wait or not left or (step.uri and not dial):
                    raise
            else:
                break
            await asyncio.sleep(step.wait)
            name = step.name
            if step.uri and dial is not None:
                connection = await dial(step.uri)
                opened.push_async_callback(connection.close)
        yield reading
