"""Requests like today's, drawn from a server's counters and the profile's requests. Pure, seeded.

Exact are the number of requests that arrived between two readings and the mean lengths. The stored
requests are drawn with weights that give today's share of every bucket of lengths (iterative
proportional fitting; Deming and Stephan, 1940), so that an output stays with its prompt. Times
between two readings are drawn.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from tuner.engines.scheduler.state import Ints
from tuner.live.prometheus import Histogram
from tuner.live.windows import Step, arrivals, total
from tuner.twin.simulation import Traffic

RAKES = 30
MOST_REQUESTS = 20_000
"""In a window and its run-in: of a server that claims more, so many are simulated."""

MOST_TOKENS = 10_000_000.0


def traffic_like(steps: Sequence[Step], stored: Traffic, *, seed: int) -> Traffic:
    """Return requests that arrive as those of these steps did, with lengths like theirs.

    Those in flight at the begin arrive before it, spread over the time that Little's law says they
    have been there.
    """
    rng = np.random.default_rng(seed)
    counts = np.minimum(arrivals(steps), MOST_REQUESTS // len(steps))
    begin_s, end_s = steps[0].begin_s, steps[-1].end_s
    waited = round(min(MOST_REQUESTS, steps[0].in_flight))
    rate_rps = max(1.0, float(counts.sum())) / (end_s - begin_s)
    times = [begin_s - rng.uniform(0, waited / rate_rps, waited)]
    times += [
        rng.uniform(each.begin_s, each.end_s, count)
        for each, count in zip(steps, counts.tolist(), strict=True)
    ]
    arrival_s = np.sort(np.concatenate(times))
    inputs, outputs = total(steps, "input_length"), total(steps, "output_length")
    rows = _rows_like(inputs, outputs, stored, len(arrival_s), rng)
    input_length = _with_mean(stored.input_length[rows], inputs)
    cached = (prefix_share(steps) or 0.0) * input_length
    output_length = _with_mean(stored.output_length[rows], outputs)
    return Traffic(arrival_s, input_length, output_length, cached.astype(np.int64))


def prefix_share(steps: Sequence[Step]) -> float | None:
    """Return the share of prompt tokens that came from the prefix cache; None without a count."""
    queried = sum(each.counters.get("prefix_cache_queries", 0.0) for each in steps)
    hit = sum(each.counters.get("prefix_cache_hits", 0.0) for each in steps)
    return min(1.0, hit / queried) if queried > 0 else None


def _rows_like(
    inputs: Histogram | None,
    outputs: Histogram | None,
    stored: Traffic,
    count: int,
    rng: Generator,
) -> Ints:
    """Return rows of stored requests in random order, with today's share in every bucket."""
    margins = [
        (
            np.searchsorted(histogram.bounds, lengths),
            np.diff(histogram.counts, prepend=0.0) / histogram.count,
        )
        for histogram, lengths in ((inputs, stored.input_length), (outputs, stored.output_length))
        if histogram is not None and histogram.count
    ]
    weight = np.ones(len(stored))
    for _ in range(RAKES):
        for bucket, share in margins:
            have = np.bincount(bucket, weight, minlength=len(share))
            weight *= np.divide(share, have, out=np.zeros(len(share)), where=have > 0)[bucket]
    if not weight.sum() > 0:  # all lengths are new
        weight = np.ones(len(stored))
    upto = np.cumsum(weight)
    at = (np.arange(count) + rng.random()) / max(1, count) * upto[-1]
    rows = np.minimum(np.searchsorted(upto, at, side="right"), len(stored) - 1)
    return np.asarray(rng.permutation(rows), np.int64)


def _with_mean(lengths: Ints, counted: Histogram | None) -> Ints:
    if counted is None or not counted.count or not len(lengths):
        return lengths
    scaled = lengths * (min(MOST_TOKENS, counted.mean) / lengths.mean())
    return np.asarray(np.clip(np.rint(scaled), 1, MOST_TOKENS), np.int64)
