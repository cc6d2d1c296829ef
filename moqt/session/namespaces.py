"""PUBLISH_NAMESPACE and SUBSCRIBE_NAMESPACE at both ends (draft-22 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.fields import check_name
from moqt.codec.params import Place, Scope
from moqt.errors import (
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestFailed,
    StreamCode,
)
from moqt.session.prefixes import PrefixRequest, check_own_prefix, under
from moqt.session.state import ANNOUNCER, INTERESTED, RESPONDER, Request
from moqt.session.updatable import LastingRequest, UpdatableRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.codec.params import Parameters
    from moqt.errors import MoqtError
    from moqt.model import TrackNamespace
    from moqt.session.context import Context
    from moqt.session.ports import NamespaceListener
    from moqt.session.state import Table

_OVERLAP = "overlaps a SUBSCRIBE_NAMESPACE of this session"
#: What remembering a namespace costs besides its octets.
_ENTRY = 64


class OutgoingPublishNamespace(UpdatableRequest):
    """An announcement of ours; ``cancel`` withdraws it.

    ``answer`` is called with None when the peer accepts, and with the error when it refuses or
    later revokes.
    """

    table: ClassVar[Table] = ANNOUNCER
    scope: ClassVar[Scope | None] = Scope.PUBLISH_NAMESPACE
    place: ClassVar[Place] = Place.UPDATE_PUBLISH_NAMESPACE

    def __init__(
        self,
        context: Context,
        namespace: TrackNamespace,
        parameters: Parameters,
        answer: Callable[[MoqtError | None], None],
    ) -> None:
        super().__init__(
            context, lambda request_id: m.PublishNamespace(request_id, namespace, parameters)
        )
        self.namespace = namespace
        self._answer = answer

    def on_ok(self, message: m.RequestOk) -> None:
        """Accepted."""
        self.expires = message.parameters.expires
        self._answer(None)

    def failed(self, error: MoqtError, code: int) -> None:
        """Refused, revoked, or the session is gone."""
        self._answer(error)


class IncomingPublishNamespace(LastingRequest):
    """The peer has tracks under ``namespace``; in force until ``on_end``."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.PUBLISH_NAMESPACE
    namespace: TrackNamespace

    def start(self, message: m.PublishNamespace) -> None:
        """Take the request in and ask the application."""
        self.request_id = message.request_id
        self.namespace = message.namespace
        self.parameters = message.parameters
        self.ask(self.session.handler.on_publish_namespace)

    def accept(self) -> None:
        """REQUEST_OK."""
        if self.state is Request.PENDING:
            self.state = Request.ESTABLISHED
            self.grant()
            self.answer_updates()


class OutgoingSubscribeNamespace(UpdatableRequest):
    """An interest of ours; ``cancel`` ends it."""

    table: ClassVar[Table] = INTERESTED
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_NAMESPACE
    place: ClassVar[Place] = Place.UPDATE_SUBSCRIBE_NAMESPACE

    def __init__(
        self,
        context: Context,
        prefix: TrackNamespace,
        parameters: Parameters,
        listener: NamespaceListener,
    ) -> None:
        super().__init__(
            context, lambda request_id: m.SubscribeNamespace(request_id, prefix, parameters)
        )
        self.prefix = prefix
        self._listener = listener
        self._known: set[TrackNamespace] = set()
        self._octets = 0

    def on_ok(self, message: m.RequestOk) -> None:
        """NAMESPACE messages follow."""
        self.expires = message.parameters.expires
        self._listener.accepted()

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE: another prefix; Misuse for one that overlaps another request's."""
        check_own_prefix(self, parameters.track_namespace_prefix)
        super().update(parameters)

    def update_applied(self, parameters: Parameters) -> None:
        """Suffixes are relative to the new prefix from here on; what is outside it is gone."""
        prefix = parameters.track_namespace_prefix
        if prefix is None:
            return
        self.prefix = prefix
        for namespace in [one for one in self._known if not under(one, prefix)]:
            self._known.discard(namespace)
            self._listener.gone(namespace)
        self._octets = sum(_cost(one[len(prefix) :]) for one in self._known)

    def on_namespace(self, message: m.Namespace) -> None:
        """A namespace under the prefix; said twice it is still one."""
        namespace = self._whole(message.suffix)
        if namespace in self._known:
            return
        self._octets += _cost(message.suffix)
        if self._octets > self.session.config.namespace_octets:
            self._fail(
                RequestFailed(RequestCode.EXCESSIVE_LOAD, "the peer names too many namespaces"),
                StreamCode.EXCESSIVE_LOAD,
            )
            return
        self._known.add(namespace)
        self._listener.found(namespace)

    def on_namespace_done(self, message: m.NamespaceDone) -> None:
        """It is gone; before its NAMESPACE that is a violation (draft-22 §9.17)."""
        namespace = self._whole(message.suffix)
        if namespace not in self._known:
            raise ProtocolViolation("NAMESPACE_DONE before NAMESPACE")
        self._octets -= _cost(message.suffix)
        self._known.discard(namespace)
        self._listener.gone(namespace)

    def peer_finished(self) -> None:
        """FIN counts as NAMESPACE_DONE for all (draft-22 §4.2)."""
        if self.state is Request.ESTABLISHED:
            self.state = Request.CLOSED
            self._listener.ended(None)
        super().peer_finished()

    def failed(self, error: MoqtError, code: int) -> None:
        """Refused, reset by the peer, or the session is gone."""
        self._listener.ended(error)

    def _whole(self, suffix: TrackNamespace) -> TrackNamespace:
        whole = self.prefix + suffix
        try:
            check_name(whole)
        except Misuse as fault:
            raise ProtocolViolation(str(fault)) from None
        return whole


class IncomingSubscribeNamespace(PrefixRequest):
    """The peer wants to hear of namespaces under ``prefix``; in force until ``on_end``."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_NAMESPACE

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self._told: set[TrackNamespace] = set()

    @property
    def space(self) -> set[TrackNamespace]:
        """Its own: SUBSCRIBE_TRACKS is no overlap (draft-22 §3.6)."""
        return self.session.interests

    def start(self, message: m.SubscribeNamespace) -> None:
        """Check the overlap rule, then ask the application."""
        if self.begin(message):
            self.ask(self.session.handler.on_subscribe_namespace)

    def found(self, namespace: TrackNamespace) -> None:
        """NAMESPACE, once per namespace."""
        if self.state is Request.ESTABLISHED and namespace not in self._told:
            self.send(m.Namespace(self._suffix(namespace)))
            self._told.add(namespace)

    def gone(self, namespace: TrackNamespace) -> None:
        """NAMESPACE_DONE, only after NAMESPACE."""
        if self.state is Request.ESTABLISHED and namespace in self._told:
            self._told.discard(namespace)
            self.send(m.NamespaceDone(self._suffix(namespace)))

    def leave(self, wanted: TrackNamespace) -> None:
        """What the new prefix cannot name is said to be gone while the old one can."""
        for namespace in sorted(self._told):
            if not under(namespace, wanted):
                self.gone(namespace)

    def _suffix(self, namespace: TrackNamespace) -> TrackNamespace:
        if not self.matches(namespace):
            raise Misuse("the namespace is not under the subscribed prefix")
        return namespace[len(self.prefix) :]


def _cost(suffix: TrackNamespace) -> int:
    return _ENTRY + sum(map(len, suffix))
