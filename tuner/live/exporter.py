"""What a sweep measures and what a watch concludes, as Prometheus metrics on this machine."""

import prometheus_client

from tuner.errors import UsageError
from tuner.replay.numbers import Measurement


class Exporter:
    """Serves ``/metrics`` until closed. Raises UsageError when the port is taken.

    Its registry is its own: vLLM fills, and empties, the global one.
    """

    def __init__(self, port: int) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._gauges: dict[str, prometheus_client.Gauge] = {}
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, "127.0.0.1", self._registry
            )
        except OSError as error:
            hint = "Choose a free port."
            raise UsageError(f"--metrics-port {port}: {error.strerror}", hint=hint) from error

    def set(self, name: str, value: float | None, **labels: object) -> None:
        """Set ``tuner_NAME`` with these labels, always the same; not where nothing is known."""
        if value is None:
            return
        if name not in self._gauges:
            title = name.replace("_", " ")
            self._gauges[name] = prometheus_client.Gauge(
                f"tuner_{name}", title, list(labels), registry=self._registry
            )
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def measured(self, numbers: Measurement) -> None:
        """Set the numbers of a cap that was replayed."""
        values = {
            "slo_attainment": numbers.attainment,
            "goodput_rps": numbers.goodput_rps,
            "output_tokens_per_s": numbers.output_tokens_per_s,
            "tpot_p95_seconds": numbers.tpot_s.p95 if numbers.tpot_s else None,
            "e2el_p99_seconds": numbers.e2el_s.p99 if numbers.e2el_s else None,
        }
        for name, value in values.items():
            self.set(name, value, max_num_seqs=numbers.max_num_seqs)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
