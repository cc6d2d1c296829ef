"""Every length and count a peer can write, at its extremes; every message with octets behind it."""

from __future__ import annotations

import tracemalloc

import pytest

from moqt.codec import varint
from moqt.codec.control import MessageSplitter
from moqt.codec.data import FetchReader, SubgroupHeader, SubgroupReader
from moqt.codec.datagram import decode_datagram
from moqt.codec.messages import Fetch, Subscribe, decode_message
from moqt.codec.profile import LATEST, MessageKind
from moqt.errors import MalformedTrack, ProtocolViolation, SessionFault
from moqt.model import GroupOrder, Location
from tests.vectors.draft22 import MESSAGES, MessageVector, octets

from .recording import Recorder

#: Each just beyond what fewer octets can say, and the largest.
HUGE = (1 << 14, 1 << 30, 1 << 62, (1 << 64) - 1)
#: What reading a lie may cost, however large it is.
COST = 300_000

K = MessageKind
#: A namespace and a name, at their four lengths: count, field, second field, name.
NAMES = {"namespace": "", "field": "01", "second field": "02 01 61", "name": "00"}
SPACES = {what: NAMES[what] for what in ("namespace", "field", "second field")}
#: Parameters after their count: which are allowed where, is decided after their lengths are read.
TOKEN, FILL = "01 03", "01 23"
FILTERS = {f"filter {code}": f"01 {code}" for code in ("25", "26", "27", "28")}
#: FILL_PARAMETERS with something inside it that has a length: ``|`` is where its own goes.
FILLED = {f"fill {what}": f"01 23 | {inner}" for what, inner in FILTERS.items()}
SELECTS = {"parameters": "", "token": TOKEN, "fill": FILL, **FILTERS, **FILLED}


def after(start: str, fields: dict[str, str]) -> dict[str, str]:
    """``fields`` of a structure that begins behind ``start``."""
    return {what: f"{start} {prefix}" for what, prefix in fields.items()}


#: Per message: the name of a length and all octets of the body before it.
LENGTHS: dict[MessageKind, dict[str, str]] = {
    K.SETUP: {
        **{"path": "01", "token": "03", "authority": "05"},
        **{"implementation": "07", "unknown": "7f", "second": "01 01 61 04"},
    },
    K.GOAWAY: {"uri": ""},
    K.REQUEST_OK: {"parameters": "", "immutable": "00 0b", "unknown property": "00 7f"},
    K.REQUEST_ERROR: {
        **{"reason": "00 00", "uri": "34 00 00"},
        **after("34 00 00 00", NAMES),
    },
    K.REQUEST_UPDATE: {**after("00", SELECTS), **after("00 01 34", SPACES), "tracks": "00 01 29"},
    K.SUBSCRIBE: {**after("00", NAMES), **after("00 00 00", SELECTS)},
    K.SUBSCRIBE_OK: {"parameters": "01", "property": "01 00 0b"},
    K.PUBLISH: {
        **after("00", NAMES),
        **{
            "parameters": "00 00 00 01",
            "token": "00 00 00 01 01 03",
            "property": "000000 01 00 0b",
        },
    },
    K.PUBLISH_DONE: {"reason": "02 00"},
    K.PUBLISH_STATE_NOTIFY: {"parameters": ""},
    K.FETCH: {
        **after("00", NAMES),
        **after("00 00 00", {"parameters": "", "token": TOKEN, **FILTERS}),
    },
    K.FETCH_OK: {"parameters": "00 00 00", "property": "00 00 00 00 0b"},
    K.TRACK_STATUS: {**after("00", NAMES), "parameters": "00 00 00", "token": "00 00 00 01 03"},
    K.PUBLISH_NAMESPACE: {**after("00", SPACES), "parameters": "00 00", "token": "00 00 01 03"},
    K.SUBSCRIBE_NAMESPACE: {**after("00", SPACES), "parameters": "00 00", "token": "00 00 01 03"},
    K.NAMESPACE: SPACES,
    K.NAMESPACE_DONE: SPACES,
    K.SUBSCRIBE_TRACKS: {
        **after("00", SPACES),
        **after("00 00", {**SELECTS, "tracks": "01 29"}),
    },
    K.PUBLISH_SKIPPED: NAMES,
}
CASES = [(kind, what, prefix) for kind, found in LENGTHS.items() for what, prefix in found.items()]


def body(prefix: str, length: int, tail: bytes) -> bytes:
    """A body up to the length, the length, and what there is of the rest."""
    outer, bar, inner = prefix.partition("|")
    written = octets(inner or outer) + varint.encode(length) + tail
    return octets(outer) + varint.encode(len(written)) + written if bar else written


def test_every_message_is_here() -> None:
    assert set(LENGTHS) == set(MessageKind)


@pytest.mark.rule("M255", "M216")
@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize(("kind", "what", "prefix"), CASES)
def test_a_length_beyond_the_message(
    kind: MessageKind, what: str, prefix: str, length: int
) -> None:
    for tail in (b"", bytes(40)):
        tracemalloc.start()
        try:
            with pytest.raises(SessionFault):
                decode_message(LATEST, LATEST.codes[kind], body(prefix, length, tail))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < COST, what


def test_a_message_that_never_ends_is_held_up_to_its_length() -> None:
    splitter = MessageSplitter()
    for code in LATEST.messages:
        splitter = MessageSplitter()
        head = varint.encode(code) + b"\xff\xff"
        assert splitter.feed(head + bytes(65_534)) == []
        assert splitter.feed(b"\0") == [(code, bytes(65_535))]
        assert not splitter.pending


#: Parameters that may be repeated, in their shortest form: the first, and each further one.
REPEATED = {
    "tokens": ("03 02 0300", "00 02 0300"),
    "filters removed": ("25 00", "00 00"),
    "filters": ("26 01 00", "00 01 00"),
    "property filters": ("28 02 0002", "00 02 0002"),
}


@pytest.mark.parametrize("what", REPEATED)
def test_a_message_full_of_repeats_takes_linear_time(what: str) -> None:
    """Six of them: what grows with the square of their number ends in the test's time limit."""
    first, more = map(octets, REPEATED[what])
    count = 65_000 // len(more)
    full = octets("00 00 00") + varint.encode(count + 1) + first + more * count
    assert len(full) <= 65_535
    for _ in range(3):
        for kind in (K.SUBSCRIBE, K.FETCH):
            found = decode_message(LATEST, LATEST.codes[kind], full)
            assert isinstance(found, Subscribe | Fetch)
            kept = found.parameters
            assert len(kept.authorization_tokens or kept.range_filters) == count + 1


# -- data streams and datagrams --------------------------------------------------------------------


def reader(form: str, sink: Recorder) -> SubgroupReader | FetchReader:
    """A reader of one form of stream."""
    if form == "fetch":
        return FetchReader(GroupOrder.ASCENDING, sink)
    return SubgroupReader(
        SubgroupHeader(7, 12, 1, 1, has_properties=form == "subgroup p"), 128, sink
    )


#: The length's place: octets of the record before it.
PAYLOADS = (("subgroup", "00"), ("subgroup p", "00 00"), ("fetch", "1c 00 00 80"))
PROPERTIES = (("subgroup p", "00"), ("fetch", "3c 00 00 80"))


@pytest.mark.rule("M430")
@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize(("form", "prefix"), PAYLOADS)
def test_a_payload_length_costs_nothing(form: str, prefix: str, length: int) -> None:
    sink = Recorder()
    found = reader(form, sink)
    tracemalloc.start()
    try:
        found.feed(octets(prefix) + varint.encode(length) + b"abc")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < COST
    assert sink.begun is not None
    assert sink.begun.length == length
    with pytest.raises(ProtocolViolation):
        found.feed(b"", True)


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize(("form", "prefix"), PROPERTIES)
def test_a_properties_length_beyond_the_limit_or_the_stream(
    form: str, prefix: str, length: int
) -> None:
    sink = Recorder()
    found = reader(form, sink)
    with pytest.raises(ProtocolViolation):
        found.feed(octets(prefix) + varint.encode(length) + bytes(50), True)
    assert sink.records == []
    assert sink.begun is None


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(("form", "prefix"), PROPERTIES)
def test_a_length_inside_properties(form: str, prefix: str, inner: bool, length: int) -> None:
    pair = b"\x7f" + varint.encode(length)
    if inner:
        pair = b"\x0b" + varint.encode(len(pair)) + pair
    with pytest.raises(MalformedTrack if inner else ProtocolViolation):
        reader(form, Recorder()).feed(
            octets(prefix) + varint.encode(len(pair)) + pair + b"\x01a", True
        )


@pytest.mark.parametrize("length", HUGE)
def test_lengths_of_a_datagram(length: int) -> None:
    with pytest.raises(ProtocolViolation):
        decode_datagram(octets("01 07 0c 00 80") + varint.encode(length) + bytes(40))
    pair = b"\x7f" + varint.encode(length)
    found = decode_datagram(octets("01 07 0c 00 80") + varint.encode(len(pair)) + pair + b"a")
    assert found is not None
    assert (found.head.group, found.head.object) == Location(12, 0)
    with pytest.raises(ProtocolViolation):
        found.head.resolve(128)


# -- octets behind a message -----------------------------------------------------------------------

#: Messages that end with a list of pairs, which more octets may lengthen: one octet is no pair.
LISTS = {K.SETUP, K.REQUEST_OK, K.SUBSCRIBE_OK, K.PUBLISH, K.FETCH_OK}


@pytest.mark.rule("M255")
@pytest.mark.parametrize("vector", MESSAGES, ids=lambda one: one.hex[:16])
def test_octets_behind_a_message(vector: MessageVector) -> None:
    [(code, whole)] = MessageSplitter().feed(octets(vector.hex))
    tails = [bytes((octet,)) for octet in range(256)]
    if LATEST.messages[code] not in LISTS:
        tails += [bytes(size) for size in (2, 3, 9, 200)] + [b"\xff" * 9, b"\x7f\x01a"]
    for tail in tails:
        with pytest.raises(SessionFault):
            decode_message(LATEST, code, whole + tail, vector.scope)
    assert decode_message(LATEST, code, whole, vector.scope) == vector.message
