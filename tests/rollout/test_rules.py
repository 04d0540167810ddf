"""Alert rules for a knee, read and run by Prometheus' own programs."""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support.monitored import LABELS, Case, Firing, Server, rules, unit_test
from tests.support.places import ROOT
from tests.support.scraped import binary
from tuner.errors import UsageError
from tuner.profile.profile import load
from tuner.rollout import monitor
from tuner.rollout.monitor import selector

SHIPPED = load(ROOT / "profiles" / "translation-tiny-cpu.yaml")
BURN = "TunerSloBudgetBurn"
BURNS = [(BURN, "ticket", "3d"), (BURN, "ticket", "1d"), (BURN, "page", "6h"), (BURN, "page", "1h")]
BEYOND = ("TunerConcurrencyBeyondValidated", "ticket", "")


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
    assert check(rules(), tmp_path) == 2 * 7 + 4 + 14
    assert check(rules(SHIPPED), tmp_path) == 7 + 4 + 14
    crd = yaml.safe_load(monitor.render("prometheus-rule-crd", SHIPPED))
    assert (crd["kind"], crd["metadata"]["name"]) == ("PrometheusRule", "tuner-tuner-tiny")
    assert yaml.safe_dump(crd["spec"]) == yaml.safe_dump(yaml.safe_load(rules(SHIPPED)))


SLOWER, FULLER = ("TunerDecodeSlower", "ticket", ""), ("TunerKvCacheFuller", "ticket", "")
BINDS = ("TunerCapBinds", "info", "")

AS_PROMISED = {
    "at the knee": Case(Server()),
    "idle": Case(Server(requests=0, running=0, kv=0)),
}
BROKEN = {
    "decoding": Case(Server(itl_s=0.045), firing=[SLOWER]),
    "first token": Case(Server(ttft_s=0.050), firing=[("TunerFirstTokenSlower", "ticket", "")]),
    "requests": Case(Server(e2el_s=0.050), firing=[("TunerRequestsSlower", "ticket", "")]),
    "concurrency": Case(Server(running=14, waiting=1), firing=[BEYOND]),
    "load": Case(Server(requests=601), firing=[("TunerLoadBeyondValidated", "ticket", "")]),
    "memory": Case(Server(kv=0.7), firing=[FULLER]),
}
GROWS = Server(running=16, waiting=1, waiting_grows=2)
QUEUES = {
    "full, and a queue": Case(Server(running=16, waiting=3), firing=[BINDS, BEYOND]),
    "a growing queue": Case(GROWS, firing=[BINDS, BEYOND, ("TunerQueueGrowing", "page", "")]),
    "full": Case(Server(running=16), firing=[BEYOND]),
    "fuller": Case(Server(running=17), firing=[BEYOND, ("TunerOtherCap", "ticket", "")]),
}
MISSES = {
    f"{missed:.0%} miss their {limit} limit": Case(
        Server(**{f"missed_{limit}": missed}),  # type: ignore[arg-type]
        firing=BURNS[:windows],
    )
    for limit in ("tpot", "ttft")
    for missed, windows in [(0.03, 1), (0.10, 2), (0.20, 3), (0.40, 4)]
}
"""The faster the budget burns, the louder; it is 1 - (0.995 - 0.02) = 0.025."""


def test_of_servers_side_by_side_each_broken_promise_is_said_and_nothing_else(
    tmp_path: Path,
) -> None:
    cases = {**AS_PROMISED, **BROKEN, **QUEUES, **MISSES}
    servers = [
        replace(each.server, labels={**LABELS, "instance": name}) for name, each in cases.items()
    ]
    fire_of(tmp_path, rules(), servers, {name: each.firing for name, each in cases.items()})


@pytest.mark.parametrize("bad", ["", "{}", "job=vllm", 'job="a"} or up{', "up", 'a="b'])
def test_a_selector_is_label_matchers_and_nothing_else(bad: str) -> None:
    assert selector('{job = "a b", x!="a\\"b",}') == 'job = "a b", x!="a\\"b"'
    with pytest.raises(UsageError, match="no label matchers of PromQL"):
        selector(bad)


@pytest.mark.vllm
def test_vllm_still_has_these_metrics_and_these_buckets() -> None:
    from vllm.v1.metrics import buckets  # noqa: PLC0415

    ends = monitor.template()["buckets_s"]

    assert tuple(ends["ttft"]) == buckets.TIME_TO_FIRST_TOKEN_BUCKETS
    assert tuple(ends["tpot"]) == buckets.INTER_TOKEN_LATENCY_BUCKETS
    assert tuple(ends["e2el"]) == buckets.REQUEST_LATENCY_BUCKETS
