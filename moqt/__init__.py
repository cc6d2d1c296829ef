"""Media over QUIC Transport for asyncio.

``connect`` and ``serve`` give a ``Connection``; ``Catalog`` and ``Track`` publish; ``subscribe``,
``fetch``, ``namespaces`` and ``tracks`` read what a peer has. docs/moqt.md teaches it. Names load
on first use: the protocol core can be imported without an event loop or a network library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from moqt.codec.fields import Token as Token
    from moqt.codec.params import Parameters as Parameters
    from moqt.discovery import Change as Change
    from moqt.discovery import Namespaces as Namespaces
    from moqt.discovery import Offer as Offer
    from moqt.discovery import Tracks as Tracks
    from moqt.discovery import namespaces as namespaces
    from moqt.discovery import tracks as tracks
    from moqt.driver import Connection as Connection
    from moqt.endpoint import Server as Server
    from moqt.endpoint import connect as connect
    from moqt.endpoint import serve as serve
    from moqt.errors import MalformedTrack as MalformedTrack
    from moqt.errors import Misuse as Misuse
    from moqt.errors import MoqtError as MoqtError
    from moqt.errors import RequestCode as RequestCode
    from moqt.errors import RequestFailed as RequestFailed
    from moqt.errors import RequestRefused as RequestRefused
    from moqt.errors import SessionClosed as SessionClosed
    from moqt.errors import StreamReset as StreamReset
    from moqt.errors import SubscriptionEnded as SubscriptionEnded
    from moqt.errors import TooFarBehind as TooFarBehind
    from moqt.migration import roam as roam
    from moqt.model import FullTrackName as FullTrackName
    from moqt.model import GroupOrder as GroupOrder
    from moqt.model import Location as Location
    from moqt.model import LocationFilter as LocationFilter
    from moqt.model import ObjectHead as ObjectHead
    from moqt.model import TrackSource as TrackSource
    from moqt.monitor import Monitor as Monitor
    from moqt.publisher import Catalog as Catalog
    from moqt.publisher import Track as Track
    from moqt.retry import insist as insist
    from moqt.session.config import SessionConfig as SessionConfig
    from moqt.session.ports import TrackReceiver as TrackReceiver
    from moqt.session.ports import Unserved as Unserved
    from moqt.session.tokens import Action as Action
    from moqt.session.tokens import Claim as Claim
    from moqt.subscriber import Fetch as Fetch
    from moqt.subscriber import ReceivedObject as ReceivedObject
    from moqt.subscriber import Subscription as Subscription
    from moqt.subscriber import accept as accept
    from moqt.subscriber import fetch as fetch
    from moqt.subscriber import subscribe as subscribe
    from moqt.trace import Trace as Trace

_HOMES: Final = {
    "Action": "moqt.session.tokens",
    "Catalog": "moqt.publisher",
    "Change": "moqt.discovery",
    "Claim": "moqt.session.tokens",
    "Connection": "moqt.driver",
    "Fetch": "moqt.subscriber",
    "FullTrackName": "moqt.model",
    "GroupOrder": "moqt.model",
    "Location": "moqt.model",
    "LocationFilter": "moqt.model",
    "MalformedTrack": "moqt.errors",
    "Misuse": "moqt.errors",
    "Monitor": "moqt.monitor",
    "MoqtError": "moqt.errors",
    "Namespaces": "moqt.discovery",
    "ObjectHead": "moqt.model",
    "Offer": "moqt.discovery",
    "Parameters": "moqt.codec.params",
    "ReceivedObject": "moqt.subscriber",
    "RequestCode": "moqt.errors",
    "RequestFailed": "moqt.errors",
    "RequestRefused": "moqt.errors",
    "Server": "moqt.endpoint",
    "SessionClosed": "moqt.errors",
    "SessionConfig": "moqt.session.config",
    "StreamReset": "moqt.errors",
    "Subscription": "moqt.subscriber",
    "SubscriptionEnded": "moqt.errors",
    "Token": "moqt.codec.fields",
    "TooFarBehind": "moqt.errors",
    "Trace": "moqt.trace",
    "Track": "moqt.publisher",
    "TrackReceiver": "moqt.session.ports",
    "TrackSource": "moqt.model",
    "Tracks": "moqt.discovery",
    "Unserved": "moqt.session.ports",
    "accept": "moqt.subscriber",
    "connect": "moqt.endpoint",
    "fetch": "moqt.subscriber",
    "insist": "moqt.retry",
    "namespaces": "moqt.discovery",
    "roam": "moqt.migration",
    "serve": "moqt.endpoint",
    "subscribe": "moqt.subscriber",
    "tracks": "moqt.discovery",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'moqt' has no attribute {name!r}")
    return getattr(import_module(home), name)
