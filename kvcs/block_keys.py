"""The Block Keys of a publication's segments, as its prompt grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvcs.errors import InvalidInput
from kvcs.identity import BLOCK_KEY_LENGTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.identity import Identities, JsonObject, ScopeKey


#: Stands for the key of a block whose key is not known here.
UNKNOWN: Final = b""


class BlockKeys:
    """Block Keys from tokens, or ready-made; ``take`` hands out those of the next segment.

    Tokens that fill no block yet wait for more. Without a scope key blocks are only counted: their
    keys are UNKNOWN. Raises InvalidInput.
    """

    def __init__(
        self,
        identities: Identities,
        scope_key: ScopeKey | None,
        compat_id: bytes,
        block_tokens: int,
        extras: JsonObject | None = None,
    ) -> None:
        self._identities = identities
        self._scope_key = scope_key
        self._compat_id = compat_id
        self._block_tokens = block_tokens
        self._extras = extras
        self._tokens: list[int] = []
        self._keys: list[bytes] = []
        self._taken = 0

    def add(
        self,
        tokens: Sequence[int] | None,
        keys: Sequence[bytes] | None,
        blocks: int | None,
    ) -> None:
        """Token ids, or ready-made keys of 32 octets, or just a number of blocks: what follows.

        With tokens or keys, ``blocks`` says nothing here: ``take`` gets it.
        """
        if tokens is not None:
            self._add_tokens(tokens)
        for index, key in enumerate(keys or ()):
            if len(key) != BLOCK_KEY_LENGTH:
                raise InvalidInput(
                    f"block key {index} has {len(key)} octets: {BLOCK_KEY_LENGTH} are needed"
                )
        self._keys += map(bytes, keys or ())
        if tokens is None and keys is None and blocks is not None:
            left = len(self._keys) - self._taken
            self._keys += [UNKNOWN] * (blocks - left if self._only_counted else 0)

    def _add_tokens(self, tokens: Sequence[int]) -> None:
        if len(self._keys) > len(self._tokens) // self._block_tokens:
            raise InvalidInput("tokens after ready-made block keys: go on with block keys")
        self._tokens += map(int, tokens)
        if self._scope_key is None:
            self._keys[:] = [UNKNOWN] * (len(self._tokens) // self._block_tokens)
        else:
            self._keys[:] = self._identities.block_keys(
                self._scope_key, self._compat_id, self._tokens, self._block_tokens, self._extras
            )

    @property
    def _only_counted(self) -> bool:
        """True when no key is known, so that blocks can just be added."""
        return not any(self._keys)

    def peek(self, blocks: int | None = None) -> tuple[bytes, ...]:
        """The keys that ``take`` would hand out."""
        left = len(self._keys) - self._taken
        count = left if blocks is None else blocks
        if not 1 <= count <= left:
            raise InvalidInput(
                f"a segment of {count} blocks: {left} complete blocks of {self._block_tokens}"
                " tokens are known and not in a segment yet; give their tokens or block keys"
            )
        return tuple(self._keys[self._taken : self._taken + count])

    def take(self, blocks: int | None = None) -> tuple[bytes, ...]:
        """The keys of the next ``blocks`` blocks, or of all that are complete."""
        keys = self.peek(blocks)
        self._taken += len(keys)
        return keys
