"""Small measurements, records and logs for tests, with numbers that can be checked in the head."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tuner.engines.seam import ITERATION, UNKNOWN, EngineFacts, IterationLog
from tuner.replay.numbers import KvCacheUsage, Measurement, Spread
from tuner.replay.records import REQUEST, Replay, Requests, e2el_s, queue_s, ttft_s
from tuner.runs.sweep.conclusion import SweepSettings
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo


def facts(**changes: Any) -> EngineFacts:  # noqa: ANN401 - any field
    """Return what a small engine says of itself."""
    values: dict[str, Any] = {
        "engine": "serve", "arguments": {"max_num_seqs": 8, "max_num_batched_tokens": 512},
        "max_model_len": 1024, "vocab_size": 2048, "block_size": 16, "kv_blocks": 100,
        "start_s": 1.0, "versions": {}, "device": {"name": "a machine"},
    }  # fmt: skip
    return EngineFacts(**{**values, **changes})


def flat(seconds: float) -> Spread:
    """Return a distribution in which every value is the same."""
    return Spread(seconds, seconds, seconds, seconds, seconds)


def measurement(cap: int, **changes: Any) -> Measurement:  # noqa: ANN401 - any field
    """Return what a calm, half-full engine would show at ``cap``."""
    values: dict[str, Any] = {
        "max_num_seqs": cap, "blocks": 1, "requests": 100, "attainment": 1.0,
        "attainment_bound": 1.0, "arrival_rate_rps": 10.0,
        "goodput_rps": 10.0, "offered_tokens_per_s": 1000.0, "requests_per_s": 10.0,
        "output_tokens_per_s": 1000.0, "ttft_s": flat(0.1), "tpot_s": flat(0.02),
        "itl_s": flat(0.02), "e2el_s": flat(2.0), "queue_s": flat(0.0),
        "kv_cache_usage": KvCacheUsage(0.2, 0.3, 0.3), "preemptions": 0, "recomputed_tokens": 0,
        "running_peak": cap, "cap_bound_share": 0.1, "kv_bound_share": 0.0,
        "token_bound_share": 0.0, "in_flight_peak": cap,
        "cut": None,
    }  # fmt: skip
    return Measurement(**{**values, **changes})


def settings(slo: Slo, *, ceiling: int) -> SweepSettings:
    """Return those of a run whose replays take 6 s, on ten minutes."""
    return SweepSettings(
        ceiling=ceiling, slo=slo, window="all", step_s=6.0, budget_s=600.0, headroom=1.0,
        closed_sessions=False, trace_block_size=16,
    )  # fmt: skip


def hopeless(cap: int) -> Measurement:
    """Return a replay that was cut because the queue grew without bound."""
    return measurement(cap, attainment=0.1, attainment_bound=0.4, goodput_rps=1.0, cut="hopeless")


def record(row: int = 0, **changes: Any) -> Requests:  # noqa: ANN401 - any field
    """Return a request of 10 + 5 tokens: first token after 1 s, then one every 0.5 s."""
    values: dict[str, Any] = {
        "row": row, "scored": True, "input_length": 10, "output_length": 5, "planned_s": 0.0,
        "sent_s": 0.0, "outcome": "ok", "end_s": 3.0, "output_tokens": 5, "first_s": 1.0,
        "last_s": 3.0, "tpot_s": 0.5, "queued_s": 0.0, "scheduled_s": 0.25,
        "engine_first_s": np.nan, "engine_last_s": np.nan, "cached_tokens": UNKNOWN,
        "gaps": 4,
    }  # fmt: skip
    values |= changes
    assert values.keys() == set(REQUEST.names or ())
    row_of = (np.nan if (value := values[name]) is None else value for name in REQUEST.names or ())
    return np.array([tuple(row_of)], REQUEST)


def rows_of(replay: Replay) -> list[SimpleNamespace]:
    """Return the requests of a replay, a name for each column, with what follows from them."""
    sent = replay.requests
    derived = {"ttft_s": ttft_s(sent), "e2el_s": e2el_s(sent), "queue_s": queue_s(sent)}
    columns = {name: sent[name] for name in REQUEST.names or ()} | derived
    return [
        SimpleNamespace(**{name: values[i].item() for name, values in columns.items()})
        for i in range(len(sent))
    ]


def iterations(rows: Sequence[dict[str, float]]) -> IterationLog:
    log = np.zeros(len(rows), ITERATION)
    for index, row in enumerate(rows):
        for name, value in row.items():
            log[name][index] = value
    return log


def replay_of(requests: Sequence[Requests], **changes: Any) -> Replay:  # noqa: ANN401 - any field
    """Return a whole replay of a 10 s window, at cap 4, without run-in."""
    rows = np.concatenate([np.zeros(0, REQUEST), *requests])
    values: dict[str, Any] = {
        "max_num_seqs": 4, "scored_from_s": 0.0, "window_s": 10.0, "elapsed_s": 10.0,
        "requests": rows, "gaps_s": np.full(rows["gaps"].sum(), 0.5),
        "iterations": iterations([]), "kv_blocks": 100,
    }  # fmt: skip
    return Replay(**{**values, **changes})


def request(row: int = 0, **changes: Any) -> TraceRequest:  # noqa: ANN401 - any field
    values: dict[str, Any] = {
        "row": row, "arrival_s": float(row), "input_length": 10, "output_length": 5,
    }  # fmt: skip
    return TraceRequest(**{**values, **changes})
