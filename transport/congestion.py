"""New Reno with a ceiling: a path that never loses must not grow the window without end.

On loopback the stock window grows for ever, and with it the work per ACK: 24 -> 33 CPU seconds per
GiB within 64 MiB. The ceiling is far above what a real path of that round-trip time needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.reno import RenoCongestionControl

if TYPE_CHECKING:
    from aioquic.quic.packet_builder import QuicSentPacket

#: The name to put into a QuicConfiguration.
NAME: Final = "reno-ceiling"

#: Octets in flight without any delay; large datagrams need at least 64 of them.
BASE: Final = 512 << 10
BASE_LARGE: Final = 1 << 20

#: Datagrams above this size are large: no Ethernet path.
LARGE: Final = 1500

#: Octets a second the ceiling never holds back: more than this stack can do.
RATE: Final = 128 << 20


class CeilingReno(RenoCongestionControl):
    """``congestion_window <= base + min_rtt * RATE``."""

    def __init__(self, *, max_datagram_size: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self._base = BASE_LARGE if max_datagram_size > LARGE else BASE
        self._min_rtt = float("inf")
        self._ceiling = self._base

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """Grow as New Reno does, up to the ceiling."""
        super().on_packet_acked(now=now, packet=packet)
        if self.congestion_window > self._ceiling:
            self.congestion_window = self._ceiling

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """A shorter round trip lowers the ceiling."""
        super().on_rtt_measurement(now=now, rtt=rtt)
        if rtt < self._min_rtt:
            self._min_rtt = rtt
            self._ceiling = self._base + int(rtt * RATE)


register_congestion_control(NAME, CeilingReno)
