"""Whatever order, cutting, repetition, damage or loss: every object once, bit by bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kvcs.assembler import Assembly
from kvcs.errors import RejectReason
from kvcs.names import Component, TrackName
from moqt.model import Location, ObjectSink
from tests.kvcs.blocks import KV, K, Segment, V, head, pieces, small


class Fate(Enum):
    """What happens to one copy of an object on its way."""

    WHOLE = 0
    BAD_DATA = 1
    BAD_HEADER = 2
    CUT_OFF = 3


class Copy(NamedTuple):
    """One sending of one object."""

    place: Location
    fate: Fate
    cuts: tuple[int, ...]


def copies(layers: int, blocks: int) -> st.SearchStrategy[Copy]:
    return st.builds(
        Copy,
        st.builds(Location, st.integers(0, layers), st.integers(0, blocks)),
        st.sampled_from(Fate),
        st.lists(st.integers(1, 80), max_size=4).map(tuple),
    )


def play(sink: ObjectSink, segment: Segment, track: TrackName, plan: list[Copy]) -> Iterator[None]:
    """Feed a stream step by step; a copy that is cut off ends it."""
    for copy in plan:
        if copy.place.group >= segment.geometry.layers:
            payload = b"surplus"
        elif copy.place.object >= segment.geometry.blocks:
            payload = bytes(80)
        else:
            payload = segment.payload(track, copy.place)
        if copy.fate is Fate.BAD_DATA:
            payload = payload[:-1] + bytes([payload[-1] ^ 1])
        if copy.fate is Fate.BAD_HEADER:
            payload = b"X" + payload[1:]
        sink.begin(head(copy.place, len(payload)))
        parts = pieces(payload, copy.cuts)
        for part in parts[:-1] if copy.fate is Fate.CUT_OFF else parts:
            yield
            sink.write(part)
        yield
        if copy.fate is Fate.CUT_OFF:
            sink.abort(0)
            return
        sink.end()
    yield
    sink.finish()


def outcome(
    segment: Segment, plans: list[tuple[TrackName, list[Copy]]]
) -> tuple[Counter[tuple[TrackName, Location]], Counter[Fate], int]:
    """What must come of it, by counting alone: whole copies, losses and damages, surplus."""
    whole: Counter[tuple[TrackName, Location]] = Counter()
    failed: Counter[Fate] = Counter()
    surplus = 0
    for track, plan in plans:
        for copy in plan:
            inside = (
                copy.place.group < segment.geometry.layers
                and copy.place.object < segment.geometry.blocks
            )
            if not inside:
                surplus += 1
            elif copy.fate is Fate.WHOLE:
                whole[track, copy.place] += 1
            else:
                failed[copy.fate] += 1
            if copy.fate is Fate.CUT_OFF:
                break
    return whole, failed, surplus


@given(st.data())
def test_every_object_once(data: st.DataObject) -> None:
    layers, blocks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    segment = small(layers, blocks)
    tracks = data.draw(st.sampled_from([(K, V), (KV,)]))
    plans = data.draw(
        st.lists(
            st.tuples(st.sampled_from(tracks), st.lists(copies(layers, blocks), max_size=8)),
            max_size=8,
        )
    )
    usable: list[int] = []
    assembly = Assembly(segment.geometry, tracks, on_layer=usable.append)
    running = [play(assembly.stream(track), segment, track, plan) for track, plan in plans]
    while running:
        turn = data.draw(st.integers(0, len(running) - 1))
        if next(running[turn], "over") == "over":
            del running[turn]

    whole, failed, surplus = outcome(segment, plans)
    counters = assembly.counters
    assert counters.objects == len(whole)
    assert counters.duplicates == whole.total() - len(whole)
    assert counters.surplus == surplus
    assert counters.lost + counters.rejected.total() == failed.total()
    assert counters.lost <= failed[Fate.CUT_OFF]
    assert counters.rejected[RejectReason.DIGEST] == failed[Fate.BAD_DATA]
    for track in tracks:
        missing = assembly.missing().get(track, ())
        for layer in range(layers):
            for block in range(blocks):
                place = Location(layer, block)
                assert any(place in run for run in missing) == ((track, place) not in whole)
    complete = [
        layer
        for layer in range(layers)
        if all(whole[track, Location(layer, block)] for track in tracks for block in range(blocks))
    ]
    assert sorted(usable) == complete
    for layer in complete:
        for component in (Component.K, Component.V):
            assert assembly.layer_buffer(component, layer) == segment.tensors[component, layer]
