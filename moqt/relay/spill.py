"""A directory where payloads go when memory is full; they come back memory-mapped."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moqt.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.model import StoredObject
    from moqt.relay.cache import Key

#: Mappings kept open for the next object of the same group: each holds a file descriptor.
MAX_MAPPED: Final = 64

_NAME: Final = "moqt-relay-{}.spill"


class _File:
    """The payloads of one group, one after the other: where each lies, by Object ID."""

    __slots__ = ("octets", "path", "places")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.octets = 0
        self.places: dict[int, tuple[int, int]] = {}


class Spill:
    """One relay's own ``directory``, at most ``budget`` octets in it; nothing outlives the relay.

    A disk that fails is survived: counted, and what was to be kept is not. ``Misuse`` when the
    directory cannot be used or another relay uses it.
    """

    def __init__(self, directory: str | os.PathLike[str], budget: int) -> None:
        self.budget = budget
        #: Octets on disk.
        self.octets = 0
        #: Writes and reads that the disk has refused.
        self.failures = 0
        self._directory = Path(directory)
        self._files: dict[Key, _File] = {}
        self._mapped: OrderedDict[Key, memoryview] = OrderedDict()
        self._count = 0
        self._lock = self._claim()
        self._sweep()

    def room(self, octets: int) -> bool:
        """True when ``octets`` more are within the budget."""
        return self.octets + octets <= self.budget

    def store(self, key: Key, objects: Sequence[StoredObject]) -> bool:
        """Write payloads of a group, beside those it has already; False when they are not kept."""
        octets = sum(len(view) for stored in objects for view in stored.payload)
        if not self.room(octets):
            return False
        file = self._files.get(key)
        if file is None:
            self._count += 1
            file = _File(self._directory / _NAME.format(self._count))
        try:
            self._append(file, [view for stored in objects for view in stored.payload])
        except OSError:
            self.failures += 1
            if not file.places:
                self._remove(file.path)
            return False
        at = file.octets
        for stored in objects:
            file.places[stored.head.object] = (at, at + stored.head.length)
            at += stored.head.length
        file.octets = at
        self.octets += octets
        self._files[key] = file
        self._mapped.pop(key, None)
        return True

    def load(self, key: Key, number: int) -> memoryview | None:
        """The payload of one object, mapped read-only; None when the disk does not give it."""
        file = self._files.get(key)
        found = None if file is None else file.places.get(number)
        if file is None or found is None:
            return None
        view = self._mapped.get(key)
        if view is None:
            view = self._map(file)
            if view is None:
                return None
            self._mapped[key] = view
            if len(self._mapped) > MAX_MAPPED:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(key)
        return view[found[0] : found[1]]

    def drop(self, key: Key) -> None:
        """Forget a group; views of it that are in use stay valid."""
        self._mapped.pop(key, None)
        file = self._files.pop(key, None)
        if file is not None:
            self.octets -= file.octets
            self._remove(file.path)

    def close(self) -> None:
        """Remove every file; views in use stay valid."""
        for key in tuple(self._files):
            self.drop(key)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- inside ----------------------------------------------------------------------------------

    def _claim(self) -> int:
        """The directory, locked for as long as its descriptor is open."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as fault:
            raise Misuse(
                f"spill directory {str(self._directory)!r} cannot be used ({fault.strerror}): "
                f"name one that the relay may create or write to"
            ) from None
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            os.close(descriptor)
            raise Misuse(
                f"spill directory {str(self._directory)!r} belongs to somebody else or others may "
                f"write to it: give the relay one of its own, mode 0700"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise Misuse(
                f"spill directory {str(self._directory)!r} is in use by another relay: "
                f"give each relay its own"
            ) from None
        return descriptor

    def _sweep(self) -> None:
        """What an earlier relay has left behind, if it was killed."""
        for path in self._directory.glob(_NAME.format("*")):
            self._remove(path)

    def _append(self, file: _File, views: Sequence[bytes | bytearray | memoryview]) -> None:
        flags = os.O_WRONLY | os.O_NOFOLLOW | (0 if file.places else os.O_CREAT | os.O_EXCL)
        descriptor = os.open(file.path, flags, 0o600)
        with open(descriptor, "wb", buffering=0) as out:
            out.seek(file.octets)  # what a failed attempt has written is overwritten
            for view in views:
                rest = memoryview(view)
                while rest:
                    rest = rest[out.write(rest) :]

    def _map(self, file: _File) -> memoryview | None:
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_size < file.octets:  # so is what is no regular file
                    raise OSError("the file has been cut")
                whole = mmap.mmap(descriptor, file.octets, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        except OSError:
            self.failures += 1
            return None
        return memoryview(whole)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.failures += 1
