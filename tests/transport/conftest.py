"""Loops, certificates and a server that keeps what it hears."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from transport.certificates import CertificatePaths, write_test_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> CertificatePaths:
    return write_test_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request) -> Callable[[Coroutine], object]:
    """Run a coroutine on plain asyncio and on uvloop; nothing may be left to the collector."""

    def runner(coroutine: Coroutine) -> object:
        with asyncio.Runner(loop_factory=request.param, debug=True) as loop:
            result = loop.run(coroutine)
        gc.collect()
        return result

    return runner
