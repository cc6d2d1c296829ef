"""Whether the peer of a session is still there. Pure: time is an argument."""

from __future__ import annotations

from typing import Final

#: Questions (PINGs) in a row that stay without any answer before the peer is given up. With 10 %
#: loss each way one in five finds no answer, eight in a row once in 600,000 times.
QUESTIONS: Final = 8

#: How much of the time is quiet, before the first question: an idle session costs one in that time.
QUIET_SHARE: Final = 1 / 3


class Vigil:
    """Counts questions, not seconds: after its own process has hung it gives nobody up.

    ``timeout`` is in seconds from the last thing heard until the peer is given up; a slow path
    takes longer, since no question is asked before the one before it could have been answered.
    With None nothing is ever ``due``. Nothing is before the first ``heard``.
    """

    def __init__(self, timeout: float | None) -> None:
        #: When ``ask`` is to be called.
        self.due = float("inf")
        self._quiet = float("inf") if timeout is None else timeout * QUIET_SHARE
        self._pause = 0.0 if timeout is None else (timeout - self._quiet) / QUESTIONS
        self._asked = 0

    def heard(self, now: float) -> None:
        """Something came from the peer."""
        self._asked = 0
        self.due = now + self._quiet

    def ask(self, now: float, probe_timeout: float) -> bool:
        """Once it is ``due``: True, ask the peer something; or False, it is lost.

        ``probe_timeout`` is QUIC's (RFC 9002 §6.2.1): the seconds that an answer may take.
        """
        if self._asked == QUESTIONS:
            return False
        self._asked += 1
        self.due = now + max(self._pause, probe_timeout)
        return True
