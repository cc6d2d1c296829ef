"""Every command of docs/relay.md runs as it stands there, in the order in which it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "relay.md").read_text("utf-8")
CACHE = ROOT / "examples" / "data" / "smollm2-135m-kv-256.safetensors"
#: What a command that serves says once it does.
SERVING = re.compile(r"listening on|serving for")


def blocks() -> Iterator[tuple[str, str]]:
    """Kind and content of each fenced block."""
    for kind, content in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S):
        if kind != "text":
            yield kind, content.replace("\\\n", " ")


def ports() -> dict[str, str]:
    """A free port for each that the page names."""
    named = sorted({port for _, content in blocks() for port in re.findall(r":(\d{4})\b", content)})
    found: dict[str, str] = {}
    with ExitStack() as stack:
        for port in named:
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found[port] = str(one.getsockname()[1])
    return found


class Shell:
    """Runs lines in ``folder``; what serves goes on in the background until the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.ran: list[str] = []
        #: The scope id of the key that is made here, for the one in the page.
        self.scope_id = ""
        self._stack = stack
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def run(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if not words:
            return
        self.ran.append(line)
        name = words[0].removeprefix("kvcs-")
        if words[0] != name:
            words[:1] = [sys.executable, "-m", f"kvcs.cli.{name}"]
        if name in ("relay", "pub") and "--check" not in words:
            self._serve(line, words)
            return
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if "scope-id" in words:
            self.scope_id = done.stdout.strip()

    def _serve(self, line: str, words: list[str]) -> None:
        process = self._stack.enter_context(
            subprocess.Popen(
                words,
                cwd=self.folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        self._stack.callback(process.terminate)
        said: list[str] = []
        assert process.stdout is not None
        for one in process.stdout:
            said.append(one)
            if SERVING.search(one):
                return
        pytest.fail(f"{line}\n{''.join(said)}")


@pytest.mark.e2e
@pytest.mark.timeout(240)  # two dozen processes, one after another
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page looks at numbers with curl")
def test_every_command_of_the_page(tmp_path: Path) -> None:
    shutil.copy(CACHE, tmp_path / "cache.safetensors")
    free = ports()
    with ExitStack() as stack:
        shell = Shell(tmp_path, stack)
        for kind, content in blocks():
            mapped = re.sub(r":(\d{4})\b", lambda found: f":{free[found[1]]}", content)
            if kind == "toml":
                name = mapped.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(re.sub(r"\b[0-9a-f]{32}\b", shell.scope_id, mapped))
                continue
            for line in mapped.splitlines():
                shell.run(line)
    copies = [path.name for path in tmp_path.glob("*.safetensors")]
    assert len(copies) == 1 + sum("kvcs-sub" in line for line in shell.ran)
    assert {line.split()[0] for line in shell.ran} >= {
        *("kvcs-keygen", "kvcs-relay", "kvcs-pub", "kvcs-sub", "kvcs-token", "curl"),
    }


def test_links_lead_somewhere() -> None:
    """Files, and headings in them as they are called in addresses."""
    broken = []
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        place, _, heading = link.partition("#")
        path = ROOT / "docs" / place if place else ROOT / "docs" / "relay.md"
        if not path.exists():
            broken.append(link)
        elif heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M)
            known = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles}
            if heading not in known:
                broken.append(link)
    assert broken == []
