"""Count how often `tuner sweep` is right, on random simulated machines whose truth is known.

    python scripts/study_worlds.py --worlds 25 --first 700 [--level noisy]

Each world is a machine with traffic (random_worlds.py). The program tunes it, and its answer is
compared with the whole trace on the same machine without noise, under the SLO that it derived.
Printed for each level of noise: answers that are the true best cap, and within tolerance (0.02 of
attainment and 10 % of p99 E2EL); answers with confidence >= 0.95, and the share of these within
tolerance; of the worlds that can serve half at 1.25 times the load, those whose answer loses more
than 0.02 there; how many of the promised 95 % intervals hold what the machine does without noise,
and their half-widths.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
from random_worlds import CAPS, NOISE, Case, case, shape_of
from results import Promised, kept_promises, percentiles, table

from tuner.engines.sim.world import step_law
from tuner.profile import profile
from tuner.profile.profile import ServingProfile
from tuner.replay.records import e2el_s, met, ttft_s
from tuner.trace.record import TraceHeader
from tuner.trace.trace import Trace, TraceRequest, write
from tuner.traffic.constants import HALF
from tuner.traffic.slo import Slo
from tuner.twin.decide import rule
from tuner.twin.samples import loads_of
from tuner.twin.simulation import Traffic, simulate

SURE, HEADROOM, LOSS = 0.95, 1.25, 0.02
OTHER_COPIES = 10_000
"""Seed of the copies that make the load of the truth with headroom: none that a sweep takes."""


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    level: str
    cap: int
    best: int
    confidence: float
    is_good: bool
    headroom_loss: float | None
    """Attainment that the answer loses at 1.25 times the load; None where no equal serves half."""

    promised: list[Promised]
    """Beside what the machine does without noise."""


def swept(case: Case, folder: Path) -> ServingProfile:
    """Run the program in a folder, and return the profile that it writes."""
    (folder / "world.yaml").write_bytes(msgspec.json.encode(case.world))
    columns = case.traffic.arrival_s, case.traffic.input_length, case.traffic.output_length
    rows = zip(*(column.tolist() for column in columns), strict=True)
    requests = [TraceRequest(row, *each) for row, each in enumerate(rows)]
    write(Trace.of(TraceHeader(source="study"), requests), folder / "trace.jsonl")
    words = ["sweep", "--trace", "trace.jsonl", "--world", "world.yaml"]
    done = subprocess.run(  # noqa: S603 - tuner itself
        [Path(sys.executable).with_name("tuner"), *words, "--budget", "1h"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "profile.yaml").exists(), f"world {case.world.seed}: {done.stderr[-300:]}"
    return profile.load(folder / "profile.yaml")


def result_of(job: tuple[int, str]) -> Result:
    seed, level = job
    item = case(seed, level)
    with tempfile.TemporaryDirectory() as folder:
        answer = swept(item, Path(folder))
    slo, cap = answer.decision.slo.slo, answer.decision.max_num_seqs
    truth = {each: numbers(item, item.traffic, slo, each) for each in CAPS}
    shares, tails_s = ([truth[each][name] for each in CAPS] for name in ("attainment", "tail_s"))
    ruling = rule(shares, tails_s)
    candidates = [each for each, is_one in zip(CAPS, ruling.candidates, strict=True) if is_one]
    copies = loads_of(item.traffic, HEADROOM, seed=OTHER_COPIES).raised
    raised = {
        each: float(np.mean([numbers(item, load, slo, each)["attainment"] for load in copies]))
        for each in {*candidates, cap}
    }
    most = max(raised[each] for each in candidates)
    promised = next((p for p in answer.promise.predicted if p.load == 1.0), None)
    ends = {} if promised is None else promised.intervals
    return Result(
        seed=seed,
        level=level,
        cap=cap,
        best=CAPS[int(rule(shares, tails_s, [raised.get(each, 0.0) for each in CAPS]).choice)],
        confidence=answer.decision.confidence,
        is_good=bool(ruling.right[CAPS.index(cap)]),
        headroom_loss=most - raised[cap] if most >= HALF else None,
        promised=[(name, *ends[name], value) for name, value in truth[cap].items() if name in ends],
    )


def numbers(case: Case, traffic: Traffic, slo: Slo, cap: int) -> dict[str, float]:
    """Return what the machine does without noise, by the names of a promise's intervals."""
    law, shape = step_law(case.world.step, CAPS[-1]), shape_of(case.world)
    rows = simulate(traffic, law, shape, max_num_seqs=cap).requests
    times = percentiles(ttft=ttft_s(rows), tpot=rows["tpot_s"], e2el=e2el_s(rows))
    served_s = e2el_s(rows)[rows["outcome"] == "ok"]
    tail_s = float(np.quantile(served_s, 0.99)) if served_s.size else np.inf
    share = float(met(rows, slo).mean())
    return {"attainment": share, "tail_s": max(1e-9, tail_s), **times}


HEAD = ("machine", "true best", "within tolerance", "sure, and right", "loses with headroom",
        "intervals that hold", "half-width: time, attainment")  # fmt: skip


def row_of(level: str, results: Sequence[Result]) -> list[str]:
    sure = [result.is_good for result in results if result.confidence >= SURE]
    losses = [result.headroom_loss for result in results if result.headroom_loss is not None]
    return [
        level,
        f"{np.mean([result.cap == result.best for result in results]):.2f}",
        f"{np.mean([result.is_good for result in results]):.2f}",
        f"{len(sure) / len(results):.2f}, {np.mean(sure) if sure else math.nan:.2f}",
        f"{sum(loss > LOSS for loss in losses)} of {len(losses)}",
        *kept_promises([each for result in results for each in result.promised]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--level", nargs="+", choices=NOISE, default=NOISE, help="default: all")
    options = parser.parse_args()
    # Threads of OpenBLAS that share the cores wait for each other in a loop: seven times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    seeds = range(options.first, options.first + options.worlds)
    jobs = [(seed, level) for seed in seeds for level in options.level]
    results: list[Result] = []
    with get_context("spawn").Pool() as pool:
        for each in pool.imap_unordered(result_of, jobs):
            results.append(each)
            if not each.is_good:
                print(each, flush=True)
    rows = [
        row_of(level, [result for result in results if result.level == level])
        for level in options.level
    ]
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
