"""PUBLISH_NAMESPACE and SUBSCRIBE_NAMESPACE at both ends (draft-22 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.fields import check_name
from moqt.codec.params import Scope
from moqt.errors import (
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestFailed,
    RequestRefused,
    StreamCode,
)
from moqt.session.checks import reserved
from moqt.session.requests import IncomingRequest, OutgoingRequest
from moqt.session.state import ANNOUNCER, INTERESTED, RESPONDER, Request

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


class OutgoingPublishNamespace(OutgoingRequest):
    """An announcement of ours; ``cancel`` withdraws it.

    ``answer`` is called with None when the peer accepts, and with the error when it refuses or
    later revokes.
    """

    table: ClassVar[Table] = ANNOUNCER
    scope: ClassVar[Scope | None] = Scope.PUBLISH_NAMESPACE

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
        self._answer(None)

    def failed(self, error: MoqtError, code: int) -> None:
        """Refused, revoked, or the session is gone."""
        self._answer(error)


class IncomingPublishNamespace(IncomingRequest):
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
            self.send(m.RequestOk())
            self.answer_updates()

    def revoke(self, code: int) -> None:
        """Take the acceptance back (draft-22 §4.1)."""
        if self.state is Request.ESTABLISHED:
            self.withdraw(code)


class OutgoingSubscribeNamespace(OutgoingRequest):
    """An interest of ours; ``cancel`` ends it."""

    table: ClassVar[Table] = INTERESTED
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_NAMESPACE

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
        self._listener.accepted()

    def on_namespace(self, message: m.Namespace) -> None:
        """A namespace under the prefix; said twice it is still one."""
        namespace = self._whole(message.suffix)
        if namespace in self._known:
            return
        self._octets += _cost(message.suffix)
        if self._octets > self.session.config.namespace_octets:
            self.fail(
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


class IncomingSubscribeNamespace(IncomingRequest):
    """The peer wants to hear of namespaces under ``prefix``; in force until ``on_end``."""

    table: ClassVar[Table] = RESPONDER
    scope: ClassVar[Scope | None] = Scope.SUBSCRIBE_NAMESPACE
    prefix: TrackNamespace

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self._told: set[TrackNamespace] = set()
        self._in_force = False
        #: Called when the peer has changed ``prefix``: report what it matches now with ``found``.
        self.on_prefix: Callable[[], None] | None = None

    def start(self, message: m.SubscribeNamespace) -> None:
        """Check the overlap rule, then ask the application."""
        self.request_id = message.request_id
        self.prefix = message.prefix
        self.parameters = message.parameters
        if self._overlapping(self.prefix):
            self.refuse(RequestCode.PREFIX_OVERLAP, _OVERLAP)
        else:
            self.ask(self.session.handler.on_subscribe_namespace)

    def accept(self) -> None:
        """REQUEST_OK; report what is known with ``found`` at once (draft-22 §4.2)."""
        if self.state is not Request.PENDING:
            return
        if self._overlapping(self.prefix):
            self.refuse(RequestCode.PREFIX_OVERLAP, _OVERLAP)
        else:
            self.state = Request.ESTABLISHED
            self._in_force = True
            self.session.interests.add(self.prefix)
            self.send(m.RequestOk())
            self.answer_updates()

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

    def matches(self, namespace: TrackNamespace) -> bool:
        """True when ``namespace`` lies under the prefix."""
        return namespace[: len(self.prefix)] == self.prefix

    def update(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """A new prefix must not overlap others either; the old one counts until REQUEST_OK."""
        prefix = message.parameters.track_namespace_prefix
        if prefix is None or refusal is not None:
            super().update(message, refusal)
            return
        self.session.interests.discard(self.prefix)
        refusal = reserved(prefix)
        if refusal is None and self._overlapping(prefix):
            refusal = RequestRefused(RequestCode.PREFIX_OVERLAP, _OVERLAP)
        if refusal is not None:
            super().update(message, refusal)
            return
        for namespace in sorted(self._told):
            if namespace[: len(prefix)] != prefix:
                self.gone(namespace)
        super().update(message, None)
        self.prefix = prefix
        self.session.interests.add(prefix)
        if self.on_prefix is not None:
            self.on_prefix()

    def ended(self) -> None:
        """Free the prefix and tell the application."""
        if self._in_force:
            self._in_force = False
            self.session.interests.discard(self.prefix)
        super().ended()

    def _overlapping(self, prefix: TrackNamespace) -> bool:
        """True when a request in force has a prefix of ``prefix``, or the reverse."""
        for other in self.session.interests:
            shorter = min(len(other), len(prefix))
            if other[:shorter] == prefix[:shorter]:
                return True
        return False

    def _suffix(self, namespace: TrackNamespace) -> TrackNamespace:
        if not self.matches(namespace):
            raise Misuse("the namespace is not under the subscribed prefix")
        return namespace[len(self.prefix) :]


def _cost(suffix: TrackNamespace) -> int:
    return _ENTRY + sum(map(len, suffix))
