"""Counts how often a decision rule is right, on random worlds whose truth is known.

    python scripts/study_worlds.py --worlds 50 [--harder] [--rule ladder+ramp ...]
    python scripts/study_worlds.py --headroom --first 1000 --worlds 120 --keep headroom.json
    python scripts/study_worlds.py --smoke

A rule gets a Lab, an engine on the world's noisy machine, spends engine time on it as it likes and
answers with a cap and its confidence. The truth is the whole trace on the same machine without
noise. Printed per rule and level of noise: the share of answers that are the true best cap, the
share within tolerance (attainment within 0.02, p99 E2EL within 10 %), the same among the answers
given with confidence >= 0.95 and how many those are, and the engine seconds spent.

With --headroom each world is asked as a sweep asks it (one ramp after the other until sure), for
today's load alone and for 1.25 times the load besides, and both answers are held against the truth
at both loads. With `--level truth` nothing is measured, and the rule has the truth itself. It goes
on where an earlier run with the same --keep was ended.
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from random_worlds import CAPS, NOISE, Case, case, shape_of
from results import keep, parsed, workers
from scipy.stats import beta

from tuner.engines.scheduler.model import abort, advance
from tuner.engines.scheduler.state import (
    DONE,
    FINISHED,
    OUT_OF_NOISE,
    Scheduler,
    new_requests,
    new_scheduler,
)
from tuner.engines.sim.noise import EngineNoise, MachineNoise
from tuner.engines.sim.world import step_law
from tuner.twin.check import Observed, lag_s
from tuner.twin.choice import Weighed, weigh
from tuner.twin.law import FittedLaw, Segment, fit_law
from tuner.twin.load import Loads, loads_of
from tuner.twin.objective import EQUAL_ATTAINMENT, HALF, candidates, choose, right_caps
from tuner.twin.simulation import EngineShape, attainment, simulate

WINDOW_S = 60.0
DRAIN_S = 10.0
SURE = 0.95
CEILING: Final = CAPS[-1]


class Lab:
    """An engine on the noisy machine of a case, without an event loop."""

    def __init__(self, case_: Case, *, drain_s: float = DRAIN_S) -> None:
        self.case, self.drain_s = case_, drain_s
        self.now_s = self.replay_s = 0.0
        self.starts = self.jitter = 0
        self.machine = MachineNoise(case_.world)
        self.law = step_law(case_.world.step, CEILING)
        self.start()

    def start(self) -> None:
        """Start a fresh engine."""
        self.now_s += self.case.world.engine_start
        self.starts += 1
        self.noise = EngineNoise(self.machine, number=self.starts)
        self.known = self.noise.until(self.now_s)
        self.jitter = 0

    def window(self, cap: int, begin_s: float, length_s: float) -> tuple[Segment, Observed]:
        """Replay a part of the trace in open loop; what is not done soon after it is cut."""
        traffic = self.case.traffic.between(begin_s, begin_s + length_s)
        traffic = replace(traffic, arrival_s=traffic.arrival_s - begin_s)
        start_s, lag = self.now_s, self.case.world.step.lag
        scheduler = self._scheduler(cap, rows=max(1, len(traffic)))
        scheduler.requests[: len(traffic)] = new_requests(
            traffic.arrival_s + start_s + lag, traffic.input_length, traffic.output_length
        )
        scheduler.state["rows"] = len(traffic)
        self._go(scheduler, start_s + length_s + self.drain_s)
        segment = self._end(scheduler, start_s)
        requests = scheduler.requests[: len(traffic)]
        done = requests["status"] == FINISHED
        gaps = np.maximum(1, requests["output_length"] - 1)
        decode_s = requests["last_token_s"] - requests["first_token_s"]
        several = done & (requests["output_length"] > 1)
        return segment, Observed(
            max_num_seqs=cap,
            traffic=traffic,
            scored=np.ones(len(traffic), bool),
            ttft_s=requests["first_token_s"] - start_s - traffic.arrival_s,
            tpot_s=np.where(several, decode_s / gaps, np.nan),
            e2el_s=np.where(done, requests["last_token_s"] - start_s - traffic.arrival_s, np.nan),
            output_tokens=int(requests["generated"].sum()),
            end_s=self.now_s - start_s,
            iterations=segment.log,
            cut=not done.all(),
        )

    def ramp(self, length_s: float, dwell_s: float, rng: Generator) -> Segment:
        """Keep 1, 2, …, 32, …, 2, 1, 2, … requests of the trace in flight, each ``dwell_s``."""
        start_s, traffic = self.now_s, self.case.traffic
        scheduler = self._scheduler(CEILING, rows=50_000)
        state, requests = scheduler.state[0], scheduler.requests
        live = list[int]()

        def add(at_s: float) -> None:
            row, like = int(state["rows"]), rng.integers(len(traffic))
            lengths = int(traffic.input_length[like]), int(traffic.output_length[like])
            requests[row : row + 1] = new_requests(at_s + self.case.world.step.lag, *lengths)
            state["rows"] = row + 1
            live.append(row)

        steps = [*range(1, CEILING), *range(CEILING, 1, -1)]
        for i in range(math.ceil(length_s / dwell_s)):
            want, begin_s = steps[i % len(steps)], start_s + i * dwell_s
            while len(live) < want:
                add(begin_s)
            while len(live) > want:
                abort(scheduler, live.pop(int(rng.integers(len(live)))))
            while self._go(scheduler, begin_s + dwell_s, stop=True) == DONE:
                done = [row for row in live if requests[row]["status"] == FINISHED]
                for row in done:
                    live.remove(row)
                    add(float(state["now"]))
        return self._end(scheduler, start_s)

    def _scheduler(self, cap: int, *, rows: int) -> Scheduler:
        world = self.case.world
        scheduler = new_scheduler(
            max_num_seqs=cap,
            max_num_batched_tokens=world.budget,
            block_size=world.kv.block_size,
            kv_blocks=world.kv.blocks,
            async_scheduling=world.step.async_release,
            rows=rows,
            log_length=200_000,
        )
        scheduler.state["now"] = self.now_s
        scheduler.state["jitter"] = self.jitter
        return scheduler

    def _go(self, scheduler: Scheduler, until_s: float, *, stop: bool = False) -> int:
        while True:
            news = advance(scheduler, self.law, self.known, until_s, stop)
            if news != OUT_OF_NOISE:
                return news
            self.known = self.noise.until(float(scheduler.state["now"][0]))
            scheduler.state["jitter"] = 0

    def _end(self, scheduler: Scheduler, start_s: float) -> Segment:
        state = scheduler.state[0]
        log = scheduler.log[: state["logged"]].copy()
        log["start_s"] -= start_s
        if state["in_flight"]:
            state["now"] = state["end"]
        self.now_s = float(state["now"])
        self.jitter = int(state["jitter"])
        self.replay_s += self.now_s - start_s
        return Segment(log, start_s, self.starts)


@dataclass(frozen=True, slots=True)
class Answer:
    cap: int
    confidence: float


Rule = Callable[[Case, Lab], Answer]


def twin_rule(
    case_: Case,
    lab: Lab,
    *,
    caps: Sequence[int],
    ramp_s: float,
    ramps: int = 1,
) -> Answer:
    """Replay the busiest window at some caps, ramp until sure, and ask the twin."""
    begin_s = busiest_s(case_, WINDOW_S)
    replayed = [lab.window(cap, begin_s, WINDOW_S) for cap in caps]
    segments, windows = [one for one, _ in replayed], [one for _, one in replayed]
    dwell_s = 5 * float(np.median(segments[0].log["duration_s"]))
    rng = np.random.default_rng(case_.world.seed)
    while True:
        if ramp_s:
            segments.append(lab.ramp(ramp_s, dwell_s, rng))
        fitted = fit_law(segments, max_num_seqs=CEILING)
        shape = shape_of(case_.world, known=True)
        shape = replace(shape, lag_s=lag_s(windows, fitted.law, shape))
        found = weigh(Loads(case_.traffic), fitted, shape, case_.slo, CAPS)
        ramps -= 1
        if ramps <= 0 or found.confidence >= SURE:
            break
    return Answer(found.best, found.confidence)


RULES: Final[dict[str, Rule]] = {
    "ladder": partial(twin_rule, caps=CAPS, ramp_s=0.0),
    "ladder+ramp": partial(twin_rule, caps=CAPS, ramp_s=60.0),
    "two+ramp": partial(twin_rule, caps=(8, 32), ramp_s=60.0),
    "one+ramp until sure": partial(twin_rule, caps=(CEILING,), ramp_s=60.0, ramps=4),
}


def busiest_s(case_: Case, length_s: float) -> float:
    """Return where the window with the most output tokens begins."""
    traffic = case_.traffic
    work = np.concatenate(([0.0], np.cumsum(traffic.output_length)))
    last = np.searchsorted(traffic.arrival_s, traffic.arrival_s + length_s)
    return float(traffic.arrival_s[int(np.argmax(work[last] - work[:-1]))])


@dataclass(frozen=True, slots=True)
class Result:
    rule: str
    level: str
    seed: int
    answer: Answer
    is_best: bool
    is_good: bool
    replay_s: float


def results_of(job: tuple[int, str], *, rules: Sequence[str], harder: bool) -> list[Result]:
    seed, level = job
    one = case(seed, level, harder=harder)
    found = []
    for name in rules:
        lab = Lab(one)
        answer = RULES[name](one, lab)
        good = one.is_good(answer.cap)
        found.append(Result(name, level, seed, answer, answer.cap == one.best, good, lab.replay_s))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--harder", action="store_true", help="worlds the twin cannot represent")
    parser.add_argument("--rule", action="append", choices=RULES, help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--headroom", action="store_true", help="the choice for both loads")
    parser.add_argument("--level", action="append", choices=(TRUTH, *NOISE), help="of --headroom")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after about so many")
    options = parsed(parser, smoke="--worlds 1 --processes 1")
    rules = options.rule or list(RULES)
    begin_s = monotonic()
    if options.headroom:
        study_headroom(options)
        return
    jobs = [
        (seed, level)
        for seed in range(options.first, options.first + options.worlds)
        for level in NOISE
    ]
    with workers(options.processes) as pool:
        work = partial(results_of, rules=rules, harder=options.harder)
        results = [one for found in pool.imap_unordered(work, jobs) for one in found]
    for rule in rules:
        for level in NOISE:
            report([one for one in results if (one.rule, one.level) == (rule, level)])
    keep(options.keep, [asdict(one) for one in results])
    print(f"{options.worlds} worlds in {monotonic() - begin_s:.0f} s")


HEADROOM: Final = 1.25
TRUTH: Final = "truth"
OTHER_COPIES: Final = 10_000
"""Seed of the copies of requests that the truth at the headroom load is of: none that is asked."""


@dataclass(frozen=True, slots=True)
class BothLoads:
    """Two answers in one world, and the truth about every cap in CAPS."""

    seed: int
    level: str
    for_today: int
    """By the rule that asks today's load alone."""

    cap: int
    confidence: float
    attainment: tuple[float, ...]
    tail_s: tuple[float, ...]
    raised: tuple[float, ...]
    """Attainment with headroom, in the mean over copies of the load that nobody was asked about."""


def both_loads(job: tuple[int, str]) -> BothLoads:
    seed, level = job
    one = case(seed, "quiet" if level == TRUTH else level)
    law, shape = step_law(one.world.step, CEILING), shape_of(one.world, known=False)
    copies = loads_of(one.traffic, HEADROOM, seed=OTHER_COPIES).raised
    raised = [
        float(
            np.mean(
                [attainment(t, simulate(t, law, shape, max_num_seqs=cap), one.slo) for t in copies]
            )
        )
        for cap in CAPS
    ]
    values = one.truth()
    answers = (choose(values), choose(values, dict(zip(CAPS, raised, strict=True))), 1.0)
    if level != TRUTH:
        fitted, known, found = _asked_as_a_sweep(one)
        today = weigh(Loads(one.traffic), fitted, known, one.slo, CAPS)
        answers = (today.best, found.best, found.confidence)
    told = (tuple(round(each, 6) for each in row) for row in (one.attainment, one.tail_s, raised))
    return BothLoads(seed, level, *answers, *told)


def _asked_as_a_sweep(one: Case) -> tuple[FittedLaw, EngineShape, Weighed]:
    """Return the law after a whole window at the ceiling and ramps until the choice for both loads
    is sure, what is known of the engine, and the choice."""
    lab = Lab(one)
    segment, window = lab.window(CEILING, busiest_s(one, WINDOW_S), WINDOW_S)
    segments, rng = [segment], np.random.default_rng(one.world.seed)
    dwell_s = 5 * float(np.median(segment.log["duration_s"]))
    shape, loads = (
        shape_of(one.world, known=True),
        loads_of(one.traffic, HEADROOM, seed=one.world.seed),
    )
    while True:
        segments.append(lab.ramp(WINDOW_S, dwell_s, rng))
        fitted = fit_law(segments, max_num_seqs=CEILING)
        known = replace(shape, lag_s=lag_s([window], fitted.law, shape))
        found = weigh(loads, fitted, known, one.slo, CAPS)
        if found.confidence >= SURE or len(segments) > MOST_RAMPS:
            return fitted, known, found


MOST_RAMPS: Final = 4


def study_headroom(options: argparse.Namespace) -> None:
    """Ask every world, keep what was found as it comes, and print what it says."""
    begin_s, name = monotonic(), options.keep
    known = json.loads(name.read_text()) if name and name.exists() else []
    seeds = range(options.first, options.first + options.worlds)
    done = {(one["seed"], one["level"]) for one in known}
    asked = options.level or list(NOISE)
    jobs = [(seed, level) for seed in seeds for level in asked if (seed, level) not in done]
    with workers(options.processes) as pool:
        for one in pool.imap(both_loads, jobs):
            known.append(asdict(one))
            if monotonic() - begin_s > 60 * options.minutes:
                break
    for row in (*headroom_rows(known), *calibration_rows(known)):
        print(*row, sep=" | ")
    keep(name, known)
    print(f"{len(known)} answers in {monotonic() - begin_s:.0f} s")


def headroom_rows(found: Sequence[dict[str, Any]]) -> list[list[object]]:
    """Return level, worlds, of these where an equal of today holds the headroom, how many answers
    lose more than a tolerance there by either rule, and what the rule costs today."""
    rows: list[list[object]] = []
    for level in (TRUTH, *NOISE):
        of_level = [one for one in found if one["level"] == level]
        if level == TRUTH:  # every answer tells it
            of_level = list({one["seed"]: one for one in found}.values())
        alive, lost_today, lost, worst = 0, 0, 0, 0.0
        for one in of_level:
            values, raised = _truth(one)
            equal = candidates(values)
            best = max(raised[cap] for cap in equal)
            if best < HALF:
                continue
            alive += 1
            pair = one["for_today"], one["cap"]
            if level == TRUTH:
                pair = choose(values), choose(values, raised)
            lost_today += raised[pair[0]] < best - EQUAL_ATTAINMENT
            lost += raised[pair[1]] < best - EQUAL_ATTAINMENT
            worst = max(worst, values[pair[0]][0] - values[pair[1]][0])
        rows.append([level, len(of_level), alive, lost_today, lost, f"{worst:.4f}"])
    return rows


def calibration_rows(found: Sequence[dict[str, Any]]) -> list[list[object]]:
    """Return per band of confidence how many answers there are, the share that is right for every
    practical purpose at both loads, and its one-sided 95 % bound (Clopper and Pearson)."""
    rows: list[list[object]] = []
    for name, low, high in (
        ("0.95 and more", 0.95, 2),
        ("0.80 to 0.95", 0.8, 0.95),
        ("below", -1, 0.8),
    ):
        right = [
            one["cap"] in right_caps(*_truth(one))
            for one in found
            if one["level"] != TRUTH and low <= one["confidence"] < high
        ]
        hits, count = sum(right), len(right)
        bound = float(beta.ppf(0.05, hits, count - hits + 1)) if hits else 0.0
        share = f"{hits / count:.3f}" if count else "-"
        rows.append([name, count, share, f"{bound:.3f}" if count else "-"])
    return rows


def _truth(one: dict[str, Any]) -> tuple[dict[int, tuple[float, float]], dict[int, float]]:
    values = zip(CAPS, one["attainment"], one["tail_s"], strict=True)
    return (
        {cap: (share, math.log(tail)) for cap, share, tail in values},
        dict(zip(CAPS, one["raised"], strict=True)),
    )


def report(results: Sequence[Result]) -> None:
    sure = [one for one in results if one.answer.confidence >= SURE]
    right = np.mean([one.is_good for one in sure]) if sure else math.nan
    print(
        f"{results[0].rule:20} {results[0].level:8}"
        f" best {np.mean([one.is_best for one in results]):.3f}"
        f" within tolerance {np.mean([one.is_good for one in results]):.3f}"
        f" | sure {len(sure) / len(results):.2f}, of these {right:.3f}"
        f" | replay {np.mean([one.replay_s for one in results]):.0f} s"
        f" | wrong {sorted(one.seed for one in results if not one.is_good)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
