"""The UDP channel: batches, segmented sends, refusals."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from tests.transport.sinks import until
from transport import udp
from transport.udp import UdpChannel, path_datagram_size, udp_socket


class Ear:
    """A receiver that keeps everything."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.batches: list[int] = []
        self.errors: list[OSError] = []
        self.drained = 0

    def datagram_received(self, data, address) -> None:
        self.got.append(data)

    def batch_done(self) -> None:
        self.batches.append(len(self.got))

    def path_error(self, error) -> None:
        self.errors.append(error)

    def writable(self) -> None:
        self.drained += 1


def channel(ear: Ear, *, peer=None) -> UdpChannel:
    sock = udp_socket(socket.AF_INET)
    if peer is None:
        sock.bind(("127.0.0.1", 0))
    else:
        sock.connect(peer)
    return UdpChannel(asyncio.get_running_loop(), sock, ear, peer)


class Scripted:
    """A socket whose sends fail as told, then work."""

    def __init__(self, real: socket.socket, failures: list[OSError]) -> None:
        self.real = real
        self.failures = failures
        self.calls: list[str] = []

    def __getattr__(self, name):
        attribute = getattr(self.real, name)
        if name not in ("send", "sendto", "sendmsg"):
            return attribute

        def call(*arguments):
            self.calls.append(name)
            if self.failures:
                raise self.failures.pop(0)
            return attribute(*arguments)

        return call


SIZES = [1200] * 5 + [700, 1200, 1200, 1300, 100, 100]


@pytest.mark.parametrize("gso", [True, False])
@pytest.mark.parametrize("connected", [True, False])
def test_datagrams_arrive_whole_in_order_and_in_batches(run, gso, connected):
    async def scenario() -> None:
        ear, mouth = Ear(), Ear()
        receiver = channel(ear)
        sender = channel(mouth, peer=receiver.address if connected else None)
        sender._gso = gso
        sent = [bytes([n]) * size for n, size in enumerate(SIZES * 20)]
        for start in range(0, len(sent), 70):
            assert sender.send([(data, receiver.address) for data in sent[start : start + 70]])
        await until(lambda: len(ear.got) == len(sent))
        assert ear.got == sent
        assert max(b - a for a, b in zip([0, *ear.batches], ear.batches, strict=False)) > 1
        assert max(b - a for a, b in zip([0, *ear.batches], ear.batches, strict=False)) <= udp.BATCH
        sender.close()
        receiver.close()
        sender.close()
        assert sender.send([(b"late", ("127.0.0.1", 1))])

    run(scenario())


def test_a_full_socket_keeps_the_rest_until_it_is_writable(run):
    async def scenario() -> None:
        ear, mouth = Ear(), Ear()
        receiver, sender = channel(ear), channel(mouth)
        sender._gso = False
        sender._sock = Scripted(sender._sock, [BlockingIOError()])
        assert sender.send([(b"1", receiver.address), (b"2", receiver.address)])
        assert sender.blocked
        assert sender.send([(b"3", receiver.address)])
        await until(lambda: mouth.drained)
        assert not sender.blocked
        await until(lambda: len(ear.got) == 3)
        assert ear.got == [b"1", b"2", b"3"]
        sender._sock.failures.append(BlockingIOError())
        sender.send([(b"dropped with the channel", receiver.address)])
        sender.close()
        receiver.close()

    run(scenario())


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_a_device_without_segmentation(run, code):
    async def scenario() -> None:
        ear, mouth = Ear(), Ear()
        receiver, sender = channel(ear), channel(mouth)
        sender._sock = Scripted(sender._sock, [OSError(code, "cannot")])
        sender._gso = True
        sender.send([(b"a" * 9, receiver.address), (b"b" * 9, receiver.address)])
        await until(lambda: len(ear.got) == 2)
        assert sender._sock.calls == ["sendmsg", "sendto", "sendto"]
        assert not mouth.errors
        sender.close()
        receiver.close()

    run(scenario())


def test_too_large_and_unreachable_are_told_apart(run):
    async def scenario() -> None:
        ear, mouth = Ear(), Ear()
        receiver, sender = channel(ear), channel(mouth)
        sender._gso = False
        failures = [OSError(errno.EMSGSIZE, "too long"), OSError(errno.ENETUNREACH, "no route")]
        sender._sock = Scripted(sender._sock, failures)
        assert not sender.send([(b"1", receiver.address), (b"2", receiver.address)])
        assert [error.errno for error in mouth.errors] == [errno.ENETUNREACH]
        assert sender.send([(b"3", receiver.address)])
        await until(lambda: ear.got == [b"3"])
        sender.close()
        receiver.close()

    run(scenario())


def test_icmp_errors_do_not_stop_the_loop(run):
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
            gone.bind(("127.0.0.1", 0))
            address = gone.getsockname()
        mouth = Ear()
        sender = channel(mouth, peer=address)
        sender.send([(b"x", address)])
        await until(lambda: mouth.errors)
        assert mouth.errors[0].errno == errno.ECONNREFUSED
        sender.close()

    run(scenario())


def test_the_size_of_a_path():
    assert path_datagram_size(("127.0.0.1", 9)) == 16384
    assert path_datagram_size(("127.0.0.1", 9), 1452) == 1452
    assert path_datagram_size(("127.0.0.1", 9), 1000) == 1200
    assert path_datagram_size(("::1", 9, 0, 0)) == 16384
    assert path_datagram_size(("not an address", 9)) == 1200
