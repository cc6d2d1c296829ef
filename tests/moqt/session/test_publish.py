"""PUBLISH as its sender: octets out, answers and updates of the subscriber in (draft-22 §9.8)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import SetupOptions, TrackProperties
from moqt.errors import DoneCode, Misuse, MoqtError, RequestCode, RequestFailed, SessionCode
from moqt.model import (
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    LocationRange,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Track
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved

from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Receiver, World

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
ONE = (RangeFilter(RangeFilterType.OBJECT_ID, (Span(1, 1),)),)
PROPERTIES = TrackProperties(max_cache_duration=30000)


class Offer:
    """A track that we offer, and what its publisher hears."""

    def __init__(
        self,
        parameters: Parameters = NO_PARAMETERS,
        *,
        name: FullTrackName = NAME,
        objects: int = 0,
        wire: Wire | None = None,
        **config: Any,
    ) -> None:
        self.wire = wire or Wire(config=SessionConfig(**config))
        self.track = Track(name, PROPERTIES)
        for one in range(objects):
            self.track.subgroup(3, one).object(one, b"old")
        self.answers: list[MoqtError | None] = []
        self.request = self.wire.session.publish(
            self.track, parameters, self.track.order, self.answers.append
        )
        self.track.offer(self.request)
        self.stream = self.request.stream

    def say(self, *messages: m.Message, fin: bool = False) -> None:
        """The subscriber says something."""
        self.wire.send(self.stream, *messages, fin=fin)

    def update(self, **parameters: Any) -> m.Message:
        """The subscriber updates; our answer."""
        self.say(m.RequestUpdate(self.wire.id(), Parameters(**parameters)))
        return self.wire.last(self.stream)

    def pulled(self) -> list[tuple[bytes, Any]]:
        """What our data streams have brought so far."""
        streams = [one for one in self.wire.opened(unidirectional=True)][1:]
        return [self.wire.pulled(one) for one in streams]


@pytest.mark.rule("M287")
def test_answers_that_the_subscriber_never_takes_are_bounded() -> None:
    world = World(server_config=SessionConfig(unread_answers=400), window=2000).run(1)
    track, taken = Track(NAME), []

    class Taking(Unserved):
        def on_publish(self, request: Any) -> None:
            taken.append(request)
            request.accept(Receiver())

    world.client.session._context.handler = Taking()
    track.offer(world.server.session.publish(track, NO_PARAMETERS, track.order, [].append))
    world.run(1)
    world.pair.stop_reading("to_client")
    for _ in range(2000):
        world.client.session._context.peer_options = SetupOptions(max_request_updates=0)
        taken[0].update(NO_PARAMETERS)
        world.run(0.01)
        if world.server.ended is not None:
            break
    assert world.server.ended is not None
    assert world.server.ended[0] == SessionCode.TOO_MANY_REQUEST_UPDATES


@pytest.mark.rule("M385", "M326")
def test_octets_of_a_publish() -> None:
    offer = Offer(Parameters(forward=True), objects=1)
    octets, end = offer.wire.data(offer.stream)
    head = "1d 001e 01 02 04 6c697665 05 726f6f6d31 05 766964656f 01"
    assert octets == bytes.fromhex(head + "02 09 03 00 07 01 04 c07530")
    assert end is None
    assert not offer.pulled()  # from the next object on


@pytest.mark.rule("M326", "M027")
@pytest.mark.parametrize("forward", [None, True, False])
def test_objects_before_the_answer_unless_paused(forward: bool | None) -> None:
    offer = Offer(Parameters(forward=forward), objects=1)
    offer.track.subgroup(4).object(0, b"new")
    found = [octets for octets, _ in offer.pulled()]
    if forward is False:
        assert found == []
    else:
        assert found == [bytes.fromhex("50 01 04 80 00 03") + b"new"]


@pytest.mark.rule("M326")
def test_a_paused_offer_starts_where_it_is_resumed() -> None:
    offer = Offer(Parameters(forward=False))
    offer.say(m.RequestOk())
    writer = offer.track.subgroup(4)
    writer.object(0, b"a")
    assert offer.update(forward=True) == m.RequestOk(Parameters(largest_object=Location(4, 0)))
    writer.object(1, b"b")
    writer.finish()
    assert offer.request.within == LocationRange(Location(4, 1), None)
    assert [(end, octets[-1:]) for octets, end in offer.pulled()] == [(FIN, b"b")]


@pytest.mark.rule("M021")
def test_the_answer_is_heard_once() -> None:
    offer = Offer()
    offer.say(m.RequestOk(Parameters(expires=5000)))
    assert offer.answers == [None]
    assert offer.request.expires == 5000


@pytest.mark.rule("M022")
@pytest.mark.parametrize("second", [m.RequestOk(), m.RequestError(0x20)], ids=["ok", "error"])
def test_a_second_answer(second: m.Message) -> None:
    offer = Offer()
    offer.say(m.RequestOk(), second)
    assert offer.wire.fault is VIOLATION


@pytest.mark.rule("M302")
def test_properties_in_publish_ok() -> None:
    offer = Offer()
    offer.say(m.RequestOk(NO_PARAMETERS, bytes.fromhex("04 01")))
    assert offer.wire.fault is VIOLATION


@pytest.mark.rule("M031", "M324")
def test_refused() -> None:
    offer = Offer()
    writer = offer.track.subgroup(0)
    writer.object(0, b"early")
    assert [end for _, end in offer.pulled()] == [None]
    offer.say(m.RequestError(RequestCode.UNINTERESTED, 0, "no"), fin=True)
    (error,) = offer.answers
    assert isinstance(error, RequestFailed)
    assert error.code == RequestCode.UNINTERESTED
    writer.object(1, b"late")
    offer.track.subgroup(1).object(0, b"late")
    assert [end for _, end in offer.pulled()] == [1]
    assert not offer.track._subscriptions
    offer.track.end()
    assert len(offer.wire.answer(offer.stream).messages) == 1
    assert offer.wire.answer(offer.stream).end == FIN
    assert not leftovers(offer.wire.session)


def test_no_answer_at_all() -> None:
    offer = Offer()
    offer.say(fin=True)
    assert [type(error) for error in offer.answers] == [RequestFailed]
    assert not leftovers(offer.wire.session)


@pytest.mark.rule("M032")
def test_aliases_differ() -> None:
    first = Offer()
    second = Offer(name=OTHER, wire=first.wire)
    assert first.request.track_alias != second.request.track_alias


@pytest.mark.rule("M311", "M312", "M319")
def test_the_subscriber_changes_what_it_wants() -> None:
    offer = Offer()
    offer.say(m.RequestOk())
    assert offer.update() == m.RequestOk()
    answer = offer.update(
        subscriber_priority=7,
        location_filter=LocationFilter.since(9, 0),
        range_filters=ONE,
    )
    assert answer == m.RequestOk()
    offer.update(forward=False)
    request = offer.request
    assert (request.forward, request.priority, request.within.start, request.filters.spans) == (
        *(False, 7, Location(9, 0), 1),
    )
    assert offer.update(forward=True) == m.RequestOk()
    writer = offer.track.subgroup(9)
    writer.object(0, b"a")
    writer.object(1, b"b")
    assert [octets[-1:] for octets, _ in offer.pulled()] == [b"b"]


@pytest.mark.rule("M367")
def test_group_order_is_fixed() -> None:
    offer = Offer(Parameters(group_order=GroupOrder.DESCENDING))
    assert offer.request.group_order is GroupOrder.DESCENDING
    offer.say(m.RequestOk(), bytes.fromhex("02 0004 00 01 22 01"))
    assert offer.wire.fault is VIOLATION


def test_an_update_before_the_answer() -> None:
    offer = Offer()
    offer.say(m.RequestUpdate(0))
    assert offer.wire.fault is VIOLATION


@pytest.mark.rule("M313")
def test_a_failed_update_of_the_subscriber() -> None:
    offer = Offer()
    offer.say(m.RequestOk())
    many = tuple(Span(i, i) for i in range(40))
    offer.update(range_filters=(RangeFilter(RangeFilterType.OBJECT_ID, many),))
    _, error, done = offer.wire.answer(offer.stream).messages
    assert isinstance(error, m.RequestError)
    assert isinstance(done, m.PublishDone)
    assert done.status == DoneCode.UPDATE_FAILED
    assert offer.wire.answer(offer.stream).end == FIN


@pytest.mark.rule("M068")
def test_a_fill_by_update_carries_the_id_of_the_update() -> None:
    offer = Offer(objects=2)
    offer.say(m.RequestOk())
    offer.wire.next_id = 12
    offer.update(fill=Parameters(location_filter=LocationFilter.since(0, 0)))
    ((octets, end),) = offer.pulled()
    assert octets[:2] == bytes.fromhex("05 0c")
    assert octets.count(b"old") == 2
    assert end == FIN


@pytest.mark.rule("M287")
def test_too_many_updates_at_once() -> None:
    offer = Offer(max_request_updates=2)
    offer.say(m.RequestOk())
    for _ in range(3):
        offer.say(m.RequestUpdate(offer.wire.id()))
    assert offer.wire.fault is None
    offer.say(*(m.RequestUpdate(offer.wire.id()) for _ in range(3)))
    assert offer.wire.fault is SessionCode.TOO_MANY_REQUEST_UPDATES


# -- updates of the publisher --------------------------------------------------------------------


def test_an_update_of_the_publisher() -> None:
    offer = Offer()
    offer.say(m.RequestOk())
    offer.request.update(Parameters(forward=False))
    assert offer.wire.last(offer.stream) == m.RequestUpdate(3, Parameters(forward=False))
    assert offer.request.forward is False
    offer.say(m.RequestOk(Parameters(expires=9)))
    assert offer.request.expires == 9
    offer.say(m.RequestOk())
    assert offer.wire.fault is VIOLATION


@pytest.mark.rule("M313")
def test_a_failed_update_of_the_publisher() -> None:
    offer = Offer()
    offer.say(m.RequestOk())
    offer.request.update(NO_PARAMETERS)
    offer.say(m.RequestError(RequestCode.UNAUTHORIZED, 0, "no"))
    done = offer.wire.last(offer.stream)
    assert done == m.PublishDone(DoneCode.UPDATE_FAILED, 0, "no")


@pytest.mark.rule("M286")
@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(range_filters=ONE),
        Parameters(fill=NO_PARAMETERS),
        Parameters(new_group_request=0),
        Parameters(group_order=GroupOrder.ASCENDING),
        Parameters(rendezvous_timeout=1),
    ],
)
def test_what_a_publisher_cannot_update(parameters: Parameters) -> None:
    offer = Offer()
    offer.say(m.RequestOk())
    with pytest.raises(Misuse):
        offer.request.update(parameters)
    limited = Offer(wire=Wire(options=SetupOptions(max_request_updates=1)))
    with pytest.raises(Misuse, match="established"):
        limited.request.update(NO_PARAMETERS)
    limited.say(m.RequestOk())
    limited.request.update(NO_PARAMETERS)
    with pytest.raises(Misuse, match="unanswered"):
        limited.request.update(NO_PARAMETERS)


# -- ends ----------------------------------------------------------------------------------------


@pytest.mark.rule("M028", "M030", "M158", "M327", "M329")
@pytest.mark.parametrize("answered", ["before", "after"])
def test_the_end_waits_for_its_streams_and_for_the_answer(answered: str) -> None:
    offer = Offer()
    if answered == "before":
        offer.say(m.RequestOk())
    writer = offer.track.subgroup(0)
    writer.object(0, b"x")
    writer.finish()
    offer.track.end()
    if answered == "after":
        offer.say(m.RequestOk())
    assert len(offer.wire.answer(offer.stream).messages) == 1
    offer.pulled()
    assert offer.wire.last(offer.stream) == m.PublishDone(DoneCode.TRACK_ENDED, 1)
    assert offer.wire.answer(offer.stream).end == FIN
    offer.say(m.RequestUpdate(offer.wire.id()), fin=True)  # crossed our end
    assert offer.wire.fault is None
    assert not leftovers(offer.wire.session)


@pytest.mark.rule("M329")
@pytest.mark.parametrize("answer", [m.RequestOk(), m.RequestError(0x20)], ids=["ok", "error"])
def test_withdrawn_before_the_answer(answer: m.Message) -> None:
    offer = Offer()
    writer = offer.track.subgroup(0)
    writer.object(0, b"x")
    offer.pulled()
    offer.request.cancel()
    done = offer.wire.last(offer.stream)
    assert done == m.PublishDone(DoneCode.INTERNAL_ERROR, 1, "withdrawn")
    offer.say(answer, fin=True)
    assert offer.wire.fault is None
    assert not leftovers(offer.wire.session)


@pytest.mark.rule("M029")
@pytest.mark.parametrize("state", ["pending", "open"])
def test_stop_sending_resets_everything(state: str) -> None:
    offer = Offer()
    if state == "open":
        offer.say(m.RequestOk())
    offer.track.subgroup(0).object(0, b"x")
    offer.pulled()
    offer.wire.stop(offer.stream)
    assert [end for _, end in offer.pulled()] == [1]
    offer.track.subgroup(1).object(0, b"y")
    assert len(offer.pulled()) == 1
    offer.wire.reset(offer.stream)
    assert not offer.track._subscriptions
    assert not leftovers(offer.wire.session)


@pytest.mark.rule("M028")
def test_the_end_of_a_paused_one_is_said() -> None:
    offer = Offer(Parameters(forward=False))
    offer.say(m.RequestOk())
    offer.track.end()
    assert offer.wire.last(offer.stream) == m.PublishDone(DoneCode.TRACK_ENDED, 0)


def test_the_session_is_lost() -> None:
    offer = Offer()
    offer.track.subgroup(0).object(0, b"x")
    offer.wire.lose()
    assert len(offer.answers) == 1
    assert not offer.track._subscriptions


# -- expiry --------------------------------------------------------------------------------------


def test_what_expires_and_what_is_extended() -> None:
    offer = Offer(lifetime=2.0)
    first = offer.wire.answer(offer.stream).messages[0]
    assert isinstance(first, m.Publish)
    assert first.parameters.expires == 2000
    offer.say(m.RequestOk())
    offer.wire.wait(1.5)
    assert offer.update() == m.RequestOk(Parameters(expires=2000))
    offer.wire.wait(1.5)
    assert offer.request.active
    offer.wire.wait(1.0)
    done = offer.wire.last(offer.stream)
    assert isinstance(done, m.PublishDone)
    assert done.status == DoneCode.EXPIRED
    offer.say(fin=True)
    assert not leftovers(offer.wire.session)


def test_a_publish_that_cannot_be_written_leaves_nothing() -> None:
    wire = Wire(config=SessionConfig(lifetime=1.0))
    with pytest.raises(Misuse):
        Offer(Parameters(rendezvous_timeout=1), wire=wire)
    assert not leftovers(wire.session)


# -- PUBLISH_STATE_NOTIFY ------------------------------------------------------------------------


@pytest.mark.rule("M339", "M340")
def test_a_notice_says_how_far_the_track_has_come() -> None:
    offer = Offer(objects=2)
    offer.track.notify()  # not before the answer
    assert len(offer.wire.answer(offer.stream).messages) == 1
    offer.say(m.RequestOk())
    offer.track.notify()
    expected = m.PublishStateNotify(Parameters(largest_object=Location(3, 1)))
    assert offer.wire.last(offer.stream) == expected


@pytest.mark.rule("M337")
def test_a_notice_of_the_subscriber() -> None:
    offer = Offer()
    offer.say(m.RequestOk(), m.PublishStateNotify())
    assert offer.wire.fault is VIOLATION
