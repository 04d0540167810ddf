"""A server's /metrics, summed over its engines, and tuner's own."""

import math
import socket
import time
import urllib.request
from contextlib import closing

import pytest

from tuner.errors import InputError, UsageError
from tuner.live.prometheus import GAP_S, Exporter, parse

TODAY = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 5.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 10.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 20.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.03",model_name="m"} 60.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 80.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 80.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 2.4
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1000.5
# TYPE python_info gauge
python_info{version="3.12"} 1.0
"""


def test_readings_and_what_came_between_them() -> None:
    before = parse(TODAY, source="here")
    assert (before.engines, before.model) == (2, "m")
    assert before.cache_config == {"block_size": "16", "num_gpu_blocks": "1000"}
    assert (before.get("num_requests_running"), before.get("request_success_total")) == (8, 14)
    assert before.mean(GAP_S) == pytest.approx(0.03)
    assert math.isnan(before.mean("nothing"))
    after = parse(TODAY.replace("80.0", "90.0").replace("2.4", "2.9"), source="here")
    between = after.since(before)
    assert between is not None
    assert between.mean(GAP_S) == pytest.approx(0.05)
    assert between.get("num_requests_running") == 8
    assert before.since(after) is None  # counts fell
    assert parse(TODAY.replace("1000.5", "1020.5"), source="here").since(before) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no metric of vLLM"),
        ("python_info 1.0\n", "no metric of vLLM"),
        ("<html><body>Not found</body></html>", "not Prometheus text"),
        ('vllm:num_requests_running{a="b 1\n', "not Prometheus text"),
        ("vllm:num_requests_running many\n", "not Prometheus text"),
        ('vllm:x{model_name="a"} 1\nvllm:x{model_name="b"} 1\n', "several models: a, b"),
    ],
)
def test_what_is_no_vllm_metrics_is_refused_with_its_source(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"http://x/metrics: {message}"):
        parse(text, source="http://x/metrics")


@pytest.mark.attack
def test_a_line_that_takes_seconds_to_read_is_refused_at_once() -> None:
    line = 'vllm:num_requests_running{a="' + r"\"" * 800_000 + '"} 1\n'
    begun = time.process_time()
    with pytest.raises(InputError, match=r"a line of \d+ characters"):
        parse(line, source="x")
    assert time.process_time() - begun < 1


def test_a_scrape_has_the_metrics_and_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port {port}: "):
            Exporter(port)
    with closing(Exporter(port)) as exporter:
        exporter.set("in_flight", 3)
        exporter.set("goodput_rps", 1.5, max_num_seqs=8)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read()
    assert b"tuner_in_flight 3.0" in page
    assert b'tuner_goodput_rps{max_num_seqs="8"} 1.5' in page
