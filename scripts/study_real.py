"""Does a real `vllm serve`, measured by `vllm bench serve`, keep what a sweep promises of it?

    python scripts/study_real.py --folder F [--cases NAME …]

Each case is engine arguments and a trace of 60 s. It is swept once, with the confirming
replay behind a server. Then fresh servers at the choice, at half and at twice of it get the whole
trace from vLLM's own client, as recorded and with headroom, twice. What the client sees at the
choice is compared with the intervals that the profile promises; the other caps show what the choice
loses.

Results are kept in the folder as they come, and the same command continues with what is missing.
Printed of each case: how many intervals held, how wide they are, and the attainment that the choice
loses against the best cap. All cases take three hours.
"""

import argparse
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from results import Promised, kept_promises, percentiles, table

from tuner.engines.models import shipped
from tuner.engines.server import words_of
from tuner.profile import profile
from tuner.trace.record import TraceHeader
from tuner.trace.trace import Trace, TraceRequest, write
from tuner.traffic.load import scale_load
from tuner.traffic.slo import Slo

LENGTH_S = 60.0
LOADS = (1.0, 1.25)
ROUNDS = 2
RESULT = "bench.json"
KEPT = ("ttfts", "itls", "input_lens", "output_lens", "errors")

LATE_S = 0.05
"""A client that sent its latest hundredth later than this measured itself."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONHASHSEED": "0",
}
"""Of sweep, server and client: an engine that computes in one thread of one process leaves a second
core to API server and client; prompts of equal hash are equal in all of them."""

ENGINE = {
    "enforce_eager": True,
    "dtype": "float32",
    "load_format": "dummy",
    "kv_cache_memory_bytes": 2**28,
    "enable_prefix_caching": False,
}
MODEL = "tuner:tiny"


@dataclass(frozen=True)
class Case:
    """One way to serve, and one kind of traffic."""

    rate: float
    inputs: tuple[float, float] = (80.0, 0.6)
    outputs: tuple[float, float] = (60.0, 0.6)
    """Median and spread of log lengths."""

    bursts: bool = False
    shared: int = 0
    """Prompt tokens that one in four prompts shares with others."""

    arguments: Mapping[str, object] = field(default_factory=dict)

    def requests(self, seed: int) -> list[TraceRequest]:
        rng, count = np.random.default_rng(seed), int(self.rate * LENGTH_S)
        times_s = rng.uniform(0, LENGTH_S, count)
        if self.bursts:
            times_s = rng.choice(times_s[:8], count) + rng.exponential(1.0, count)
        requests = []
        for row, at_s in enumerate(np.sort(np.clip(times_s, 0, LENGTH_S)).tolist()):
            middle, spread = np.array([self.inputs, self.outputs]).T
            lengths = middle * np.exp(spread * rng.standard_normal(2))
            prompt, output = np.clip(lengths, (16, 4), (1200, 400)).astype(int).tolist()
            group = 1000 * int(rng.integers(4))
            ids = list(range(group, group + self.shared // 16))
            own = 1000 * row + 100_000
            ids += range(own, own + math.ceil((prompt + self.shared) / 16) - len(ids))
            requests.append(TraceRequest(row, at_s, prompt + self.shared, output, hash_ids=(*ids,)))
        return requests


CASES: dict[str, Case] = {
    "steady": Case(6.0),
    "bursts": Case(4.0, bursts=True),
    "long-prompts": Case(2.0, inputs=(700.0, 0.4), outputs=(30.0, 0.5)),
    "long-replies": Case(2.0, inputs=(40.0, 0.5), outputs=(200.0, 0.4)),
    "shared-prefixes": Case(5.0, shared=256, arguments={"enable_prefix_caching": True}),
    "memory-binds": Case(
        5.0, outputs=(150.0, 0.4), arguments={"kv_cache_memory_bytes": 24 * 2**20}
    ),
}


def measure(folder: Path, name: str) -> None:
    """Do what is missing of a case: the sweep, and every round of every cap."""
    folder.mkdir(parents=True, exist_ok=True)
    requests = CASES[name].requests(list(CASES).index(name))
    path, log, model = folder / "profile.yaml", folder / "log", shipped.model_path(MODEL)
    if not path.exists():
        sweep(folder, requests, {**ENGINE, **CASES[name].arguments})
    promise = profile.load(path)
    choice = promise.decision.max_num_seqs
    caps = sorted({max(1, choice // 2), choice, 2 * choice})
    for number, cap in enumerate(caps * ROUNDS):
        result = folder / f"{cap}-{number}.json"
        if result.exists():
            continue
        print(f"{name}: max_num_seqs {cap}", flush=True)
        seen: dict[float, dict[str, Any]] = {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        arguments: dict[str, Any] = {**promise.engine, "max_num_seqs": cap, "model": model}
        with started(log, "vllm", "serve", *words_of(arguments), "--port", port):
            for load in LOADS:
                sent = scale_load(requests, load, seed=0)
                seed = int(4 * load)
                run(log, "vllm", *bench_serve(sent, folder, port=port, model=model, seed=seed))
                reply = json.loads((folder / RESULT).read_text())
                late_s = np.array(reply["start_times"]) - [each.arrival_s for each in sent]
                seen[load] = {key: reply[key] for key in KEPT}
                seen[load]["late_s"] = float(np.quantile(late_s - late_s.min(), 0.99))
        result.write_text(json.dumps({"cap": cap, "seen": seen}))


def sweep(folder: Path, requests: Sequence[TraceRequest], settings: Mapping[str, object]) -> None:
    header = TraceHeader(
        source="study", block_size=16, rows_read=len(requests), rows_kept=len(requests)
    )
    write(Trace.of(header, requests), folder / "trace.jsonl", force=True)
    given = [f"--set={key}={str(value).lower()}" for key, value in settings.items()]
    shutil.rmtree(folder / "run", ignore_errors=True)
    options = ["--trace", folder / "trace.jsonl", "--step", "15s", "--budget", "15m"]
    options += ["--model", shipped.model_path(MODEL), "--run-dir", folder / "run"]
    run(folder / "log", "tuner", "sweep", *options, *given, "-o", folder / "profile.yaml")


@contextmanager
def started(log: Path, program: str, *words: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program of this environment, and end it with all that it has started."""
    path = Path(sys.executable).with_name(program)
    with log.open("a") as output:
        process = subprocess.Popen(  # noqa: S603 - tuner and vLLM
            [path, *map(str, words)], stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        for number, timeout_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
            with suppress(subprocess.TimeoutExpired, ProcessLookupError):
                os.killpg(process.pid, number)
                process.wait(timeout_s)


def run(log: Path, program: str, *words: object) -> None:
    with started(log, program, *words) as process:
        if process.wait():
            sys.exit(f"{program} {words[0]} failed: {log}")


def bench_serve(
    requests: Sequence[TraceRequest], folder: Path, *, port: int, model: str, seed: int
) -> list[str]:
    """Write the requests into a folder, and return the words after `vllm` that send them to the
    model; RESULT will be there. Every seed has prompts of its own."""
    path = folder / "bench.jsonl"
    with path.open("w") as file:
        for request in requests:
            row = {
                "timestamp": request.arrival_s,
                "input_length": request.input_length,
                "output_length": request.output_length,
                "hash_ids": [10**7 * seed + block for block in request.hash_ids or ()],
            }
            print(json.dumps(row), file=file)
    return [
        *("bench", "serve", "--model", model, "--port", str(port)),
        *("--dataset-name", "timed_trace", "--dataset-path", str(path)),
        *("--num-prompts", str(len(requests)), "--timed-trace-chunk-hash-size", "16"),
        *("--ready-check-timeout-sec", "180", "--ignore-eos", "--save-result", "--save-detailed"),
        *("--result-dir", str(folder), "--result-filename", RESULT),
    ]


def outcome(folder: Path) -> tuple[list[Promised], list[float]]:
    """Return what was promised of the choice beside what the client measured, and what the choice
    loses at each load; nothing where the client was late and measured itself."""
    promise = profile.load(folder / "profile.yaml")
    choice, slo = promise.decision.max_num_seqs, promise.decision.slo.slo
    ends = {str(each.load): each.intervals for each in promise.promise.predicted}
    promised: list[Promised] = []
    met: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*-*.json")):
        kept = json.loads(path.read_text())
        for load, seen in kept["seen"].items():
            if seen["late_s"] > LATE_S:
                continue
            measured = numbers(seen, slo)
            met[load][kept["cap"]].append(measured["attainment"])
            known = ends.get(load, {}) if kept["cap"] == choice else {}
            promised += [(name, *known[name], value) for name, value in measured.items()
                         if name in known]  # fmt: skip
    lost = [
        max(map(fmean, by_cap.values())) - fmean(by_cap[choice])
        for by_cap in met.values()
        if choice in by_cap
    ]
    return promised, lost


def numbers(seen: Mapping[str, Any], slo: Slo) -> dict[str, float]:
    """Return what the client saw by tuner's definitions, under the names of a promise. Times count
    from when it sent."""
    is_served = np.array([not error for error in seen["errors"]])
    decode_s = np.array([sum(gaps) for gaps in seen["itls"]])[is_served]
    ttft_s, output, prompt = (
        np.array(seen[key])[is_served] for key in ("ttfts", "output_lens", "input_lens")
    )
    tpot_s = np.where(output > 1, decode_s / np.maximum(1, output - 1), np.nan)
    met = float((~slo.broken_by(prompt, ttft_s, tpot_s, ttft_s + decode_s)).sum())
    times = percentiles(ttft=ttft_s, tpot=tpot_s, e2el=ttft_s + decode_s)
    return {"attainment": met / len(is_served), **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="default: all")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # a server is stopped with it
    rows = []
    for name in options.cases:
        measure(options.folder / name, name)
        promised, lost = outcome(options.folder / name)
        rows.append([name, *kept_promises(promised), f"{max(lost, default=math.nan):.3f}"])
    print(table(("case", "held", "half-width: time, share", "choice loses"), rows))


if __name__ == "__main__":
    main()
