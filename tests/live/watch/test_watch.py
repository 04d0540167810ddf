"""What a watch says of a simulated server: honest, slower, with other traffic, or another cap."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.live_sim import SimulatedServer, poisson, profile_of, simulated
from tuner.engines.sim.world import World, WorldKv, WorldNoise, WorldStep
from tuner.live.prometheus import Histogram, ServerMetrics
from tuner.live.watch.traffic import reference
from tuner.live.watch.verdict import Promised, Watch
from tuner.live.watch.verdict_text import reason
from tuner.live.watch.windows import WindowMaker
from tuner.profile.stored_twin import restored
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
"""Fewer than a profile keeps: as few as tell one in 20, which is all that a watch asks of them."""

HONEST_S = 1000.0


@pytest.fixture(scope="session")
def promised() -> Promised:
    return of_world()


@cache
def of_world() -> Promised:
    """Return what a profile of the world promises: the same for every module."""
    one = profile_of(WORLD, STORED, STORED_S, cap=CAP, caps=CAPS)
    assert one.twin is not None
    twin = restored(one.twin, source="here")
    return Promised(
        twin=replace(twin, laws=twin.laws[:LAWS]),
        slo=one.decision.slo.slo,
        max_num_seqs=CAP,
        caps=CAPS,
        headroom=1.0,
        reference=reference(twin, captured_rps=RATE, validated_load=1.25),
        tolerance=0.10,
    )


def watched(promised: Promised, servers: dict[str, SimulatedServer], until_s: float) -> Watch:
    maker, watch = WindowMaker(10.0, 2.0, 60.0), Watch(promised)
    for place in range(int(until_s / 2) + 1):
        at_s = 2.0 * place
        window = maker.add(at_s, {name: one.scrape(at_s) for name, one in servers.items()})
        if window is not None:
            watch.add(window)
    watch.ask()
    return watch


def joined(one: Traffic, other: Traffic, from_s: float) -> Traffic:
    """Return one kind of traffic and from some time on another."""
    early, late = one.between(0, from_s), other
    return Traffic(
        np.concatenate((early.arrival_s, late.arrival_s + from_s)),
        np.concatenate((early.input_length, late.input_length)),
        np.concatenate((early.output_length, late.output_length)),
        np.concatenate((early.cached_length, late.cached_length)),
    )


def test_an_honest_server_is_still_valid_and_nothing_alarms_in_100_windows(
    promised: Promised,
) -> None:
    traffic = poisson(RATE, HONEST_S, seed=2)
    maker, watch = WindowMaker(10.0, 2.0, 60.0), Watch(promised)
    server = simulated(WORLD, traffic, cap=CAP, until_s=HONEST_S)
    said = []
    for place in range(int(HONEST_S / 2) + 1):
        window = maker.add(2.0 * place, {"0": server.scrape(2.0 * place)})
        if window is not None:
            watch.add(window)
            said.append(watch.verdict)
    assert len(said) == 100
    assert set(said) == {"not enough evidence", "still valid"}
    assert said[-1] == "still valid"
    assert watch.beyond == []
    slowdown = watch.measures()["slowness"].value
    assert slowdown is not None
    assert slowdown.value == pytest.approx(1.0, abs=0.05)
    assert "the choice of 16 holds" in reason(watch)
    assert watch.requests == pytest.approx(len(traffic), abs=10)


def test_a_server_that_becomes_slower_is_told_with_the_window_and_how_much(
    promised: Promised,
) -> None:
    traffic = poisson(RATE, 500.0, seed=3)
    server = simulated(WORLD, traffic, cap=CAP, until_s=500.0, slow_from_s=200.0, slow_by=1.4)
    watch = watched(promised, {"0": server}, 500.0)
    assert watch.beyond == ["slowness"]
    found = watch.measures()["slowness"]
    assert found.value is not None
    assert found.value.value == pytest.approx(1.4, abs=0.06)
    assert watch.verdict == "re-tune now"
    assert watch.server_is_why
    assert "times what the profile predicts" in reason(watch)


def test_a_little_over_the_limit_is_drift_and_not_another_engine(promised: Promised) -> None:
    """Slower by 22 %: beyond 14 %, and not surely beyond 27 %."""
    traffic = poisson(RATE, 400.0, seed=17)
    server = simulated(WORLD, traffic, cap=CAP, until_s=400.0, slow_from_s=0.0, slow_by=1.22)
    watch = watched(promised, {"0": server}, 400.0)
    assert watch.beyond == ["slowness"]
    assert not watch.is_far_slower
    assert watch.verdict == "drifting"


def test_other_lengths_are_a_reason_beside_the_server(promised: Promised) -> None:
    """Slower, with the mean prompt as ever but none of 50 to 150 tokens: not the server alone."""
    rng = np.random.default_rng(18)
    plain = poisson(RATE, 500.0, seed=18)
    prompts = rng.choice([20, 200], len(plain))
    other = Traffic(plain.arrival_s, prompts, plain.output_length, plain.cached_length)
    server = simulated(WORLD, other, cap=CAP, until_s=500.0, slow_from_s=0.0, slow_by=1.22)
    watch = watched(promised, {"0": server}, 500.0)
    assert watch.beyond == ["slowness"]
    assert watch.lengths.distant == ["input_length"]
    assert not watch.server_is_why


def test_heavier_traffic_is_told_as_traffic_and_not_as_a_slow_server(promised: Promised) -> None:
    light, heavy = poisson(RATE, 200.0, seed=4), poisson(1.7 * RATE, 300.0, seed=5)
    server = simulated(WORLD, joined(light, heavy, 200.0), cap=CAP, until_s=500.0)
    watch = watched(promised, {"0": server}, 500.0)
    assert watch.beyond == ["rate"]
    assert watch.measures()["slowness"].state == "within"
    assert not watch.server_is_why
    assert "the rate is 1." in reason(watch)


@pytest.mark.parametrize(
    ("headroom", "validated_load", "most"),
    [(1.25, 1.25, 1.25), (1.5, 1.5, 1.5), (1.25, 1.0, 1.1), (1.5, 1.25, 1.1), (1.0, 1.0, 1.25)],
    ids=["validated", "more validated", "failed", "more failed", "not asked"],
)
def test_no_load_is_accepted_that_the_profiles_headroom_failed(
    promised: Promised, headroom: float, validated_load: float, most: float
) -> None:
    limits = reference(
        promised.twin, captured_rps=RATE, validated_load=validated_load, headroom=headroom
    ).limits["rate"]
    assert limits.high == most


def test_longer_outputs_are_told(promised: Promised) -> None:
    light, long = poisson(RATE, 200.0, seed=6), poisson(0.5 * RATE, 300.0, seed=7, output=120)
    server = simulated(WORLD, joined(light, long, 200.0), cap=CAP, until_s=500.0)
    watch = watched(promised, {"0": server}, 500.0)
    assert "output_length" in watch.beyond
    assert watch.measures()["slowness"].state == "within"


def test_traffic_that_would_choose_another_cap_is_to_be_tuned_for(promised: Promised) -> None:
    """Twice the requests need more than 16 slots, or wait."""
    small = replace(promised, max_num_seqs=4)
    server = simulated(WORLD, poisson(2 * RATE, 400.0, seed=8), cap=4, until_s=400.0)
    honest = replace(
        small,
        twin=replace(promised.twin, traffic=poisson(0.5, 300.0, seed=9), length_s=300.0),
        reference=reference(
            replace(promised.twin, traffic=poisson(0.5, 300.0, seed=9), length_s=300.0),
            captured_rps=0.5,
            validated_load=1.25,
        ),
    )
    watch = watched(honest, {"0": server}, 400.0)
    assert "rate" in watch.beyond
    assert watch.choice is not None
    assert watch.choice.best > 4
    assert watch.choice.is_another
    assert watch.verdict == "re-tune now"
    assert "the twin would choose max_num_seqs" in reason(watch)


def test_several_engines_are_each_held_against_their_own_part(promised: Promised) -> None:
    servers = {
        str(i): simulated(WORLD, poisson(RATE, 300.0, seed=10 + i), cap=CAP, until_s=300.0)
        for i in range(2)
    }
    watch = watched(promised, servers, 300.0)
    assert watch.beyond == []
    rate, slowdown = (watch.measures()[name].value for name in ("rate", "slowness"))
    assert rate is not None
    assert rate.value == pytest.approx(1.0, abs=0.15)
    assert slowdown is not None
    assert slowdown.value == pytest.approx(1.0, abs=0.06)


def test_a_server_with_another_cap_is_told_and_not_taken_for_a_slow_one(
    promised: Promised,
) -> None:
    server = simulated(WORLD, poisson(2 * RATE, 250.0, seed=13), cap=32, until_s=250.0)
    watch = watched(promised, {"0": server}, 250.0)
    assert watch.runs_another_cap
    assert watch.verdict in {"drifting", "re-tune now"}
    assert "does not run this profile" in reason(watch)
    assert watch.measures()["slowness"].state != "above"


def test_a_restart_in_between_is_counted_and_nothing_else(promised: Promised) -> None:
    one = simulated(WORLD, poisson(RATE, 200.0, seed=14), cap=CAP, until_s=200.0)
    two = simulated(WORLD, poisson(RATE, 200.0, seed=15), cap=CAP, until_s=200.0)
    maker, watch = WindowMaker(10.0, 2.0, 60.0), Watch(promised)
    for place in range(201):
        at_s = 2.0 * place
        server = one.scrape(at_s) if at_s <= 200 else two.scrape(at_s - 200)
        window = maker.add(at_s, {"0": server})
        if window is not None:
            watch.add(window)
    assert maker.restarts == 1
    assert watch.beyond == []


def test_other_buckets_after_a_restart_leave_every_measure_watched(promised: Promised) -> None:
    server = simulated(WORLD, poisson(RATE, 400.0, seed=19), cap=CAP, until_s=400.0)
    maker, watch = WindowMaker(10.0, 2.0, 60.0), Watch(promised)
    for place in range(201):
        scraped = server.scrape(2.0 * place)
        if place >= 60:  # the newer server has half the bounds
            scraped = replace(
                scraped,
                distributions={
                    name: Histogram(one.bounds[::-2][::-1], one.counts[::-2][::-1], one.total)
                    for name, one in scraped.distributions.items()
                },
            )
        window = maker.add(2.0 * place, {"0": scraped})
        if window is not None:
            watch.add(window)
    assert watch.measures()["ttft_excess"].batches > 4
    assert watch.beyond == []


def test_no_traffic_is_no_evidence(promised: Promised) -> None:
    nothing = Traffic.of([])
    server = simulated(WORLD, nothing, cap=CAP, until_s=100.0)
    watch = watched(promised, {"0": server}, 100.0)
    assert watch.verdict == "not enough evidence"
    assert "watch during traffic" in reason(watch)
    assert " and its requests; no request came: " in reason(watch)


def test_a_server_that_tells_little_is_judged_by_what_it_tells(promised: Promised) -> None:
    server = simulated(WORLD, poisson(RATE, 300.0, seed=16), cap=CAP, until_s=300.0)
    maker, watch = WindowMaker(10.0, 2.0, 60.0), Watch(promised)
    for place in range(151):
        full = server.scrape(2.0 * place)
        less = ServerMetrics(
            full.gauges, {}, {"e2el_s": full.distributions["e2el_s"]}, full.finish_reasons
        )
        window = maker.add(2.0 * place, {"0": less})
        if window is not None:
            watch.add(window)
    assert watch.measures()["slowness"].batches == 0
    assert watch.measures()["rate"].batches > 3
    assert watch.verdict == "not enough evidence"
    assert "the server's speed" in reason(watch)


def test_a_front_end_that_takes_cpu_is_in_the_promise(promised: Promised) -> None:
    """A server whose front end slows its engine by a fifth is as slow as was promised."""
    front_end = FrontEnd(1.2, request_s=0.0, input_token_s=0.0, delivery_s=0.0)
    twin = replace(promised.twin, machine=replace(promised.twin.machine, front_end=front_end))
    server = simulated(
        WORLD, poisson(RATE, 300.0, seed=21), cap=CAP, until_s=300.0, slow_from_s=0.0, slow_by=1.2
    )
    speeds = [
        watched(replace(promised, twin=one), {"0": server}, 300.0).measures()["slowness"].value
        for one in (twin, promised.twin)
    ]
    assert [round(one.value, 1) for one in speeds if one] == [1.0, 1.2]
