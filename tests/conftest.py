"""What holds for every test: nothing skipped in silence, nothing failing in the background."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

# How fast a machine is decides no test: neither a deadline nor the check for slow generation.
settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=100, derandomize=True, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


class BackgroundErrors(logging.Handler):
    """Collects what asyncio logs as errors: exceptions handed to nobody."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message; the test that caused it fails at its teardown."""
        self.seen.append(self.format(record))


BACKGROUND = BackgroundErrors()
SKIPPED: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    """Listen to asyncio's own logger, whichever loop a test starts."""
    logging.getLogger("asyncio").addHandler(BACKGROUND)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Undo ``pytest_configure``."""
    logging.getLogger("asyncio").removeHandler(BACKGROUND)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """After its fixtures are gone, fail a test that left an error in an event loop."""
    yield
    if pytest_asyncio.is_async_test(item):
        gc.collect()  # a task is reported only when it dies, and a cycle may keep it
    left, BACKGROUND.seen = BACKGROUND.seen, []
    if left:
        pytest.fail("left behind in the event loop:\n" + "\n".join(left), pytrace=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count skipped tests (an expected failure is not one)."""
    if report.skipped and not hasattr(report, "wasxfail"):
        SKIPPED.add(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Count modules skipped while being imported."""
    if report.skipped:
        SKIPPED.add(report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Modules that a worker skipped while importing them: only it has seen that."""
    SKIPPED.update(getattr(node, "workeroutput", {}).get("skipped", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that skipped anything has not passed."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["skipped"] = sorted(SKIPPED)
    if SKIPPED and not os.environ.get("KVCS_ALLOW_SKIPS") and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why, and how to allow it."""
    if SKIPPED and not os.environ.get("KVCS_ALLOW_SKIPS"):
        terminalreporter.section("skipped tests fail the run (KVCS_ALLOW_SKIPS=1 allows them)")
        for nodeid in sorted(SKIPPED):
            terminalreporter.line(nodeid)
