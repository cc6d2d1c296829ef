"""UDP under QUIC: many datagrams a wake-up, segmented sends, the datagram size of a path.

asyncio's own datagram transport reads one datagram a loop turn; this reads up to 64, and lets its
owner do one pass over the events and one transmit for all of them. Works on asyncio and uvloop.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from transport.config import LARGEST_DATAGRAM, SMALLEST_DATAGRAM

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

Address: TypeAlias = "tuple[str, int] | tuple[str, int, int, int]"

#: Datagrams read a wake-up: amortises the pass over the events, still yields within 3 ms.
BATCH: Final = 64

#: The default of 208 KiB loses datagrams at full speed; the kernel may grant less.
SOCKET_BUFFER: Final = 4 << 20

#: Largest datagram a peer may send (RFC 9000 §18.2 max_udp_payload_size).
RECEIVE_SIZE: Final = 65536

#: IPv6 and UDP headers; 20 octets more than IPv4 needs.
IP_OVERHEAD: Final = 48

# One segmented send: the kernel's limits on segments and on octets.
GSO_SEGMENTS: Final = 60
GSO_OCTETS: Final = 65000

# Linux numbers that Python 3.11 to 3.13 has no names for.
_UDP_SEGMENT: Final = 103
_IP_MTU: Final = 14
_IPV6_MTU: Final = 24
_IP_MTU_DISCOVER: Final = 10
_IPV6_MTU_DISCOVER: Final = 23
_PMTUDISC_DO: Final = 2

_LINUX: Final = sys.platform == "linux"


class Receiver(Protocol):
    """What a channel calls, from the event loop."""

    def datagram_received(self, data: bytes, address: Address) -> None:
        """One datagram; more of the same batch may follow."""
        ...

    def batch_done(self) -> None:
        """All that was waiting has been given: react to it now."""
        ...

    def path_error(self, error: OSError) -> None:
        """The network refused something (ICMP): a hint, not a verdict."""
        ...

    def writable(self) -> None:
        """The socket takes datagrams again after ``blocked``."""
        ...


class UdpChannel:
    """A bound (``peer`` None) or connected socket in the running loop; owns the socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        receiver: Receiver,
        peer: Address | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._receiver = receiver
        self._peer = peer
        self._gso = _LINUX
        self._backlog: deque[tuple[bytes, Address]] = deque()
        self._closed = False
        # A program may end while a closed session still lingers: no "unclosed socket" then.
        self._close_socket = weakref.finalize(self, sock.close)
        loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def address(self) -> Address:
        """Where the socket is bound."""
        name: Address = self._sock.getsockname()
        return name

    @property
    def blocked(self) -> bool:
        """The kernel takes no more for now; ``Receiver.writable`` follows."""
        return bool(self._backlog)

    def send(self, datagrams: Sequence[tuple[bytes, Address]]) -> bool:
        """Send, or keep what the kernel does not take yet. False: too large for the path."""
        if self._closed:
            return True
        if self._backlog:
            self._backlog.extend(datagrams)
            return True
        done, fits = self._send_now(datagrams)
        if done < len(datagrams):
            self._backlog.extend(datagrams[done:])
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
        return fits

    def close(self) -> None:
        """Leave the loop and close the socket; what waits is dropped."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock.fileno())
            if self._backlog:
                self._loop.remove_writer(self._sock.fileno())
                self._backlog.clear()
            self._close_socket()

    def _on_readable(self) -> None:
        receive = self._receiver.datagram_received
        peer = self._peer
        try:
            if peer is None:
                recvfrom = self._sock.recvfrom
                for _ in range(BATCH):
                    data, address = recvfrom(RECEIVE_SIZE)
                    receive(data, address)
            else:
                recv = self._sock.recv
                for _ in range(BATCH):
                    receive(recv(RECEIVE_SIZE), peer)
        except BlockingIOError:
            pass
        except OSError as error:
            self._receiver.path_error(error)
        self._receiver.batch_done()

    def _on_writable(self) -> None:
        waiting = list(self._backlog)
        done, _fits = self._send_now(waiting)
        for _ in range(done):
            self._backlog.popleft()
        if not self._backlog:
            self._loop.remove_writer(self._sock.fileno())
            self._receiver.writable()

    def _send_now(self, datagrams: Sequence[tuple[bytes, Address]]) -> tuple[int, bool]:
        """How many were sent or given up, and whether all of these fitted the path."""
        index, total, fits = 0, len(datagrams), True
        while index < total:
            stop = self._run_of_equals(datagrams, index) if self._gso else index + 1
            try:
                self._send_run(datagrams, index, stop)
            except BlockingIOError:
                return index, fits
            except OSError as error:
                if stop - index > 1 and error.errno in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP):
                    self._gso = False  # this device cannot segment
                    continue
                # Lost like any datagram the network drops: QUIC sends its frames again.
                if error.errno == errno.EMSGSIZE:
                    fits = False
                else:
                    self._receiver.path_error(error)
            index = stop
        return total, fits

    def _run_of_equals(self, datagrams: Sequence[tuple[bytes, Address]], start: int) -> int:
        """End of the run one segmented send can carry: equal sizes, the last may be shorter."""
        data, address = datagrams[start]
        size = octets = len(data)
        stop = start + 1
        limit = min(len(datagrams), start + GSO_SEGMENTS)
        while stop < limit:
            data, other = datagrams[stop]
            length = len(data)
            octets += length
            if length > size or octets > GSO_OCTETS or other != address:
                break
            stop += 1
            if length < size:
                break
        return stop

    def _send_run(self, datagrams: Sequence[tuple[bytes, Address]], start: int, stop: int) -> None:
        data, address = datagrams[start]
        if stop - start == 1:
            if self._peer is None:
                self._sock.sendto(data, address)
            else:
                self._sock.send(data)
            return
        segment = len(data).to_bytes(2, sys.byteorder)
        control = [(socket.IPPROTO_UDP, _UDP_SEGMENT, segment)]
        views = [item[0] for item in datagrams[start:stop]]
        if self._peer is None:
            self._sock.sendmsg(views, control, 0, address)
        else:
            self._sock.sendmsg(views, control)


def family_of(address: Address) -> int:
    """AF_INET or AF_INET6."""
    return socket.AF_INET6 if len(address) == 4 else socket.AF_INET


def udp_socket(family: int) -> socket.socket:
    """A non-blocking socket with large buffers that never fragments. OSError: no such family."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    if _LINUX:
        level, option = _mtu_option(family, _IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER)
        try:
            sock.setsockopt(level, option, _PMTUDISC_DO)
        except OSError as error:
            logger.debug("this system cannot forbid fragmentation: %s", error)
    return sock


def path_datagram_size(address: Address, ceiling: int = LARGEST_DATAGRAM) -> int:
    """Largest UDP payload for QUIC towards ``address``, as the kernel knows its route.

    16384 on loopback, 1452 on Ethernet, 1200 when unknown.
    """
    if not _LINUX:
        return SMALLEST_DATAGRAM
    family = family_of(address)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            mtu = probe.getsockopt(*_mtu_option(family, _IP_MTU, _IPV6_MTU))
    except OSError:
        return SMALLEST_DATAGRAM
    return max(SMALLEST_DATAGRAM, min(ceiling, LARGEST_DATAGRAM, mtu - IP_OVERHEAD))


def _mtu_option(family: int, ipv4: int, ipv6: int) -> tuple[int, int]:
    if family == socket.AF_INET6:
        return socket.IPPROTO_IPV6, ipv6
    return socket.IPPROTO_IP, ipv4
