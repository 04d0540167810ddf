"""Does a real `vllm serve`, measured by `vllm bench serve`, keep what a sweep promises of it?

    python scripts/study_real.py --folder F [--cases NAME …] [--budget 4m] [--rounds N]

Each case is engine arguments and a trace of 60 s. It is swept once, with the confirming
replay behind a server. Then fresh servers at the choice, at half and at twice of it get the whole
trace from vLLM's own client, as recorded and with headroom, --rounds of each. What the client sees
at the choice is compared with the intervals that the profile promises; the other caps show what the
choice loses.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

import numpy as np
from results import table
from vllm_client import RESULT, bench_serve

from tuner.engines.models import shipped
from tuner.engines.server.start import words
from tuner.profile import profile
from tuner.trace.record import TraceHeader
from tuner.trace.trace import Trace, TraceRequest, write
from tuner.traffic.scaling import scale_load
from tuner.traffic.slo import Slo

LENGTH_S = 60.0
LOADS = (1.0, 1.25)
START_S = 180.0

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

Arrivals = Callable[[np.random.Generator, float], list[float]]


def steady(rng: np.random.Generator, rate: float) -> list[float]:
    return [float(at_s) for at_s in np.sort(rng.uniform(0, LENGTH_S, int(rate * LENGTH_S)))]


def bursts(rng: np.random.Generator, rate: float) -> list[float]:
    centers = rng.uniform(0, LENGTH_S, 8)
    times = rng.choice(centers, int(rate * LENGTH_S)) + rng.exponential(1.0, int(rate * LENGTH_S))
    return [float(at_s) for at_s in np.sort(np.clip(times, 0, LENGTH_S))]


@dataclass(frozen=True)
class Case:
    """One way to serve, and one kind of traffic."""

    rate: float
    inputs: tuple[float, float] = (80.0, 0.6)
    outputs: tuple[float, float] = (60.0, 0.6)
    """Median and spread of log lengths."""

    arrivals: Arrivals = steady
    shared: int = 0
    """Prompt tokens that one in four prompts shares with others."""

    arguments: Mapping[str, object] = field(default_factory=dict)

    def requests(self, seed: int) -> list[TraceRequest]:
        rng = np.random.default_rng(seed)
        requests = []
        for row, at_s in enumerate(self.arrivals(rng, self.rate)):
            middle, spread = zip(self.inputs, self.outputs, strict=True)
            lengths = np.exp(np.log(middle) + np.array(spread) * rng.standard_normal(2))
            prompt, output = np.clip(lengths, (16, 4), (1200, 400)).astype(int).tolist()
            prompt += self.shared
            ids = [1000 * row + 100_000 + block for block in range(math.ceil(prompt / 16))]
            if self.shared:
                group = int(rng.integers(4))
                ids[: self.shared // 16] = [1000 * group + i for i in range(self.shared // 16)]
            requests.append(TraceRequest(row, at_s, prompt, output, hash_ids=tuple(ids)))
        return requests


CASES: dict[str, Case] = {
    "steady": Case(6.0),
    "bursts": Case(4.0, arrivals=bursts),
    "long-prompts": Case(2.0, inputs=(700.0, 0.4), outputs=(30.0, 0.5)),
    "long-replies": Case(2.0, inputs=(40.0, 0.5), outputs=(200.0, 0.4)),
    "shared-prefixes": Case(5.0, shared=256, arguments={"enable_prefix_caching": True}),
    "memory-binds": Case(
        5.0, outputs=(150.0, 0.4), arguments={"kv_cache_memory_bytes": 24 * 2**20}
    ),
}


class Study:
    """The folder of one case, and what is done in it."""

    def __init__(self, folder: Path, name: str, *, budget: str, rounds: int) -> None:
        self.name, self.case, self.budget, self.rounds = name, CASES[name], budget, rounds
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "profile.yaml"
        self.requests = self.case.requests(list(CASES).index(name))
        self.model = shipped.model_path("tuner:tiny")

    def measure(self) -> None:
        """Do what is missing: the sweep, and every round of every cap."""
        if not self.path.exists():
            self.sweep()
        choice = profile.load(self.path).decision.max_num_seqs
        for round_ in range(self.rounds):
            for cap in sorted({max(1, choice // 2), choice, 2 * choice}):
                path = self.folder / f"{cap}-{round_}.json"
                if path.exists():
                    continue
                print(f"{self.name}: {cap} slots, round {round_}", flush=True)
                with self.served(cap) as port:
                    seen = {load: self.benched(port, load) for load in LOADS}
                unfinished = path.with_suffix(".partial")
                unfinished.write_text(json.dumps({"cap": cap, "seen": seen}))
                unfinished.replace(path)

    def sweep(self) -> None:
        trace, count = self.folder / "trace.jsonl", len(self.requests)
        header = TraceHeader(source="study", block_size=16, rows_read=count, rows_kept=count)
        write(Trace.of(header, self.requests), trace, force=True)
        settings = {**ENGINE, **self.case.arguments}
        given = [("--set", f"{key}={str(value).lower()}") for key, value in settings.items()]
        partial = self.path.with_suffix(".partial.yaml")
        command: list[object] = ["sweep", "--trace", trace, "--step", "15s", "--model", self.model]
        command += ["--budget", self.budget, "-o", partial, "--run-dir", self.folder / "run"]
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.run("tuner", *command, *(word for pair in given for word in pair))
        partial.replace(self.path)

    @contextmanager
    def started(self, program: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
        """Start a program of this environment, and end it with all that it has started."""
        path = Path(sys.executable).with_name(program)
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(  # noqa: S603 - ourselves, and vLLM of this environment
                [path, *map(str, words)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT},
            )
        try:
            yield process
        finally:
            for number, timeout_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
                with suppress(subprocess.TimeoutExpired, ProcessLookupError):
                    os.killpg(process.pid, number)
                    process.wait(timeout_s)

    def run(self, program: str, *words: object) -> None:
        with self.started(program, *words) as process:
            if process.wait():
                sys.exit(f"{self.name}: {program} {words[0]} failed: {self.folder / 'log'}")

    @contextmanager
    def served(self, cap: int) -> Iterator[int]:
        """Start `vllm serve` with the arguments of the profile, and this cap."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        engine = profile.load(self.path).engine
        arguments: dict[str, Any] = {**engine, "max_num_seqs": cap, "model": self.model}
        at = ("--host", "127.0.0.1", "--port", port)
        with self.started("vllm", "serve", *words(arguments), *at) as process:
            end_s = monotonic() + START_S
            while not _answers(port):
                if monotonic() > end_s or process.poll() is not None:
                    sys.exit(f"{self.name}: the server did not start: {self.folder / 'log'}")
                sleep(0.5)
            yield port

    def benched(self, port: int, load: float) -> list[dict[str, float]]:
        """Return what vLLM's client saw of each request; prompts of each load are its own. Times
        count from when it sent; how late that was stands beside them."""
        sent = self.requests if load == 1.0 else scale_load(self.requests, load, seed=0)
        seed = int(4 * load)
        command = bench_serve(sent, self.folder, port=port, model=self.model, seed=seed)
        self.run("vllm", *command)
        seen = json.loads((self.folder / RESULT).read_text())
        late_s = np.array(seen["start_times"]) - np.array([each.arrival_s for each in sent])
        keys = ("ttfts", "itls", "input_lens", "output_lens", "errors")
        rows = zip(late_s - late_s.min(), *(seen[key] for key in keys), strict=True)
        return [
            {"late_s": float(late), "ttft_s": float(ttft), "decode_s": float(sum(gaps)),
             "input": prompt, "output": output, "failed": bool(error)}
            for late, ttft, gaps, prompt, output, error in rows
        ]  # fmt: skip

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield each number that the client measured, with what was promised of the choice; nothing
        where the client was late and measured itself."""
        promise = profile.load(self.path)
        choice = promise.decision.max_num_seqs
        for path in sorted(self.folder.glob("*-*.json")):
            kept = json.loads(path.read_text())
            for load, seen in ((float(load), seen) for load, seen in kept["seen"].items()):
                if np.quantile([each["late_s"] for each in seen], 0.99) > LATE_S:
                    continue
                of_load = [each for each in promise.promise.predicted if each.load == load]
                ends = of_load[0].intervals if of_load and kept["cap"] == choice else {}
                for name, measured in _numbers(seen, promise.decision.slo.slo).items():
                    cell = {"case": self.name, "load": load, "cap": kept["cap"], "choice": choice}
                    cell |= {"number": name, "measured": float(f"{measured:.5g}")}
                    yield {**cell, "interval": ends.get(name)}


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def _numbers(seen: Sequence[Mapping[str, float]], slo: Slo) -> dict[str, float]:
    """Return what the client saw by tuner's definitions, under the names of a promise."""
    served = [each for each in seen if not each["failed"]]
    ttft_s, decode_s, output = (
        np.array([each[key] for each in served]) for key in ("ttft_s", "decode_s", "output")
    )
    tpot_s = np.where(output > 1, decode_s / np.maximum(1, output - 1), np.nan)
    met = sum(
        slo.met_by(
            input_length=int(each["input"]),
            ttft_s=float(ttft),
            tpot_s=None if np.isnan(tpot) else float(tpot),
            e2el_s=float(ttft + decode),
        )
        for each, ttft, tpot, decode in zip(served, ttft_s, tpot_s, decode_s, strict=True)
    )
    numbers = {"attainment": met / len(seen)}
    for name, values in (("ttft", ttft_s), ("tpot", tpot_s), ("e2el", ttft_s + decode_s)):
        for share in (50, 95, 99):
            numbers[f"{name}_p{share}_ms"] = 1e3 * float(np.nanquantile(values, share / 100))
    return numbers


HEAD = ("case", "held", "missed above, below", "half-width: time, share", "choice loses")


def row_of(case: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many intervals held, how sharp they are, and what the choice loses at most."""
    promised = [(each["number"], *each["interval"], each["measured"]) for each in cells
                if each["interval"]]  # fmt: skip
    above = sum(measured > high for _, _, high, measured in promised)
    below = sum(measured < low for _, low, _, measured in promised)
    times = [(high - low) / (high + low) for name, low, high, _ in promised if name[-3:] == "_ms"]
    shares = [50 * (high - low) for name, low, high, _ in promised if name == "attainment"]
    means: dict[tuple[str, float], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    choices = {each["case"]: each["choice"] for each in cells}
    for each in cells:
        if each["number"] == "attainment":
            means[each["case"], each["load"]][each["cap"]].append(each["measured"])
    lost = [
        max(map(fmean, by_cap.values())) - fmean(by_cap[choices[name]])
        for (name, _), by_cap in means.items()
        if choices[name] in by_cap
    ]
    sharp = f"{np.median(times):.0%}, {np.median(shares):.1f} points" if times else ""
    held = f"{len(promised) - above - below} of {len(promised)}"
    return [case, held, f"{above}, {below}", sharp, f"{max(lost, default=math.nan):.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME",
                        help=f"of {', '.join(CASES)}; default: all")  # fmt: skip
    parser.add_argument("--budget", default="15m", help="of each sweep")
    parser.add_argument("--rounds", type=int, default=2, help="servers of each cap")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # a server is stopped with it
    cells: list[dict[str, Any]] = []
    for name in options.cases:
        study = Study(options.folder, name, budget=options.budget, rounds=options.rounds)
        study.measure()
        cells += study.cells()
    rows = [row_of(name, [each for each in cells if each["case"] == name]) for name in CASES]
    print(table(HEAD, [*rows, row_of("all", cells)]))


if __name__ == "__main__":
    main()
