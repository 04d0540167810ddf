"""Measure tuner's own speed: python scripts/bench.py [--rows 10000000] [PART …].

help       seconds of `tuner --help`
apply      seconds of `tuner apply --dry-run` on a Compose file
trace      seconds and peak memory of `tuner trace import` of --rows rows of CSV
twin       milliseconds of a replay of 20,000 requests at one cap, compiled
ladder     six caps on one engine against an engine of its own for every cap: seconds spent on
           starts and switches, and how far the curves are apart
generator  lag of the sender, and its share of a core, while 32 streams run at once
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import Engine, EngineFacts
from tuner.engines.vllm.start import VllmStarter
from tuner.replay.measure import measure
from tuner.replay.plan import PlannedRequest
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, replay
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.twin.simulation import EngineShape, Traffic, simulate

ROOT = Path(__file__).resolve().parents[1]
TUNER = Path(sys.executable).with_name("tuner")
CAPS = (1, 2, 4, 8, 16, 32)
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
    await engine.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)
    await engine.reset_prefix_cache()
    return await replay(
        plan,
        engine,
        max_num_seqs=cap,
        scored_from_s=0.0,
        window_s=plan[-1].planned_s + 1e-3,
        cut_rule=NEVER_CUT,
    )


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    begin_s = time.monotonic()
    result = await work
    return time.monotonic() - begin_s, result


def tokens_per_s(result: Replay) -> float:
    return sum(one.output_tokens for one in result.records) / result.elapsed_s


async def ladders(requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Walk the caps live and fresh in turn, so that both meet the same machine."""
    starter = VllmStarter(TINY)
    await (await starter.start(max_num_seqs=1)).stop()  # imports vLLM once, for both ladders
    live_s, live = await timed(starter.start(max_num_seqs=CAPS[-1]))
    whole = planned(requests, live.facts, every_s=0.0)
    await replayed(live, whole[: CAPS[-1]], CAPS[-1])  # the first replay of an engine warms it up
    fresh_s = switch_s = 0.0
    ratios = {}
    for cap in CAPS:
        plan = whole[: max(4, 2 * cap)]
        start_s, fresh = await timed(starter.start(max_num_seqs=cap))
        await replayed(fresh, plan[:cap], cap)
        fresh_speed = tokens_per_s(await replayed(fresh, plan, cap))
        stop_s, _ = await timed(fresh.stop())
        fresh_s += start_s + stop_s
        tokens = int(str(live.facts.arguments["max_num_batched_tokens"]))
        one_switch_s, _ = await timed(
            live.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)
        )
        switch_s += one_switch_s
        ratios[cap] = tokens_per_s(await replayed(live, plan, cap)) / fresh_speed
    stop_s, _ = await timed(live.stop())
    live_s += stop_s
    return {
        "live_overhead_s": live_s + switch_s,
        "fresh_overhead_s": fresh_s,
        "fresh_over_live": fresh_s / (live_s + switch_s),
        "switch_ms": 1e3 * switch_s / len(CAPS),
        "live_over_fresh_tokens_per_s": ratios,
        "live_over_fresh_mean": fmean(ratios.values()),
    }


async def generator(requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """Keep 32 streams busy and look at the sender."""
    engine = await VllmStarter(TINY).start(max_num_seqs=32)
    plan = planned(requests, engine.facts, every_s=0.1)
    await replayed(engine, plan[:8], 32)
    begin_cpu_s = time.process_time()
    elapsed_s, result = await timed(replayed(engine, plan, 32))
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
        "merged_share": one.merged_share,
    }


def program(folder: Path, *words: str) -> dict[str, Any]:
    """Run tuner by itself; return its time, and its peak memory."""
    begin_s = time.monotonic()
    with subprocess.Popen([TUNER, *words], cwd=folder, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status:
        raise RuntimeError(f"tuner {' '.join(words)} failed")
    return {"seconds": time.monotonic() - begin_s, "peak_mib": usage.ru_maxrss / 1024}


def apply_once(folder: Path) -> dict[str, Any]:
    walk, profile = ROOT / "examples" / "walk", ROOT / "profiles" / "translation-tiny-cpu.yaml"
    words = ("--model-is", "tuner:tiny", "--dry-run")
    return program(folder, "apply", str(profile), str(walk / "compose.yaml"), *words)


def import_rows(folder: Path, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    at_ms = 1_700_000_000_000 + np.cumsum(rng.integers(1, 100, rows))
    columns = [at_ms, rng.integers(10, 2000, rows), rng.integers(1, 500, rows)]
    with (folder / "rows.csv").open("w") as file:
        file.write("timestamp_ms,prompt_tokens,completion_tokens\n")
        np.savetxt(file, np.column_stack(columns), fmt="%d", delimiter=",")
    return program(folder, "trace", "import", "rows.csv", "-o", "out.jsonl")


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the trace that is imported")
    options = parser.parse_args()
    trace = load(ROOT / "traces" / "translation.jsonl")
    requests = [one for one in trace.requests if one.status == "ok"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "help": lambda: program(folder, "--help"),
            "apply": lambda: apply_once(folder),
            "trace": lambda: import_rows(folder, options.rows),
            "twin": twin,
            "ladder": lambda: asyncio.run(ladders(requests[:64])),
            "generator": lambda: asyncio.run(generator(requests[:150])),
        }
        for part in options.parts or parts:
            print(part, flush=True)
            for key, value in parts[part]().items():
                print(f"  {key:32} {_shown(value)}", flush=True)
    return 0


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {number:.2f}" for key, number in value.items())
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
