"""The canary gate: two servers at the same moments, compared at their own loads."""

from dataclasses import replace

import pytest

from tests.live_sim import SimulatedServer, poisson, simulated
from tests.test_watch import CAP, RATE, WORLD
from tests.test_watch import promised as promised  # noqa: PLC0414 - a fixture
from tuner.watch.canary import CanaryGate
from tuner.watch.promised import Promised
from tuner.watch.verdict import Watch
from tuner.watch.windows import WindowMaker

LENGTH_S = 600.0


def judged(promised: Promised, baseline: SimulatedServer, canary: SimulatedServer) -> CanaryGate:
    gate = CanaryGate()
    makers = [WindowMaker(10.0, 2.0, 60.0) for _ in range(2)]
    watches = [Watch(promised) for _ in range(2)]
    for place in range(int(LENGTH_S / 2) + 1):
        at_s = 2.0 * place
        windows = [
            maker.add(at_s, {"0": server.scrape(at_s)})
            for maker, server in zip(makers, (baseline, canary), strict=True)
        ]
        pairs = []
        for watch, window in zip(watches, windows, strict=True):
            if window is not None:
                found = watch.compared(window, cap=promised.max_num_seqs)
                watch.account(window, found)
                pairs.append((window, found))
        if len(pairs) == 2:
            gate.add(pairs[0], pairs[1])
        if gate.decision != "undecided":
            break
    return gate


def server(rate_rps: float, seed: int, *, a: float = WORLD.step.a) -> SimulatedServer:
    world = replace(WORLD, step=replace(WORLD.step, a=a), seed=seed)
    return simulated(world, poisson(rate_rps, LENGTH_S, seed=seed), cap=CAP, until_s=LENGTH_S)


def test_a_canary_like_its_baseline_is_promoted_before_the_time_is_over(
    promised: Promised,
) -> None:
    gate = judged(promised, server(RATE, 30), server(RATE, 31))
    assert gate.decision == "promote"
    assert gate.pairs < 60
    assert "time per output token" in gate.reason


def test_a_canary_with_a_tenth_of_the_traffic_is_compared_at_its_own_load(
    promised: Promised,
) -> None:
    """Its tokens come faster, because its batches are small: that is no merit of its own."""
    gate = judged(promised, server(1.2 * RATE, 22), server(0.2 * RATE, 23))
    effect = gate.measures()["tpot"].value
    assert effect is not None
    assert effect.value == pytest.approx(1.0, abs=0.06)
    assert gate.decision != "roll back"


def test_a_slower_canary_is_rolled_back_early_and_told_by_how_much(promised: Promised) -> None:
    gate = judged(promised, server(RATE, 24), server(RATE, 25, a=WORLD.step.a * 1.4))
    assert gate.decision == "roll back"
    assert gate.pairs < 45
    assert "time per output token +" in gate.reason
    assert "the limit is +10%" in gate.reason


def test_the_same_server_twice_is_never_rolled_back(promised: Promised) -> None:
    one = server(RATE, 26)
    gate = judged(promised, one, one)
    assert gate.decision == "promote"
    effect = gate.measures()["tpot"].value
    assert effect is not None
    assert effect.value == 1.0


def test_without_enough_requests_it_stays_undecided_and_says_what_is_open(
    promised: Promised,
) -> None:
    gate = judged(promised, server(RATE, 27), server(0.005, 28))
    assert gate.decision == "undecided"
    assert "not ruled out: time per output token" in gate.reason


def test_a_canary_that_is_gone_is_rolled_back() -> None:
    gate = CanaryGate(gone="http://canary/metrics: no answer: Connection refused")
    assert gate.decision == "roll back"
    assert "does not answer any more" in gate.reason
