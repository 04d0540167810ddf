"""Records and iterations → what one or more replays cost. Pure. Definitions: docs/measuring.md."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import IterationLog
from tuner.errors import GeneratorLateError
from tuner.iterations import (
    BatchTime,
    KvCacheUsage,
    batch_times,
    joined,
    kv_cache_usage,
    time_mean,
    waiting_share,
)
from tuner.records import DEVICE, DeviceLog, Replay, RequestRecord
from tuner.slo import Slo

MIN_LAG_LIMIT_S = 0.005
LAG_SHARE_OF_ITL = 0.10
IDLE = 0.05


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in five numbers, in seconds. Percentiles interpolate linearly."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What readings of the device say, one a second; None where it does not tell."""

    utilisation_mean: float | None
    """Share of time busy: of the GPUs, or of all CPU cores."""

    utilisation_sd: float | None
    idle_share: float | None
    """Share of the readings in which it was less than 5 % busy."""

    memory_peak_bytes: float | None
    power_mean_w: float | None
    others_mean: float | None
    """Share of the CPU cores that other processes took."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one cap cost over one replay, or over several pooled. Times in seconds."""

    max_num_seqs: int
    blocks: int
    requests: int
    """Scored requests, sent or not."""

    completed: int
    aborted: int
    failed: int
    attainment: float
    """Good / scored requests. Of a cut replay: what was certain when it was cut, a lower bound."""

    attainment_bound: float
    """The most it could have been: equal to attainment unless cut."""

    arrival_rate_rps: float
    goodput_rps: float
    offered_tokens_per_s: float
    """Output tokens per second that the scored requests ask for."""

    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    e2el_s: Spread | None
    queue_s: Spread | None
    batch_times: tuple[BatchTime, ...]
    kv_cache_usage: KvCacheUsage | None
    preemptions: int
    recomputed_tokens: int
    prefix_cache_hit_rate: float
    """Prompt tokens found in the prefix cache / prompt tokens of the requests."""

    running_mean: float
    running_peak: int
    waiting_peak: int
    cap_bound_share: float
    """Share of busy time in which the cap was full and a request waited."""

    kv_bound_share: float
    """Share of busy time in which a request waited although the cap was not full."""

    in_flight_peak: int
    lag_p99_s: float
    merged_share: float
    """Outputs that we read too late to time singly / all outputs."""

    cut: str | None
    device: DeviceUse | None
    ruled_out: bool
    """Whether arithmetic alone ruled the cap out, so that no luck of the machine is in it."""


def spread(values: Iterable[float]) -> Spread | None:
    """Return the five numbers, or None of nothing.

    >>> spread([1.0, 3.0]).p50
    2.0
    """
    array = np.fromiter(values, float)
    if not array.size:
        return None
    return Spread(float(array.mean()), *(float(q) for q in np.percentile(array, (50, 90, 95, 99))))


def measure(blocks: Sequence[Replay], slo: Slo) -> Measurement:
    """Return what these replays of one cap cost, pooled: percentiles over all their requests."""
    assert blocks
    scored = [record for block in blocks for record in block.records if record.scored]
    seen = [record for block in blocks for record in _seen(block)]
    done = [record for record in seen if record.outcome == "ok"]
    unsent = sum(block.unsent for block in blocks)
    total = max(1, len(scored) + unsent)
    good = sum(record.meets(slo) for record in scored)
    undecided = unsent + sum(_undecided(record, slo) for record in scored)
    window_s = sum(block.window_s for block in blocks)
    span_s = sum(end_s - begin_s for begin_s, end_s in map(_span, blocks)) or 1e-9
    work = joined(block.iterations for block in blocks)
    scored_work = joined(_scored_iterations(block) for block in blocks)
    outputs = sum(len(record.itl_s) + 1 for record in seen if record.output_tokens)
    tokens = sum(_tokens(block) for block in blocks)
    prompts = sum(record.input_length for record in done)
    return Measurement(
        max_num_seqs=blocks[0].max_num_seqs,
        blocks=len(blocks),
        requests=total,
        completed=len(done),
        aborted=sum(record.outcome == "aborted" for record in seen),
        failed=sum(record.outcome == "failed" for record in seen),
        attainment=good / total,
        attainment_bound=max(
            good / total,
            min((good + undecided) / total, *(block.attainment_bound for block in blocks)),
        ),
        arrival_rate_rps=total / window_s,
        goodput_rps=good / window_s,
        offered_tokens_per_s=total / window_s * _mean_output(seen),
        requests_per_s=sum(_ended(block) for block in blocks) / span_s,
        output_tokens_per_s=tokens / span_s,
        total_tokens_per_s=(tokens + int(scored_work["prefill_tokens"].sum())) / span_s,
        ttft_s=spread(record.ttft_s for record in seen if record.ttft_s is not None),
        tpot_s=spread(record.tpot_s for record in done if record.tpot_s is not None),
        itl_s=spread(gap for record in seen for gap in record.itl_s),
        e2el_s=spread(record.e2el_s for record in done if record.e2el_s is not None),
        queue_s=spread(record.queue_s for record in seen if record.queue_s is not None),
        batch_times=batch_times(work),
        kv_cache_usage=kv_cache_usage(scored_work, blocks[0].kv_blocks),
        preemptions=int(work["preemptions"].sum()),
        recomputed_tokens=int(work["recomputed_tokens"].sum()),
        prefix_cache_hit_rate=sum(record.cached_tokens for record in done) / max(1, prompts),
        running_mean=time_mean(scored_work, "running"),
        running_peak=int(scored_work["running"].max(initial=0)),
        waiting_peak=int(scored_work["waiting"].max(initial=0)),
        cap_bound_share=waiting_share(scored_work, blocks[0].max_num_seqs, full=True),
        kv_bound_share=waiting_share(scored_work, blocks[0].max_num_seqs, full=False),
        in_flight_peak=max(in_flight_peak(block.records) for block in blocks),
        lag_p99_s=_lag_p99_s(blocks),
        merged_share=sum(record.merged_outputs for record in seen) / max(1, outputs),
        cut=next((block.cut for block in blocks if block.cut), None),
        device=device_use([block.device for block in blocks]),
        ruled_out=all(block.ruled_out for block in blocks),
    )


def device_use(logs: Sequence[DeviceLog]) -> DeviceUse | None:
    """Return what the readings of several replays say together; None without readings."""
    log = np.concatenate(list(logs))
    if not len(log):
        return None
    known = {name: log[name][~np.isnan(log[name])] for name in DEVICE.names or ()}

    def over(name: str, statistic: Callable[[NDArray[np.float64]], Any]) -> float | None:
        return float(statistic(known[name])) if len(known[name]) else None

    return DeviceUse(
        utilisation_mean=over("utilisation", np.mean),
        utilisation_sd=over("utilisation", np.std),
        idle_share=over("utilisation", lambda busy: np.mean(busy < IDLE)),
        memory_peak_bytes=over("memory_bytes", np.max),
        power_mean_w=over("power_w", np.mean),
        others_mean=over("others", np.mean),
    )


def in_flight_peak(records: Iterable[RequestRecord]) -> int:
    """Return the most requests between their planned time and their end; ends before starts."""
    events = sorted(
        event for record in records for event in ((record.planned_s, 1), (record.end_s, -1))
    )
    count = peak = 0
    for _, change in events:
        count += change
        peak = max(peak, count)
    return peak


def check_generator(blocks: Sequence[Replay]) -> None:
    """Refuse replays whose requests left late: their numbers describe us and not the engine.

    Raises GeneratorLateError when the p99 lag exceeds max(5 ms, 10 % of the median ITL).
    """
    gaps = [gap for block in blocks for record in block.records for gap in record.itl_s]
    limit_s = max(MIN_LAG_LIMIT_S, LAG_SHARE_OF_ITL * float(np.median(gaps)) if gaps else 0.0)
    p99_s = _lag_p99_s(blocks)
    if p99_s > limit_s:
        raise GeneratorLateError(
            f"max_num_seqs={blocks[0].max_num_seqs}: requests left late "
            f"(p99 lag {p99_s * 1e3:.1f} ms, limit {limit_s * 1e3:.1f} ms)",
            hint="Give tuner a core of its own, or stop what else runs here; then --resume.",
        )


def _undecided(record: RequestRecord, slo: Slo) -> bool:
    """Whether a request that was cut could still have met the SLO."""
    if record.outcome != "cut":
        return False
    ttft_s = record.ttft_s if record.ttft_s is not None else record.end_s - record.planned_s
    return slo.met_by(
        input_length=record.input_length,
        ttft_s=ttft_s,
        tpot_s=None,
        e2el_s=record.end_s - record.planned_s,
    )


def _seen(block: Replay) -> Sequence[RequestRecord]:
    """Return the records that speed is measured on: the scored ones; of a cut replay all of them,
    because it may not have come past its run-in."""
    return block.records if block.cut else [one for one in block.records if one.scored]


def _span(block: Replay) -> tuple[float, float]:
    """Return from when to when throughput is counted: the scored window, whoever's tokens came out
    in it; of a cut replay everything until the cut."""
    if block.cut:
        return 0.0, block.elapsed_s
    return block.scored_from_s, block.scored_from_s + block.window_s


def _mean_output(records: Sequence[RequestRecord]) -> float:
    asked = [one.output_length for one in records]
    return sum(asked) / len(asked) if asked else 0.0


def _ended(block: Replay) -> int:
    """Return how many requests, of the run-in too, were finished in that span."""
    begin_s, end_s = _span(block)
    return sum(one.outcome == "ok" and begin_s <= one.end_s < end_s for one in block.records)


def _tokens(block: Replay) -> int:
    """Return the output tokens of that span: the first ones as we saw them, the rest logged."""
    begin_s, end_s = _span(block)
    firsts = sum(
        one.first_token_s is not None and begin_s <= one.first_token_s < end_s
        for one in block.records
    )
    return firsts + int(_scored_iterations(block)["decode_seqs"].sum())


def _scored_iterations(block: Replay) -> IterationLog:
    """Return the iterations of that span: the tail, when the engine drains because nothing more is
    sent, is not what production looks like."""
    begin_s, end_s = _span(block)
    starts = block.iterations["start_s"]
    return block.iterations[(starts >= begin_s) & (starts < end_s)]


def _lag_p99_s(blocks: Sequence[Replay]) -> float:
    lags = [record.lag_s for block in blocks for record in block.records]
    return float(np.percentile(lags, 99)) if lags else 0.0
