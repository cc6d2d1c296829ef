"""PUBLISH as its receiver: offers accepted, refused, updated, ended (draft-22 §3.1, §9.8)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.errors import (
    DoneCode,
    MalformedTrack,
    Misuse,
    RequestCode,
    RequestFailed,
    SessionCode,
    StreamCode,
)
from moqt.model import Location, LocationFilter, RangeFilter, RangeFilterType, Span
from moqt.publisher import Catalog, Track
from moqt.session.config import SessionConfig
from moqt.session.ports import TrackInfo, Unserved

from .wire import NAME, OTHER, Asked, Wire, leftovers
from .worlds import Receiver, World

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
#: Alias 7, group 12, subgroup 0, one object "A".
STREAM = bytes.fromhex("14 07 0c 00 00 00 01 41")
ONE = (RangeFilter(RangeFilterType.OBJECT_ID, (Span(1, 1),)),)


class Offered(Asked):
    """Notes what is offered."""

    def on_publish(self, request: Any) -> None:
        self.requests.append(request)


class Taken:
    """A track on offer to us, and what its receiver hears."""

    def __init__(
        self,
        parameters: Parameters = NO_PARAMETERS,
        properties: bytes = b"",
        *more: m.Message,
        accept: bool = True,
        **config: Any,
    ) -> None:
        self.wire = Wire(handler=Offered(), config=SessionConfig(**config))
        offer = m.Publish(self.wire.id(), NAME, 7, parameters, properties)
        self.stream = self.wire.bidi(offer, *more)
        (self.request,) = self.wire.handler.requests
        self.receiver = Receiver()
        self.ends: list[str] = []
        self.request.on_end = lambda: self.ends.append("end")
        if accept:
            self.request.accept(self.receiver)

    def say(self, *messages: m.Message | bytes, fin: bool = False) -> None:
        """The publisher says something."""
        self.wire.send(self.stream, *messages, fin=fin)

    @property
    def said(self) -> list[m.Message]:
        """What we have said."""
        return self.wire.answer(self.stream).messages


@pytest.mark.rule("M021", "M528")
def test_accepted_once() -> None:
    taken = Taken(
        Parameters(expires=5, largest_object=Location(3, 0)), bytes.fromhex("0e 64 22 01")
    )
    taken.request.accept(Receiver())
    taken.request.refuse(RequestCode.UNINTERESTED)
    assert taken.said == [m.RequestOk()]
    info = taken.receiver.info
    assert isinstance(info, TrackInfo)
    assert (info.largest, info.expires) == (Location(3, 0), 5)
    assert info.properties.dynamic_groups
    # Priority is the default of the properties: 100.
    taken.wire.uni(bytes.fromhex("34 07 0c 00 00 01 41"), fin=True)
    ((head, payload),) = taken.receiver.objects
    assert (head.priority, payload) == (100, b"A")
    taken.wire.datagram(bytes.fromhex("00 07 0c 05 80 6869"))
    assert [data for _, data in taken.receiver.datagrams] == [b"hi"]


@pytest.mark.rule("M512", "M037")
@pytest.mark.parametrize("first", ["data", "publish"])
def test_objects_before_the_answer_are_kept(first: str) -> None:
    if first == "data":
        wire = Wire(handler=Offered())
        wire.uni(STREAM, fin=True)
        wire.bidi(m.Publish(0, NAME, 7))
        (request,) = wire.handler.requests
    else:
        taken = Taken(accept=False)
        wire, request = taken.wire, taken.request
        wire.uni(STREAM, fin=True)
    receiver = Receiver()
    request.accept(receiver)
    assert receiver.locations == [(12, 0)]
    assert wire.fault is None


@pytest.mark.rule("M325", "M324")
def test_refused_and_its_data_stopped() -> None:
    taken = Taken(accept=False)
    early = taken.wire.uni(STREAM)
    taken.request.refuse(RequestCode.UNINTERESTED, "no", 250)
    late = taken.wire.uni(STREAM)
    assert taken.said == [m.RequestError(RequestCode.UNINTERESTED, 251, "no")]
    assert taken.wire.answer(taken.stream).end == FIN
    assert [taken.wire.stopped(one) for one in (early, late)] == [StreamCode.CANCELLED] * 2
    taken.request.accept(taken.receiver)
    assert taken.receiver.info is None
    assert taken.ends == ["end"]
    taken.say(m.PublishStateNotify(), m.PublishDone(DoneCode.TRACK_ENDED, 2), fin=True)
    assert taken.wire.fault is None
    assert not leftovers(taken.wire.session)


@pytest.mark.rule("M033", "M032")
@pytest.mark.parametrize("state", ["offered", "accepted"])
@pytest.mark.parametrize(
    ("name", "fault"), [(OTHER, SessionCode.DUPLICATE_TRACK_ALIAS), (NAME, None)]
)
def test_an_alias_names_one_track(state: str, name: Any, fault: SessionCode | None) -> None:
    taken = Taken(accept=state == "accepted")
    taken.wire.bidi(m.Publish(2, name, 7))
    assert taken.wire.fault is fault


@pytest.mark.rule("M033")
def test_subscribe_ok_with_the_alias_of_an_offer() -> None:
    wire = Wire(handler=Offered())
    request = wire.session.subscribe(OTHER, NO_PARAMETERS, Receiver())
    wire.bidi(m.Publish(0, NAME, 7))
    wire.send(request.stream, m.SubscribeOk(7))
    assert wire.fault is SessionCode.DUPLICATE_TRACK_ALIAS


def test_an_alias_is_free_again() -> None:
    taken = Taken()
    taken.say(m.PublishDone(DoneCode.TRACK_ENDED, 0), fin=True)
    taken.wire.bidi(m.Publish(2, OTHER, 7))
    again = Receiver()
    taken.wire.handler.requests[-1].accept(again)
    taken.wire.uni(STREAM, fin=True)
    assert taken.wire.fault is None
    assert again.locations == [(12, 0)]


@pytest.mark.rule("M088", "M087")
def test_a_mandatory_property_that_nobody_understands() -> None:
    wire = Wire(handler=Offered())
    early = wire.uni(STREAM)
    stream = wire.bidi(m.Publish(0, NAME, 7, NO_PARAMETERS, bytes.fromhex("c04000 01")))
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.UNSUPPORTED_EXTENSION
    assert wire.handler.requests == []
    assert wire.stopped(early) == StreamCode.CANCELLED


# -- updates -------------------------------------------------------------------------------------


@pytest.mark.rule("M310", "M311", "M312")
def test_both_sides_update() -> None:
    taken = Taken(Parameters(forward=False))
    taken.request.update(Parameters(forward=True, range_filters=ONE))
    assert taken.said[1] == m.RequestUpdate(1, Parameters(forward=True, range_filters=ONE))
    taken.say(m.RequestUpdate(2), m.RequestOk(Parameters(expires=77)))
    assert taken.said[2:] == [m.RequestOk()]
    assert taken.request.expires == 77
    taken.say(m.RequestOk())
    assert taken.wire.fault is VIOLATION


def test_updates_of_the_publisher_wait_for_our_answer() -> None:
    taken = Taken(NO_PARAMETERS, b"", m.RequestUpdate(2, Parameters(forward=False)), accept=False)
    assert taken.said == []
    taken.request.accept(taken.receiver)
    assert taken.said == [m.RequestOk(), m.RequestOk()]


def test_range_filters_are_the_subscribers() -> None:
    taken = Taken()
    taken.say(m.RequestUpdate(2, Parameters(range_filters=ONE)))
    assert taken.wire.fault is VIOLATION


@pytest.mark.parametrize("asked", [{"fill": NO_PARAMETERS}, {"new_group_request": 0}])
def test_what_only_a_subscriber_asks_for(asked: Any) -> None:
    taken = Taken()
    taken.say(m.RequestUpdate(2, Parameters(**asked)))
    error = taken.said[-1]
    assert isinstance(error, m.RequestError)
    taken.say(m.PublishDone(DoneCode.UPDATE_FAILED, 0), fin=True)
    assert taken.receiver.end == (DoneCode.UPDATE_FAILED, "", True)
    assert not leftovers(taken.wire.session)


@pytest.mark.rule("M389")
def test_new_groups_only_of_dynamic_tracks() -> None:
    plain = Taken()
    with pytest.raises(Misuse, match="DYNAMIC_GROUPS"):
        plain.request.update(Parameters(new_group_request=0))
    dynamic = Taken(NO_PARAMETERS, bytes.fromhex("30 01"))
    dynamic.request.update(Parameters(new_group_request=0))
    assert dynamic.said[-1] == m.RequestUpdate(1, Parameters(new_group_request=0))


@pytest.mark.rule("M068")
def test_a_fill_by_update() -> None:
    taken = Taken(Parameters(largest_object=Location(12, 3)))
    taken.request.update(Parameters(fill=Parameters(location_filter=LocationFilter.since(0, 0))))
    taken.say(m.RequestOk(Parameters(largest_object=Location(12, 3))))
    taken.wire.uni(bytes.fromhex("05 01 18 0c 00 80 01 41"), fin=True)
    assert [record.what for record in taken.receiver.fetches] == [1]


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["stream", "done"])
def test_the_end_waits_for_its_streams(order: str) -> None:
    taken = Taken()
    done = m.PublishDone(DoneCode.TRACK_ENDED, 1, "all")
    if order == "stream":
        taken.wire.uni(STREAM, fin=True)
    taken.say(done, fin=True)
    if order == "done":
        assert taken.receiver.end is None
        taken.wire.uni(STREAM, fin=True)
    assert taken.receiver.end == (DoneCode.TRACK_ENDED, "all", True)
    assert taken.ends == ["end"]
    assert taken.wire.answer(taken.stream).end == FIN
    assert not leftovers(taken.wire.session)


def test_a_short_track_ends_before_it_is_accepted() -> None:
    done = m.PublishDone(DoneCode.TRACK_ENDED, 1)
    taken = Taken(NO_PARAMETERS, b"", done, accept=False)
    taken.say(fin=True)
    taken.wire.uni(STREAM, fin=True)
    assert taken.ends == []
    taken.request.accept(taken.receiver)
    assert taken.receiver.locations == [(12, 0)]
    assert taken.receiver.end == (DoneCode.TRACK_ENDED, "", True)
    assert taken.said == [m.RequestOk()]
    assert not leftovers(taken.wire.session)


def test_done_twice() -> None:
    done = m.PublishDone(DoneCode.TRACK_ENDED, 1)
    taken = Taken(NO_PARAMETERS, b"", done, accept=False)
    taken.say(done)
    assert taken.wire.fault is VIOLATION


@pytest.mark.parametrize("how", ["fin", "reset", "stop", "lose"])
@pytest.mark.parametrize("accept", [True, False])
def test_the_publisher_gives_up(how: str, accept: bool) -> None:
    taken = Taken(accept=accept)
    data = taken.wire.uni(STREAM)
    if how == "fin":
        taken.say(fin=True)
    else:
        getattr(taken.wire, how)(*([] if how == "lose" else [taken.stream]))
    assert taken.ends == ["end"]
    assert (taken.receiver.error is not None) is accept
    taken.request.accept(Receiver())
    if how != "lose":
        assert taken.wire.stopped(data) == StreamCode.CANCELLED
        assert taken.wire.fault is None


def test_cancelled_by_us() -> None:
    taken = Taken()
    data = taken.wire.uni(STREAM)
    taken.request.cancel()
    assert taken.wire.answer(taken.stream).end == StreamCode.CANCELLED
    assert taken.wire.stopped(taken.stream) == StreamCode.CANCELLED
    assert taken.wire.stopped(data) == StreamCode.CANCELLED
    assert taken.receiver.error is None
    assert taken.ends == ["end"]


def test_a_malformed_track_is_cancelled() -> None:
    taken = Taken()

    def refuse(head: Any) -> Any:
        raise MalformedTrack("no")

    taken.receiver.open_subgroup = refuse  # type: ignore[method-assign]
    taken.wire.uni(STREAM)
    assert isinstance(taken.receiver.error, MalformedTrack)
    assert taken.wire.stopped(taken.stream) == StreamCode.MALFORMED_TRACK
    assert taken.wire.fault is None


def test_what_we_grant_expires_unless_it_is_extended() -> None:
    taken = Taken(lifetime=2.0)
    assert taken.said == [m.RequestOk(Parameters(expires=2000))]
    taken.wire.wait(1.5)
    taken.say(m.RequestUpdate(2))
    assert taken.said[-1] == m.RequestOk(Parameters(expires=2000))
    taken.wire.wait(1.5)
    assert taken.receiver.error is None
    taken.wire.wait(1.0)
    assert isinstance(taken.receiver.error, RequestFailed)
    assert taken.wire.stopped(taken.stream) == StreamCode.CANCELLED


@pytest.mark.rule("M338", "M529")
def test_notices_are_heard_and_not_answered() -> None:
    taken = Taken(max_request_updates=1)
    heard: list[Parameters] = []
    taken.request.on_notify = heard.append
    notice = bytes.fromhex("22 0006 02 09 14 04 07 00")
    taken.say(notice * 3)
    assert heard == [Parameters(largest_object=Location(20, 4), forward=False)] * 3
    assert taken.said == [m.RequestOk()]
    assert taken.wire.fault is None


@pytest.mark.rule("M336")
@pytest.mark.parametrize("kind", [m.Fetch, m.TrackStatus])
def test_notices_on_other_requests(kind: Any) -> None:
    wire = Wire()
    wire.bidi(kind(0, NAME), m.PublishStateNotify())
    assert wire.fault is VIOLATION


# -- two sessions --------------------------------------------------------------------------------


class Takes(Unserved):
    """Accepts everything."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.receivers: list[Receiver] = []

    def on_publish(self, request: Any) -> None:
        self.requests.append(request)
        self.receivers.append(Receiver())
        request.accept(self.receivers[-1])


@pytest.mark.rule("M024")
@pytest.mark.parametrize("seed", range(3))
def test_a_track_from_end_to_end(seed: int) -> None:
    takes = Takes()
    world = World(seed=seed, server_handler=takes).run()
    track = Track(NAME)
    track.subgroup(0).object(0, b"before")
    catalog = Catalog()
    answers: list[Any] = []
    client: Any = world.client

    def publish(source: Any, answer: Any, parameters: Any, order: Any) -> Any:
        return world.client.session.publish(source, parameters, order, answer)

    client.publish = publish
    first = catalog.publish(track, client, answer=answers.append)
    catalog.publish(track, client)
    for group in range(1, 4):
        writer = track.subgroup(group)
        writer.object(0, b"x" * 5000)
        writer.object(1, b"y")
        writer.finish()
    world.run()
    assert answers == [None]
    takes.requests[0].update(Parameters(forward=False))
    world.run()
    assert first.forward is False
    track.subgroup(4).object(0, b"paused")
    track.end()
    world.run()
    expected = [(group, one) for group in (1, 2, 3) for one in (0, 1)]
    assert takes.receivers[0].locations == expected
    assert [one.end is not None for one in takes.receivers] == [True, True]
    assert not world.client.leftovers()
    assert not world.server.leftovers()
