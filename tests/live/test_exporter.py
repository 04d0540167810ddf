"""tuner's own metrics while a sweep or a watch runs."""

import socket
import urllib.request
from contextlib import closing

import pytest

from tuner.errors import UsageError
from tuner.live.exporter import Exporter


def test_a_scrape_has_the_metrics_and_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port}: "):
            Exporter(port)
    with closing(Exporter(port)) as exporter:
        exporter.set("in_flight", 3)
        exporter.set("goodput_rps", 1.5, max_num_seqs=8)
        exporter.set("tpot_p95_seconds", None, max_num_seqs=8)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read()
    assert b"tuner_in_flight 3.0" in page
    assert b'tuner_goodput_rps{max_num_seqs="8"} 1.5' in page
    assert b"tpot" not in page
