"""What is granted and changed: EXPIRES, updates of fetches and prefixes, new groups, waiting."""

from __future__ import annotations

from typing import Any

import pytest

from moqt.codec import messages as m
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import SetupOptions, TrackProperties
from moqt.errors import (
    DoneCode,
    Misuse,
    RequestCode,
    RequestFailed,
    RequestRefused,
    SessionCode,
    StreamCode,
)
from moqt.model import FullTrackName, Location, LocationFilter, Redirect
from moqt.publisher import Catalog, ServingLimits, Track
from moqt.session.config import SessionConfig
from moqt.session.ports import Unserved

from .wire import NAME, OTHER, Wire, leftovers
from .worlds import Listener, Receiver

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FIN = "fin"
LIVE = (b"live",)
ROOM1, ROOM2 = (b"live", b"room1"), (b"live", b"room2")
GRANTED = Parameters(expires=2000)
ELSEWHERE = Redirect("moqt://b.example/app", NAME)


class Everything(Unserved):
    """Accepts what has no track behind it."""

    def on_publish_namespace(self, request: Any) -> None:
        request.accept()

    on_subscribe_namespace = on_subscribe_tracks = on_publish_namespace


def served(catalog: Catalog, **config: Any) -> Wire:
    """A session that serves ``catalog``."""
    handler: Any = catalog.handler(None)  # type: ignore[arg-type]
    return Wire(handler=handler, config=SessionConfig(**config))


# -- EXPIRES -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [m.PublishNamespace, m.SubscribeNamespace, m.SubscribeTracks])
def test_what_is_granted_for_a_time(kind: Any) -> None:
    wire = Wire(handler=Everything(), config=SessionConfig(lifetime=2.0))
    stream = wire.bidi(kind(wire.id(), LIVE))
    wire.wait(1.5)
    wire.send(stream, m.RequestUpdate(wire.id()))
    wire.wait(1.5)
    assert wire.answer(stream) == ([m.RequestOk(GRANTED)] * 2, None)
    wire.wait(1.0)
    assert wire.answer(stream).end == StreamCode.CANCELLED
    assert not leftovers(wire.session)


@pytest.mark.rule("M479")
def test_a_subscription_expires_unless_it_is_extended() -> None:
    catalog = Catalog()
    catalog.add(Track(NAME))
    wire = served(catalog, lifetime=2.0)
    stream = wire.bidi(m.Subscribe(wire.id(), NAME))
    wire.wait(1.5)
    wire.send(stream, m.RequestUpdate(wire.id()))
    wire.wait(1.5)
    alias = wire.answer(stream).messages[0]
    assert isinstance(alias, m.SubscribeOk)
    assert alias.parameters == GRANTED
    assert wire.answer(stream).messages[1:] == [m.RequestOk(GRANTED)]
    wire.wait(1.0)
    done = wire.last(stream)
    assert isinstance(done, m.PublishDone)
    assert done.status == DoneCode.EXPIRED
    assert wire.answer(stream).end == FIN
    wire.send(stream, fin=True)
    assert not leftovers(wire.session)


def test_a_request_that_is_over_expires_no_more() -> None:
    catalog = Catalog()
    catalog.add(Track(NAME))
    wire = served(catalog, lifetime=2.0)
    for opening in (m.Subscribe(0, NAME), m.SubscribeTracks(2, (b"other",))):
        stream = wire.bidi(opening)
        wire.stop(stream)
        wire.reset(stream)
    assert not leftovers(wire.session)


def test_the_subscriber_hears_when_it_ends() -> None:
    wire, receiver = Wire(is_client=True), Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    wire.send(request.stream, m.SubscribeOk(7, Parameters(expires=60000)))
    assert receiver.info is not None
    assert receiver.info.expires == request.expires == 60000
    request.update(NO_PARAMETERS)
    wire.send(request.stream, m.RequestOk(Parameters(expires=70000)))
    assert request.expires == 70000


# -- FETCH ---------------------------------------------------------------------------------------


@pytest.mark.rule("M310", "M311")
def test_an_update_of_a_fetch() -> None:
    wire, receiver = Wire(is_client=True), Receiver()
    fetch = wire.session.fetch(NAME, NO_PARAMETERS, receiver)
    fetch.update(Parameters(subscriber_priority=3))
    assert wire.last(fetch.stream) == m.RequestUpdate(2, Parameters(subscriber_priority=3))
    wire.send(fetch.stream, m.FetchOk(False, Location(0, 0)), m.RequestOk())
    assert wire.fault is None
    wire.send(fetch.stream, m.RequestOk())
    assert wire.fault is VIOLATION


def test_a_failed_update_of_a_fetch_ends_it() -> None:
    wire, receiver = Wire(is_client=True), Receiver()
    fetch = wire.session.fetch(NAME, NO_PARAMETERS, receiver)
    wire.send(fetch.stream, m.FetchOk(False, Location(0, 0)))
    fetch.update(Parameters(subscriber_priority=3))
    wire.send(fetch.stream, m.RequestError(RequestCode.UNAUTHORIZED))
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.code == RequestCode.UNAUTHORIZED


@pytest.mark.rule("M286")
def test_what_cannot_be_updated() -> None:
    wire = Wire(is_client=True, options=SetupOptions(max_request_updates=1))
    fetch = wire.session.fetch(NAME, NO_PARAMETERS, Receiver())
    for wrong in (Parameters(forward=True), Parameters(location_filter=LocationFilter.back(1))):
        with pytest.raises(Misuse):
            fetch.update(wrong)
    fetch.update(NO_PARAMETERS)
    with pytest.raises(Misuse, match="unanswered"):
        fetch.update(NO_PARAMETERS)
    fetch.cancel()
    with pytest.raises(Misuse, match="in force"):
        fetch.update(NO_PARAMETERS)


# -- prefixes ------------------------------------------------------------------------------------


@pytest.mark.rule("M395", "M311")
def test_a_new_prefix_of_namespaces() -> None:
    catalog = Catalog()
    for namespace in (ROOM1, ROOM2, (b"other",)):
        catalog.announce(namespace)
    wire = served(catalog)
    stream = wire.bidi(m.SubscribeNamespace(wire.id(), LIVE))
    before = len(wire.answer(stream).messages)
    # 15.5 of the reference: the namespace stands there without a length.
    wire.send(stream, bytes.fromhex("02 000f 08 01 34 02 04 6c697665 05 726f6f6d31"))
    found = wire.answer(stream).messages[before:]
    assert found == [m.NamespaceDone((b"room2",)), m.RequestOk()]
    catalog.withdraw(ROOM1)
    assert wire.last(stream) == m.NamespaceDone(())
    wire.send(stream, m.RequestUpdate(10, Parameters(track_namespace_prefix=())))
    assert wire.answer(stream).messages[-3:] == [
        m.RequestOk(),
        m.Namespace(ROOM2),
        m.Namespace((b"other",)),
    ]


@pytest.mark.rule("M107", "M315")
@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        ((b"other", b"a"), RequestCode.PREFIX_OVERLAP),
        ((b".session",), RequestCode.DOES_NOT_EXIST),
        (ROOM1, None),
        (LIVE, None),
    ],
)
def test_a_new_prefix_may_overlap_only_its_own_old_one(prefix: Any, code: Any) -> None:
    wire = served(Catalog())
    wire.bidi(m.SubscribeNamespace(wire.id(), (b"other",)))
    stream = wire.bidi(m.SubscribeNamespace(wire.id(), LIVE))
    wire.send(stream, m.RequestUpdate(wire.id(), Parameters(track_namespace_prefix=prefix)))
    answer = wire.last(stream)
    if code is None:
        assert answer == m.RequestOk()
        third = wire.bidi(m.SubscribeNamespace(wire.id(), ROOM2))
        assert isinstance(wire.last(third), m.RequestError) is (prefix == LIVE)
    else:
        assert isinstance(answer, m.RequestError)
        assert answer.code == code
        assert wire.answer(stream).end == FIN
        fourth = wire.bidi(m.SubscribeNamespace(wire.id(), ROOM2))
        assert wire.last(fourth) == m.RequestOk()


def test_a_new_prefix_as_subscriber() -> None:
    wire, listener = Wire(is_client=True), Listener()
    request = wire.session.subscribe_namespace(LIVE, NO_PARAMETERS, listener)
    rooms = [m.Namespace((b"room1",)), m.Namespace((b"room2",))]
    wire.send(request.stream, m.RequestOk(Parameters(expires=5)), *rooms)
    assert request.expires == 5
    request.update(Parameters(track_namespace_prefix=ROOM1))
    wire.send(request.stream, m.Namespace((b"room3",)), m.RequestOk(), m.Namespace((b"a",)))
    assert listener.names == [ROOM1, (*ROOM1, b"a")]
    assert sorted(listener.lost) == [ROOM2, (b"live", b"room3")]
    wire.send(request.stream, m.NamespaceDone(()))
    assert listener.names == [(*ROOM1, b"a")]
    with pytest.raises(Misuse):
        request.update(Parameters(forward=True))


@pytest.mark.rule("M317")
def test_an_update_of_an_announcement() -> None:
    wire = Wire(is_client=True)
    heard: list[Any] = []
    request = wire.session.publish_namespace(LIVE, NO_PARAMETERS, heard.append)
    wire.send(request.stream, m.RequestOk())
    request.update(NO_PARAMETERS)
    wire.send(request.stream, m.RequestOk(Parameters(expires=8)))
    assert request.expires == 8
    request.update(NO_PARAMETERS)
    wire.send(request.stream, m.RequestError(RequestCode.EXPIRED_AUTH_TOKEN), fin=True)
    assert heard[0] is None
    assert isinstance(heard[1], RequestFailed)


# -- new groups ----------------------------------------------------------------------------------


@pytest.mark.rule("M390")
@pytest.mark.parametrize("dynamic", [True, False])
def test_new_groups_are_asked_for(dynamic: bool) -> None:
    catalog = Catalog()
    track = catalog.add(Track(NAME, TrackProperties(dynamic_groups=dynamic)))
    heard: list[int] = []
    track.on_new_group = heard.append
    wire = served(catalog)
    stream = wire.bidi(m.Subscribe(wire.id(), NAME, Parameters(new_group_request=0)))
    track.subgroup(4).object(0, b"x")
    for wanted in (0, 4, 5):
        update = m.RequestUpdate(wire.id(), Parameters(new_group_request=wanted))
        wire.send(stream, update)
    assert heard == ([0, 0, 5] if dynamic else [])
    assert wire.fault is None
    assert all(not isinstance(one, m.RequestError) for one in wire.answer(stream).messages)


# -- RENDEZVOUS_TIMEOUT --------------------------------------------------------------------------


def test_a_subscription_waits_for_its_track() -> None:
    catalog = Catalog()
    wire = served(catalog)
    stream = wire.bidi(m.Subscribe(0, NAME, Parameters(rendezvous_timeout=3000)))
    other = wire.bidi(m.Subscribe(2, OTHER, Parameters(rendezvous_timeout=3000)))
    wire.wait(2.0)
    assert wire.answer(stream).messages == []
    track = catalog.add(Track(NAME))
    assert isinstance(wire.last(stream), m.SubscribeOk)
    wire.wait(2.0)
    error = wire.last(other)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.TIMEOUT
    assert wire.answer(stream).end is None
    track.end()
    wire.send(stream, fin=True)
    wire.send(other, fin=True)
    assert not catalog._awaited
    assert not leftovers(wire.session)


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_rendezvous_the_answer_comes_at_once(timeout: int | None) -> None:
    wire = served(Catalog())
    stream = wire.bidi(m.Subscribe(0, NAME, Parameters(rendezvous_timeout=timeout)))
    error = wire.last(stream)
    assert isinstance(error, m.RequestError)
    assert error.code == RequestCode.DOES_NOT_EXIST


def test_what_waits_is_bounded() -> None:
    catalog = Catalog(ServingLimits(rendezvous=1000, awaited=2))
    wire = served(catalog)
    wanted = Parameters(rendezvous_timeout=1 << 60)
    first, second, third = (wire.bidi(m.Subscribe(one, NAME, wanted)) for one in (0, 2, 4))
    assert isinstance(wire.last(third), m.RequestError)
    wire.stop(second)
    wire.reset(second)
    assert len(catalog._awaited[NAME]) == 1
    wire.wait(1.5)
    assert isinstance(wire.last(first), m.RequestError)
    assert not catalog._awaited


def test_one_session_does_not_take_all_the_places() -> None:
    catalog = Catalog(ServingLimits(awaited=4, awaited_each=2))
    greedy, modest = served(catalog), served(catalog)
    wanted = Parameters(rendezvous_timeout=1000)
    first, _, third = (greedy.bidi(m.Subscribe(one, NAME, wanted)) for one in (0, 2, 4))
    assert isinstance(greedy.last(third), m.RequestError)
    mine = modest.bidi(m.Subscribe(0, NAME, wanted))
    assert len(catalog._awaited[NAME]) == 3
    greedy.reset(first)
    again = greedy.bidi(m.Subscribe(6, NAME, wanted))
    catalog.add(Track(NAME))
    assert isinstance(modest.last(mine), m.SubscribeOk)
    assert isinstance(greedy.last(again), m.SubscribeOk)


# -- REDIRECT ------------------------------------------------------------------------------------


class Redirects(Unserved):
    """Sends everybody elsewhere."""

    def __init__(self, redirect: Redirect | None) -> None:
        self.redirect = redirect

    def on_subscribe(self, request: Any) -> None:
        raise RequestRefused(RequestCode.REDIRECT, "there", 0, self.redirect)

    on_subscribe_tracks = on_publish = on_subscribe


@pytest.mark.rule("M307")
def test_a_server_redirects() -> None:
    wire = Wire(handler=Redirects(ELSEWHERE))
    stream = wire.bidi(m.Subscribe(0, NAME))
    offer = wire.bidi(m.Publish(2, NAME, 7))
    expected = m.RequestError(RequestCode.REDIRECT, 1, "there", ELSEWHERE)
    assert [wire.last(one) for one in (stream, offer)] == [expected] * 2


@pytest.mark.rule("M307", "M305")
@pytest.mark.parametrize(
    ("is_client", "redirect", "message"),
    [
        (True, ELSEWHERE, m.Subscribe(1, NAME)),
        (False, None, m.Subscribe(0, NAME)),
        (False, ELSEWHERE, m.SubscribeTracks(0, LIVE)),
    ],
)
def test_redirects_that_would_end_the_session(
    is_client: bool, redirect: Redirect | None, message: m.Message
) -> None:
    wire = Wire(is_client=is_client, handler=Redirects(redirect))
    with pytest.raises(Misuse):
        wire.bidi(message)


@pytest.mark.parametrize("is_client", [True, False])
def test_a_redirect_is_heard(is_client: bool) -> None:
    wire, receiver = Wire(is_client=is_client), Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    wire.send(request.stream, m.RequestError(RequestCode.REDIRECT, 0, "", ELSEWHERE), fin=True)
    if is_client:
        assert isinstance(receiver.error, RequestFailed)
        assert receiver.error.redirect == ELSEWHERE
        assert receiver.error.retry_after is None
    else:  # a client sends nobody elsewhere
        assert wire.fault is VIOLATION


def test_a_redirect_within_the_session() -> None:
    wire, receiver = Wire(), Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    here = Redirect("", FullTrackName(LIVE, b"x"))
    wire.send(request.stream, m.RequestError(RequestCode.REDIRECT, 0, "", here), fin=True)
    assert isinstance(receiver.error, RequestFailed)
    assert receiver.error.redirect == here


# -- PUBLISH_STATE_NOTIFY on a SUBSCRIBE ---------------------------------------------------------


@pytest.mark.rule("M340", "M339")
def test_a_notice_to_a_subscriber() -> None:
    catalog = Catalog()
    track = catalog.add(Track(NAME))
    wire = served(catalog)
    stream = wire.bidi(m.Subscribe(0, NAME))
    track.notify()
    assert wire.last(stream) == m.PublishStateNotify()
    track.subgroup(20).object(4, b"x")
    track.notify()
    octets, _ = wire.data(stream)
    assert octets.endswith(bytes.fromhex("22 0004 01 09 14 04"))


@pytest.mark.rule("M338", "M529")
def test_a_notice_is_heard() -> None:
    wire, heard = Wire(is_client=True), list[Parameters]()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, Receiver())
    request.on_notify = heard.append
    wire.send(request.stream, m.SubscribeOk(7))
    wire.send(request.stream, bytes.fromhex("22 0006 02 09 14 04 07 00") * 20)
    assert heard == [Parameters(largest_object=Location(20, 4), forward=False)] * 20
    assert len(wire.answer(request.stream).messages) == 1
    assert wire.fault is None


@pytest.mark.rule("M337")
def test_a_notice_of_a_subscriber() -> None:
    wire = Wire()
    wire.bidi(m.Subscribe(0, NAME), m.PublishStateNotify())
    assert wire.fault is VIOLATION
