"""A relay's numbers: a snapshot, Prometheus text, and health over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import TimeoutError as LoopTimeout
from contextlib import suppress
from socket import SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from kvcs.errors import InvalidInput

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator

    from moqt.relay.service import RelayService

    #: As socketserver has it; over TCP the socket of a client.
    Asking: TypeAlias = socket | tuple[bytes, socket]

#: A loop that does not answer for so many seconds is not healthy.
LOOP_TIMEOUT: Final = 2.0
#: Seconds for a client of ours to ask and to take the answer, however slowly it does so.
CLIENT_TIMEOUT: Final = 5.0
#: Clients that are answered at once: a scraper or two, a probe, somebody who looks.
MAX_CLIENTS: Final = 16
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

    It answers in threads of its own and asks the event loop for the numbers: a loop that hangs is
    told as 503. A client that is slow holds up neither others nor the end.
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
        self._server: WSGIServer = make_server(
            host, port, self._answer, server_class=_Server, handler_class=_Quiet
        )
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


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client, of which there are few, and not for long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CLIENTS

    def server_activate(self) -> None:
        """Listen."""
        self._places = threading.BoundedSemaphore(MAX_CLIENTS)
        super().server_activate()

    def process_request(self, request: Asking, client_address: object) -> None:
        """One more client; the one too many is hung up on."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Asking, client_address: object) -> None:
        """The client's own thread."""
        late = threading.Timer(CLIENT_TIMEOUT, _hang_up, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._places.release()

    def handle_error(self, request: Asking, client_address: object) -> None:
        """A client that has gone, or was too slow, is nothing to tell."""


def _hang_up(client: Asking) -> None:
    with suppress(OSError):
        if isinstance(client, socket):
            client.shutdown(SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    """Requests are not logged: a scraper comes every few seconds."""

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
