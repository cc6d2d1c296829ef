"""Control messages: one dataclass each, fields declared once with their wire form (draft-22 §9)."""

# No postponed annotations here: the Annotated field types are the wire layout, read at import.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_type_hints

from moqt.codec import params
from moqt.codec.cursor import Reader, Writer
from moqt.codec.fields import (
    check_name,
    read_location,
    read_name,
    read_namespace,
    read_pairs,
    read_reason,
    text_octets,
    write_location,
    write_name,
    write_namespace,
    write_reason,
)
from moqt.codec.params import NO_PARAMETERS, Parameters, Place, Scope
from moqt.codec.profile import LATEST, MessageKind, Profile
from moqt.codec.properties import NO_OPTIONS, SetupOptions
from moqt.codec.varint import Incomplete
from moqt.errors import Misuse, ProtocolViolation, RequestCode
from moqt.model import MAX_NAME_LENGTH, FullTrackName, Location, Redirect, TrackNamespace

#: draft-22 §9: Message Length has 16 bits.
MAX_BODY: Final = 65_535
#: draft-22 §9.2.
MAX_GOAWAY_URI: Final = 8192


class Wire(NamedTuple):
    """How one field is read and written; ``place`` is where the message's parameters stand."""

    read: Callable[[Reader, Place], Any]
    write: Callable[[Writer, Any, Place], None]


def _plain(read: Callable[[Reader], Any], write: Callable[[Writer, Any], None]) -> Wire:
    return Wire(lambda reader, _: read(reader), lambda writer, value, _: write(writer, value))


def _read_uri(limit: int, reader: Reader) -> str:
    return reader.length_prefixed(limit, "URI").decode(errors="replace")


def _write_uri(limit: int, writer: Writer, uri: str) -> None:
    octets = text_octets(uri, "URI")
    if len(octets) > limit:
        raise Misuse(f"URI of {len(octets)} octets: at most {limit} are allowed")
    writer.length_prefixed(octets)


def _read_track_properties(reader: Reader) -> bytes:
    raw = reader.rest()
    for _ in read_pairs(raw):
        pass
    return raw


def _write_track_properties(writer: Writer, raw: bytes) -> None:
    writer.raw(raw)


def _read_track_name(reader: Reader) -> bytes:
    return reader.length_prefixed(MAX_NAME_LENGTH, "track name")


def _read_redirect(reader: Reader) -> Redirect | None:
    if not reader.remaining:
        return None
    return Redirect(_read_uri(MAX_BODY, reader), read_name(reader))


def _write_redirect(writer: Writer, redirect: Redirect | None) -> None:
    if redirect is not None:
        _write_uri(MAX_BODY, writer, redirect.uri)
        write_name(writer, redirect.name)


def _read_ended(reader: Reader) -> bool:
    # §9.12 names 0 and 1 only; anything else is read as 1.
    return reader.u8() != 0


VARINT: Final = _plain(Reader.varint, Writer.varint)
NAMESPACE: Final = _plain(read_namespace, write_namespace)
FULL_NAME: Final = _plain(read_name, write_name)
LOCATION: Final = _plain(read_location, write_location)
REASON: Final = _plain(read_reason, write_reason)
GOAWAY_URI: Final = _plain(partial(_read_uri, MAX_GOAWAY_URI), partial(_write_uri, MAX_GOAWAY_URI))
TRACK_NAME: Final = _plain(_read_track_name, Writer.length_prefixed)
ENDED: Final = _plain(_read_ended, Writer.u8)
PARAMETERS: Final = Wire(params.read_parameters, params.write_parameters)
TRACK_PROPERTIES: Final = _plain(_read_track_properties, _write_track_properties)
REDIRECT: Final = _plain(_read_redirect, _write_redirect)
OPTIONS: Final = _plain(
    lambda reader: SetupOptions.decode(reader.rest()),
    lambda writer, options: writer.raw(options.encode()),
)


@dataclass(frozen=True, slots=True)
class Setup:
    """First message of each control stream (draft-22 §9.1)."""

    options: Annotated[SetupOptions, OPTIONS] = NO_OPTIONS


@dataclass(frozen=True, slots=True)
class Goaway:
    """Move the session, or one request (draft-22 §9.2); ``timeout`` in ms, 0 is unstated."""

    uri: Annotated[str, GOAWAY_URI] = ""
    timeout: Annotated[int, VARINT] = 0


@dataclass(frozen=True, slots=True)
class RequestOk:
    """Success of every request but SUBSCRIBE and FETCH (draft-22 §9.3)."""

    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS
    properties: Annotated[bytes, TRACK_PROPERTIES] = b""


@dataclass(frozen=True, slots=True)
class RequestError:
    """Failure of a request (draft-22 §9.4). ``retry_interval`` is ms plus one, 0 means never."""

    code: Annotated[int, VARINT]
    retry_interval: Annotated[int, VARINT] = 0
    reason: Annotated[str, REASON] = ""
    redirect: Annotated[Redirect | None, REDIRECT] = None


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """Changes the request on whose stream it travels (draft-22 §9.5); its id is its own."""

    request_id: Annotated[int, VARINT]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Asks for the live objects of a track (draft-22 §9.6)."""

    request_id: Annotated[int, VARINT]
    name: Annotated[FullTrackName, FULL_NAME]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class SubscribeOk:
    """Answers SUBSCRIBE (draft-22 §9.7); ``properties`` are raw Track Properties."""

    track_alias: Annotated[int, VARINT]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS
    properties: Annotated[bytes, TRACK_PROPERTIES] = b""


@dataclass(frozen=True, slots=True)
class Publish:
    """Offers a track (draft-22 §9.8); ``properties`` are raw Track Properties."""

    request_id: Annotated[int, VARINT]
    name: Annotated[FullTrackName, FULL_NAME]
    track_alias: Annotated[int, VARINT]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS
    properties: Annotated[bytes, TRACK_PROPERTIES] = b""


@dataclass(frozen=True, slots=True)
class PublishDone:
    """Ends a subscription (draft-22 §9.9); ``stream_count`` 2^64-1 is unknown."""

    status: Annotated[int, VARINT]
    stream_count: Annotated[int, VARINT]
    reason: Annotated[str, REASON] = ""


@dataclass(frozen=True, slots=True)
class PublishStateNotify:
    """The publisher's state changed unasked (draft-22 §9.10)."""

    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for past objects of a track (draft-22 §9.11)."""

    request_id: Annotated[int, VARINT]
    name: Annotated[FullTrackName, FULL_NAME]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class FetchOk:
    """Answers FETCH (draft-22 §9.12); ``end`` is inclusive."""

    end_of_track: Annotated[bool, ENDED]
    end: Annotated[Location, LOCATION]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS
    properties: Annotated[bytes, TRACK_PROPERTIES] = b""


@dataclass(frozen=True, slots=True)
class TrackStatus:
    """Asks what SUBSCRIBE_OK would say, without subscribing (draft-22 §9.13)."""

    request_id: Annotated[int, VARINT]
    name: Annotated[FullTrackName, FULL_NAME]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class PublishNamespace:
    """Announces tracks under a prefix (draft-22 §9.14)."""

    request_id: Annotated[int, VARINT]
    namespace: Annotated[TrackNamespace, NAMESPACE]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class SubscribeNamespace:
    """Asks which namespaces exist under a prefix (draft-22 §9.15)."""

    request_id: Annotated[int, VARINT]
    prefix: Annotated[TrackNamespace, NAMESPACE]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace exists (draft-22 §9.16), as the fields after the subscribed prefix."""

    suffix: Annotated[TrackNamespace, NAMESPACE]


@dataclass(frozen=True, slots=True)
class NamespaceDone:
    """A namespace is gone (draft-22 §9.17)."""

    suffix: Annotated[TrackNamespace, NAMESPACE]


@dataclass(frozen=True, slots=True)
class SubscribeTracks:
    """Asks for a PUBLISH of every track under a prefix (draft-22 §9.18)."""

    request_id: Annotated[int, VARINT]
    prefix: Annotated[TrackNamespace, NAMESPACE]
    parameters: Annotated[Parameters, PARAMETERS] = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class PublishSkipped:
    """No PUBLISH will be made for this matching track (draft-22 §9.19)."""

    suffix: Annotated[TrackNamespace, NAMESPACE]
    track_name: Annotated[bytes, TRACK_NAME]


Message: TypeAlias = (
    Setup
    | Goaway
    | RequestOk
    | RequestError
    | RequestUpdate
    | Subscribe
    | SubscribeOk
    | Publish
    | PublishDone
    | PublishStateNotify
    | Fetch
    | FetchOk
    | TrackStatus
    | PublishNamespace
    | SubscribeNamespace
    | Namespace
    | NamespaceDone
    | SubscribeTracks
    | PublishSkipped
)


class _Layout(NamedTuple):
    kind: MessageKind
    message: Callable[..., Message]
    fields: tuple[tuple[str, Wire], ...]
    place: Place


def _layout(kind: MessageKind, message: type[Message], place: Place = Place.NOWHERE) -> _Layout:
    hints = get_type_hints(message, include_extras=True)
    wires = tuple((name, hint.__metadata__[0]) for name, hint in hints.items())
    return _Layout(kind, message, wires, place)


_LAYOUTS: Final = {
    Setup: _layout(MessageKind.SETUP, Setup),
    Goaway: _layout(MessageKind.GOAWAY, Goaway),
    RequestOk: _layout(MessageKind.REQUEST_OK, RequestOk, Place.OK),
    RequestError: _layout(MessageKind.REQUEST_ERROR, RequestError),
    RequestUpdate: _layout(MessageKind.REQUEST_UPDATE, RequestUpdate, Place.UPDATE),
    Subscribe: _layout(MessageKind.SUBSCRIBE, Subscribe, Place.SUBSCRIBE),
    SubscribeOk: _layout(MessageKind.SUBSCRIBE_OK, SubscribeOk, Place.SUBSCRIBE_OK),
    Publish: _layout(MessageKind.PUBLISH, Publish, Place.PUBLISH),
    PublishDone: _layout(MessageKind.PUBLISH_DONE, PublishDone),
    PublishStateNotify: _layout(
        MessageKind.PUBLISH_STATE_NOTIFY, PublishStateNotify, Place.PUBLISH_STATE_NOTIFY
    ),
    Fetch: _layout(MessageKind.FETCH, Fetch, Place.FETCH),
    FetchOk: _layout(MessageKind.FETCH_OK, FetchOk, Place.FETCH_OK),
    TrackStatus: _layout(MessageKind.TRACK_STATUS, TrackStatus, Place.TRACK_STATUS),
    PublishNamespace: _layout(
        MessageKind.PUBLISH_NAMESPACE, PublishNamespace, Place.PUBLISH_NAMESPACE
    ),
    SubscribeNamespace: _layout(
        MessageKind.SUBSCRIBE_NAMESPACE, SubscribeNamespace, Place.SUBSCRIBE_NAMESPACE
    ),
    Namespace: _layout(MessageKind.NAMESPACE, Namespace),
    NamespaceDone: _layout(MessageKind.NAMESPACE_DONE, NamespaceDone),
    SubscribeTracks: _layout(MessageKind.SUBSCRIBE_TRACKS, SubscribeTracks, Place.SUBSCRIBE_TRACKS),
    PublishSkipped: _layout(MessageKind.PUBLISH_SKIPPED, PublishSkipped),
}
_BY_KIND: Final = {layout.kind: layout for layout in _LAYOUTS.values()}

_UPDATE_PLACES: Final = {
    Scope.SUBSCRIPTION: Place.UPDATE_SUBSCRIPTION,
    Scope.PUBLISH: Place.UPDATE_SUBSCRIPTION,
    Scope.FETCH: Place.UPDATE_FETCH,
    Scope.PUBLISH_NAMESPACE: Place.UPDATE_PUBLISH_NAMESPACE,
    Scope.SUBSCRIBE_NAMESPACE: Place.UPDATE_SUBSCRIBE_NAMESPACE,
    Scope.SUBSCRIBE_TRACKS: Place.UPDATE_SUBSCRIBE_TRACKS,
}
#: SUBSCRIBE and FETCH have OK messages of their own.
_OK_PLACES: Final = {
    Scope.PUBLISH: Place.OK_PUBLISH,
    Scope.TRACK_STATUS: Place.OK_TRACK_STATUS,
    Scope.PUBLISH_NAMESPACE: Place.OK_PUBLISH_NAMESPACE,
    Scope.SUBSCRIBE_NAMESPACE: Place.OK_SUBSCRIBE_NAMESPACE,
    Scope.SUBSCRIBE_TRACKS: Place.OK_SUBSCRIBE_TRACKS,
}
_NAMESPACE_SCOPES: Final = frozenset(
    {Scope.PUBLISH_NAMESPACE, Scope.SUBSCRIBE_NAMESPACE, Scope.SUBSCRIBE_TRACKS}
)


def kind_of(message: Message) -> MessageKind:
    """Which of the protocol's messages this is; its ``name`` is the one the protocol uses."""
    return _LAYOUTS[type(message)].kind


def encode_message(message: Message, profile: Profile = LATEST) -> bytes:
    """Type, length and body; Misuse when a field, or the body at 65535 octets, breaks a limit."""
    layout = _LAYOUTS[type(message)]
    if isinstance(message, RequestError) and _misplaced_redirect(message):
        raise Misuse("REQUEST_ERROR carries a redirect exactly when its code is REDIRECT")
    if isinstance(message, PublishSkipped):
        check_name(message.suffix, message.track_name)
    body = Writer()
    for name, wire in layout.fields:
        wire.write(body, getattr(message, name), layout.place)
    if len(body) > MAX_BODY:
        raise Misuse(
            f"{layout.kind.name} of {len(body)} octets: a message body holds at most {MAX_BODY}"
        )
    out = Writer()
    out.varint(profile.codes[layout.kind])
    out.u16(len(body))
    out.raw(body.getvalue())
    return out.getvalue()


def decode_message(
    profile: Profile,
    type: int,
    body: bytes,
    scope: Scope | None = None,
    *,
    answers_update: bool | None = None,
) -> Message:
    """The message of wire code ``type``; SessionFault when it breaks a rule.

    ``scope`` is the request of the stream; without it REQUEST_UPDATE, REQUEST_OK and REQUEST_ERROR
    are read as leniently as any request allows. ``answers_update`` says whether a REQUEST_OK
    answers an update (True), the request (False), or either (None).
    """
    kind = profile.messages.get(type)
    if kind is None:
        raise ProtocolViolation(f"message type {type:#x} is unknown")
    layout = _BY_KIND[kind]
    place = _place(layout, scope, answers_update)
    reader = Reader(body)
    values = []
    for name, wire in layout.fields:
        try:
            values.append(wire.read(reader, place))
        except Incomplete:
            raise ProtocolViolation(f"{kind.name} ends inside {name}") from None
    reader.expect_end(kind.name)
    message = layout.message(*values)
    if isinstance(message, RequestError):
        _check_error(message, scope)
    elif isinstance(message, RequestOk) and message.properties:
        return _checked_ok(message, scope, answers_update)
    elif isinstance(message, PublishSkipped):
        _check_skipped(message)
    return message


def _place(layout: _Layout, scope: Scope | None, answers_update: bool | None) -> Place:
    if scope is None or layout.kind not in (MessageKind.REQUEST_OK, MessageKind.REQUEST_UPDATE):
        return layout.place
    update = _UPDATE_PLACES.get(scope, Place.NOWHERE)
    if layout.kind is MessageKind.REQUEST_OK:
        first = Place.NOWHERE if answers_update else _OK_PLACES.get(scope, Place.NOWHERE)
        later = Place.OK_UPDATE if update and answers_update is not False else Place.NOWHERE
        found = first | later
    else:
        found = update
    if not found:
        raise ProtocolViolation(f"{layout.kind.name} has no place on the stream of a {scope.name}")
    return found


def _misplaced_redirect(message: RequestError) -> bool:
    return (message.code == RequestCode.REDIRECT) != (message.redirect is not None)


def _check_error(message: RequestError, scope: Scope | None) -> None:
    if _misplaced_redirect(message):
        raise ProtocolViolation(
            "REQUEST_ERROR must carry a redirect exactly when its code is REDIRECT"
        )
    if message.redirect is not None and message.redirect.name.name and scope in _NAMESPACE_SCOPES:
        raise ProtocolViolation("redirect of a namespace request names a track")


def _check_skipped(message: PublishSkipped) -> None:
    total = sum(map(len, message.suffix)) + len(message.track_name)
    if total > MAX_NAME_LENGTH:
        raise ProtocolViolation(
            f"full track name of {total} octets; at most {MAX_NAME_LENGTH} are allowed"
        )


def _checked_ok(message: RequestOk, scope: Scope | None, answers_update: bool | None) -> RequestOk:
    """Only TRACK_STATUS_OK has properties; §9.3 forgets SUBSCRIBE_TRACKS_OK: ignored there."""
    if scope is None or scope is Scope.TRACK_STATUS:
        return message
    if scope is Scope.SUBSCRIBE_TRACKS and not answers_update:
        return RequestOk(message.parameters)
    raise ProtocolViolation(f"track properties in the REQUEST_OK of a {scope.name}")
