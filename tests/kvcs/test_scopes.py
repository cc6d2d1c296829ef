"""The moqt claim: its grammar, and which requests a scope fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs import strictcbor
from kvcs.errors import InvalidInput
from kvcs.scopes import Action, How, Match, Scope, kvcs_scopes, read_scopes

ID = bytes(range(16))
KVCS = b"kvcs-1"
FIELDS = "82 46 6b7663732d31 50 000102030405060708090a0b0c0d0e0f"


def decoded(octets: str) -> tuple[Scope, ...]:
    return read_scopes(strictcbor.loads(bytes.fromhex(octets), max_octets=500, canonical=True))


def encoded(*scopes: Scope) -> str:
    return strictcbor.dumps([scope.to_claim() for scope in scopes]).hex()


A, B = Match(b"a"), Match(b"b")
GOOD = [
    ("81 81 81 04", Scope((4,))),
    ("81 81 83 00 04 17", Scope((0, 4, 23))),
    ("81 82 81 04 41 61", Scope((4,), track=A)),
    ("81 82 81 04 82 01 41 61", Scope((4,), track=Match(b"a", How.PREFIX))),
    ("81 82 81 04 82 02 40", Scope((4,), track=Match(b"", How.SUFFIX))),
    ("81 82 81 04 81 41 61", Scope((4,), (A,))),
    ("81 82 81 04 82 41 61 41 62", Scope((4,), (A, B))),
    ("81 82 81 04 82 41 61 f6", Scope((4,), (A,), longer=False)),
    ("81 82 81 04 81 f6", Scope((4,), longer=False)),
    ("81 82 81 04 81 82 01 41 61", Scope((4,), (Match(b"a", How.PREFIX),))),
    ("81 82 81 04 82 82 02 41 61 f6", Scope((4,), (Match(b"a", How.SUFFIX),), longer=False)),
    ("81 83 81 04 81 41 61 41 62", Scope((4,), (A,), track=B)),
    ("81 83 81 04 82 41 61 f6 82 01 41 62", Scope((4,), (A,), False, Match(b"b", How.PREFIX))),
]


@pytest.mark.parametrize(("octets", "scope"), GOOD)
def test_grammar(octets: str, scope: Scope) -> None:
    assert decoded(octets) == (scope,)
    assert encoded(scope) == octets.replace(" ", "")


def test_the_claim_of_one_kvcs_scope() -> None:
    octets = f"82 82 83 02 05 06 {FIELDS} 82 85 03 04 05 07 08 {FIELDS}"
    scopes = kvcs_scopes(ID, publish=True, read=True)
    assert encoded(*scopes) == octets.replace(" ", "")
    assert decoded(octets) == scopes
    assert kvcs_scopes(ID, publish=False, read=True) == scopes[1:]
    with pytest.raises(InvalidInput, match="scope id of 15 octets"):
        kvcs_scopes(ID[1:], publish=True, read=True)


@pytest.mark.parametrize(
    "octets",
    [
        "a0",  # no list
        "80",  # no scope
        "81 04",  # a scope that is no list
        "81 80",  # no actions
        "81 81 80",  # an empty list of actions
        "81 81 04",  # actions that are no list
        "81 81 81 20",  # a negative one
        "81 81 81 f5",  # true is not 1
        "81 81 81 f94400",  # 4.0 is not 4
        "81 81 81 41 04",
        "81 82 81 04 80",  # an empty namespace
        "81 82 81 04 f6",  # nil outside a namespace
        "81 82 81 04 82 f6 41 61",  # nil that is not the last
        "81 82 81 04 82 f6 f6",
        "81 82 81 04 82 03 41 61",  # no such match
        "81 82 81 04 82 00 41 61",  # an exact match has no number
        "81 82 81 04 82 01 61 61",  # text
        "81 82 81 04 61 61",
        "81 82 81 04 81 61 61",
        "81 82 81 04 81 81 41 61",
        "81 82 81 04 81 83 01 41 61 41 62",
        "81 82 81 04 a1 00 41 61",  # the map form of old drafts
        "81 82 81 04 81 a1 00 41 61",
        "81 83 81 04 41 61 41 62",  # track before namespace
        "81 83 81 04 81 41 61 f6",
        "81 84 81 04 81 41 61 41 62 41 63",  # four parts
        "82 81 81 04 81 80",  # one good scope does not save the claim
    ],
)
def test_a_claim_that_is_not_well_formed(octets: str) -> None:
    with pytest.raises(ValueError, match=r"must be a list|a match is|an action is|a scope has"):
        decoded(octets)


#: Action 4 on fields of one match list, a final None for nil: as the draft's evaluation tests.
PAIR: list[object] = [KVCS, ID]
CASES = [
    ([], None, (), b"t", True),
    ([], None, (b"x", b"y"), b"t", True),
    ([b"a"], None, (b"a",), b"t", True),
    ([b"a"], None, (b"a", b"b"), b"t", True),
    ([b"a"], None, (), b"t", False),
    ([b"a"], None, (b"b", b"a"), b"t", False),
    ([b"a", None], None, (b"a",), b"t", True),
    ([b"a", None], None, (b"a", b"b"), b"t", False),
    ([None], None, (), b"t", True),
    ([None], None, (b"a",), b"t", False),
    ([(1, b"conference.example")], None, (b"conference.example.room1",), b"t", True),
    ([(1, b"conference.example.room1")], None, (b"conference.example", b"room1"), b"t", False),
    ([(2, b".org")], None, (b"example.org",), b"t", True),
    ([(2, b".org")], None, (b"example", b".org"), b"t", False),
    ([b"a", (1, b"b")], None, (b"a", b"bc", b"d"), b"t", True),
    ([b"a"], b"t", (b"a",), b"t", True),
    ([b"a"], b"t", (b"a",), b"tt", False),
    ([b"a"], b"t", (b"a",), None, False),
    ([b"a"], (1, b"t"), (b"a",), b"tt", True),
    ([b"a"], (2, b"t"), (b"a",), b"tx", False),
    (PAIR, None, (KVCS, ID), b"t", True),
    (PAIR, None, (KVCS, ID, b"more", b"of it"), None, True),
    (PAIR, None, (KVCS,), None, False),
    (PAIR, None, (), None, False),
    (PAIR, None, (KVCS, ID[:-1]), b"t", False),
    (PAIR, None, (KVCS, ID + b"\0"), b"t", False),
    (PAIR, None, (KVCS + ID,), b"t", False),
    (PAIR, None, (KVCS + b"x", ID), b"t", False),
    (PAIR, None, (KVCS.upper(), ID), b"t", False),
]


def match_of(form: object) -> Match:
    return Match(form) if isinstance(form, bytes) else Match(form[1], How(form[0]))  # type: ignore[index]


@pytest.mark.parametrize(("fields", "track", "namespace", "name", "fits"), CASES)
def test_which_requests_fit(
    fields: list[object], track: object, namespace: tuple[bytes, ...], name: bytes, fits: bool
) -> None:
    longer = not fields or fields[-1] is not None
    matches = tuple(match_of(one) for one in fields if one is not None)
    scope = Scope((4,), matches, longer, None if track is None else match_of(track))
    assert scope.fits(Action.SUBSCRIBE, namespace, name) is fits
    for action in set(Action) - {Action.SUBSCRIBE}:
        assert not scope.fits(action, namespace, name)


FIELD = st.binary(max_size=3)
NAMESPACE = st.lists(FIELD, max_size=4).map(tuple)
MATCH = st.builds(Match, FIELD, st.sampled_from(How))
SCOPE = st.builds(
    Scope,
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    st.lists(MATCH, max_size=3).map(tuple),
    st.booleans(),
    st.none() | MATCH,
)


@given(st.lists(SCOPE, min_size=1, max_size=3))
def test_what_is_written_is_read(scopes: list[Scope]) -> None:
    assert decoded(encoded(*scopes)) == tuple(scopes)


@given(SCOPE, st.sampled_from(Action), NAMESPACE, st.none() | FIELD)
def test_a_scope_fits_as_the_text_says(
    scope: Scope, action: Action, namespace: tuple[bytes, ...], name: bytes | None
) -> None:
    def one(match: Match, field: bytes) -> bool:
        places = {How.EXACT: field, How.PREFIX: field[: len(match.value)]}
        places[How.SUFFIX] = field[max(len(field) - len(match.value), 0) :]
        return places[match.how] == match.value

    count = len(scope.namespace)
    expected = (
        action in scope.actions
        and (len(namespace) >= count if scope.longer else len(namespace) == count)
        and all(one(scope.namespace[k], namespace[k]) for k in range(count))
        and (scope.track is None or (name is not None and one(scope.track, name)))
    )
    assert scope.fits(action, namespace, name) is expected


@given(SCOPE, NAMESPACE, FIELD, FIELD)
def test_more_fields_never_open_what_was_closed(
    scope: Scope, namespace: tuple[bytes, ...], more: bytes, name: bytes
) -> None:
    longer = (*namespace, more)
    few = len(namespace) < len(scope.namespace)
    if not few and scope.fits(Action.FETCH, longer, name):
        assert scope.fits(Action.FETCH, namespace, name)
