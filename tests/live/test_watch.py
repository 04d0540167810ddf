"""What a watch says of a simulated server: honest, slower, with other traffic, or another cap."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.live_sim import exposition, poisson, profile_of, simulated
from tuner.errors import InputError
from tuner.live.prometheus import ServerMetrics, parse
from tuner.live.watch import Watch
from tuner.profile.evidence import StoredTwin, twin_of
from tuner.profile.profile import ServingProfile
from tuner.twin.simulation import FrontEnd, Traffic

CAP, CAPS, RATE = 16, (4, 8, 16, 32), 5.0
STORED_S = 300.0
STORED = poisson(RATE, STORED_S, seed=1)
LAWS = 20
"""As few as can show one in 20, which is all that a watch needs of them."""


@cache
def promised() -> tuple[ServingProfile, StoredTwin]:
    """Return a profile of the simulated machine, and its twin."""
    profile = profile_of(STORED, STORED_S, cap=CAP, caps=CAPS)
    twin = twin_of(profile, Path("profile.yaml"), cure="")
    return profile, replace(twin, laws=twin.laws[:LAWS])


def watched(  # noqa: PLR0913 - the server, and what happens to it
    watch: Watch, traffic: Traffic, length_s: float, *, cap: int = CAP, slow_by: float = 1.0,
    seen: Callable[[ServerMetrics], ServerMetrics] = lambda metrics: metrics,
) -> Watch:  # fmt: skip
    server = simulated(traffic, cap=cap, slow_by=slow_by)
    for at_s in np.arange(0.0, length_s + 1, 2.0):
        watch.add(float(at_s), seen(server.scrape(float(at_s))))
    watch.choose_again()
    return watch


def value(watch: Watch, name: str) -> float:
    return watch.measures[name].mean.value


@pytest.mark.parametrize("slow_by", [1.0, 1.25, 1.6])
@pytest.mark.parametrize("rate", [0.5, 1.0, 1.6])
def test_a_slower_server_is_found_by_how_much(slow_by: float, rate: float) -> None:
    traffic = poisson(rate * RATE, 400.0, seed=3)
    watch = watched(Watch(*promised(), 60.0, 2.0), traffic, 400.0, slow_by=slow_by)
    assert value(watch, "slowness") == pytest.approx(slow_by, rel=0.06)
    if rate == 1.0:
        verdicts = {1.0: "still valid", 1.25: "drifting", 1.6: "re-tune now"}
        assert (watch.verdict, "slowness" in watch.beyond) == (verdicts[slow_by], slow_by > 1)


def test_a_known_contention_of_the_front_end_is_in_the_promise() -> None:
    profile, twin = promised()
    behind = replace(twin, machine=replace(twin.machine, front_end=FrontEnd(1.2)))
    traffic = poisson(RATE, 300.0, seed=21)
    watch = watched(Watch(profile, behind, 60.0, 2.0), traffic, 300.0, slow_by=1.2)
    assert value(watch, "slowness") == pytest.approx(1.0, abs=0.06)


def test_engines_that_share_the_load_are_each_compared() -> None:
    def doubled(metrics: ServerMetrics) -> ServerMetrics:
        values = {name: 2 * value for name, value in metrics.values.items()}
        return replace(metrics, values=values, engines=2)

    watch = watched(
        Watch(*promised(), 60.0, 2.0), poisson(RATE, 300.0, seed=6), 300.0, seen=doubled
    )
    assert watch.verdict == "still valid"
    assert value(watch, "slowness") == pytest.approx(1.0, abs=0.06)
    assert value(watch, "rate") == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("late", "measure"),
    [
        (poisson(1.7 * RATE, 600.0, seed=5), "rate"),
        (poisson(0.5 * RATE, 600.0, seed=7, output=120), "output_length"),
    ],
)
def test_other_traffic_is_reported_as_traffic_and_not_as_a_slow_server(
    late: Traffic, measure: str
) -> None:
    early = poisson(RATE, 120.0, seed=4)
    moved = replace(late, arrival_s=late.arrival_s + 120)
    traffic = Traffic.of(
        zip(
            *(np.concatenate(pair) for pair in zip(early.columns(), moved.columns(), strict=True)),
            strict=True,
        )
    )
    watch = watched(Watch(*promised(), 60.0, 2.0), traffic, 720.0)
    assert measure in watch.beyond
    assert watch.measures["slowness"].state == "within"


def test_traffic_that_would_choose_another_cap_is_to_be_tuned_for() -> None:
    _, twin = promised()
    quiet = replace(twin, traffic=poisson(0.5, 300.0, seed=9), length_s=300.0)
    small = profile_of(quiet.traffic, 300.0, cap=4, caps=CAPS)
    watch = watched(Watch(small, quiet, 60.0, 2.0), poisson(2 * RATE, 400.0, seed=8), 400.0, cap=4)
    assert watch.choice is not None
    assert watch.choice.best > 4
    assert (watch.verdict, "rate" in watch.beyond) == ("re-tune now", True)
    assert "the twin would choose max_num_seqs" in watch.reason


def test_a_server_with_another_cap_is_not_called_slow() -> None:
    watch = watched(Watch(*promised(), 60.0, 2.0), poisson(2 * RATE, 250.0, seed=13), 250.0, cap=32)
    assert "most_running" in watch.beyond
    assert watch.verdict in {"drifting", "re-tune now"}
    assert watch.measures["slowness"].state != "above"


def metrics(done: float, started_s: float = 0.0) -> ServerMetrics:
    """Return a server that has served ``done`` requests."""
    values = {"request_success_total": done, "process_start_time_seconds": started_s}
    return ServerMetrics(values)


@pytest.mark.parametrize(
    ("times_s", "change", "windows", "restarts"),
    [
        ([2.0 * i for i in range(16)], {}, 3, 0),
        ([2.0 * i for i in range(16)], {8: metrics(2)}, 2, 1),
        ([2.0 * i for i in range(16)], {8: metrics(9, started_s=100.0)}, 2, 2),
        ([2.0 * i + 0.3 * (-1) ** i for i in range(51)], {}, 10, 0),
    ],
    ids=["nothing", "a counter fell", "another start", "late readings"],
)
def test_a_window_with_a_restart_in_it_is_none(
    times_s: list[float], change: dict[int, ServerMetrics], windows: int, restarts: int
) -> None:
    watch = Watch(*promised(), 10.0, 2.0)
    lines = [watch.add(at_s, change.get(i, metrics(at_s))) for i, at_s in enumerate(times_s)]
    assert watch.windows == len(list(filter(None, lines))) == windows
    assert watch.restarts == restarts


EVERY_S = 5.0
SERVER = simulated(poisson(RATE, 60.0, seed=2), cap=CAP)
PAGES = [exposition(SERVER.scrape(EVERY_S * place)) for place in range(13)]
ODD = st.sampled_from(
    ["NaN", "+Inf", "-Inf", "-1", "0", "1e308", "1e12", "-1e300", "3", "0.5", "1e-320", "x", ""]
)


def damaged(data: st.DataObject, page: str) -> str:
    if data.draw(st.integers(0, 2)):
        return page
    lines, odd = page.splitlines(), data.draw(ODD)
    place = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["value", "line", "bound", "cut"])):
        case "value":
            lines[place] = re.sub(r" [0-9.e+]+$", f" {odd}", lines[place])
        case "bound":
            lines[place] = re.sub(r'le="[^"]*"', f'le="{odd}"', lines[place])
        case "line":
            del lines[place]
        case _:
            lines = lines[:place]
    return "\n".join([*lines, ""])


@pytest.mark.attack
@settings(max_examples=16)
@given(data=st.data())
def test_no_metrics_are_worse_than_refused(data: st.DataObject) -> None:
    watch = Watch(*promised(), 10.0, EVERY_S)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place, page in enumerate(PAGES):
            try:
                metrics = parse(damaged(data, page), source="here")
            except InputError:
                continue
            watch.add(EVERY_S * place, metrics)
    assert watch.reason
