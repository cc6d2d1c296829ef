"""A cache, a scope key and commands as processes, for the tests of the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from kvcs.keys import create_scope_key
from tests.kvcs.cli.caches import write_cache
from tests.kvcs.cli.stage import Served, Stage, serve
from transport.certificates import CertificatePaths


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """4 layers, 3 blocks of 8 tokens."""
    return write_cache(tmp_path / "cache.safetensors")


@pytest.fixture
def scope_key(tmp_path: Path) -> Path:
    create_scope_key(tmp_path / "scope.key")
    return tmp_path / "scope.key"


@pytest_asyncio.fixture
async def stage(
    tmp_path: Path, cache: Path, scope_key: Path, certificates: CertificatePaths
) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(tmp_path, cache, scope_key, certificates, stack)


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory, certificates: CertificatePaths
) -> Iterator[Served]:
    """One publisher for all tests that only take what is complete."""
    folder = tmp_path_factory.mktemp("served")
    create_scope_key(folder / "scope.key")
    with serve(
        write_cache(folder / "cache.safetensors"), folder / "scope.key", certificates
    ) as made:
        yield made
