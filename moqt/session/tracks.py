"""SUBSCRIBE_TRACKS at both ends: a PUBLISH of every track under a prefix (draft-22 §3.6, §9.18)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.params import Parameters, Place, Scope
from moqt.codec.properties import find
from moqt.errors import ProtocolViolation
from moqt.model import (
    MAX_NAME_LENGTH,
    MAX_NAMESPACE_FIELDS,
    FullTrackName,
    GroupOrder,
    RangeFilterType,
)
from moqt.session.checks import check_own_parameters, check_spans
from moqt.session.filters import RangeFilters
from moqt.session.prefixes import PrefixRequest, check_own_prefix, under
from moqt.session.publishing import OutgoingPublish
from moqt.session.state import RESPONDER, TRACKS, Request
from moqt.session.updatable import UpdatableRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.errors import MoqtError, RequestRefused
    from moqt.model import RangeFilter, TrackNamespace, TrackSource
    from moqt.session.context import Context
    from moqt.session.ports import TracksListener
    from moqt.session.state import Table


def selects(filters: Iterable[RangeFilter], properties: bytes) -> bool:
    """True when TRACK_PROPERTY_FILTER lets a track pass: any SetID of which all filters do."""
    sets: dict[int, list[RangeFilter]] = {}
    for item in filters:
        if item.type is RangeFilterType.TRACK_PROPERTY and not item.remove:
            sets.setdefault(item.set_id, []).append(item)
    return not sets or any(all(_admits(f, properties) for f in one) for one in sets.values())


def _admits(wanted: RangeFilter, properties: bytes) -> bool:
    value = None if wanted.property_type is None else find(properties, wanted.property_type)
    return wanted.admits(value if isinstance(value, int) else None)


def _unheard(_: MoqtError | None) -> None:
    """Nobody waits for the answer."""


class IncomingSubscribeTracks(PrefixRequest):
    """The peer wants the tracks under ``prefix``: offer each with ``publish``, now and later."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_TRACKS

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self._told: set[FullTrackName] = set()

    @property
    def space(self) -> set[TrackNamespace]:
        """Its own: SUBSCRIBE_NAMESPACE is no overlap (draft-22 §3.6)."""
        return self.session.track_interests

    def start(self, message: m.SubscribeTracks) -> None:
        """Check the overlap rule, then ask the application."""
        if self.begin(message):
            self.ask(self.session.handler.on_subscribe_tracks)

    def publish(
        self,
        source: TrackSource,
        order: GroupOrder = GroupOrder.ASCENDING,
        answer: Callable[[MoqtError | None], None] = _unheard,
    ) -> OutgoingPublish | None:
        """PUBLISH of a track, once, with the parameters asked for (draft-22 §3.6.2).

        None when it does not match, is the peer's own, or must be skipped for want of streams.
        """
        name, session = source.name, self.session
        if not self._wants(name) or not selects(self.parameters.range_filters, source.properties):
            return None
        if not session.may_publish():
            self.skip(name)
            return None
        self._told.add(name)
        asked = self.parameters
        said = Parameters(
            object_delivery_timeout=asked.object_delivery_timeout,
            subgroup_delivery_timeout=asked.subgroup_delivery_timeout,
            forward=asked.forward,
            subscriber_priority=asked.subscriber_priority,
            location_filter=asked.location_filter,
            group_order=asked.group_order,
        )
        tokens = () if self.claim is None else self.claim.tokens
        request = OutgoingPublish(session, source, said, order, answer, asked, tokens)
        session.publishes.append(request.stream)
        return request

    def skip(self, name: FullTrackName) -> None:
        """PUBLISH_SKIPPED: a track that matches will not be offered (draft-22 §9.19)."""
        if self._wants(name):
            self._told.add(name)
            self.send(m.PublishSkipped(name.namespace[len(self.prefix) :], name.name))

    def forget(self, name: FullTrackName) -> None:
        """The track is gone; one of that name may be offered anew."""
        self._told.discard(name)

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """Prefix, selection, and whether future subscriptions are paused (draft-22 §9.5)."""
        wanted = message.parameters
        filters = RangeFilters(self.parameters.range_filters).updated(wanted.range_filters)
        if refusal is None:
            refusal = check_spans(filters, self.session.config)
        if refusal is None:
            forward = self.parameters.forward if wanted.forward is None else wanted.forward
            self.parameters = replace(
                self.parameters, forward=forward, range_filters=filters.present
            )
        super().updated(message, refusal)

    def _wants(self, name: FullTrackName) -> bool:
        return (
            self.state is Request.ESTABLISHED
            and self.matches(name.namespace)
            and name not in self._told
            and name not in self.session.peer_tracks
        )


class OutgoingSubscribeTracks(UpdatableRequest):
    """An interest of ours in tracks; ``cancel`` ends it and leaves its subscriptions alone."""

    table: ClassVar[Table] = TRACKS
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_TRACKS
    place: ClassVar[Place] = Place.UPDATE_SUBSCRIBE_TRACKS

    def __init__(
        self,
        session: Context,
        prefix: TrackNamespace,
        parameters: Parameters,
        listener: TracksListener,
    ) -> None:
        super().__init__(
            session, lambda request_id: m.SubscribeTracks(request_id, prefix, parameters)
        )
        self.listener = listener
        self.parameters = parameters
        # The one in force, then those of updates not answered yet.
        self._prefixes = [prefix]
        session.tracks_wanted[self.request_id] = self

    @property
    def prefix(self) -> TrackNamespace:
        """As the peer knows it: that of the last update it has answered."""
        return self._prefixes[0]

    def covers(self, namespace: TrackNamespace) -> bool:
        """True when a PUBLISH under ``namespace`` may be due to this request."""
        return any(under(namespace, prefix) for prefix in self._prefixes)

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE: prefix, FORWARD of what comes, selection; Misuse for anything else."""
        filters = RangeFilters(self.parameters.range_filters).updated(parameters.range_filters)
        check_own_parameters(parameters, self.session.peer_options, filters)
        check_own_prefix(self, parameters.track_namespace_prefix)
        super().update(parameters)
        self.parameters = replace(self.parameters, range_filters=filters.present)
        if parameters.track_namespace_prefix is not None:
            self._prefixes.append(parameters.track_namespace_prefix)

    def update_applied(self, parameters: Parameters) -> None:
        """Suffixes are relative to the new prefix from here on."""
        if parameters.track_namespace_prefix is not None:
            del self._prefixes[0]

    def on_ok(self, message: m.RequestOk) -> None:
        """Each PUBLISH goes to the listener."""
        self.expires = message.parameters.expires
        self.listener.accepted()

    def on_skipped(self, message: m.PublishSkipped) -> None:
        """One track will not come by itself: SUBSCRIBE can ask for it (draft-22 §9.19)."""
        name = FullTrackName(self.prefix + message.suffix, message.track_name)
        if len(name.namespace) > MAX_NAMESPACE_FIELDS or _length(name) > MAX_NAME_LENGTH:
            raise ProtocolViolation("PUBLISH_SKIPPED names a track that cannot exist")
        self.listener.skipped(name)

    def peer_finished(self) -> None:
        """No more will be offered."""
        if self.state is Request.ESTABLISHED:
            self.state = Request.CLOSED
            self._leave()
            self.listener.ended(None)
        super().peer_finished()

    def abandon(self, code: int) -> None:
        """What is offered from now on is nobody's."""
        self._leave()
        super().abandon(code)

    def failed(self, error: MoqtError, code: int) -> None:
        """Refused, reset by the peer, or the session is gone."""
        self._leave()
        self.listener.ended(error)

    def _leave(self) -> None:
        self.session.tracks_wanted.pop(self.request_id, None)


def _length(name: FullTrackName) -> int:
    return sum(map(len, name.namespace)) + len(name.name)
