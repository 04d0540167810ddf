"""Does a real server keep what a sweep promises of it? `vllm serve`, asked by `vllm bench serve`.

    python scripts/study_real.py --folder F [--case NAME] [--minutes 6] [--keep study_real]
    python scripts/study_real.py --smoke

Each case is a model, engine arguments and a trace of 60 s. It is swept once; then fresh servers at
half of the choice, the choice and twice of it replay the whole trace, as captured and with
headroom, two rounds of each, and what clients saw is held against the 95 % intervals that the
profile's twin promises of that cap and load (*again*: this traffic, a fresh engine). Nobody of the
twin's family is in it: server and client are vLLM's own. The server runs on one core, its client on
the other.

Steps are kept in the folder as they end: the same command goes on with what is missing, and
``--minutes`` ends it before a step that may not fit. Printed: how often each number of each case
was held, how sharp the intervals are, what a sweep's choice loses against the best cap that was
measured, what is missing; and the spread of the errors and of the starts, each case left out in
turn. With --smoke a simulated machine is the server.
"""

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import evidence
import numpy as np
from study_sweeps import parsed

from tuner.engines.models import shipped
from tuner.engines.server.serve_process import FreePort
from tuner.engines.sim.world import read_world, step_law
from tuner.profile import profile
from tuner.profile.stored_twin import StoredTwin, restored
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.trace import Trace, TraceRequest, write
from tuner.traffic.scaling import scale_load
from tuner.traffic.slo import Slo
from tuner.twin import draws
from tuner.twin.simulation import Traffic, simulate, traffic_of

LENGTH_S = 60.0
LOADS = (1.0, 1.25)
ROUNDS = (0, 1)
STEP_S = 230.0
"""What a step may take: the start of a server, and the trace at both loads."""

START_S = 180.0
WORLD = Path("examples/worlds/article-quiet.yaml")
NUMBERS = (
    *("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p50_s", "tpot_p95_s"),
    *("e2el_p95_s", "e2el_p99_s", "attainment"),
)

Rows = list[TraceRequest]


def steady(rng: np.random.Generator, rate: float) -> list[float]:
    return [float(one) for one in np.sort(rng.uniform(0, LENGTH_S, int(rate * LENGTH_S)))]


def bursts(rng: np.random.Generator, rate: float) -> list[float]:
    centres = rng.uniform(0, LENGTH_S, 8)
    times = rng.choice(centres, int(rate * LENGTH_S)) + rng.exponential(1.0, int(rate * LENGTH_S))
    return [float(one) for one in np.sort(np.clip(times, 0, LENGTH_S))]


@dataclass(frozen=True)
class Case:
    """One model, one way to serve it, one kind of traffic."""

    rate: float
    inputs: tuple[float, float] = (80.0, 0.6)
    outputs: tuple[float, float] = (60.0, 0.6)
    """Median and spread of log lengths."""

    arrivals: Callable[[np.random.Generator, float], list[float]] = steady
    shared: int = 0
    """Prompt tokens that one in four prompts shares with others."""

    deep: bool = False
    """Twelve thin layers in place of three: a step costs more by itself, and less a token."""

    arguments: Mapping[str, object] = field(default_factory=dict)

    def requests(self, seed: int) -> Rows:
        rng = np.random.default_rng(seed)
        found = []
        for row, at_s in enumerate(self.arrivals(rng, self.rate)):
            middle, spread = zip(self.inputs, self.outputs, strict=True)
            lengths = np.exp(np.log(middle) + np.array(spread) * rng.standard_normal(2))
            asked, told = np.clip(lengths, (16, 4), (1200, 400)).astype(int).tolist()
            asked += self.shared
            blocks = math.ceil(asked / 16)
            ids = [1000 * row + 100_000 + one for one in range(blocks)]
            if self.shared:
                group = int(rng.integers(4))
                for place in range(self.shared // 16):
                    ids[place] = 1000 * group + place
            found.append(TraceRequest(row, at_s, asked, told, hash_ids=tuple(ids)))
        return found


SMALL_KV = {"kv_cache_memory_bytes": 24 * 2**20}
CASES: dict[str, Case] = {
    "steady": Case(6.0),
    "bursts": Case(4.0, arrivals=bursts),
    "long prompts": Case(2.0, inputs=(700.0, 0.4), outputs=(30.0, 0.5)),
    "long replies": Case(2.0, inputs=(40.0, 0.5), outputs=(200.0, 0.4)),
    "shared prefixes": Case(5.0, shared=256, arguments={"enable_prefix_caching": True}),
    "memory binds": Case(5.0, outputs=(150.0, 0.4), arguments=SMALL_KV),
    "deep": Case(4.0, deep=True),
    "deep, bursts": Case(3.0, deep=True, arrivals=bursts),
}


class Study:
    """The folder of one case, and what is done in it."""

    def __init__(self, folder: Path, name: str, *, smoke: bool) -> None:
        self.name, self.case, self.smoke = name, CASES[name], smoke
        self.folder = folder / name.replace(", ", "-").replace(" ", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.requests = self.case.requests(list(CASES).index(name))

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield what is missing."""
        if not self.profile_path.exists():
            yield "sweep", self.sweep
            return
        for round_ in ROUNDS:
            for cap in self.caps:
                if not self.result(cap, round_).exists():
                    yield f"{cap} slots, round {round_}", partial(self.ask, cap, round_)

    @property
    def profile_path(self) -> Path:
        return self.folder / "profile.yaml"

    @property
    def caps(self) -> list[int]:
        cap = profile.load(self.profile_path).decision.max_num_seqs
        return sorted({max(1, cap // 2), cap, 2 * cap})

    def result(self, cap: int, round_: int) -> Path:
        return self.folder / f"{cap}-{round_}.json"

    def sent(self, load: float) -> Rows:
        return scale_load(self.requests, load, seed=0) if load != 1.0 else self.requests

    @property
    def model(self) -> str:
        if not self.case.deep:
            return "tuner:tiny"
        path = self.folder / "model"
        if not path.exists():
            path.mkdir()
            for one in Path(shipped.model_path("tuner:tiny")).iterdir():
                (path / one.name).write_bytes(one.read_bytes())
            config = json.loads((path / "config.json").read_text())
            config |= {
                "num_hidden_layers": 12, "hidden_size": 192, "intermediate_size": 512,
                "num_attention_heads": 3, "num_key_value_heads": 3,
            }  # fmt: skip
            (path / "config.json").write_text(json.dumps(config))
        return str(path)

    def arguments(self) -> dict[str, object]:
        usual = {"enforce_eager": True, "dtype": "float32", "load_format": "dummy"}
        memory = {"kv_cache_memory_bytes": 2**28, "enable_prefix_caching": False}
        return {**usual, **memory, **self.case.arguments}

    def sweep(self) -> None:
        trace = self.folder / "trace.jsonl"
        header = TraceHeader(source="study", block_size=16, rows_read=len(self.requests),
                             rows_kept=len(self.requests))  # fmt: skip
        write(Trace(header, tuple(self.requests), digest=""), trace)
        where = ("--engine", "sim", "--world", str(WORLD)) if self.smoke else (
            *("--model", self.model, "--confirm", "server"),
            *(word for one in self.arguments().items() for word in ("--set", _setting(*one))),
        )  # fmt: skip
        words = ("sweep", "--trace", trace, "--step", "15s", "--budget", "15m", "--ceiling", "32")
        with (self.folder / "sweep.log").open("w") as log:
            subprocess.run(  # noqa: S603 - ourselves
                [Path(sys.executable).with_name("tuner"), *words, *where, "--run-dir",
                 self.folder / "run", "-o", self.profile_path, "--force"],
                check=False, stdout=log, stderr=log,
            )  # fmt: skip
        if not self.profile_path.exists():
            sys.exit(f"{self.name}: the sweep gave no profile: {self.folder / 'sweep.log'}")

    def ask(self, cap: int, round_: int) -> None:
        """Start a server, ask it for the trace at both loads, and keep what clients saw."""
        if self.smoke:
            found = [self.simulated(cap, load, round_) for load in LOADS]
        else:
            with self.served(cap) as port:
                found = [self.benched(port, load, number) for number, load in enumerate(LOADS)]
        unfinished = self.result(cap, round_).with_suffix(".partial")
        unfinished.write_text(json.dumps(found))
        unfinished.replace(self.result(cap, round_))

    @contextmanager
    def served(self, cap: int) -> Iterator[int]:
        free = FreePort()
        port = free.number
        free.release()
        model = shipped.model_path(self.model) if self.model.startswith("tuner:") else self.model
        flags = []
        for name, value in self.arguments().items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                flags += [f"--{flag}", str(value)]
        binary = Path(sys.executable).with_name("vllm")
        with (self.folder / f"serve-{cap}.log").open("w") as log:
            process = subprocess.Popen(  # noqa: S603 - vLLM of this environment
                [*_core(0), str(binary), "serve", model, "--port", str(port), "--host", "127.0.0.1",
                 "--served-model-name", "m", "--max-num-seqs", str(cap), *flags],
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            try:
                _wait(process, port)
                yield port
            finally:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)

    def benched(self, port: int, load: float, number: int) -> list[dict[str, float]]:
        """Return what vLLM's own client saw of each request; prompts of each load are its own."""
        sent = self.sent(load)
        rows = [
            {"timestamp": one.arrival_s, "input_length": one.input_length,
             "output_length": one.output_length,
             "hash_ids": [10**7 * number + each for each in one.hash_ids]}
            for one in sent
        ]  # fmt: skip
        path = self.folder / "bench.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        model = shipped.model_path(self.model) if self.model.startswith("tuner:") else self.model
        with (self.folder / "bench.log").open("w") as log:
            subprocess.run(  # noqa: S603 - vLLM of this environment
                [*_core(1), Path(sys.executable).with_name("vllm"), "bench", "serve", "--model",
                 "m",
                 "--tokenizer", model, "--port", str(port), "--dataset-name", "timed_trace",
                 "--dataset-path", path, "--timed-trace-chunk-hash-size", "16",
                 "--num-prompts", str(len(rows)), "--ignore-eos", "--save-result",
                 "--save-detailed", "--result-dir", self.folder, "--result-filename", "bench.json"],
                check=True, stdout=log, stderr=log, env={**os.environ, "PYTHONHASHSEED": "0"},
            )  # fmt: skip
        said = json.loads((self.folder / "bench.json").read_text())
        start_s = np.array(said["start_times"], float)
        planned_s = np.array([one.arrival_s for one in sent])
        late_s = start_s - planned_s
        late_s -= late_s.min()
        return [
            {"ttft_s": float(ttft + late), "decode_s": float(sum(gaps)), "input": asked,
             "output": told, "failed": bool(error)}
            for ttft, late, gaps, asked, told, error in zip(
                said["ttfts"], late_s, said["itls"], said["input_lens"], said["output_lens"],
                said["errors"], strict=True)
        ]  # fmt: skip

    def simulated(self, cap: int, load: float, round_: int) -> list[dict[str, float]]:
        """Return what the simulated machine, at a start of its own, would have shown."""
        twin = self.twin()
        law = step_law(read_world(WORLD).step, cap)
        start = math.exp(draws.START_SD * np.random.default_rng((cap, round_)).standard_normal())
        traffic = _traffic(self.sent(load), 0.0)
        replay = simulate(traffic, law.slowed(start), twin.shape, max_num_seqs=cap)
        return [
            {"ttft_s": float(ttft), "decode_s": float(e2el - ttft), "input": int(asked),
             "output": int(told), "failed": False}
            for ttft, e2el, asked, told in zip(
                replay.ttft_s, replay.e2el_s, traffic.input_length, traffic.output_length,
                strict=True)
        ]  # fmt: skip

    def twin(self) -> StoredTwin:
        section = profile.load(self.profile_path).twin
        if section is None:
            raise LookupError(f"{self.name}: the windows decided, nothing is promised by a twin")
        return restored(section, source=str(self.profile_path))

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield each number that was promised and measured, and the errors of the means."""
        one = profile.load(self.profile_path)
        try:
            twin = self.twin()
        except LookupError as error:
            print(error)
            return
        slo, hits = one.decision.slo.slo, 0.0 if one.twin is None else one.twin.hit_share
        for cap in self.caps:
            for place, load in enumerate(LOADS):
                files = [self.result(cap, round_) for round_ in ROUNDS]
                if not any(each.exists() for each in files):
                    continue
                traffic = _traffic(self.sent(load), hits)
                said = draws.promised(
                    [traffic], twin.draws([traffic]), twin.shape, slo, max_num_seqs=cap
                )
                for round_, path in zip(ROUNDS, files, strict=True):
                    if path.exists():
                        seen = _numbers(json.loads(path.read_text())[place], slo)
                        for name in (*NUMBERS, "ttft_mean_s", "tpot_mean_s"):
                            low, high = said.ranges[name]
                            yield {
                                "case": self.name, "cap": cap, "load": load, "round": round_,
                                "choice": one.decision.max_num_seqs, "number": name,
                                "predicted": said.middle[name], "low": low, "high": high,
                                "measured": seen[name],
                            }  # fmt: skip


def _traffic(requests: Rows, hit_share: float) -> Traffic:
    return traffic_of(requests, hash_block_size=16, hit_share=hit_share)


def _setting(name: str, value: object) -> str:
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def _core(number: int) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[number % len(cores)])]


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    from urllib.error import URLError  # noqa: PLC0415 - of real servers only
    from urllib.request import urlopen  # noqa: PLC0415

    end_s = monotonic() + START_S
    while monotonic() < end_s and process.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (URLError, OSError):
            sleep(0.5)
    sys.exit("the server did not start: look into serve-*.log")


def _numbers(seen: Sequence[Mapping[str, float]], slo: Slo) -> dict[str, float]:
    """Return what clients saw, by tuner's definitions."""
    served = [one for one in seen if not one["failed"]]
    ttft_s = np.array([one["ttft_s"] for one in served])
    decode_s = np.array([one["decode_s"] for one in served])
    gaps = np.array([one["output"] - 1 for one in served])
    tpot_s = np.where(gaps > 0, decode_s / np.maximum(1, gaps), np.nan)
    good = sum(
        slo.met_by(
            input_length=int(one["input"]), ttft_s=float(ttft),
            tpot_s=None if np.isnan(tpot) else float(tpot), e2el_s=float(ttft + decode),
        )
        for one, ttft, tpot, decode in zip(served, ttft_s, tpot_s, decode_s, strict=True)
    )  # fmt: skip
    found = {"attainment": good / len(seen)}
    times = {"ttft": ttft_s, "tpot": tpot_s[~np.isnan(tpot_s)], "e2el": ttft_s + decode_s}
    for name, values in times.items():
        found[f"{name}_mean_s"] = float(values.mean())
        for share in (50, 95, 99):
            found[f"{name}_p{share}_s"] = float(np.quantile(values, share / 100))
    return found


def report(cells: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> None:
    numbers = [one for one in cells if one["number"] in NUMBERS]
    for key in ("number", "case", "load"):
        for value in dict.fromkeys(one[key] for one in numbers):
            print(f"{value!s:18} {_coverage([one for one in numbers if one[key] == value])}")
    print(f"{'pooled':18} {_coverage(numbers)}")
    for name, sd in constants(cells).items():
        print(f"{name}: {sd:+.3f}")
    for case in dict.fromkeys(one["case"] for one in cells):
        told = constants([one for one in cells if one["case"] != case])
        print(f"  without {case}: {', '.join(f'{n} {v:+.3f}' for n, v in told.items())}")
    for name, loss in regrets(cells):
        print(f"regret of {name}: {loss:.3f}")
    print(f"missing: {', '.join(missing) or 'nothing'}")


def _coverage(cells: Sequence[Mapping[str, Any]]) -> str:
    if not cells:
        return "nothing"
    held = [one["low"] <= one["measured"] <= one["high"] for one in cells]
    times = [one for one in cells if one["number"] != "attainment" and one["predicted"] > 0]
    widths = [(one["high"] - one["low"]) / 2 / one["predicted"] for one in times]
    shares = [(one["high"] - one["low"]) / 2 for one in cells if one["number"] == "attainment"]
    above = sum(one["measured"] > one["high"] for one in cells)
    return (
        f"{sum(held)} of {len(held)} held ({np.mean(held):.2f}), {above} above; half-width "
        f"{np.median(widths) if widths else math.nan:.2f} of a time, "
        f"{np.median(shares) if shares else math.nan:.3f} of attainment"
    )


def constants(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean and the spread of log(measured / predicted) of the means, and by how much two
    starts of one server differ."""
    found = {}
    for name in ("ttft", "tpot"):
        mine = [one for one in cells if one["number"] == f"{name}_mean_s"]
        errors = [math.log(one["measured"] / one["predicted"]) for one in mine]
        if errors:
            found[f"{name} bias"] = float(np.mean(errors))
            found[f"{name} sd"] = math.sqrt(float(np.mean(np.square(errors))))
        pairs = defaultdict(list)
        for one in mine:
            pairs[one["case"], one["cap"], one["load"]].append(math.log(one["measured"]))
        both = [a - b for a, b in (each for each in pairs.values() if len(each) == 2)]
        if both:
            found[f"{name} between starts"] = math.sqrt(float(np.mean(np.square(both))) / 2)
    return found


def regrets(cells: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield what each choice loses against the best cap that was measured in both rounds."""
    shares = defaultdict(list)
    for one in cells:
        if one["number"] == "attainment":
            shares[one["case"], one["load"], one["choice"], one["cap"]].append(one["measured"])
    for case, load, choice in dict.fromkeys(key[:3] for key in shares):
        mine = {key[3]: float(np.mean(v)) for key, v in shares.items()
                if key[:3] == (case, load, choice) and len(v) == len(ROUNDS)}  # fmt: skip
        if choice in mine and len(mine) > 1:
            yield f"{case} at {load:g} times the load", max(mine.values()) - mine[choice]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where steps are kept; default: a new one")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no step after")
    options = parsed(parser, smoke="--case steady")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="study-real-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # a server is stopped with it
    begin_s, done = monotonic(), 0
    names = options.case or list(CASES)
    studies = [Study(folder, name, smoke="--smoke" in sys.argv) for name in names]
    for study in studies:
        while (step := next(study.steps(), None)) is not None:
            left_s = 60 * options.minutes - (monotonic() - begin_s)
            if left_s < STEP_S and done:
                break
            print(f"{study.name}: {step[0]}", flush=True)
            step[1]()
            done += 1
    whole = [one for one in studies if one.profile_path.exists()]
    missing = [f"{one.name} ({name})" for one in studies for name, _ in one.steps()]
    cells = [cell for study in whole for cell in study.cells()]
    report(cells, missing)
    constants_of = Path(draws.__file__).read_bytes()
    digest = hashlib.sha256(constants_of).hexdigest()
    evidence.keep(options.keep, {"constants": digest, "missing": missing, "cells": cells})


if __name__ == "__main__":
    main()
