"""Fixtures of the tests that use real endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kvcs.endpoints import World
from transport.certificates import CertificatePaths, write_test_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> CertificatePaths:
    return write_test_certificates(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture
async def world(certificates) -> AsyncIterator[World]:
    async with World(certificates) as made:
        yield made
