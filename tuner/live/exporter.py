"""tuner's own Prometheus metrics, while a run or a watch goes on."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from tuner.errors import UsageError
from tuner.live.watch.verdict import VERDICTS, Watch
from tuner.replay.measure import Measurement


class _Endpoint:
    """Serves ``/metrics`` on this machine until closed. Raises UsageError when the port is taken.

    A registry of its own: vLLM fills, and empties, the global one.
    """

    def __init__(self, port: int) -> None:
        self.registry = CollectorRegistry()
        try:
            self._server, self._thread = start_http_server(port, "127.0.0.1", self.registry)
        except OSError as error:
            raise UsageError(
                f"--metrics-port {port}: {error.strerror}", hint="Choose a free port."
            ) from error
        self.port = self._server.server_port

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

    def __init__(self, port: int) -> None:
        super().__init__(port)
        gauge = partial(Gauge, registry=self.registry)
        self._verdict = gauge("tuner_watch_verdict", "1 for the verdict, 0 else.", ["verdict"])
        self._windows = gauge("tuner_watch_windows", "Windows so far.")
        self._measure = gauge(
            "tuner_watch_measure",
            "Mean: of slowdown, rate and lengths the ratio to the profile's.",
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
            "Share of today's requests within the SLO, as predicted.",
            ["max_num_seqs"],
        )

    def show(self, watch: Watch) -> None:
        verdict = watch.verdict
        for one in VERDICTS:
            self._verdict.labels(one).set(one == verdict)
        self._windows.set(watch.windows)
        for name, measure in watch.measures().items():
            self._beyond.labels(name).set(measure.state in {"above", "below"})
            self._limit.labels(name, "high").set(measure.high)
            if measure.low is not None:
                self._limit.labels(name, "low").set(measure.low)
            if measure.value is not None:
                for bound in ("value", "low", "high"):
                    self._measure.labels(name, bound).set(getattr(measure.value, bound))
        if (choice := watch.choice) is not None:
            self._rightness.set(choice.rightness)
            self._attainment.clear()
            self._attainment.labels(str(choice.best)).set(choice.best_attainment)
            self._attainment.labels(str(watch.promised.max_num_seqs)).set(choice.attainment)
