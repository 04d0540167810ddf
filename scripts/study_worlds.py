"""Count how often `tuner sweep` is right, on random simulated machines whose truth is known.

    python scripts/study_worlds.py --worlds 25 --first 700 [--level noisy] [--harder]

Each world is a machine with traffic (random_worlds.py). The program tunes it, and its answer is
compared with the whole trace on the same machine without noise, under the SLO that it derived.
Printed for each level of noise: answers that are the true best cap, and within tolerance (0.02 of
attainment and 10 % of p99 E2EL); answers with confidence >= 0.95, and the share of these within
tolerance; wrong answers without any warning; of the worlds that can serve half at 1.25 times the
load, those whose answer loses more than 0.02 there; half-widths of the promised 95 % intervals, and
how many hold what the machine does without noise; engine time.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

import numpy as np
from random_worlds import CAPS, NOISE, Case, case, shape_of
from results import keep, table

from tuner.engines.sim.world import step_law
from tuner.profile import profile
from tuner.profile.profile import ServingProfile
from tuner.traffic.constants import HALF
from tuner.traffic.slo import Slo
from tuner.twin.decide import rule
from tuner.twin.samples import loads_of
from tuner.twin.simulation import Traffic, attainment, simulate, tail_s

SURE, HEADROOM, LOSS = 0.95, 1.25, 0.02
OTHER_COPIES = 10_000
"""Seed of the copies that make the load of the truth with headroom: none that a sweep takes."""


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    level: str
    verdict: str
    cap: int
    best: int
    confidence: float
    is_good: bool
    warned: bool
    headroom_loss: float | None
    """Attainment that the answer loses at 1.25 times the load; None where no equal serves half."""

    half_widths: dict[str, float]
    """Number → half-width of its promised interval: share of a time, points of attainment."""

    held: dict[str, bool]
    replay_s: float


def swept(case: Case, folder: Path) -> ServingProfile:
    """Run the program in a folder, and return the profile that it writes."""
    world = asdict(case.world)
    (folder / "world.yaml").write_text(
        json.dumps({key: value for key, value in world.items() if key not in {"name", "digest"}})
    )
    rows = zip(
        case.traffic.arrival_s, case.traffic.input_length, case.traffic.output_length, strict=True
    )
    lines = [{"tuner_trace": 1, "time_unit": "ms", "source": "study"}] + [
        {"timestamp": 1e3 * float(at_s), "input_length": int(prompt), "output_length": int(output)}
        for at_s, prompt, output in rows
    ]
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["sweep", "--trace", "trace.jsonl", "--world", "world.yaml"]
    done = subprocess.run(  # noqa: S603 - tuner itself
        [sys.executable, "-c", "from tuner.cli import main; main()", *words, "--budget", "1h"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / "profile.yaml").exists():
        raise RuntimeError(f"world {case.world.seed}: exit {done.returncode}: {done.stderr[-300:]}")
    return profile.load(folder / "profile.yaml")


def result_of(job: tuple[int, str], *, harder: bool) -> Result:
    seed, level = job
    item = case(seed, level, harder=harder)
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
    known = {name: truth[cap][name] for name in truth[cap].keys() & ends.keys()}
    return Result(
        seed=seed,
        level=level,
        verdict=answer.decision.verdict,
        cap=cap,
        best=CAPS[int(rule(shares, tails_s, [raised.get(each, 0.0) for each in CAPS]).choice)],
        confidence=answer.decision.confidence,
        is_good=bool(ruling.right[CAPS.index(cap)]),
        warned=bool(answer.provenance.warnings)
        or answer.decision.verdict in {"inconclusive", "overloaded"},
        headroom_loss=most - raised[cap] if most >= HALF else None,
        half_widths={
            name: (ends[name][1] - ends[name][0]) / 2 / (1 if name == "attainment" else value)
            for name, value in known.items()
            if value > 0
        },
        held={name: ends[name][0] <= value <= ends[name][1] for name, value in known.items()},
        replay_s=answer.provenance.engine_seconds.replay,
    )


def numbers(case: Case, traffic: Traffic, slo: Slo, cap: int) -> dict[str, float]:
    """Return what the machine does without noise, by the names of a promise's intervals."""
    law, shape = step_law(case.world.step, CAPS[-1]), shape_of(case.world)
    replay = simulate(traffic, law, shape, max_num_seqs=cap)
    times = {"ttft": replay.ttft_s, "tpot": replay.tpot_s, "e2el": replay.e2el_s}
    return {
        "attainment": attainment(traffic, replay, slo),
        "tail_s": max(1e-9, tail_s(replay)),
        **{
            f"{name}_p{share}_ms": 1e3 * float(np.nanquantile(values, share / 100))
            for name, values in times.items()
            for share in (50, 95, 99)
        },
    }


HEAD = ("machine", "true best", "within tolerance", "sure, and right", "wrong and not warned",
        "loses with headroom", "half-width: time, attainment", "intervals that hold",
        "replay, mean and most")  # fmt: skip


def row_of(level: str, results: Sequence[Result]) -> list[str]:
    sure = [result.is_good for result in results if result.confidence >= SURE]
    losses = [result.headroom_loss for result in results if result.headroom_loss is not None]
    held = [each for result in results for each in result.held.values()]
    replay_s = [result.replay_s for result in results]
    return [
        level,
        f"{np.mean([result.cap == result.best for result in results]):.2f}",
        f"{np.mean([result.is_good for result in results]):.2f}",
        f"{len(sure) / len(results):.2f}, {np.mean(sure) if sure else math.nan:.2f}",
        str([result.seed for result in results if not result.is_good and not result.warned]),
        f"{sum(loss > LOSS for loss in losses)} of {len(losses)}",
        f"{_median(results, times=True):.1%}, {_median(results, times=False):.1%}",
        f"{sum(held)} of {len(held)}",
        f"{np.mean(replay_s):.0f} s, {max(replay_s):.0f} s",
    ]


def _median(results: Sequence[Result], *, times: bool) -> float:
    widths = [
        width
        for result in results
        for name, width in result.half_widths.items()
        if (name != "attainment") == times
    ]
    return float(np.median(widths)) if widths else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=int, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--level", action="append", choices=NOISE, help="default: all")
    parser.add_argument("--harder", action="store_true", help="worlds the twin cannot represent")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    # Threads of OpenBLAS that share the cores wait for each other in a loop: seven times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    begin_s = monotonic()
    levels = options.level or list(NOISE)
    seeds = range(options.first, options.first + options.worlds)
    jobs = [(seed, level) for seed in seeds for level in levels]
    results: list[Result] = []
    with get_context("spawn").Pool(options.processes) as pool:
        for each in pool.imap_unordered(partial(result_of, harder=options.harder), jobs):
            results.append(each)
            if not each.is_good:
                print(each, flush=True)
    rows = [
        row_of(level, [result for result in results if result.level == level]) for level in levels
    ]
    print(table(HEAD, rows))
    keep(options.keep, [asdict(result) for result in results])
    print(f"{len(jobs)} sweeps in {monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
