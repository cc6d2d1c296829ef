"""MOQT URLs, accepted and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import InvalidUrl
from transport.url import MAX_URL, MoqtUrl

ACCEPTED = {
    "moqt://relay.example": MoqtUrl("moqt", "relay.example"),
    "moqt://relay.example/": MoqtUrl("moqt", "relay.example", path="/"),
    "moqt://relay.example:4443/kv/a": MoqtUrl("moqt", "relay.example", 4443, "/kv/a"),
    "MOQT://Relay.Example:443": MoqtUrl("moqt", "relay.example"),
    "moqt://relay.example:": MoqtUrl("moqt", "relay.example"),
    "moqt://10.0.0.1/a?b=c&d": MoqtUrl("moqt", "10.0.0.1", 443, "/a", "b=c&d"),
    "moqt://h?q": MoqtUrl("moqt", "h", 443, "", "q"),
    "moqt://h/?": MoqtUrl("moqt", "h", 443, "/", ""),
    "moqt://[::1]:9/x": MoqtUrl("moqt", "::1", 9, "/x"),
    "moqt://[2001:DB8:0:0:0:0:0:1]": MoqtUrl("moqt", "2001:db8::1"),
    "moqt://h/%20a//b;c=1": MoqtUrl("moqt", "h", 443, "/%20a//b;c=1"),
    "moqt://h/p#kvcs:ab-cd": MoqtUrl("moqt", "h", 443, "/p", None, "kvcs:ab-cd"),
    "moqt://h?a#x-1:": MoqtUrl("moqt", "h", 443, "", "a", "x-1:"),
}

REFUSED = {
    "": "no scheme",
    "relay.example:443/a": "no scheme",
    "moqt:/relay": "no scheme",
    "http://h/": "'http'",
    "https://h/": "WebTransport",
    "moqt://": "host is empty",
    "moqt:///path": "host is empty",
    "moqt://:443/": "host is empty",
    "moqt://user@h/": "user name",
    "moqt://h:0/": "port is '0'",
    "moqt://h:65536/": "port is '65536'",
    "moqt://h:-1/": "port is '-1'",
    "moqt://h:1:2/": "port is '1:2'",
    "moqt://h:\u0661/": "port is",
    "moqt://::1/": "host is empty",
    "moqt://[::1/": "malformed",
    "moqt://[::1]x/": "malformed",
    "moqt://[1.2.3.4]/": "no IPv6 address",
    "moqt://[]/": "no IPv6 address",
    "moqt://h\u00e4/": "IDNA",
    "moqt://h h/": "RFC 3986",
    "moqt://h/a b": "the path",
    "moqt://h/%zz": "the path",
    "moqt://h/a\n": "the path",
    "moqt://h/a?b c": "the query",
    "moqt://h/a?\u00e9": "the query",
    "moqt://h/#": "type:value",
    "moqt://h/#nocolon": "type:value",
    "moqt://h/#Kvcs:a": "type:value",
    "moqt://h/#kvcs:a b": "type:value",
    "moqt://h/\n": "the path",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text):
    url = MoqtUrl.parse(text)
    assert url == ACCEPTED[text]
    assert MoqtUrl.parse(str(url)) == url


@pytest.mark.rule("M136", "M137")
@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(InvalidUrl) as caught:
        MoqtUrl.parse(text)
    assert REFUSED[text] in str(caught.value)
    assert repr(text) in str(caught.value)


def test_what_is_sent():
    url = MoqtUrl.parse("moqt://[::1]:4443/a/b?c=d#kvcs:ns")
    assert url.authority == "[::1]:4443"
    assert url.path_and_query == "/a/b?c=d"
    url = MoqtUrl.parse("moqt://h:443?")
    assert url.authority == "h"
    assert url.path_and_query == "?"
    assert MoqtUrl.parse("moqt://h").path_and_query == ""


def test_too_long():
    with pytest.raises(InvalidUrl, match="at most 8192"):
        MoqtUrl.parse("moqt://h/" + "a" * MAX_URL)


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text):
    for candidate in (text, "moqt://" + text, "moqt://h/" + text):
        try:
            url = MoqtUrl.parse(candidate)
        except InvalidUrl:
            continue
        assert MoqtUrl.parse(str(url)) == url
        assert url.host
        assert str(url).isascii()
