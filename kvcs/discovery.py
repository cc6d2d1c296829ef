"""Which publications exist for the prefixes of a prompt (kvcs.md §5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from kvcs.bell import Bell
from kvcs.errors import InvalidInput, UnknownPublication, most_telling_first
from kvcs.names import PublicationName, namespace_prefix
from kvcs.relays import ROUND_PAUSE, Offers
from moqt.errors import MoqtError, RequestCode, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from kvcs.relays import Link, Links
    from moqt.model import TrackNamespace
    from moqt.session.namespaces import OutgoingSubscribeNamespace

#: How shorter prefixes are looked for. True: one question for all of them (three fields), or one
#: for each where that is refused. "prefix3", "each": only that way. False: not at all (privacy).
Probe: TypeAlias = bool | Literal["prefix3", "each"]

#: A peer that does not answer SUBSCRIBE_NAMESPACE knows nothing, in seconds.
ANSWER_TIMEOUT: Final = 5.0
#: MOQT has no end marker: so long after REQUEST_OK nothing has come means none.
NONE_AFTER: Final = 0.25
#: Once one has come, others that are known follow within this, and all of them within that: a
#: peer that invents one after another must not keep a question waiting.
MORE_AFTER: Final = 0.05
ALL_AFTER: Final = 1.0
#: Prefixes asked for one by one: at once, and altogether.
PROBES_AT_ONCE: Final = 8
MAX_PROBES: Final = 64
#: A question we have just taken back may still stand at the peer (draft-22 §4.2).
OVERLAP_RETRIES: Final = 5
OVERLAP_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """A publication whose segment 0 covers the first ``tokens`` tokens, ``blocks`` blocks.

    ``keys`` are the Block Keys of the whole prompt it was found for.
    """

    name: PublicationName
    blocks: int
    tokens: int
    keys: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a consumer looks for: a scope, a model, and the Block Keys of its tokens in order."""

    scope_id: bytes
    compat_id: bytes
    keys: tuple[bytes, ...]
    block_tokens: int

    def __post_init__(self) -> None:
        """Raises InvalidInput without a complete block."""
        if not self.keys:
            raise InvalidInput(
                f"nothing to look for: the prompt fills no block of {self.block_tokens} tokens"
            )

    def matches(self, offers: Offers) -> Iterator[Found]:
        """What is offered of this prompt, longest prefix first."""
        for blocks in range(len(self.keys), 0, -1):
            for name in offers.under(self.keys[blocks - 1]):
                if (name.scope_id, name.compat_id) == (self.scope_id, self.compat_id):
                    yield Found(name, blocks, blocks * self.block_tokens, self.keys)

    def prefix(self, blocks: int | None = None) -> TrackNamespace:
        """Four fields for the first ``blocks`` blocks; three fields for None."""
        anchor = None if blocks is None else self.keys[blocks - 1]
        return namespace_prefix(self.scope_id, self.compat_id, anchor)

    def __str__(self) -> str:
        """Shortened identifiers: they are no secrets, and nobody reads 32 octets."""
        blocks = len(self.keys)
        return (
            f"scope {self.scope_id.hex()[:8]}, model {self.compat_id.hex()[:8]},"
            f" anchor {self.keys[-1].hex()[:8]} ({blocks} block{'s' * (blocks != 1)})"
        )


class Interest:
    """A NamespaceListener: one SUBSCRIBE_NAMESPACE, shared by all who want what it covers."""

    def __init__(self, link: Link, prefix: TrackNamespace) -> None:
        self.prefix = prefix
        self.offers = Offers()
        self.answered = False
        self.error: MoqtError | None = None
        self.users = 0
        self.changed = Bell()
        self._link = link
        self._request: OutgoingSubscribeNamespace | None = None
        try:
            self._request = link.connection.subscribe_namespace(prefix, self)
        except MoqtError as error:
            self.ended(error)

    @classmethod
    def on(cls, link: Link, prefix: TrackNamespace) -> Interest:
        """One that covers ``prefix``: a new one, or one that stands already."""
        for known in link.interests.values():
            if known.error is None and prefix[: len(known.prefix)] == known.prefix:
                known.users += 1
                return known
        made = link.interests[prefix] = cls(link, prefix)
        made.users += 1
        return made

    def release(self) -> None:
        """One user less; without any the question is taken back."""
        self.users -= 1
        if self.users == 0:
            if self._link.interests.get(self.prefix) is self:
                del self._link.interests[self.prefix]
            if self._request is not None:
                self._request.cancel()

    @property
    def overlaps(self) -> bool:
        """Refused because of another question on this session (draft-22 §4.2)."""
        error = self.error
        return isinstance(error, RequestFailed) and error.code == RequestCode.PREFIX_OVERLAP

    # -- NamespaceListener -----------------------------------------------------------------------

    def accepted(self) -> None:
        """REQUEST_OK."""
        self.answered = True
        self.changed.ring()

    def found(self, namespace: TrackNamespace) -> None:
        """NAMESPACE; what is no publication is none of ours."""
        try:
            self.offers.add(PublicationName.from_namespace(namespace))
        except InvalidInput:
            return
        self.changed.ring()
        self._link.told()

    def gone(self, namespace: TrackNamespace) -> None:
        """NAMESPACE_DONE."""
        try:
            self.offers.discard(PublicationName.from_namespace(namespace))
        except InvalidInput:
            return

    def ended(self, error: MoqtError | None) -> None:
        """Refused, or over."""
        self.answered = True
        self.offers.clear()
        self.error = error or RequestFailed(RequestCode.INTERNAL_ERROR, "the peer ended it")
        self.changed.ring()


class Search:
    """One discovery: asks what it must, sees what is announced, and leaves nothing behind."""

    def __init__(
        self, links: Links, prompt: Prompt, probe: Probe, *, avoid: Collection[Link] = ()
    ) -> None:
        self._links = links
        self._avoid = frozenset(avoid)
        self._prompt = prompt
        self._probe = probe
        self._held: dict[Link, list[Interest]] = {}
        #: Sessions of publishers that dialled us, given their grace; None for the open door.
        self._heard: set[Link | None] = set()
        self._notes: dict[str, None] = {}
        self._dialled = False

    async def run(self, wait: float) -> list[Found]:
        """Longest prefix first; raises UnknownPublication when ``wait`` seconds brought none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        try:
            while not (found := self.matches()):
                left = deadline - loop.time()
                if not self._links.open and self._links.urls and (left > 0 or not self._dialled):
                    await self._dial(left)
                # Questions stand until the end: only sessions that are new must still be asked.
                new = [link for link in self._sessions if link.url and link not in self._held]
                if new:
                    await asyncio.gather(*(self._ask_link(link, wait > 0) for link in new))
                elif self._unheard():
                    await self._settle()
                elif (left := deadline - loop.time()) > 0:
                    if self._links.open or not self._links.urls:
                        await self._links.changed.wait(left)
                else:
                    raise UnknownPublication(self._explain())
            return found
        finally:
            for link in tuple(self._held):
                self._drop(link)

    async def _dial(self, left: float) -> None:
        """Every session has ended, or is to: begin another, with a rest after the first."""
        if self._dialled and left > 0:
            await asyncio.sleep(min(ROUND_PAUSE, left))
        self._dialled = True
        await self._links.another((), self._note)

    @property
    def _sessions(self) -> list[Link]:
        return [link for link in self._links.open if link not in self._avoid]

    def _unheard(self) -> bool:
        """True when somebody may have dialled us just now, and could not yet announce anything."""
        waiting: set[Link | None] = {link for link in self._sessions if link.url is None}
        if self._links.listening:
            waiting.add(None)
        new = waiting - self._heard
        self._heard |= new
        return bool(new)

    def matches(self) -> list[Found]:
        """What is announced by now, longest prefix first."""
        found: dict[PublicationName, Found] = {}
        for link in self._sessions:
            # What other searches have asked for may be taken back at any moment: not used.
            told = (interest.offers for interest in self._held.get(link, ()))
            for offers in (link.announced, *told):
                found |= {match.name: match for match in self._prompt.matches(offers)}
        return sorted(found.values(), key=lambda match: -match.blocks)

    async def _ask_link(self, link: Link, waits: bool) -> None:
        """Ask one session, in the order of kvcs.md §5, until something is found."""
        probe, prompt = self._probe, self._prompt
        count = len(prompt.keys)
        each = probe == "each"
        if isinstance(probe, bool):
            await self._ask(link, [prompt.prefix(count)])
        if (probe is True or probe == "prefix3") and not self.matches():
            answered = await self._ask(link, [prompt.prefix()])
            each = probe is True and not answered
        if not each or self.matches():
            return
        longest_first = range(count, max(count - MAX_PROBES, 0), -1)
        batches = [
            [prompt.prefix(blocks) for blocks in longest_first[at : at + PROBES_AT_ONCE]]
            for at in range(0, len(longest_first), PROBES_AT_ONCE)
        ]
        # Who goes on waiting, waits for the longest prefixes.
        for batch in (*batches, *(batches[:1] if waits else ())):
            await self._ask(link, batch)
            if self.matches():
                return

    async def _ask(self, link: Link, prefixes: Sequence[TrackNamespace]) -> bool:
        """Put new questions instead of those that stand; False when one was refused."""
        self._drop(link)
        self._held[link] = []
        asked = (self._question(link, prefix) for prefix in prefixes)
        interests = await asyncio.gather(*asked)
        for interest in interests:
            if not interest.answered:
                self._note(f"{link} did not answer within {ANSWER_TIMEOUT:g} s")
            elif interest.error is not None:
                self._note(f"{link} answered {interest.error}")
        if any(interest.error is None for interest in interests):
            await self._settle()
        return all(interest.error is None for interest in interests)

    async def _question(self, link: Link, prefix: TrackNamespace) -> Interest:
        """An answered question; when one of ours still stands in its way it is put again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_TIMEOUT
        retries = OVERLAP_RETRIES
        while True:
            interest = Interest.on(link, prefix)
            self._held[link].append(interest)
            while not interest.answered and loop.time() < deadline:
                await interest.changed.wait(deadline - loop.time())
            if not interest.overlaps or not retries:
                return interest
            retries -= 1
            self._held[link].remove(interest)
            interest.release()
            await asyncio.sleep(OVERLAP_PAUSE)

    async def _settle(self) -> None:
        """Give what is known the time to come in: none is told by silence alone."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NONE_AFTER
        while not self.matches() and loop.time() < deadline:
            await self._links.changed.wait(deadline - loop.time())
        known, deadline = 0, loop.time() + ALL_AFTER
        while (now := len(self.matches())) > known and loop.time() < deadline:
            known = now
            await asyncio.sleep(MORE_AFTER)

    def _drop(self, link: Link) -> None:
        for interest in self._held.pop(link, ()):
            interest.release()

    def _note(self, what: str) -> None:
        self._notes[what] = None

    def _explain(self) -> str:
        sessions = ", ".join(map(str, self._links.open)) or "no session"
        guess = (
            "it may not be published (yet), or for more tokens only (a prefix shorter than what was"
            " published cannot be found by its tokens), or scope key, descriptor, token ids or"
            " request extras differ from the publisher's"
        )
        causes = "; ".join(most_telling_first((guess, *self._notes)))
        return f"no publication for {self._prompt} on {sessions}: {causes}"
