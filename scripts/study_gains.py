"""How far is the twin off when it says what one configuration gains over another?

    python scripts/study_gains.py --worlds 20 [--first 0] [--harder] [--level typical]
    python scripts/study_gains.py --smoke

Each world is a machine with traffic (scripts/random_worlds.py). A sweep tunes it on virtual time,
and its twin is asked what some cells of scripts/study_refine.py's grid gain over the knee, by its
law and by laws as likely; the truth is all of the traffic on the machine without noise. Printed:
how far off the sweep's twin is in the machine's usual speed, beside what it says it may be; what
the cell that it likes best of all truly gains, as a search would choose it; and for each aim the
constants of runs/refine/gains/with_twin.py that make the truth the most likely, and how much less
likely it is by those that are used (log likelihood).
"""

import argparse
import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from random_worlds import CAPS, NOISE, case
from study_refine import grid_of, truth_of
from study_sweeps import parsed, swept, workers

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.sim.world import step_law
from tuner.runs.refine.gains.luck import Seen
from tuner.runs.refine.gains.luck_share import OFF_FREEDOM, PAIR_SHARE, TWIN_OFF
from tuner.runs.refine.gains.pair_mean import student_t
from tuner.runs.refine.gains.screen import LAWS, Screen, screen_of
from tuner.runs.refine.gains.with_twin import ASTRAY, ASTRAY_FREEDOM, LEAST_OFF
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, contradicts
from tuner.runs.refine.objective import LEAST_ATTAINMENT, OBJECTIVES, Objective
from tuner.runs.settings import SweepSettings
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import simulate

CELLS = 10
"""Of each world's grid."""

MOST = 1.0
"""Log gain by the twin; what gains or loses more needs no proof."""

LEAST = 0.003
"""Log gain; where the twin and the truth say less, there is nothing to be right about."""

AIMS = ("goodput", "e2el", "tpot")

Constants = tuple[float, float, float]
"""TWIN_OFF, LEAST_OFF and ASTRAY."""

USED: Constants = (TWIN_OFF, LEAST_OFF, ASTRAY)
CANDIDATES = tuple(
    itertools.product(
        (0.0, 0.05, 0.1, 0.2, 0.4), (0.02, 0.05, 0.1, 0.2, 0.5), (0.0, 0.02, 0.1, 0.2)
    )
)


@dataclass(frozen=True, slots=True)
class Cell:
    aim: str
    middle: float
    drawn: tuple[float, ...]
    true: float
    usual_sd: float
    """How far the replays of a pair usually differ, of such a knee."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sweep's twin said in one world."""

    speed: tuple[float, float]
    """How far off (logarithm) the time of the knee's iterations was, and the standard deviation
    that its laws say."""

    cells: tuple[Cell, ...]

    liked: tuple[float, float] | None
    """Log gain in goodput, as the twin says and in truth, of the cell of all that it likes best;
    None where it likes none better than the knee."""


def asked(job: tuple[int, str], *, settings: SweepSettings, harder: bool) -> Asked | None:
    seed, level = job
    one = case(seed, level, harder=harder)
    outcome = swept(one, settings)
    view = outcome.conclusion.view
    if view is None or not view.is_believed:
        return None
    knee: Configuration = {CAP: outcome.verdict.max_num_seqs, TOKENS: one.world.budget}
    screen = screen_of(view, None, (), knee).at_usual_speed()
    grid = [cell for cell in grid_of(one).values() if not contradicts(cell)]
    base, served = truth_of(one, outcome.slo, knee), screen.measurement(0, knee).attainment
    found = []
    for place in np.random.default_rng(seed).permutation(len(grid))[:CELLS].tolist():
        true = truth_of(one, outcome.slo, grid[place])
        for name in AIMS:
            aim = OBJECTIVES[name]
            twin, here, there = screen.says(aim, grid[place]), aim.log(true), aim.log(base)
            if twin is None or here is None or there is None or abs(twin.middle) > MOST:
                continue
            if max(abs(twin.middle), abs(here - there)) > LEAST:
                usual_sd = _usual_sd(aim, served)
                found.append(Cell(name, twin.middle, tuple(twin.drawn), here - there, usual_sd))
    truth = step_law(one.world.step, CAPS[-1])
    return Asked(
        _speed(view, truth, outcome.verdict.max_num_seqs),
        tuple(found),
        _liked(screen, grid, lambda cell: truth_of(one, outcome.slo, cell)),
    )


def _liked(
    screen: Screen, grid: Sequence[Configuration], true: Callable[[Configuration], Seen]
) -> tuple[float, float] | None:
    aim = OBJECTIVES["goodput"]

    def said(cell: Configuration) -> float:
        return log_of(aim, screen.measurement(0, cell))

    best = max(grid, key=said)
    gained = said(best) - said(screen.knee)
    if not LEAST < gained <= MOST:
        return None
    return gained, log_of(aim, true(best)) - log_of(aim, true(screen.knee))


def log_of(aim: Objective, served: Seen) -> float:
    found = aim.log(served)
    return -math.inf if found is None else found


def _speed(view: Forecast, truth: StepLaw, max_num_seqs: int) -> tuple[float, float]:
    fitted = view.fitted
    log = simulate(
        view.traffic, fitted.law, view.shape, max_num_seqs=max_num_seqs, log=True
    ).iterations
    log = log[log["decode_seqs"] <= fitted.extrapolated_from]
    laws = (truth, fitted.law, *fitted.draws(LAWS, seed=0))
    true, middle, *drawn = (math.log(float(law.durations_s(log).sum())) for law in laws)
    return true - middle, math.sqrt(float(np.mean(np.square(np.array(drawn) - middle))))


def _usual_sd(aim: Objective, attainment: float) -> float:
    share = max(LEAST_ATTAINMENT, attainment) if aim.is_share else 1.0
    return PAIR_SHARE * aim.prior_sd / share


def log_likelihood(cells: Sequence[Cell], constants: Constants) -> float:
    """Return how likely the truth is where the twin is off by as much as ``with_twin`` has it."""
    twin_off, least_off, astray = constants
    found = 0.0
    for cell in cells:
        off = cell.true - np.asarray(cell.drawn)
        usual = math.hypot(twin_off * cell.middle, least_off * cell.usual_sd)
        likely = (1 - astray) * student_t(off, usual, OFF_FREEDOM)
        likely += astray * student_t(off, math.hypot(cell.middle, cell.usual_sd), ASTRAY_FREEDOM)
        found += math.log(float(likely.mean()))
    return found


def report(aim: str, worlds: Sequence[Sequence[Cell]]) -> None:
    cells = [cell for world in worlds for cell in world]
    best = max(CANDIDATES, key=lambda one: log_likelihood(cells, one))
    worse = log_likelihood(cells, best) - log_likelihood(cells, USED)
    wrong = [one for one in cells if one.middle * one.true < 0 and abs(one.middle) > 0.02]
    print(
        f"{aim:8} {len(cells)} cells: most likely TWIN_OFF {best[0]}, LEAST_OFF {best[1]}, ASTRAY"
        f" {best[2]}; {USED} as used: {worse:.1f} less likely | over 2 %, and the sign is wrong:"
        f" {len(wrong)} of {sum(abs(one.middle) > 0.02 for one in cells)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--harder", action="store_true", help="worlds the twin cannot represent")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke="--worlds 1 --level quiet --processes 1")
    settings = SweepSettings(
        ceiling=CAPS[-1], slo=None, window="all", step_s=60.0, budget_s=3600.0, headroom=1.25,
        fast=False, fresh=False, closed_sessions=False, seed=0, trace_block_size=16,
    )  # fmt: skip
    seeds = range(options.first, options.first + options.worlds)
    work = partial(asked, settings=settings, harder=options.harder)
    with workers(options.processes) as pool:
        for level in options.level or NOISE:
            found = [one for one in pool.map(work, [(seed, level) for seed in seeds]) if one]
            if not found:
                print(f"{level}: no twin was believed", flush=True)
                continue
            off, said = np.sqrt(np.mean(np.square([one.speed for one in found]), axis=0))
            print(
                f"{level}: {len(found)} twins, off in speed by {100 * off:.2f} %, as they say by"
                f" {100 * said:.2f} % (root mean squares)",
                flush=True,
            )
            if liked := [one.liked for one in found if one.liked is not None]:
                said, true = np.array(liked).T
                print(
                    f"    what it likes best of all cells gains {true.mean():+.3f} in goodput"
                    f" (a logarithm), as it says {said.mean():+.3f}; truly more than nothing in"
                    f" {(true > 0).sum()} of {len(liked)} worlds, {np.round(true / said, 2)} of"
                    " what it says",
                    flush=True,
                )
            for aim in AIMS:
                worlds = [[cell for cell in one.cells if cell.aim == aim] for one in found]
                if worlds := [cells for cells in worlds if cells]:
                    report(aim, worlds)


if __name__ == "__main__":
    main()
