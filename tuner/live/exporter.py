"""What a sweep measures and what a watch concludes, as Prometheus metrics on this machine."""

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from tuner.errors import UsageError
from tuner.live.watch import VERDICTS, Watch
from tuner.replay.numbers import Measurement

Metric = tuple[str, str, list[str]]
"""Name, help text, labels."""


class Exporter:
    """Serves ``/metrics`` until closed. Raises UsageError when the port is taken.

    Its registry is its own: vLLM fills, and empties, the global one.
    """

    metrics: tuple[Metric, ...]

    def __init__(self, port: int) -> None:
        registry = CollectorRegistry()
        try:
            self._server, self._thread = start_http_server(port, "127.0.0.1", registry)
        except OSError as error:
            raise UsageError(
                f"--metrics-port {port}: {error.strerror}", hint="Choose a free port."
            ) from error
        self.port = self._server.server_port
        self._gauges = {
            name: Gauge(f"tuner_{name}", text, labels, registry=registry)
            for name, text, labels in self.metrics
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SweepExporter(Exporter):
    """The numbers of every cap that was replayed, and how many requests are in flight now."""

    metrics = (
        ("in_flight", "Requests sent and not finished.", []),
        ("slo_attainment", "Requests within the SLO / scored requests.", ["max_num_seqs"]),
        ("goodput_rps", "Requests within the SLO per second.", ["max_num_seqs"]),
        ("output_tokens_per_s", "Output tokens per second.", ["max_num_seqs"]),
        ("tpot_p95_seconds", "95th percentile of time per output token.", ["max_num_seqs"]),
        ("e2el_p99_seconds", "99th percentile of end-to-end latency.", ["max_num_seqs"]),
    )

    def live(self, in_flight: int) -> None:
        self._gauges["in_flight"].set(in_flight)

    def measured(self, numbers: Measurement) -> None:
        values = {
            "slo_attainment": numbers.attainment,
            "goodput_rps": numbers.goodput_rps,
            "output_tokens_per_s": numbers.output_tokens_per_s,
            "tpot_p95_seconds": numbers.tpot_s.p95 if numbers.tpot_s else None,
            "e2el_p99_seconds": numbers.e2el_s.p99 if numbers.e2el_s else None,
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(numbers.max_num_seqs).set(value)


class WatchExporter(Exporter):
    """The verdict of a watch. A measure that is not known is absent."""

    metrics = (
        ("watch_verdict", "1 for the verdict, 0 for the others.", ["verdict"]),
        ("watch_measure", "Mean with its 95 % interval.", ["measure", "bound"]),
        ("watch_beyond", "1 for a measure that is beyond a limit.", ["measure"]),
        ("watch_choice_rightness", "Share of laws under which the choice holds.", []),
    )

    def show(self, watch: Watch) -> None:
        for verdict in VERDICTS:
            self._gauges["watch_verdict"].labels(verdict).set(verdict == watch.verdict)
        for name, measure in watch.measures.items():
            self._gauges["watch_beyond"].labels(name).set(measure.is_beyond)
            if (result := measure.interval()) is not None:
                for bound in ("value", "low", "high"):
                    self._gauges["watch_measure"].labels(name, bound).set(getattr(result, bound))
        if watch.choice is not None:
            self._gauges["watch_choice_rightness"].set(watch.choice.rightness)
