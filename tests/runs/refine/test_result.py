"""What a refinement tells of its trials: every one that served, where, and why it was ended."""

import asyncio
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.builders import iterations, measurement, record, replay_of, settings
from tests.support.profiles import profile
from tuner.commands.refine.view import trials_table
from tuner.commands.sweep.view import RunProgress
from tuner.replay.records import Replay
from tuner.runs import journal
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.acceptance import PairedRatio, PairedResult
from tuner.runs.refine.comparison import SIDES, compare, half_s
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, Space
from tuner.runs.refine.objective import GOODPUT, Objective, parse_objectives
from tuner.runs.refine.refinement import (
    TrialRow,
    changed_besides,
    pareto,
    reason_of,
    trial_table,
    unlike,
)
from tuner.runs.refine.scoring import Scoring, SearchProblem
from tuner.runs.refine.surrogate import Surrogate
from tuner.runs.refine.trial_runner import (
    SEARCH,
    Build,
    FinishedTrial,
    Floors,
    LocalTrialRunner,
    VllmVary,
    no_floors,
)
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import Workload, workload_of

KNEE = {CAP: 16, TOKENS: 2048, "long_prefill_token_threshold": 512}
SLO = Slo(ttft_s=2.0)
SETTINGS = settings(SLO, ceiling=16)
WORKLOAD = workload_of(
    [TraceRequest(row, float(row), 10, 5) for row in range(10)],
    SLO,
    Unloaded(0.01, 0.0, 0.01),
    Part(0.0, 10.0),
    [Window(0.0, 10.0, 0.0)] * 2,
    6.0,
)
HOPELESS = "its attainment is certain to stay below 0.78"


def replays(good: int, *, cut: str | None = None) -> list[Replay]:
    """Return the replays of two windows of two requests each, of which so many are good."""
    late = [2.5 if row >= good else 1.0 for row in range(4)]
    records = [record(row, first_token_s=first_s) for row, first_s in enumerate(late)]
    bound = {} if cut is None else {"attainment_bound": 0.5}
    return [replay_of(records[:2]), replay_of(records[2:], cut=cut, **bound)]


Trials = Sequence[tuple[Configuration, str, Sequence[Replay], str | None]]
"""Configuration, worker, replays, why it failed."""


def runner_of(run_dir: Path, trials: Trials, purposes: Sequence[str] = ()) -> LocalTrialRunner:
    """Return what has made these trials, for the search where nothing else is said."""
    book = journal.create(run_dir, {})
    for number, (one, worker, measured, failed) in enumerate(trials):
        what = {"purpose": purposes[number] if purposes else "search", "max_num_seqs": one[CAP]}
        book.append("trial", **what, configuration=dict(one), at_s=0.0)
        for place, replay in enumerate(measured):
            book.append_replay(replay, **what, elapsed_s=10.0, window=place, trial=number, at_s=0.0)
        book.append("measured", failed=failed, engine=1, worker=worker, at_s=0.0)
    book.close()
    vary, evidence = VllmVary({}), Evidence(book)
    runner = EngineRunner(vary({}), SETTINGS, evidence, RunProgress(SETTINGS.budget_s), None)
    return LocalTrialRunner(runner, vary)


def scoring_of(run_dir: Path, trials: Trials) -> Scoring:
    runner = runner_of(run_dir, trials)
    space = Space(knobs=(), knee=KNEE, left_out=())
    problem = SearchProblem(
        space=space, objectives=[GOODPUT], workload=WORKLOAD, knee=runner.done()[0], surrogate=None,
        budget_s=600.0, start_s=0.0, step_s=6.0, build=Build(16, 2048),
        hash_block_size=16,
    )  # fmt: skip
    return Scoring(runner, problem)


class Controlling(Surrogate):
    """A twin that has a control variate of the replays of each cap, and says nothing else."""

    def __init__(self, controls: Mapping[object, float]) -> None:
        self.controls = controls

    def tells(self, one: Configuration) -> bool:
        return one[CAP] in self.controls

    def foresee(self, one: Configuration, *, sure: bool = True) -> None:
        """Say nothing of its own."""

    def control_variate(
        self, one: Configuration, _replays: Sequence[Replay], aims: Sequence[Objective]
    ) -> tuple[float, ...]:
        return (self.controls[one[CAP]],) * len(aims)


@pytest.mark.parametrize(
    ("controls", "gain", "deficit"),
    [
        ({16: 0.0, 12: 0.0}, 0.0, -0.01),
        ({16: -0.2, 12: -0.1}, 0.0, -0.01),  # nobody serves more than all
        ({16: 0.0, 12: 0.2}, math.log(0.8), 0.19),
        ({16: 0.2, 12: 0.0}, -math.log(0.8), -0.21),
    ],
)
def test_a_control_variate_is_taken_out_of_what_both_served(
    tmp_path: Path, controls: dict[object, float], gain: float, deficit: float
) -> None:
    other = {**KNEE, CAP: 12}
    scoring = scoring_of(tmp_path, [(KNEE, "", replays(4), None), (other, "", replays(4), None)])
    scoring.problem = replace(scoring.problem, surrogate=Controlling(controls))
    found = scoring.score(scoring.runner.done()[1])
    assert found is not None
    assert found.gains == pytest.approx((gain,))
    assert found.deficit == pytest.approx(deficit)


def test_what_the_pairs_say_is_what_they_replayed_and_the_forecast_stands_beside(
    tmp_path: Path,
) -> None:
    other = {**KNEE, CAP: 12}
    knee, refined = (KNEE, "", replays(2), None), (other, "", replays(4), None)
    runner = runner_of(tmp_path, [refined, knee, knee, refined] * 2, [*SIDES, *SIDES])
    found = asyncio.run(
        compare(
            runner, other, KNEE, workloads=[WORKLOAD] * 4, objective=GOODPUT,
            forecasts={"goodput": math.log(1.25)},
        )
    )  # fmt: skip
    goodput = found.ratios["goodput"]
    assert (found.pairs, goodput.value, goodput.forecast) == (4, 2.0, 1.25)
    assert found.accepted is not None


def test_what_breaks_the_slo_is_not_the_best_however_much_it_gains(tmp_path: Path) -> None:
    """Half the time per token, for requests of which half begin too late."""
    other, kept = {**KNEE, CAP: 32}, {**KNEE, CAP: 24}

    def paced(good: int, tpot_s: float) -> list[Replay]:
        return [
            replace(one, records=tuple(replace(each, tpot_s=tpot_s) for each in one.records))
            for one in replays(good)
        ]

    trials = [
        (KNEE, "", paced(4, 0.5), None),
        (other, "", paced(2, 0.25), None),
        (kept, "", paced(4, 0.4), None),
    ]
    scoring = scoring_of(tmp_path, trials)
    scoring.problem = replace(scoring.problem, objectives=parse_objectives("tpot"))
    gains = {one[CAP]: score.gains[0] for one, score in scoring.scores()}
    assert gains[32] > gains[24] > 0.1
    assert scoring.best() == kept


@pytest.mark.parametrize(
    ("used", "preemptions", "best"), [(60, 0, 8000), (95, 0, 10_000), (60, 1, 10_000)]
)
def test_less_memory_must_keep_the_cache_off_its_limit(
    tmp_path: Path, used: int, preemptions: int, best: int
) -> None:
    memory = "kv_cache_memory_bytes"
    knee = {**KNEE, memory: 10_000}
    work = iterations(
        [{"duration_s": 1.0, "kv_blocks_used": used, "preemptions": preemptions, "running": 1}]
    )
    small = [replace(one, iterations=work, kv_blocks=100) for one in replays(4)]
    scoring = scoring_of(
        tmp_path, [(knee, "", replays(4), None), ({**knee, memory: 8000}, "", small, None)]
    )
    scoring.problem = replace(scoring.problem, space=Space(knobs=(), knee=knee, left_out=()))
    assert scoring.best()[memory] == best


class Noting(LocalTrialRunner):
    """A runner that makes no trial but writes it down, as made by that worker."""

    def __init__(self, run_dir: Path, *, good: Mapping[str, int], worker: str = "") -> None:
        vary = VllmVary({})
        book = journal.create(run_dir, {})
        runner = EngineRunner(
            vary({}), SETTINGS, Evidence(book), RunProgress(SETTINGS.budget_s), None
        )
        super().__init__(runner, vary)
        self.good, self.worker, self.builds = good, worker, list[Build]()

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors = no_floors,
    ) -> FinishedTrial:
        assert workload.windows
        assert not floors("")
        book = self.evidence.journal
        what = {"purpose": purpose, "max_num_seqs": one[CAP]}
        number = len(self.done())
        book.append("trial", **what, configuration=dict(one), at_s=0.0)
        for place, replay in enumerate(replays(self.good[purpose])):
            book.append_replay(replay, **what, elapsed_s=10.0, window=place, trial=number, at_s=0.0)
        book.append("measured", failed=None, engine=1, worker=self.worker, at_s=0.0)
        self.builds.append(build)
        return self.done()[-1]

    def is_here(self, done: FinishedTrial) -> bool:
        return done.worker == self.worker

    def compared(self, other: Configuration) -> PairedResult:
        try:
            return asyncio.run(
                compare(
                    self, other, KNEE, workloads=[WORKLOAD] * 4, objective=GOODPUT,
                    forecasts={},
                )
            )  # fmt: skip
        finally:
            self.evidence.journal.close()


def test_what_needs_a_restart_is_compared_on_a_fresh_engine_each_time(tmp_path: Path) -> None:
    better = {"refined": 4, "knee": 3}
    live, fresh = (Noting(tmp_path / name, good=better) for name in ("live", "fresh"))
    assert live.compared({**KNEE, CAP: 12}).pairs == 4
    assert len(live.builds) == 8
    assert len(set(live.builds)) == 1
    assert fresh.compared({**KNEE, "block_size": 8}).pairs == 4
    assert len(set(fresh.builds)) == 8


@pytest.mark.parametrize(("refined", "pairs"), [(4, 4), (3, 2), (0, 2)])
def test_what_half_of_the_pairs_leave_no_hope_for_is_given_up(
    tmp_path: Path, refined: int, pairs: int
) -> None:
    runner = Noting(tmp_path / "run", good={"refined": refined, "knee": 3})
    assert runner.compared({**KNEE, CAP: 12}).pairs == pairs


@pytest.mark.parametrize(
    ("took_s", "half_takes_s"),
    [
        ({}, 0.0),
        ({4: [30.0]}, 30.0),
        ({4: [30.0], 12: [50.0]}, 40.0),
        ({4: [28.0, 32.0, 30.0], 12: [50.0], 16: [90.0]}, 40.0),
    ],
)
def test_half_a_pair_takes_what_both_of_its_sides_took_before(
    took_s: Mapping[int, Sequence[float]], half_takes_s: float
) -> None:
    """Of an overloaded engine one side drains for longer than the other."""
    half = replace(replays(4)[0], elapsed_s=1.0)
    done = [
        FinishedTrial(
            SEARCH, {**KNEE, CAP: cap}, (half, replace(half, elapsed_s=each - 1.0)), None, 1
        )
        for cap, every in took_s.items()
        for each in every
    ]
    assert half_s(done, ({**KNEE, CAP: 4}, {**KNEE, CAP: 12})) == pytest.approx(half_takes_s)


@pytest.mark.parametrize("places", [("a.0",), ("a.0", "b.0"), ("b.1", "")])
def test_a_comparison_that_is_over_in_one_place_is_made_in_no_other(
    tmp_path: Path, places: Sequence[str]
) -> None:
    other = {**KNEE, CAP: 12}
    knee, refined = (KNEE, replays(4), "knee"), (other, replays(4), "refined")
    made = [
        (one, place, measured, purpose)
        for place in places
        for one, measured, purpose in (refined, knee, knee, refined) * 2
    ]
    whole = runner_of(
        tmp_path / "whole",
        [(one, place, measured, None) for one, place, measured, _ in made],
        [purpose for *_, purpose in made],
    )
    found = asyncio.run(
        compare(
            whole, other, KNEE, workloads=[WORKLOAD] * 4, objective=GOODPUT, forecasts={}
        )
    )  # fmt: skip
    assert found.pairs == 4  # though no engine can be started here


def test_a_trial_that_was_cut_is_told_with_its_window_and_one_that_failed_is_not(
    tmp_path: Path,
) -> None:
    whole, cut, failed = ({**KNEE, CAP: cap} for cap in (12, 20, 24))
    scoring = scoring_of(
        tmp_path,
        [
            (KNEE, "", replays(4), None),
            (whole, "", replays(2), None),
            (cut, "", replays(2, cut=HOPELESS), None),
            (failed, "", [], "no memory"),
        ],
    )
    knee, lost, ended = trial_table(scoring)
    assert (knee.configuration, knee.cut, knee.gains, knee.keeps_slo) == (KNEE, None, (0.0,), True)
    assert (lost.configuration, lost.keeps_slo) == (whole, False)
    assert lost.gains is not None
    assert lost.gains[0] == pytest.approx(math.log(0.5))
    assert ended.configuration == cut
    assert ended.cut == f"window 2 of 2: {HOPELESS}"
    assert (ended.gains, ended.replayed, ended.keeps_slo) == (None, None, None)
    assert pareto([knee, ended], parse_objectives("goodput,tpot")) == [knee]


def test_of_a_profile_refined_twice_the_reason_says_the_last_alone() -> None:
    once = profile(reason=reason_of(profile(reason="knee at 16"), KNEE, KNEE, None))
    assert once.decision.reason == "knee at 16; refined: nothing better was found"
    assert reason_of(once, KNEE, KNEE, None) == once.decision.reason


@pytest.mark.parametrize(
    ("aim", "goodput_low", "said"),
    [
        ("ttft", 0.9897, "gains in p95 TTFT, but may lose over 1% of goodput (-1.03% at worst)"),
        ("ttft", 0.9999, "no gain of max_num_seqs 16 -> 12 is proven"),
        ("tpot", 0.9897, "no gain of max_num_seqs 16 -> 12 is proven"),
    ],
)
def test_what_is_gained_but_for_a_rule_is_said_with_the_rule(
    aim: str, goodput_low: float, said: str
) -> None:
    found = {
        "goodput": PairedRatio("goodput", 1.0, goodput_low, 1.01, True, 1.0, 0.5, 0.5, 0.9),
        "ttft": PairedRatio("ttft", 0.75, 0.66, 0.84, False, 0.75, 1.0, 1.0, 1.0),
        "tpot": PairedRatio("tpot", 1.0, 0.9, 1.1, False, 1.0, 0.5, 0.5, 0.9),
    }
    paired = PairedResult(found, None, 4)
    (objective,) = parse_objectives(aim)
    assert said in reason_of(profile(), {**KNEE, CAP: 12}, KNEE, paired, objective)


@pytest.mark.parametrize(("servers", "length_s"), [(1, 600.0), (2, 600.0), (2, 300.0)])
def test_another_load_than_the_profiles_is_said(servers: int, length_s: float) -> None:
    """Half of the requests, as of two servers; of another part of the trace it means nothing."""
    requests = [TraceRequest(row, row / 8.0, 10, 5) for row in range(0, 4800, servers)]
    unloaded, part = Unloaded(0.01, 0.0, 0.01), Part(0.0, length_s)
    said = unlike(profile(), workload_of(requests, SLO, unloaded, part, WORKLOAD.windows, 6.0))
    assert (said is not None) == (servers == 2 and length_s == 600.0)
    assert said is None or said.startswith("4.00 requests/s of this trace arrive here, 8.00 where")


def test_what_else_changes_with_the_choice_is_said() -> None:
    of_profile = profile(engine={**KNEE, "model": "m", "max_model_len": 8192, "block_size": 16})
    one = {CAP: 8, TOKENS: 2048, "block_size": 8}
    own: dict[str, Any] = dict(of_profile.engine)
    resolved = {**own, **one, "max_model_len": 4096}
    said = "the engine differs from the profile in more than was chosen: max_model_len 8192 -> 4096"
    assert changed_besides(of_profile, one, resolved) == said
    assert changed_besides(of_profile, one, {**own, **one}) is None


def test_of_several_places_each_has_its_own_knee_and_one_is_on_the_front(tmp_path: Path) -> None:
    other = {**KNEE, CAP: 12}
    scoring = scoring_of(
        tmp_path,
        [
            (KNEE, "a.0", replays(4), None),
            (KNEE, "b.0", replays(2), None),
            (other, "b.0", replays(4), None),
        ],
    )
    tried = trial_table(scoring)
    assert [(one.worker, one.configuration) for one in tried] == [
        ("a.0", KNEE),
        ("b.0", KNEE),
        ("b.0", other),
    ]
    assert tried[2].gains is not None
    assert tried[2].gains[0] == pytest.approx(math.log(2))  # against the knee of its own place
    front = pareto(tried[:2], parse_objectives("goodput,tpot"))
    assert [one.configuration for one in front] == [KNEE]


def tried(
    gain: float | None, *, aims: int = 1, worker: str = "", **changes: int | None
) -> TrialRow:
    """Return a trial of the knee with changes; without a gain it was cut."""
    gains = None if gain is None else (gain,) * aims
    cut = f"window 2 of 2: {HOPELESS}" if gain is None else None
    return TrialRow(
        {**KNEE, **changes},
        measurement(16, attainment=0.5, attainment_bound=0.979, cut=cut),
        worker,
        cut,
        gains=gains,
        deficit=None if gain is None else 0.0,
        replayed=gains,
        foreseen=gains,
    )


def shown(rows: Sequence[TrialRow], *, width: int, objective: str = "goodput") -> list[str]:
    file = io.StringIO()
    table = trials_table(rows, rows[0].configuration, KNEE, parse_objectives(objective))
    Console(width=width, file=file, color_system=None).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_every_value_is_whole_in_a_terminal_of_80_columns(width: int) -> None:
    rows = [tried(0.0), tried(0.1, max_num_seqs=12, max_num_batched_tokens=131072)]
    lines = shown(rows, width=width)
    for value in ("max_num_batched_tokens=2048", "max_num_batched_tokens=131072"):
        assert any(value in line for line in lines)
    assert any("+10.5%" in line and "2,000" in line for line in lines)
    both = [tried(0.0, aims=2), tried(0.1, aims=2, max_num_batched_tokens=131072)]
    narrow = shown(both, width=80, objective="throughput,e2el")
    assert any("max_num_batched_tokens= " in line for line in narrow)
    assert any(line.startswith("131072") for line in narrow)
    assert "…" not in "".join([*lines, *narrow])


def test_a_trial_that_was_cut_is_in_the_table_with_its_reason_and_no_gain() -> None:
    rows = [tried(0.0), tried(None, max_num_seqs=20)]
    lines = shown(rows, width=120)
    (place,) = [number for number, line in enumerate(lines) if "max_num_seqs=20" in line]
    assert lines[place].split() == ["max_num_seqs=20", "-", "<=97.9%", "-", "-", "-"]
    assert f"ended early in window 2 of 2: {HOPELESS}" in lines[place + 1]


def test_trials_of_several_places_are_shown_place_by_place_with_its_knee_first() -> None:
    rows = [tried(0.0, worker="a.0"), tried(0.0, worker="b.0")]
    rows += [tried(0.1, worker="a.0", max_num_seqs=12), tried(0.1, worker="b.0", max_num_seqs=8)]
    lines = shown(rows, width=120)
    found = [line.split("  ")[0] for line in lines if line.startswith(("on ", "the knee", "max_"))]
    knee = "the knee: max_num_seqs=16, max_num_batched_tokens=2048,"
    assert found == ["on a.0", knee, "max_num_seqs=12", "on b.0", knee, "max_num_seqs=8"]


def test_an_argument_that_is_left_to_vllm_is_shown_as_its_default() -> None:
    lines = shown([tried(0.0), tried(0.1, long_prefill_token_threshold=None)], width=120)
    assert any(line.startswith("long_prefill_token_threshold=default ") for line in lines)


def test_progress_says_of_which_windows_a_bound_and_of_which_a_cut_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = {"attainment_bound": 0.979, "cut": HOPELESS}
    RunProgress(SETTINGS.budget_s).measured("search", measurement(16, blocks=3, **cut))
    RunProgress(SETTINGS.budget_s).measured("ladder", measurement(16, blocks=1, **cut))
    several, one = capsys.readouterr().err.splitlines()
    assert "search: <=97.9% within the SLO over 3 windows, " in several
    assert several.endswith(f"(a window was cut: {HOPELESS})")
    assert "ladder: <=97.9% within the SLO, " in one
    assert one.endswith(f"(cut: {HOPELESS})")
