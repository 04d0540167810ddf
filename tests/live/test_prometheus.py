"""A server's /metrics by our names, whichever vLLM wrote it."""

import math
import time

import pytest

from tuner.errors import InputError
from tuner.live.prometheus import Histogram, parse

TODAY = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 5.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
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
# TYPE python_info gauge
python_info{version="3.12"} 1.0
"""


def test_todays_names() -> None:
    engines = parse(TODAY, source="here")
    assert engines["1"].gauges == {"running": 3, "kv_cache_usage": 0.75}
    metrics = engines["0"]
    assert metrics.gauges == {"running": 5, "waiting": 1, "kv_cache_usage": 0.25}
    assert metrics.counters == {"preemptions": 7, "requests": 14}
    assert metrics.finish_reasons == {"stop": 10, "length": 4}
    assert metrics.models == ("m",)
    assert metrics.cache_config["num_gpu_blocks"] == "1000"
    itl = metrics.distributions["itl_s"]
    assert (itl.count, itl.total) == (80, 2.4)
    assert (itl.bounds, itl.counts) == ((0.01, 0.03, math.inf), (20, 60, 80))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no metric of vLLM"),
        ("python_info 1.0\n", "no metric of vLLM"),
        ("<html><body>Not found</body></html>", "not Prometheus text"),
        ('vllm:num_requests_running{a="b 1\n', "not Prometheus text"),
        ("vllm:num_requests_running many\n", "not Prometheus text"),
        ('vllm:e2e_request_latency_seconds_bucket{le="wide"} 1\n', "not Prometheus text"),
    ],
)
def test_what_is_no_vllm_metrics_is_refused_with_its_source(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"http://x/metrics: {message}"):
        parse(text, source="http://x/metrics")


@pytest.mark.attack
@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{a="' + r"\"" * 800_000 + '"} 1\n',
        "vllm:num_requests_running{" + ",".join(f'a{n}="b"' for n in range(160_000)) + "} 1\n",
    ],
)
def test_a_line_that_takes_seconds_to_read_is_refused_at_once(line: str) -> None:
    """Each is of 1.6 MB or more, and took ten seconds."""
    begun = time.process_time()
    with pytest.raises(InputError, match=r"^x: not Prometheus text: a line of \d+ characters$"):
        parse(line, source="x")
    assert time.process_time() - begun < 1


def test_what_came_between_two_readings_is_their_difference() -> None:
    before = Histogram((1.0, math.inf), (2, 3), 4.0)
    after = Histogram((1.0, math.inf), (7, 9), 20.0)
    assert after.since(before) == Histogram((1.0, math.inf), (5, 6), 16.0)


def test_a_server_that_was_restarted_between_counts_from_its_start() -> None:
    before = Histogram((1.0, math.inf), (20, 30), 40.0)
    after = Histogram((1.0, math.inf), (2, 3), 4.0)
    assert after.since(before) == after
