"""SETUP, the control streams, and what comes before them (draft-22 §6.3, §9.1)."""

from __future__ import annotations

import pytest

from moqt.codec import messages as m
from moqt.codec.fields import AliasType, Token
from moqt.codec.params import NO_PARAMETERS, Parameters
from moqt.codec.properties import SetupOptions
from moqt.errors import Misuse, RequestCode, SessionCode, SessionFault, StreamCode
from moqt.model import RangeFilter, RangeFilterType, Span
from moqt.publisher import Track
from moqt.session.config import SessionConfig
from transport.api import Tier

from .wire import NAME, Asked, Wire, leftovers
from .worlds import Receiver

VIOLATION = SessionCode.PROTOCOL_VIOLATION
FILTERED = Parameters(range_filters=(RangeFilter(RangeFilterType.OBJECT_ID, (Span(0, 1),)),))


def setup_octets(body: str) -> bytes:
    """A SETUP with these option octets."""
    raw = bytes.fromhex(body)
    return bytes.fromhex("af00") + len(raw).to_bytes(2, "big") + raw


@pytest.mark.rule("M141", "M142", "M149", "M256", "M265", "M272", "M273")
def test_a_client_says_who_it_calls_and_where() -> None:
    config = SessionConfig(authority="relay.example:4433", path="/app?x=1")
    wire = Wire(is_client=True, config=config, options=None)
    (stream,) = wire.opened(unidirectional=True)
    octets, end = wire.data(stream)
    assert octets.startswith(bytes.fromhex("af00"))
    assert end is None
    (setup,) = wire.answer(stream).messages
    assert isinstance(setup, m.Setup)
    assert (setup.options.authority, setup.options.path) == ("relay.example:4433", "/app?x=1")
    assert setup.options.max_auth_token_cache_size == 0


@pytest.mark.rule("M260", "M267", "M280", "M281", "M282", "M283", "M497", "M498")
def test_a_server_says_neither_and_little_of_itself() -> None:
    wire = Wire(config=SessionConfig(authority="relay.example", path="/app"), options=None)
    (setup,) = wire.answer(wire.opened(unidirectional=True)[0]).messages
    assert isinstance(setup, m.Setup)
    assert (setup.options.authority, setup.options.path) == (None, None)
    assert setup.options.implementation is not None
    name, _, version = setup.options.implementation.partition("/")
    assert name.isalpha()
    assert version.replace(".", "").isdigit()


def option(kind: int, text: str) -> str:
    """The first option, as hex."""
    octets = text.encode()
    return f"{kind:02x}{len(octets):02x}{octets.hex()}"


# -- options of the peer -------------------------------------------------------------------------

ACCEPTED = [
    pytest.param("", id="nothing"),
    pytest.param("809d 01 00", marks=pytest.mark.rule("M257", "M481", "M482"), id="grease"),
    pytest.param("809d 01 00 00 02 6162", marks=pytest.mark.rule("M259"), id="unknown-twice"),
    pytest.param("0101 2f", id="path-root"),
    pytest.param("0100", id="path-empty"),
    pytest.param("010a 2f6170702f623f783d31", id="path-with-query"),
    pytest.param("0102 3f78", id="query-alone"),
    pytest.param("0505 5b3a3a315d", id="authority-ipv6"),
    pytest.param("0308 0300736563726574", marks=pytest.mark.rule("M482"), id="token"),
    pytest.param("030a 0301 736563726574 7878 0004 0301 7979", id="two-tokens"),
    pytest.param(
        "03 08 01 07 00 7365637265", marks=pytest.mark.rule("M277"), id="token-registered"
    ),
]


@pytest.mark.parametrize("options", ACCEPTED)
def test_options_taken_from_a_client(options: str) -> None:
    wire = Wire(options=None)
    wire.uni(setup_octets(options))
    assert wire.fault is None
    assert wire.session.established


REFUSED = [
    pytest.param(False, "0101 2f 0001 2f", VIOLATION, marks=pytest.mark.rule("M258"), id="twice"),
    pytest.param(False, "0405 0006", VIOLATION, id="known-limit-twice"),
    pytest.param(
        True, "0101 2f", SessionCode.INVALID_PATH, marks=pytest.mark.rule("M269"), id="server-path"
    ),
    pytest.param(
        True,
        "0501 61",
        SessionCode.INVALID_AUTHORITY,
        marks=pytest.mark.rule("M262"),
        id="server-authority",
    ),
    *(
        pytest.param(
            False, option(1, path), SessionCode.MALFORMED_PATH,
            marks=pytest.mark.rule("M274"), id=f"path-{path!r}",
        )
        for path in ("app", "/a b", "/%zz", "/a#b", "//\x7f", "/\u00fc", "/a?b^")
    ),
    *(
        pytest.param(
            False, option(5, host), SessionCode.MALFORMED_AUTHORITY,
            marks=pytest.mark.rule("M266"), id=f"authority-{host!r}",
        )
        for host in ("", ":4433", "user@", "a b", "a:b", "[::1", "a/b")
    ),
    pytest.param(False, "0302 0001", VIOLATION, marks=pytest.mark.rule("M276"), id="token-delete"),
    pytest.param(False, "0302 0201", VIOLATION, marks=pytest.mark.rule("M276"), id="token-alias"),
    pytest.param(
        False,
        "0302 0901",
        SessionCode.KEY_VALUE_FORMATTING_ERROR,
        marks=pytest.mark.rule("M241"),
        id="token-undecodable",
    ),
    pytest.param(False, "0105 2f", VIOLATION, id="option-past-the-end"),
]  # fmt: skip


@pytest.mark.rule("M474")
@pytest.mark.parametrize(("we_are_client", "options", "code"), REFUSED)
def test_options_that_close_the_session(
    we_are_client: bool, options: str, code: SessionCode
) -> None:
    wire = Wire(is_client=we_are_client, options=None)
    wire.uni(setup_octets(options))
    assert wire.fault is code
    assert not wire.session.established
    wire.lose(code)


OVER_WEBTRANSPORT = SessionConfig(authority="relay.example", path="/app", webtransport=True)


@pytest.mark.rule("M261", "M268")
@pytest.mark.parametrize("client", [True, False])
def test_over_webtransport_nobody_says_where(client: bool) -> None:
    wire = Wire(is_client=client, config=OVER_WEBTRANSPORT, options=None)
    (setup,) = wire.answer(wire.opened(unidirectional=True)[0]).messages
    assert isinstance(setup, m.Setup)
    assert (setup.options.authority, setup.options.path) == (None, None)


@pytest.mark.parametrize("client", [True, False])
@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param(
            "0101 2f", SessionCode.INVALID_PATH, marks=pytest.mark.rule("M270"), id="path"
        ),
        pytest.param(
            "0501 61", SessionCode.INVALID_AUTHORITY, marks=pytest.mark.rule("M263"), id="authority"
        ),
    ],
)
def test_over_webtransport_nobody_may(options: str, code: SessionCode, client: bool) -> None:
    wire = Wire(is_client=client, config=OVER_WEBTRANSPORT, options=None)
    wire.uni(setup_octets(options))
    assert wire.fault is code
    assert not wire.session.established


def test_over_webtransport_what_is_served_is_not_ours_to_check() -> None:
    served = SessionConfig(webtransport=True, served_paths=("/app",), served_authorities=("here",))
    assert Wire(config=served).fault is None


@pytest.mark.rule("M278")
def test_a_token_registered_in_setup_is_used_by_its_value() -> None:
    wire = Wire(options=None)
    wire.uni(setup_octets("03 08 01 07 00 7365637265"))
    assert wire.handler.options is not None
    assert wire.handler.options.authorization_tokens == (Token(AliasType.REGISTER, 7, 0, b"secre"),)
    with_alias = Parameters(authorization_tokens=(Token(AliasType.USE_ALIAS, 7),))
    stream = wire.bidi(m.Subscribe(0, NAME, with_alias))
    assert isinstance(wire.last(stream), m.RequestError)
    assert wire.fault is None


class Picky(Asked):
    """Serves one path of one authority."""

    def on_setup(self, options: SetupOptions) -> None:
        if options.path != "/app":
            raise SessionFault(SessionCode.INVALID_PATH, "no such path")
        if options.authority != "here":
            raise SessionFault(SessionCode.INVALID_AUTHORITY, "not served here")


@pytest.mark.rule("M271", "M264")
@pytest.mark.parametrize(
    ("path", "authority", "code"),
    [
        ("/app", "here", None),
        ("/other", "here", SessionCode.INVALID_PATH),
        ("/app", "there", SessionCode.INVALID_AUTHORITY),
    ],
)
def test_the_application_may_refuse_where_it_is_not(
    path: str, authority: str, code: SessionCode | None
) -> None:
    wire = Wire(handler=Picky(), options=SetupOptions(path=path, authority=authority))
    assert wire.fault is code


@pytest.mark.rule("M036", "M120")
def test_control_before_requests_before_objects() -> None:
    wire = Wire()
    wire.session.fetch(NAME, NO_PARAMETERS, Receiver())
    wire.bidi(m.Subscribe(0, NAME))
    track = Track(NAME)
    track.attach(wire.handler.requests[0])
    track.subgroup(0, priority=0).object(0, b"")
    tiers = [call[2].tier for call in wire.calls("open")]
    assert tiers == [Tier.CONTROL, Tier.REQUEST, Tier.OBJECT]


# -- control streams -----------------------------------------------------------------------------


@pytest.mark.rule("M147")
@pytest.mark.parametrize("how", ["fin", "reset", "stop"])
def test_a_control_stream_must_stay_open(how: str) -> None:
    wire = Wire()
    if how == "fin":
        wire.send(wire.control, fin=True)
    elif how == "reset":
        wire.reset(wire.control)
    else:
        wire.stop(wire.opened(unidirectional=True)[0])
    assert wire.fault is VIOLATION
    wire.lose(VIOLATION)


@pytest.mark.rule("M142")
@pytest.mark.parametrize("established", [True, False])
def test_a_second_control_stream(established: bool) -> None:
    wire = Wire(options=None)
    wire.uni(m.Setup() if established else m.encode_message(m.Setup())[:3])
    assert wire.fault is None
    wire.uni(m.Setup())
    assert wire.fault is VIOLATION


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(m.Setup(), id="second-setup"),
        pytest.param(m.RequestOk(), id="request-ok"),
        pytest.param(m.RequestUpdate(0), marks=pytest.mark.rule("M310"), id="update"),
        pytest.param(m.Subscribe(0, NAME), marks=pytest.mark.rule("M253"), id="subscribe"),
        pytest.param(m.Namespace((b"a",)), marks=pytest.mark.rule("M531"), id="namespace"),
        pytest.param(b"\x40\x47\x00\x00", marks=pytest.mark.rule("M254"), id="unknown"),
    ],
)
def test_only_goaway_follows_setup(message: m.Message | bytes) -> None:
    wire = Wire()
    wire.send(wire.control, message)
    assert wire.fault is VIOLATION


@pytest.mark.rule("M150")
@pytest.mark.parametrize("kind", ["00", "04", "06", "40", "8040", "af01", "809d"])
def test_an_unknown_unidirectional_stream_type(kind: str) -> None:
    wire = Wire()
    wire.uni(bytes.fromhex(kind) + bytes(20))
    assert wire.fault is VIOLATION


def test_nobody_says_setup() -> None:
    wire = Wire(options=None)
    wire.wait(9.9)
    assert wire.fault is None
    wire.wait(0.2)
    assert wire.fault is SessionCode.CONTROL_MESSAGE_TIMEOUT
    quiet = Wire()
    quiet.wait(100)
    assert quiet.fault is None
    assert not leftovers(quiet.session)


# -- before SETUP --------------------------------------------------------------------------------


@pytest.mark.rule("M145")
@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_requests_before_setup_are_kept(cut: int) -> None:
    wire = Wire(options=None)
    stream = wire.bidi()
    octets = m.encode_message(m.Subscribe(0, NAME)) + m.encode_message(m.RequestUpdate(2))
    for at in range(0, len(octets), cut):
        wire.send(stream, octets[at : at + cut])
    wire.send(stream, fin=True)
    assert not wire.handler.requests
    wire.uni(m.Setup())
    (request,) = wire.handler.requests
    assert request.name == NAME
    assert wire.fault is None
    request.refuse(RequestCode.DOES_NOT_EXIST)
    assert not leftovers(wire.session)


@pytest.mark.rule("M145")
def test_data_and_answers_before_setup_are_kept() -> None:
    wire = Wire(is_client=True, options=None)
    receiver = Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    wire.uni(bytes.fromhex("54 07 0c 01 64  00 02 4142"), fin=True)
    wire.send(request.stream, m.SubscribeOk(7))
    assert receiver.info is None
    wire.uni(m.Setup())
    assert receiver.info is not None
    ((head, payload),) = receiver.objects
    assert (head.group, head.subgroup, payload) == (12, 1, b"AB")


def test_what_is_cancelled_before_setup_leaves_nothing() -> None:
    wire = Wire(options=None)
    first = wire.bidi(m.Subscribe(0, NAME))
    second = wire.uni(bytes.fromhex("1407"))
    wire.reset(first)
    wire.reset(second)
    assert set(leftovers(wire.session)) == {"timers"}  # SETUP is still awaited
    wire.uni(m.Setup())
    assert not wire.handler.requests
    assert not leftovers(wire.session)


def test_streams_before_setup_are_bounded() -> None:
    config = SessionConfig(early_streams=8, early_octets=1000)
    wire = Wire(config=config, options=None)
    streams = [wire.bidi(b"\x03") for _ in range(20)]
    assert [wire.stopped(stream) for stream in streams] == [None] * 8 + [9] * 12
    assert [wire.answer(stream).end for stream in streams] == [None] * 8 + [9] * 12
    wire.send(streams[0], bytes(991))  # 8 streams hold one octet each
    assert wire.stopped(streams[0]) is None
    wire.send(streams[1], bytes(2))
    assert wire.stopped(streams[1]) == StreamCode.EXCESSIVE_LOAD
    data = wire.uni(b"\x14" + bytes(50))
    assert wire.stopped(data) == StreamCode.EXCESSIVE_LOAD
    assert wire.answer(data).end is None  # a stream of the peer has no direction of ours
    assert wire.session._context._held_octets == 998
    wire.lose()


def test_too_long_an_answer_before_setup_fails_the_request() -> None:
    wire = Wire(is_client=True, config=SessionConfig(early_octets=10), options=None)
    receiver = Receiver()
    request = wire.session.subscribe(NAME, NO_PARAMETERS, receiver)
    wire.send(request.stream, bytes(11))
    assert receiver.error is not None
    wire.lose()


@pytest.mark.rule("M148", "M284")
def test_what_needs_the_peers_limits_waits_for_its_setup() -> None:
    wire = Wire(is_client=True, options=None)
    with pytest.raises(Misuse, match="MAX_FILTER_RANGES"):
        wire.session.subscribe(NAME, FILTERED, Receiver())
    assert not wire.opened(unidirectional=False)
    wire.uni(m.Setup(SetupOptions(max_filter_ranges=1)))
    wire.session.subscribe(NAME, FILTERED, Receiver())
    assert len(wire.opened(unidirectional=False)) == 1
