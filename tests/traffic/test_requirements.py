import re

import pytest

from tests.support.builders import measurement
from tuner.errors import UsageError
from tuner.replay.numbers import KvCacheUsage, Spread
from tuner.traffic.requirements import parse_requirement

SPREAD = Spread(mean=0.1, p50=0.2, p90=0.3, p95=0.4, p99=0.5)


@pytest.mark.parametrize(
    ("text", "name", "bound", "at_headroom"),
    [
        ("p99 ttft <= 500ms", "p99 ttft", "<= 0.5", False),
        ("p95 tpot<0.05 s at headroom", "p95 tpot", "< 0.05", True),
        ("mean  queue <= 1s", "mean queue", "<= 1", False),
        ("P50 TPOT <= 20MS", "p50 tpot", "<= 0.02", False),
        ("attainment >= 99% at headroom", " attainment", ">= 0.99", True),
        ("attainment > 0.9", " attainment", "> 0.9", False),
        ("goodput >= 2.5 req/s", " goodput", ">= 2.5", False),
        ("preemptions == 0", " preemptions", "== 0", False),
        ("peak kv_cache_usage <= 95 %", "peak kv_cache_usage", "<= 0.95", False),
    ],
)
def test_a_requirement_is_read(text: str, name: str, bound: str, *, at_headroom: bool) -> None:
    item = parse_requirement(text)
    assert f"{item.statistic} {item.name}" == name
    assert f"{item.operator} {item.limit:g}" == bound
    assert item.at_headroom is at_headroom
    assert parse_requirement(str(item)) == item


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p99 tfft <= 60ms", "is not [p50|p90|p95|p99|mean|peak] NAME OP VALUE"),
        ("p98 ttft <= 60ms", "is not [p50"),
        ("p99 ttft 60ms", "is not [p50"),
        ("p99 ttft >= 60ms", "ttft takes <= or <"),
        ("p99 ttft <= soon", "is not [p50"),
        ("p99 ttft <= 60", "ttft is in ms or s"),
        ("p99 ttft <= 60%", "ttft is in ms or s"),
        ("p99 ttft <= 60ms at noon", "is not [p50"),
        ("p99 ttft <= 60ms today", "is not [p50"),
        ("", "is not [p50"),
        ("ttft <= 60ms", "ttft takes mean, p50, p90, p95, p99"),
        ("peak ttft <= 60ms", "ttft takes mean, p50, p90, p95, p99"),
        ("p99 attainment >= 99%", "attainment takes no p99"),
        ("p90 kv_cache_usage <= 90%", "kv_cache_usage takes mean, peak"),
        ("attainment >= 99", "is not a share from 0 to 1, or up to 100 %"),
        ("p99 ttft <= 0ms", "is not a number above 0"),
        ("preemptions == 3", "== is for preemptions == 0 alone"),
        ("preemptions <= 1.2.3", "is not [p50"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_may_stand_there(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        parse_requirement(text)
    assert "\n" not in str(caught.value)


def test_a_measurement_tells_its_numbers() -> None:
    item = measurement(
        8, attainment=0.98, ttft_s=SPREAD, preemptions=3,
        kv_cache_usage=KvCacheUsage(mean=0.4, p99=0.8, peak=0.9), tpot_s=None,
    )  # fmt: skip
    words = {
        "p99 ttft <= 1s": 0.5,
        "mean ttft <= 1s": 0.1,
        "attainment >= 90%": 0.98,
        "preemptions == 0": 3.0,
        "peak kv_cache_usage <= 95%": 0.9,
        "mean kv_cache_usage <= 95%": 0.4,
        "p95 tpot <= 1s": None,
    }
    assert {text: parse_requirement(text).value_in(item) for text in words} == words
