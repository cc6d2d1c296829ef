"""The draft's picture: part of a cache from the relay's cache, the rest live, each object once."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.architecture.sources import ROOT
from tests.kvcs.two_relays import CACHED, LAYERS, Step, play, read

pytestmark = pytest.mark.e2e

BLOCKS = 3


def objects(steps: list[Step], source: str, target: str) -> Counter[tuple[int, int]]:
    """What went that way, counted."""
    ways = [step for step in steps if (step.source, step.target) == (source, target)]
    return Counter(at for step in ways for at in step.objects)


async def test_groups_0_to_4_from_the_cache_and_the_rest_live(world) -> None:
    steps = read(await play(world))
    told = [" ".join(str(step).split()) for step in steps]
    order = [
        "Producer -> Relay A PUBLISH_NAMESPACE (5 fields)",
        "Consumer -> Relay B SUBSCRIBE NEXT_OBJECT + fill from 0/0",
        "Relay B -> Relay A SUBSCRIBE NEXT_OBJECT",
        "Relay A -> Producer SUBSCRIBE NEXT_OBJECT",
        "Relay B -> Consumer fill stream: groups 0..4, 15 objects",
        "Producer -> Relay A subgroup stream: group 5, 4 objects",
        "Relay A -> Relay B subgroup stream: group 5, 4 objects",
        "Relay B -> Consumer subgroup stream: group 5, 4 objects",
        "Relay B -> Consumer subgroup stream: group 6, 4 objects",
        "Relay B -> Consumer End of Track",
    ]
    assert [line for line in told if line in order] == order
    assert not [line for line in told if "FETCH" in line]
    page = (ROOT / "docs" / "relay.md").read_text("utf-8").splitlines()
    assert set(order) <= {" ".join(line.split()) for line in page}, "the transcript shown"
    live = Counter(
        (group, number) for group in range(CACHED, LAYERS) for number in range(BLOCKS + 1)
    )
    live[LAYERS, 0] = 1  # End of Track
    assert objects(steps, "Producer", "Relay A") == live
    assert objects(steps, "Relay A", "Relay B") == live, "nothing that relay B has comes again"
    cached = Counter((group, number) for group in range(CACHED) for number in range(BLOCKS))
    assert objects(steps, "Relay B", "Consumer") == cached + live
