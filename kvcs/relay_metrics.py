"""A relay's numbers: a snapshot, Prometheus text, and health over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import TimeoutError as LoopTimeout
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from kvcs.errors import InvalidInput

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.simple_server import WSGIServer

    from moqt.relay.service import RelayService

#: A loop that does not answer for so many seconds is not healthy.
LOOP_TIMEOUT: Final = 2.0
_PREFIX: Final = "kvcs_relay_"
_GAUGES: Final = {
    "sessions_open": "Sessions that are open.",
    "upstreams_open": "Sessions to upstream relays that are open.",
    "tracks": "Tracks known, cached or in use.",
    "namespaces": "Namespaces announced.",
    "subscriptions": "Subscriptions being served.",
    "cache_octets": "Octets of objects in memory, and what keeping them costs.",
    "cache_budget_octets": "What the cache may take.",
    "cache_objects": "Objects cached, in memory and on disk.",
    "spill_octets": "Octets of objects on disk.",
    "identities": "Identities known to the limits.",
    "backlog_octets": "Octets that wait for subscribers.",
}
_COUNTERS: Final = {
    "sessions": "Sessions so far.",
    "octets_in": "Octets of objects received from publishers and upstream relays.",
    "objects_in": "Objects received.",
    "octets_out": "Octets of objects sent.",
    "objects_out": "Objects sent.",
    "octets_from_cache": "Octets that fetches and fills found in the cache.",
    "objects_from_cache": "Objects that fetches and fills found in the cache.",
    "duplicates": "Objects received again.",
    "objects_refused": "Objects received that were known not to exist.",
    "fetches_upstream": "Fetches sent upstream.",
    "fetches_failed": "Fetches upstream that failed.",
    "fetches_stopped": "Fetches upstream stopped because nobody kept up.",
    "loops": "Circles found: what was asked for upstream came back here.",
    "too_far_behind": "Subscriptions ended because their subscriber did not keep up.",
    "tracks_malformed": "Tracks ended because they were malformed.",
    "requests_throttled": "Requests refused for their rate.",
    "requests_limited": "Requests refused for their number.",
    "grants_ended": "Requests ended because what had been granted ended.",
    "tokens_verified": "Tokens whose signature was verified.",
    "tokens_rejected": "Tokens that were not genuine, or not understood.",
    "tokens_throttled": "Tokens not looked at: their session showed too many new ones.",
    "requests_granted": "Requests that were allowed, asked again included.",
    "requests_denied": "Requests that were not allowed.",
    "cache_evictions": "Groups evicted from the cache.",
    "spill_failures": "Writes and reads that the disk refused.",
}


#: What a Gatekeeper calls them.
_JUDGED: Final = {
    "tokens_verified": "verified",
    "tokens_rejected": "rejected",
    "tokens_throttled": "throttled",
    "requests_granted": "granted",
    "requests_denied": "denied",
}


def snapshot(service: RelayService, judged: Counter[str] | None = None) -> dict[str, int]:
    """Every number by name; call it on the relay's event loop.

    ``judged`` are the counts of its Gatekeeper; without one they stay 0.
    """
    relay, counters = service.relay, service.monitor.counters
    counts, cache = relay.context.counts, relay.cache
    spill = cache.spill
    subscriptions = [one for track in relay.tracks.values() for one in track.stock.subscriptions]
    found = {name: int(counts[name]) for name in _COUNTERS}
    if judged is not None:
        found |= {name: judged[theirs] for name, theirs in _JUDGED.items()}
    found |= {
        "sessions": service.monitor.sessions,
        "octets_out": counters.sent.octets,
        "objects_out": counters.sent.objects,
        "cache_evictions": cache.evictions,
        "spill_failures": 0 if spill is None else spill.failures,
        "sessions_open": len(service.connections),
        "upstreams_open": len(relay.upstreams),
        "tracks": len(relay.tracks),
        "namespaces": len(relay.directory),
        "subscriptions": len(subscriptions),
        "cache_octets": cache.octets,
        "cache_budget_octets": relay.config.cache,
        "cache_objects": cache.objects,
        "spill_octets": 0 if spill is None else spill.octets,
        "identities": len(service.gate),
        "backlog_octets": sum(one.backlog for one in subscriptions),
    }
    return found


class MetricsServer:
    """``/metrics`` for Prometheus, ``/health`` for whoever restarts it, ``/status`` as JSON.

    It answers in a thread of its own and asks the event loop for the numbers: a loop that hangs is
    told as 503.
    """

    def __init__(
        self, service: RelayService, host: str, port: int, judged: Counter[str] | None = None
    ) -> None:
        """Raises OSError when it cannot listen, InvalidInput without prometheus_client."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError:
            raise InvalidInput(
                "metrics need the package prometheus_client: pip install 'kvcs[metrics]', or leave"
                " --metrics out"
            ) from None
        self._service = service
        self._judged = judged
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._numbers))
        self._text: Callable[[], bytes] = lambda: generate_latest(registry)
        self._server: WSGIServer = make_server(host, port, self._answer, handler_class=_Quiet)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _numbers(self) -> dict[str, int]:
        async def ask() -> dict[str, int]:
            return snapshot(self._service, self._judged)

        question = ask()
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:  # the loop is closed
            question.close()
            raise
        try:
            return asked.result(LOOP_TIMEOUT)
        finally:
            asked.cancel()  # or questions would queue up while the loop hangs

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        try:
            status, kind, body = self._page(path)
        except (LoopTimeout, RuntimeError):  # it hangs, or has been closed
            status, kind, body = "503 Service Unavailable", "text/plain", b"not answering\n"
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    def _page(self, path: str) -> tuple[str, str, bytes]:
        if path == "/metrics":
            return "200 OK", "text/plain; version=0.0.4; charset=utf-8", self._text()
        if path in ("/health", "/ready"):
            self._numbers()
            if path == "/ready" and self._service.relay.leaving:
                return "503 Service Unavailable", "text/plain", b"leaving\n"
            return "200 OK", "text/plain", b"ok\n"
        if path == "/status":
            return "200 OK", "application/json", json.dumps(self._numbers()).encode() + b"\n"
        return "404 Not Found", "text/plain", b"try /metrics, /health, /ready or /status\n"


class _Quiet(WSGIRequestHandler):
    """Requests are not logged: a scraper comes every few seconds."""

    #: A client that sends nothing holds the one thread no longer.
    timeout = 5.0  # type: ignore[mutable-override]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class _Collector:
    """Asked by the registry; the only place that knows the library's types."""

    def __init__(self, numbers: Callable[[], dict[str, int]]) -> None:
        self._numbers = numbers

    def collect(self) -> Iterator[Any]:
        """All metrics of one moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._numbers()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value=found[name])
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=found[name])
