"""A server's /metrics, summed over its engines."""

import math
import time

import pytest

from tuner.errors import InputError
from tuner.live.prometheus import GAP_S, parse

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
# TYPE python_info gauge
python_info{version="3.12"} 1.0
"""


def test_readings_and_what_came_between_them() -> None:
    before = parse(TODAY, source="here")
    assert (before.engines, before.models, before.in_flight) == (2, ("m",), 9.0)
    assert before.cache_config["num_gpu_blocks"] == "1000"
    assert before.get("request_success_total") == 14
    assert before.mean(GAP_S) == pytest.approx(0.03)
    assert math.isnan(before.mean("nothing"))
    after = parse(TODAY.replace("80.0", "90.0").replace("2.4", "2.9"), source="here")
    assert after.continues(before)
    assert not before.continues(after)
    assert after.since(before).mean(GAP_S) == pytest.approx(0.05)
    assert after.since(before).in_flight == 9.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no metric of vLLM"),
        ("python_info 1.0\n", "no metric of vLLM"),
        ("<html><body>Not found</body></html>", "not Prometheus text"),
        ('vllm:num_requests_running{a="b 1\n', "not Prometheus text"),
        ("vllm:num_requests_running many\n", "not Prometheus text"),
        ('vllm:e2e_request_latency_seconds_bucket{le="wide"} 1\n', "not Prometheus text"),
        ('vllm:x{model_name="a"} 1\nvllm:x{model_name="b"} 1\n', "2 models: a, b"),
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
