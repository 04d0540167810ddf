"""Counts how often `tuner sweep` is right: its whole run, on random worlds of known truth.

    python scripts/study_sweeps.py --worlds 25 [--fast] [--harder] [--level noisy]
    python scripts/study_sweeps.py --smoke

Each world is a machine with traffic (scripts/random_worlds.py); a sweep tunes it on virtual time
and its answer is held against the whole trace on the same machine without noise, under the SLO that
the sweep derived. Printed per level of noise: answers that are the true best cap; within tolerance
(attainment within 0.02, p99 E2EL within 10 %); how many were sure (confidence >= 0.95) and right
among those; wrong answers without any warning; how often the confirming engine, which is the
ladder's again, is said to differ (A/A); the replay time and the engine starts spent; and how often
each of the twelve numbers of the check fails though nothing is wrong.
"""

import argparse
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from random_worlds import CAPS, NOISE, Case, case, shape_of
from results import keep, parsed, table, workers

from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import step_law
from tuner.replay.measure import Measurement
from tuner.runs import journal
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import TraceRequest
from tuner.twin.check import ALARM, Check
from tuner.twin.choice import value_of
from tuner.twin.objective import choose, right_caps
from tuner.twin.simulation import simulate

SURE = 0.95


class Silent:
    """A listener that is told how the run goes, and says nothing."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def believed(self, best: int, agreeing: int, draws: int) -> None: ...
    def live(self, seen: object) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    level: str
    kind: str
    cap: int
    best: int
    confidence: float
    is_good: bool
    warned: bool
    unseen: bool
    """Whether the confirming replay was of windows that the ladder had not replayed."""

    foretold: dict[str, float]
    """Number of the confirming replay → how far off it was, in half-widths of its 95 %."""

    paced: dict[str, float]
    """The same at the engine's own speed."""

    alarms: tuple[bool, bool]
    """Whether these checks failed."""

    doubted: bool
    """Whether the ladder's windows were held to show another scheduler."""

    replay_s: float
    starts: int
    claims: tuple[bool, bool] | None
    """Whether the confirming engine, which is the same machine, is said to differ: in speed, and in
    what it serves at equal speed."""


def requests_of(one: Case) -> list[TraceRequest]:
    traffic = one.traffic
    rows = zip(
        traffic.arrival_s.tolist(),
        traffic.input_length.tolist(),
        traffic.output_length.tolist(),
        strict=True,
    )
    return [TraceRequest(row, *values) for row, values in enumerate(rows)]


def swept(one: Case, settings: SweepSettings) -> SweepOutcome:
    with tempfile.TemporaryDirectory() as folder:
        book = journal.create(Path(folder), {})
        try:
            run = sweep(requests_of(one), SimStarter(one.world), settings, book, Silent())
            return virtual_time.run(run)
        finally:
            book.close()


def result_of(job: tuple[int, str], *, settings: SweepSettings, harder: bool) -> Result:
    seed, level = job
    one = case(seed, level, harder=harder)
    outcome = swept(one, settings)
    law, shape = step_law(one.world.step, CAPS[-1]), shape_of(one.world, known=False)
    truth = {
        cap: value_of(one.traffic, simulate(one.traffic, law, shape, max_num_seqs=cap), outcome.slo)
        for cap in CAPS
    }
    verdict, view, record = outcome.verdict, outcome.conclusion.view, outcome.checked
    return Result(
        seed=seed,
        level=level,
        kind=verdict.kind,
        cap=verdict.max_num_seqs,
        best=choose(truth),
        confidence=verdict.confidence,
        is_good=verdict.max_num_seqs in right_caps(truth),
        warned=bool(verdict.warnings) or verdict.kind in {"inconclusive", "overloaded"},
        unseen=record is not None and record.unseen,
        foretold={} if record is None else _off(record.foretold),
        paced={} if record is None else _off(record.at_own_speed),
        alarms=(False, False)
        if record is None
        else (record.foretold.failed, record.at_own_speed.failed),
        doubted=view is not None and not view.is_believed,
        replay_s=outcome.replay_s,
        starts=len(outcome.starts_s),
        claims=None,
    )


def report(level: str, results: Sequence[Result]) -> None:
    sure = [one for one in results if one.confidence >= SURE]
    wrong = [one for one in results if not one.is_good]
    kinds = sorted({one.kind for one in results})
    print(
        f"{level:8} best {np.mean([one.cap == one.best for one in results]):.3f}"
        f" within tolerance {np.mean([one.is_good for one in results]):.3f}"
        f" | sure {len(sure) / len(results):.2f},"
        f" of these {np.mean([one.is_good for one in sure]) if sure else math.nan:.3f}"
        f" | wrong and not warned {[one.seed for one in wrong if not one.warned]}"
        f" | alarms {_alarms(results)}"
        f" | replay {np.mean([one.replay_s for one in results]):.0f} s,"
        f" at most {max(one.replay_s for one in results):.0f} s"
        f" | A/A claims {np.mean([one.claims for one in results if one.claims], axis=0).round(2)}"
        f" | starts {np.mean([one.starts for one in results]):.1f}"
        f" | {', '.join(f'{sum(one.kind == kind for one in results)} {kind}' for kind in kinds)}",
        flush=True,
    )
    for one in wrong:
        print(f"    {one}", flush=True)


def _off(one: Check) -> dict[str, float]:
    return {number.name: round(number.off, 3) for number in one.numbers}


def _alarms(results: Sequence[Result]) -> str:
    """Say how often an honest machine raised an alarm."""
    foretold = [one.alarms[0] for one in results if one.foretold]
    own_speed = [one.alarms[1] for one in results if one.paced]
    return (
        f"foretold {sum(foretold)} of {len(foretold)} ({sum(one.unseen for one in results)} "
        f"unseen), at its own speed {sum(own_speed)} of {len(own_speed)}, "
        f"ladder {sum(one.doubted for one in results)} of {len(results)}"
    )


SWEEPS = ("machine", "true best cap", "within tolerance", "sure, and right among these",
          "the confirming engine falsely said to differ", "replay, mean and most")  # fmt: skip
ALARMS = (
    "number",
    "foretold: outside of its 95 %",
    "far off",
    "at its own speed: outside",
    "far off",
)


def sweep_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return how right the answers were, of each level of noise."""
    rows = []
    for level in dict.fromkeys(one["level"] for one in results):
        mine = [one for one in results if one["level"] == level]
        sure = [one["is_good"] for one in mine if one["confidence"] >= SURE]
        differ = [any(one["claims"]) for one in mine if one["claims"]]
        replay_s = [one["replay_s"] for one in mine]
        rows.append([
            level,
            f"{np.mean([one['cap'] == one['best'] for one in mine]):.2f}",
            f"{np.mean([one['is_good'] for one in mine]):.2f}",
            f"{len(sure) / len(mine):.2f}, {np.mean(sure) if sure else math.nan:.2f}",
            f"{sum(differ)} of {len(differ)}",
            f"{np.mean(replay_s):.0f} s, {max(replay_s):.0f} s",
        ])  # fmt: skip
    return rows


def alarm_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return how often each number of the check failed on a machine with nothing wrong, and how
    often the check did."""
    kinds = ("foretold", "paced")
    names = dict.fromkeys(name for one in results for kind in kinds for name in one[kind])
    rows = []
    for name in names:
        row = [name]
        for kind in kinds:
            off = [abs(one[kind][name]) for one in results if name in one[kind]]
            row += [f"{sum(each > limit for each in off)} of {len(off)}" for limit in (1.0, ALARM)]
        rows.append(row)
    whole = []
    for place, kind in enumerate(kinds):
        checks = [one["alarms"][place] for one in results if one[kind]]
        whole += ["", f"{sum(checks)} of {len(checks)}"]
    return [*rows, ["the check as a whole", *whole]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--harder", action="store_true", help="worlds the twin cannot represent")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke="--worlds 1 --level quiet --processes 1")
    settings = SweepSettings(
        ceiling=CAPS[-1], slo=None, window="all", step_s=60.0, budget_s=3600.0, headroom=1.25,
        fast=options.fast, fresh=False, closed_sessions=False, seed=0, trace_block_size=16,
    )  # fmt: skip
    begin_s = monotonic()
    levels = options.level or list(NOISE)
    seeds = range(options.first, options.first + options.worlds)
    jobs = [(seed, level) for seed in seeds for level in levels]
    with workers(options.processes) as pool:
        work = partial(result_of, settings=settings, harder=options.harder)
        results = list(pool.imap_unordered(work, jobs))
    for level in levels:
        report(level, [one for one in results if one.level == level])
    found = [asdict(one) for one in results]
    print(table(ALARMS, alarm_rows(found)))
    kept = {"head": SWEEPS, "rows": sweep_rows(found), "sweeps": found}
    keep(options.keep, kept)
    print(f"{len(jobs)} sweeps in {monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
