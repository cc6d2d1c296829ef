"""kvcs-token: keys of issuers, and the tokens that let publishers and consumers into a relay."""

from __future__ import annotations

import re
import secrets
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from kvcs import cose
from kvcs.cli.command import Command, Group, words_alone
from kvcs.cli.options import gathered, versioned
from kvcs.cli.output import emit_json, printable
from kvcs.cli.values import FILE, SECONDS, Parsed, identifier
from kvcs.errors import InvalidInput
from kvcs.identity import KVSP_PROFILE_0
from kvcs.issuers import KINDS, SUFFIX, Issuers, create_issuer_keys, load_issuer_key
from kvcs.keys import load_scope_key
from kvcs.scopes import Action, How, Match, Scope, kvcs_scopes
from kvcs.tokenfile import MAX_FILE, parse_token, read_token, token_text, write_token
from kvcs.tokens import Claims, TokenInvalid, decode, issue, read_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Octets of the id that each token gets.
TOKEN_ID_LENGTH: Final = 8
KEY_SUFFIX: Final = ".key"
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(\d{1,9})([smhd]?)", re.ASCII)

EPILOG: Final = """\b
Examples

\b
  Keys of an issuer: acme.key stays with it, acme.pem goes to the relays:
    kvcs-token keygen acme
    kvcs-relay ... --issuers acme.pem --audience relay-1
\b
  For a publisher, and for consumers, of one scope:
    kvcs-token issue --key acme.key --audience relay-1 --scope-key scope.key --publish \\
        --expires 12h --out pub.token
    kvcs-token issue --key acme.key --audience relay-1 --scope-key scope.key --read --out sub.token
    kvcs-pub ... --token-file pub.token
\b
  What a token says, and whether an issuer that is trusted has signed it:
    kvcs-token show pub.token --issuers acme.pem
"""


def parse_duration(text: str) -> float:
    """Seconds, or a number and s, m, h or d; raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r}: write how long, such as 90s, 30m, 12h or 7d")
    return float(int(found[1]) * _UNITS[found[2]])


def parse_name(text: str) -> str:
    """A name that a token can bear; raises ValueError."""
    try:
        return read_name(text)
    except ValueError as error:
        raise ValueError(f"{text[:64]!r}: {error}") from None


NAME: Final = Parsed("NAME", parse_name)


@click.group(cls=Group, epilog=EPILOG)
@versioned
def main() -> None:
    """Issue tokens, and see what they say.

    Who holds a token may use it: its file is only for its owner, and it ends soon.
    """


json_option = click.option("--json", is_flag=True, help="Write the answer as a line of JSON.")


# ---------------------------------------------------------------------------------- keys of issuers


@main.command("keygen", cls=Command)
@click.argument("name", type=FILE)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="Ed25519, or P-256 for those who must have that.",
)
@json_option
def keygen(name: Path, kind: str, json: bool) -> None:
    """Make the key pair of an issuer: NAME.key, and NAME.pem for those who trust it.

    The issuer is called as the .pem file is, without folder and ending.
    """
    private = name.with_name(name.name + KEY_SUFFIX)
    public = name.with_name(name.name + SUFFIX)
    kid = cose.key_id(create_issuer_keys(private, public, kind)).hex()
    if json:
        emit_json("keys", issuer=name.name, kid=kid, private=str(private), public=str(public))
        return
    click.echo(f"key {kid} ({kind}) of issuer {name.name}:")
    click.echo(f"  {private}: keep it secret; kvcs-token issue --key {private}")
    click.echo(f"  {public}: for relays; kvcs-relay --issuers {public}")


# ------------------------------------------------------------------------------------------ issuing


@dataclass(frozen=True, kw_only=True)
class IssueOptions:
    """Everything that kvcs-token issue was told."""

    key: Path
    issuer: str | None
    audience: tuple[str, ...]
    scope_keys: tuple[Path, ...]
    scope_ids: tuple[bytes, ...]
    publish: bool
    read: bool
    setup: bool
    expires: float
    subject: str | None
    reval: float | None
    out: Path | None
    json: bool

    def claims(self, now: float) -> Claims:
        """What the token is to say; raises UsageError, InvalidInput."""
        return Claims(
            issuer=self.issuer or self.key.name.removesuffix(KEY_SUFFIX),
            audience=self.audience,
            expires=now + self.expires,
            scopes=tuple(self._scopes()),
            subject=self.subject,
            issued_at=now,
            token_id=secrets.token_bytes(TOKEN_ID_LENGTH),
            reval=self.reval or None,
        )

    def _scopes(self) -> Iterator[Scope]:
        if not (self.publish or self.read):
            raise click.UsageError("what is it for? Give --publish, --read or both")
        keys = (KVSP_PROFILE_0.scope_id(load_scope_key(path)) for path in self.scope_keys)
        ids = dict.fromkeys((*self.scope_ids, *keys))
        if not ids:
            raise click.UsageError("for which scope? Give --scope-key FILE or --scope-id HEX")
        if self.setup:
            yield Scope((Action.CLIENT_SETUP,))
        for scope_id in ids:
            with words_alone("--scope-id"):
                scopes = kvcs_scopes(scope_id, publish=self.publish, read=self.read)
            yield from scopes


@main.command("issue", cls=Command)
@click.option(
    "--key", type=FILE, required=True, help="Private key of the issuer, from kvcs-token keygen."
)
@click.option("--issuer", type=NAME, help="Its name, if not that of the key file.")
@click.option(
    "--audience",
    type=NAME,
    multiple=True,
    required=True,
    help="The relay it is for, by its own --audience; repeat it for more.",
)
@click.option("--scope-key", "scope_keys", type=FILE, multiple=True, help="For this scope.")
@click.option(
    "--scope-id",
    "scope_ids",
    type=identifier("scope id"),
    multiple=True,
    help="For the scope with this id, 16 octets.",
)
@click.option("--publish", is_flag=True, help="Lets announce and publish in the scope.")
@click.option("--read", is_flag=True, help="Lets look for and take what is in the scope.")
@click.option("--setup", is_flag=True, help="Lets open sessions: for who shows it in SETUP.")
@click.option(
    "--expires",
    type=Parsed("DURATION", parse_duration),
    default="1h",
    show_default=True,
    help="How long it is good: 90s, 30m, 12h, 7d.",
)
@click.option("--subject", type=NAME, help="Whose it is, for logs and limits of the relay.")
@click.option("--reval", type=SECONDS, help="Lets the relay look again every so many seconds.")
@click.option("-o", "--out", type=FILE, help="File to write, instead of an older token.")
@json_option
@gathered(IssueOptions)
def issue_token(options: IssueOptions) -> None:
    """Issue a token for one or more scopes; to standard output, or a file for its owner."""
    claims = options.claims(float(int(time.time())))
    key, out = load_issuer_key(options.key), options.out
    with words_alone():
        token = issue(claims, key)
    if out is not None:
        write_token(out, token)
    if options.json:
        where = {"token": token_text(token)} if out is None else {"out": str(out)}
        emit_json("token", **_told(claims), **where)
    elif out is None:
        click.echo(token_text(token))
    else:
        click.echo(f"token in {out}, until {_date(claims.expires)}: keep it secret")


# ------------------------------------------------------------------------------------------ showing


@main.command("show", cls=Command)
@click.argument("file", type=FILE)
@click.option(
    "--issuers",
    type=FILE,
    multiple=True,
    help="Verify the signature: public keys, or a directory of them.",
)
@json_option
def show(file: Path, issuers: tuple[Path, ...], json: bool) -> None:
    """Say what the token in FILE allows; - reads it from standard input.

    Without --issuers nobody vouches for it: anybody can write what it says.
    """
    token = _read(file)
    try:
        signed, claims = _opened(token, issuers)
    except cose.CoseRejected as error:
        cure = "name its issuer's keys in --issuers" if issuers else "kvcs-token issue makes one"
        raise InvalidInput(f"token file {file}: {error}; {cure}") from None
    except TokenInvalid as error:
        raise InvalidInput(f"token file {file}: {error}; kvcs-token issue makes one") from None
    expired = time.time() >= claims.expires
    kid, verified = signed.kid.hex(), bool(issuers)
    if json:
        standing = {"kid": kid, "verified": verified, "expired": expired, "octets": len(token)}
        emit_json("token", **standing, **_told(claims))
        return
    signature = "verified" if verified else "NOT verified: give --issuers"
    click.echo(f"issuer      {printable(claims.issuer)}, key {kid}; signature {signature}")
    if expired:
        click.echo("it has expired")
    click.echo(printable("\n".join(_lines(claims))))


def _read(file: Path) -> bytes:
    if str(file) != "-":
        return read_token(file)
    try:
        return parse_token(sys.stdin.buffer.read(MAX_FILE))
    except ValueError as error:
        raise InvalidInput(f"standard input: {error}") from None


def _opened(token: bytes, issuers: tuple[Path, ...]) -> tuple[cose.Signed, Claims]:
    """Verified, when there are issuers; raises KvcsError."""
    if not issuers:
        signed = cose.peek(token, cose.TOKENS)
        return signed, decode(signed.payload)
    trusted = Issuers(issuers)
    signed = cose.verify(token, trusted.keys, cose.TOKENS)
    claims, owner = decode(signed.payload), trusted.issuer_of(signed.kid)
    if claims.issuer != owner:
        raise InvalidInput(
            f"the token names {claims.issuer!r} as its issuer, but its key is that of {owner!r}"
        )
    return signed, claims


def _lines(claims: Claims) -> Iterator[str]:
    """What a token says, for people."""
    yield f"audience    {', '.join(claims.audience)}"
    told = {
        "expires": _date(claims.expires),
        "not before": None if claims.not_before is None else _date(claims.not_before),
        "issued": None if claims.issued_at is None else _date(claims.issued_at),
        "subject": claims.subject,
        "id": None if claims.token_id is None else claims.token_id.hex(),
        "checked": None if claims.reval is None else f"again every {claims.reval:g} s",
    }
    yield from (f"{name:<11} {text}" for name, text in told.items() if text is not None)
    for scope in claims.scopes:
        more = "" if scope.longer else ", no more fields"
        yield f"allows      {', '.join(map(_action, scope.actions))}"
        yield f"  namespace {' / '.join(map(_match, scope.namespace)) or 'any'}{more}"
        if scope.track is not None:
            yield f"  track     {_match(scope.track)}"


def _told(claims: Claims) -> dict[str, object]:
    """The claims as JSON has them: times in Unix seconds, octets in words."""
    found: dict[str, object] = claims._asdict()
    found["id"] = claims.token_id and claims.token_id.hex()
    del found["token_id"]
    found["scopes"] = [
        {
            "actions": [_action(number) for number in scope.actions],
            "namespace": [_match(match) for match in scope.namespace],
            "longer": scope.longer,
            "track": scope.track and _match(scope.track),
        }
        for scope in claims.scopes
    ]
    return found


def _action(number: int) -> str:
    known = number in Action._value2member_map_
    return Action(number).name if known else f"action {number}"


def _match(match: Match) -> str:
    """A field in text where it is text, else in hexadecimal; * is the rest of it."""
    value = match.value
    plain = value.isascii() and value.decode("latin-1").isprintable() and b"*" not in value
    text = value.decode("ascii") if plain else f"0x{value.hex()}"
    return {How.EXACT: text, How.PREFIX: f"{text}*", How.SUFFIX: f"*{text}"}[match.how]


def _date(seconds: float) -> str:
    """Unix time in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


if __name__ == "__main__":
    main()
