"""One subgroup of one subscription on its way out (draft-22 §11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codec.data import SubgroupEncoder, encode_subgroup_header
from moqt.errors import StreamCode
from moqt.model import GroupOrder
from transport.api import SendOrder, Tier

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import Gap, ObjectHead, SubgroupHead
    from moqt.session.publications import IncomingSubscribe
    from transport.api import BytesLike


class SubgroupStream:
    """An ObjectSink that writes to the wire; the stream opens with the first object that passes."""

    __slots__ = ("_cut", "_encoder", "_head", "_key", "_over", "_skipping", "_subscription", "_transport", "stream")

    def __init__(self, subscription: IncomingSubscribe, key: SubgroupHead) -> None:
        self._subscription = subscription
        self._transport = subscription.session.transport
        self._key = key
        self._encoder: SubgroupEncoder | None = None
        self._head = b""
        self._skipping = False
        self._cut = False  # something that belongs on the stream was left out: it must not end with FIN
        self._over = False
        self.stream: int | None = None

    # -- ObjectSink ------------------------------------------------------------------------------

    def begin(self, head: ObjectHead) -> None:
        """Write the object's head, unless the subscription does not want it."""
        subscription = self._subscription
        if self._over or not subscription.active or not subscription.passes(head):
            self._skipping = True
            self._cut = self._cut or not subscription.forward or head.location >= subscription.within.start
            return
        self._skipping = False
        if self._encoder is None:
            self._open(head)
        if self._encoder is not None:
            self._head += self._encoder.head(head)
        if head.length == 0:
            self._flush()

    def write(self, view: BytesLike) -> None:
        """Queue payload; the head goes with the first view."""
        if self._skipping or self._over or self.stream is None:
            return
        if self._head:
            self._transport.write(self.stream, self._head, view)
            self._head = b""
        else:
            self._transport.write(self.stream, view)

    def end(self) -> None:
        """The object is whole."""

    def gap(self, gap: Gap) -> None:
        """Subgroup streams cannot say so."""

    def finish(self) -> None:
        """FIN if all that belongs here was sent, else reset (draft-22 §11.3.2)."""
        if self._over:
            return
        if self.stream is None:
            self._over = True
        elif self._cut:
            self.abort(StreamCode.CANCELLED)
        else:
            self._over = True
            self._transport.finish(self.stream)

    def abort(self, code: int) -> None:
        """Reset the stream."""
        already, self._over = self._over, True
        if self.stream is not None and not (already and self._subscription is None):
            self._transport.reset(self.stream, code)
            self._close()

    # -- stream owner ----------------------------------------------------------------------------

    def data(self, view: object, fin: bool) -> None:
        """Never: the stream is ours."""

    def reset(self, code: int) -> None:
        """Never: the stream is ours."""

    def stop(self, code: int) -> None:
        """The subscriber wants no more of this stream alone (draft-22 §11.3.2)."""
        self.abort(code)

    def sent(self) -> None:
        """FIN has left."""
        self._close()

    def closed(self, error: MoqtError) -> None:
        """The session is gone; the subscription hears it by itself."""
        self._over = True

    def reorder(self) -> None:
        """The subscription's priority changed."""
        if self.stream is not None:
            self._transport.reorder(self.stream, self._order())

    def _open(self, head: ObjectHead) -> None:
        session = self._subscription.session
        has_properties = bool(head.properties)
        self._encoder = SubgroupEncoder(has_properties=True)
        self.stream = session.transport.open(self._order(), unidirectional=True)
        session.adopt(self.stream, self)
        self._subscription.stream_open(self)
        self._head = encode_subgroup_header(
            self._subscription.track_alias,
            self._key,
            first_object=self._key.first_object,
            has_properties=True if has_properties else True,
        )

    def _flush(self) -> None:
        if self._head and self.stream is not None:
            self._transport.write(self.stream, self._head)
            self._head = b""

    def _order(self) -> SendOrder:
        subscription = self._subscription
        group = self._key.group if subscription.group_order is GroupOrder.ASCENDING else -self._key.group
        return SendOrder(
            Tier.OBJECT, subscription.priority, self._key.priority, subscription.request_id, (group, self._key.subgroup)
        )

    def _close(self) -> None:
        if self.stream is not None:
            self._subscription.session.forget(self.stream)
            self._subscription.stream_over(self)
