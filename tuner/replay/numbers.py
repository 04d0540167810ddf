"""What one or more replays cost, in numbers. Pure. Definitions: docs/numbers.md."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import IterationLog
from tuner.replay.records import Bools, Floats, Replay, e2el_s, met, queue_s, ttft_s
from tuner.traffic.slo import Slo


@dataclass(frozen=True, slots=True)
class KvCacheUsage:
    """Share of the KV cache in use, 0 to 1, weighted by the time it was so."""

    mean: float
    p99: float
    peak: float


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
    """The most that attainment could have been: equal to it unless cut."""

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
    """None where the engine did not report its iterations. What is counted in them
    (``preemptions``, ``running_peak``, …) is 0 then, and means not known."""

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


def measure(replays: Sequence[Replay], slo: Slo) -> Measurement:
    """Return what these replays of one cap cost, pooled.

    Throughput is counted over a span: the scored window, whichever request a token belongs to; of a
    cut replay everything until the cut. The tail, when nothing more is sent and the engine drains,
    is left out: production does not look like that.
    """
    cap, cuts = replays[0].max_num_seqs, [replay.cut for replay in replays if replay.cut]
    total, good, possible = counts_of(replays, slo)
    window_s = sum(replay.window_s for replay in replays)
    span_s = sum(each.elapsed_s if each.cut else each.window_s for each in replays) or 1e-9
    sent = np.concatenate([each.requests for each in replays])
    logged = np.concatenate([each.iterations for each in replays])
    work = np.concatenate([e.iterations[in_span(e, e.iterations["start_s"])] for e in replays])

    # a request of a cut replay may not have come past its run-in
    is_seen = np.concatenate([e.requests["scored"] | bool(e.cut) for e in replays])
    seen, gaps_s = sent[is_seen], np.concatenate([each.gaps_s for each in replays])
    wanted = float(seen["output_length"].mean()) if len(seen) else 0.0
    ended = np.concatenate([in_span(each, each.requests["end_s"]) for each in replays])
    ended &= sent["outcome"] == "ok"
    tokens = sent["output_tokens"][ended].sum()
    if len(logged):  # the first ones as clients saw them, the rest as computed
        firsts = sum(int(in_span(each, each.requests["first_s"]).sum()) for each in replays)
        tokens = firsts + work["decode_seqs"].sum()
    return Measurement(
        max_num_seqs=cap,
        blocks=len(replays),
        requests=total,
        attainment=good / total,
        attainment_bound=possible / total,
        arrival_rate_rps=total / window_s,
        goodput_rps=good / window_s,
        offered_tokens_per_s=total / window_s * wanted,
        requests_per_s=int(ended.sum()) / span_s,
        output_tokens_per_s=float(tokens) / span_s,
        ttft_s=spread(ttft_s(seen)),
        tpot_s=spread(seen["tpot_s"][seen["outcome"] == "ok"]),
        itl_s=spread(gaps_s[np.repeat(is_seen, sent["gaps"])]),
        e2el_s=spread(e2el_s(seen)),
        queue_s=spread(queue_s(seen)),
        kv_cache_usage=kv_cache_usage(work, replays[0].kv_blocks),
        preemptions=int(logged["preemptions"].sum()),
        recomputed_tokens=int(logged["recomputed_tokens"].sum()),
        running_peak=int(work["running"].max(initial=0)),
        in_flight_peak=max(
            most_at_once(each.requests["planned_s"], each.requests["end_s"]) for each in replays
        ),
        cut=cuts[0] if cuts else None,
        **bound_shares(work, cap, replays[0].token_budget),
    )


def counts_of(replays: Sequence[Replay], slo: Slo) -> tuple[int, int, float]:
    """Return how many requests are scored, met the SLO, and could have met it at most."""
    total, good, possible = 0, 0, 0.0
    for replay in replays:
        scored = replay.requests[replay.requests["scored"]]
        count, kept = len(scored) + replay.unsent, int(met(scored, slo).sum())
        bound = 1.0 if replay.is_cut_under_another(slo) else replay.attainment_bound
        total, good = total + count, good + kept
        possible += max(kept, bound * count) if replay.cut else kept
    return max(1, total), good, possible


def in_span(replay: Replay, times_s: Floats) -> Bools:
    """Return which times lie in the span in which throughput is counted; see ``measure``."""
    begin_s, end_s = replay.scored_from_s, replay.scored_from_s + replay.window_s
    if replay.cut:
        begin_s, end_s = 0.0, replay.elapsed_s
    return np.asarray((begin_s <= times_s) & (times_s < end_s))


def spread(values: Floats) -> Spread | None:
    """Return the five numbers, or None of nothing; NaN is nothing.

    >>> spread(np.array([1.0, 3.0])).p50
    2.0
    """
    known = values[~np.isnan(values)].astype(float)
    if not len(known):
        return None
    return Spread(float(known.mean()), *np.percentile(known, (50, 90, 95, 99)).tolist())


def kv_cache_usage(work: IterationLog, kv_blocks: int) -> KvCacheUsage | None:
    """Return the usage over time; None where the engine does not report it."""
    took_s = work["duration_s"]
    if not kv_blocks or not took_s.sum() > 0:
        return None
    usage = work["kv_blocks_used"] / kv_blocks
    p99 = np.quantile(usage, 0.99, weights=took_s, method="inverted_cdf")
    mean = float(np.average(usage, weights=took_s))
    return KvCacheUsage(mean, p99=float(p99), peak=float(usage.max()))


def bound_shares(work: IterationLog, cap: int, token_budget: int) -> dict[str, float]:
    """Return the shares of busy time in which a request waited, by the names of Measurement: with
    the cap full, or not full; and the part of the latter with all of the token budget spent, 0
    where that is not known."""
    is_full, took_s = work["running"] >= cap, work["duration_s"]
    spent = (work["decode_seqs"] + work["prefill_tokens"] >= token_budget) & (token_budget > 0)
    waits_s = np.where(work["waiting"] > 0, took_s, 0.0) / max(took_s.sum(), 1e-9)
    binding = {"cap": is_full, "kv": ~is_full, "token": ~is_full & spent}
    # of all in another order the sum may be a bit more
    return {f"{k}_bound_share": min(1.0, float(waits_s[v].sum())) for k, v in binding.items()}


def most_at_once(begin_s: Floats, end_s: Floats) -> int:
    """Return the most that are under way at once; ends before starts."""
    times_s = np.concatenate((begin_s, end_s))
    changes = np.repeat((1, -1), (len(begin_s), len(end_s)))
    return int(np.cumsum(changes[np.lexsort((changes, times_s))]).max(initial=0))
