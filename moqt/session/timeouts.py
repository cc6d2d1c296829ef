"""Delivery timeouts of a subscription, as its publisher keeps them (draft-22 §5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.codec.properties import (
    OBJECT_DELIVERY_TIMEOUT,
    SUBGROUP_DELIVERY_TIMEOUT,
    TrackProperties,
    find,
)

if TYPE_CHECKING:
    from moqt.codec.params import Parameters


class Timeouts(NamedTuple):
    """Milliseconds; 0 is none."""

    object: int = 0
    subgroup: int = 0


NONE: Final = Timeouts()


class DeliveryTimeouts:
    """What the track and the subscriber say; a subgroup's first object may overrule the track."""

    __slots__ = ("_asked", "_track")

    def __init__(self) -> None:
        self._track = self._asked = NONE

    def update(self, properties: bytes, wanted: Parameters) -> None:
        """Track Properties, and parameters of the subscriber: those it does not name stay."""
        track = TrackProperties.decode(properties)
        self._track = Timeouts(
            track.object_delivery_timeout or 0, track.subgroup_delivery_timeout or 0
        )
        asked = self._asked
        if wanted.object_delivery_timeout is not None:
            asked = asked._replace(object=wanted.object_delivery_timeout)
        if wanted.subgroup_delivery_timeout is not None:
            asked = asked._replace(subgroup=wanted.subgroup_delivery_timeout)
        self._asked = asked

    def object(self, own: Timeouts) -> float:
        """Seconds an object may wait in a subgroup whose first object says ``own``; 0 for ever."""
        return _smaller(own.object or self._track.object, self._asked.object)

    def subgroup(self, own: Timeouts) -> float:
        """Seconds a subgroup may take once all of it is known; 0 for ever."""
        return _smaller(own.subgroup or self._track.subgroup, self._asked.subgroup)


def of_first(properties: bytes) -> Timeouts:
    """What the first object of a subgroup says for all of it."""
    if not properties:
        return NONE
    found = (
        find(properties, kind) for kind in (OBJECT_DELIVERY_TIMEOUT, SUBGROUP_DELIVERY_TIMEOUT)
    )
    return Timeouts(*(value if isinstance(value, int) else 0 for value in found))


def _smaller(ours: int, theirs: int) -> float:
    return (min(ours, theirs) if ours and theirs else ours or theirs) / 1000
