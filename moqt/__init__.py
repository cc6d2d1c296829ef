"""Media over QUIC Transport for asyncio.

``connect`` and ``serve`` give a ``Connection``; ``Catalog`` and ``Track`` publish.
"""

from moqt.driver import Connection
from moqt.endpoint import Server, connect, serve
from moqt.model import FullTrackName, GroupOrder, Location, LocationFilter
from moqt.publisher import Catalog, Track

__all__ = [
    "Catalog",
    "Connection",
    "FullTrackName",
    "GroupOrder",
    "Location",
    "LocationFilter",
    "Server",
    "Track",
    "connect",
    "serve",
]
