"""Padding: octets that mean nothing, sent when nothing else waits (draft-22 §11.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codec import varint
from moqt.errors import Misuse, StreamCode
from transport.api import Chunk, SendOrder, Tier

if TYPE_CHECKING:
    from moqt.errors import SessionClosed
    from moqt.session.context import Context
    from transport.api import BytesLike, ChunkSource

#: One page of zeros serves all padding, however much of it is asked for.
_ZEROS: Final = memoryview(bytes(16 << 10))


class PaddingStream:
    """A padding stream of ours; ``cancel`` ends it early, as the peer may."""

    def __init__(self, session: Context, octets: int) -> None:
        _check(session, octets)
        self._session = session
        self._transport = session.transport
        self._stream = self._transport.open(SendOrder(Tier.PADDING), unidirectional=True)
        session.adopt(self._stream, self)
        header = varint.encode(session.profile.padding_stream)
        self._transport.feed(self._stream, _chunks(header, octets))

    def cancel(self, code: int = StreamCode.CANCELLED) -> None:
        """Send no more of it."""
        if self._session.owners.get(self._stream) is self:
            self._session.forget(self._stream)
            self._transport.reset(self._stream, code)

    # -- stream owner ----------------------------------------------------------------------------

    def data(self, view: BytesLike, fin: bool) -> None:
        """Never: the stream is ours."""

    def reset(self, code: int) -> None:
        """Never: the stream is ours."""

    def stop(self, code: int) -> None:
        """The peer wants no more of it."""
        self.cancel(code)

    def sent(self) -> None:
        """All of it has left."""
        self._session.forget(self._stream)

    def closed(self, error: SessionClosed) -> None:
        """Nobody waits for it."""


def _check(session: Context, octets: int) -> None:
    if octets < 0:
        raise Misuse(f"{octets} octets of padding: give 0 or more")
    if not session.established:
        raise Misuse("padding goes out on an open session: wait until both SETUPs are in")


def _chunks(header: bytes, octets: int) -> ChunkSource:
    yield Chunk((header,))
    while octets > 0:
        part = _ZEROS[:octets]
        octets -= len(part)
        yield Chunk((part,))


def send_padding_datagram(session: Context, octets: int) -> bool:
    """A datagram with that many zeros; False when it does not fit or the peer takes none."""
    _check(session, octets)
    if octets > session.transport.peer.datagram_size:
        return False
    header = varint.encode(session.profile.padding_datagram)
    return session.transport.send_datagram(header + bytes(octets))
