"""The canary gate: two servers at the same moments, compared at their own loads."""

from dataclasses import replace

import pytest

from tests.live.watch.test_watch import CAP, RATE, WORLD
from tests.live.watch.test_watch import promised as promised  # noqa: PLC0414 - a fixture
from tests.support.live_sim import SimulatedServer, poisson, simulated
from tuner.live.watch.canary import CanaryGate, kv_blocks_said, paired
from tuner.live.watch.promised import Promised
from tuner.live.watch.verdict import Watch
from tuner.live.watch.windows import WindowMaker

LENGTH_S = 450.0


def gate_of(promised: Promised, baseline: SimulatedServer, canary: SimulatedServer) -> CanaryGate:
    gate = CanaryGate(promised)
    makers = [WindowMaker(10.0, 2.0, 60.0) for _ in range(2)]
    watches = (Watch(promised), Watch(promised))
    for place in range(int(LENGTH_S / 2) + 1):
        at_s = 2.0 * place
        windows = [
            maker.add(at_s, {"0": server.scrape(at_s)})
            for maker, server in zip(makers, (baseline, canary), strict=True)
        ]
        if windows[0] is not None and windows[1] is not None:
            pair = paired(watches, (windows[0], windows[1]), kv_blocks=None)
            gate.add(pair.baseline, pair.canary, incomparable=pair.incomparable)
            watches[0].account(*pair.baseline)
            watches[1].account(*pair.canary)
        if gate.decision != "undecided":
            break
    return gate


def server(
    rate_rps: float, seed: int, *, a: float = WORLD.step.a, cap: int = CAP
) -> SimulatedServer:
    world = replace(WORLD, step=replace(WORLD.step, a=a), seed=seed)
    return simulated(world, poisson(rate_rps, LENGTH_S, seed=seed), cap=cap, until_s=LENGTH_S)


def test_a_canary_like_its_baseline_is_promoted_before_the_time_is_over(
    promised: Promised,
) -> None:
    gate = gate_of(promised, server(RATE, 30), server(RATE, 31))
    assert gate.decision == "promote"
    assert gate.pairs < 60
    assert "time per output token" in gate.reason


def test_a_canary_with_a_tenth_of_the_traffic_is_compared_at_its_own_load(
    promised: Promised,
) -> None:
    """Its tokens come faster, because its batches are small: that is no merit of its own."""
    gate = gate_of(promised, server(1.2 * RATE, 22), server(0.2 * RATE, 23))
    effect = gate.measures()["tpot"].value
    assert effect is not None
    assert effect.value == pytest.approx(1.0, abs=0.06)
    assert gate.decision != "roll back"


def test_a_slower_canary_is_rolled_back_early_and_told_by_how_much(promised: Promised) -> None:
    gate = gate_of(promised, server(RATE, 24), server(RATE, 25, a=WORLD.step.a * 1.4))
    assert gate.decision == "roll back"
    assert gate.pairs < 45
    assert "time per output token +" in gate.reason
    assert "the limit is +10%" in gate.reason


def test_a_baseline_of_a_smaller_cap_does_not_make_its_canary_look_slow(
    promised: Promised,
) -> None:
    """With 4 at a time its tokens come faster, and its requests wait: as the twin says."""
    gate = gate_of(promised, server(RATE, 40, cap=4), server(RATE, 41))
    effect = gate.measures()["tpot"].value
    assert effect is not None
    assert effect.value == pytest.approx(1.0, abs=0.06)
    assert gate.decision != "roll back"


def test_a_baseline_of_a_larger_cap_does_not_make_its_canary_look_fast(
    promised: Promised,
) -> None:
    """With 16 at a time its tokens come slower by a quarter than with 4."""
    small = replace(promised, max_num_seqs=4)
    canary = server(0.3 * RATE, 43, a=WORLD.step.a * 1.3, cap=4)
    gate = gate_of(small, server(1.2 * RATE, 42), canary)
    effect = gate.measures()["tpot"].value
    assert effect is not None
    assert effect.value > 1.15
    assert gate.decision == "roll back"
    assert "time per output token +" in gate.reason


def test_beside_a_baseline_beyond_the_twin_the_promise_alone_counts(promised: Promised) -> None:
    """The twin knows 32 at a time at most, and this baseline runs 64."""
    busy = server(4 * RATE, 44, cap=64)
    gate = gate_of(promised, busy, server(RATE, 45))
    assert gate.decision == "promote"
    assert "against the promise alone, for the baseline ran" in gate.reason
    gate = gate_of(promised, busy, server(RATE, 46, a=WORLD.step.a * 1.5))
    assert gate.decision == "roll back"
    assert "time of iterations over the law +" in gate.reason


def test_a_canary_that_runs_another_cap_is_never_promoted(promised: Promised) -> None:
    one = server(1.1 * RATE, 47, cap=32)
    gate = gate_of(promised, one, one)
    assert gate.decision == "undecided"
    assert "it does not run this profile" in gate.reason


def test_the_tolerance_is_how_much_slower_a_canary_may_be(promised: Promised) -> None:
    slow = server(RATE, 25, a=WORLD.step.a * 1.25)
    assert gate_of(promised, server(RATE, 24), slow).effects["tpot"].state == "above"
    patient = gate_of(replace(promised, tolerance=0.5), server(RATE, 24), slow)
    assert patient.effects["tpot"].state == "within"


def test_a_canary_that_restarts_again_and_again_does_not_stay_up(promised: Promised) -> None:
    gate = CanaryGate(promised)
    gate.restarted(1, 2)
    assert "restarted once" in gate.reason
    assert gate.decision != "roll back"
    gate.restarted(1, 3)
    assert gate.reason.startswith("the canary was restarted 2 times, more than the baseline")
    decision: str = gate.decision
    assert decision == "roll back"


def test_the_memory_of_a_baseline_is_the_one_it_tells() -> None:
    said = {"num_gpu_blocks": "1001", "block_size": "32"}
    assert kv_blocks_said(said, block_size=16) == 2000
    for odd in ({}, {**said, "num_gpu_blocks": "None"}, {**said, "block_size": "0"}):
        assert kv_blocks_said(odd, block_size=16) is None


def test_the_same_server_twice_is_never_rolled_back(promised: Promised) -> None:
    one = server(RATE, 26)
    gate = gate_of(promised, one, one)
    assert gate.decision == "promote"
    effect = gate.measures()["tpot"].value
    assert effect is not None
    assert effect.value == 1.0


def test_without_enough_requests_it_stays_undecided_and_says_what_is_open(
    promised: Promised,
) -> None:
    gate = gate_of(promised, server(RATE, 27), server(0.005, 28))
    assert gate.decision == "undecided"
    assert "not ruled out: time per output token" in gate.reason


def test_a_canary_that_is_gone_is_rolled_back(promised: Promised) -> None:
    gate = CanaryGate(promised, gone="does not answer any more: Connection refused")
    assert gate.decision == "roll back"
    assert "does not answer any more" in gate.reason
