"""tuner's own Prometheus metrics, while a run or a watch goes on."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app

from tuner.errors import UsageError
from tuner.live.watch.choice import CapCheck
from tuner.live.watch.verdict import MonitorReading
from tuner.replay.measure import Measurement

MOST_CLIENTS = 8
"""At a time; another one's connection is closed."""

CLIENT_S = 10.0
"""From connecting to having read the answer."""

CLOSED_WITHIN_S = 0.1
"""A run that is at its end waits no longer for its endpoint."""


_Request = socket.socket | tuple[bytes, socket.socket]


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing: nobody is told of each request."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Serves some clients at a time, each in a thread of its own."""

    daemon_threads = True

    def server_activate(self) -> None:
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        super().server_activate()

    def process_request(self, request: _Request, client_address: object) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: _Request, client_address: object) -> None:
        late = threading.Timer(CLIENT_S, _hang_up, [request])
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._places.release()

    def handle_error(self, *_: object) -> None:
        """Do nothing: a client that goes away, or says nothing for too long, is no error of
        ours."""


def _hang_up(client: socket.socket) -> None:
    """Close a client's connection, so that nobody waits for it any longer: one may send a byte now
    and then."""
    with contextlib.suppress(OSError):  # it has been served
        client.shutdown(socket.SHUT_RDWR)


class _Endpoint:
    """Serves ``/metrics`` on this machine until closed. Raises UsageError when the port is taken.

    A registry of its own: vLLM fills, and empties, the global one.
    """

    def __init__(self, port: int) -> None:
        self.registry = CollectorRegistry()
        try:
            app = make_wsgi_app(self.registry)
            self._server = make_server("127.0.0.1", port, app, _Server, _Handler)
        except OSError as error:
            raise UsageError(
                f"--metrics-port {port}: {error.strerror}", hint="Choose a free port."
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": CLOSED_WITHIN_S},
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Exporter(_Endpoint):
    """The metrics of a sweep."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.replays = Counter(
            "tuner_replays", "Replays finished.", ["max_num_seqs"], registry=self.registry
        )
        self.in_flight = Gauge(
            "tuner_in_flight", "Requests sent and not finished.", registry=self.registry
        )
        self.numbers = {
            name: Gauge(f"tuner_{name}", text, ["max_num_seqs"], registry=self.registry)
            for name, text in (
                ("slo_attainment", "Good requests / scored requests, 0 to 1."),
                ("goodput_rps", "Requests within the SLO per second."),
                ("output_tokens_per_s", "Output tokens per second."),
                ("tpot_p95_seconds", "95th percentile of time per output token."),
                ("e2el_p99_seconds", "99th percentile of end-to-end latency."),
            )
        }

    def measured(self, one: Measurement) -> None:
        cap = str(one.max_num_seqs)
        self.replays.labels(cap).inc()
        values = {
            "slo_attainment": one.attainment,
            "goodput_rps": one.goodput_rps,
            "output_tokens_per_s": one.output_tokens_per_s,
            "tpot_p95_seconds": one.tpot_s.p95 if one.tpot_s else None,
            "e2el_p99_seconds": one.e2el_s.p99 if one.e2el_s else None,
        }
        for name, value in values.items():
            if value is not None:
                self.numbers[name].labels(cap).set(value)


class WatchExporter(_Endpoint):
    """The metrics of a watch. A measure that is not known is absent."""

    def __init__(self, port: int, verdicts: Sequence[str]) -> None:
        super().__init__(port)
        self._verdicts = verdicts
        gauge = partial(Gauge, registry=self.registry)
        self._verdict = gauge(
            "tuner_watch_verdict",
            "1 for what the watch says, 0 for what it does not.",
            ["verdict"],
        )
        self._windows = gauge("tuner_watch_windows", "Windows so far, or pairs of them.")
        self._measure = gauge(
            "tuner_watch_measure",
            "Mean since the last change: of slowdown, rate and lengths the ratio to the profile's.",
            ["measure", "bound"],
        )
        self._limit = gauge("tuner_watch_limit", "Limits of each measure.", ["measure", "bound"])
        self._beyond = gauge(
            "tuner_watch_beyond", "1 for a measure that is beyond a limit.", ["measure"]
        )
        self._rightness = gauge(
            "tuner_watch_choice_rightness",
            "Share of the laws under which the profile's max_num_seqs is right for today.",
        )
        self._attainment = gauge(
            "tuner_watch_attainment",
            "Share of today's requests within the SLO, by the twin.",
            ["max_num_seqs"],
        )

    def show(self, verdict: str, windows: int, measures: Mapping[str, MonitorReading]) -> None:
        for one in self._verdicts:
            self._verdict.labels(one).set(one == verdict)
        self._windows.set(windows)
        for name, measure in measures.items():
            self._beyond.labels(name).set(measure.state in {"above", "below"})
            self._limit.labels(name, "high").set(measure.high)
            if measure.low is not None:
                self._limit.labels(name, "low").set(measure.low)
            if measure.value is not None:
                for bound in ("value", "low", "high"):
                    self._measure.labels(name, bound).set(getattr(measure.value, bound))

    def show_choice(self, choice: CapCheck, max_num_seqs: int) -> None:
        self._rightness.set(choice.rightness)
        self._attainment.clear()  # the best of before
        self._attainment.labels(str(choice.best)).set(choice.best_attainment)
        self._attainment.labels(str(max_num_seqs)).set(choice.attainment)
