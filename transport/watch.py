"""Files that are looked at now and then, and read again when they have changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger(__name__)

#: Seconds between two looks.
LOOK_EVERY: Final = 2.0


def file_mark(path: Path) -> tuple[int, ...]:
    """What differs when another content is there; raises OSError."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


class Watch:
    """Calls ``load`` at first, and again once ``marks`` says something else.

    An ``errors`` of either leaves from here at first; later it changes nothing and is logged once.
    """

    def __init__(
        self,
        what: str,
        marks: Callable[[], object],
        load: Callable[[], None],
        errors: tuple[type[Exception], ...],
    ) -> None:
        self._what = what
        self._marks = marks
        self._load = load
        self._errors = errors
        self._next_look = 0.0
        self._complaint = ""
        self._seen = marks()
        load()

    def look(self, now: float) -> None:
        """Look again, every LOOK_EVERY seconds of ``now``."""
        if now < self._next_look and self._next_look - now <= LOOK_EVERY:
            return
        self._next_look = now + LOOK_EVERY
        try:
            marks = self._marks()
            if marks != self._seen:
                self._load()
                self._seen = marks
                _log.info("%s: they have changed", self._what)
            self._complaint = ""
        except self._errors as error:
            if str(error) != self._complaint:  # once, not at every look
                _log.warning("%s stay as they were: %s", self._what, error)
            self._complaint = str(error)
