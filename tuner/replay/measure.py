"""What one or more replays cost, in numbers. Pure. Definitions: docs/numbers.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.seam import IterationLog
from tuner.replay.device_use import DeviceUse, device_use
from tuner.replay.iterations import (
    BatchTime,
    KvCacheUsage,
    batch_times,
    joined,
    kv_cache_usage,
    token_bound_share,
    waiting_share,
)
from tuner.replay.records import (
    Bools,
    Floats,
    Replay,
    Requests,
    broken,
    e2el_s,
    met,
    queue_s,
    ttft_s,
)
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
    running_peak: int
    cap_bound_share: float
    """Share of busy time in which the cap was full and a request waited."""

    kv_bound_share: float
    """Share of busy time in which a request waited although the cap was not full."""

    token_bound_share: float
    """The part of it in which the iteration had spent the token budget; the rest is memory."""

    in_flight_peak: int
    lag_p99_s: float
    cut: str | None
    device: DeviceUse | None
    ruled_out: bool
    """Whether arithmetic alone ruled the cap out, so that the machine has no part in it."""

    @property
    def is_logged(self) -> bool:
        """Whether the engine reported its iterations.

        Otherwise what is counted in them (``preemptions``, ``running_peak``, …) is 0 here, and
        means not known.
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
    ranks = (0.50, 0.90, 0.95, 0.99)
    percentiles = (percentile(array, heavy, rank) for rank in ranks)
    return Spread(float(np.average(array, weights=heavy)), *percentiles)


def percentile(values: Floats, weights: Floats, rank: float) -> float:
    """Return the value at a rank of 0 to 1, of values with weights that are not all 0."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order]
    places = below / below[-1] if below[-1] > 0 else below
    return float(np.interp(rank, places, values[order]))


def _floats(values: Iterable[float]) -> Floats:
    return values if isinstance(values, np.ndarray) else np.fromiter(values, float)


def measure(replays: Sequence[Replay], slo: Slo) -> Measurement:
    """Return what these replays of one cap cost, pooled.

    A replay's requests and seconds count as often as its weight says, so that a few windows speak
    for the whole trace. Totals, such as preemptions, are what was counted.
    """
    assert replays
    counts = [_counts(one, slo) for one in replays]
    scored, good, possible, window_s, ended, tokens, span_s = (
        float(total) for total in np.array([one.weight for one in replays]) @ np.array(counts)
    )
    seen = [_seen(one) for one in replays]
    asked = np.concatenate([one["output_length"] for one in seen])
    work = joined(one.iterations for one in replays)
    scored_work = joined(map(_scored_iterations, replays))
    cap, cut = replays[0].max_num_seqs, [one for one in replays if one.cut]

    def over(values: Iterable[Floats]) -> Spread | None:
        """Return the spread of what the requests have, each as heavy as its replay."""
        found = [one[~np.isnan(one)] for one in values]
        heavy = np.repeat([one.weight for one in replays], [len(one) for one in found])
        return spread(np.concatenate(found), heavy)

    return Measurement(
        max_num_seqs=cap,
        blocks=len(replays),
        requests=sum(int(one[0]) for one in counts),
        attainment=good / scored,
        attainment_bound=max(good, possible) / scored,
        arrival_rate_rps=scored / window_s,
        goodput_rps=good / window_s,
        offered_tokens_per_s=scored / window_s * (float(asked.mean()) if len(asked) else 0.0),
        requests_per_s=ended / span_s,
        output_tokens_per_s=tokens / span_s,
        ttft_s=over(map(ttft_s, seen)),
        tpot_s=over(one["tpot_s"][one["outcome"] == "ok"] for one in seen),
        itl_s=over(map(_gaps_s, replays)),
        e2el_s=over(map(e2el_s, seen)),
        queue_s=over(map(queue_s, seen)),
        batch_times=batch_times(work),
        kv_cache_usage=kv_cache_usage(scored_work, replays[0].kv_blocks),
        preemptions=int(work["preemptions"].sum()),
        recomputed_tokens=int(work["recomputed_tokens"].sum()),
        running_peak=int(scored_work["running"].max(initial=0)),
        cap_bound_share=waiting_share(scored_work, cap, full=True),
        kv_bound_share=waiting_share(scored_work, cap, full=False),
        token_bound_share=token_bound_share(scored_work, cap, replays[0].token_budget),
        in_flight_peak=max(
            most_at_once(one.requests["planned_s"], one.requests["end_s"]) for one in replays
        ),
        lag_p99_s=lag_p99_s(replays),
        cut=cut[0].cut if cut else None,
        device=device_use([one.device for one in replays]),
        ruled_out=bool(cut)
        and all(one.ruled_out and not one.is_cut_under_another(slo) for one in cut),
    )


def lag_p99_s(replays: Sequence[Replay]) -> float:
    """Return the 99th percentile of how late requests left, in seconds."""
    lags = np.concatenate([one.requests["sent_s"] - one.requests["planned_s"] for one in replays])
    return float(np.percentile(lags, 99)) if len(lags) else 0.0


def most_at_once(begin_s: Floats, end_s: Floats) -> int:
    """Return the most that are under way at once; ends before starts."""
    times = np.concatenate((begin_s, end_s))
    changes = np.repeat((1, -1), (len(begin_s), len(end_s)))
    return int(np.cumsum(changes[np.lexsort((changes, times))]).max(initial=0))


def _counts(one: Replay, slo: Slo) -> tuple[float, ...]:
    """Return, of one replay, its scored requests (at least one, so that shares are defined), the
    good ones, the most that could have been good, the seconds of its window; and of the span over
    which throughput is counted the requests that ended, the output tokens, and the seconds."""
    scored = one.requests[one.requests["scored"]]
    good = int(met(scored, slo).sum())
    total = max(1, len(scored) + one.unsent)
    waits = (scored["outcome"] == "cut") & ~broken(scored, replace(slo, tpot_s=None))
    open_ = int(waits.sum()) + one.unsent
    bound = 1.0 if one.is_cut_under_another(slo) else one.attainment_bound
    begin_s, end_s = _span(one)
    ends_s = one.requests["end_s"]
    ended = (one.requests["outcome"] == "ok") & (begin_s <= ends_s) & (ends_s < end_s)
    return (
        total,
        good,
        min(good + open_, bound * total),
        one.window_s,
        int(ended.sum()),
        _tokens(one, begin_s, end_s),
        (end_s - begin_s) or 1e-9,
    )


def _is_seen(one: Replay) -> Bools:
    """Return which requests speed is measured on: the scored ones. Of a cut replay all of them,
    because it may not have come past its run-in."""
    scored: Bools = one.requests["scored"]
    return np.ones(len(scored), bool) if one.cut else scored


def _seen(one: Replay) -> Requests:
    return one.requests[_is_seen(one)]


def _gaps_s(one: Replay) -> Floats:
    return one.gaps_s[np.repeat(_is_seen(one), one.requests["gaps"])]


def _span(one: Replay) -> tuple[float, float]:
    """Return the span over which throughput is counted: the scored window, whichever request a
    token belongs to; of a cut replay everything until the cut."""
    if one.cut:
        return 0.0, one.elapsed_s
    return one.scored_from_s, one.scored_from_s + one.window_s


def _tokens(one: Replay, begin_s: float, end_s: float) -> int:
    """Return the output tokens of a span: the first ones as clients saw them, the rest
    logged; where nothing is logged, evenly between each request's first and last."""
    first_s, last_s = one.requests["first_s"], one.requests["last_s"]
    if len(one.iterations):
        firsts = int(((begin_s <= first_s) & (first_s < end_s)).sum())
        return firsts + int(_scored_iterations(one)["decode_seqs"].sum())
    took_s = last_s - first_s
    inside_s = np.minimum(end_s, last_s) - np.maximum(begin_s, first_s)
    at_once = (begin_s <= last_s) & (last_s < end_s)  # the reply came whole
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(took_s > 0, np.clip(inside_s / took_s, 0.0, 1.0), at_once)
    return round(float(np.where(took_s >= 0, share * one.requests["output_tokens"], 0.0).sum()))


def _scored_iterations(one: Replay) -> IterationLog:
    """Return the iterations of the span. The tail, when nothing more is sent and the engine
    drains, is left out: production does not look like that."""
    begin_s, end_s = _span(one)
    starts_s = one.iterations["start_s"]
    return one.iterations[(starts_s >= begin_s) & (starts_s < end_s)]
