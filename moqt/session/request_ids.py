"""Request ids: ours going out, the peer's coming in, each used once (draft-22 §6.4.2.1)."""

from __future__ import annotations

from bisect import bisect_right

from moqt.errors import SessionCode, SessionFault


class RequestIds:
    """Ours rise by two; the peer's may come in any order, so its holes are remembered.

    A request that its sender cancels early leaves a hole for ever: beyond ``max_holes`` the oldest
    ones count as used.
    """

    def __init__(self, *, is_client: bool, max_holes: int) -> None:
        #: The next id of ours.
        self.upcoming = 0 if is_client else 1
        self._parity = 1 if is_client else 0
        self._next = self._parity  # every peer id from here on is new
        self._holes: list[tuple[int, int]] = []  # unused ranges below it, [first, end), ascending
        self._max_holes = max_holes

    @property
    def holes(self) -> int:
        """How many ranges of the peer's ids are remembered as unused."""
        return len(self._holes)

    def allocate(self) -> int:
        """Take the next id of ours."""
        value = self.upcoming
        self.upcoming += 2
        return value

    def take(self, value: int) -> None:
        """Accept an id of the peer; SessionFault(INVALID_REQUEST_ID) on parity or repetition."""
        if value & 1 != self._parity:
            raise SessionFault(
                SessionCode.INVALID_REQUEST_ID, f"request id {value} has the wrong parity"
            )
        if value >= self._next:
            if value > self._next:
                self._holes.append((self._next, value))
            self._next = value + 2
        else:
            self._fill(value)
        if len(self._holes) > self._max_holes:
            del self._holes[0]

    def _fill(self, value: int) -> None:
        at = bisect_right(self._holes, value, key=_first) - 1
        first, end = self._holes[at] if at >= 0 else (0, 0)
        if not first <= value < end:
            raise SessionFault(SessionCode.INVALID_REQUEST_ID, f"request id {value} used twice")
        rest = [(a, b) for a, b in ((first, value), (value + 2, end)) if a < b]
        self._holes[at : at + 1] = rest


def _first(hole: tuple[int, int]) -> int:
    return hole[0]
