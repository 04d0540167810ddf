"""What is concluded, and what it rests on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import facts, record, replay_of, request, settings
from tuner.engines.scheduler.state import StepLaw
from tuner.errors import RunError
from tuner.replay.records import Replay
from tuner.runs import journal
from tuner.runs.journal import EngineStart, Gathered, Tried
from tuner.runs.sweep.conclusion import Basis, Conclusion, conclude, window_curve
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import workload_of
from tuner.twin.simulation import Traffic, shape_of, simulate

SLO = Slo(ttft_s=10.0)
# 64 prompt tokens each, of which all but the first request's came before.
REQUESTS = [request(row, input_length=64, hash_ids=(1, 2, 3, 4)) for row in range(100)]


def ramped(
    folder: Path,
    *,
    prefix_caching: bool,
    kv_blocks: int = 1000,
    rung: Replay | None = None,
    closed_sessions: bool = False,
) -> Conclusion:
    """Conclude from a ramp alone, or a rung too, on an engine that takes 10 ms for an iteration."""
    arguments = {"max_num_batched_tokens": 512, "enable_prefix_caching": prefix_caching}
    engine = facts(arguments=arguments, kv_blocks=kv_blocks)
    busy = Traffic.of((0.1 * row, 20, 20) for row in range(200))
    law = StepLaw(np.full(9, 0.010), 1e-5, 0.0, 0.0, 0.0)
    log = simulate(busy, law, shape_of(engine), max_num_seqs=8, log=True).iterations
    book = journal.opened(folder, {"trace_digest": "sha256:1", "seed": 0})
    book.add(EngineStart(purpose="ladder", max_num_seqs=8, facts=engine))
    ramp = replay_of([], max_num_seqs=8, iterations=log)
    book.add_replay(ramp, Tried("ramp", 8))
    if rung is not None:
        book.add_replay(rung, Tried("ladder", rung.max_num_seqs))
    book.add(Gathered(complete=True))
    book.close()
    unloaded = Unloaded(ttft_s=0.01, ttft_s_per_input_token=0.0, tpot_s=0.01)
    part, window = Window(0.0, 100.0), Window(0.0, 10.0)
    workload = workload_of(REQUESTS, SLO, unloaded, part, window, 10.0)
    run = journal.read(folder)
    changed = replace(settings(SLO, ceiling=8), closed_sessions=closed_sessions)
    return conclude(Basis(run, workload, changed))


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_without_a_window_the_prefix_cache_is_taken_to_hold_what_came_before(
    tmp_path: Path, *, prefix_caching: bool
) -> None:
    conclusion = ramped(tmp_path, prefix_caching=prefix_caching)
    assert conclusion.view is not None
    cached = 99 * 64 if prefix_caching else 0
    assert conclusion.view.traffic.cached_length.sum() == cached


LOST = replay_of([record()], max_num_seqs=2, cut="hopeless", unsent=9, attainment_bound=0.3)


@pytest.mark.parametrize(("slo", "source"), [(SLO, "both"), (Slo(ttft_s=0.5), "twin")])
def test_a_step_that_another_slo_cut_counts_by_the_twin_alone(
    tmp_path: Path, slo: Slo | None, source: str
) -> None:
    conclusion = ramped(tmp_path, prefix_caching=False, rung=replace(LOST, slo=slo))
    assert conclusion.promised is not None
    steps = {each.numbers.max_num_seqs: each for each in conclusion.curve}
    assert steps[2].source == source
    assert (steps[2].measured is None) is (source == "twin")


def test_where_the_windows_decide_a_step_that_another_slo_cut_says_nothing(tmp_path: Path) -> None:
    alone = replace(LOST, slo=SLO)
    conclusion = ramped(tmp_path / "a", prefix_caching=False, rung=alone, closed_sessions=True)
    assert [step.numbers.attainment_bound for step in conclusion.curve] == [0.3]
    strict = replace(LOST, slo=Slo(ttft_s=0.5))
    with pytest.raises(RunError, match="under this SLO"):
        ramped(tmp_path / "b", prefix_caching=False, rung=strict, closed_sessions=True)


def rungs(folder: Path) -> journal.Journal:
    """Return a run in which requests of ten tokens after the first held their slots for 2 s, and
    all were in time, at caps of 2 and of 4."""
    held = {"output_length": 11, "output_tokens": 11, "end_s": 2.25, "last_s": 2.25}
    seen = [record(row, **held) for row in range(10)]
    book = journal.opened(folder, {"trace_digest": "sha256:1", "seed": 0})
    book.add(EngineStart(purpose="ladder", max_num_seqs=4, facts=facts()))
    for cap in (2, 4):
        tried = Tried("ladder", cap)
        book.add_replay(replay_of(seen, max_num_seqs=cap), tried)
    book.add(Gathered(complete=True))
    book.close()
    return journal.read(folder)


def test_a_queue_that_grows_over_all_of_the_traffic_counts_where_the_windows_decide(
    tmp_path: Path,
) -> None:
    """Two come a second, for each of which 2 s of a slot are needed: 4 slots are enough, and with 2
    each waits half a second longer than the one before: twelve of a hundred at most 5 s."""
    unloaded = Unloaded(ttft_s=0.0, ttft_s_per_input_token=0.0, tpot_s=0.1)
    came = [request(row, arrival_s=0.5 * row, output_length=11) for row in range(100)]
    slo, part, window = Slo(ttft_s=5.0), Window(0.0, 50.0), Window(0.0, 10.0)
    workload = workload_of(came, slo, unloaded, part, window, 10.0)
    open_loop = Basis(rungs(tmp_path), workload, settings(slo, ceiling=4))
    closed = open_loop._replace(settings=replace(open_loop.settings, closed_sessions=True))
    for basis, shares, cap in ((open_loop, [0.12, 1.0], 4), (closed, [1.0, 1.0], 2)):
        assert [each.attainment for each in window_curve(basis).values()] == shares
        assert conclude(basis).verdict.max_num_seqs == cap
