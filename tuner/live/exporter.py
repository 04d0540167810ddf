"""The verdict of a watch as Prometheus metrics on this machine."""

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from tuner.errors import UsageError
from tuner.live.watch import VERDICTS, Watch


class WatchExporter:
    """Serves ``/metrics`` until closed. Raises UsageError when the port is taken."""

    def __init__(self, port: int) -> None:
        registry = CollectorRegistry()
        try:
            self._server, self._thread = start_http_server(port, "127.0.0.1", registry)
        except OSError as error:
            raise UsageError(
                f"--metrics-port {port}: {error.strerror}", hint="Choose a free port."
            ) from error
        self._gauges = {
            name: Gauge(f"tuner_watch_{name}", text, labels, registry=registry)
            for name, text, labels in (
                ("verdict", "1 for the verdict, 0 for the others.", ["verdict"]),
                ("measure", "Mean with its 95 % interval.", ["measure", "bound"]),
                ("beyond", "1 for a measure that is beyond a limit.", ["measure"]),
                ("choice_rightness", "Share of laws under which the choice holds.", []),
            )
        }

    def show(self, watch: Watch) -> None:
        for verdict in VERDICTS:
            self._gauges["verdict"].labels(verdict).set(verdict == watch.verdict)
        for name, measure in watch.measures.items():
            self._gauges["beyond"].labels(name).set(measure.is_beyond)
            if (found := measure.interval()) is not None:
                for bound in ("value", "low", "high"):
                    self._gauges["measure"].labels(name, bound).set(getattr(found, bound))
        if watch.choice is not None:
            self._gauges["choice_rightness"].set(watch.choice.rightness)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
