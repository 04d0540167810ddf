"""Make more or less load from the same traffic. Pure, and seeded.

Time is never squeezed: that is always optimistic about tails.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from tuner.trace.columns import Floats, Ints
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import JITTER_S


def scaled_rows(arrival_s: Floats, factor: float, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Return which rows make ``factor`` times the load, and when each arrives.

    Below 1 a random share of the rows, in order. Above 1 all of them, followed by random copies,
    each within JITTER_S of its original and within the time of the trace.
    """
    size = len(arrival_s)
    copies, rest = divmod(round(size * factor), size)
    some = np.sort(rng.permutation(size)[:rest])
    if not copies:
        return some, arrival_s[some]
    rows = np.concatenate((np.tile(np.arange(size), copies), some))
    near_s = arrival_s[rows[size:]] + rng.uniform(-JITTER_S, JITTER_S, len(rows) - size)
    # mirrored at the ends of the trace: clipping would pile copies up there
    first_s, last_s = arrival_s[0], arrival_s[-1]
    inside_s = first_s + np.abs(near_s - first_s)
    inside_s = np.maximum(first_s, last_s - np.abs(last_s - inside_s))
    return rows, np.concatenate((arrival_s, inside_s))


def scale_load(requests: Sequence[TraceRequest], factor: float, *, seed: int) -> list[TraceRequest]:
    """Return ``factor`` times the requests, in order of arrival. Copies are other requests of the
    same kind: prefixes that several requests share stay shared, those of one request are new."""
    arrival_s = np.array([request.arrival_s for request in requests])
    rows, at_s = scaled_rows(arrival_s, factor, np.random.default_rng(seed))
    size = min(len(requests), len(rows))
    seen = Counter(block for request in requests for block in request.hash_ids)
    row = count(max(request.row for request in requests) + 1)
    block = count(max(seen, default=0) + 1)
    copies = [
        replace(
            requests[original],
            row=next(row),
            arrival_s=round(when_s, 6),
            hash_ids=tuple(
                next(block) if seen[each] == 1 else each for each in requests[original].hash_ids
            ),
            request_id=None,
            session_id=None,
            turn=None,
            parent_id=None,
        )
        for original, when_s in zip(rows[size:].tolist(), at_s[size:].tolist(), strict=True)
    ]
    kept = [requests[original] for original in rows[:size].tolist()]
    return sorted([*kept, *copies], key=lambda request: request.arrival_s)
