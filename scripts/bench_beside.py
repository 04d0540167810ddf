"""Do our client and vLLM's see the same of one server? `vllm bench serve` beside ours.

    python scripts/bench_beside.py --folder F [--rounds 6] [--keep bench-beside]
    python scripts/bench_beside.py --smoke

Each round starts a plain `vllm serve` of the tiny model, which gets the same requests at the same
times from both clients, who is first in turn; then one with tuner's scheduler, which our client
asks: what that costs, in the same terms. A number of one client is within the noise of the other's
where their means are no further apart than two runs of one client are. Printed besides: CPU that
our client's process takes for a token, and how late requests leave.

Runs are kept in the folder as they end: the same command goes on with what is missing. With --smoke
a simulated engine is the server, and ours both clients.
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import evidence
import numpy as np
import psutil

from tuner.engines.models import shipped
from tuner.engines.seam import ArgumentValue, Engine, Starter
from tuner.engines.server.engine import PlainEngine, ServerEngine
from tuner.engines.server.start import PlainStarter, ServerStarter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.world import World, WorldStep
from tuner.replay.attempts import replay_in_time
from tuner.replay.plan import plan_requests
from tuner.replay.replay import CutRule
from tuner.trace.trace import TraceRequest
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window

CLIENTS = ("ours", "vLLM's")
WITH_SCHEDULER = "ours, tuner's scheduler"
KEPT = "bench-beside"
BLOCK = 16
LENGTH_S = 30.0
RATE_RPS = 4.0
CAP = 8
NUMBERS = tuple(
    f"{name} {share}" for name in ("TTFT", "TPOT", "E2EL") for share in ("p50", "p95", "p99")
)

Row = dict[str, float]
"""What a client saw of one request: TTFT from when it was planned, and the time of the rest."""


def requests() -> list[TraceRequest]:
    """Return the traffic: arrivals at random, lengths as of a translation service."""
    rng = np.random.default_rng(28)
    count = int(RATE_RPS * LENGTH_S)
    lengths = np.clip(np.exp(np.log((80, 60)) + 0.6 * rng.standard_normal((count, 2))), 8, 400)
    return [
        TraceRequest(row, float(at_s), int(asked), int(told))
        for row, (at_s, (asked, told)) in enumerate(
            zip(np.sort(rng.uniform(0, LENGTH_S, count)), lengths, strict=True)
        )
    ]


async def by_ours(engine: Engine, number: int) -> dict[str, Any]:
    """Return what our client saw, its CPU for a token, and how late requests left."""
    window = Window(0.0, LENGTH_S, 0.0)
    prompt = partial(
        prompt_token_ids, seed=number, vocab_size=engine.facts.vocab_size, block_size=BLOCK
    )
    plan = plan_requests(
        requests(), window, max_model_len=engine.facts.max_model_len, prompt=prompt
    )
    before_s = _cpu_s(engine)
    replay = await replay_in_time(
        plan, engine, window, max_num_seqs=CAP, rule=CutRule(Slo(), floor=0.0), read=None,
        begun=lambda: None, late=lambda error, _: print(error, file=sys.stderr),
    )  # fmt: skip
    cpu_s = _cpu_s(engine) - before_s
    done = [one for one in replay.records if one.outcome == "ok"]
    tokens = sum(one.output_tokens for one in done)
    late_s = [one.sent_s - one.planned_s for one in done]
    return {
        "rows": [
            {"ttft_s": one.ttft_s or 0.0, "e2el_s": one.e2el_s or 0.0, "output": one.output_tokens}
            for one in done
        ],
        "failed": len(replay.records) - len(done),
        "client_us_a_token": 1e6 * cpu_s / tokens,
        "leaves_late_p99_ms": 1e3 * float(np.quantile(late_s, 0.99)),
    }


def _cpu_s(engine: Engine) -> float:
    if not isinstance(engine, PlainEngine | ServerEngine):
        return 0.0
    times = psutil.Process(engine.client_pid).cpu_times()
    return float(times.user + times.system)


def by_vllm(engine: PlainEngine, model: str, folder: Path, number: int) -> dict[str, Any]:
    """Return what `vllm bench serve` saw. Prompts of each run are its own."""
    sent = requests()
    path, log_path = folder / "timed.jsonl", folder / "bench.log"
    rows = [
        {"timestamp": one.arrival_s, "input_length": one.input_length,
         "output_length": one.output_length,
         "hash_ids": [10**7 * number + 1000 * one.row + block
                      for block in range(math.ceil(one.input_length / BLOCK))]}
        for one in sent
    ]  # fmt: skip
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with log_path.open("w") as log:
        subprocess.run(  # noqa: S603 - vLLM of this environment
            [Path(sys.executable).with_name("vllm"), "bench", "serve", "--model", model,
             "--base-url", engine.url, "--dataset-name", "timed_trace", "--dataset-path", path,
             "--timed-trace-chunk-hash-size", str(BLOCK), "--num-prompts", str(len(rows)),
             "--ignore-eos", "--save-result", "--save-detailed", "--result-dir", folder,
             "--result-filename", "bench.json"],
            check=True, stdout=log, stderr=log, env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    said = json.loads((folder / "bench.json").read_text())
    late_s = np.array(said["start_times"], float) - [one.arrival_s for one in sent]
    late_s -= late_s.min()
    return {
        "rows": [
            {"ttft_s": ttft + late, "e2el_s": ttft + late + sum(gaps), "output": told}
            for ttft, late, gaps, told, error in zip(
                said["ttfts"], late_s.tolist(), said["itls"], said["output_lens"],
                said["errors"], strict=True)
            if not error
        ],
        "failed": sum(map(bool, said["errors"])),
    }  # fmt: skip


def numbers(rows: Sequence[Row]) -> dict[str, float]:
    """Return the statistics of a run in milliseconds, by our definitions."""
    ttft, e2el, output = (
        np.array([row[name] for row in rows]) for name in ("ttft_s", "e2el_s", "output")
    )
    several = output > 1
    tpot = (e2el - ttft)[several] / (output[several] - 1)
    return {
        f"{name} {share}": 1e3 * float(np.quantile(values, float(share[1:]) / 100))
        for name, values in (("TTFT", ttft), ("TPOT", tpot), ("E2EL", e2el))
        for share in ("p50", "p95", "p99")
    }


def turns(rounds: int) -> list[tuple[str, ...]]:
    """Return who asks a plain server in each round: whoever was first is last in the next."""
    return [CLIENTS if number % 2 == 0 else CLIENTS[::-1] for number in range(rounds)]


def compared(runs: dict[str, list[dict[str, float]]], other: str) -> list[dict[str, Any]]:
    """Return each number of ours and of the other, and whether they differ by more than noise: the
    root mean square of what two runs of one client differ by."""
    found = []
    for name in NUMBERS:
        ours, theirs = ([run[name] for run in runs[client]] for client in (CLIENTS[0], other))
        noise = math.sqrt(float(np.var(ours, ddof=1) + np.var(theirs, ddof=1)))
        apart = abs(fmean(ours) - fmean(theirs))
        found.append({"number": name, "ours": ours, "theirs": theirs, "noise": noise,
                      "apart": apart, "within": apart <= noise})  # fmt: skip
    return found


def rendered(rows: Sequence[dict[str, Any]], other: str) -> str:
    """Return a table of the docs. Milliseconds."""
    return evidence.table(
        ("ms, mean of all runs", "ours", other, "apart", "noise", "within it"),
        [
            (one["number"],
             *(f"{value:,.1f}" for value in (fmean(one["ours"]), fmean(one["theirs"]),
                                             one["apart"], one["noise"])),
             "yes" if one["within"] else "no")
            for one in rows
        ],
    )  # fmt: skip


def kept() -> str:
    """Return what is known of both clients, for docs/experiments.md."""
    if not (evidence.FOLDER / f"{KEPT}.json").exists():
        return "Not measured yet on a quiet machine."
    found = evidence.found(KEPT)
    said = [
        rendered(found["numbers"], "vllm bench serve"),
        "Without tuner's scheduler (`--confirm plain`), and with it:",
        rendered(found["scheduler"], "with the scheduler"),
        f"{found['failed']} requests failed. By {evidence.source(KEPT)}",
    ]
    return "\n\n".join(said)


async def measure(folder: Path, rounds: int, *, smoke: bool) -> None:
    """Make the runs that are missing, each round on a plain server and on one with tuner's
    scheduler, so that a slow hour is every client's."""
    arguments: dict[str, ArgumentValue] = {"model": "tuner:tiny", "enable_prefix_caching": False}
    for number, clients in enumerate(turns(rounds)):
        for starts, asked in ((PlainStarter, clients), (ServerStarter, (WITH_SCHEDULER,))):
            missing = [one for one in asked if not _path(folder, one, number).exists()]
            starter = (
                SimStarter(World(step=WorldStep(a=0.004, b=0.0002)))
                if smoke
                else starts(arguments, log=folder / "vllm.log")
            )
            if missing:
                await _measure(folder, starter, missing, number)


async def _measure(folder: Path, starter: Starter, missing: Sequence[str], number: int) -> None:
    """Make these runs, on one server."""
    engine = await starter.start(max_num_seqs=CAP)
    try:
        for client in missing:
            if client == CLIENTS[1] and isinstance(engine, PlainEngine):
                model = shipped.model_path("tuner:tiny")
                found = await asyncio.to_thread(by_vllm, engine, model, folder, number)
            else:
                found = await by_ours(engine, number)
            partial_path = _path(folder, client, number).with_suffix(".partial")
            partial_path.write_text(json.dumps(found))
            partial_path.replace(_path(folder, client, number))
            print(f"{client}, round {number}: {len(found['rows'])} requests", flush=True)
    finally:
        await engine.stop()


def _path(folder: Path, client: str, number: int) -> Path:
    return folder / f"{(*CLIENTS, WITH_SCHEDULER).index(client)}-{number}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where runs are kept; default: a new one")
    parser.add_argument("--rounds", type=int, default=6, help="runs of either client: 2 or more")
    parser.add_argument("--smoke", action="store_true", help="a simulated engine, both are ours")
    parser.add_argument("--keep", metavar="NAME", help="write docs/evidence/NAME.json")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="bench-beside-"))
    folder.mkdir(parents=True, exist_ok=True)
    execute = virtual_time.run if options.smoke else asyncio.run
    rounds = max(2, options.rounds)
    execute(measure(folder, rounds, smoke=options.smoke))
    runs: dict[str, list[dict[str, float]]] = {one: [] for one in (*CLIENTS, WITH_SCHEDULER)}
    costs, failed = [], 0
    for client, number in product((*CLIENTS, WITH_SCHEDULER), range(rounds)):
        one = json.loads(_path(folder, client, number).read_text())
        runs[client].append(numbers(one["rows"]))
        failed += one["failed"]
        if client == CLIENTS[0]:
            costs.append((one["client_us_a_token"], one["leaves_late_p99_ms"]))
    cpu_us, late_ms = np.median(costs, axis=0).tolist()
    found = {"numbers": compared(runs, CLIENTS[1]), "scheduler": compared(runs, WITH_SCHEDULER),
             "client_us_a_token": cpu_us, "leaves_late_p99_ms": late_ms,
             "failed": failed}  # fmt: skip
    print(rendered(found["numbers"], "vllm bench serve"))
    print(rendered(found["scheduler"], "with the scheduler"))
    print(f"our client: {cpu_us:.0f} us a token, requests leave {late_ms:.1f} ms late (p99)")
    evidence.keep(options.keep, found, evidence.of_engines())


if __name__ == "__main__":
    main()
