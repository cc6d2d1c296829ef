"""New Reno with a ceiling."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aioquic.quic.congestion.base import create_congestion_control

from transport.congestion import BASE, BASE_LARGE, NAME, RATE, CeilingReno


def acknowledge(control: CeilingReno, count: int, size: int) -> None:
    for number in range(count):
        packet = SimpleNamespace(sent_bytes=size, sent_time=1.0 + number)
        control.on_packet_sent(packet=packet)
        control.on_packet_acked(now=2.0 + number, packet=packet)


@pytest.mark.parametrize(("size", "base"), [(1452, BASE), (16384, BASE_LARGE)])
def test_the_window_stops_at_its_ceiling(size, base):
    control = create_congestion_control(NAME, max_datagram_size=size)
    assert isinstance(control, CeilingReno)
    acknowledge(control, 10, size)
    assert control.congestion_window == 20 * size, "below the ceiling it is New Reno"
    acknowledge(control, 1000, size)
    assert control.congestion_window == base
    control.on_rtt_measurement(now=1.0, rtt=0.010)
    acknowledge(control, 3000, size)
    assert control.congestion_window == base + int(0.010 * RATE)
    control.on_rtt_measurement(now=1.0, rtt=0.001)
    acknowledge(control, 1, size)
    assert control.congestion_window == base + int(0.001 * RATE)
    control.on_rtt_measurement(now=1.0, rtt=0.5)
    acknowledge(control, 1000, size)
    assert control.congestion_window == base + int(0.001 * RATE)


def test_loss_halves_the_window():
    control = CeilingReno(max_datagram_size=1200)
    acknowledge(control, 100, 1200)
    before = control.congestion_window
    packet = SimpleNamespace(sent_bytes=1200, sent_time=500.0)
    control.on_packet_sent(packet=packet)
    control.on_packets_lost(now=501.0, packets=[packet])
    assert control.congestion_window == before // 2
    assert control.bytes_in_flight == 0
