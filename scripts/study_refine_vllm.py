"""Does `tuner refine` find what a full grid would, on a real engine? 12 caps x 6 token budgets.

    python scripts/study_refine_vllm.py profile.yaml prod.jsonl [--step 10s] [--force]

First the refinement, with a quarter of the grid's engine time as its budget; then every cell of the
grid, live on one engine, over the same windows. One replay a cell: on a busy machine the best cell
is the luckiest one, so this wants a quiet machine. Printed: both answers, what the grid says of the
refined one, and the engine seconds of each.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
            run_dir=None, force=True, seed=0, json=False,
        )  # fmt: skip
        report(found, *grid(command, folder))


def grid(command: RefineOptions, folder: Path) -> tuple[LocalBench, Workload]:
    """Replay every cell on one engine, over the windows of the refinement."""
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
            for cell in cells:
                await bench.trial("grid", cell, workload, build)
        finally:
            await bench.stop()

    asyncio.run(every())
    return bench, workload


def report(found: dict[str, Any], bench: LocalBench, workload: Workload) -> None:
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
    best = max(scores, key=lambda cell: scores[cell])
    spent_s, grid_s = sum(found["engine_seconds"].values()), bench.spent_s()
    print(f"refined: {found['reason']}")
    print(f"the grid's best: {CAP}={best[0]}, {TOKENS}={best[1]}, {scores[best]:+.1%} better")
    print(f"engine time: {spent_s:.0f}s of the grid's {grid_s:.0f}s: {spent_s / grid_s:.2f}")


if __name__ == "__main__":
    main()
