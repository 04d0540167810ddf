"""Alert rules for a knee, read and run by Prometheus' own programs."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.monitored import (
    LABELS,
    NOBODY,
    Firing,
    Server,
    at_knee,
    case,
    get,
    remembered,
    rules,
    unit_test,
)
from tests.support.places import ROOT
from tests.support.profiles import any_profile, profile
from tests.support.scraped import binary, prometheus
from tuner.errors import UsageError
from tuner.profile.profile import load
from tuner.profile.schema import ServingProfile
from tuner.rollout import monitor
from tuner.rollout.monitor import selector

SHIPPED = load(ROOT / "profiles" / "translation-tiny-cpu.yaml")
BURN = "TunerSloBudgetBurn"
BURNS = [(BURN, "ticket", "3d"), (BURN, "ticket", "1d"), (BURN, "page", "6h"), (BURN, "page", "1h")]
BEYOND = ("TunerConcurrencyBeyondValidated", "ticket", "")
OTHER = {"gpu_memory_utilization": "0.9", "cache_dtype": "auto"}


def promtool(*words: str) -> str:
    done = subprocess.run([binary("promtool"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(text: str, folder: Path) -> int:
    """Return how many rules promtool finds in the text; a fault fails the test."""
    (folder / "rules.yaml").write_text(text)
    return int(promtool("check", "rules", str(folder / "rules.yaml")).split()[-3])


def fire_of(
    folder: Path, text: str, servers: Iterable[Server], firing: Mapping[str, Iterable[Firing]]
) -> None:
    """Fail unless by these rules exactly these alerts fire of each instance."""
    (folder / "rules.yaml").write_text(text)
    (folder / "test.yaml").write_text(unit_test("rules.yaml", servers, firing))
    promtool("test", "rules", str(folder / "test.yaml"))


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    assert check(rules(), tmp_path) == 2 * 7 + 4 + 16
    assert check(rules(SHIPPED), tmp_path) == 7 + 4 + 16
    crd = yaml.safe_load(monitor.render(monitor.KINDS[1], SHIPPED, matchers=""))
    assert (crd["kind"], crd["metadata"]["name"]) == ("PrometheusRule", "tuner-tuner-tiny")
    assert yaml.safe_dump(crd["spec"]) == yaml.safe_dump(yaml.safe_load(rules(SHIPPED)))


@settings(
    max_examples=6,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(chosen=any_profile())
def test_whatever_stands_in_a_profile_the_rules_are_rules(
    tmp_path: Path, chosen: ServingProfile
) -> None:
    assert check(rules(chosen), tmp_path) > 0


SLOWER, FULLER = ("TunerDecodeSlower", "ticket", ""), ("TunerKvCacheFuller", "ticket", "")
BINDS = ("TunerCapBinds", "info", "")

AS_PROMISED = {
    "at the knee": case(at_knee()),
    "idle": case(at_knee(requests=0, running=0, kv=0)),
}
BROKEN = {
    "decoding": case(at_knee(itl_s=0.045), firing=[SLOWER]),
    "first token": case(at_knee(ttft_s=0.050), firing=[("TunerFirstTokenSlower", "ticket", "")]),
    "requests": case(at_knee(e2el_s=0.050), firing=[("TunerRequestsSlower", "ticket", "")]),
    "concurrency": case(at_knee(running=14, waiting=1), firing=[BEYOND]),
    "load": case(at_knee(requests=601), firing=[("TunerLoadBeyondValidated", "ticket", "")]),
    "memory": case(at_knee(kv=0.7), firing=[FULLER]),
    "preemptions": case(at_knee(preemptions=5), firing=[("TunerMorePreemptions", "ticket", "")]),
    "settings": case(at_knee(settings=OTHER), firing=[("TunerOtherSettings", "ticket", "")]),
}
UP_TO_THE_LIMIT = {
    "decoding, at its limit": case(at_knee(itl_s=0.044)),
    "first token, at its limit": case(at_knee(ttft_s=0.048)),
    "requests, at their limit": case(at_knee(e2el_s=0.048)),
    "concurrency, at its limit": case(at_knee(running=14)),
    "load, at its limit": case(at_knee(requests=599)),
    "memory, at its limit": case(at_knee(kv=0.68)),
    "preemptions, at their limit": case(at_knee(preemptions=4)),
    "a setting of which the profile says nothing": case(at_knee(settings={"block_size": "32"})),
    "misses, at their limit": case(at_knee(missed_tpot=0.02)),
}
GROWS = at_knee(running=16, waiting=1, waiting_grows=2)
QUEUES = {
    "full, and a queue": case(at_knee(running=16, waiting=3), firing=[BINDS, BEYOND]),
    "a growing queue": case(GROWS, firing=[BINDS, BEYOND, ("TunerQueueGrowing", "page", "")]),
    "full": case(at_knee(running=16), firing=[BEYOND]),
    "fuller": case(at_knee(running=17), firing=[BEYOND, ("TunerOtherCap", "ticket", "")]),
}
MISSES = {
    f"{limit} {missed}": case(at_knee(**{limit: missed}), firing=BURNS[:windows])
    for limit in ("missed_tpot", "missed_ttft")
    for missed, windows in [(0.03, 1), (0.10, 2), (0.20, 3), (0.40, 4)]
}
"""The faster the budget burns, the louder; it is 1 - (0.995 - 0.02) = 0.025."""

AT_NIGHT = {
    "half of ten an hour": case(at_knee(requests=10 / 60, missed_ttft=0.5)),
    "half of 120 an hour": case(at_knee(requests=2, missed_ttft=0.5), firing=BURNS[1:]),
}
"""A few misses wake nobody: 120 an hour are still too few for three days."""


def test_of_servers_side_by_side_each_broken_promise_is_said_and_nothing_else(
    tmp_path: Path,
) -> None:
    cases = {**AS_PROMISED, **BROKEN, **UP_TO_THE_LIMIT, **QUEUES, **MISSES, **AT_NIGHT}
    servers = [
        replace(one.server, labels={**LABELS, "instance": name}) for name, one in cases.items()
    ]
    fire_of(tmp_path, rules(), servers, {name: one.firing for name, one in cases.items()})


def test_of_several_servers_only_those_that_are_meant_are_watched(tmp_path: Path) -> None:
    ours, theirs = LABELS["instance"], "gpu2:8000"
    slow = at_knee(itl_s=9.0, labels={**LABELS, "model_name": "other", "instance": theirs})
    both = (at_knee(), slow)
    fire_of(tmp_path, rules(), both, {ours: ()})
    slower = [("TunerDecodeSlower", "ticket", "")]
    fire_of(tmp_path, rules(matchers='job="vllm"'), both, {theirs: slower})
    nothing = [("TunerNothingWatched", "ticket", "")]
    fire_of(tmp_path, rules(matchers='job="another"'), both, {NOBODY: nothing})


def test_profiles_of_two_models_do_not_mix(tmp_path: Path) -> None:
    """The series that both record have one name; each alert looks at its own profile's."""
    other = profile(engine={"model": "n", "max_num_seqs": 16, "max_num_batched_tokens": 8192})
    theirs = "gpu2:8000"
    missing = at_knee(missed_ttft=0.4, labels={**LABELS, "model_name": "n", "instance": theirs})
    both = rules() + rules(other).partition("groups:\n")[2]
    fire_of(tmp_path, both, (at_knee(), missing), {theirs: BURNS})
    assert alerting(both, BURN)[0]["expr"] != alerting(rules(other), BURN)[0]["expr"]


def alerting(text: str, name: str) -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == name
    ]


def test_a_real_prometheus_loads_the_rules_and_their_expressions_return_data(
    tmp_path: Path,
) -> None:
    """A server that breaks every promise: each recorded series and each template has a value."""
    broken = at_knee(
        running=20, waiting=1, waiting_grows=5, requests=700, ttft_s=1, itl_s=1, e2el_s=1, kv=0.9,
        preemptions=90, missed_tpot=0.6, missed_ttft=0.6,
        settings=OTHER,
    )  # fmt: skip
    (tmp_path / "rules.yaml").write_text(rules())
    remembered(broken, tmp_path)
    config = "global: {evaluation_interval: 1s}\nrule_files: [rules.yaml]\n"
    every_alert = set(re.findall(r"alert: (\w+)", rules()))
    expected = every_alert - {"TunerNothingWatched"}
    with prometheus(tmp_path, config) as url:
        said: dict[str, str] = {}
        every: list[dict[str, Any]] = []
        while said.keys() != expected:  # some rest on what was recorded a second before
            found = get(url, "/api/v1/rules")["groups"]
            every = [rule for group in found for rule in group["rules"]]
            assert not [rule["lastError"] for rule in every if rule.get("lastError")]
            pending = get(url, "/api/v1/alerts")["alerts"]
            said = {one["labels"]["alertname"]: one["annotations"]["summary"] for one in pending}
        silent = [
            rule["name"] for rule in every if get(url, "/api/v1/query", query=rule["query"]) == []
        ]
    assert {name for name in silent if name != "TunerNothingWatched"} == set()
    assert said["TunerKvCacheFuller"] == (
        "gpu1:8000 (m, engine 0): 90% of the KV cache is in use, the promised peak is 62.5%"
    )
    assert "mean decode time per token is 1s, promised 40 ms" in said["TunerDecodeSlower"]
    assert [words for words in said.values() if "error" in words or "<no value>" in words] == []


def test_a_budget_beyond_reach_still_pages_when_half_of_all_miss() -> None:
    assert [(burn["long"], burn["share"]) for burn in monitor.burns(0.42)] == [
        ("1h", 0.5),
        ("3d", pytest.approx(0.42)),
    ]


@pytest.mark.parametrize(
    ("ttft_ms", "bound"), [(500.0, "0.5"), (510.0, "0.75"), (9_000_000.0, None)]
)
def test_a_miss_is_counted_from_the_next_end_of_a_bucket(ttft_ms: float, bound: str | None) -> None:
    decided = profile().decision
    slo = decided.slo.model_copy(update={"ttft_ms": ttft_ms})
    chosen = profile().model_copy(update={"decision": decided.model_copy(update={"slo": slo})})
    found = {one["limit"]: one["bound"] for one in monitor.missed_limits(chosen)}
    assert found.get("ttft") == bound


@pytest.mark.parametrize(
    ("asked", "matchers"),
    [
        ('job="vllm"', 'job="vllm"'),
        ('{job = "a b", namespace=~"prod.*"}', 'job="a b",namespace=~"prod.*"'),
        (r'x!="a\"b",', r'x!="a\"b"'),
    ],
)
def test_a_selector_is_label_matchers(asked: str, matchers: str, tmp_path: Path) -> None:
    assert selector(asked) == matchers
    assert check(rules(matchers=matchers), tmp_path) > 0


@pytest.mark.parametrize("asked", ["", "{}", "job=vllm", 'job="a"} or up{', "up", 'a="b'])
def test_anything_else_is_no_selector(asked: str) -> None:
    with pytest.raises(UsageError, match="no label matchers of PromQL"):
        selector(asked)


@pytest.mark.vllm
def test_vllm_still_has_these_metrics_and_these_buckets() -> None:
    from vllm.v1.metrics import buckets  # noqa: PLC0415

    ends = monitor.template()["buckets_s"]

    assert tuple(ends["ttft"]) == buckets.TIME_TO_FIRST_TOKEN_BUCKETS
    assert tuple(ends["tpot"]) == buckets.INTER_TOKEN_LATENCY_BUCKETS
    assert tuple(ends["e2el"]) == buckets.REQUEST_LATENCY_BUCKETS
