"""Does `tuner refine` find what a full grid would, on a real engine? 12 caps x 6 token budgets.

    python scripts/study_refine_vllm.py profile.yaml prod.jsonl [--minutes 20] [--force]

First the refinement, with a quarter of the grid's engine time as its budget; then the cells of the
grid, live on one engine, over the same windows: its answer and the knee, then the others in random
order until the minutes are over (how many were replayed is printed). One replay a cell: on a busy
machine the best cell is the luckiest one, so this wants a quiet machine. Printed: both answers, how
far the refined one is below the best cell that was seen, and the engine seconds of each.
"""

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from study_sweeps import Silent

from tuner import journal, profile
from tuner.commands.refine_setup import RefineOptions, engines_of, plan_of, space_of
from tuner.evidence import Evidence
from tuner.refine.bench import Build
from tuner.refine.knobs import CAP, TOKENS, Configuration, contradicts, number
from tuner.refine.local_bench import LocalBench
from tuner.refine.objective import GOODPUT, gains
from tuner.refine.outcome import unloaded_of
from tuner.rig import Rig
from tuner.trace import load
from tuner.window import parse_duration_s
from tuner.workload import Workload, keep_what_fits, workload_of

CAPS = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--step", default="10s")
    parser.add_argument("--minutes", type=float, default=20.0, help="for the grid")
    parser.add_argument("--force", action="store_true", help="on another machine than measured")
    options = parser.parse_args()
    one = profile.load(options.profile)
    own = int(str(one.engine[TOKENS]))
    budgets = sorted({max(32, round(own * 2.0**power)) for power in (-4, -3, -2, -1, 0, 1)})
    search = (
        f"{CAP}={','.join(map(str, CAPS))}",
        f"{TOKENS}={','.join(map(str, budgets))}",
    )
    step_s = parse_duration_s(options.step, option="--step")
    budget = f"{len(CAPS) * len(budgets) * step_s / 4:.0f}s"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [
            "refine", str(options.profile), "--trace", str(options.trace), "--step", options.step,
            "--budget", budget, "--json", "--run-dir", str(folder / "refine"),
            "-o", str(folder / "refined.yaml"), "--search", search[0], "--search", search[1],
        ]  # fmt: skip
        words += ["--force"] if options.force else []
        tuner = Path(sys.executable).with_name("tuner")
        done = subprocess.run(  # noqa: S603 - ourselves
            [str(tuner), *words], check=True, stdout=subprocess.PIPE
        )
        found = json.loads(done.stdout)
        command = RefineOptions(
            profile=options.profile, trace=options.trace, output=Path(), search=search,
            objective="goodput", engine="vllm", world=None, budget=budget, step=options.step,
            window="all", headroom=1.0, replicas=1, router="least", storage=None, resume=False,
            run_dir=None, force=True, seed=0, ray=None, ray_engines=None, ray_cpus=None, json=False,
        )  # fmt: skip
        answers = [found["knee"], *([found["chosen"]] if found["refined"] else [])]
        bench, workload = grid(command, folder, answers, options.minutes)
        report(found, bench, workload, cells=len(CAPS) * len(budgets))


def grid(
    command: RefineOptions, folder: Path, answers: list[Configuration], minutes: float
) -> tuple[LocalBench, Workload]:
    """Replay cells on one engine, the answers first, over the windows of the refinement."""
    one, trace = profile.load(command.profile), load(command.trace)
    engines = engines_of(command, one)
    requests = [each for each in trace.requests if each.status in {"ok", "aborted"}]
    size = trace.header.block_size
    space = space_of(command, one, engines.vary, requests=requests, block_size=size)
    plan = plan_of(command, one, trace, space)
    chosen = Evidence(journal.read(folder / "refine")).choice()
    assert chosen is not None
    kept, _ = keep_what_fits(requests, max_model_len=plan.max_model_len)
    slo = one.decision.slo.slo
    workload = workload_of(kept, slo, unloaded_of(one), chosen.part, chosen.windows, chosen.step_s)
    cells = [
        cell for cell in space.configurations(live=True, at=space.knee) if not contradicts(cell)
    ]
    cells = [cells[place] for place in np.random.default_rng(0).permutation(len(cells)).tolist()]
    order: list[Configuration] = [*answers, *(cell for cell in cells if cell not in answers)]
    begin_s = monotonic()
    rig = Rig(
        engines.vary({}),
        plan.settings,
        Evidence(journal.create(folder / "grid", {})),
        Silent(),
        None,
    )
    bench = LocalBench(rig, engines.vary, lambda _: None)
    build = Build(max(number(cell[CAP]) for cell in cells), space.most(TOKENS))

    async def every() -> None:
        try:
            for cell in order:
                if monotonic() - begin_s < minutes * 60:
                    await bench.trial("grid", cell, workload, build)
        finally:
            await bench.stop()

    asyncio.run(every())
    return bench, workload


def report(found: dict[str, Any], bench: LocalBench, workload: Workload, *, cells: int) -> None:
    measured = {
        (done.configuration[CAP], done.configuration[TOKENS]): done.measured(workload)
        for done in bench.done()
        if done.failed is None
    }
    answer: Configuration = found["chosen"] if found["refined"] else found["knee"]
    mine = measured[number(answer[CAP]), number(answer[TOKENS])]
    scores = {
        cell: values[0]
        for cell, one in measured.items()
        if (values := gains([GOODPUT], one, mine)) is not None
    }
    knee = found["knee"]
    print(f"refined: {found['reason']}")
    print(f"{len(measured)} of the grid's {cells} cells were replayed")
    if not scores:
        print("the refined answer served nobody within the SLO: too busy a machine to compare")
    else:
        best = max(scores, key=lambda cell: scores[cell])
        print(
            f"the best of them: {CAP}={best[0]}, {TOKENS}={best[1]}, "
            f"{math.expm1(scores[best]):+.1%} against the refined answer; the knee "
            f"{math.expm1(scores.get((knee[CAP], knee[TOKENS]), -math.inf)):+.1%}"
        )
    spent_s, grid_s = sum(found["engine_seconds"].values()), bench.spent_s()
    whole_s = grid_s * cells / len(measured)
    print(
        f"engine time: {spent_s:.0f}s; those cells {grid_s:.0f}s, so all of them {whole_s:.0f}s: "
        f"{spent_s / whole_s:.2f} of the grid's"
    )


if __name__ == "__main__":
    main()
