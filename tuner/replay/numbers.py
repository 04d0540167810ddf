"""What one or more replays cost, in numbers. Pure. Definitions: docs/numbers.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tuner.engines.seam import IterationLog
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
class KvCacheUsage:
    """Share of the KV cache in use, 0 to 1, weighted by the time it was so."""

    mean: float
    p99: float
    peak: float


def kv_cache_usage(work: IterationLog, kv_blocks: int) -> KvCacheUsage | None:
    """Return the usage over time; None where the engine does not report it."""
    durations = work["duration_s"].astype(float)
    if not kv_blocks or not durations.sum() > 0:
        return None
    usage = work["kv_blocks_used"] / kv_blocks
    order = np.argsort(usage, kind="stable")
    until_s = np.cumsum(durations[order])
    place = int(np.searchsorted(until_s, 0.99 * until_s[-1] * (1 - 1e-12)))
    return KvCacheUsage(
        mean=float(np.average(usage, weights=durations)),
        p99=float(usage[order][place]),
        peak=float(usage.max()),
    )


def time_mean(work: IterationLog, name: str) -> float:
    """Return the mean of a column over busy time."""
    total = float(work["duration_s"].sum())
    return float(work[name] @ work["duration_s"]) / total if total else 0.0


def waiting_share(work: IterationLog, cap: int, *, full: bool) -> float:
    """Return the share of busy time in which a request waited with the cap full, or not full."""
    return _share(work, (work["waiting"] > 0) & ((work["running"] >= cap) == full))


def token_bound_share(work: IterationLog, cap: int, budget: int) -> float:
    """Return the share of busy time in which a request waited with the cap not full and all of the
    token budget spent; 0 where the budget is not known."""
    spent = (work["decode_seqs"] + work["prefill_tokens"] >= budget) & (budget > 0)
    return _share(work, (work["waiting"] > 0) & (work["running"] < cap) & spent)


def _share(work: IterationLog, chosen: Bools) -> float:
    total = float(work["duration_s"].sum())  # of all in another order it may be a bit less
    return min(1.0, float(work["duration_s"][chosen].sum()) / total) if total else 0.0


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
    cut: str | None
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
    """Return the five numbers, or None of nothing; NaN is nothing.

    Weighted percentiles interpolate between the shares of weight below each value and below the
    largest one, which with equal weights is the usual linear interpolation.

    >>> spread([1.0, 3.0]).p50
    2.0
    """
    array = np.asarray(values if isinstance(values, np.ndarray) else [*values], float)
    heavy = np.ones(array.size) if weights is None else np.asarray([*weights], float)
    known = ~np.isnan(array)
    array, heavy = array[known], heavy[known]
    if not array.size or not heavy.sum() > 0:
        return None
    percentiles = (percentile(array, heavy, rank) for rank in (0.50, 0.90, 0.95, 0.99))
    return Spread(float(np.average(array, weights=heavy)), *percentiles)


def percentile(values: Floats, weights: Floats, rank: float) -> float:
    """Return the value at a rank of 0 to 1, of values with weights that are not all 0."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order]
    places = below / below[-1] if below[-1] > 0 else below
    return float(np.interp(rank, places, values[order]))


def measure(replays: Sequence[Replay], slo: Slo) -> Measurement:
    """Return what these replays of one cap cost, pooled.

    A replay's requests and seconds count as often as its weight says, so that a few windows speak
    for the whole trace. Totals, such as preemptions, are what was counted.
    """
    parts = [_part(replay, slo) for replay in replays]
    weights = np.array([replay.weight for replay in replays])
    scored, good, possible, window_s, ended, tokens, span_s = (
        weights @ np.array([part.counts for part in parts], float)
    ).tolist()
    logged = np.concatenate([replay.iterations for replay in replays])
    work = np.concatenate([part.work for part in parts])
    seen = np.concatenate([part.seen for part in parts])
    heavy = np.repeat(weights, [len(part.seen) for part in parts])
    wanted = float(seen["output_length"].mean()) if len(seen) else 0.0
    cap, cut = replays[0].max_num_seqs, [replay for replay in replays if replay.cut]
    return Measurement(
        max_num_seqs=cap,
        blocks=len(replays),
        requests=sum(int(part.counts[0]) for part in parts),
        attainment=good / scored,
        attainment_bound=max(good, possible) / scored,
        arrival_rate_rps=scored / window_s,
        goodput_rps=good / window_s,
        offered_tokens_per_s=scored / window_s * wanted,
        requests_per_s=ended / span_s,
        output_tokens_per_s=tokens / span_s,
        ttft_s=spread(ttft_s(seen), heavy),
        tpot_s=spread(np.where(seen["outcome"] == "ok", seen["tpot_s"], np.nan), heavy),
        itl_s=spread(
            np.concatenate([part.gaps_s for part in parts]),
            np.repeat(weights, [len(part.gaps_s) for part in parts]),
        ),
        e2el_s=spread(e2el_s(seen), heavy),
        queue_s=spread(queue_s(seen), heavy),
        kv_cache_usage=kv_cache_usage(work, replays[0].kv_blocks),
        preemptions=int(logged["preemptions"].sum()),
        recomputed_tokens=int(logged["recomputed_tokens"].sum()),
        running_peak=int(work["running"].max(initial=0)),
        cap_bound_share=waiting_share(work, cap, full=True),
        kv_bound_share=waiting_share(work, cap, full=False),
        token_bound_share=token_bound_share(work, cap, replays[0].token_budget),
        in_flight_peak=max(
            most_at_once(replay.requests["planned_s"], replay.requests["end_s"])
            for replay in replays
        ),
        cut=cut[0].cut if cut else None,
        ruled_out=bool(cut)
        and all(each.ruled_out and not each.is_cut_under_another(slo) for each in cut),
    )


def most_at_once(begin_s: Floats, end_s: Floats) -> int:
    """Return the most that are under way at once; ends before starts."""
    times = np.concatenate((begin_s, end_s))
    changes = np.repeat((1, -1), (len(begin_s), len(end_s)))
    return int(np.cumsum(changes[np.lexsort((changes, times))]).max(initial=0))


class _Part(NamedTuple):
    """What one replay contributes."""

    seen: Requests
    """The requests that speed is measured on."""

    gaps_s: Floats
    work: IterationLog
    """The iterations of the span."""

    counts: tuple[float, ...]
    """Scored, good and possibly good requests, the window, and what ended in the span: requests and
    tokens; its seconds."""


def _part(replay: Replay, slo: Slo) -> _Part:
    """Return what one replay contributes.

    Throughput is counted over a span: the scored window, whichever request a token belongs to; of a
    cut replay everything until the cut. The tail, when nothing more is sent and the engine drains,
    is left out: production does not look like that.
    """
    requests, is_scored = replay.requests, replay.requests["scored"]
    is_seen = is_scored | bool(replay.cut)  # a cut one may not have come past its run-in
    begin_s = 0.0 if replay.cut else replay.scored_from_s
    end_s = replay.elapsed_s if replay.cut else begin_s + replay.window_s
    starts_s, ends_s = replay.iterations["start_s"], requests["end_s"]
    work = replay.iterations[(starts_s >= begin_s) & (starts_s < end_s)]
    scored = requests[is_scored]
    good = int(met(scored, slo).sum())
    total = max(1, len(scored) + replay.unsent)  # at least one, so that shares are defined
    waits = (scored["outcome"] == "cut") & ~broken(scored, replace(slo, tpot_s=None))
    bound = 1.0 if replay.is_cut_under_another(slo) else replay.attainment_bound
    possible = min(good + int(waits.sum()) + replay.unsent, bound * total)
    has_ended = (requests["outcome"] == "ok") & (begin_s <= ends_s) & (ends_s < end_s)
    tokens, span_s = _tokens(replay, work, begin_s, end_s), (end_s - begin_s) or 1e-9
    return _Part(
        requests[is_seen],
        replay.gaps_s[np.repeat(is_seen, requests["gaps"])],
        work,
        (total, good, possible, replay.window_s, int(has_ended.sum()), tokens, span_s),
    )


def _tokens(replay: Replay, work: IterationLog, begin_s: float, end_s: float) -> float:
    """Return the output tokens of a span: the first ones as clients saw them, the rest logged;
    where nothing is logged, evenly between each request's first and last."""
    first_s, last_s = replay.requests["first_s"], replay.requests["last_s"]
    if len(replay.iterations):
        firsts = (begin_s <= first_s) & (first_s < end_s)
        return float(firsts.sum() + work["decode_seqs"].sum())
    took_s = last_s - first_s
    inside_s = np.minimum(end_s, last_s) - np.maximum(begin_s, first_s)
    at_once = (begin_s <= last_s) & (last_s < end_s)  # the reply came whole
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(took_s > 0, np.clip(inside_s / took_s, 0.0, 1.0), at_once)
    return float(np.where(took_s >= 0, share * replay.requests["output_tokens"], 0.0).sum())
