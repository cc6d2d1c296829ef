"""KV Cache Streaming: layer-aligned KV cache blocks over MOQT.

``Publisher`` offers caches, ``Consumer`` finds and takes them. Names load on first use, so that
the formats can be imported without an event loop or a network library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvcs.consumer import Consumer as Consumer
    from kvcs.discovery import Found as Found
    from kvcs.errors import IdentityMismatch as IdentityMismatch
    from kvcs.errors import IncompletePublication as IncompletePublication
    from kvcs.errors import InvalidInput as InvalidInput
    from kvcs.errors import KvcsError as KvcsError
    from kvcs.errors import ManifestRejected as ManifestRejected
    from kvcs.errors import PublicationConflict as PublicationConflict
    from kvcs.errors import UnknownPublication as UnknownPublication
    from kvcs.identity import CompatibilityDescriptor as CompatibilityDescriptor
    from kvcs.identity import ScopeKey as ScopeKey
    from kvcs.names import PublicationName as PublicationName
    from kvcs.publication import Publication as Publication
    from kvcs.publisher import Publisher as Publisher
    from kvcs.results import Layer as Layer
    from kvcs.results import Report as Report
    from kvcs.retrieval import Retrieval as Retrieval

_HOMES: Final = {
    "CompatibilityDescriptor": "kvcs.identity",
    "Consumer": "kvcs.consumer",
    "Found": "kvcs.discovery",
    "IdentityMismatch": "kvcs.errors",
    "IncompletePublication": "kvcs.errors",
    "InvalidInput": "kvcs.errors",
    "KvcsError": "kvcs.errors",
    "Layer": "kvcs.results",
    "ManifestRejected": "kvcs.errors",
    "Publication": "kvcs.publication",
    "PublicationConflict": "kvcs.errors",
    "PublicationName": "kvcs.names",
    "Publisher": "kvcs.publisher",
    "Report": "kvcs.results",
    "Retrieval": "kvcs.retrieval",
    "ScopeKey": "kvcs.identity",
    "UnknownPublication": "kvcs.errors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvcs' has no attribute {name!r}")
    return getattr(import_module(home), name)
