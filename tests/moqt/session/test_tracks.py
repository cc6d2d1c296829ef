"""SUBSCRIBE_TRACKS at both ends (draft-22 §3.6, §9.18, §9.19)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties
from moqt.errors import MoqtError, RequestCode, RequestFailed, SessionCode
from moqt.model import (
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Catalog, Track
from moqt.session.ports import Unserved

from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Receiver, World

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
LIVE = (b"live",)
ROOM1 = (b"live", b"room1")
ELSEWHERE = FullTrackName((b"other",), b"video")
CACHED = TrackProperties(max_cache_duration=30000)


def cached_for(first: int, last: int | None, set_id: int = 0) -> RangeFilter:
    """Selects tracks by MAX_CACHE_DURATION."""
    return RangeFilter(RangeFilterType.TRACK_PROPERTY, (Span(first, last),), set_id, 0x04)


def objects(*ids: int) -> RangeFilter:
    """Selects objects by id."""
    return RangeFilter(RangeFilterType.OBJECT_ID, tuple(Span(i, i) for i in ids))


class Served:
    """A catalog that a peer of octets asks for tracks."""

    def __init__(self, *names: FullTrackName, parameters: Parameters = NO_PARAMETERS) -> None:
        self.catalog = Catalog()
        self.wire = Wire(handler=self.catalog.handler(None))  # type: ignore[arg-type]
        for name in names:
            self.catalog.add(Track(name, CACHED))
        self.stream = self.wire.bidi(m.SubscribeTracks(self.wire.id(), LIVE, parameters))

    @property
    def answers(self) -> list[m.Message]:
        """What came on the stream of SUBSCRIBE_TRACKS."""
        return self.wire.answer(self.stream).messages

    @property
    def offers(self) -> list[m.Publish]:
        """Every PUBLISH so far."""
        streams = self.wire.opened(unidirectional=False)
        first = [self.wire.answer(one).messages[0] for one in streams]
        return [one for one in first if isinstance(one, m.Publish)]

    def update(self, **parameters: Any) -> m.Message:
        """Send one REQUEST_UPDATE; the answer."""
        self.wire.send(self.stream, m.RequestUpdate(self.wire.id(), Parameters(**parameters)))
        return self.answers[-1]


# -- as publisher --------------------------------------------------------------------------------


@pytest.mark.rule("M077")
def test_current_and_future_tracks_each_once() -> None:
    served = Served(NAME, ELSEWHERE)
    assert served.answers == [m.RequestOk()]
    assert [offer.name for offer in served.offers] == [NAME]
    track = served.catalog.add(Track(OTHER))
    served.catalog.add(Track(FullTrackName((b"lively",), b"x")))
    served.update()
    assert [offer.name for offer in served.offers] == [NAME, OTHER]
    served.catalog.remove(track)
    served.catalog.add(Track(OTHER))
    assert [offer.name for offer in served.offers] == [NAME, OTHER, OTHER]


@pytest.mark.rule("M084", "M356")
def test_parameters_are_repeated_but_for_the_token() -> None:
    wanted = Parameters(
        authorization_tokens=(Token.use_value(b"secret"),),
        forward=False,
        group_order=GroupOrder.DESCENDING,
        location_filter=LocationFilter.since(5, 0),
        range_filters=(objects(1), cached_for(0, None)),
    )
    served = Served(NAME, parameters=wanted)
    (offer,) = served.offers
    assert offer.parameters == Parameters(
        forward=False,
        group_order=GroupOrder.DESCENDING,
        location_filter=LocationFilter.since(5, 0),
    )
    assert offer.properties == CACHED.encode()


@pytest.mark.rule("M396")
def test_properties_are_left_out_when_not_wanted() -> None:
    (offer,) = Served(NAME, parameters=Parameters(include_properties=False)).offers
    assert offer.properties == b""


@pytest.mark.rule("M063")
@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ((cached_for(30000, 30000),), True),
        ((cached_for(30001, None),), False),
        ((cached_for(30001, None), cached_for(0, None, 1)), True),
        ((RangeFilter(RangeFilterType.TRACK_PROPERTY, (Span(0, None),), 0, 0x02),), False),
        ((objects(1), cached_for(0, 29999)), False),
    ],
)
def test_tracks_are_selected_by_property(filters: Any, passes: bool) -> None:
    served = Served(NAME, parameters=Parameters(range_filters=filters))
    assert bool(served.offers) is passes
    removed = RangeFilter(RangeFilterType.TRACK_PROPERTY, remove=True)
    served.update(range_filters=(removed,))
    assert len(served.offers) == 1


def test_object_filters_stay_in_force() -> None:
    served = Served(NAME, parameters=Parameters(range_filters=(objects(1), cached_for(0, None))))
    track = served.catalog.track(NAME)
    writer = track.subgroup(0)
    writer.object(0, b"no")
    writer.object(1, b"yes")
    (stream,) = served.wire.opened(unidirectional=True)[1:]
    octets, _ = served.wire.pulled(stream)
    assert octets.endswith(b"yes")
    assert b"no" not in octets


@pytest.mark.rule("M068")
@pytest.mark.parametrize("ended", [False, True])
def test_a_fill_starts_under_the_id_of_the_publish(ended: bool) -> None:
    fill = Parameters(location_filter=LocationFilter.since(0, 0))
    catalog = Catalog()
    wire = Wire(handler=catalog.handler(None))  # type: ignore[arg-type]
    track = catalog.add(Track(NAME))
    track.subgroup(3).object(0, b"old")
    wire.bidi(m.SubscribeTracks(0, LIVE, Parameters(fill=fill)))
    if ended:
        track.end()
    (publish,) = wire.opened(unidirectional=False)
    assert wire.opened(unidirectional=True)[1:] == []
    wire.send(publish, m.RequestOk())
    (stream,) = wire.opened(unidirectional=True)[1:]
    octets, end = wire.pulled(stream)
    assert octets[:2] == bytes.fromhex("05 01")
    assert octets.endswith(b"old")
    assert end == FIN
    done = wire.last(publish)
    assert isinstance(done, m.PublishDone) is ended
    assert not isinstance(done, m.PublishDone) or done.stream_count == 1


@pytest.mark.rule("M083")
def test_what_the_subscriber_publishes_itself_is_not_offered() -> None:
    catalog = Catalog()

    class Both(Unserved):
        def on_publish(self, request: Any) -> None:
            requests.append(request)
            request.accept(Receiver())

        def on_subscribe_tracks(self, request: Any) -> None:
            catalog.interested_in_tracks(request)

    requests: list[Any] = []
    wire = Wire(handler=Both())
    catalog.add(Track(NAME))
    catalog.add(Track(OTHER))
    wire.bidi(m.Publish(wire.id(), NAME, 7))
    stream = wire.bidi(m.SubscribeTracks(wire.id(), LIVE))
    offered = wire.opened(unidirectional=False)
    assert [wire.answer(one).messages[0].name for one in offered] == [OTHER]  # type: ignore[union-attr]
    requests[0].cancel()
    wire.send(stream, m.RequestUpdate(wire.id()))
    assert len(wire.opened(unidirectional=False)) == 2


@pytest.mark.rule("M085", "M531")
def test_skipped_for_want_of_streams() -> None:
    served = Served()
    served.wire.transport.slots = 0
    track = served.catalog.add(Track(NAME))
    assert served.answers[-1] == m.PublishSkipped((b"room1",), b"video")
    served.wire.transport.slots = 1
    served.update()
    assert served.offers == []
    served.catalog.remove(track)
    served.catalog.add(Track(NAME))
    assert [offer.name for offer in served.offers] == [NAME]


@pytest.mark.rule("M079", "M080")
def test_overlaps_in_a_space_of_its_own() -> None:
    served = Served(NAME)
    again = served.wire.bidi(m.SubscribeTracks(served.wire.id(), ROOM1))
    error = served.wire.last(again)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.PREFIX_OVERLAP
    names = served.wire.bidi(m.SubscribeNamespace(served.wire.id(), ROOM1))
    assert served.wire.last(names) == m.RequestOk()


@pytest.mark.rule("M516", "M527", "M388")
def test_what_is_offered_outlives_the_interest() -> None:
    served = Served(NAME)
    (publish,) = served.wire.opened(unidirectional=False)
    served.wire.send(publish, m.RequestOk())
    assert served.update(forward=False) == m.RequestOk()
    assert served.update(track_namespace_prefix=(b"other",)) == m.RequestOk()
    served.catalog.track(NAME).subgroup(0).object(0, b"x")
    assert len(served.wire.opened(unidirectional=True)) == 2
    served.catalog.add(Track(ELSEWHERE))
    assert served.offers[-1].parameters == Parameters(forward=False)
    served.wire.stop(served.stream)
    served.wire.reset(served.stream)
    assert len(served.wire.answer(publish).messages) == 1
    assert served.wire.answer(publish).end is None
    served.catalog.add(Track(FullTrackName((b"other",), b"late")))
    assert len(served.offers) == 2
    assert not served.wire.session._context.track_interests


@pytest.mark.rule("M316")
def test_a_prefix_that_overlaps_closes_the_request() -> None:
    served = Served()
    served.wire.bidi(m.SubscribeTracks(served.wire.id(), (b"other",)))
    error = served.update(track_namespace_prefix=(b"other", b"a"))
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.PREFIX_OVERLAP
    assert served.wire.answer(served.stream).end == FIN


# -- as subscriber -------------------------------------------------------------------------------


class Tracks:
    """A TracksListener that accepts everything."""

    def __init__(self) -> None:
        self.accepts = 0
        self.requests: list[Any] = []
        self.receivers: list[Receiver] = []
        self.skips: list[FullTrackName] = []
        self.ends: list[MoqtError | None] = []

    def accepted(self) -> None:
        self.accepts += 1

    def published(self, request: Any) -> None:
        self.requests.append(request)
        self.receivers.append(Receiver())
        request.accept(self.receivers[-1])

    def skipped(self, name: FullTrackName) -> None:
        self.skips.append(name)

    def ended(self, error: MoqtError | None) -> None:
        self.ends.append(error)


class Asks:
    """A SUBSCRIBE_TRACKS of ours towards a peer of octets."""

    def __init__(self, parameters: Parameters = NO_PARAMETERS) -> None:
        self.wire = Wire(is_client=True)
        self.tracks = Tracks()
        self.request = self.wire.session.subscribe_tracks(LIVE, parameters, self.tracks)
        self.stream = self.request.stream

    def say(self, *messages: m.Message, fin: bool = False) -> None:
        """The publisher says something."""
        self.wire.send(self.stream, *messages, fin=fin)


def test_octets_of_subscribe_tracks() -> None:
    asks = Asks(Parameters(forward=False))
    octets, _ = asks.wire.data(asks.stream)
    assert octets == bytes.fromhex("51 000a 00 01 04 6c697665 01 10 00")


@pytest.mark.rule("M528")
@pytest.mark.parametrize("first", ["ok", "publish"])
def test_each_publish_goes_to_the_listener(first: str) -> None:
    asks = Asks()
    if first == "ok":
        asks.say(m.RequestOk())
    asks.wire.bidi(m.Publish(asks.wire.id(), NAME, 7))
    if first == "publish":
        asks.say(m.RequestOk())
    foreign = asks.wire.bidi(m.Publish(asks.wire.id(), ELSEWHERE, 8))
    assert asks.tracks.accepts == 1
    assert [one.name for one in asks.tracks.requests] == [NAME]
    error = asks.wire.last(foreign)
    assert isinstance(error, m.RequestError)
    asks.say(m.PublishSkipped((b"room1",), b"audio"))
    assert asks.tracks.skips == [OTHER]


@pytest.mark.rule("M068")
def test_the_fill_of_each_is_expected() -> None:
    fill = Parameters(location_filter=LocationFilter.since(0, 0))
    asks = Asks(Parameters(fill=fill))
    largest = Parameters(largest_object=Location(12, 3))
    asks.wire.bidi(m.Publish(asks.wire.id(), NAME, 7, largest))
    asks.wire.uni(bytes.fromhex("05 01 18 0c 00 80 01 41"), fin=True)
    assert [record.what for record in asks.tracks.receivers[0].fetches] == [1]


@pytest.mark.rule("M078")
@pytest.mark.parametrize("first", [m.PublishSkipped((), b"x"), m.Namespace(LIVE)])
def test_the_first_message_is_an_answer(first: m.Message) -> None:
    asks = Asks()
    asks.say(first)
    assert asks.wire.fault is VIOLATION


@pytest.mark.rule("M531")
@pytest.mark.parametrize("wrong", [m.Namespace(()), m.NamespaceDone(()), m.PublishDone(2, 0)])
def test_messages_of_other_requests(wrong: m.Message) -> None:
    asks = Asks()
    asks.say(m.RequestOk(), wrong)
    assert asks.wire.fault is VIOLATION


def test_a_new_prefix_counts_once_it_is_granted() -> None:
    asks = Asks()
    asks.say(m.RequestOk(Parameters(expires=7)))
    assert asks.request.expires == 7
    asks.request.update(Parameters(track_namespace_prefix=(b"other",), forward=False))
    asks.say(m.PublishSkipped((b"room1",), b"video"))
    asks.say(m.RequestOk(), m.PublishSkipped((), b"video"))
    assert asks.tracks.skips == [NAME, ELSEWHERE]
    asks.wire.bidi(m.Publish(asks.wire.id(), ELSEWHERE, 8))
    asks.wire.bidi(m.Publish(asks.wire.id(), NAME, 9))
    assert [one.name for one in asks.tracks.requests] == [ELSEWHERE]


@pytest.mark.rule("M516")
@pytest.mark.parametrize("how", ["fin", "cancel", "update", "refused"])
def test_the_end_of_the_interest(how: str) -> None:
    asks = Asks()
    if how == "refused":
        asks.say(m.RequestError(RequestCode.UNAUTHORIZED), fin=True)
    else:
        asks.say(m.RequestOk())
        asks.wire.bidi(m.Publish(asks.wire.id(), NAME, 7))
    if how == "fin":
        asks.say(fin=True)
        assert asks.tracks.ends == [None]
    elif how == "cancel":
        asks.request.cancel()
        assert asks.tracks.ends == []
    elif how == "update":
        asks.request.update(NO_PARAMETERS)
        asks.say(m.RequestError(RequestCode.UNAUTHORIZED), fin=True)
    if how in ("update", "refused"):
        assert [type(error) for error in asks.tracks.ends] == [RequestFailed]
    late = asks.wire.bidi(m.Publish(asks.wire.id(), OTHER, 8))
    assert isinstance(asks.wire.last(late), m.RequestError)
    if how != "refused":
        asks.wire.uni(bytes.fromhex("14 07 0c 00 00 00 01 41"), fin=True)
        assert asks.tracks.receivers[0].locations == [(12, 0)]
    assert not asks.wire.session._context.tracks_wanted
    assert leftovers(asks.wire.session).keys() <= {"owners", "aliases", "peer_requests"}


# -- two sessions --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_tracks_from_end_to_end(seed: int) -> None:
    world = World(seed=seed)
    first = world.catalog.add(Track(NAME, CACHED))
    first.subgroup(0).object(0, b"old")
    tracks = Tracks()
    world.run()
    fill = Parameters(location_filter=LocationFilter.since(0, 0))
    world.client.session.subscribe_tracks(LIVE, Parameters(fill=fill), tracks)
    world.run()
    second = world.catalog.add(Track(OTHER))
    for track in (first, second):
        writer = track.subgroup(1)
        writer.object(0, b"new")
        writer.finish()
        world.run()
        track.end()
    world.run()
    assert [one.name for one in tracks.requests] == [NAME, OTHER]
    assert [one.locations for one in tracks.receivers] == [[(0, 0), (1, 0)], [(1, 0)]]
    assert all(one.end is not None and one.end[2] for one in tracks.receivers)


def test_stream_credit_decides_what_is_skipped() -> None:
    world = World(max_streams=4)
    for number in range(6):
        world.catalog.add(Track(FullTrackName(ROOM1, b"%d" % number)))
    tracks = Tracks()
    world.run()
    world.client.session.subscribe_tracks(LIVE, NO_PARAMETERS, tracks)
    world.run()
    assert (len(tracks.requests), len(tracks.skips)) == (4, 2)
