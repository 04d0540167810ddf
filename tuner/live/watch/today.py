"""Requests like today's: as many and as long as the server counted, else like those of the profile.
Pure, and seeded.

Exact are the number of requests that arrived between two scrapes, the number of lengths in each
bucket of the server's histograms, and their sums. The stored requests say where within its bucket a
length lies, and which output goes with which prompt: their table of buckets is raked to today's
margins (iterative proportional fitting; Deming and Stephan, 1940). Times between two scrapes are
drawn.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, Ints
from tuner.live.prometheus import Histogram
from tuner.live.watch.windows import ScrapeStep, total
from tuner.twin.simulation import Traffic

RAKES = 30
HALVINGS = 40
MOST_REQUESTS = 20_000
"""In a window and its run-in: a server that claims more is asked about so many."""

MOST_TOKENS = 10_000_000.0
MIXED = 0.02
"""Share of the raked table that is independent of the stored one, so that no pair of buckets is
impossible."""


def arrivals(steps: Sequence[ScrapeStep]) -> Ints:
    """Return how many requests arrived in each step, those whose client left included.

    A request that got its first token no longer waits. So as many arrive as get one, and as many as
    wait more than before. Where a server does not count first tokens, it is those that finish, and
    those that are in flight more than before. Gauges that are read a moment apart make negative
    counts: these are taken from what follows.
    """
    counts = []
    waiting = None
    for one in steps:
        first = one.distributions.get("ttft_s")
        if first is not None and waiting is not None and not one.restarted:
            counts.append(first.count + one.waiting - waiting)
        else:
            counts.append(one.finished + one.running + one.waiting - one.in_flight)
        waiting = one.waiting
    whole = np.rint(np.clip(counts, -MOST_REQUESTS, MOST_REQUESTS)).astype(np.int64)
    upto = np.maximum.accumulate(np.maximum(0, np.cumsum(whole)))
    return np.diff(upto, prepend=0)


def hit_share(steps: Sequence[ScrapeStep]) -> float:
    """Return the share of prompt tokens that the prefix cache gave."""
    queried = sum(one.counters.get("prefix_cache_queries", 0.0) for one in steps)
    hit = sum(one.counters.get("prefix_cache_hits", 0.0) for one in steps)
    return min(1.0, hit / queried) if queried > 0 else 0.0


def traffic_like(steps: Sequence[ScrapeStep], stored: Traffic, *, seed: int) -> Traffic:
    """Return requests that arrive as those of these steps did, with lengths like theirs.

    Those in flight at the begin arrive before it, spread over the time that Little's law says they
    have been there.
    """
    rng = np.random.default_rng(seed)
    counts = arrivals(steps)
    counts = np.minimum(counts, MOST_REQUESTS // len(steps))
    begin_s = steps[0].begin_s
    waited = round(min(MOST_REQUESTS, max(0.0, steps[0].in_flight)))
    span_s = steps[-1].end_s - begin_s
    rate = max(1.0, float(counts.sum())) / span_s
    times = [begin_s - rng.uniform(0, waited / rate, waited)]
    times += [
        rng.uniform(one.begin_s, one.end_s, count)
        for one, count in zip(steps, counts.tolist(), strict=True)
    ]
    arrival_s = np.sort(np.concatenate(times))
    inputs, outputs = lengths_like(
        total(steps, "input_length"),
        total(steps, "output_length"),
        stored,
        count=len(arrival_s),
        seed=seed,
    )
    cached = (hit_share(steps) * inputs).astype(np.int64)
    return Traffic(arrival_s, inputs, outputs, cached)


def lengths_like(
    inputs: Histogram | None,
    outputs: Histogram | None,
    stored: Traffic,
    *,
    count: int,
    seed: int,
) -> tuple[Ints, Ints]:
    """Return ``count`` pairs of lengths in these distributions, in random order.

    Where one has no values the stored requests stand for themselves.
    """
    rng = np.random.default_rng((seed, 1))
    if inputs is None or outputs is None or not inputs.count or not outputs.count:
        rows = rng.integers(0, len(stored), count)
        return stored.input_length[rows], stored.output_length[rows]
    rows_of, columns_of = (
        np.searchsorted(bounds.bounds, lengths)
        for bounds, lengths in ((inputs, stored.input_length), (outputs, stored.output_length))
    )
    table = _raked(inputs, outputs, rows_of, columns_of)
    cells = _spread(table, count, rng)
    chosen = _members(rows_of * table.shape[1] + columns_of, cells, rng)
    known = chosen >= 0
    found = []
    for one, lengths, buckets in (
        (inputs, stored.input_length, cells // table.shape[1]),
        (outputs, stored.output_length, cells % table.shape[1]),
    ):
        like = np.where(known, lengths[chosen], 0)
        found.append(_bent(one, buckets, like, known, rng))
    return found[0], found[1]


def _raked(inputs: Histogram, outputs: Histogram, rows_of: Ints, columns_of: Ints) -> Floats:
    """Return the share of each pair of buckets, with today's margins."""
    margins = [np.diff(np.array(one.counts), prepend=0.0) / one.count for one in (inputs, outputs)]
    shape = (len(margins[0]), len(margins[1]))
    table = np.zeros(shape)
    np.add.at(table, (rows_of, columns_of), 1.0)
    table = table / table.sum() + MIXED / table.size
    for _ in range(RAKES):
        table *= (margins[0] / np.maximum(1e-300, table.sum(axis=1)))[:, None]
        table *= margins[1] / np.maximum(1e-300, table.sum(axis=0))
    return np.asarray(table / table.sum())


def _spread(table: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Return a cell for each of ``count`` requests, as evenly as whole numbers allow."""
    upto = np.cumsum(table.ravel())
    at = (np.arange(count) + rng.random()) / max(1, count) * upto[-1]
    cells = np.minimum(np.searchsorted(upto, at, side="right"), table.size - 1)
    return np.asarray(rng.permutation(cells), np.int64)


def _members(cell_of: Ints, cells: Ints, rng: np.random.Generator) -> Ints:
    """Return a stored request of each cell, -1 where the cell has none."""
    order = np.argsort(cell_of, kind="stable")
    first = np.searchsorted(cell_of[order], cells, side="left")
    last = np.searchsorted(cell_of[order], cells, side="right")
    place = first + (rng.random(len(cells)) * (last - first)).astype(np.int64)
    return np.where(last > first, order[np.minimum(place, len(order) - 1)], -1)


def _bent(
    one: Histogram, buckets: Ints, like: Ints, known: NDArray[np.bool_], rng: np.random.Generator
) -> Ints:
    """Return lengths within their buckets whose mean is the counted one, as near as it can be.

    Positions within the buckets are those of the stored requests, raised to one power.
    """
    if not len(buckets):
        return np.zeros(0, np.int64)
    uppers = np.array(one.bounds)
    lowers = np.concatenate(([0.0], uppers[:-1]))
    low = np.clip(np.floor(lowers[buckets]) + 1, 1.0, MOST_TOKENS)
    high = np.minimum(
        np.floor(uppers[buckets]), np.where(np.isinf(uppers[buckets]), np.inf, MOST_TOKENS)
    )
    endless = np.where(known, np.maximum(2 * low, like), 2 * low)
    high = np.maximum(low, np.where(np.isfinite(high), high, endless))
    width = high - low
    part = np.where(known, (like - low) / np.maximum(1.0, width), rng.random(len(buckets)))
    part = np.clip(part, 0.02, 0.98)
    wanted = one.total / one.count * len(buckets)
    least, most = -6.0, 6.0
    middle = 0.0
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        if float((low + width * part ** np.exp2(middle)).sum()) > wanted:
            least = middle  # a larger power is a smaller length
        else:
            most = middle
    bent = low + width * part ** np.exp2(middle)
    return np.asarray(np.rint(bent), np.int64)
