"""kvcs-pub and kvcs-sub as processes on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcs.cli.children import Child, Event
from kvcs.tensorfile import TensorFile
from tests.kvcs.cli.caches import BLOCK_TOKENS
from transport.certificates import CertificatePaths


def unheard(child: Child, event: Event) -> None:
    """Events are read from the child."""


@dataclass
class Stage:
    """Starts processes and ends them; ``folder`` is where outputs go."""

    folder: Path
    cache: Path
    scope_key: Path
    certificates: CertificatePaths
    stack: AsyncExitStack

    async def start(self, name: str, module: str, *words: object) -> Child:
        child = await Child.start(name, module, *words, on_event=unheard)
        self.stack.push_async_callback(child.stop)
        return child

    @property
    def scope(self) -> tuple[object, ...]:
        return ("--scope-key", self.scope_key, "--block-tokens", BLOCK_TOKENS)

    @property
    def listening(self) -> tuple[object, ...]:
        tls = self.certificates
        return ("--listen", "127.0.0.1:0", "--cert", tls.certificate, "--key", tls.private_key)

    @property
    def trusting(self) -> tuple[object, ...]:
        return ("--ca", self.certificates.ca)

    async def publisher(self, *words: object) -> tuple[Child, str, str]:
        """One that listens; its URL, and the URI of its publication."""
        child = await self.start(
            "publisher", "kvcs.cli.pub", self.cache, *self.scope, *self.listening, *words
        )
        port = (await child.until("listening"))["port"]
        opened = await child.until("opened")
        return child, f"moqt://127.0.0.1:{port}/", opened["publication"]

    async def consumer(self, name: str, *words: object) -> Child:
        """One that dials; writes ``name``.safetensors."""
        return await self.start(name, "kvcs.cli.sub", *words, *self.trusting, "-o", self.out(name))

    def out(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def leftovers(self, name: str) -> list[Path]:
        """Whatever a consumer of that name has in the folder."""
        return [path for path in self.folder.iterdir() if f"{name}.safetensors" in path.name]

    def assert_whole(self, name: str) -> None:
        """Its file has every tensor of the cache, bit for bit, token ids apart."""
        assert_equal(self.cache, self.out(name))


def assert_equal(cache: Path, out: Path) -> None:
    """Every tensor of the cache is in ``out``, bit for bit, and no other; token ids apart."""
    with TensorFile(cache) as source, TensorFile(out) as found:
        assert set(found.tensors) | {"tokens"} == set(source.tensors)
        for tensor in set(found.tensors) - {"tokens"}:
            assert found.view(tensor) == source.view(tensor)
            assert found.tensors[tensor] == source.tensors[tensor]


@dataclass
class Served:
    """A finished publication that a process serves."""

    cache: Path
    scope_key: Path
    certificates: CertificatePaths
    url: str
    uri: str

    @property
    def prompt(self) -> tuple[object, ...]:
        """How a consumer asks for it without its name."""
        words = ("--scope-key", self.scope_key, "--like", self.cache)
        return (*words, "--block-tokens", BLOCK_TOKENS, "--ca", self.certificates.ca)


@contextmanager
def serve(cache: Path, scope_key: Path, certificates: CertificatePaths) -> Iterator[Served]:
    """kvcs-pub until the end of the block."""
    command = [
        *(sys.executable, "-m", "kvcs.cli.pub", cache, "--scope-key", scope_key, "--json"),
        *("--block-tokens", str(BLOCK_TOKENS), "--listen", "127.0.0.1:0"),
        *("--cert", certificates.certificate, "--key", certificates.private_key),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            events: dict[str, Event] = {}
            while "finished" not in events and process.stdout is not None:
                event = json.loads(process.stdout.readline())
                events[event["event"]] = event
            url = f"moqt://127.0.0.1:{events['listening']['port']}/"
            yield Served(cache, scope_key, certificates, url, events["opened"]["publication"])
        finally:
            process.terminate()
