import pytest

from tests.support.builders import measurement
from tuner.errors import UsageError
from tuner.replay.numbers import KvCacheUsage, Spread
from tuner.traffic.requirements import parse_requirement

SPREAD = Spread(mean=0.1, p50=0.2, p90=0.3, p95=0.4, p99=0.5)


@pytest.mark.parametrize(
    ("text", "name", "limit", "at_headroom"),
    [
        ("p99 ttft <= 500ms", "ttft_p99_s", 0.5, False),
        ("p95 tpot<=0.05 s at headroom", "tpot_p95_s", 0.05, True),
        ("mean  queue <= 1s", "queue_mean_s", 1.0, False),
        ("P50 TPOT <= 20MS", "tpot_p50_s", 0.02, False),
        ("attainment >= 99% at headroom", "attainment", 0.99, True),
        ("goodput >= 2.5 req/s", "goodput_rps", 2.5, False),
        ("goodput>=2.5rps", "goodput_rps", 2.5, False),
        ("preemptions == 0", "preemptions", 0.0, False),
        ("peak kv_cache_usage <= 95 %", "kv_cache_usage_peak", 0.95, False),
    ],
)
def test_a_requirement_is_read(text: str, name: str, limit: float, *, at_headroom: bool) -> None:
    item = parse_requirement(text)
    assert (item.number, item.limit, item.at_headroom) == (name, limit, at_headroom)
    assert item.is_at_most == (">" not in text)
    assert parse_requirement(str(item)) == item


@pytest.mark.parametrize(
    "text",
    [
        *("p98 ttft <= 60ms", "p99 tfft <= 60ms", "p99 ttft 60ms", "p99 ttft >= 60ms"),
        *("p99 ttft < 60ms", "p99 ttft <= soon", "p99 ttft <= 60", "p99 ttft <= 60%"),
        *("p99 ttft <= 60ms at noon", "ttft <= 60ms", "peak ttft <= 60ms", ""),
        *("p99 attainment >= 99%", "p90 kv_cache_usage <= 90%", "attainment >= 99"),
        *("preemptions == 3", "preemptions <= 1.2.3", "goodput <= 3 req/s"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_may_stand_there(text: str) -> None:
    with pytest.raises(UsageError, match="--require: cannot read") as caught:
        parse_requirement(text)
    assert "p99 ttft <= 500ms" in caught.value.hint


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
