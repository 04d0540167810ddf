"""The scheduler model against recorded runs of vLLM 0.19 on two GPUs: never seen by it before.

Of each run there are the requests' times, one reading a second of what ran and waited, and the
configuration; no iterations. So a law a·k + b·G + c·P + d·k·X = 1 s is fitted to the readings of
the first half (G output tokens and P prompt tokens in a second, k = G / running iterations, X their
context), and the whole run is replayed from its arrivals.
"""

import csv
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.support.places import THIRD_PARTY
from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.runs.ladder import doubling
from tuner.traffic.slo import Slo
from tuner.twin.forecast import measurement_of
from tuner.twin.law import nnls
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, simulate
from tuner.twin.verdict import best_of, kind_of

TRACES = THIRD_PARTY / "traces"
pytestmark = pytest.mark.skipif(not TRACES.exists(), reason="the recorded runs are not here")


@dataclass(frozen=True, slots=True)
class Run:
    traffic: Traffic
    first_token_s: Floats
    e2el_s: Floats
    second: Floats
    running: Floats
    waiting: Floats
    output_tokens: Floats
    prompt_tokens: Floats
    max_num_seqs: int
    kv_blocks: int


def recorded(name: str, *, kv_blocks: int | None = None) -> Run:
    stem = f"vllmbench_{name}_Llama-3.1-8B"
    meta: dict[str, Any] = json.loads((TRACES / f"{stem}_meta.json").read_text())
    lines = (TRACES / f"{stem}_requests.jsonl").read_text().splitlines()
    requests = sorted((json.loads(line) for line in lines), key=lambda item: item["queued_ts"])
    with (TRACES / f"{stem}_timeseries.csv").open() as stream:
        readings = list(csv.DictReader(stream))
    origin_s = requests[0]["queued_ts"]

    def column(key: str) -> Floats:
        return np.array([request[key] for request in requests], float)

    def reading(key: str) -> Floats:
        return np.array([reading[key] for reading in readings], float)

    arrival_s = column("queued_ts") - origin_s
    return Run(
        traffic=Traffic.of(
            zip(arrival_s, column("input_toks"), column("output_toks"), strict=True)
        ),
        first_token_s=column("first_token_ts") - origin_s,
        e2el_s=column("last_token_ts") - column("queued_ts"),
        second=reading("t"),
        running=reading("running"),
        waiting=reading("waiting"),
        output_tokens=reading("gen_throughput"),
        prompt_tokens=reading("prompt_throughput"),
        max_num_seqs=meta["engine_kwargs"]["max_num_seqs"],
        kv_blocks=kv_blocks or meta["kv_cache"]["num_gpu_blocks"],
    )


def law_of_first_half(run: Run) -> StepLaw:
    last_token_s = run.traffic.arrival_s + run.e2el_s
    decoding = (run.first_token_s[:, None] <= run.second) & (last_token_s[:, None] > run.second)
    share = (run.second - run.first_token_s[:, None]) / (last_token_s - run.first_token_s)[:, None]
    tokens = run.traffic.input_length[:, None] + share * run.traffic.output_length[:, None]
    context = np.where(decoding, tokens, 0.0).sum(axis=0)
    iterations = run.output_tokens / np.maximum(1, run.running)
    columns = (iterations, run.output_tokens, run.prompt_tokens, iterations * context)
    half = (run.running > 0) & (run.output_tokens > 0) & (run.second <= run.second[-1] / 2)
    design = np.column_stack(columns)[half]
    weight, result = np.ones(len(design)), np.zeros(len(columns))
    for _ in range(20):
        weighted = weight[:, None] * design
        result = nnls(weighted.T @ design, weighted.sum(axis=0))
        off = np.abs(1 - design @ result)
        weight = np.minimum(1, 2 * np.median(off) / np.maximum(off, 1e-9))
    a, b, c, d = (float(value) for value in result)
    return StepLaw(a + b * np.linspace(0, run.max_num_seqs, run.max_num_seqs + 1), c, 0.0, 0.0, d)


def shape_of(run: Run) -> EngineShape:
    return EngineShape(
        max_num_batched_tokens=2048,
        block_size=16,
        kv_blocks=run.kv_blocks,
        max_model_len=32_768,
        late_release=True,
        prefix_caching=True,
    )


def replayed(run: Run) -> TwinReplay:
    law = law_of_first_half(run)
    return simulate(run.traffic, law, shape_of(run), max_num_seqs=run.max_num_seqs, log=True)


def series(run: Run, replay: TwinReplay, name: str) -> Floats:
    """Return the model's running or waiting requests at the seconds of the readings."""
    begin_s = replay.iterations["start_s"]
    place = np.searchsorted(begin_s, run.second) - 1
    over = run.second > begin_s[-1] + 1
    return np.where(over, 0, replay.iterations[name][np.maximum(place, 0)]).astype(float)


def test_a_run_that_the_cap_binds_is_reproduced() -> None:
    run = recorded("RTXPRO6000", kv_blocks=100_000)
    replay = replayed(run)
    assert replay.running_peak == run.max_num_seqs == 128
    for name, seen in (("running", run.running), ("waiting", run.waiting)):
        assert np.abs(series(run, replay, name) - seen).mean() < 3
    assert np.median(np.abs(replay.e2el_s / run.e2el_s - 1)) < 0.03
    assert np.quantile(replay.e2el_s, 0.95) == pytest.approx(
        np.quantile(run.e2el_s, 0.95), rel=0.05
    )


def test_a_run_that_the_memory_binds_is_reproduced_and_the_cap_is_never_reached() -> None:
    run = recorded("RTX4090")
    replay = replayed(run)
    assert run.max_num_seqs == 256
    assert replay.running_peak == pytest.approx(run.running.max(), abs=3)
    assert replay.kv_usage_peak > 0.99
    assert replay.preemptions.sum() > 0
    for name, seen in (("running", run.running), ("waiting", run.waiting)):
        assert np.abs(series(run, replay, name) - seen).mean() < 8
    assert np.median(np.abs(replay.e2el_s / run.e2el_s - 1)) < 0.10


@pytest.mark.parametrize(
    ("name", "kv_blocks", "kind"), [("RTX4090", None, "kv_bound"), ("RTXPRO6000", 100_000, None)]
)
def test_the_run_that_the_memory_binds_is_called_so_and_the_other_is_not(
    name: str, kv_blocks: int | None, kind: str | None
) -> None:
    run = recorded(name, kv_blocks=kv_blocks)
    law, shape, slo = law_of_first_half(run), shape_of(run), Slo(e2el_s=1000.0)
    length_s = float(run.traffic.arrival_s[-1])
    caps = doubling(run.max_num_seqs)
    replays = {cap: simulate(run.traffic, law, shape, max_num_seqs=cap, log=True) for cap in caps}
    curve = {
        cap: measurement_of(run.traffic, replay, slo, shape=shape, length_s=length_s)
        for cap, replay in replays.items()
    }
    result, why = kind_of(curve[best_of(curve)], curve, run.max_num_seqs)
    assert (result == "kv_bound") == (kind == "kv_bound")
    if kind == "kv_bound":
        assert "gpu_memory_utilization" in why
