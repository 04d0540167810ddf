"""Does `tuner refine` find what a full grid would, on a real engine? 12 caps x 6 token budgets.

    python scripts/study_refine_vllm.py prod.jsonl [--load 3] [--minutes 20]
    python scripts/study_refine_vllm.py prod.jsonl --ceiling 8 --slo ttft=1s,tpot=40ms
    python scripts/study_refine_vllm.py --smoke

First a sweep of the trace, of ``--load`` times its requests, and the refinement of its profile with
a quarter of the grid's steps as its budget (what the grid really takes is more: each drains). A
sweep with too low a ``--ceiling`` leaves something to find for certain. Then the cells of the grid,
live on one engine, over the same windows: the refined answer and the knee, then the others in
random order until the minutes are over (how many were replayed is printed). One replay a cell, so
the best of them is the best in part by chance: it is replayed against the refined answer again, in
turns, and that is what counts; so is the knee, where it was replaced. Printed: both answers, how
far apart they are, and the engine seconds of each.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import evidence
import numpy as np
from study_sweeps import Silent, parsed

from tuner.commands.refine.options import RefineOptions
from tuner.commands.refine.plan import engines_of, plan_of
from tuner.commands.refine.space import space_of
from tuner.errors import UndecidedError
from tuner.profile import profile
from tuner.replay.measure import Measurement
from tuner.runs import journal
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.acceptance import paired_ratio
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, contradicts, number
from tuner.runs.refine.objective import GOODPUT, TAIL, gains
from tuner.runs.refine.outcome import unloaded_of
from tuner.runs.refine.trial_runner import Build, FinishedTrial, LocalTrialRunner, told
from tuner.trace.trace import load, write
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import parse_duration_s
from tuner.traffic.workload import Workload, keep_what_fits, workload_of

CAPS = "1,2,4,6,8,10,12,16,20,24,28,32"
GRID, TURNS = "grid", "turns"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--load", type=float, default=1.0, help="requests, of the trace's")
    parser.add_argument("--step", default="10s")
    parser.add_argument("--minutes", type=float, default=20.0, help="for the grid")
    parser.add_argument("--slo", help="of the sweep; default: derived")
    parser.add_argument("--ceiling", type=int, default=32, help="of the sweep")
    parser.add_argument("--budget", help="of the refinement; default: see above")
    parser.add_argument("--turns", type=int, default=4, help="of two pairs each, in the end")
    parser.add_argument("--world", type=Path, help="a simulated machine in the engine's place")
    options = parsed(
        parser,
        smoke="traces/translation.jsonl --world examples/worlds/article-quiet.yaml"
        " --budget 400s --minutes 0.05 --turns 1",
    )
    step_s = parse_duration_s(options.step, option="--step")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, swept = folder / "trace.jsonl", folder / "profile.yaml"
        whole = load(options.trace)
        more = tuple(scale_load(whole.requests, options.load, seed=0))
        header = replace(whole.header, rows_read=len(more), rows_kept=len(more), dropped={})
        write(replace(whole, header=header, requests=more), trace)
        kind = "vllm" if options.world is None else "sim"
        where = () if options.world is None else ("--engine", kind, "--world", options.world)
        tuner(
            "sweep", "--trace", trace, "--budget", "3m" if kind == "vllm" else "15m", *where,
            "--run-dir", folder / "sweep", "-o", swept, "--ceiling", str(options.ceiling),
            "--confirm", "inproc",
            *(("--slo", options.slo) if options.slo else ()),
        )  # fmt: skip
        one = profile.load(swept)
        own = int(str(one.engine[TOKENS]))
        budgets = sorted({max(32, round(own * 2.0**power)) for power in (-4, -3, -2, -1, 0, 1)})
        search = (
            f"{CAP}={CAPS}",
            f"{TOKENS}={','.join(map(str, budgets))}",
        )
        cells = len(CAPS.split(",")) * len(budgets)
        budget = options.budget or f"{cells * step_s / 4:.0f}s"
        found = tuner(
            "refine", swept, "--trace", trace, "--step", options.step, "--budget", budget, *where,
            "--run-dir", folder / "refine", "-o", folder / "refined.yaml",
            "--search", search[0], "--search", search[1],
        )  # fmt: skip
        command = RefineOptions(
            profile=swept, traces=(trace,), search=search, engine=kind, world=options.world,
            budget=budget, step=options.step, headroom=1.0, force=True,
        )  # fmt: skip
        runner, workload = grid(command, folder, found, options.minutes, options.turns)
        print(
            f"swept: {one.decision.verdict} at {one.decision.max_num_seqs}, attainment "
            f"{one.promise.attainment:.3f}, {options.load:g} times the load"
        )
        report(found, runner, workload, cells=cells)
        kept = {"knee": one.decision.max_num_seqs, "refined": found}
        evidence.keep(options.keep, kept, evidence.of_engines())


def tuner(*words: str | Path) -> dict[str, Any]:
    """Run a command of this environment's tuner; return what it says with --json."""
    done = subprocess.run(  # noqa: S603 - ourselves
        [str(Path(sys.executable).with_name("tuner")), *map(str, words), "--json"],
        check=False,
        stdout=subprocess.PIPE,
    )
    if done.returncode != UndecidedError.exit_code:  # that is an answer too, with its profile
        done.check_returncode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def grid(
    command: RefineOptions, folder: Path, found: dict[str, Any], minutes: float, turns: int
) -> tuple[LocalTrialRunner, Workload]:
    """Replay cells on one engine, the answer first, over the windows of the refinement; then the
    best of them, the answer and the knee again, in turns."""
    one, trace = profile.load(command.profile), load(command.trace)
    engines = engines_of(command, one)
    requests = [each for each in trace.requests if each.status in {"ok", "aborted"}]
    size = trace.header.block_size
    space = space_of(command, one, engines.vary, requests=requests, block_size=size)
    plan = plan_of(command, one, trace, space)
    chosen = Evidence(journal.read(folder / "refine")).selection()
    assert chosen is not None
    kept, _ = keep_what_fits(requests, max_model_len=plan.max_model_len)
    slo = one.decision.slo.slo
    workload = workload_of(kept, slo, unloaded_of(one), chosen.part, chosen.windows, chosen.step_s)
    cells = [
        cell for cell in space.configurations(live=True, at=space.knee) if not contradicts(cell)
    ]
    cells = [cells[place] for place in np.random.default_rng(0).permutation(len(cells)).tolist()]
    mine = answer_of(found)
    answers = [mine] if mine == found["knee"] else [mine, found["knee"]]
    order = [*answers, *(cell for cell in cells if cell not in answers)]
    begin_s = monotonic()
    engines_up = EngineRunner(
        engines.vary({}),
        plan.settings,
        Evidence(journal.create(folder / "grid", {})),
        Silent(),
        None,
    )
    runner = LocalTrialRunner(engines_up, engines.vary)
    build = Build(max(number(cell[CAP]) for cell in cells), space.most(TOKENS))

    async def every() -> None:
        try:
            for cell in order:
                if monotonic() - begin_s < minutes * 60:
                    await runner.trial(GRID, cell, workload, build)
            best = best_of(runner, workload)
            others = [side for side in (best, found["knee"]) if side != mine]
            sides = others[:1] if best == found["knee"] else others
            for side in [*sides, mine, mine, *reversed(sides)] * (turns if sides else 0):
                await runner.trial(TURNS, side, workload, build)
        finally:
            await runner.stop()

    engines.execute(0.0)(every())
    return runner, workload


def answer_of(found: dict[str, Any]) -> Configuration:
    answer: Configuration = found["chosen"] if found["refined"] else found["knee"]
    return answer


def of_purpose(runner: LocalTrialRunner, purpose: str) -> list[FinishedTrial]:
    return [done for done in runner.done() if done.purpose == purpose and done.failed is None]


def best_of(runner: LocalTrialRunner, workload: Workload) -> Configuration:
    """Return the cell that replayed best."""
    cells = of_purpose(runner, GRID)
    base = cells[0].measured(workload)

    def score(done: FinishedTrial) -> float:
        values = gains([GOODPUT], done.measured(workload), base)
        return -math.inf if values is None else values[0]

    return max(cells, key=score).configuration


def pairs_of(
    runner: LocalTrialRunner, workload: Workload, one: Configuration, other: Configuration
) -> list[tuple[Measurement, Measurement]]:
    again = of_purpose(runner, TURNS)
    sides = (
        [done.measured(workload) for done in again if done.configuration == side]
        for side in (one, other)
    )
    return list(zip(*sides, strict=False))


def report(
    found: dict[str, Any], runner: LocalTrialRunner, workload: Workload, *, cells: int
) -> None:
    measured = of_purpose(runner, GRID)
    mine, best = answer_of(found), best_of(runner, workload)
    knee = found["knee"]
    print(f"refined: {found['reason']}")
    print(f"the answer: {told(mine)}; {len(measured)} of the grid's {cells} cells were replayed")
    print(f"the best of them: {told(best)}")
    for name, one, other in (("best", best, mine), ("answer", mine, knee)):
        if one != other:
            pairs = pairs_of(runner, workload, other, one)
            whom = "the answer" if other == mine else "the knee"
            print(f"the {name} against {whom}, over {len(pairs)} pairs in turns:")
            for aim in (GOODPUT, TAIL):
                print(f"  {paired_ratio(aim, pairs)}")
    spent_s = sum(found["engine_seconds"].values())
    grid_s = sum(replay.elapsed_s for done in measured for replay in done.replays)
    whole_s = runner.evidence.starts_s()[0] + grid_s * cells / len(measured)
    print(
        f"engine time: {spent_s:.0f}s; those cells {grid_s:.0f}s, so all of them {whole_s:.0f}s: "
        f"{spent_s / whole_s:.2f} of the grid's"
    )


if __name__ == "__main__":
    main()
