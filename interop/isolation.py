"""A network of our own: some peers listen on all addresses whatever they are told."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from typing import Final

#: Set in the process that runs inside.
_INSIDE: Final = "KVCS_INTEROP_ISOLATED"
#: From <linux/sockios.h> and <linux/if.h>.
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1


def enter(module: str, arguments: list[str]) -> int | None:
    """Run ``module`` again in a network namespace that has loopback alone; its exit code.

    None inside that namespace, once loopback is up: go on. RuntimeError where none can be made.
    """
    if _INSIDE in os.environ:
        _raise_loopback()
        return None
    unshare = shutil.which("unshare")
    options = ["--net"] if os.geteuid() == 0 else ["--map-root-user", "--net"]
    if unshare is None or subprocess.run([unshare, *options, "true"], check=False).returncode:  # noqa: S603 - the path comes from which()
        raise RuntimeError("no network namespace can be made here: install util-linux, or allow it")
    command = [unshare, *options, sys.executable, "-m", module, *arguments]
    return subprocess.run(command, check=False, env={**os.environ, _INSIDE: "1"}).returncode  # noqa: S603 - ourselves


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
