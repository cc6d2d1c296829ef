"""One subgroup of one subscription on its way out (draft-22 §11.3)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moqt.codec.data import SubgroupEncoder, SubgroupHeader, encode_subgroup_header
from moqt.errors import StreamCode
from moqt.model import Location, ObjectHead
from moqt.session.order import rank
from moqt.session.timeouts import NONE, of_first
from transport.api import Chunk, SendOrder, Tier
from transport.errors import StreamAbort

if TYPE_CHECKING:
    from moqt.errors import MoqtError
    from moqt.model import Gap, SubgroupHead
    from moqt.session.publications import PublisherHalf
    from moqt.session.timers import Timer
    from transport.api import BytesLike, ChunkSource


class SubgroupStream:
    """An ObjectSink whose stream opens with the first object that passes.

    What is written waits here as references; the transport pulls it when its turn comes, and only
    then are pause and filters applied. ``after`` is the last object of the subgroup published
    before the subscription could take part in it.
    """

    __slots__ = (
        "_begun",
        "_closing",
        "_cut",
        "_finished",
        "_head",
        "_items",
        "_late",
        "_left_out",
        "_over",
        "_own",
        "_parked",
        "_subscription",
        "_transport",
        "_waits",
        "stream",
    )

    def __init__(
        self, subscription: PublisherHalf, head: SubgroupHead, after: Location | None = None
    ) -> None:
        self._subscription = subscription
        self._transport = subscription.session.transport
        self._head = head
        self._items: deque[ObjectHead | BytesLike] = deque()
        self._parked = False
        self._finished = False
        self._over = False
        self._begun = False  # the header has been pulled
        self._late = False  # the first object on the stream is not the first of the subgroup
        # FIN says that nothing is missing from the subscription's start on (draft-22 §11.3.2).
        self._left_out = after
        self._cut = False
        # Delivery timeouts: what the first object says, what ends each object's wait, and all.
        self._own = None if head.first_object else NONE
        self._waits: deque[Timer | None] = deque()
        self._closing: Timer | None = None
        self.stream: int | None = None

    # -- ObjectSink ------------------------------------------------------------------------------

    def begin(self, head: ObjectHead) -> None:
        """An object; opens the stream if it is the first that passes."""
        if self._over:
            return
        if self._own is None:
            self._own = of_first(head.properties)
        if self.stream is None:
            if not self._admits(head):
                return
            self._open()
        self._items.append(head)
        subscription = self._subscription
        limit = subscription.timeouts.object(self._own)
        self._waits.append(
            subscription.session.call_after_tick(limit, self._expired) if limit else None
        )
        self._wake()

    def write(self, view: BytesLike) -> None:
        """Payload of the object begun last."""
        if self.stream is not None and not self._over:
            self._items.append(view)
            self._wake()

    def end(self) -> None:
        """The object is whole."""

    def gap(self, gap: Gap) -> None:
        """A subgroup stream has no way to say so."""

    def finish(self) -> None:
        """FIN when everything that belongs here has gone, else reset."""
        self._finished = True
        if self.stream is not None and not self._over:
            limit = self._subscription.timeouts.subgroup(self._own or NONE)
            if limit:
                self._closing = self._subscription.session.call_after_tick(limit, self._expired)
        self._wake()

    def abort(self, code: int) -> None:
        """Reset the stream; what waits is dropped."""
        if self._over:
            return
        self._over = True
        self._items.clear()
        if self.stream is not None:
            counted = self._transport.started(self.stream)
            self._transport.reset(self.stream, code)
            self._close(self.stream, counted=counted)

    # -- stream owner ----------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Never: the stream is ours."""

    def reset(self, code: int) -> None:
        """Never: the stream is ours."""

    def stop(self, code: int) -> None:
        """The subscriber wants no more of this stream alone."""
        self.abort(code)

    def sent(self) -> None:
        """FIN has left."""
        if not self._over and self.stream is not None:
            self._over = True
            self._close(self.stream, counted=True)

    def closed(self, error: MoqtError) -> None:
        """The session is gone; the subscription hears it by itself."""
        self._over = True
        self._items.clear()

    def reorder(self) -> None:
        """The subscription's priority changed."""
        if self.stream is not None:
            self._transport.reorder(self.stream, self._order())

    # -- inside ----------------------------------------------------------------------------------

    def _admits(self, head: ObjectHead) -> bool:
        subscription = self._subscription
        if not subscription.active:
            return False
        passes = subscription.forward and head.location in subscription.within
        if passes and subscription.filters.admit(head):
            return True
        if not self._begun:
            self._late = True
        if not passes:
            self._left_out = head.location
            self._cut = self._cut or self._begun
        return False

    def _open(self) -> None:
        session = self._subscription.session
        self.stream = session.transport.open(self._order(), unidirectional=True)
        session.adopt(self.stream, self)
        self._subscription.stream_open(self)
        session.transport.feed(self.stream, self._chunks(self.stream))

    def _wake(self) -> None:
        if self._parked and self.stream is not None:
            self._parked = False
            self._transport.wake(self.stream)

    def _chunks(self, stream: int) -> ChunkSource:
        items = self._items
        encoder: SubgroupEncoder | None = None
        sent = self._subscription.session.counters.sent
        skipping = False
        while True:
            if not items:
                if self._finished:
                    break
                self._parked = True
                yield None
                continue
            item = items.popleft()
            if isinstance(item, ObjectHead):
                skipping = not self._pulled(item)
                if skipping:
                    continue
                prefix = b""
                if encoder is None:
                    self._begun = True
                    header = self._header()
                    encoder = SubgroupEncoder(header)
                    prefix = encode_subgroup_header(header)
                views: list[BytesLike] = [prefix + encoder.head(item)]
                while items and not isinstance(items[0], ObjectHead):
                    views.append(items.popleft())  # type: ignore[arg-type]
                sent.carried(1, item.length)
                yield Chunk(tuple(views))
            elif not skipping:
                yield Chunk((item,))
        if not self._begun or self._incomplete:
            self._over = True
            self._close(stream, counted=self._begun)
            sent.resets[StreamCode.CANCELLED.name] += 1
            raise StreamAbort(StreamCode.CANCELLED)

    @property
    def _incomplete(self) -> bool:
        """Something that belongs on this stream was left out."""
        start = self._subscription.within.start
        return self._cut or (self._left_out is not None and self._left_out >= start)

    def _header(self) -> SubgroupHeader:
        head = self._head
        return SubgroupHeader(
            self._subscription.track_alias,
            head.group,
            head.subgroup,
            head.priority,
            head.has_properties,
            head.end_of_group,
            head.first_object and not self._late,
        )

    def _order(self) -> SendOrder:
        subscription, head = self._subscription, self._head
        return SendOrder(
            Tier.OBJECT,
            subscription.priority,
            head.priority,
            subscription.request_id,
            rank(subscription.group_order, head.group, head.subgroup),
        )

    def _pulled(self, head: ObjectHead) -> bool:
        """An object's turn has come: it waits no longer; True when it still passes."""
        wait = self._waits.popleft()
        if wait is not None:
            wait.cancel()
        return self._admits(head)

    def _expired(self) -> None:
        """Something has waited longer than it may: the subgroup is given up (draft-22 §5.2)."""
        self.abort(StreamCode.DELIVERY_TIMEOUT)

    def _close(self, stream: int, *, counted: bool) -> None:
        for wait in (*self._waits, self._closing):
            if wait is not None:
                wait.cancel()
        self._waits.clear()
        self._subscription.session.forget(stream)
        self._subscription.stream_over(self, counted=counted)
