"""Measure tuner's own speed: python scripts/bench.py [--rows 10000000] [PART …].

help       seconds of `tuner --help`
apply      seconds of `tuner apply --dry-run` on a Compose file
trace      time and peak memory of `tuner trace show` and `import` of --rows rows, CSV and JSON
           lines in no order
twin       milliseconds of a replay of 20,000 requests at one cap, compiled
client     CPU seconds for 1,000 streamed tokens of engine, API server and client: the sample's
           requests from a `vllm serve`, asked by tuner and by `vllm bench serve`
sample     `make sweep` --runs times on a real engine, as a table; only when named
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv
from results import table, table_row
from vllm_client import RESULT, bench_serve

from tuner.engines.models.shipped import model_path
from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import Engine, EngineFacts
from tuner.engines.server.client import CompletionClient
from tuner.engines.server.running import RunningServer
from tuner.engines.server.serve_process import ServeProcess
from tuner.engines.server.start import words
from tuner.engines.vllm.start import VllmStarter
from tuner.profile.profile import load as load_profile
from tuner.profile.summary import milliseconds, minutes, percent, promised
from tuner.replay.measure import measure
from tuner.replay.plan import PlannedRequest
from tuner.replay.replay import CutRule, replay
from tuner.trace.encode import lines_of
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.twin.simulation import EngineShape, Traffic, simulate

ROOT = Path(__file__).resolve().parents[1]
TUNER = Path(sys.executable).with_name("tuner")
NEVER_CUT = CutRule(Slo(ttft_s=1e9), floor=0.0)

VLLM = (sys.executable, "-u", "-m", "vllm.entrypoints.cli.main")
MODEL = "tuner:small"
SERVED_S = 30.0
"""The beginning of the sample that both clients send."""


async def clients(folder: Path) -> dict[str, Any]:
    """Send the beginning of the sample to one server, by tuner and by `vllm bench serve`."""
    trace = load(ROOT / "traces" / "chat.jsonl")
    requests = [request for request in trace.requests if request.arrival_s < SERVED_S]
    resolved = VllmStarter({"model": MODEL, "enable_prefix_caching": False}).resolved(
        max_num_seqs=16
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*VLLM, "serve", *words(resolved.command), "--port", str(port)]
    process = ServeProcess.launch(command, environment={}, log=folder / "serve.log")
    guardian, url = psutil.Process(process.pid), f"http://127.0.0.1:{port}"
    try:
        client = CompletionClient(url, {})
        await process.ready(partial(client.answers, "/health"))
        await client.stop()
        facts = EngineFacts(
            engine="server", arguments=resolved.arguments, max_model_len=resolved.max_model_len,
            vocab_size=resolved.vocab_size, block_size=16, kv_blocks=0, start_s=0.0, versions={},
            device={},
        )  # fmt: skip
        server = RunningServer(url, model_path(MODEL), facts, planned=len(requests), most=None)
        engine = await server.start(max_num_seqs=16)
        ours = [await by_tuner(engine, guardian, requests, seed=seed) for seed in (1, 2)]
        await engine.stop()
        theirs = [by_vllm(guardian, port, requests, folder, seed=seed) for seed in (3, 4)]
    finally:
        await process.stop()
    return {"tuner": shares(ours), "vllm bench serve": shares(theirs)}


def shares(runs: Sequence[tuple[NDArray[np.float64], float, float]]) -> str:
    """Say CPU seconds for 1,000 tokens, and the median time of a token, in the mean of the runs."""
    cpu_s = np.mean([spent / tokens * 1e3 for spent, tokens, _ in runs], axis=0)
    tpot_ms = 1e3 * np.mean([tpot_s for *_, tpot_s in runs])
    words = "engine {:.2f}, API server {:.3f}, client {:.3f} s of CPU; p50 TPOT {:.1f} ms"
    return words.format(*cpu_s, tpot_ms)


def cpu_s(guardian: psutil.Process, client: psutil.Process) -> NDArray[np.float64]:
    """Return the CPU seconds so far of a server's engine, its API server and a client."""
    (server,) = guardian.children()
    groups = (server.children(recursive=True), [server], [client])
    return np.array([sum(sum(each.cpu_times()[:2]) for each in group) for group in groups])


async def by_tuner(
    engine: Engine, guardian: psutil.Process, requests: Sequence[TraceRequest], *, seed: int
) -> tuple[NDArray[np.float64], float, float]:
    """Return CPU seconds, tokens, and the median time of a token."""
    prompt = partial(prompt_token_ids, seed=seed, vocab_size=engine.facts.vocab_size, block_size=16)
    plan = [
        PlannedRequest(request.row, request.arrival_s, prompt(request), request.output_length)
        for request in requests
    ]
    await engine.prepare(max_num_seqs=16)
    before_s = cpu_s(guardian, psutil.Process())
    result = await replay(
        plan, engine, max_num_seqs=16, scored_from_s=0.0, window_s=SERVED_S, cut_rule=NEVER_CUT
    )
    spent_s = cpu_s(guardian, psutil.Process()) - before_s
    tpot_s = measure([result], NEVER_CUT.slo).tpot_s
    assert tpot_s is not None
    return spent_s, float(result.requests["output_tokens"].sum()), tpot_s.p50


def by_vllm(
    guardian: psutil.Process,
    port: int,
    requests: Sequence[TraceRequest],
    folder: Path,
    *,
    seed: int,
) -> tuple[NDArray[np.float64], float, float]:
    """Return the same, from the moment that its clients begin: it imports vLLM before."""
    wanted = bench_serve(requests, folder, port=port, model=model_path(MODEL), seed=seed)
    vllm = [*VLLM, *wanted]
    with subprocess.Popen(vllm, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        begin_s, end_s = (
            cpu_s(guardian, psutil.Process(process.pid))
            for line in process.stdout
            if "Starting main benchmark" in line or "Serving Benchmark Result" in line
        )
    seen = json.loads((folder / RESULT).read_text())
    tpots_s = [float(np.mean(gaps)) for gaps in seen["itls"] if gaps]
    return end_s - begin_s, float(sum(seen["output_lens"])), float(np.median(tpots_s))


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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "help": lambda: program(folder, "--help"),
            "apply": lambda: apply_once(folder),
            "trace": lambda: read_rows(folder, options.rows),
            "twin": twin,
            "client": lambda: asyncio.run(clients(folder)),
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
