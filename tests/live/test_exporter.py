"""tuner's own metrics while a sweep runs."""

import socket
import urllib.request
from contextlib import closing

import pytest

from tuner.errors import UsageError
from tuner.live.exporter import SweepExporter


def test_a_scrape_has_the_metrics_on_this_machine_alone() -> None:
    with closing(SweepExporter(0)) as exporter:
        exporter.live(3)
        page = urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=20)
        assert b"tuner_in_flight 3.0" in page.read()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port}: "):
            SweepExporter(port)
