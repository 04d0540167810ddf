"""Counts what pairs of replays prove, of engines that serve alike and of engines that gain.

    python scripts/study_pairs.py --worlds 140 [--first 0] [--gains] [--keep NAME]
    python scripts/study_pairs.py --smoke

Each comparison is one of two engines on a random machine with traffic (scripts/random_worlds.py),
in turns, refined, knee, knee, refined, by the test that `tuner refine` accepts a gain by. The
windows are those that a twin chooses which foresees that a neighbouring cap gains, or loses; what
is replayed as refined is the knee again, whose iterations are so many percent shorter with
``--gains``. Every second comparison is made on fresh engines, each half of a pair on another.
Printed per level of noise and number of pairs: how often a gain is accepted, and how often the look
at half of the pairs gave up. Of engines that serve alike each is falsely accepted; with ``--gains``
each is one of the goodput and the tail that all of the traffic truly gains.
"""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

import evidence
import numpy as np
from random_worlds import CAPS, NOISE, Case, case, shape_of
from study_sweeps import parsed, requests_of, workers
from study_worlds import Lab

from tuner.engines.scheduler.state import StepLaw
from tuner.runs.refine.acceptance import acceptance, is_futile, paired_ratio
from tuner.runs.refine.balance import balanced
from tuner.runs.refine.knobs import CAP, TOKENS
from tuner.runs.refine.objective import GOODPUT, OBJECTIVES
from tuner.runs.refine.surrogate import Surrogate, TwinNumbers, WindowForecast, pooled
from tuner.traffic.slo import Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload, choose_workload
from tuner.twin.check import Observed
from tuner.twin.simulation import TwinReplay, simulate

STEP_S = 60.0
GAINS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
"""By how much iterations are shorter."""

SIDES = (True, False, False, True)
MANY = 16
COUNTS = (4, 8, MANY)


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    level: str
    gain: float
    goodput: float
    """Truly gained over all of the traffic, as a ratio; so is the tail."""

    tail: float
    proven: tuple[str | None, ...]
    """Per number of pairs; by what."""

    gave_up: tuple[bool, ...]


def compared(job: tuple[int, str, float]) -> Result | None:
    seed, level, gain = job
    one = case(seed, level)
    lab = Lab(one, drain_s=120.0)
    knee, law = one.best, lab.law
    workload = workload_of(one)
    other = CAPS[min(len(CAPS) - 1, CAPS.index(knee) + 1)] if knee < CAPS[-1] else CAPS[-2]
    surrogate = Surrogate(
        laws=(law, law), shape=shape_of(one.world, known=False), slo=one.slo, traffic=one.traffic,
        objectives=(GOODPUT,), knee={CAP: knee, TOKENS: one.world.budget},
    )  # fmt: skip
    pairs = balanced(
        workload, surrogate, {CAP: other, TOKENS: one.world.budget}, GOODPUT, pairs=MANY,
        hash_block_size=16,
    )  # fmt: skip
    faster = law.slowed(1 / (1 + gain))
    made = []
    for number, windows in enumerate(pairs):
        both: dict[bool, TwinNumbers] = {}
        for is_refined in SIDES[2 * (number % 2) :][:2]:
            if seed % 2:
                lab.start()
            lab.law = faster if is_refined else law
            both[is_refined] = replayed(lab, knee, windows)
        made.append((both[False], both[True]))
    proven, gave_up = list[str | None](), list[bool]()
    for count in COUNTS:
        half, whole = (ratios_of(made[:upto]) for upto in (count // 2, count))
        gave_up.append(is_futile(GOODPUT, half, pairs=count))
        found = acceptance(GOODPUT, whole)
        proven.append(None if found is None or gave_up[-1] else found.of)
    before, after = (truth_of(one, knee, each) for each in (law, faster))
    if before.e2el_s is None or after.e2el_s is None or not before.attainment:
        return None
    return Result(
        seed=seed,
        level=level,
        gain=gain,
        goodput=after.attainment / before.attainment,
        tail=after.e2el_s.p99 / before.e2el_s.p99,
        proven=tuple(proven),
        gave_up=tuple(gave_up),
    )


def ratios_of(pairs: Sequence[tuple[TwinNumbers, TwinNumbers]]) -> dict[str, Any]:
    found = {name: paired_ratio(aim, pairs) for name, aim in OBJECTIVES.items()}
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def workload_of(one: Case) -> Workload:
    unloaded = Unloaded(0.0, 0.0, 1e-3)
    requests = requests_of(one)
    return choose_workload(requests, one.slo, unloaded, asked="all", step_s=STEP_S)


def replayed(lab: Lab, cap: int, windows: Sequence[Window]) -> TwinNumbers:
    """Return what clients saw of these windows, replayed one after the other."""
    served = []
    for window in windows:
        begin_s = window.start_s - window.run_in_s
        _, seen = lab.window(cap, begin_s, window.replay_s)
        served.append(_served(seen, window, cap))
    return pooled(served, lab.case.slo)


def _served(seen: Observed, window: Window, cap: int) -> WindowForecast:
    replay = TwinReplay(
        max_num_seqs=cap,
        ttft_s=seen.ttft_s,
        tpot_s=seen.tpot_s,
        e2el_s=seen.e2el_s,
        queue_s=seen.ttft_s,
        preemptions=np.zeros(len(seen.ttft_s), np.int64),
        recomputed_tokens=0,
        output_tokens=seen.output_tokens,
        duration_s=seen.end_s,
        running_mean=0.0,
        running_peak=0,
        kv_usage_mean=0.0,
        kv_usage_peak=0.0,
        iterations=seen.iterations,
    )
    scored = seen.traffic.arrival_s >= window.run_in_s
    return WindowForecast(seen.traffic, replay, scored, window.weight)


def truth_of(one: Case, cap: int, law: StepLaw) -> TwinNumbers:
    replay = simulate(one.traffic, law, shape_of(one.world, known=False), max_num_seqs=cap)
    return pooled([WindowForecast(one.traffic, replay, np.ones(len(one.traffic), bool))], one.slo)


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return what is proven, per level, gain and number of pairs."""
    rows = []
    for level in dict.fromkeys(one.level for one in results):
        for gain in sorted({one.gain for one in results}):
            here = [one for one in results if (one.level, one.gain) == (level, gain)]
            for place, pairs in enumerate(COUNTS if here else ()):
                proven = [one.proven[place] for one in here]
                rows.append(
                    {
                        "level": level,
                        "shorter": gain,
                        "pairs": pairs,
                        "comparisons": len(here),
                        "proven": sum(each is not None for each in proven),
                        "by_goodput": proven.count("goodput"),
                        "gave_up": sum(one.gave_up[place] for one in here),
                        "goodput_gained": float(np.median([one.goodput for one in here])) - 1,
                        "tail_gained": 1 - float(np.median([one.tail for one in here])),
                    }
                )
    return rows


def smallest(rows: Sequence[dict[str, Any]], level: str, pairs: int) -> float:
    """Return by how much iterations must be shorter for a gain to be proven in 80 % of cases,
    between the nearest gains that were tried; infinite where none is."""
    mine = [row for row in rows if (row["level"], row["pairs"]) == (level, pairs)]
    before = (0.0, 0.0)
    for row in sorted(mine, key=lambda row: row["shorter"]):
        now = (row["shorter"], row["proven"] / row["comparisons"])
        if now[1] >= POWER:
            (low, least), (high, most) = before, now
            return float(low + (high - low) * (POWER - least) / (most - least))
        before = now
    return math.inf


POWER = 0.80


def power_rows(rows: Sequence[dict[str, Any]]) -> list[list[object]]:
    """Return level, pairs, by how much iterations must be shorter to be accepted in 80 % of
    cases, and what the next gain that was tried gains of all of the traffic, in the middle of the
    worlds."""
    found: list[list[object]] = []
    for level in dict.fromkeys(row["level"] for row in rows):
        for pairs in COUNTS:
            least = smallest(rows, level, pairs)
            mine = [row for row in rows if (row["level"], row["pairs"]) == (level, pairs)]
            beyond = [row for row in mine if row["shorter"] >= least]
            if not beyond:
                most = max(row["shorter"] for row in mine)
                found.append([level, pairs, f"more than {most:.0%}", "-", "-"])
                continue
            at = min(beyond, key=lambda row: row["shorter"])
            gained = f"{at['goodput_gained']:+.1%}", f"{-at['tail_gained']:+.1%}"
            found.append([level, pairs, f"{least:.1%}", *gained])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=140)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--gains", action="store_true", help="of engines that are faster")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke="--worlds 2 --level typical --gains --processes 1")
    begin_s = monotonic()
    seeds = range(options.first, options.first + options.worlds)
    levels = options.level or list(NOISE)
    gains = GAINS if options.gains else (0.0,)
    jobs = [(seed, level, gain) for seed in seeds for level in levels for gain in gains]
    with workers(options.processes) as pool:
        results = [one for one in pool.imap_unordered(compared, jobs) if one is not None]
    rows = summary(results)
    for row in rows:
        print(row, flush=True)
    if options.gains:
        for cells in power_rows(rows):
            print(*cells, sep=" | ", flush=True)
    each = [asdict(one) for one in sorted(results, key=lambda one: (one.seed, one.level))]
    evidence.keep(options.keep, {"summary": rows, "comparisons": each})
    print(f"{len(results)} of {len(jobs)} comparisons in {monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
