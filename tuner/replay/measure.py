"""Records and iterations → what one or more replays cost. Pure. Definitions: docs/numbers.md."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import IterationLog
from tuner.replay.device_use import DeviceUse, device_use
from tuner.replay.iterations import (
    BatchTime,
    KvCacheUsage,
    batch_times,
    joined,
    kv_cache_usage,
    time_mean,
    token_bound_share,
    waiting_share,
)
from tuner.replay.records import Replay, RequestRecord
from tuner.traffic.slo import Slo


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in five numbers, in seconds. Percentiles interpolate linearly."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The numbers of one cap over one replay, or over several pooled. Times in seconds."""

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
    """The most that attainment could have been: equal to it unless cut. Of a replay that was cut
    because of another SLO: what its requests alone leave open."""

    arrival_rate_rps: float
    goodput_rps: float
    offered_tokens_per_s: float
    """Output tokens per second that the scored requests ask for."""

    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    e2el_s: Spread | None
    queue_s: Spread | None
    batch_times: tuple[BatchTime, ...]
    kv_cache_usage: KvCacheUsage | None
    preemptions: int
    recomputed_tokens: int
    running_mean: float
    running_peak: int
    cap_bound_share: float
    """Share of busy time in which the cap was full and a request waited."""

    kv_bound_share: float
    """Share of busy time in which a request waited although the cap was not full."""

    token_bound_share: float
    """The part of it in which the iteration had spent the token budget; the rest is memory."""

    in_flight_peak: int
    lag_p99_s: float
    merged_share: float
    """Output tokens that came together with others, too late to time singly / all of them."""

    cut: str | None
    device: DeviceUse | None
    ruled_out: bool
    """Whether arithmetic alone ruled the cap out, so that the machine has no part in it."""

    @property
    def is_logged(self) -> bool:
        """Whether the engine told its iterations.

        Where only its clients tell, what would be counted in them (``preemptions``,
        ``running_peak``, …) is 0 here, and means not known.
        """
        return self.kv_cache_usage is not None


def spread(values: Iterable[float], weights: Iterable[float] | None = None) -> Spread | None:
    """Return the five numbers, or None of nothing.

    Weighted percentiles interpolate between the shares of weight below each value and below the
    largest one, which with equal weights is the usual linear interpolation.

    >>> spread([1.0, 3.0]).p50
    2.0
    """
    array = _floats(values)
    if not array.size:
        return None
    heavy = np.ones(array.size) if weights is None else _floats(weights)
    if not heavy.sum() > 0:
        return None
    order = np.argsort(array, kind="stable")
    array, heavy = array[order], heavy[order]
    below = np.cumsum(heavy) - heavy
    places = below / below[-1] if below[-1] > 0 else below
    percentiles = np.interp((0.50, 0.90, 0.95, 0.99), places, array)
    return Spread(float(np.average(array, weights=heavy)), *(float(q) for q in percentiles))


def _floats(values: Iterable[float]) -> NDArray[np.float64]:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, float)


def measure(blocks: Sequence[Replay], slo: Slo) -> Measurement:
    """Return what these replays of one cap cost, pooled.

    A replay's requests and seconds count as often as its weight says, so that a few windows speak
    for the whole trace. Totals, such as preemptions, are what was counted.
    """
    assert blocks
    counts = [_Counts.of(block, slo) for block in blocks]
    weights = [block.weight for block in blocks]

    def total(name: str) -> float:
        values = (getattr(one, name) for one in counts)
        return float(sum(w * value for w, value in zip(weights, values, strict=True)))

    over = partial(_over, blocks)
    seen = [record for block in blocks for record in _seen(block)]
    done = [record for record in seen if record.outcome == "ok"]
    scored = total("scored")
    work = joined(block.iterations for block in blocks)
    scored_work = joined(_scored_iterations(block) for block in blocks)
    cap, cut = blocks[0].max_num_seqs, [block for block in blocks if block.cut]
    return Measurement(
        max_num_seqs=cap,
        blocks=len(blocks),
        requests=sum(one.scored for one in counts),
        completed=len(done),
        aborted=sum(record.outcome == "aborted" for record in seen),
        failed=sum(record.outcome == "failed" for record in seen),
        attainment=total("good") / scored,
        attainment_bound=max(total("good"), total("possible")) / scored,
        arrival_rate_rps=scored / total("window_s"),
        goodput_rps=total("good") / total("window_s"),
        offered_tokens_per_s=scored / total("window_s") * _mean_output(seen),
        requests_per_s=total("ended") / total("span_s"),
        output_tokens_per_s=total("tokens") / total("span_s"),
        ttft_s=over(lambda one: _single(one.ttft_s)),
        tpot_s=over(lambda one: _single(one.tpot_s), only_done=True),
        itl_s=over(lambda one: one.itl_s),
        e2el_s=over(lambda one: _single(one.e2el_s), only_done=True),
        queue_s=over(lambda one: _single(one.queue_s)),
        batch_times=batch_times(work),
        kv_cache_usage=kv_cache_usage(scored_work, blocks[0].kv_blocks),
        preemptions=int(work["preemptions"].sum()),
        recomputed_tokens=int(work["recomputed_tokens"].sum()),
        running_mean=time_mean(scored_work, "running"),
        running_peak=int(scored_work["running"].max(initial=0)),
        cap_bound_share=waiting_share(scored_work, cap, full=True),
        kv_bound_share=waiting_share(scored_work, cap, full=False),
        token_bound_share=token_bound_share(scored_work, cap, blocks[0].token_budget),
        in_flight_peak=max(in_flight_peak(block.records) for block in blocks),
        lag_p99_s=lag_p99_s(blocks),
        merged_share=sum(one.merged_outputs for one in seen)
        / max(1, sum(one.output_tokens for one in seen)),
        cut=cut[0].cut if cut else None,
        device=device_use([block.device for block in blocks]),
        ruled_out=bool(cut)
        and all(one.ruled_out and not one.is_cut_under_another(slo) for one in cut),
    )


def lag_p99_s(replays: Sequence[Replay]) -> float:
    """Return the 99th percentile of how late requests left, in seconds."""
    lags = [record.lag_s for one in replays for record in one.records]
    return float(np.percentile(lags, 99)) if lags else 0.0


def _over(
    blocks: Sequence[Replay],
    values_of: Callable[[RequestRecord], Iterable[float]],
    *,
    only_done: bool = False,
) -> Spread | None:
    """Return the spread of what the requests have, each as heavy as its replay.

    In arrays: a long replay has millions of gaps between outputs.
    """
    found = [
        np.fromiter(
            chain.from_iterable(
                values_of(record)
                for record in _seen(block)
                if record.outcome == "ok" or not only_done
            ),
            float,
        )
        for block in blocks
    ]
    weights = np.repeat([block.weight for block in blocks], [len(one) for one in found])
    return spread(np.concatenate(found), weights)


def _single(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


@dataclass(frozen=True, slots=True)
class _Counts:
    """The counts of one replay."""

    scored: int
    """Requests, sent or not; at least one, so that shares are defined."""

    good: int
    possible: float
    """The most that could have been good."""

    ended: int
    tokens: int
    window_s: float
    span_s: float

    @classmethod
    def of(cls, block: Replay, slo: Slo) -> "_Counts":
        records = [record for record in block.records if record.scored]
        good = sum(record.meets(slo) for record in records)
        scored = max(1, len(records) + block.unsent)
        undecided = block.unsent + sum(_undecided(record, slo) for record in records)
        bound = 1.0 if block.is_cut_under_another(slo) else block.attainment_bound
        begin_s, end_s = _span(block)
        return cls(
            scored=scored,
            good=good,
            possible=min(good + undecided, bound * scored),
            ended=_ended(block),
            tokens=_tokens(block),
            window_s=block.window_s,
            span_s=(end_s - begin_s) or 1e-9,
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
    """Return the records that speed is measured on: the scored ones. Of a cut replay all of them,
    because it may not have come past its run-in."""
    return block.records if block.cut else [one for one in block.records if one.scored]


def _span(block: Replay) -> tuple[float, float]:
    """Return the span over which throughput is counted: the scored window, whichever request a
    token belongs to; of a cut replay everything until the cut."""
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
    """Return the output tokens of that span: the first ones as we saw them, the rest logged; where
    nothing is logged, evenly between each request's first and last."""
    begin_s, end_s = _span(block)
    if not len(block.iterations):
        return round(sum(_tokens_in(one, begin_s, end_s) for one in block.records))
    firsts = sum(
        one.first_token_s is not None and begin_s <= one.first_token_s < end_s
        for one in block.records
    )
    return firsts + int(_scored_iterations(block)["decode_seqs"].sum())


def _tokens_in(one: RequestRecord, begin_s: float, end_s: float) -> float:
    if one.first_token_s is None or one.last_token_s is None:
        return 0.0
    took_s = one.last_token_s - one.first_token_s
    if took_s <= 0:  # the reply came whole
        return one.output_tokens * float(begin_s <= one.last_token_s < end_s)
    inside_s = min(end_s, one.last_token_s) - max(begin_s, one.first_token_s)
    return one.output_tokens * min(1.0, max(0.0, inside_s / took_s))


def _scored_iterations(block: Replay) -> IterationLog:
    """Return the iterations of that span. The tail, when nothing more is sent and the engine
    drains, is left out: production does not look like that."""
    begin_s, end_s = _span(block)
    starts = block.iterations["start_s"]
    return block.iterations[(starts >= begin_s) & (starts < end_s)]
