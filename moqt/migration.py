"""A session that moves: what GOAWAY asks of a client, done for it (draft-22 §6.6.1, §9.2).

Subscriptions and announcements follow to the new session; at the seam each object is delivered
once, and none is lost that either session brings.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.endpoint import connect, unserved
from moqt.errors import MoqtError, SessionCode
from moqt.model import Location, LocationFilter, LocationFilterType, LocationRange
from moqt.seam import Leg
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from moqt.driver import Connection, HandlerFactory
    from moqt.model import FullTrackName, ObjectHead, TrackNamespace
    from moqt.seam import Seam
    from moqt.session.config import SessionConfig
    from moqt.session.namespaces import OutgoingPublishNamespace
    from moqt.session.ports import TrackInfo, TrackReceiver
    from transport.config import ClientTls, QuicOptions

    #: Opens a session where a GOAWAY points; "" is where the present one is.
    Dial = Callable[[str], Awaitable[Connection]]

#: Locations remembered for the seam; of older ones a fill does not ask again.
MAX_SEEN: Final = 1 << 16
#: Groups before the earliest that is still arriving from which the new session fills: a group may
#: start late.
SLACK_GROUPS: Final = 2
#: Seconds before we follow a server that sends us away soon after we came, twice as long each time
#: up to LONGEST_REST; whoever has stayed that long is followed at once.
FIRST_REST: Final = 0.1
LONGEST_REST: Final = 10.0


class Roamer:
    """A client's session and what follows it when a server sends GOAWAY.

    ``connection`` is the present one; requests made on it directly do not follow.
    """

    def __init__(self, connection: Connection, dial: Dial) -> None:
        self.connection = connection
        self._dial = dial
        self._kept: dict[RoamingSubscription | RoamingAnnouncement, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: set[Connection] = set()
        # Sessions that single requests were sent to, by their URI.
        self._asides: dict[str, Connection] = {}
        self._dialling = asyncio.Lock()
        self._targets: list[Connection] = []
        self._rest = 0.0
        self._moved = -math.inf
        #: Told why a move did not succeed; what was to move stays where it is.
        self.on_stuck: Callable[[Exception], None] | None = None
        self._watch(connection, "")

    def subscribe(
        self,
        name: FullTrackName,
        receiver: TrackReceiver,
        parameters: Parameters = NO_PARAMETERS,
    ) -> RoamingSubscription:
        """SUBSCRIBE, here and wherever the session goes; ``cancel`` ends it."""
        return RoamingSubscription(self, name, receiver, parameters)

    def publish_namespace(
        self,
        namespace: TrackNamespace,
        answer: Callable[[MoqtError | None], None],
        parameters: Parameters = NO_PARAMETERS,
    ) -> RoamingAnnouncement:
        """PUBLISH_NAMESPACE, here and wherever the session goes; ``cancel`` withdraws it."""
        return RoamingAnnouncement(self, namespace, answer, parameters)

    async def close(self) -> None:
        """End the present session; moves under way are given up."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in (*self._left, self.connection):
            await connection.close()

    # -- for what it carries ---------------------------------------------------------------------

    def keep(self, what: RoamingSubscription | RoamingAnnouncement) -> None:
        """It follows from now on."""
        self._kept[what] = None

    def drop(self, what: RoamingSubscription | RoamingAnnouncement) -> None:
        """It is over."""
        self._kept.pop(what, None)

    def move_one(self, what: RoamingSubscription, uri: str) -> None:
        """GOAWAY on one request stream: that request alone moves, for "" within its session."""
        self._begin(self._move_one(what, uri))

    # -- inside ----------------------------------------------------------------------------------

    def _watch(self, connection: Connection, place: str) -> None:
        connection.when_goaway(lambda uri, _: self._goaway(connection, uri, place))
        connection.session.when_stream_lost(lambda: self._lost(connection))

    def _lost(self, connection: Connection) -> None:
        for kept in tuple(self._kept):
            kept.stream_lost(connection)

    def _goaway(self, connection: Connection, uri: str, place: str) -> None:
        if connection is self.connection:
            self._begin(self._move_all(uri, connection))
        else:
            self._begin(self._move_aside(uri or place, connection))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reach(self, uri: str) -> Connection | None:
        try:
            return await self._dial(uri)
        except (MoqtError, TransportError) as error:
            if self.on_stuck is not None:
                self.on_stuck(error)
            return None

    def _pause(self) -> float:
        """Seconds to wait before the next move."""
        now = asyncio.get_running_loop().time()
        soon = now - self._moved < LONGEST_REST
        self._rest = min(max(2 * self._rest, FIRST_REST), LONGEST_REST) if soon else 0.0
        self._moved = now + self._rest
        return self._rest

    async def _move_all(self, uri: str, old: Connection) -> None:
        await asyncio.sleep(self._pause())
        new = await self._reach(uri)
        if new is None:
            return
        self.connection = new
        self._watch(new, uri)
        await asyncio.gather(*(kept.move(new) for kept in tuple(self._kept)))
        # What got no further than a session that was itself left is brought on by a later move.
        self._left.add(old)
        await self._close_empty()

    async def _close_empty(self) -> None:
        for connection in tuple(self._left):
            used = any(kept.stays_on(connection) for kept in self._kept)
            if not used and connection not in self._targets:
                self._left.discard(connection)
                await connection.close(SessionCode.NO_ERROR, "moved")

    async def _move_one(self, what: RoamingSubscription, uri: str) -> None:
        new = self.connection if not uri else await self._aside(uri)
        if new is not None:
            await self._move_there(new, [what])

    async def _move_aside(self, uri: str, old: Connection) -> None:
        """A session that single requests were sent to sends them away."""
        new = await self._aside(uri)
        if new is not None:
            await self._move_there(new, [one for one in self._kept if one.stays_on(old)])

    async def _move_there(
        self, new: Connection, moving: Sequence[RoamingSubscription | RoamingAnnouncement]
    ) -> None:
        self._targets.append(new)
        try:
            await asyncio.gather(*(one.move(new) for one in moving))
        finally:
            self._targets.remove(new)
        await self._close_empty()

    async def _aside(self, uri: str) -> Connection | None:
        """A session for single requests, one for each place; it ends with what is on it."""
        async with self._dialling:
            known = self._asides.get(uri)
            if known is not None and known.may_request:
                return known
            await asyncio.sleep(self._pause())
            new = await self._reach(uri)
            if new is not None:
                self._asides[uri] = new
                self._left.add(new)
                new.when_closed(lambda: self._aside_over(uri, new))
                self._watch(new, uri)
            return new

    def _aside_over(self, uri: str, connection: Connection) -> None:
        self._left.discard(connection)
        if self._asides.get(uri) is connection:
            del self._asides[uri]


class RoamingAnnouncement:
    """One namespace of ours on the present session."""

    def __init__(
        self,
        roamer: Roamer,
        namespace: TrackNamespace,
        answer: Callable[[MoqtError | None], None],
        parameters: Parameters,
    ) -> None:
        self._roamer = roamer
        self._namespace = namespace
        self._answer = answer
        self._parameters = parameters
        self._connection = roamer.connection
        self._request: OutgoingPublishNamespace = self._connection.publish_namespace(
            namespace, answer, parameters
        )
        roamer.keep(self)

    def cancel(self) -> None:
        """Withdraw it."""
        self._roamer.drop(self)
        self._request.cancel()

    def stays_on(self, connection: Connection) -> bool:
        """True while it is announced there."""
        return self._connection is connection and connection.is_open

    def stream_lost(self, connection: Connection) -> None:
        """It has none."""

    async def move(self, new: Connection) -> None:
        """Announce it there; once accepted, withdraw it here."""
        accepted: asyncio.Future[MoqtError | None] = asyncio.get_running_loop().create_future()

        def answered(error: MoqtError | None) -> None:
            if not accepted.done():
                accepted.set_result(error)
            else:
                self._answer(error)

        try:
            request = new.publish_namespace(self._namespace, answered, self._parameters)
        except MoqtError:
            return
        if await accepted is None:
            self._request.cancel()
            self._request, self._connection = request, new


class RoamingSubscription:
    """One track, over one session and then another; calls ``receiver`` as one session would."""

    def __init__(
        self,
        roamer: Roamer,
        name: FullTrackName,
        receiver: TrackReceiver,
        parameters: Parameters,
    ) -> None:
        self.roamer = roamer
        self.name = name
        self.receiver = receiver
        self._parameters = parameters
        self._over = False
        self._accepted = False
        #: The Locations that are ours to have, once known.
        self.scope: LocationRange | None = None
        self.seen: dict[Location, None] = {}
        self.running: dict[Location, Seam] = {}
        self.wanted: set[Location] = set()
        self._owed: set[int] = set()
        self._moves = asyncio.Lock()
        roamer.keep(self)
        self._leg = Leg(self, roamer.connection, parameters)

    def cancel(self) -> None:
        """End it; nothing is reported after this."""
        if not self._over:
            self._end()
            self._leg.cancel()

    def stays_on(self, connection: Connection) -> bool:
        """True while it is served there."""
        return not self._over and self._leg.connection is connection and connection.is_open

    def stream_lost(self, connection: Connection) -> None:
        """A stream on that session was lost before anyone knew whose: it may have been ours."""
        if not self._over and self._leg.connection is connection:
            self._leg.stream_lost()

    async def move(self, new: Connection) -> None:
        """Subscribe there from what is missing here; once all of that is in, cancel here.

        Moves wait for each other: where one begins, the one before has succeeded or is undone.
        """
        async with self._moves:
            await self._move(new)

    async def _move(self, new: Connection) -> None:
        old = self._leg
        if self._over:
            return
        try:
            leg = Leg(self, new, self._continued(old), late=True)
        except MoqtError:
            return
        self._leg = leg
        leg.awaited = old.moving = True
        moved = await leg.caught_up
        leg.awaited = old.moving = False
        if moved:
            old.cancel()
            return
        self._leg = old
        if old.error is not None:  # neither session serves it any more
            self.failed(old, old.error)

    # -- from its legs ---------------------------------------------------------------------------

    def accepted(self, info: TrackInfo) -> None:
        """The first SUBSCRIBE_OK is the application's."""
        if self.scope is None:
            place = self._parameters.location_filter or LocationFilter(LocationFilterType.NONE)
            live = place.on_subscription(info.largest)
            fill = self._parameters.fill
            asked = place if fill is None else fill.location_filter or place
            past = None if fill is None else asked.on_fetch(info.largest)
            first, last = live
            if past is not None:
                first = min(first, past.start)
                last = last and max(last, past.end or last)
            if fill is None and info.largest is not None:
                first = max(first, Location(info.largest.group, info.largest.object + 1))
            self.scope = LocationRange(first, last)
        if not self._accepted and not self._over:
            self._accepted = True
            self.receiver.accepted(info)

    def done(self, leg: Leg, code: int, reason: str, complete: bool) -> None:
        """The leg that counts says the end; GOING_AWAY of one that is being left is none."""
        if leg is self._leg and not self._over:
            self._end()
            self.receiver.done(code, reason, complete)

    def failed(self, leg: Leg, error: MoqtError) -> None:
        """The leg that counts has failed."""
        if not self._over and leg is self._leg:
            self._end()
            self.receiver.failed(error)

    def begins(self, head: ObjectHead, seam: Seam) -> bool:
        """True when the object is not here yet and nobody else brings it."""
        place = head.location
        if self._over or place in self.seen:
            return False
        if place in self.running:
            self.wanted.add(place)
            return False
        self.running[place] = seam
        return True

    def ends(self, place: Location) -> None:
        """The object is whole."""
        self.running.pop(place, None)
        self.wanted.discard(place)
        self.seen[place] = None
        if len(self.seen) > MAX_SEEN:
            del self.seen[next(iter(self.seen))]

    def breaks(self, place: Location) -> None:
        """It was begun and lost: what another leg brought of it meanwhile was left out."""
        self.running.pop(place, None)
        if place in self.wanted and not self._over:
            self.wanted.discard(place)
            only = LocationFilter(LocationFilterType.ABSOLUTE_RANGE, place, 0, place.object)
            self._leg.fetch(only)

    def again(self, leg: Leg, wanted: LocationFilter) -> None:
        """One session did not bring what it was asked for anew; the present one may."""
        if leg is not self._leg and not self._over:
            self._leg.fetch(wanted)

    def owe(self, wanted: LocationFilter) -> None:
        """The session takes no more requests: the next one's fill brings it."""
        self._owed.add(wanted.start.group)

    # -- inside ----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._over = True
        self.roamer.drop(self)

    def _continued(self, old: Leg) -> Parameters:
        """The same subscription, with a fill from the first group that may lack something."""
        if self.scope is None:
            return self._parameters
        first = start = self.scope.start
        if self.seen and not old.filling:
            unsure = [*old.open_groups(), *self._owed]
            earliest = min(unsure, default=max(self.seen).group)
            start = max(first, Location(max(earliest - SLACK_GROUPS, 0), 0))
        place = self._parameters.location_filter
        if place is None or place.type not in (
            LocationFilterType.ABSOLUTE_RANGE,
            LocationFilterType.ABSOLUTE_START_GROUP_END,
        ):
            place = LocationFilter.since(*first)
        fill = self._parameters.fill or NO_PARAMETERS
        wanted = replace(fill, location_filter=LocationFilter.since(*start))
        return replace(self._parameters, location_filter=place, fill=wanted)


async def roam(
    url: str,
    *,
    handler: HandlerFactory = unserved,
    tls: ClientTls | None = None,
    config: SessionConfig | None = None,
    quic: QuicOptions | None = None,
) -> Roamer:
    """``moqt.connect`` for a session that moves; raises the same.

    A GOAWAY with a URI leads there, one without to ``url`` again.
    """

    async def dial(uri: str) -> Connection:
        return await connect(uri or url, handler=handler, tls=tls, config=config, quic=quic)

    return Roamer(await dial(""), dial)
