"""Figures of a process over a soak, and how they grow."""

from __future__ import annotations

import resource
from pathlib import Path


class Series:
    """Figures by name, sampled over the units (connections, streams, sessions) of one phase."""

    def __init__(self) -> None:
        self.units: list[int] = []
        self.values: dict[str, list[float]] = {}

    def sample(self, unit: int, **values: float) -> None:
        """The figures after so many units."""
        self.units.append(unit)
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def span(self, first: float = 1 / 3, last: float = 1.0) -> int:
        """Units between two parts of the samples."""
        units = self._part(self.units, first, last)
        return units[-1] - units[0] if units else 0

    def slope(self, name: str, first: float = 1 / 3, last: float = 1.0) -> float:
        """Growth per unit, least squares over a part of the samples: the later two thirds."""
        xs, ys = (self._part(one, first, last) for one in (self.units, self.values[name]))
        if len(xs) < 2:
            return 0.0
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        spread = sum((x - mean_x) ** 2 for x in xs)
        shared = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
        return shared / spread if spread else 0.0

    @staticmethod
    def _part(values: list, first: float, last: float) -> list:
        return values[int(len(values) * first) : int(len(values) * last)]


def resident(pid: int | str = "self") -> int:
    """Octets of memory that a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def descriptors(pid: int) -> int:
    """Files and sockets that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
