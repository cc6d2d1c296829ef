"""What is under deploy/ starts and ends the relay as it says; run here without a container."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transport.certificates import write_test_certificates

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
ENTRY = DEPLOY / "entrypoint.sh"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with a kvcs-relay of this interpreter, and a configuration."""
    command = tmp_path / "bin" / "kvcs-relay"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvcs.cli.relay "$@"\n')
    command.chmod(0o755)
    tls = write_test_certificates(tmp_path / "tls")
    (tmp_path / "relay.toml").write_text(
        f'listen = "127.0.0.1:0"\ncert = "{tls.certificate}"\nkey = "{tls.private_key}"\n'
        "[auth]\nopen = true\n"
    )
    return {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "KVCS_RELAY_CONFIG": str(tmp_path / "relay.toml"),
    }


def command_of(pid: int) -> list[bytes]:
    """The words that a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@pytest.mark.e2e
async def test_the_entry_point_becomes_the_relay(environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", str(ENTRY), "--json"),
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
    )
    event = json.loads(await process.stdout.readline())
    assert event["event"] == "listening"
    words = command_of(process.pid)
    assert b"kvcs.cli.relay" in words  # no shell stands between it and the signals
    process.send_signal(signal.SIGTERM)
    rest, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(rest)["event"] == "stats"


def test_the_entry_point_without_a_configuration(
    environment: dict[str, str], tmp_path: Path
) -> None:
    environment["KVCS_RELAY_CONFIG"] = str(tmp_path / "none")
    done = subprocess.run(
        ["/bin/sh", ENTRY], env=environment, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no configuration at {tmp_path / 'none'}: mount one there" in done.stderr


def test_the_container_starts_the_entry_point() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    (copied,) = re.findall(r"^COPY (deploy/\S+) (\S+)$", text, re.M)
    assert (ROOT / copied[0]).is_file()
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.M)[0]) == ["/bin/sh", copied[1]]
    assert re.findall(r"^USER (\d+):\d+$", text, re.M) == ["65532"]
    assert "STOPSIGNAL SIGTERM" in text


def test_the_unit() -> None:
    unit = configparser.RawConfigParser(strict=False, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "kvcs-relay.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert int(service["TimeoutStopSec"]) > 5  # the drain time when nothing is said
    for start in ("ExecStart", "ExecStartPre"):
        command, *words = service[start].split()
        assert command.endswith("/kvcs-relay")
        from kvcs.cli.relay import main

        assert main.make_context("kvcs-relay", words).params["config"]
