"""REQUEST_UPDATE from both ends (draft-22 §9.5, §9.1.7)."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token
from moqt.codec.params import NO_PARAMETERS, TABLE, Parameters, Place
from moqt.codec.properties import SetupOptions, TrackProperties
from moqt.errors import DoneCode, Misuse, RequestCode, SessionCode, StreamCode
from moqt.model import (
    GroupOrder,
    Location,
    LocationFilter,
    LocationFilterType,
    LocationRange,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Track
from moqt.session.config import SessionConfig

from .wire import NAME, Wire, leftovers
from .worlds import Receiver, World

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
ANYTHING = LocationFilter(LocationFilterType.NONE)
TOO_MANY = Parameters(
    range_filters=(RangeFilter(RangeFilterType.OBJECT_ID, tuple(Span(i, i) for i in range(40))),)
)
BY_ALIAS = Parameters(authorization_tokens=(Token(AliasType.USE_ALIAS, 3),))


def objects(*ids: int) -> RangeFilter:
    """A filter on Object IDs."""
    return RangeFilter(RangeFilterType.OBJECT_ID, tuple(Span(i, i) for i in ids))


def groups_of(*subgroups: int) -> RangeFilter:
    """A filter on Subgroup IDs."""
    return RangeFilter(RangeFilterType.SUBGROUP, tuple(Span(i, i) for i in subgroups))


def served(track: Track | None = None, **config: Any) -> tuple[Wire, int, Any]:
    """An accepted subscription of the peer: the wire, its stream, our handle."""
    wire = Wire(config=SessionConfig(**config))
    stream = wire.bidi(m.Subscribe(wire.id(), NAME))
    (request,) = wire.handler.requests
    (track or Track(NAME)).attach(request)
    return wire, stream, request


def update(wire: Wire, stream: int, **parameters: Any) -> m.Message:
    """Send one REQUEST_UPDATE; its answer."""
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters(**parameters)))
    return wire.last(stream)


# -- as publisher --------------------------------------------------------------------------------


@pytest.mark.rule("M311", "M318", "M526", "M319", "M385")
def test_every_update_has_its_answer() -> None:
    track = Track(NAME)
    wire, stream, _ = served(track)
    assert update(wire, stream) == m.RequestOk()
    track.subgroup(3).object(1, b"x")
    expected = m.RequestOk(Parameters(largest_object=Location(3, 1)))
    assert update(wire, stream) == expected
    wire.send(stream, m.RequestUpdate(wire.id()), m.RequestUpdate(wire.id()))
    assert wire.answer(stream).messages[1:] == [m.RequestOk(), *[expected] * 3]
    assert wire.answer(stream).end is None


@pytest.mark.rule("M312", "M374", "M061", "M373")
def test_what_is_absent_stays() -> None:
    track = Track(NAME)
    track.subgroup(12).object(3, b"x")
    wire, stream, request = served(track)
    update(wire, stream, subscriber_priority=7)
    assert request.forward is True
    start = LocationFilter.since(0, 0)
    update(
        wire,
        stream,
        forward=False,
        subscriber_priority=9,
        location_filter=start,
        range_filters=(objects(1, 3), groups_of(0)),
    )
    before = (False, 9, LocationRange(Location(0, 0), None), 3)

    def state() -> tuple[Any, ...]:
        return request.forward, request.priority, request.within, request.filters.spans

    assert state() == before
    update(wire, stream)
    assert state() == before
    update(wire, stream, location_filter=LocationFilter.next_object())
    assert request.within == LocationRange(Location(12, 4), None)
    update(wire, stream, range_filters=(objects(5),))
    assert request.filters.spans == 2
    update(wire, stream, range_filters=(RangeFilter(RangeFilterType.OBJECT_ID, remove=True),))
    assert request.filters.spans == 1
    update(wire, stream, location_filter=ANYTHING)
    assert request.within == LocationRange(Location(0, 0), None)
    assert request.forward is False


@pytest.mark.rule("M313", "M311", "M059", "M285", "M479")
def test_a_failed_update_ends_the_subscription() -> None:
    track = Track(NAME)
    wire, stream, request = served(track)
    ends: list[str] = []
    detach = request.on_end
    request.on_end = lambda: (ends.append("end"), detach())
    writer = track.subgroup(0)
    writer.object(0, b"x")
    (data,) = wire.opened(unidirectional=True)[1:]
    assert wire.pulled(data)[0]
    wire.send(stream, m.RequestUpdate(wire.id(), TOO_MANY))
    error, done = wire.answer(stream).messages[1:]
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.INVALID_FILTER
    assert isinstance(done, m.PublishDone)
    assert (done.status, done.stream_count) == (DoneCode.UPDATE_FAILED, 1)
    assert wire.answer(stream).end == FIN
    assert isinstance(wire.data(data)[1], int)
    assert ends == ["end"]
    writer.object(1, b"x")  # for nobody
    wire.send(stream, m.RequestUpdate(wire.id()), fin=True)  # it cannot know yet
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.rule("M313")
def test_an_update_that_fails_while_streams_drain() -> None:
    track = Track(NAME)
    track.subgroup(0).object(0, b"x")
    wire, stream, request = served(track)
    update(wire, stream, fill=NO_PARAMETERS)  # has not had its turn yet: it is not counted
    track.end()
    assert request.active
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters(subscriber_priority=3)))
    assert isinstance(wire.last(stream), m.RequestOk)
    wire.send(stream, m.RequestUpdate(wire.id(), BY_ALIAS))
    done = wire.last(stream)
    assert isinstance(done, m.PublishDone)
    assert (done.status, done.stream_count) == (DoneCode.UPDATE_FAILED, 0)
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M494")
def test_fills_that_wait_are_bounded() -> None:
    track = Track(NAME)
    track.subgroup(0).object(0, b"x")
    wire, stream, request = served(track, max_fills=3)
    for _ in range(3):
        assert isinstance(update(wire, stream, fill=NO_PARAMETERS), m.RequestOk)
    assert isinstance(update(wire, stream, fill=NO_PARAMETERS), m.PublishDone)
    assert not request.active


@pytest.mark.rule("M059", "M285")
def test_ranges_in_force_add_up() -> None:
    wire, stream, request = served(max_filter_ranges=3)
    assert isinstance(update(wire, stream, range_filters=(objects(1, 2),)), m.RequestOk)
    assert isinstance(update(wire, stream, range_filters=(groups_of(1),)), m.RequestOk)
    assert isinstance(update(wire, stream, range_filters=(objects(1, 2, 3),)), m.PublishDone)
    assert not request.active


@pytest.mark.rule("M287")
@pytest.mark.parametrize("together", [True, False])
def test_too_many_unanswered_updates(together: bool) -> None:
    wire = Wire(config=SessionConfig(max_request_updates=3))
    stream = wire.bidi(m.Subscribe(wire.id(), NAME))
    updates = [m.RequestUpdate(wire.id()) for _ in range(4)]
    if together:  # they were all unanswered when they arrived
        wire.handler.requests[0].accept(Track(NAME))
        wire.send(stream, *updates)
    else:
        for message in updates[:3]:
            wire.send(stream, message)
        assert wire.fault is None
        wire.send(stream, updates[3])
    assert wire.fault is SessionCode.TOO_MANY_REQUEST_UPDATES


@pytest.mark.rule("M287")
def test_answers_that_are_never_taken_are_bounded() -> None:
    config = SessionConfig(max_request_updates=0, unread_answers=400)
    world = World(server_config=config, window=2000)
    world.catalog.add(Track(NAME))
    world.run(1)
    request = world.client.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    world.run(1)
    world.pair.stop_reading("to_client")
    for _ in range(2000):
        request.update(NO_PARAMETERS)
        world.run(0.01)
        if world.server.ended is not None:
            break
    assert world.server.ended is not None
    assert world.server.ended[0] == SessionCode.TOO_MANY_REQUEST_UPDATES


@pytest.mark.rule("M287")
def test_answered_updates_do_not_count() -> None:
    wire, stream, _ = served(max_request_updates=3)
    for _ in range(20):
        update(wire, stream)
    wire.send(stream, *(m.RequestUpdate(wire.id()) for _ in range(3)))
    assert wire.fault is None
    free, stream, _ = served(max_request_updates=0)
    free.send(stream, *(m.RequestUpdate(free.id()) for _ in range(100)))
    assert len(free.answer(stream).messages) == 101


@pytest.mark.rule("M311", "M157")
@pytest.mark.parametrize(
    "message", [m.Subscribe(0, NAME), m.Fetch(0, NAME), m.PublishNamespace(0, (b"a",)),
                m.SubscribeNamespace(0, (b"a",))], ids=lambda message: type(message).__name__
)  # fmt: skip
def test_updates_wait_for_the_answer_to_the_request(message: m.Message) -> None:
    wire = Wire()
    wire.next_id = 2
    stream = wire.bidi(message)
    wire.send(stream, m.RequestUpdate(2), m.RequestUpdate(4))
    assert wire.answer(stream).messages == []
    (request,) = wire.handler.requests
    if isinstance(message, m.Subscribe | m.Fetch):
        track = Track(NAME)
        track.subgroup(0).object(0, b"")
        request.accept(track)
    else:
        request.accept()
    first, *rest = wire.answer(stream).messages
    kinds = {m.Subscribe: m.SubscribeOk, m.Fetch: m.FetchOk}
    assert isinstance(first, kinds.get(type(message), m.RequestOk))
    assert [type(answer) for answer in rest] == [m.RequestOk] * 2


def test_updates_of_a_refused_request_need_no_answer() -> None:
    wire = Wire()
    stream = wire.bidi(m.Subscribe(0, NAME), m.RequestUpdate(2))
    wire.handler.requests[0].refuse(RequestCode.DOES_NOT_EXIST)
    wire.send(stream, m.RequestUpdate(4), fin=True)
    assert len(wire.answer(stream).messages) == 1
    assert wire.fault is None
    assert not leftovers(wire.session)


@pytest.mark.rule("M367")
def test_group_order_cannot_change() -> None:
    wire, stream, _ = served()
    wire.send(stream, bytes.fromhex("02 0004 02 01 22 01"))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M387")
def test_forward_is_0_or_1() -> None:
    wire, stream, _ = served()
    wire.send(stream, bytes.fromhex("02 0004 02 01 10 02"))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M354")
@pytest.mark.parametrize("parameter", ["0801", "090000", "0a01", "3501", "340100"])
def test_parameters_that_no_update_carries(parameter: str) -> None:
    wire, stream, _ = served()
    body = bytes.fromhex("02 01" + parameter)
    wire.send(stream, b"\x02" + len(body).to_bytes(2, "big") + body)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M314", "M311")
def test_a_failed_update_of_a_fetch_resets_its_data() -> None:
    wire = Wire()
    stream = wire.bidi(m.Fetch(0, NAME))
    track = Track(NAME)
    track.subgroup(0).object(0, b"x")
    wire.handler.requests[0].accept(track)
    (data,) = wire.opened(unidirectional=True)[1:]
    wire.send(stream, m.RequestUpdate(2, BY_ALIAS))
    first, error = wire.answer(stream).messages
    assert isinstance(first, m.FetchOk)
    assert isinstance(error, m.RequestError)
    assert wire.answer(stream).end == FIN
    assert wire.data(data)[1] == StreamCode.CANCELLED
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


def test_an_update_of_a_fetch_changes_its_priority() -> None:
    wire = Wire()
    stream = wire.bidi(m.Fetch(0, NAME))
    track = Track(NAME)
    track.subgroup(0).object(0, b"x")
    wire.handler.requests[0].accept(track)
    wire.send(stream, m.RequestUpdate(2, Parameters(subscriber_priority=3)))
    assert wire.last(stream) == m.RequestOk()
    ((_, _, order),) = wire.calls("reorder")
    assert order.subscriber == 3


@pytest.mark.rule("M345", "M310")
def test_track_status_cannot_be_updated() -> None:
    wire = Wire()
    wire.bidi(m.TrackStatus(0, NAME), m.RequestUpdate(2))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M310")
def test_a_responder_cannot_update() -> None:
    wire = Wire(is_client=True)
    request = wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    wire.send(request.stream, m.SubscribeOk(1), m.RequestUpdate(1))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M336", "M337")
@pytest.mark.parametrize("role", ["subscriber", "fetch", "announcer"])
def test_state_notify_out_of_place(role: str) -> None:
    if role == "subscriber":
        wire, stream, _ = served()
    elif role == "fetch":
        wire = Wire(is_client=True)
        stream = wire.session.fetch(NAME, NO_PARAMETERS, Receiver()).stream
        wire.send(stream, m.FetchOk(False, Location(0, 0)))
    else:
        wire = Wire(is_client=True)
        stream = wire.session.publish_namespace((b"a",), NO_PARAMETERS, lambda _: None).stream
        wire.send(stream, m.RequestOk())
    wire.send(stream, m.PublishStateNotify())
    assert wire.fault is VIOLATION


# -- as subscriber -------------------------------------------------------------------------------


def subscribed(
    options: SetupOptions | None = None, properties: TrackProperties | None = None
) -> tuple[Wire, Any, Receiver]:
    """An established subscription of ours."""
    wire = Wire(is_client=True, options=options or SetupOptions(max_filter_ranges=3))
    receiver = Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    raw = b"" if properties is None else properties.encode()
    wire.send(request.stream, m.SubscribeOk(5, NO_PARAMETERS, raw))
    return wire, request, receiver


@pytest.mark.rule("M286")
def test_our_updates_keep_the_peers_limit() -> None:
    wire, request, _ = subscribed(SetupOptions(max_request_updates=2))
    request.update(NO_PARAMETERS)
    request.update(NO_PARAMETERS)
    with pytest.raises(Misuse, match="2 unanswered"):
        request.update(NO_PARAMETERS)
    wire.send(request.stream, m.RequestOk())
    request.update(NO_PARAMETERS)
    assert [type(x) for x in wire.answer(request.stream).messages] == [
        m.Subscribe,
        *[m.RequestUpdate] * 3,
    ]


@pytest.mark.rule("M284")
def test_our_filters_keep_the_peers_limit() -> None:
    wire, request, _ = subscribed()
    request.update(Parameters(range_filters=(objects(1, 2),)))
    with pytest.raises(Misuse, match="4 filter ranges"):
        request.update(Parameters(range_filters=(groups_of(1, 2),)))
    request.update(Parameters(range_filters=(objects(1), groups_of(1, 2))))
    with pytest.raises(Misuse, match="4 filter ranges"):
        request.update(Parameters(fill=Parameters(range_filters=(objects(1, 2, 3, 4),))))
    assert len(wire.answer(request.stream).messages) == 3


@pytest.mark.rule("M389")
def test_a_new_group_only_where_groups_are_dynamic() -> None:
    _, request, _ = subscribed()
    with pytest.raises(Misuse, match="DYNAMIC_GROUPS"):
        request.update(Parameters(new_group_request=0))
    _, request, _ = subscribed(properties=TrackProperties(dynamic_groups=True))
    request.update(Parameters(new_group_request=0))


def test_misused_updates_leave_no_trace() -> None:
    wire, request, _ = subscribed()
    with pytest.raises(Misuse):
        request.update(Parameters(group_order=GroupOrder.ASCENDING))
    with pytest.raises(Misuse):
        request.update(Parameters(expires=1, fill=NO_PARAMETERS))
    assert len(wire.answer(request.stream).messages) == 1
    wire.send(request.stream, m.RequestOk())  # answers nothing
    assert wire.fault is VIOLATION


@pytest.mark.parametrize("answer", [m.RequestOk(), m.RequestError(0)])
def test_an_answer_to_no_update(answer: m.Message) -> None:
    wire, request, _ = subscribed()
    wire.send(request.stream, answer)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M302")
def test_properties_do_not_belong_in_an_answer_to_an_update() -> None:
    wire, request, _ = subscribed()
    request.update(NO_PARAMETERS)
    wire.send(request.stream, bytes.fromhex("07 0003 00 0e40"))
    assert wire.fault is VIOLATION


@pytest.mark.rule("M313")
def test_an_update_that_fails_at_the_peer() -> None:
    wire, request, receiver = subscribed()
    request.update(Parameters(forward=False, fill=NO_PARAMETERS))
    assert leftovers(wire.session)["fetches"] == 1
    wire.send(request.stream, m.RequestError(RequestCode.UNAUTHORIZED))
    assert "fetches" not in leftovers(wire.session)
    assert receiver.end is None
    wire.send(request.stream, m.PublishDone(DoneCode.UPDATE_FAILED, 0, "no"), fin=True)
    assert receiver.end == (DoneCode.UPDATE_FAILED, "no", True)
    assert not leftovers(wire.session)


@pytest.mark.rule("M338", "M529")
def test_state_notify_needs_no_answer() -> None:
    wire, request, _ = subscribed(SetupOptions(max_request_updates=1))
    for place in range(10):
        largest = Parameters(largest_object=Location(place, 0), forward=False)
        wire.send(request.stream, m.PublishStateNotify(largest))
    assert wire.fault is None
    assert len(wire.answer(request.stream).messages) == 1


#: One value for each parameter that no update of a subscription may carry.
FOREIGN: dict[str, Any] = {
    "rendezvous_timeout": 1,
    "expires": 1,
    "largest_object": Location(0, 0),
    "fill_timeout": 1,
    "group_order": GroupOrder.ASCENDING,
    "range_filters": (RangeFilter(RangeFilterType.TRACK_PROPERTY, (Span(0, 1),), 0, 2),),
    "track_namespace_prefix": (b"a",),
    "include_properties": True,
}


def test_foreign_parameters_are_all_that_the_table_has() -> None:
    foreign = {row.field for row in TABLE if not row.places & Place.UPDATE_SUBSCRIPTION}
    assert set(FOREIGN) == foreign


@pytest.mark.parametrize("field", FOREIGN)
def test_what_an_update_of_ours_must_not_carry(field: str) -> None:
    """Found by fuzzing: the peer would have closed the session."""
    wire, request, _ = subscribed()
    with pytest.raises(Misuse):
        request.update(Parameters(**{field: FOREIGN[field]}))
    assert len(wire.answer(request.stream).messages) == 1
