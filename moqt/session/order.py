"""Where an object stands among those of its subscription (draft-22 §5.1.2)."""

from __future__ import annotations

from typing import Final

from moqt.model import GroupOrder

#: In the place of a Subgroup ID: what a fill delivers goes before what is live in the same group.
FILL: Final = -1


def rank(order: GroupOrder, group: int, subgroup: int, *, against: bool = False) -> tuple[int, ...]:
    """By group in ``order``, then by subgroup.

    ``against``: a fill whose order is not that of its subscription goes after all that is live.
    """
    return against, group if order is GroupOrder.ASCENDING else -group, subgroup
