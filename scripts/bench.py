"""Measure tuner's own speed: python scripts/bench.py [--rows 10000000] [PART …].

help       seconds of `tuner --help`
apply      seconds of `tuner apply --dry-run` on a Compose file
trace      time and peak memory of `tuner trace show` and `import` of --rows rows, CSV and JSON
           lines in no order
twin       milliseconds of a replay of 20,000 requests at one cap, compiled
generator  lag of the sender, and its share of a core, while 32 streams run at once
sample     `make sweep` --runs times on a real engine, as a table; only when named
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from results import table, table_row

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import Engine, EngineFacts
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import milliseconds, minutes, percent, promised
from tuner.replay.measure import measure
from tuner.replay.plan import PlannedRequest
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, replay
from tuner.trace.encode import lines_of
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.twin.simulation import EngineShape, Traffic, simulate

ROOT = Path(__file__).resolve().parents[1]
TUNER = Path(sys.executable).with_name("tuner")
TINY = {"model": "tuner:tiny"}
NEVER_CUT = CutRule(Slo(ttft_s=1e9), floor=0.0)


def planned(
    requests: Sequence[TraceRequest], facts: EngineFacts, *, every_s: float
) -> list[PlannedRequest]:
    """Return the requests as a plan in which one leaves every ``every_s`` seconds."""
    prompt = partial(prompt_token_ids, seed=0, vocab_size=facts.vocab_size, block_size=16)
    return [
        PlannedRequest(number, number * every_s, prompt(one), one.output_length)
        for number, one in enumerate(requests)
    ]


async def replayed(engine: Engine, plan: Sequence[PlannedRequest], cap: int) -> Replay:
    tokens = int(str(engine.facts.arguments["max_num_batched_tokens"]))
    await engine.prepare(max_num_seqs=cap, max_num_batched_tokens=tokens)
    return await replay(
        plan,
        engine,
        max_num_seqs=cap,
        scored_from_s=0.0,
        window_s=plan[-1].planned_s + 1e-3,
        cut_rule=NEVER_CUT,
    )


def tokens_per_s(result: Replay) -> float:
    return float(result.requests["output_tokens"].sum()) / result.elapsed_s


async def generator(requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Keep 32 streams busy and look at the sender."""
    engine = await VllmStarter(TINY).start(max_num_seqs=32)
    plan = planned(requests, engine.facts, every_s=0.1)
    await replayed(engine, plan[:8], 32)
    begin_cpu_s = time.process_time()
    begin_s = time.monotonic()
    result = await replayed(engine, plan, 32)
    elapsed_s = time.monotonic() - begin_s
    cpu_s = time.process_time() - begin_cpu_s
    await engine.stop()
    one = measure([result], NEVER_CUT.slo)
    assert one.itl_s is not None
    return {
        "running_peak": one.running_peak,
        "output_tokens_per_s": tokens_per_s(result),
        "lag_p99_ms": 1e3 * one.lag_p99_s,
        "lag_p99_over_itl_p50": one.lag_p99_s / one.itl_s.p50,
        "cpu_share_of_one_core": cpu_s / elapsed_s,
        "joined_share": float(
            result.requests["late_tokens"].sum() / result.requests["output_tokens"].sum()
        ),
    }


def program(folder: Path, *words: str) -> dict[str, Any]:
    """Run tuner by itself; return its time, and its peak memory."""
    begin_s = time.monotonic()
    with subprocess.Popen([TUNER, *words], cwd=folder, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status:
        raise RuntimeError(f"tuner {words[0]} failed")
    return {
        "seconds": time.monotonic() - begin_s,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def apply_once(folder: Path) -> dict[str, Any]:
    walk, profile = ROOT / "examples" / "walk", ROOT / "profiles" / "chat-small-cpu.yaml"
    words = ("--model-is", "tuner:small", "--dry-run")
    return program(folder, "apply", str(profile), str(walk / "compose.yaml"), *words)


def read_rows(folder: Path, rows: int) -> dict[str, Any]:
    """Show and import rows of CSV and of JSON lines in no order."""
    rng = np.random.default_rng(0)
    at_ms = np.cumsum(rng.integers(1, 100, rows))
    lengths = {
        "input_length": rng.integers(10, 2000, rows, np.int32),
        "output_length": rng.integers(1, 500, rows, np.int32),
    }
    dates = pa.array(1_700_000_000_000 + at_ms).cast(pa.timestamp("ms"))
    csv.write_csv(pa.table({"timestamp": dates, **lengths}), folder / "rows.csv")
    late_ms = at_ms + rng.integers(0, 2000, rows).astype(np.float64)
    with (folder / "rows.jsonl").open("wb") as file:
        file.writelines(lines_of(pa.table({"timestamp": late_ms, **lengths})))
    results: dict[str, Any] = {}
    for kind in ("csv", "jsonl"):
        source, more = f"rows.{kind}", ("-o", "out.jsonl", "--force")
        for name, options in (("show", ()), ("import", more)):
            took = program(folder, "trace", name, source, *options)
            values = took["seconds"], took["cpu_seconds"], took["peak_mib"]
            results[f"{kind}, {name}"] = "{:.1f} s, {:.1f} s of CPU, {:,.0f} MiB".format(*values)
    return results


def twin() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = EngineShape(
        max_num_batched_tokens=8192, block_size=16, kv_blocks=10_000, max_model_len=8192
    )
    law = StepLaw(np.linspace(0.020, 0.040, 33), 1e-5, 0.0, 0.0, 0.0)
    arrivals = np.sort(rng.uniform(0, 4000.0, 20_000)).tolist()
    traffic = Traffic.of((at_s, 100, int(rng.integers(50, 150))) for at_s in arrivals)
    times_s = []
    for _ in range(4):  # the first compiles
        begin_s = time.monotonic()
        simulate(traffic, law, shape, max_num_seqs=16)
        times_s.append(time.monotonic() - begin_s)
    return {"milliseconds": 1e3 * min(times_s)}


def sample(folder: Path, runs: int) -> int:
    """Print what `make sweep` answers, a row a run, as Markdown; tell whether a run failed."""
    head = ("run", "verdict", "max_num_seqs", "met the SLO", "p95 TPOT", "with the default", "took")
    print(table(head, []), flush=True)
    failed = 0
    for number in range(1, runs + 1):
        path, begin_s = folder / f"{number}.yaml", time.monotonic()
        command = ["make", "-s", "sweep", f"PROFILE={path}"]
        subprocess.run(command, cwd=ROOT, check=False, capture_output=True)  # noqa: S603
        took = minutes(time.monotonic() - begin_s)
        if not path.exists():
            failed += 1
            print(table_row([str(number), "failed", *[""] * 4, took]), flush=True)
            continue
        profile = load_profile(path)
        given, now = promised(profile), profile.baseline
        default = "" if now is None or now.numbers is None else percent(now.numbers.attainment)
        cap = str(profile.decision.max_num_seqs)
        tpot = "" if given.tpot_ms is None else milliseconds(given.tpot_ms.p95)
        answer = [profile.decision.verdict, cap, percent(given.attainment), tpot, default]
        print(table_row([str(number), *answer, took]), flush=True)
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the traces that are read")
    parser.add_argument("--runs", type=int, default=10, help="of the sample")
    options = parser.parse_args()
    trace = load(ROOT / "traces" / "translation.jsonl")
    requests = [one for one in trace.requests if one.status == "ok"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "help": lambda: program(folder, "--help"),
            "apply": lambda: apply_once(folder),
            "trace": lambda: read_rows(folder, options.rows),
            "twin": twin,
            "generator": lambda: asyncio.run(generator(requests[:150])),
        }
        if "sample" in options.parts:
            return sample(folder, options.runs)
        for part in options.parts or parts:
            print(part, flush=True)
            for key, value in parts[part]().items():
                shown = f"{value:,.3f}" if isinstance(value, float) else value
                print(f"  {key:32} {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
