"""Fuzz targets of the session: octets into one, and operations on two that are joined.

Contract: nothing but documented exceptions, and none at all on the way in; when all is over
nothing is kept; what two of ours say to each other is never a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.profile import LATEST
from moqt.codec.properties import SetupOptions
from moqt.errors import Misuse, RequestCode, SessionClosed, SessionCode
from moqt.model import (
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    ObjectStatus,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Catalog, SubgroupWriter, Track
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved
from tests.moqt.session.wire import NAME, OTHER, Wire
from tests.moqt.session.worlds import Listener, Receiver, World

from .supply import Supply

CODES = sorted(LATEST.messages)
#: Operations of one input: what is longer costs time and finds nothing new.
MOST = 60
FILL = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=Parameters(location_filter=LocationFilter.since(0)),
)


class Taker(Unserved):
    """Takes, refuses or keeps waiting what is published; a handler and a TracksListener."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        self.offers: list[Any] = []
        self.taken: list[tuple[Any, Receiver]] = []

    def on_publish(self, request: Any) -> None:
        """An offer that nobody asked for."""
        self.offers.append(request)
        if self.supply.octet() < 160:
            self.answer()

    def answer(self) -> None:
        """Answer one of the offers."""
        if self.offers:
            request = self.offers.pop(self.supply.below(len(self.offers)))
            if self.supply.octet() < 176:
                self.taken.append((request, Receiver()))
                request.accept(self.taken[-1][1])
            else:
                request.refuse(RequestCode.UNINTERESTED)

    def accepted(self) -> None:
        """REQUEST_OK."""

    def published(self, request: Any) -> None:
        """An offer that SUBSCRIBE_TRACKS asked for."""
        self.on_publish(request)

    def skipped(self, name: FullTrackName) -> None:
        """Not offered."""

    def ended(self, error: Any) -> None:
        """No more offers."""


TRACKS = Parameters(fill=Parameters(location_filter=LocationFilter.since(0)))


# -- octets into one session ---------------------------------------------------------------------


class Peer:
    """A peer of octets that keeps to QUIC's own rules: nothing comes after FIN or a reset."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        first = supply.octet()
        self.catalog = Catalog()
        self.track = self.catalog.add(Track(NAME))
        self.catalog.announce((b"live", b"room1"))
        self.taker = Taker(supply)
        handler = self.catalog.handler(None)  # type: ignore[arg-type]
        handler.on_publish = self.taker.on_publish  # type: ignore[method-assign]
        small = SessionConfig(early_streams=4, early_octets=512, orphan_octets=512)
        self.wire = Wire(
            is_client=bool(first & 1),
            handler=handler,
            config=small if first & 2 else None,
            options=None if first & 4 else SetupOptions(max_filter_ranges=8),
        )
        self.receivers: list[Receiver] = []
        self.sent = {self.wire.control} - {-1}
        self.open = set(self.sent)
        if not first & 8:
            self._publish()
        if not first & 16:
            self._ask()

    def _publish(self) -> None:
        for group in range(3):
            writer = self.track.subgroup(group)
            writer.object(0, b"whole")
            writer.object(2, status=ObjectStatus.END_OF_GROUP)
            writer.finish()
        self.live = self.track.subgroup(7)

    def _ask(self) -> None:
        session = self.wire.session
        self.receivers = [Receiver() for _ in range(3)]
        asked = [
            session.subscribe(OTHER, FILL, self.receivers[0]),
            session.subscribe(NAME, NO_PARAMETERS, self.receivers[1]),
            session.fetch(OTHER, NO_PARAMETERS, self.receivers[2]),
            session.subscribe_namespace((b"a",), NO_PARAMETERS, Listener()),
            session.track_status(OTHER, NO_PARAMETERS, lambda _: None),
            session.publish_namespace((b"a",), NO_PARAMETERS, lambda _: None),
            session.subscribe_tracks((b"t",), TRACKS, self.taker),
            session.publish(self.track, NO_PARAMETERS, self.track.order, lambda _: None),
        ]
        self.track.offer(asked[-1])
        self.open |= {request.stream for request in asked}

    def step(self) -> None:
        """One thing that a peer, or time, can do."""
        acts = (
            *(self.request, self.request, self.data, self.data, self.more, self.more, self.fin),
            *(self.reset, self.stop, self.datagram, self.pull, self.time, self.publish),
            self.taker.answer,
        )
        acts[self.supply.below(len(acts))]()

    def message(self) -> bytes:
        """A framed message whose body the fuzzer has chosen; raw octets now and then."""
        choice = self.supply.octet()
        if choice >= 224:
            return self.supply.piece()
        code = CODES[choice % len(CODES)]
        body = self.supply.piece()
        if choice < 112:
            body = bytes((self.wire.id() & 63,)) + body
        prefix = code.to_bytes(2, "big") if code < 0x4000 else b""
        head = bytes((code,)) if code < 0x80 else bytes((0x80 | prefix[0], prefix[1]))
        return head + len(body).to_bytes(2, "big") + body

    def request(self) -> None:
        """A request stream."""
        self.open.add(self.wire.bidi(self.message(), fin=self.supply.octet() > 250))

    def data(self) -> None:
        """A unidirectional stream."""
        self.open.add(self.wire.uni(self.supply.piece(), fin=self.supply.octet() > 200))

    def _pick(self) -> int | None:
        live = sorted(s for s in self.open if self.wire.stopped(s) is None)
        at = self.supply.octet()
        return live[at % len(live)] if live else None

    def more(self) -> None:
        """Further octets on a stream that is open."""
        stream = self._pick()
        octets = self.message()
        if stream is not None:
            self.wire.send(stream, octets)

    def fin(self) -> None:
        """FIN, perhaps with octets."""
        stream = self._pick()
        octets = self.supply.piece()
        if stream is not None:
            self.open.discard(stream)
            self.wire.send(stream, octets, fin=True)

    def reset(self) -> None:
        """RESET_STREAM."""
        stream = self._pick()
        if stream is not None:
            self.open.discard(stream)
            self.wire.reset(stream, self.supply.octet())

    def stop(self) -> None:
        """STOP_SENDING on a stream whose direction from us is still open."""
        ours = set(self.wire.opened(unidirectional=True)) | self.open
        ended = {call[1] for call in self.wire.calls("finish", "reset")}
        live = sorted(ours - ended - self.sent)
        if live:
            stream = live[self.supply.octet() % len(live)]
            self.sent.add(stream)
            self.wire.stop(stream, self.supply.octet())

    def datagram(self) -> None:
        """A datagram."""
        self.wire.datagram(self.supply.piece())

    def pull(self) -> None:
        """The transport takes what our data streams have."""
        for stream in list(self.wire.transport.sources):
            self.wire.pulled(stream)

    def time(self) -> None:
        """Time passes."""
        self.wire.wait(self.supply.octet() / 8)

    def publish(self) -> None:
        """We publish something."""
        with contextlib.suppress(Misuse):
            self.track.subgroup(self.supply.octet()).object(self.supply.octet(), b"x")


def wire(data: bytes) -> None:
    """Events of a hostile peer into one session."""
    peer = Peer(Supply(data))
    for _ in range(MOST):
        if not peer.supply or peer.wire.fault is not None:
            break
        peer.step()
    peer.wire.wait(1000)
    peer.wire.lose()
    for receiver in (*peer.receivers, *(one for _, one in peer.taker.taken)):
        assert receiver.end is not None or receiver.error is not None
        for record in (*receiver.streams, *receiver.fetches):
            assert record.ended is not None


# -- operations on two sessions --------------------------------------------------------------------

NAMES = tuple(FullTrackName((b"n",), bytes((97 + at,))) for at in range(3))
#: Ends of a session that are nobody's fault.
QUIET = (-1, SessionCode.NO_ERROR, SessionCode.GOAWAY_TIMEOUT)


def parameters(supply: Supply, *, depth: int = 1) -> Parameters:
    """Small numbers, every kind of filter; what does not fit the request is Misuse there."""
    bits = supply.octet()
    return Parameters(
        location_filter=_place(supply) if bits & 1 else None,
        forward=bool(supply.octet() & 1) if bits & 2 else None,
        group_order=tuple(GroupOrder)[supply.below(2)] if bits & 4 else None,
        subscriber_priority=supply.octet() if bits & 8 else None,
        range_filters=tuple(_ranges(supply) for _ in range(supply.below(3))) if bits & 16 else (),
        fill=parameters(supply, depth=0) if bits & 32 and depth else None,
        include_properties=bool(supply.octet() & 1) if bits & 64 else None,
        object_delivery_timeout=supply.octet() << 4 if bits & 128 else None,
    )


def _place(supply: Supply) -> LocationFilter:
    kind = tuple(LocationFilterType)[supply.below(len(LocationFilterType))]
    start = Location(supply.below(8), supply.below(6))
    return LocationFilter(kind, start, supply.below(4), supply.below(6))


def _ranges(supply: Supply) -> RangeFilter:
    kind = tuple(RangeFilterType)[supply.below(len(RangeFilterType))]
    first = supply.below(6)
    last = first + supply.below(4) if supply.octet() & 1 else None
    by_property = kind in (RangeFilterType.OBJECT_PROPERTY, RangeFilterType.TRACK_PROPERTY)
    return RangeFilter(
        kind,
        (Span(first, last),),
        supply.below(3),
        2 * supply.below(4) if by_property else None,
        remove=supply.octet() > 200,
    )


class Play:
    """A publisher and a subscriber who do what the fuzzer says, over a network with faults."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        faults: dict[str, Any] = {"latency": 0.01, "jitter": 0.01 * supply.below(3)}
        if supply.octet() & 1:
            faults |= {"loss": 0.1, "reorder": 0.2, "split": True}
        self.taker = Taker(supply)
        self.world = World(seed=supply.octet(), client_handler=self.taker, **faults)
        self.session = self.world.client.session
        self.tracks: list[Track] = []
        self.writers: list[SubgroupWriter] = []
        self.receivers: list[Receiver] = []
        self.asked: list[Any] = []
        self.published: list[Any] = []
        self.may_close = False
        for name in NAMES:
            self.tracks.append(self.world.catalog.add(Track(name)))

    def step(self) -> None:
        """One operation; what our caller must not do is Misuse, and changes nothing."""
        acts: tuple[Callable[[], None], ...] = (
            *(self.write, self.write, self.write, self.open, self.finish, self.subscribe),
            *(self.subscribe, self.fetch, self.update, self.cancel, self.run, self.run),
            *(self.end, self.status, self.names, self.announce, self.network, self.leave),
            *(self.offer, self.taker.answer, self.tracks_under, self.notify),
        )
        with contextlib.suppress(Misuse, SessionClosed):
            acts[self.supply.below(len(acts))]()

    def _track(self) -> Track:
        return self.tracks[self.supply.below(len(self.tracks))]

    def open(self) -> None:
        """A subgroup."""
        priority = self.supply.octet()
        writer = self._track().subgroup(
            self.supply.below(8), self.supply.below(4), priority=priority
        )
        self.writers.append(writer)

    def write(self) -> None:
        """An object; sometimes the end of a group or of the track."""
        if self.writers:
            writer = self.writers[self.supply.below(len(self.writers))]
            number, size = self.supply.below(12), self.supply.octet()
            if size < 240:
                writer.object(number, bytes((number,)) * (size * size // 8))
            else:
                writer.object(number, status=tuple(ObjectStatus)[size % len(ObjectStatus)])

    def finish(self) -> None:
        """A subgroup ends."""
        if self.writers:
            writer = self.writers.pop(self.supply.below(len(self.writers)))
            if self.supply.octet() < 200:
                writer.finish()
            else:
                writer.abort(1)

    def subscribe(self) -> None:
        """SUBSCRIBE."""
        receiver = Receiver()
        asked = parameters(self.supply)
        name = NAMES[self.supply.below(len(NAMES))]
        self.asked.append(self.session.subscribe(name, asked, receiver))
        self.receivers.append(receiver)

    def fetch(self) -> None:
        """FETCH."""
        receiver = Receiver()
        asked = parameters(self.supply)
        self.asked.append(self.session.fetch(self._track().name, asked, receiver))
        self.receivers.append(receiver)

    def update(self) -> None:
        """REQUEST_UPDATE of one of the subscriptions."""
        asked = parameters(self.supply)
        able = [one for one in self.asked if hasattr(one, "update")]
        if able:
            able[self.supply.below(len(able))].update(asked)

    def cancel(self) -> None:
        """The subscriber gives a request up."""
        if self.asked:
            self.asked[self.supply.below(len(self.asked))].cancel()

    def run(self) -> None:
        """Some milliseconds."""
        self.world.run(self.supply.octet() / 1000)

    def end(self) -> None:
        """A track ends, or is taken away; another takes its place."""
        at = self.supply.below(len(self.tracks))
        track = self.tracks[at]
        if self.supply.octet() < 128:
            track.end()
        else:
            self.world.catalog.remove(track)
            self.tracks[at] = self.world.catalog.add(Track(track.name))

    def status(self) -> None:
        """TRACK_STATUS."""
        name = self._track().name
        self.asked.append(self.session.track_status(name, NO_PARAMETERS, lambda _: None))

    def names(self) -> None:
        """SUBSCRIBE_NAMESPACE; overlapping ones are refused."""
        prefix = tuple(b"ab"[at : at + 1] for at in range(self.supply.below(3)))
        self.asked.append(self.session.subscribe_namespace(prefix, NO_PARAMETERS, Listener()))

    def announce(self) -> None:
        """The publisher announces, or withdraws."""
        namespace = tuple(b"abc"[at : at + 1] for at in range(1 + self.supply.below(3)))
        if self.supply.octet() < 160:
            self.world.catalog.announce(namespace)
        else:
            self.world.catalog.withdraw(namespace)

    def offer(self) -> None:
        """PUBLISH of a track of ours."""
        asked = parameters(self.supply)
        track = self._track()
        session = self.world.server.session
        self.published.append(session.publish(track, asked, track.order, lambda _: None))
        track.offer(self.published[-1])

    def tracks_under(self) -> None:
        """SUBSCRIBE_TRACKS."""
        asked = parameters(self.supply)
        prefix = (b"n",)[: self.supply.below(2)]
        self.asked.append(self.session.subscribe_tracks(prefix, asked, self.taker))

    def notify(self) -> None:
        """PUBLISH_STATE_NOTIFY, or REQUEST_UPDATE of the publisher."""
        self._track().notify()
        if self.published and self.supply.octet() & 1:
            request = self.published[self.supply.below(len(self.published))]
            request.update(parameters(self.supply))

    def network(self) -> None:
        """One direction stalls for a while."""
        way = ("to_server", "to_client")[self.supply.below(2)]
        self.world.pair.freeze(way, self.supply.octet() / 100)  # type: ignore[arg-type]

    def leave(self) -> None:
        """GOAWAY, CONNECTION_CLOSE, or the path dies."""
        how = self.supply.octet()
        side = (self.world.client, self.world.server)[how & 1]
        if how < 128:
            side.session.goaway(timeout=(how & 2) * 200)
            self.may_close = True
        elif how < 144:
            self.may_close = True
            side.session.close()
        elif how < 152:
            self.may_close = True
            self.world.pair.kill()

    def settle(self) -> None:
        """To the end: everything delivered, everything cancelled, nothing left."""
        world = self.world
        world.run(60)
        for side in (world.client, world.server):
            code = SessionCode.NO_ERROR if side.ended is None else side.ended[0]
            assert code in QUIET, side.ended
            assert side.is_open or self.may_close, side.ended
        self._check_objects()
        for offer in self.taker.offers:
            offer.refuse(RequestCode.UNINTERESTED)
        for one in (*self.asked, *self.published, *(taken for taken, _ in self.taker.taken)):
            one.cancel()
        for writer in self.writers:
            writer.finish()
        world.run()
        for side in (world.client, world.server):
            assert not side.leftovers(), side.leftovers()
            assert side.ended or side.transport.streams == 2

    def _check_objects(self) -> None:
        for receiver in (*self.receivers, *(one for _, one in self.taker.taken)):
            for head, data in receiver.objects:
                assert data == bytes((head.object,)) * head.length
            records = (*receiver.streams, *receiver.fetches)
            places = [[head.location for head, _ in record.objects] for record in records]
            assert all(len(set(found)) == len(found) for found in places)
            if self.may_close and self.world.client.ended:
                assert receiver.end or receiver.error or all(record.ended for record in records)


def pair(data: bytes) -> None:
    """Operations on two joined sessions."""
    play = Play(Supply(data))
    for _ in range(MOST):
        if not play.supply:
            break
        play.step()
    play.settle()


TARGETS: dict[str, Callable[[bytes], None]] = {"wire": wire, "pair": pair}
