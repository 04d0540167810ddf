"""Measure tuner's own speed: python scripts/bench.py [--rows 10000000] [PART …].

help       seconds of `tuner --help`
apply      seconds of `tuner apply --dry-run` on a Compose file
trace      time and peak memory of `tuner trace show` and `import` of --rows rows, CSV and JSON
           lines in no order
twin       milliseconds of a replay of 20,000 requests at one cap, compiled
client     CPU seconds for 1,000 streamed tokens of engine, API server and client: the sample's
           requests to a `vllm serve`
sample     `make sweep` --runs times on a real engine, as a table; only when named
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv
from results import table, table_row

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import milliseconds, minutes, percent, promised
from tuner.replay.replay import CutRule, replay
from tuner.trace.columns import lines_of
from tuner.trace.trace import load
from tuner.traffic.clients import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.twin.simulation import EngineShape, Traffic, simulate

ROOT = Path(__file__).resolve().parents[1]
TUNER = Path(sys.executable).with_name("tuner")
PROFILE = ROOT / "profiles" / "chat-small-cpu.yaml"
DEPLOYED = ROOT / "examples" / "walk" / "compose.yaml"

MODEL, CAP = "tuner:small", 16
SERVED_S = 30.0
"""The beginning of the sample that the client sends."""


def client(folder: Path) -> dict[str, float]:
    """Send the beginning of the sample to a `vllm serve` of our own."""
    return asyncio.run(streamed(folder))


async def streamed(folder: Path) -> dict[str, float]:
    trace = load(ROOT / "traces" / "chat.jsonl")
    starter = VllmStarter(
        {"model": MODEL, "enable_prefix_caching": False}, folder / "log", kind="serve"
    )
    engine = await starter.start(max_num_seqs=CAP)
    try:
        await engine.prepare(max_num_seqs=CAP)
        before_s = cpu_s()
        result = await replay(
            [each for each in trace.requests if each.arrival_s < SERVED_S],
            engine,
            Window(0.0, SERVED_S),
            max_num_seqs=CAP,
            rule=CutRule(Slo(), 0.0),
            prompt=partial(
                prompt_token_ids, seed=1, vocab_size=engine.facts.vocab_size, block_size=16
            ),
        )
        spent_s = (cpu_s() - before_s) / result.requests["output_tokens"].sum() * 1e3
    finally:
        await engine.stop()
    return dict(zip(("engine", "API server", "client"), spent_s.tolist(), strict=True))


def cpu_s() -> NDArray[np.float64]:
    """Return the CPU seconds so far of the server's engine, its API server and its client."""
    us = psutil.Process()
    (server,) = (each for each in us.children(recursive=True) if os.getsid(each.pid) == each.pid)
    groups = (server.children(recursive=True), [server], [us])
    return np.array([sum(sum(each.cpu_times()[:2]) for each in group) for group in groups])


def program(folder: Path, *words: str) -> dict[str, float]:
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


def read_rows(folder: Path, rows: int) -> dict[str, float]:
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
    results: dict[str, float] = {}
    for kind in ("csv", "jsonl"):
        for name, *options in (["show"], ["import", "-o", "out.jsonl", "--force"]):
            took = program(folder, "trace", name, f"rows.{kind}", *options)
            results |= {f"{kind}, {name}: {key}": value for key, value in took.items()}
    return results


def twin() -> dict[str, float]:
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


def sample(folder: Path, runs: int) -> None:
    """Print what `make sweep` answers, a row a run, as Markdown."""
    head = ("run", "verdict", "max_num_seqs", "met the SLO", "p95 TPOT", "with the default", "took")
    print(table(head, []))
    for number in range(1, runs + 1):
        path, begin_s = folder / f"{number}.yaml", time.monotonic()
        command = ["make", "-s", "sweep", f"PROFILE={path}"]
        subprocess.run(command, cwd=ROOT, check=False, capture_output=True)  # noqa: S603
        took, profile = minutes(time.monotonic() - begin_s), load_profile(path)
        given, now = promised(profile), profile.baseline
        default = "" if now is None or now.numbers is None else percent(now.numbers.attainment)
        cap = str(profile.decision.max_num_seqs)
        tpot = "" if given.tpot_ms is None else milliseconds(given.tpot_ms.p95)
        answer = [profile.decision.verdict, cap, percent(given.attainment), tpot, default]
        print(table_row([str(number), *answer, took]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dry = (str(PROFILE), str(DEPLOYED), f"--model-is={MODEL}", "--dry-run")
        parts = {
            "help": partial(program, folder, "--help"),
            "apply": partial(program, folder, "apply", *dry),
            "trace": partial(read_rows, folder, options.rows),
            "twin": partial(twin),
            "client": partial(client, folder),
        }
        if "sample" in options.parts:
            sample(folder, options.runs)
            return
        for part in options.parts or parts:
            print(part, flush=True)
            for key, value in parts[part]().items():
                print(f"  {key:32} {value:,.3f}")


if __name__ == "__main__":
    main()
