"""What a relay answers about a track, and what it does for ranges that it does not have."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import TrackProperties, write_pairs
from moqt.errors import DoneCode, RequestCode, RequestFailed, SessionCode, StreamCode
from moqt.model import (
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    SubgroupHead,
)
from moqt.publisher import Track
from moqt.relay.config import RelayConfig
from transport.errors import StreamAbort

from .test_fidelity import Upstream, by_hand, send
from .test_relaying import ALL, LAYERS, end, layer, normal
from .worlds import NAME, SPACE, RelayWorld

FIRST = Parameters(location_filter=LocationFilter.groups(0, 1))


class Broken(Track):
    """Serves what it has, and then fails or never goes on."""

    code: int | None = None
    served = 2

    def objects(self, *asked: Any) -> Any:
        for number, stored in enumerate(super().objects(*asked)):
            if number == self.served:
                if self.code is None:
                    while True:
                        yield None
                raise StreamAbort(self.code)
            yield stored


# -- Largest Object ------------------------------------------------------------------------------


@pytest.mark.rule("M181", "M386")
def test_largest_is_what_any_upstream_has_said_or_sent_live() -> None:
    world = RelayWorld()
    track = Track(NAME)
    for group in range(3):
        layer(track, group)
    world.publisher(track)
    other = Track(NAME)
    layer(other, 0)
    world.publisher(other)
    _, first = world.desk().subscribe()
    world.run(1)
    _, again = world.desk().subscribe()
    world.run(1)
    for receiver in (first, again):
        assert receiver.info is not None
        assert receiver.info.largest == Location(2, 4)
    layer(track, 7)
    world.run(0.2)
    _, second = world.desk().subscribe()
    world.run(1)
    assert second.info is not None
    assert second.info.largest == Location(7, 4)


@pytest.mark.rule("M386")
def test_what_is_fetched_does_not_move_largest() -> None:
    world = RelayWorld()
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    world.desk().subscribe()
    world.run(0.1)
    track = Track(NAME)
    layer(track, 3)
    upstream.requests[0].accept(track)
    world.run(0.1)
    upstream.fetches[0].accept(track)
    world.run(0.1)
    (relayed,) = world.relay.tracks.values()
    before = relayed.largest
    relayed.stock.arrives(ObjectHead(9, 0, 0, 128, 0), None, fetched=True)
    assert relayed.largest == before == Location(3, 4)


@pytest.mark.rule("M180")
def test_fetch_ok_waits_until_the_end_is_known() -> None:
    world = RelayWorld()
    upstream = Upstream()
    desk = world.desk(handler=upstream)
    desk.session.publish_namespace(SPACE, NO_PARAMETERS, lambda _: None)
    world.run(0.1)
    _, receiver = world.desk().fetch(NAME, FIRST)
    world.run(1)
    assert receiver.info is None
    track = Track(NAME)
    layer(track, 0)
    upstream.requests[0].accept(track)
    world.run(0.1)
    upstream.fetches[0].accept(track)
    world.run(0.2)
    assert receiver.info is not None
    assert receiver.info.end == Location(0, 4)
    assert normal(receiver) == ALL[:4]


# -- what is not here ----------------------------------------------------------------------------


@pytest.mark.rule("M360", "M361")
@pytest.mark.parametrize("order", GroupOrder)
def test_with_no_time_to_wait_all_that_is_missing_is_marked(order: GroupOrder) -> None:
    world = RelayWorld()
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    world.publisher(track)
    world.desk().fetch(NAME, Parameters(location_filter=LocationFilter.groups(2, 3)))
    world.run(0.5)
    before = world.relay.context.counts["fetches_upstream"]
    asked = Parameters(
        location_filter=LocationFilter.groups(0, 5), group_order=order, fill_timeout=0
    )
    _, receiver = world.desk().fetch(NAME, asked)
    world.run(0.1)
    (stream,) = receiver.fetches
    assert stream.ended == "fin"
    assert normal(receiver) == [at for at in ALL if at[0] in (2, 3)]
    assert {gap.kind for gap in stream.gaps} == {GapKind.TIMED_OUT}
    last = {GroupOrder.ASCENDING: (1, 5), GroupOrder.DESCENDING: (0, 4, 5)}[order]
    assert {gap.location.group for gap in stream.gaps} == set(last)
    assert world.relay.context.counts["fetches_upstream"] == before


@pytest.mark.rule("M359")
def test_the_time_for_a_fill_is_spent_and_no_more() -> None:
    world = RelayWorld(RelayConfig(straggler=0.05))
    track = Broken(NAME)
    for group in range(2):
        layer(track, group)
    world.publisher(track)
    asked = Parameters(
        location_filter=LocationFilter.next_object(),
        fill=Parameters(location_filter=LocationFilter.since(0), fill_timeout=400),
    )
    _, receiver = world.desk().subscribe(NAME, asked)
    world.run(0.35)
    assert receiver.fetches[0].ended is None
    world.run(0.3)
    (stream,) = receiver.fetches
    assert stream.ended == "fin"
    assert [gap.kind for gap in stream.gaps] == [GapKind.TIMED_OUT]
    assert normal(receiver) == ALL[:2]


@pytest.mark.parametrize("code", [StreamCode.INTERNAL_ERROR, StreamCode.UNKNOWN_OBJECT_STATUS])
def test_what_no_upstream_has_is_marked_as_unknown(code: StreamCode) -> None:
    world = RelayWorld()
    track = Broken(NAME)
    track.code = code
    for group in range(2):
        layer(track, group)
    world.publisher(track)
    _, receiver = world.desk().fetch(NAME, FIRST)
    world.run(15)
    (stream,) = receiver.fetches
    assert stream.ended == "fin"
    assert {gap.kind for gap in stream.gaps} == {GapKind.UNKNOWN}


def test_another_publisher_has_the_rest() -> None:
    world = RelayWorld()
    broken = Broken(NAME)
    broken.code = StreamCode.INTERNAL_ERROR
    whole = Track(NAME)
    for track in (broken, whole):
        for group in range(2):
            layer(track, group)
        world.publisher(track)
    _, receiver = world.desk().fetch(NAME, FIRST)
    world.run(15)
    assert normal(receiver) == ALL[:8]
    assert receiver.fetches[0].gaps == []


def test_many_who_ask_at_once_cost_one_fetch() -> None:
    world = RelayWorld(latency=0.01)
    track = Track(NAME)
    for group in range(LAYERS):
        layer(track, group)
    end(track)
    world.publisher(track)
    receivers = [world.desk().fetch(NAME, FIRST)[1] for _ in range(40)]
    world.run()
    assert all(normal(one) == ALL[:8] for one in receivers)
    assert world.relay.context.counts["octets_in"] == 8 * 1400


@pytest.mark.rule("M051")
def test_what_is_here_goes_out_while_the_rest_is_fetched() -> None:
    world = RelayWorld()
    track = Track(NAME)
    for group in range(2):
        layer(track, group)
    world.publisher(track)
    world.desk().fetch(NAME, Parameters(location_filter=LocationFilter.groups(0, 0)))
    world.run(1)
    track.objects = lambda *_: iter((None,))  # type: ignore[method-assign,assignment]
    _, receiver = world.desk().fetch(NAME, FIRST)
    world.run(0.2)
    (stream,) = receiver.fetches
    assert [head.location for head, _ in stream.objects] == ALL[:4]
    assert stream.ended is None


# -- dynamic groups ------------------------------------------------------------------------------


@pytest.mark.rule("M391", "M392", "M393")
def test_new_groups_are_asked_for_once() -> None:
    world = RelayWorld()
    track = Track(NAME, TrackProperties(dynamic_groups=True))
    heard: list[int] = []
    track.on_new_group = heard.append
    layer(track, 0)
    desk = world.publisher(track)
    requests = [world.desk().subscribe(NAME, Parameters(new_group_request=0))[0]]
    world.run(0.2)
    assert heard == [0], "with the SUBSCRIBE upstream"
    requests.append(world.desk().subscribe()[0])
    world.run(0.2)
    requests[1].update(Parameters(new_group_request=0))
    world.run(0.2)
    assert heard == [0], "one as good is outstanding"
    layer(track, 1)
    world.run(0.2)
    requests[1].update(Parameters(new_group_request=1))
    world.run(0.2)
    assert heard == [0], "the group is here"
    updates = desk.session.counters().received.messages
    assert updates["REQUEST_UPDATE"] == 0
    requests[1].update(Parameters(new_group_request=2))
    world.run(0.2)
    assert heard == [0, 2]


# -- faults of a publisher -----------------------------------------------------------------------


@pytest.mark.rule("M468", "M469", "M470")
@pytest.mark.parametrize("how", ["payload", "order"])
def test_a_malformed_track_ends_at_once_for_everybody(how: str) -> None:
    world = RelayWorld()
    request, receiver, _ = by_hand(world)
    sink = request.subgroup(SubgroupHead(0, 0, 128, first_object=True))
    send(sink, 0, 0, 1)
    world.run(0.2)
    asked = Parameters(location_filter=LocationFilter.groups(0, 0))
    send(request.subgroup(SubgroupHead(2, 0, 128, first_object=True)), 2, 0)
    world.run(0.1)
    _, past = world.desk().fetch(NAME, asked)
    world.run(1.0)
    assert [head.object for head, _ in past.objects] == [0, 1], "a third one may yet come"
    again = request.subgroup(SubgroupHead(0, 0, 128))
    if how == "payload":
        again.begin(ObjectHead(0, 0, 0, 128, 1))
        again.write(b"?")
        again.end()
    else:
        again.begin(ObjectHead(0, 0, 0, 128, 0))
        again.end()
        sink.finish()
    world.run(0.2)
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.MALFORMED_TRACK
    assert past.error is not None
    assert past.fetches[0].ended == StreamCode.MALFORMED_TRACK
    assert not world.relay.tracks, "nothing of it is kept"
    assert world.relay.cache.octets == 0


@pytest.mark.rule("M205", "M206")
def test_what_closes_one_session_closes_no_other() -> None:
    world = RelayWorld()
    track = Track(NAME)
    publisher = world.publisher(track)
    desk = world.desk()
    _, receiver = desk.subscribe()
    bad = world.desk()
    world.run(0.2)
    layer(track, 0)
    context = bad.session._context
    stream = context.open_request()
    context.transport.write(stream, bytes.fromhex("03 0001 ff"))
    world.run(0.2)
    assert bad.side.ended is not None
    assert bad.side.ended[0] == SessionCode.PROTOCOL_VIOLATION
    context = publisher.session._context
    context.transport.write(context.open_request(), bytes.fromhex("03 0001 ff"))
    world.run(0.2)
    assert publisher.side.ended is not None
    assert desk.side.ended is None
    assert normal(receiver) == ALL[:4]


def test_a_mandatory_property_that_nobody_here_knows() -> None:
    world = RelayWorld()
    track = Track(NAME)
    track._properties = write_pairs([(0x4000, 1)])
    layer(track, 0)
    world.publisher(track)
    _, live = world.desk().subscribe()
    _, past = world.desk().fetch(NAME, FIRST)
    world.run(0.5)
    for receiver in (live, past):
        assert isinstance(receiver.error, RequestFailed)
        assert receiver.error.code == RequestCode.UNSUPPORTED_EXTENSION
        assert receiver.fetches == []


def test_a_publisher_comes_back_and_nothing_is_missing() -> None:
    world = RelayWorld()
    track = Track(NAME)
    first = world.publisher(track)
    _, receiver = world.desk().subscribe()
    world.run(0.2)
    for group in range(3):
        layer(track, group)
    world.run(0.005)
    first.kill()
    layer(track, 3)
    world.run(5)
    world.publisher(track)
    world.run(0.5)
    for group in range(4, LAYERS):
        layer(track, group)
    end(track)
    world.run()
    assert normal(receiver) == ALL
    assert receiver.end is not None
    assert receiver.end[0] == DoneCode.TRACK_ENDED


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_is_not_here_yet_may_be_asked_for_again(goes_on: bool) -> None:
    """Another track of the publication may have told of it: it is still on its way."""
    world = RelayWorld()
    track = Track(NAME)
    layer(track, 0)
    world.publisher(track)
    reader = world.desk()
    reader.subscribe()
    world.run(0.2)
    if not goes_on:
        end(track, 1)
        world.run(0.2)
    _, receiver = reader.fetch(NAME, Parameters(location_filter=LocationFilter.groups(3, 3)))
    world.run(0.2)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.INVALID_RANGE
    assert (receiver.error.retry_after is not None) == goes_on
