"""The trace of a session says what passed, in order and in full, and nothing that is secret."""

from __future__ import annotations

import io
import itertools
import json
import logging
from typing import Any

import pytest

from moqt.codec.fields import Token
from moqt.codec.params import Parameters
from moqt.codec.properties import write_pairs
from moqt.errors import StreamCode
from moqt.model import (
    FullTrackName,
    Gap,
    GapKind,
    GroupOrder,
    Location,
    LocationFilter,
    ObjectHead,
    RangeFilter,
    RangeFilterType,
    Span,
)
from moqt.publisher import Catalog, Track
from moqt.session.config import SessionConfig
from moqt.session.core import Session
from moqt.session.ports import Unserved
from moqt.trace import MAX_ORDERS, Trace, plain
from tests.moqt.session.worlds import Receiver, Side, World
from transport.api import Chunk, SendOrder, Tier
from transport.errors import StreamAbort
from transport.testing import Pair

NAME = FullTrackName((b"example", b"a b"), b"track")
PLAIN = Parameters()
PAYLOAD = b"payload that nobody may read"
SECRET = b"token that nobody may read"


class Watched(World):
    """A world whose client is traced."""

    def __init__(self, config: SessionConfig | None = None, **faults: Any) -> None:
        self.pair = Pair(**faults)
        self.catalog = Catalog()
        self.track = self.catalog.add(Track(NAME))
        handler: Any = self.catalog.handler(None)  # type: ignore[arg-type]
        self.server = Side(self.pair, self.pair.server, handler, SessionConfig())
        self.file = io.StringIO()
        trace = Trace(self.file, itertools.count(1000).__next__)
        self.traced = trace.session(self.pair.client)
        self.client = Side(self.pair, self.pair.client, Unserved(), SessionConfig())
        config = config or SessionConfig(authority="u:pw@pair", path="/live?key=1")
        self.client.session = Session(self.traced, Unserved(), config)
        self.client.session.timers.on_change = self.client._arm
        self.pair.client.sink = self.traced.sink(self.client)
        self.run()

    def events(self, *kinds: str, **members: Any) -> list[dict[str, Any]]:
        """Those of the kinds named, with such members."""
        events = map(json.loads, self.file.getvalue().splitlines())
        return [
            one
            for one in events
            if (not kinds or one["event"] in kinds) and members.items() <= one.items()
        ]

    def messages(self, way: str) -> list[str]:
        return [one["message"] for one in self.events("message", way=way)]


def test_a_session_from_its_beginning_to_its_end() -> None:
    world = Watched()
    writer = world.track.subgroup(0, has_properties=True)
    receiver = Receiver()
    world.client.session.subscribe(NAME, PLAIN, receiver)
    world.run()
    writer.object(0, PAYLOAD, properties=write_pairs([(0x3C, 0)]))
    writer.finish()
    world.track.end()
    world.run()
    world.client.session.close(0, "bye")
    world.run()
    assert receiver.end is not None
    assert world.messages("out") == ["SETUP", "SUBSCRIBE"]
    assert world.messages("in") == ["SETUP", "SUBSCRIBE_OK", "PUBLISH_DONE"]
    found = world.events()
    assert [one["event"] for one in found[:2]] == ["begin", "connected"]
    assert found[0] == {"time": 1000, "session": 1, "event": "begin", "role": "client"}
    assert [one["event"] for one in found[-2:]] == ["close", "end"]
    (subscribe,) = world.events("message", message="SUBSCRIBE")
    assert subscribe["fields"] == {"request_id": 0, "name": "example-a.20b--track"}
    (subgroup,) = world.events("stream", kind="subgroup")
    assert (subgroup["way"], subgroup["group"], subgroup["has_properties"]) == ("in", 0, True)
    stream = subgroup["stream"]
    (begun,) = world.events("object")
    assert begun["stream"] == stream
    assert (begun["group"], begun["object"], begun["length"]) == (0, 0, len(PAYLOAD))
    assert begun["properties"] == 2
    (ended,) = world.events("object_end", stream=stream, group=0, object=0)
    assert ended["time"] > begun["time"]
    assert world.events("stream_end", stream=stream, how="fin", way="in")
    assert "payload" not in world.file.getvalue()


def test_no_secret_is_written() -> None:
    world = Watched()
    tokens = Parameters(authorization_tokens=(Token.use_value(SECRET),))
    world.client.session.fetch(NAME, tokens, Receiver())
    world.run()
    text = world.file.getvalue()
    for secret in (SECRET.decode(), SECRET.hex(), "pw", "key=1"):
        assert secret not in text
    (setup,) = world.events("message", message="SETUP", way="out")
    assert (setup["fields"]["options"]["path"], setup["fields"]["options"]["authority"]) == (
        "/live?...",
        "...@pair",
    )
    (fetch,) = world.events("message", message="FETCH")
    (token,) = fetch["fields"]["parameters"]["authorization_tokens"]
    assert token == {"alias_type": "USE_VALUE", "alias": 0, "type": 0, "octets": len(SECRET)}


@pytest.mark.parametrize("split", [None, 1])
def test_fetches_in_both_orders_whatever_the_cutting(split: int | None) -> None:
    world = Watched(split=split)
    for group in (3, 4, 5):
        world.track.subgroup(group).object(0, PAYLOAD)
    for order in GroupOrder:
        world.client.session.fetch(NAME, Parameters(group_order=order), Receiver())
    fill = Parameters(
        fill=Parameters(location_filter=LocationFilter.since(0), group_order=GroupOrder.DESCENDING)
    )
    world.client.session.subscribe(NAME, fill, Receiver())
    world.run()
    assert not world.events("undecodable")
    streams = {one["request_id"]: one["stream"] for one in world.events("stream", kind="fetch")}
    groups = {
        request: [one["group"] for one in world.events("object", stream=stream)]
        for request, stream in streams.items()
    }
    assert groups == {0: [3, 4, 5], 2: [5, 4, 3], 4: [5, 4, 3]}
    assert len(world.events("object_end")) == 9


def test_a_later_fill_has_the_order_of_its_subscription() -> None:
    world = Watched()
    for group in (3, 4, 5):
        world.track.subgroup(group).object(0, PAYLOAD)
    down = Parameters(group_order=GroupOrder.DESCENDING)
    subscription = world.client.session.subscribe(NAME, down, Receiver())
    world.run()
    past = Parameters(location_filter=LocationFilter.since(0))
    subscription.update(Parameters(fill=past))
    world.run()
    assert [one["group"] for one in world.events("object")] == [5, 4, 3]
    assert not world.events("undecodable")


def test_what_we_send_is_written_when_it_is_pulled() -> None:
    world = Watched()
    stream = world.traced.open(SendOrder(Tier.OBJECT), unidirectional=True)

    def chunks() -> Any:
        yield Chunk((bytes.fromhex("30 07 09"), b"\x00\x04", b"abcd"))
        yield None
        raise StreamAbort(StreamCode.DELIVERY_TIMEOUT)

    world.traced.feed(stream, chunks())
    world.run(0.1)
    (header,) = world.events("stream", kind="subgroup", way="out")
    assert (header["track_alias"], header["group"]) == (7, 9)
    assert world.events("object_end", way="out", stream=stream, group=9, object=0)
    assert not world.events("stream_end", stream=stream)
    world.traced.wake(stream)
    world.run(0.1)
    (end,) = world.events("stream_end", stream=stream, way="out")
    assert (end["how"], end["code"]) == ("reset", "DELIVERY_TIMEOUT")
    assert "abcd" not in world.file.getvalue()


def test_cancelling_shows_with_its_code() -> None:
    world = Watched()
    subscription = world.client.session.subscribe(NAME, PLAIN, Receiver())
    world.run()
    world.track.subgroup(1).object(0, PAYLOAD)
    world.run()
    subscription.cancel(StreamCode.TOO_FAR_BEHIND)
    world.run()
    ends = world.events("stream_end", code="TOO_FAR_BEHIND")
    assert [(one["way"], one["how"]) for one in ends] == [
        ("out", "reset"),
        ("in", "stop"),
        ("in", "stop"),
    ]
    assert not world.traced._taps.keys() - {("out", 0), ("in", 1)}  # the control streams alone


def test_datagrams_resets_stops_and_gaps() -> None:
    world = Watched()
    world.client.session.subscribe(NAME, PLAIN, Receiver())
    world.run()
    (request,) = world.track._subscriptions
    request.datagram(ObjectHead(2, None, 1, 3, len(PAYLOAD)), PAYLOAD)
    writer = world.track.subgroup(8)
    writer.object(0, PAYLOAD)
    world.run()
    writer.abort(StreamCode.GOING_AWAY)
    world.run()
    (datagram,) = world.events("datagram", way="in")
    assert (datagram["group"], datagram["object"], datagram["length"]) == (2, 1, len(PAYLOAD))
    assert world.events("stream_end", how="reset", code="GOING_AWAY", way="in")
    assert not world.traced.send_datagram(bytes(100_000))
    assert world.events("undecodable") or world.events("datagram", dropped=True)


def test_what_cannot_be_read_is_said_and_the_session_decides() -> None:
    world = Watched()
    stream = world.pair.server.open(SendOrder(Tier.OBJECT), unidirectional=True)
    world.pair.server.write(stream, b"\x16garbage")  # a reserved subgroup mode
    world.run()
    (undecodable,) = world.events("undecodable")
    assert "type flags" in undecodable["why"]
    assert world.events("end")[0]["code"] == 3  # PROTOCOL_VIOLATION


def test_a_bad_message() -> None:
    world = Watched()
    stream = world.pair.server.open(SendOrder(Tier.OBJECT), unidirectional=False)
    world.pair.server.write(stream, b"\x03\x00\x01\x00")
    world.run()
    assert [one["stream"] for one in world.events("undecodable")] == [
        one["stream"] for one in world.events("stream", kind="request")
    ]


def test_a_bad_datagram() -> None:
    world = Watched()
    world.pair.server.send_datagram(b"\xff")
    world.run()
    assert len(world.events("undecodable", way="in")) == 1


def test_a_gap_is_an_event() -> None:
    world = Watched()
    world.track.subgroup(1).object(0, PAYLOAD)
    world.track.objects = lambda *_: iter([Gap(GapKind.UNKNOWN, Location(1, 0))])  # type: ignore
    world.client.session.fetch(NAME, PLAIN, Receiver())
    world.run()
    (gap,) = world.events("gap")
    assert (gap["kind"], gap["group"], gap["object"]) == ("UNKNOWN", 1, 0)


def test_a_full_disk_ends_the_trace_not_the_session(caplog: pytest.LogCaptureFixture) -> None:
    world = Watched()
    world.file.close()
    receiver = Receiver()
    with caplog.at_level(logging.ERROR):
        world.client.session.subscribe(NAME, PLAIN, receiver)
        world.run()
    assert receiver.info is not None
    assert [record.name for record in caplog.records] == ["moqt.trace"]


def test_what_is_remembered_is_bounded() -> None:
    traced = Watched().traced
    for request_id in range(MAX_ORDERS + 10):
        traced.expect(request_id, GroupOrder.DESCENDING)
    assert len(traced._orders) == MAX_ORDERS
    assert traced.order(0) is GroupOrder.ASCENDING
    assert traced.order(MAX_ORDERS) is GroupOrder.DESCENDING


def test_values_in_plain_json() -> None:
    ranges = RangeFilter(RangeFilterType.OBJECT_ID, (Span(1, None), Span(5, 6)))
    found = plain(Parameters(range_filters=(ranges,), largest_object=Location(1, 2), forward=False))
    assert json.loads(json.dumps(found)) == {
        "largest_object": [1, 2],
        "forward": False,
        "range_filters": [{"type": "OBJECT_ID", "spans": [[1, None], [5, 6]]}],
    }
    assert plain((b"a", b"/")) == "a-.2f"
    assert plain(()) == ""
