"""More or less load from the same traffic, and what each of several replicas gets. Pure, seeded.

Time is never squeezed: that is always optimistic about tails.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Literal

import numpy as np

from tuner.errors import TraceError
from tuner.trace.columns import Floats, Ints
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import JITTER_S
from tuner.traffic.window import arrays, is_served

Router = Literal["least", "rr", "random", "session"]

S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN = 0.020, 0.0002
"""Assumed times of a token, for requests whose end production did not record. Only ``least`` needs
them."""

IN_FLIGHT = 1 << 40
"""One request in flight, beside the number of a replica's newest request."""

# Load


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
    scaled = [requests[row] for row in rows.tolist()]
    seen = Counter(block for request in requests for block in request.hash_ids)
    row = count(max(request.row for request in requests) + 1)
    block = count(max(seen, default=0) + 1)
    for place, when_s in enumerate(at_s[size:].tolist(), size):
        blocks = scaled[place].hash_ids
        scaled[place] = replace(
            scaled[place],
            row=next(row),
            arrival_s=round(when_s, 6),
            hash_ids=tuple(next(block) if seen[each] == 1 else each for each in blocks),
            request_id=None,
            session_id=None,
            turn=None,
            parent_id=None,
        )
    return sorted(scaled, key=lambda request: request.arrival_s)


# Replicas


def route(
    requests: Sequence[TraceRequest], *, replicas: int, router: Router, seed: int
) -> list[list[TraceRequest]]:
    """Return what each replica gets, in order of arrival.

    ``least``: the one with the fewest in flight, in turn among equals; ``rr``: in turn; ``random``;
    ``session``: a session always to the same one. Raises TraceError where there is no session.
    """
    chosen = np.random.default_rng(seed).integers(replicas, size=len(requests))
    if router == "rr":
        chosen = np.arange(len(requests)) % replicas
    elif router == "session":
        homes: dict[str, int] = {}
        for place, each in enumerate(requests):
            if each.session_id is not None:
                chosen[place] = homes.setdefault(each.session_id, int(chosen[place]))
        if not homes:
            raise TraceError("no request has a session_id", hint="Give another --router: least.")
    elif router == "least":
        lasting_s = [_lasting_s(each) for each in requests]
        chosen = least_in_flight(arrays(requests)[0], np.array(lasting_s), replicas)
    parts: list[list[TraceRequest]] = [[] for _ in range(replicas)]
    for request, replica in zip(requests, chosen.tolist(), strict=True):
        parts[replica].append(request)
    return parts


def busiest_part(parts: Sequence[list[TraceRequest]]) -> list[TraceRequest]:
    """Return the requests of the replica that is asked for the most tokens."""
    return max(parts, key=lambda part: int(arrays(part)[1].sum()))


def least_in_flight(arrival_s: Floats, lasting_s: Floats, replicas: int) -> Ints:
    """Return the replica of each request: the one with the fewest in flight, among equals the one
    that was given nothing for longest. ``lasting_s`` is how long each request is in flight."""
    order = np.zeros(replicas, np.int64)  # requests in flight, then the number of the newest
    ends: list[tuple[float, int]] = []
    chosen = np.empty(len(arrival_s), np.int64)
    moments = zip(arrival_s.tolist(), lasting_s.tolist(), strict=True)
    for number, (now_s, takes_s) in enumerate(moments, 1):
        while ends and ends[0][0] <= now_s:
            order[heapq.heappop(ends)[1]] -= IN_FLIGHT
        replica = chosen[number - 1] = int(order.argmin())
        order[replica] += IN_FLIGHT + number - order[replica] % IN_FLIGHT
        heapq.heappush(ends, (now_s + takes_s, replica))
    return chosen


def _lasting_s(request: TraceRequest) -> float:
    """Return for how long a request is in flight."""
    if not is_served(request):
        return 0.0
    if request.e2e_s is not None:
        return request.e2e_s
    prompt_s = request.input_length * S_PER_PROMPT_TOKEN
    return prompt_s + request.output_length * S_PER_OUTPUT_TOKEN
