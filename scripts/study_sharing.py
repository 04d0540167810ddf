"""Counts how often the shared cap is right: sweeps of day and night on worlds of known truth.

    python scripts/study_sharing.py --worlds 10 [--first 300] [--level noisy]
    python scripts/study_sharing.py --smoke

Each world is a machine with traffic (scripts/random_worlds.py), which is the day's; the night is
another draw on the same machine with other lengths. Both are tuned together on virtual time, and
the answer is held against the whole traces on the machine without noise, under the SLOs that the
sweep derived. Printed per level: how often a cap that was said to serve all is truly within
tolerance of every trace's true best; how often it is said that none does, and none truly does; and
what the shared cap truly loses at most beyond what was said.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import evidence
from random_worlds import CAPS, NOISE, Case, case, shape_of
from study_sweeps import Silent, parsed, requests_of, workers

from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import step_law
from tuner.runs import journal
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.multi_trace import Member, sweep_traces
from tuner.runs.sweep.shared_cap import MultiTraceOutcome, compromise, loss
from tuner.traffic.slo import Slo
from tuner.twin.choice import value_of
from tuner.twin.objective import choose
from tuner.twin.simulation import Traffic, simulate

NIGHT = 100_000
"""The night's seed is so much higher than the day's."""


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    kind: str
    cap: int
    own: tuple[int, ...]
    confidence: float
    true_loss: float
    """Of the shared cap, in tolerances, for the trace that loses most."""

    least_loss: float
    """Of the cap that is truly the best compromise."""


def swept(day: Case, night: Case, settings: SweepSettings) -> MultiTraceOutcome:
    with tempfile.TemporaryDirectory() as folder:
        books = {name: journal.create(Path(folder, name), {}) for name in ("all", "day", "night")}
        members = [
            Member(name, requests_of(one), settings, books[name], Silent())
            for name, one in (("day", day), ("night", night))
        ]
        try:
            return virtual_time.run(sweep_traces(members, SimStarter(day.world), books["all"]))
        finally:
            for book in books.values():
                book.close()


def result_of(job: tuple[int, str], *, settings: SweepSettings) -> Result:
    seed, level = job
    day = case(seed, level)
    # the same machine with another draw's traffic, thinned to what that machine can carry
    night = replace(day, traffic=carried(day, case(seed + NIGHT, level).traffic))
    found = swept(day, night, settings)
    losses = {
        name: true_losses(one, found.outcomes[name].slo)
        for name, one in (("day", day), ("night", night))
    }
    cap = found.shared_cap.max_num_seqs
    return Result(
        seed=seed,
        kind=found.shared_cap.kind,
        cap=cap,
        own=tuple(one.verdict.max_num_seqs for one in found.outcomes.values()),
        confidence=found.shared_cap.confidence,
        true_loss=worst(losses, cap),
        least_loss=worst(losses, compromise(losses)),
    )


def carried(day: Case, traffic: Traffic) -> Traffic:
    """Return every n-th request, so that no more tokens come a second than half of the day's."""

    def tokens_per_s(one: Traffic) -> float:
        span_s = max(1.0, float(one.arrival_s[-1] - one.arrival_s[0]))
        return float((one.input_length / 10 + one.output_length).sum()) / span_s

    every = max(1, round(tokens_per_s(traffic) / (0.5 * tokens_per_s(day.traffic))))
    return Traffic(
        traffic.arrival_s[::every],
        traffic.input_length[::every],
        traffic.output_length[::every],
        traffic.cached_length[::every],
    )


def true_losses(one: Case, slo: Slo) -> dict[int, float]:
    law, shape = step_law(one.world.step, CAPS[-1]), shape_of(one.world, known=False)
    values = {
        cap: value_of(one.traffic, simulate(one.traffic, law, shape, max_num_seqs=cap), slo)
        for cap in CAPS
    }
    best = choose(values)
    return {cap: loss(values, best, cap) for cap in CAPS}


def worst(losses: Mapping[str, Mapping[int, float]], cap: int) -> float:
    return max(of_cap[cap] for of_cap in losses.values())


def report(level: str, results: Sequence[Result]) -> None:
    shared = [one for one in results if one.kind == "shared"]
    separate = [one for one in results if one.kind == "separate"]
    right = [one for one in shared if one.true_loss <= 1]
    none = [one for one in separate if one.least_loss > 1]
    print(
        f"{level:8} {len(results)} worlds | said to serve all {len(shared)}, truly {len(right)}"
        f" | said that none does {len(separate)}, truly {len(none)}"
        f" | inconclusive {len(results) - len(shared) - len(separate)}"
        f" | own caps differ {sum(len(set(one.own)) > 1 for one in results)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--first", type=int, default=300, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke="--worlds 1 --level quiet --processes 1")
    settings = SweepSettings(
        ceiling=CAPS[-1], slo=None, window="all", step_s=60.0, budget_s=7200.0, headroom=1.0,
        fast=False, fresh=False, closed_sessions=False, seed=0, trace_block_size=16,
    )  # fmt: skip
    seeds = range(options.first, options.first + options.worlds)
    kept = []
    for level in options.level or list(NOISE):
        with workers(options.processes) as pool:
            work = partial(result_of, settings=settings)
            results = []
            for one in pool.imap_unordered(work, [(seed, level) for seed in seeds]):
                results.append(one)
                print(f"    {one}", flush=True)
        report(level, results)
        kept += [{"level": level, **asdict(one)} for one in results]
    evidence.keep(options.keep, kept)


if __name__ == "__main__":
    main()
