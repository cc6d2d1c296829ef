"""What a retrieval gives back: layers, and the figures of the whole."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvcs.errors import InvalidInput
from kvcs.tensors import to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from kvcs.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Layer:
    """One verified layer; ``buffers`` maps "k" and "v" to octets of ``[token, kv_head, dim]``.

    ``received_at`` and ``verified_at`` are the event loop's time when its last object was whole
    and when it was verified. The buffers are read-only and shared: nothing was copied.
    """

    index: int
    geometry: Geometry
    buffers: Mapping[str, memoryview]
    received_at: float
    verified_at: float

    def array(self, component: str) -> NDArray[Any]:
        """ "k" or "v" as a numpy array ``[token, kv_head, dim]``, read-only, not copied.

        Raises KvcsError when numpy (ml_dtypes for bfloat16 and float8) is not installed.
        """
        if component not in self.buffers:
            raise InvalidInput(f"component {component!r}: a layer has k and v")
        return to_numpy(self.buffers[component], self.geometry)


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a retrieval; counts are of objects, ``octets`` of verified tensor data.

    ``digest`` is SHA-256 over the layers in order, K then V of each; None while layers are
    missing. ``sources`` are the sessions used, ``setbacks`` what went wrong on the way.
    """

    publication: str
    segment: int
    mode: str
    layers: tuple[int, int]
    blocks: int
    tokens: int
    objects: int
    octets: int
    missing: int
    duplicates: int
    surplus: int
    lost: int
    gaps: int
    rejected: dict[str, int]
    listed: bool
    seconds: float
    sources: tuple[str, ...]
    setbacks: tuple[str, ...]
    digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for one JSON object."""
        return asdict(self)


def digest_of_layers(layers: Iterable[Layer]) -> str:
    """SHA-256 over the layers in order, K then V of each, in hexadecimal."""
    digest = hashlib.sha256()
    for layer in layers:
        digest.update(layer.buffers["k"])
        digest.update(layer.buffers["v"])
    return digest.hexdigest()
