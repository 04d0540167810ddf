"""Make more or less load from the same traffic. Pure, and seeded.

Time is never squeezed: that is always optimistic about tails.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import JITTER_S


def scale_load(requests: Sequence[TraceRequest], factor: float, *, seed: int) -> list[TraceRequest]:
    """Return ``factor`` times the requests, in order of arrival.

    Below 1 a random share stays. Above 1 a random share comes again, each within JITTER_S of its
    original and within the time of the trace, as other requests of the same kind: prefixes that
    several requests share stay shared, and prefixes of one request alone are new.
    """
    rng = np.random.default_rng(seed)
    size = len(requests)
    if factor < 1:
        kept = rng.permutation(size)[: round(size * factor)]
        return [requests[i] for i in np.sort(kept)]
    times, added = divmod(round(size * factor) - size, size)
    chosen = np.sort(
        np.concatenate([np.tile(np.arange(size), times), rng.permutation(size)[:added]])
    )
    fresh = _Fresh(requests)
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    copies = [
        fresh.copy(requests[i], _reflect(requests[i].arrival_s + jitter_s, first_s, last_s))
        for i, jitter_s in zip(
            chosen.tolist(), rng.uniform(-JITTER_S, JITTER_S, len(chosen)).tolist(), strict=True
        )
    ]
    return sorted([*requests, *copies], key=lambda request: request.arrival_s)


class _Fresh:
    """Makes requests that share with the trace what several of its requests share, no more."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self.row = max(request.row for request in requests)
        seen = Counter(block for request in requests for block in request.hash_ids)
        self.own = {block for block, count in seen.items() if count == 1}
        self.block = max(seen, default=0)

    def copy(self, request: TraceRequest, arrival_s: float) -> TraceRequest:
        self.row += 1
        return dataclasses.replace(
            request,
            row=self.row,
            arrival_s=arrival_s,
            hash_ids=tuple(map(self._block, request.hash_ids)),
            request_id=None,
            session_id=None,
            turn=None,
            parent_id=None,
        )

    def _block(self, block: int) -> int:
        if block not in self.own:
            return block
        self.block += 1
        return self.block


def _reflect(time_s: float, first_s: float, last_s: float) -> float:
    """Return the time, mirrored at the ends of the trace: clipping would pile requests up there."""
    if time_s < first_s:
        time_s = 2 * first_s - time_s
    if time_s > last_s:
        time_s = 2 * last_s - time_s
    return round(max(time_s, first_s), 6)
