"""Requests that fit what was scraped: as many, as long, and as many at a time. Pure, and seeded.

Exact between any two scrapes: how many requests finished and for which reason, how many tokens
their prompts and outputs had in all, and how many lay in each bucket. Exact at every scrape: how
many were in flight.

Drawn: when between two scrapes a request arrived, where within its bucket a length lies, and which
output goes with which prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from tuner.capture.history import EngineHistory, Floats, HistogramSeries, increases, restarted
from tuner.errors import TraceError
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row, Status

Ints = NDArray[np.int64]

HALVINGS = 60

MAX_REQUESTS = 10_000_000
"""Requests that a made-up trace has at most, this one or a schedule's: a day of a hundred a second.
A damaged number may ask for any."""

MAX_TOKENS = 1e15

STATUS: Mapping[str, Status] = {"abort": "aborted", "error": "error"}

MISSING = ("aborts", "errors", "ends", "hash_ids", "session_id", "n", "max_tokens")
"""Facts that no metric tells. vLLM does not count requests whose client left."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests of one engine, in order of arrival."""

    times_s: Floats
    """Seconds since 1970. Those in flight at the first scrape arrived before it."""

    input_length: Ints
    output_length: Ints
    reasons: tuple[str, ...]
    unfinished: int
    """In flight at the last scrape: their lengths are like the others', and not their own."""


def arrivals(engine: EngineHistory, rng: np.random.Generator) -> Arrivals:
    """Return requests that arrive and finish as this engine's did.

    Between two scrapes as many arrive as finish, and as many more as are then in flight. The k-th
    to arrive is taken for the k-th to finish.
    """
    finished = _finished(engine)
    in_flight = np.rint(engine.running + engine.waiting).astype(np.int64)
    before = np.where(restarted(engine), 0, in_flight[:-1])
    counts = _settled(finished + in_flight[1:] - before)
    starts_s, ends_s = engine.times_s[:-1].copy(), engine.times_s[1:]
    # Nobody arrives at a server that is down: what it has served since came in after its start.
    down = restarted(engine) & (ends_s - starts_s > 2 * engine.scrape_s)
    starts_s[down] = ends_s[down] - engine.scrape_s
    times = [_earlier(engine, finished, int(in_flight[0]), rng)]
    times += [
        rng.uniform(start_s, end_s, count)
        for start_s, end_s, count in zip(starts_s, ends_s, counts.tolist(), strict=True)
    ]
    times_s = np.sort(np.concatenate(times))
    inputs, outputs = _drawn(engine.input_length, rng), _drawn(engine.output_length, rng)
    reasons = _reasons(engine.finished, finished, rng)
    known = min(len(times_s), len(inputs), len(outputs), len(reasons))
    like = rng.integers(0, known, len(times_s) - known) if known else np.zeros(0, np.int64)
    chosen = np.concatenate((np.arange(known), like))
    return Arrivals(
        times_s=times_s[: len(chosen)],
        input_length=inputs[chosen],
        output_length=outputs[chosen],
        reasons=tuple(reasons[one] for one in chosen.tolist()),
        unfinished=len(like),
    )


def _check_plausible(engine: EngineHistory) -> None:
    """Refuse a history that cannot be true before anything is made of it."""
    histograms = (engine.input_length, engine.output_length)
    counted = [*engine.finished.values(), *(one.counts for one in histograms)]
    summed = [engine.running, engine.waiting, *(one.sums for one in histograms)]
    if min(float(one.min()) for one in (*counted, *summed)) < 0:
        raise TraceError(
            "a counter of requests is below zero", hint="Is another program's metric called vllm:?"
        )
    requests = max(
        float(np.max(engine.running + engine.waiting)),
        sum(float(increases(one).sum()) for one in engine.finished.values()),
        *(float(_per_bucket(one).sum()) for one in histograms),
    )
    if requests > MAX_REQUESTS or max(float(one.sums.max()) for one in histograms) > MAX_TOKENS:
        raise TraceError(
            f"{requests:,.0f} requests in that time, more than can be drawn here "
            f"({MAX_REQUESTS:,})",
            hint="Ask for less with --from and --to.",
        )


def _finished(engine: EngineHistory) -> Ints:
    total: Floats = np.sum([increases(counter) for counter in engine.finished.values()], axis=0)
    return np.rint(total).astype(np.int64)


def _settled(counts: Ints) -> Ints:
    """Return the counts without negative ones: these are taken from what follows.

    Clients that leave, and gauges and counters that are read a moment apart, make some.
    """
    upto = np.maximum.accumulate(np.maximum(0, np.cumsum(counts)))
    return np.diff(upto, prepend=0)


def _earlier(engine: EngineHistory, finished: Ints, count: int, rng: np.random.Generator) -> Floats:
    """Return when those arrived that were in flight at the first scrape: by Little's law within
    the last count / rate seconds."""
    rate = finished.sum() / (engine.times_s[-1] - engine.times_s[0])
    span_s = count / rate if rate > 0 else engine.scrape_s
    before_s: Floats = rng.uniform(0, span_s, count)
    return float(engine.times_s[0]) - before_s


def _reasons(
    by_reason: Mapping[str, Floats], finished: Ints, rng: np.random.Generator
) -> list[str]:
    """Return the finish reasons in the order of the scrapes, shuffled between two of them."""
    grown = {reason: np.rint(increases(counter)) for reason, counter in by_reason.items()}
    found: list[str] = []
    for place in range(len(finished)):
        some = [reason for reason, counts in grown.items() for _ in range(int(counts[place]))]
        found += [some[one] for one in rng.permutation(len(some)).tolist()]
    return found


def _drawn(lengths: HistogramSeries, rng: np.random.Generator) -> Ints:
    """Return a length for every request that finished, in the order of the scrapes."""
    uppers = np.array(lengths.bounds)
    lowers = np.concatenate(([0.0], uppers[:-1]))
    found = [
        _in_buckets(lowers, uppers, some, float(total), rng)
        for some, total in zip(
            _per_bucket(lengths).astype(np.int64), _since(lengths, lengths.sums), strict=True
        )
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _per_bucket(lengths: HistogramSeries) -> Floats:
    """Return how many lengths fell into each bucket between each two scrapes."""
    counts: Floats = np.diff(_since(lengths, lengths.counts), axis=1, prepend=0.0)
    whole: Floats = np.maximum(0, np.rint(counts))
    return whole


def _since(lengths: HistogramSeries, counter: Floats) -> Floats:
    """Return what came between each two scrapes; after a restart, which shows in the histogram's
    count, all of it."""
    fell = np.diff(lengths.counts[:, -1]) < 0
    grown = np.diff(counter, axis=0)
    grown[fell] = counter[1:][fell]
    return grown


def _in_buckets(
    lowers: Floats, uppers: Floats, counts: Ints, total: float, rng: np.random.Generator
) -> Ints:
    """Return ``counts`` lengths from each bucket that add up to ``total``, as near as they can.

    Positions within the buckets are uniform, raised to the one power that gives the total.
    """
    bucket = np.repeat(np.arange(len(counts)), counts)
    if not len(bucket):
        return np.zeros(0, np.int64)
    low = np.maximum(1, np.floor(lowers[bucket]) + 1)  # a bucket holds (lower, upper]
    high = _finite(low, np.floor(uppers[bucket]), total)
    part = rng.uniform(0, 1, len(bucket))
    power = _power(low, high - low, part, total)
    wanted = low + (high - low) * part**power
    # Whole numbers that keep the total: what rounding takes from one it gives to the next.
    ends = np.rint(np.cumsum(wanted))
    whole = np.clip(np.diff(ends, prepend=0.0), low, high).astype(np.int64)
    return whole[rng.permutation(len(whole))]


def _finite(low: Floats, high: Floats, total: float) -> Floats:
    """Give the endless last bucket an end: twice its begin, or what the total needs."""
    endless = np.isinf(high)
    if not endless.any():
        return np.maximum(low, high)
    finite = np.where(endless, 2 * low, np.maximum(low, high))
    short = total - finite.sum()
    if short > 0:
        finite = np.where(endless, finite + np.ceil(short / endless.sum()), finite)
    return finite


def _power(low: Floats, width: Floats, part: Floats, total: float) -> float:
    """Return the power of the positions that gives the total, by bisection on its logarithm."""
    least, most = -12.0, 12.0
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        if float((low + width * part ** np.exp2(middle)).sum()) > total:
            least = middle  # a larger power is a smaller length
        else:
            most = middle
    return float(np.exp2(least))


def trace_of(engines: Sequence[EngineHistory], *, seed: int) -> tuple[TraceHeader, list[Row]]:
    """Return the synthetic trace, rows in order of arrival.

    Raises TraceError for no request, and for more than a history can mean.
    """
    rng = np.random.default_rng(seed)
    for engine in engines:
        _check_plausible(engine)
    drawn = [arrivals(engine, rng) for engine in engines]
    firsts = [one.times_s[0] for one in drawn if len(one.times_s)]
    if not firsts:
        raise TraceError(
            "no request was in flight or finished in that time",
            hint="Choose a busier time with --from and --to.",
        )
    origin_s = float(min(firsts))
    replicas = _replicas(engines)
    rows = [
        row
        for replica, one in zip(replicas, drawn, strict=True)
        for row in _rows(one, origin_s, replica if max(replicas) > 0 else None)
    ]
    rows.sort(key=lambda row: row.timestamp)
    scrape_s = max(engine.scrape_s for engine in engines)
    unfinished = sum(one.unfinished for one in drawn)
    header = TraceHeader(
        source="prometheus",
        model=engines[0].labels.get("model_name"),
        time_origin=datetime.fromtimestamp(origin_s, UTC).isoformat(),
        time_resolution_ms=round(scrape_s * 1000, 3),
        replicas=max(replicas) + 1,
        rows_read=len(rows),
        rows_kept=len(rows),
        missing=MISSING,
        notes=(
            f"synthetic: drawn from Prometheus history, seed {seed}",
            f"scraped every {scrape_s:g} s: bursts within are unknown",
            f"{unfinished} requests were in flight at the end and have other requests' lengths",
        ),
    )
    return header, rows


def _replicas(engines: Sequence[EngineHistory]) -> list[int]:
    """Return a replica for each engine: one that took another's place gets the other's number."""
    until_s: list[float] = []
    found = [0] * len(engines)
    for place in sorted(range(len(engines)), key=lambda one: float(engines[one].times_s[0])):
        begin_s, end_s = (float(engines[place].times_s[edge]) for edge in (0, -1))
        free = [replica for replica, last_s in enumerate(until_s) if last_s < begin_s]
        if free:
            found[place] = free[0]
            until_s[free[0]] = end_s
        else:
            found[place] = len(until_s)
            until_s.append(end_s)
    return found


def _rows(drawn: Arrivals, origin_s: float, replica: int | None) -> list[Row]:
    return [
        Row(
            timestamp=round((float(drawn.times_s[place]) - origin_s) * 1000, 3),
            input_length=int(drawn.input_length[place]),
            output_length=int(drawn.output_length[place]),
            status=STATUS.get(reason, "ok"),
            finish_reason=reason or None,
            replica=replica,
        )
        for place, reason in enumerate(drawn.reasons)
    ]
