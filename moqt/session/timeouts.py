"""Delivery timeouts: after them an object or a subgroup is worth nothing (draft-22 §5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from moqt.codec.properties import OBJECT_DELIVERY_TIMEOUT, SUBGROUP_DELIVERY_TIMEOUT, find

if TYPE_CHECKING:
    from moqt.codec.params import Parameters


class Timeouts(NamedTuple):
    """Milliseconds for one object and for a whole subgroup; 0 is no limit."""

    object: int = 0
    subgroup: int = 0

    def updated(self, asked: Parameters) -> Timeouts:
        """With what a SUBSCRIBE or REQUEST_UPDATE says; what is absent stays."""
        one, all_ = asked.object_delivery_timeout, asked.subgroup_delivery_timeout
        return Timeouts(
            self.object if one is None else one, self.subgroup if all_ is None else all_
        )

    def overridden(self, properties: bytes) -> Timeouts:
        """With the properties of a track, or of the first object of a subgroup."""
        if not properties:
            return self
        one = find(properties, OBJECT_DELIVERY_TIMEOUT)
        all_ = find(properties, SUBGROUP_DELIVERY_TIMEOUT)
        return Timeouts(
            one if isinstance(one, int) else self.object,
            all_ if isinstance(all_, int) else self.subgroup,
        )


UNLIMITED: Final = Timeouts()
