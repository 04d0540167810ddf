"""Does `tuner refine` find what a full grid would, for a quarter of its engine time? Random worlds.

    python scripts/study_refine.py --worlds 25 [--first 100] [--harder] [--level noisy] [--grid]
    python scripts/study_refine.py --smoke

Each world is a machine with traffic (scripts/random_worlds.py). A sweep gives the profile, a
refinement searches 12 caps x 6 token budgets around its knee on virtual time, and both are held
against every cell of that grid on the same machine without noise, over the whole trace. Printed per
level of noise: how often the answer is within 2 % of the grid's best, in the score that orders
configurations (goodput, then the tail) and in goodput alone; the same of the plain knee; how often
the knee was replaced, how often what replaced it is truly worse than the interval that was stated,
and how often the truth lies outside of a stated interval of goodput at all; how much was truly
gained, and of gains of over 1 % how much of what was stated; the engine time spent, as a share of
the grid's: of 72 cells of the step that was asked for (the budget is a quarter of it). With
``--grid`` all cells are replayed too, each once for that step on one engine of the noisy machine:
how often the best of what was measured is within 2 %, which is what a full grid would really get.
"""

import argparse
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import TimeoutError  # noqa: A004 - of a pool's results
from pathlib import Path
from time import monotonic
from typing import Any

import evidence
import numpy as np
from random_worlds import CAPS, NOISE, Case, case, shape_of
from study_sweeps import Silent, parsed, requests_of, workers

from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import step_law
from tuner.profile.schema import ServingProfile
from tuner.replay.measure import Measurement
from tuner.runs import journal
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, Space, contradicts, number
from tuner.runs.refine.objective import gains as gains_of
from tuner.runs.refine.objective import parse_objectives
from tuner.runs.refine.outcome import curve_of
from tuner.runs.refine.refinement import Refinement, RefinePlan
from tuner.runs.refine.run import refine
from tuner.runs.refine.space import TrafficNeeds, build_space
from tuner.runs.refine.study.study import Study
from tuner.runs.refine.surrogate import TwinNumbers, WindowForecast, pooled
from tuner.runs.refine.trial_runner import Build, LocalTrialRunner
from tuner.runs.result import profile_of
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.traffic.slo import Slo
from tuner.traffic.workload import Workload, choose_workload
from tuner.twin.simulation import simulate

GRID_CAPS = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32)
NEAR, STATED = math.log(1.02), math.log(1.01)


HEAD = [
    "worlds",
    "refined within 2 % of the grid's best",
    "the plain knee",
    "knee replaced, by a true gain of",
    "truly worse than the knee and the interval",
    "truth outside of the stated interval",
    "engine time, of the grid's (at most)",
]


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    level: str
    verdict: str
    replaced: bool
    chosen: Configuration
    knee: Configuration
    score: float
    """Of the answer below the grid's best: a log ratio, 0.02 is 2 %."""

    goodput: float
    """The same of goodput alone."""

    knee_score: float
    true_gain: float
    """Goodput of the answer over the knee's: a log ratio."""

    true_of_compared: float
    """The same of what was compared with the knee, proven or not."""

    why: str
    stated: tuple[float, float, float] | None
    """Log gain of what was compared in goodput: the middle, and the interval's ends."""

    share: float
    """Engine seconds of those of the grid."""

    spent_s: float
    starts: int
    grid_score: float | None
    """As ``score``, of what was best of a grid that was replayed; None where none was."""


def grid_of(one: Case) -> dict[tuple[int, int], Configuration]:
    budget = one.world.budget
    budgets = sorted({max(32, round(budget * 2.0**power)) for power in (-4, -3, -2, -1, 0, 1)})
    cells = ((cap, tokens) for cap in GRID_CAPS for tokens in budgets)
    return {(cap, tokens): {CAP: cap, TOKENS: tokens} for cap, tokens in cells}


def truth_of(one: Case, slo: Slo, cell: Configuration) -> TwinNumbers:
    law, shape = step_law(one.world.step, GRID_CAPS[-1]), shape_of(one.world, known=False)
    shape = replace(shape, max_num_batched_tokens=number(cell[TOKENS]))
    replay = simulate(one.traffic, law, shape, max_num_seqs=number(cell[CAP]))
    return pooled([WindowForecast(one.traffic, replay, np.ones(len(one.traffic), bool))], slo)


def has_room(seed: int, *, harder: bool) -> bool:
    """Whether the grid's best is over 2 % better than the best doubling at the world's budget."""
    one = case(seed, "quiet", harder=harder)
    knee: Configuration = {CAP: one.best, TOKENS: one.world.budget}
    aims, base = parse_objectives("goodput"), truth_of(one, one.slo, knee)
    found = [
        values[0]
        for cell in grid_of(one).values()
        if (values := gains_of(aims, truth_of(one, one.slo, cell), base)) is not None
    ]
    return max(found, default=0.0) > NEAR


def space_of(profile: ServingProfile, grid: Sequence[Configuration]) -> Space:
    named = {
        CAP: tuple(sorted({number(cell[CAP]) for cell in grid})),
        TOKENS: tuple(sorted({number(cell[TOKENS]) for cell in grid})),
    }
    demand = TrafficNeeds(
        longest_prompt=0, shares_prefixes=False, kv_peak=0.0, caps=CAPS, requests=10**6,
        on_gpu=False, on_vllm=False,
    )  # fmt: skip

    def refusal(name: str, _value: object) -> str | None:
        return None if name in named else "not of this study"

    engine: dict[str, Any] = dict(profile.engine)
    return build_space(engine, demand, named, refusal)


def vary(machine: SimStarter, one: Case, cell: Configuration) -> SimStarter:
    """Return what starts engines for a cell on the world's machine."""
    own = {"num_gpu_blocks_override": one.world.kv.blocks}
    return machine.varied({**own, **{name: cell[name] for name in cell if name != CAP}})


def refined(one: Case, settings: SweepSettings) -> tuple[ServingProfile, Refinement]:
    requests = requests_of(one)
    machine = SimStarter(one.world)
    with tempfile.TemporaryDirectory() as folder:
        book = journal.create(Path(folder) / "sweep", {})
        outcome = virtual_time.run(sweep(requests, machine, settings, book, Silent()))
        book.close()
        origin = {
            "tuner": "study", "seed": 0, "created": "2025-01-01T00:00:00+00:00", "wall_s": 0.0,
            "warnings": [], "model_digest": None,
        }  # fmt: skip
        profile = profile_of(outcome, headroom=1.25, trace_digest="sha256:0", origin=origin)
        grid = list(grid_of(one).values())
        space = space_of(profile, grid)
        plan = RefinePlan(
            profile=profile,
            space=space,
            objectives=parse_objectives("goodput"),
            settings=replace(
                settings,
                slo=profile.decision.slo.slo,
                budget_s=(one.world.engine_start + len(grid) * settings.step_s) / 4,
            ),
            start_s=one.world.engine_start,
            curve=curve_of(profile, space.knee, parse_objectives("goodput")),
            is_same_trace=True,
            max_model_len=one.world.kv.blocks * one.world.kv.block_size,
        )
        book = journal.create(Path(folder) / "refine", {})
        engines = EngineRunner(machine, plan.settings, Evidence(book), Silent(), None)
        study = Study(
            str(Path(folder) / "study.log"), "study", space, aims=1, seed=0, run="",
            machine="", warn=print,
        )  # fmt: skip
        runner = LocalTrialRunner(engines, partial(vary, machine, one))
        begin_s = sum(outcome.starts_s) + outcome.replay_s
        found = virtual_time.run(refine(requests, plan, runner, study), begin_s=begin_s)
        book.close()
        study.close()
    return profile, found


def replayed_best(
    one: Case, settings: SweepSettings, like: Workload, knee: Configuration
) -> Configuration:
    """Replay every cell once, in random order, and return what served best."""
    workload = choose_workload(
        requests_of(one), like.slo, like.unloaded, asked=settings.window, step_s=settings.step_s
    )
    machine = SimStarter(one.world)
    cells = [cell for cell in grid_of(one).values() if not contradicts(cell)]
    order = np.random.default_rng(0).permutation(len(cells)).tolist()
    build = Build(*(max(number(cell[name]) for cell in cells) for name in (CAP, TOKENS)))

    async def every(runner: LocalTrialRunner) -> None:
        for place in order:
            await runner.trial("grid", cells[place], workload, build)
        await runner.stop()

    with tempfile.TemporaryDirectory() as folder:
        book = journal.create(Path(folder) / "grid", {})
        engines = EngineRunner(machine, settings, Evidence(book), Silent(), None)
        runner = LocalTrialRunner(engines, partial(vary, machine, one))
        virtual_time.run(every(runner))
        book.close()
    measured = [(done.configuration, done.measured(workload)) for done in runner.done()]
    base = next(each for cell, each in measured if cell == knee)
    aims = parse_objectives("goodput")

    def score(each: Measurement) -> tuple[float, ...]:
        return (*(gains_of(aims, each, base) or (-math.inf,)), each.attainment)

    return max(measured, key=lambda each: score(each[1]))[0]


def result_of(job: tuple[int, str], *, settings: SweepSettings, harder: bool, grid: bool) -> Result:
    seed, level = job
    one = case(seed, level, harder=harder)
    profile, found = refined(one, settings)
    slo = profile.decision.slo.slo
    knee: Configuration = {
        CAP: profile.decision.max_num_seqs, TOKENS: int(str(profile.engine[TOKENS])),
    }  # fmt: skip
    answer = {**knee, **found.chosen} if found.outcome is not None else knee
    aims = parse_objectives("goodput")
    base = truth_of(one, slo, knee)

    def score(cell: Configuration) -> tuple[float, float]:
        measured = truth_of(one, slo, cell)
        values = gains_of(aims, measured, base)
        return (-math.inf, 0.0) if values is None else (values[0], measured.attainment)

    cells = [score(cell) for cell in grid_of(one).values()]
    best, most = max(value for value, _ in cells), max(goodput for _, goodput in cells)
    mine, goodput = score(answer)
    _, of_compared = score({**knee, **found.chosen})
    ratio = found.paired.ratios.get("goodput") if found.paired is not None else None
    stated = (
        None
        if ratio is None
        else (math.log(ratio.value), math.log(ratio.low), math.log(ratio.high))
    )
    grid_s = one.world.engine_start + len(cells) * settings.step_s
    picked = replayed_best(one, settings, found.workload, knee) if grid else None
    spent_s = sum(found.starts_s) + found.replay_s
    return Result(
        seed=seed,
        level=level,
        verdict=profile.decision.verdict,
        replaced=found.outcome is not None,
        chosen=found.chosen,
        knee=knee,
        score=best - mine,
        goodput=log_ratio(most, goodput),
        knee_score=best - score(knee)[0],
        true_gain=log_ratio(goodput, base.attainment),
        true_of_compared=log_ratio(of_compared, base.attainment),
        why=found.reason[-220:],
        stated=stated,
        share=spent_s / grid_s,
        spent_s=spent_s,
        starts=len(found.starts_s),
        grid_score=best - score(picked)[0] if picked is not None else None,
    )


def log_ratio(one: float, other: float) -> float:
    """Return it; 0 where either is nothing."""
    return math.log(one / other) if one > 0 and other > 0 else 0.0


def row_of(level: str, results: Sequence[Result], first: int) -> list[str]:
    """Return the row of the table in docs/experiments.md for a level; empty without results."""
    here = [one for one in results if one.level == level]
    if not here:
        return []
    moved = [one for one in here if one.replaced]
    gain = f", {100 * np.mean([one.true_gain for one in moved]):+.0f} %" if moved else ""
    shares = [one.share for one in here]
    return [
        f"{len(here)} from {first} on, {level}",
        f"{np.mean([one.score <= NEAR for one in here]):.2f}",
        f"{np.mean([one.knee_score <= NEAR for one in here]):.2f}",
        f"{len(moved)}{gain}",
        f"{len(worse_of(moved))}",
        f"{len(outside_of(here))} of {sum(one.stated is not None for one in here)}",
        f"{np.mean(shares):.2f} ({max(shares):.2f})",
    ]


def worse_of(moved: Sequence[Result]) -> list[Result]:
    """Return those that are truly worse than the knee and than what was stated."""
    return [one for one in moved if one.stated and one.true_gain < min(0.0, one.stated[1])]


def outside_of(results: Sequence[Result]) -> list[Result]:
    """Return those whose truth is outside of the interval that was stated."""
    return [
        one
        for one in results
        if one.stated and not one.stated[1] <= one.true_of_compared <= one.stated[2]
    ]


def report(level: str, results: Sequence[Result], *, each: bool) -> None:
    moved = [one for one in results if one.replaced]
    worse, outside = worse_of(moved), outside_of(results)
    lost = [one for one in moved if one.true_gain < -NEAR]
    parts = [
        one.true_of_compared / one.stated[0]
        for one in moved
        if one.stated is not None and one.stated[0] > STATED
    ]
    of_grid = [one.grid_score for one in results if one.grid_score is not None]
    print(
        f"{level:8} within 2 %: score {np.mean([one.score <= NEAR for one in results]):.3f},"
        f" goodput {np.mean([one.goodput <= NEAR for one in results]):.3f}"
        f" | the plain knee {np.mean([one.knee_score <= NEAR for one in results]):.3f}"
        f" | replaced {len(moved)} of {len(results)},"
        f" worse than stated {[one.seed for one in worse]},"
        f" by over 2 % {[one.seed for one in lost]}"
        f" | goodput outside of the interval {[one.seed for one in outside]}"
        f" of {sum(one.stated is not None for one in results)}"
        f" | true gain {np.mean([one.true_gain for one in moved]) if moved else 0:+.3f},"
        f" {np.round(sorted(parts), 2).tolist()} of what was stated"
        f" | engine time {np.mean([one.share for one in results]):.2f} of the grid's,"
        f" at most {max(one.share for one in results):.2f}"
        f" | starts {np.mean([one.starts for one in results]):.1f}"
        + (f" | a replayed grid {np.mean(np.array(of_grid) <= NEAR):.3f}" if of_grid else ""),
        flush=True,
    )
    for one in results:
        if each or one.score > NEAR or one in worse or one in outside:
            print(f"    {one}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--harder", action="store_true", help="worlds the twin cannot represent")
    parser.add_argument(
        "--room", action="store_true", help="only where the grid has over 2 %% more"
    )
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="report what is done by then, in order of seeds"
    )
    parser.add_argument("--grid", action="store_true", help="replay every cell as well")
    parser.add_argument("--each", action="store_true", help="print every refinement")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke="--worlds 1 --level quiet --room --grid --each --processes 1")
    settings = SweepSettings(
        ceiling=CAPS[-1], slo=None, window="all", step_s=60.0, budget_s=3600.0, headroom=1.25,
        fast=False, fresh=False, closed_sessions=False, seed=0, trace_block_size=16,
    )  # fmt: skip
    begin_s = monotonic()
    levels = options.level or list(NOISE)
    seeds: Sequence[int] = range(options.first, options.first + options.worlds)
    with workers(options.processes) as pool:
        if options.room:
            found = pool.map(partial(has_room, harder=options.harder), seeds)
            seeds = [seed for seed, room in zip(seeds, found, strict=True) if room]
            print(f"{len(seeds)} of {options.worlds} worlds have room", flush=True)
        jobs = [(seed, level) for seed in seeds for level in levels]
        work = partial(result_of, settings=settings, harder=options.harder, grid=options.grid)
        results: list[Result] = []
        going = pool.imap_unordered(work, jobs)
        for _ in jobs:
            left_s = options.minutes * 60 - (monotonic() - begin_s)
            try:
                results.append(going.next(timeout=max(0.0, left_s)))
            except TimeoutError:
                break
    for level in levels:
        if here := sorted((o for o in results if o.level == level), key=lambda one: one.seed):
            report(level, here, each=options.each)
    kept = {
        "head": HEAD,
        "rows": [row for level in levels if (row := row_of(level, results, options.first))],
        "refinements": [asdict(one) for one in results],
    }
    evidence.keep(options.keep, kept)
    print(f"{len(results)} of {len(jobs)} refinements in {monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
