"""tuner's own Prometheus metrics, while a run goes on."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from tuner.errors import UsageError
from tuner.measure import Measurement


class Exporter:
    """Serves ``/metrics`` on this machine until closed. Raises UsageError when the port is taken.

    A registry of its own: vLLM fills, and empties, the global one.
    """

    def __init__(self, port: int) -> None:
        self.registry = CollectorRegistry()
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
        try:
            self._server, self._thread = start_http_server(
                port, addr="127.0.0.1", registry=self.registry
            )
        except OSError as error:
            raise UsageError(
                f"--metrics-port {port}: {error.strerror}", hint="Choose a free port."
            ) from error

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

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
