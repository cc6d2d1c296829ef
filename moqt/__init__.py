"""Media over QUIC Transport for asyncio.

``connect`` and ``serve`` give a ``Connection``; ``Catalog`` and ``Track`` publish. Names load on
first use, so that the protocol core can be imported without an event loop or a network library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from moqt.driver import Connection as Connection
    from moqt.endpoint import Server as Server
    from moqt.endpoint import connect as connect
    from moqt.endpoint import serve as serve
    from moqt.model import FullTrackName as FullTrackName
    from moqt.model import GroupOrder as GroupOrder
    from moqt.model import Location as Location
    from moqt.model import LocationFilter as LocationFilter
    from moqt.publisher import Catalog as Catalog
    from moqt.publisher import Track as Track

_HOMES: Final = {
    "Catalog": "moqt.publisher",
    "Connection": "moqt.driver",
    "FullTrackName": "moqt.model",
    "GroupOrder": "moqt.model",
    "Location": "moqt.model",
    "LocationFilter": "moqt.model",
    "Server": "moqt.endpoint",
    "Track": "moqt.publisher",
    "connect": "moqt.endpoint",
    "serve": "moqt.endpoint",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'moqt' has no attribute {name!r}")
    return getattr(import_module(home), name)
