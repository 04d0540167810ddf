"""What a watch says of a simulated server: honest, slower, with other traffic, or another cap."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.live_sim import SimulatedServer, poisson, profile_of, simulated
from tuner.engines.sim.world import World, WorldKv, WorldNoise, WorldStep
from tuner.live.prometheus import Distribution, Histogram, ServerMetrics
from tuner.live.watch import Promised, Watch, reason
from tuner.live.windows import ScrapeWindow, Step, WindowMaker, arrivals, traffic_like
from tuner.profile.evidence import twin_of
from tuner.twin.front_end import FrontEnd
from tuner.twin.simulation import Traffic

WORLD = World(
    step=WorldStep(a=0.02, b=0.0006, n0=16, h=0.0025, c=1e-4),
    kv=WorldKv(blocks=4000),
    noise=WorldNoise(sigma_iter=0.05, sigma_drift=0.02, tau=120.0, sigma_start=0.01),
)
CAP, CAPS, RATE = 16, (4, 8, 16, 32), 5.0
STORED_S = 300.0
STORED = poisson(RATE, STORED_S, seed=1)
LAWS = 20
"""As few as can show one in 20, which is all that a watch needs of them."""


@pytest.fixture(scope="session")
def promised() -> Promised:
    return of_world()


@cache
def of_world() -> Promised:
    """Return what a profile of the world promises: the same for every module."""
    profile = profile_of(WORLD, STORED, STORED_S, cap=CAP, caps=CAPS)
    twin = twin_of(profile, Path("profile.yaml"), cure="")
    return Promised(
        twin=replace(twin, laws=twin.laws[:LAWS]),
        slo=profile.decision.slo.slo,
        max_num_seqs=CAP,
        caps=CAPS,
        headroom=1.0,
        validated_load=1.25,
        arrival_rate_rps=RATE,
    )


def watched(  # noqa: PLR0913 - the server, and what happens to it
    promised: Promised,
    traffic: Traffic,
    length_s: float,
    *,
    seen: Callable[[float, ServerMetrics], Mapping[str, ServerMetrics]] = lambda _, item: {
        "0": item
    },
    cap: int = CAP,
    slow_by: float = 1.0,
) -> Watch:
    server = simulated(WORLD, traffic, cap=cap, until_s=length_s, slow_from_s=0.0, slow_by=slow_by)
    maker, watch = WindowMaker(60.0, 5.0), Watch(promised)
    for place in range(int(length_s / 5) + 1):
        window = maker.add(5.0 * place, seen(5.0 * place, server.scrape(5.0 * place)))
        if window is not None:
            watch.add(window)
    watch.choose_again()
    return watch


def value(watch: Watch, name: str) -> float:
    result = watch.measures[name].interval()
    return math.nan if result is None else result.value


def changing(early: Traffic, late: Traffic, at_s: float) -> Traffic:
    moved = replace(late, arrival_s=late.arrival_s + at_s)
    return early.between(0, at_s).followed_by(moved)


def test_a_slower_server_is_found_by_how_much(promised: Promised) -> None:
    traffic = poisson(RATE, 400.0, seed=3)
    much = watched(promised, traffic, 400.0, slow_by=1.5)
    assert value(much, "slowness") == pytest.approx(1.5, rel=0.06)
    assert (much.verdict, much.server_is_why) == ("re-tune now", True)
    little = watched(promised, traffic, 400.0, slow_by=1.22)
    assert (little.verdict, little.beyond) == ("drifting", ["slowness"])


def test_a_known_contention_of_the_front_end_is_in_the_promise(promised: Promised) -> None:
    front_end = FrontEnd(1.2)
    twin = replace(promised.twin, machine=replace(promised.twin.machine, front_end=front_end))
    watch = watched(replace(promised, twin=twin), poisson(RATE, 300.0, seed=21), 300.0, slow_by=1.2)
    assert value(watch, "slowness") == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("late", "measure"),
    [
        (poisson(1.7 * RATE, 300.0, seed=5), "rate"),
        (poisson(0.5 * RATE, 300.0, seed=7, output=120), "output_length"),
    ],
)
def test_other_traffic_is_reported_as_traffic_and_not_as_a_slow_server(
    promised: Promised, late: Traffic, measure: str
) -> None:
    traffic = changing(poisson(RATE, 200.0, seed=4), late, 200.0)
    watch = watched(promised, traffic, 500.0)
    assert measure in watch.beyond
    assert watch.measures["slowness"].state == "within"
    assert not watch.server_is_why


@pytest.mark.parametrize(
    ("headroom", "validated", "most"),
    [(1.25, 1.25, 1.25), (1.5, 1.5, 1.5), (1.25, 1.0, 1.1), (1.0, 1.0, 1.25)],
)
def test_no_load_is_accepted_that_the_profiles_headroom_failed(
    promised: Promised, headroom: float, validated: float, most: float
) -> None:
    changed = replace(promised, headroom=headroom, validated_load=validated)
    assert changed.measures()["rate"].high == most


def test_traffic_that_would_choose_another_cap_is_to_be_tuned_for(promised: Promised) -> None:
    twin = replace(promised.twin, traffic=poisson(0.5, 300.0, seed=9), length_s=300.0)
    small = replace(promised, max_num_seqs=4, twin=twin, arrival_rate_rps=0.5)
    watch = watched(small, poisson(2 * RATE, 400.0, seed=8), 400.0, cap=4)
    assert watch.choice is not None
    assert watch.choice.best > 4
    assert (watch.verdict, "rate" in watch.beyond) == ("re-tune now", True)
    assert "the twin would choose max_num_seqs" in reason(watch)


def test_a_server_with_another_cap_is_not_called_slow(promised: Promised) -> None:
    watch = watched(promised, poisson(2 * RATE, 250.0, seed=13), 250.0, cap=32)
    assert watch.runs_another_cap
    assert watch.verdict in {"drifting", "re-tune now"}
    assert "does not run this profile" in reason(watch)
    assert watch.measures["slowness"].state != "above"


def test_other_buckets_after_a_restart_leave_every_measure_watched(promised: Promised) -> None:
    def halved(at_s: float, item: ServerMetrics) -> Mapping[str, ServerMetrics]:
        if at_s < 120:
            return {"0": item}
        fewer: dict[Distribution, Histogram] = {
            name: Histogram(each.bounds[::-2][::-1], each.counts[::-2][::-1], each.total)
            for name, each in item.distributions.items()
        }
        return {"0": replace(item, distributions=fewer)}

    watch = watched(promised, poisson(RATE, 400.0, seed=19), 400.0, seen=halved)
    assert watch.measures["ttft_excess"].windows > 3
    assert watch.beyond == []


def metrics(done: float, *, waiting: float = 0.0, started_s: float | None = None) -> ServerMetrics:
    """Return a server that has served ``done`` requests of 10 ms a token, 5 tokens each."""
    gaps = Histogram((0.005, 0.02, math.inf), (0.0, 4 * done, 4 * done), 0.04 * done)
    return ServerMetrics(
        gauges={"running": 2.0, "waiting": waiting},
        counters={"output_tokens": 5 * done},
        distributions={"itl_s": gaps},
        finish_reasons={"stop": done},
        started_s=started_s,
    )


@pytest.mark.parametrize(
    ("before", "after", "restarted", "finished", "gaps"),
    [
        (metrics(10), metrics(13), False, 3, 12),
        (metrics(10), metrics(4), True, 4, 16),
        (metrics(3, started_s=100.0), metrics(4, started_s=200.0), True, 4, 16),
        (metrics(10), ServerMetrics({"running": 2.0}, {}, {}), False, 0, None),
        (ServerMetrics({"running": 2.0}, {}, {}), metrics(10), False, 0, None),
    ],
    ids=["increments", "a counter fell", "another start", "nothing after", "nothing before"],
)
def test_a_step_is_what_came_between_two_readings(
    before: ServerMetrics, after: ServerMetrics, restarted: bool, finished: int, gaps: int | None
) -> None:
    result = Step.of(before, after, 0.0, 2.0)
    assert (result.restarted, result.finished) == (restarted, finished)
    assert (result.more.distributions["itl_s"].count if gaps else None) == gaps


def windows(
    readings: Mapping[float, Mapping[str, ServerMetrics]],
) -> tuple[list[ScrapeWindow], int]:
    maker = WindowMaker(10.0, 2.0)
    result = [maker.add(at_s, engines) for at_s, engines in readings.items()]
    return [window for window in result if window is not None], maker.missed


def test_windows_hold_all_that_happened_and_know_what_came_before() -> None:
    (first, second, third), missed = windows({2.0 * i: {"0": metrics(i)} for i in range(16)})
    assert [window.length_s for window in (first, second, third)] == [10.0] * 3
    assert sum(each.finished for each in second.every_step) == 5
    assert [len(window.run_in["0"]) for window in (first, third)] == [0, 10]
    assert missed == 0


def test_late_readings_do_not_shift_windows_and_a_long_gap_is_in_none() -> None:
    shaken = {2.0 * i + 0.3 * (-1) ** i: {"0": metrics(i)} for i in range(51)}
    assert len(windows(shaken)[0]) == 10
    long = {2.0 * i: {"0": metrics(i)} for i in range(31) if not 8 <= i <= 20}
    result, missed = windows(long)
    assert missed == 1
    assert all(window.begin_s >= 42 or window.end_s <= 14 for window in result)


def test_a_restart_is_counted_and_ends_the_run_in() -> None:
    readings = {2.0 * i: {"0": metrics(i if i < 8 else i - 8)} for i in range(16)}
    result, _ = windows(readings)
    assert [window.restarts for window in result] == [0, 1, 0]
    assert [each.restarted for each in result[2].run_in["0"]] == [True, False, False]


def test_a_counter_that_jumps_is_in_no_window() -> None:
    readings = {2.0 * i: {"0": metrics(i if i < 8 else i + 1e9, waiting=-3)} for i in range(16)}
    result, missed = windows(readings)
    assert missed == 1
    assert all(sum(each.finished for each in item.every_step) <= 10 for item in result)
    assert all(each.waiting == 0 for item in result for each in item.every_step)


def second_minute(server: SimulatedServer) -> ScrapeWindow:
    maker = WindowMaker(60.0, 2.0)
    result = [maker.add(float(at_s), {"0": server.scrape(at_s)}) for at_s in range(0, 122, 2)]
    return [window for window in result if window is not None][1]


@pytest.mark.parametrize("cap", [16, 2], ids=["nothing queues", "much queues"])
def test_todays_requests_are_as_many_and_as_long_as_were_counted(cap: int) -> None:
    traffic = poisson(3.0, 120.0, seed=2, output=60)
    window = second_minute(simulated(WORLD, traffic, cap=cap, until_s=120.0))
    steps = window.steps["0"]
    inside = (traffic.arrival_s > window.begin_s) & (traffic.arrival_s <= window.end_s)
    assert int(arrivals(steps).sum()) == pytest.approx(int(inside.sum()), abs=2)
    today = traffic_like(steps, STORED, seed=0)
    assert (today.arrival_s < window.begin_s).sum() == round(steps[0].in_flight)
    assert (np.diff(today.arrival_s) >= 0).all()
    counted = steps[0].more.distributions["output_length"]
    for each in steps[1:]:
        counted = counted.plus(each.more.distributions["output_length"])
    assert today.output_length.mean() == pytest.approx(counted.mean, rel=0.02)
    again = traffic_like(steps, STORED, seed=0)
    assert np.array_equal(today.output_length, again.output_length)
