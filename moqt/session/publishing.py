"""PUBLISH from both ends: a subscription that its publisher begins (draft-22 §3.1, §9.8)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters, Place, Scope
from moqt.codec.properties import TrackProperties
from moqt.errors import (
    DoneCode,
    MalformedTrack,
    Misuse,
    ProtocolViolation,
    RequestCode,
    RequestFailed,
    RequestRefused,
    StreamCode,
)
from moqt.model import LocationFilter, RangeFilterType
from moqt.session.answering import IncomingRequest
from moqt.session.filters import RangeFilters
from moqt.session.lifetimes import Lifetime
from moqt.session.publications import PublisherHalf
from moqt.session.requests import OutgoingRequest
from moqt.session.state import OFFERED, PUBLISHER, Request
from moqt.session.subscriptions import SubscriberHalf
from moqt.session.timeouts import UNLIMITED
from moqt.session.tokens import Action, Claim
from moqt.session.track_requests import not_understood
from moqt.session.updates import OwnUpdates, PeerUpdates, check_update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moqt.codec.fields import Token
    from moqt.errors import MoqtError, SessionClosed
    from moqt.model import GroupOrder, Location, RangeFilter, Redirect, TrackSource
    from moqt.session.context import Context
    from moqt.session.ports import TrackReceiver, TracksListener
    from moqt.session.requests import Opening
    from moqt.session.state import Table


def object_filters(filters: Iterable[RangeFilter]) -> tuple[RangeFilter, ...]:
    """Without those that select tracks (draft-22 §9.20.14)."""
    return tuple(f for f in filters if f.type is not RangeFilterType.TRACK_PROPERTY)


class OutgoingPublish(PublisherHalf, OutgoingRequest):
    """PUBLISH of ours: live from the next object on, before the answer too unless paused.

    ``parameters`` are what the PUBLISH says; ``asked`` what a SUBSCRIBE_TRACKS wants besides:
    filters, fill, no properties. ``answer`` hears None when the peer accepts, else the error.
    """

    table: ClassVar[Table] = PUBLISHER
    scope: ClassVar[Scope | None] = Scope.PUBLISH

    def __init__(
        self,
        session: Context,
        source: TrackSource,
        parameters: Parameters,
        order: GroupOrder,
        answer: Callable[[MoqtError | None], None],
        asked: Parameters = NO_PARAMETERS,
        tokens: tuple[Token, ...] = (),
    ) -> None:
        self.prepare(session)
        largest = source.largest
        self.track_alias = session.allocate_alias()
        properties = b"" if asked.include_properties is False else source.properties
        said = replace(parameters, expires=self.lifetime.offer, largest_object=largest)
        super().__init__(
            session,
            lambda request_id: m.Publish(
                request_id, source.name, self.track_alias, said, properties
            ),
        )
        self.lifetime.grant()
        self.name = source.name
        self.parameters = parameters
        #: Milliseconds until the subscriber means to end it, None for never.
        self.expires: int | None = None
        self.group_order = parameters.group_order or order
        self.filters = RangeFilters(object_filters(asked.range_filters))
        self._source = source
        self.published_timeouts = UNLIMITED.overridden(source.properties)
        self._largest = largest
        self._asked = asked
        self._answer: Callable[[MoqtError | None], None] | None = answer
        self._ending: tuple[DoneCode, str] | None = None
        self._unplaced = parameters.location_filter is None
        self._peer_updates = PeerUpdates(session)
        self._peer_updates.claim = Claim(Action.SUBSCRIBE, *source.name, tokens)
        self._own_updates = OwnUpdates(self)
        self._apply(parameters, largest)
        if self._unplaced:
            self.within = LocationFilter.next_object().on_subscription(largest)

    @property
    def active(self) -> bool:
        """True until it is over: it may deliver before it is answered (draft-22 §9.8)."""
        return self.state is not Request.CLOSED

    @property
    def claim(self) -> Claim | None:
        """What the subscriber may have it by: tokens of its SUBSCRIBE_TRACKS, or of updates."""
        return self._peer_updates.claim

    def when_claimed(self, callback: Callable[[], None]) -> None:
        """Call back when an update has brought other tokens."""
        self._peer_updates.on_claim = callback

    # -- the source's side -----------------------------------------------------------------------

    def revoke(self, code: int) -> None:
        """No longer granted: PUBLISH_DONE says so."""
        self.abort(DoneCode.UNAUTHORIZED, "no longer granted")

    def update(self, parameters: Parameters) -> None:
        """REQUEST_UPDATE of the publisher (draft-22 §9.5); filters are the subscriber's: Misuse."""
        if self.state is not Request.ESTABLISHED or self._source is None:
            raise Misuse("only an established subscription can be updated")
        if parameters.range_filters or parameters.fill or parameters.new_group_request is not None:
            raise Misuse("range filters, fills and new groups are asked for by the subscriber")
        check_update(parameters, Place.UPDATE_SUBSCRIPTION)
        self._own_updates.send(parameters)
        self._apply(parameters, self._source.largest)

    def done(self, code: DoneCode, reason: str = "") -> None:
        """PUBLISH_DONE once it is answered and every stream is closed (draft-22 §9.9)."""
        if self.state is Request.PENDING:
            self._ending = code, reason
        else:
            super().done(code, reason)

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Withdraw it at once; a publisher does so by PUBLISH_DONE (draft-22 §9.9)."""
        self.abort(DoneCode.INTERNAL_ERROR, "withdrawn")

    # -- messages --------------------------------------------------------------------------------

    def messages(self, found: Iterable[tuple[int, bytes]], fin: bool) -> None:
        """Updates that arrive together were all unanswered at once (draft-22 §9.1.7)."""
        super().messages(found, fin)
        self._peer_updates.waiting = 0

    def on_publish_ok(self, message: m.RequestOk) -> None:
        """Accepted: what was asked for besides begins."""
        self.expires = message.parameters.expires
        self._tell(None)
        source, asked = self._source, self._asked
        if self.state is not Request.ESTABLISHED or source is None:
            return
        self._fill(self.request_id, asked, source, self._largest)
        self._ask_group(asked)
        if self._ending is not None:
            super().done(*self._ending)

    def on_update(self, message: m.RequestUpdate) -> None:
        """The subscriber changes what it wants."""
        refusal = self._peer_updates.take(message, self.stream)
        if self.state is not Request.CLOSED:
            self.apply_update(message, refusal)

    def on_update_ok(self, message: m.RequestOk) -> None:
        """The oldest update of ours is applied."""
        self._own_updates.answered(message)
        if message.parameters.expires is not None:
            self.expires = message.parameters.expires

    def on_update_error(self, message: m.RequestError) -> None:
        """It failed: the subscription must end (draft-22 §9.5.1)."""
        self._own_updates.answered(message)
        self.abort(DoneCode.UPDATE_FAILED, message.reason)

    def ignore(self, message: m.RequestOk | m.RequestError) -> None:
        """Said before our end was heard."""

    # -- ends ------------------------------------------------------------------------------------

    def stop(self, code: int) -> None:
        """The subscriber cancels: all of its streams are reset at once (draft-22 §3.1.2)."""
        if self.state is Request.PENDING:  # the refusal may be right behind
            self.forward = False
            self._abort_streams(StreamCode.CANCELLED)
            super().stop(code)
        else:
            self._end_sending(code)
            self.peer_aborted(code)

    def peer_finished(self) -> None:
        """FIN: no more updates; before the answer it is a failure (draft-22 §6.4.2.2)."""
        if self.state is Request.PENDING:
            self.unfinished("the peer finished the stream without an answer")

    def peer_aborted(self, code: int) -> None:
        """The subscriber cancelled."""
        if self.state is Request.CLOSED:
            self.finish()
        else:
            why = f"the peer ended the subscription with code {code:#x}"
            self._fail(RequestFailed(RequestCode.INTERNAL_ERROR, why))

    def moved(self) -> None:
        """The peer did not move it in time."""
        self.abort(DoneCode.GOING_AWAY, "not moved in time")

    def failed(self, error: MoqtError, code: int) -> None:
        """Refused, cancelled, or the session is gone: reset everything, tell the source."""
        self._abort_streams(StreamCode.CANCELLED)
        self._tell(error)
        self.ended()

    # -- inside ----------------------------------------------------------------------------------

    def _apply(self, wanted: Parameters, largest: Location | None) -> None:
        resumed = wanted.forward is True and not self.forward
        super()._apply(wanted, largest)
        if wanted.location_filter is not None:
            self._unplaced = False
        elif resumed and self._unplaced:
            self.within = LocationFilter.next_object().on_subscription(largest)

    def _tell(self, error: MoqtError | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(error)


class IncomingPublish(SubscriberHalf, IncomingRequest):
    """PUBLISH of the peer: a track on offer, and once accepted our subscription to it.

    ``properties`` and ``parameters`` say what it is. The data of one refused is stopped.
    """

    table: ClassVar[Table] = OFFERED
    scope: ClassVar[Scope | None] = Scope.PUBLISH

    def __init__(self, session: Context, stream: int) -> None:
        super().__init__(session, stream)
        self.properties = TrackProperties()
        self._alias = 0
        self._accepted = False
        self._counted_out = False
        self._early_done: m.PublishDone | None = None
        self._interest: TracksListener | None = None
        self._lifetime = Lifetime(session, self._expired)

    def take_in(self, message: Opening) -> None:
        """Its alias is taken from now on (draft-22 §3.1.3)."""
        super().take_in(message)
        if isinstance(message, m.Publish):
            self._alias = message.track_alias
            asked = self._due_to(message)
            self.prepare(message.name, asked)
            self.session.streams.offer(self._alias, self)
            self.session.peer_tracks[message.name] += 1

    def start(self, message: m.Publish) -> None:
        """Ask the application; not for what nobody here may process (draft-22 §3.7)."""
        self.expires = message.parameters.expires
        try:
            self.properties = TrackProperties.decode(message.properties)
        except MalformedTrack as fault:
            self.refuse(RequestCode.MALFORMED_TRACK, str(fault))
            return
        if unknown := self.properties.unknown_mandatory:
            self.refuse(RequestCode.UNSUPPORTED_EXTENSION, not_understood(unknown))
        else:
            due_to = self._interest
            self.ask(self.session.handler.on_publish if due_to is None else due_to.published)

    def accept(self, receiver: TrackReceiver) -> None:
        """PUBLISH_OK; ``receiver`` gets what has come and what will come."""
        if self.state is not Request.PENDING:
            return
        self.receiver = receiver
        self.state = Request.ESTABLISHED
        self._accepted = True
        self._expect_fill(self.request_id, self._opening)
        self.session.streams.answered(self._alias, self)
        self.send(m.RequestOk(Parameters(expires=self._lifetime.grant())))
        self.establish(self._alias, self.properties, self.parameters.largest_object)
        self.answer_updates()
        done, self._early_done = self._early_done, None
        if done is not None and self.state is Request.ESTABLISHED:
            self.state = Request.DRAINING
            self.on_publish_done(done)

    def refuse(
        self,
        code: RequestCode,
        reason: str = "",
        retry_after: int | None = None,
        redirect: Redirect | None = None,
    ) -> None:
        """REQUEST_ERROR, and STOP_SENDING for data that is here already (draft-22 §9.8)."""
        pending = self.state is Request.PENDING
        super().refuse(code, reason, retry_after, redirect)
        if pending:
            self.session.streams.refused(self._alias)

    # -- messages --------------------------------------------------------------------------------

    def on_early_done(self, message: m.PublishDone) -> None:
        """The track ended before the application had decided."""
        if self._early_done is not None:
            raise ProtocolViolation("second PUBLISH_DONE")
        self._early_done = message

    def on_update(self, message: m.RequestUpdate) -> None:
        """What the publisher may not change is a violation (draft-22 §9.5)."""
        if message.parameters.range_filters:
            raise ProtocolViolation("range filters in a REQUEST_UPDATE of the publisher")
        super().on_update(message)

    def updated(self, message: m.RequestUpdate, refusal: RequestRefused | None) -> None:
        """The publisher changes its side; one refused ends by its PUBLISH_DONE (§9.5.1)."""
        said = message.parameters
        if refusal is None and (said.fill is not None or said.new_group_request is not None):
            refusal = RequestRefused(RequestCode.NOT_SUPPORTED, "asked for by a publisher")
        if refusal is not None:
            self._send_error(refusal)
            return
        self._applied(message.request_id, said, self.parameters.largest_object)
        self.send(m.RequestOk(Parameters(expires=self._lifetime.grant())))

    def ignore(self, message: m.PublishDone | m.PublishStateNotify) -> None:
        """Of no use to one who has not accepted."""

    # -- ends ------------------------------------------------------------------------------------

    def revoke(self, code: int) -> None:
        """The publisher may not publish it any more."""
        if self.state is Request.PENDING:
            super().revoke(code)
        else:
            self._fail(RequestFailed(RequestCode.UNAUTHORIZED, "no longer granted"), code)

    def peer_finished(self) -> None:
        """FIN without PUBLISH_DONE is a failure (draft-22 §6.4.2.2)."""
        if self.state is Request.ESTABLISHED or (
            self.state is Request.PENDING and self._early_done is None
        ):
            self.state = Request.CLOSED
            why = "the peer finished the stream without PUBLISH_DONE"
            self.failed(RequestFailed(RequestCode.INTERNAL_ERROR, why), StreamCode.CANCELLED)
            self.finish()

    def peer_aborted(self, code: int) -> None:
        """The publisher gave it up with a stream error."""
        if self.state in (Request.PENDING, Request.ESTABLISHED):
            why = f"the peer ended the subscription with code {code:#x}"
            self._fail(RequestFailed(RequestCode.INTERNAL_ERROR, why))
        else:
            self.finish()

    def session_closed(self, error: SessionClosed) -> None:
        """The publisher is gone."""
        self.failed(error, -1)

    def moved(self) -> None:
        """The peer did not move it in time."""
        late = RequestFailed(RequestCode.GOING_AWAY, "not moved in time")
        self._fail(late, StreamCode.GOING_AWAY)

    def failed(self, error: MoqtError, code: int) -> None:
        """Over without success: the receiver hears it, if there is one."""
        if self._accepted:
            super().failed(error, code)
        else:
            self.release(code)
            self.session.streams.refused(self._alias)

    def release(self, code: int) -> None:
        """Stop the data streams with ``code`` and leave every map."""
        super().release(code)
        self.ended()

    def ended(self) -> None:
        """Free its alias and tell the application."""
        self.session.streams.answered(self._alias, self)
        self.drop_fills()
        if not self._counted_out:
            self._counted_out = True
            self.session.peer_tracks -= Counter((self.name,))
        self._lifetime.cancel()
        super().ended()

    def _due_to(self, message: m.Publish) -> Parameters:
        """With what a SUBSCRIBE_TRACKS of ours has asked for besides (draft-22 §3.6.2)."""
        wanted = self.session.wanted(message.name.namespace)
        if wanted is None:
            return message.parameters
        self._interest = wanted.listener
        asked = wanted.parameters
        return replace(
            message.parameters,
            fill=asked.fill,
            range_filters=object_filters(asked.range_filters),
        )

    def _expect_fill(self, request_id: int, parameters: Parameters) -> None:
        """A fill begins when the subscription is established: before that there is none."""
        if self._accepted:
            super()._expect_fill(request_id, parameters)

    def _expired(self) -> None:
        why = RequestFailed(RequestCode.TIMEOUT, "the publisher did not extend it in time")
        self._fail(why)
