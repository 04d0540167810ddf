"""Does a real `vllm serve`, measured by `vllm bench serve`, keep what a sweep promises of it?

    python scripts/study_real.py --folder F [--cases NAME …] [--budget 4m] [--rounds N]
    python scripts/study_real.py --folder F --anew

Each case is a model, engine arguments and a trace of 60 s. It is swept once, with the confirming
replay behind a server; then fresh servers at the choice, at half and at twice of it replay the
whole trace, as recorded and with headroom, --rounds of each, and what clients saw is compared with
the 95 % intervals that the profile's twin promises of that cap and load. Server and client are
vLLM's own, and share the machine as sweep and confirming server did. The client goes before the
server on the cores, where that is allowed, and what it sent late is measured once more.

Results are kept in the folder as they come, and the same command continues with what is missing.
--anew rescores what is in the folder. Printed of each case: how many intervals held, how wide they
are, and what the choice loses against the best cap that was measured. All cases take four hours.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
from results import keep, table

from tuner.engines.models import shipped
from tuner.engines.server.serve_process import FreePort
from tuner.engines.server.start import words
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin, restored
from tuner.trace.record import TraceHeader
from tuner.trace.trace import Trace, TraceRequest, write
from tuner.traffic.scaling import scale_load
from tuner.traffic.slo import Slo
from tuner.twin import draws
from tuner.twin.simulation import Traffic, traffic_of

LENGTH_S = 60.0
LOADS = (1.0, 1.25)
START_S = 180.0

NUMBERS = (
    *("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p50_s", "tpot_p95_s"),
    *("e2el_p95_s", "e2el_p99_s", "attainment"),
)
LATE_S = 0.05
"""A client that sent its latest hundredth later than this saw itself, and not the server."""


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1", "PYTHONHASHSEED": "0",
}  # fmt: skip
"""Of sweep, server and client: an engine that computes in one thread of one process leaves a second
core to API server and client; prompts of equal hash are equal in all of them."""

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
    "long-prompts": Case(2.0, inputs=(700.0, 0.4), outputs=(30.0, 0.5)),
    "long-replies": Case(2.0, inputs=(40.0, 0.5), outputs=(200.0, 0.4)),
    "shared-prefixes": Case(5.0, shared=256, arguments={"enable_prefix_caching": True}),
    "memory-binds": Case(5.0, outputs=(150.0, 0.4), arguments=SMALL_KV),
    "deep": Case(4.0, deep=True),
    "deep-bursts": Case(3.0, deep=True, arrivals=bursts),
}


class Study:
    """The folder of one case, and what is done in it."""

    def __init__(self, folder: Path, name: str, *, budget: str, rounds: int) -> None:
        self.name, self.case, self.budget, self.rounds = name, CASES[name], budget, rounds
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.requests = self.case.requests(list(CASES).index(name))

    def measure(self) -> None:
        """Do what is missing: the sweep, and every round of every cap."""
        if not self.profile_path.exists():
            self.sweep()
        for round_ in range(self.rounds):
            for cap in self.caps:
                if not self.result(cap, round_).exists():
                    print(f"{self.name}: {cap} slots, round {round_}", flush=True)
                    self.ask(cap, round_)

    @property
    def profile_path(self) -> Path:
        return self.folder / "profile.yaml"

    @property
    def profile(self) -> ServingProfile:
        return profile.load(self.profile_path)

    @property
    def caps(self) -> list[int]:
        cap = self.profile.decision.max_num_seqs
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

    def sweep(self) -> None:
        trace = self.folder / "trace.jsonl"
        header = TraceHeader(source="study", block_size=16, rows_read=len(self.requests),
                             rows_kept=len(self.requests))  # fmt: skip
        write(Trace.of(header, self.requests), trace)
        usual = {"enforce_eager": True, "dtype": "float32", "load_format": "dummy",
                 "kv_cache_memory_bytes": 2**28, "enable_prefix_caching": False}  # fmt: skip
        settings = {**usual, **self.case.arguments}
        where = [word for name, value in settings.items()
                 for word in ("--set", f"{name}={str(value).lower()}")]  # fmt: skip
        begun = ("--resume",) if (self.folder / "run" / "journal.jsonl").exists() else ()
        asked = ("sweep", "--trace", trace, "--step", "15s", "--budget", self.budget,
                 "--model", self.model, "--ceiling", "32", "--run-dir", self.folder / "run",
                 *begun, "--force",
                 "-o", self.profile_path.with_suffix(".partial.yaml"))  # fmt: skip
        self.tuned(*asked, *where)

    def rescore(self) -> None:
        """Make the profile anew from what was measured."""
        if self.profile_path.exists():
            self.tuned("sweep", "--rescore", self.folder / "run", "--force",
                       "-o", self.profile_path.with_suffix(".partial.yaml"))  # fmt: skip

    def tuned(self, *asked: object) -> None:
        """Run tuner, and keep the profile that it writes."""
        unfinished = self.profile_path.with_suffix(".partial.yaml")
        with (self.folder / "sweep.log").open("a") as log:
            _run([Path(sys.executable).with_name("tuner"), *asked], log)
        if not unfinished.exists():
            sys.exit(f"{self.name}: the sweep gave no profile: {self.folder / 'sweep.log'}")
        unfinished.replace(self.profile_path)

    def ask(self, cap: int, round_: int) -> None:
        """Start a server, ask it for the trace at both loads, and keep what clients saw."""
        with self.served(cap) as port:
            found = [self.in_time(port, load, number) for number, load in enumerate(LOADS)]
        kept = {"loads": list(LOADS), "seen": found}
        unfinished = self.result(cap, round_).with_suffix(".partial")
        unfinished.write_text(json.dumps(kept))
        unfinished.replace(self.result(cap, round_))

    @property
    def model_path(self) -> str:
        return shipped.model_path(self.model) if self.model.startswith("tuner:") else self.model

    @contextmanager
    def served(self, cap: int) -> Iterator[int]:
        """Start `vllm serve` with the arguments of the profile, and this cap."""
        free = FreePort()
        arguments: dict[str, Any] = {**self.profile.engine, "max_num_seqs": cap}
        arguments |= {"model": self.model_path, "served_model_name": "m"}
        binary = Path(sys.executable).with_name("vllm")
        with (self.folder / f"serve-{cap}.log").open("w") as log:
            process = subprocess.Popen(  # noqa: S603 - vLLM of this environment
                [binary, "serve", *words(arguments, port=free.number)],
                stdout=log, stderr=log, start_new_session=True, env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
            try:
                _wait(process, free.number)
                yield free.number
            finally:
                free.release()
                _end(process)

    def in_time(self, port: int, load: float, number: int) -> list[dict[str, float]]:
        """Return what vLLM's client saw, of two runs where the first was late."""
        found = self.benched(port, load, number)
        if _late_s(found) > LATE_S:
            found = min(found, self.benched(port, load, len(LOADS) + number), key=_late_s)
        return found

    def benched(self, port: int, load: float, number: int) -> list[dict[str, float]]:
        """Return what vLLM's own client saw of each request; prompts of each load are its own.
        Times count from when it sent: how late it was by its own doing stands beside them."""
        sent = self.sent(load)
        rows = [
            {"timestamp": one.arrival_s, "input_length": one.input_length,
             "output_length": one.output_length,
             "hash_ids": [10**7 * number + each for each in one.hash_ids]}
            for one in sent
        ]  # fmt: skip
        path = self.folder / "bench.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        with (self.folder / "bench.log").open("w") as log:
            done = _run(
                ["nice", "-n", "-10", Path(sys.executable).with_name("vllm"), "bench", "serve",
                 "--model", "m",
                 "--tokenizer", self.model_path, "--port", str(port), "--dataset-name",
                 "timed_trace", "--dataset-path", path, "--timed-trace-chunk-hash-size", "16",
                 "--num-prompts", str(len(rows)), "--ignore-eos", "--save-result",
                 "--save-detailed", "--result-dir", self.folder, "--result-filename", "bench.json"],
                log,
            )  # fmt: skip
        if done:
            sys.exit(f"{self.name}: vLLM's client failed: {self.folder / 'bench.log'}")
        said = json.loads((self.folder / "bench.json").read_text())
        late_s = np.array(said["start_times"]) - np.array([one.arrival_s for one in sent])
        late_s -= late_s.min()
        return [
            {"ttft_s": float(ttft), "late_s": float(late), "decode_s": float(sum(gaps)),
             "input": asked, "output": told, "failed": bool(error)}
            for ttft, late, gaps, asked, told, error in zip(
                said["ttfts"], late_s, said["itls"], said["input_lens"], said["output_lens"],
                said["errors"], strict=True)
        ]  # fmt: skip

    def twin(self, one: ServingProfile) -> StoredTwin:
        if one.twin is None:
            raise LookupError(f"{self.name}: the windows decided, nothing is promised by a twin")
        return restored(one.twin, source=str(self.profile_path), front_end=one.front_end)

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield each number that was promised and measured, where the client kept up."""
        one = self.profile
        try:
            twin = self.twin(one)
        except LookupError as error:
            print(error)
            return
        slo, hits = one.decision.slo.slo, 0.0 if one.twin is None else one.twin.hit_share
        for cap, load in ((cap, load) for cap in self.caps for load in LOADS):
            rounds = [(number, self.seen(cap, number, load)) for number in range(self.rounds)]
            seen = [(number, each) for number, each in rounds if each and _late_s(each) < LATE_S]
            traffic = _traffic(self.sent(load), hits)
            drawn = draws.draws_of(twin.laws, twin.machine, [traffic])
            said = draws.promised([traffic], drawn, twin.shape, slo, max_num_seqs=cap)
            for round_, requests in seen:
                numbers = _numbers(requests, slo)
                for name in NUMBERS:
                    values = (said.middle[name], *said.ranges[name], numbers[name])
                    rounded = (float(f"{value:.5g}") for value in values)
                    yield {
                        "case": self.name, "cap": cap, "load": load, "round": round_,
                        "number": name, "choice": one.decision.max_num_seqs,
                        **dict(zip(("predicted", "low", "high", "measured"), rounded, strict=True)),
                    }  # fmt: skip

    def seen(self, cap: int, round_: int, load: float) -> list[dict[str, float]]:
        """Return the requests of a round; none where they were not asked."""
        path = self.result(cap, round_)
        kept = json.loads(path.read_text()) if path.exists() else {"loads": []}
        return kept["seen"][kept["loads"].index(load)] if load in kept["loads"] else []


def _late_s(requests: Sequence[Mapping[str, float]]) -> float:
    """Return by how much the client sent its latest hundredth later than planned."""
    return float(np.quantile([one.get("late_s", 0.0) for one in requests], 0.99))


def _traffic(requests: Rows, hit_share: float) -> Traffic:
    return traffic_of(requests, hash_block_size=16, hit_share=hit_share)


def _run(command: Sequence[object], log: Any) -> int:  # noqa: ANN401 - an open file
    """Run a command, and end it when we are ended; return its exit status."""
    process = subprocess.Popen(  # noqa: S603 - ourselves, and vLLM of this environment
        [str(one) for one in command], stdout=log, stderr=log, start_new_session=True,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    try:
        return process.wait()
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    for number, timeout_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


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


HEAD = ("case", "cap", "held", "missed above, below", "half-width: time, share", "regret")


def row_of(case: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many intervals held, how sharp they were, and what the choice lost at most against
    the best cap that was measured, mean against mean."""
    times = [one for one in cells if one["number"] != "attainment" and one["predicted"] > 0]
    widths = [(one["high"] - one["low"]) / 2 / one["predicted"] for one in times]
    shares = [one for one in cells if one["number"] == "attainment"]
    points = [50 * (one["high"] - one["low"]) for one in shares]
    above = sum(one["measured"] > one["high"] for one in cells)
    below = sum(one["measured"] < one["low"] for one in cells)
    means: dict[tuple[str, float, bool], dict[int, float]] = defaultdict(dict)
    for key in {(one["case"], one["load"], one["cap"]) for one in shares}:
        mine = [one for one in shares if (one["case"], one["load"], one["cap"]) == key]
        is_choice = key[2] == mine[0]["choice"]
        means[key[0], key[1], is_choice][key[2]] = float(np.mean([one["measured"] for one in mine]))
    lost = [
        max(others.values()) - max(means[case_, load, True].values())
        for (case_, load, is_choice), others in [*means.items()]
        if not is_choice and means[case_, load, True]
    ]
    caps = ", ".join(str(cap) for cap in dict.fromkeys(one["choice"] for one in cells))
    held = f"{len(cells) - above - below} of {len(cells)}"
    sharp = f"{np.median(widths):.0%}, {np.median(points):.1f} points"
    return [case, caps, held, f"{above}, {below}", sharp, f"{max(0.0, *lost, 0.0):.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME",
                        help=f"of {', '.join(CASES)}; default: all")  # fmt: skip
    parser.add_argument("--budget", default="15m", help="of each sweep")
    parser.add_argument("--rounds", type=int, default=2, help="servers of each cap")
    parser.add_argument("--anew", action="store_true", help="rescore; measure nothing")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # a server is stopped with it
    cells: dict[str, list[dict[str, Any]]] = {}
    for name in options.cases:
        study = Study(options.folder, name, budget=options.budget, rounds=options.rounds)
        study.rescore() if options.anew else study.measure()
        cells[name] = list(study.cells())
        keep(options.keep, cells)
    rows = [row_of(name, mine) for name, mine in cells.items() if mine]
    print(table(HEAD, [*rows, row_of("all", [one for mine in cells.values() for one in mine])]))


if __name__ == "__main__":
    main()
