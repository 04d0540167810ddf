"""Route requests to replicas. Pure, and seeded."""

import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tuner.errors import TraceError
from tuner.trace.columns import Floats, Ints, columns_of
from tuner.trace.trace import TraceRequest

Router = Literal["least", "rr", "random", "session"]

S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN = 0.020, 0.0002
"""Assumed times of a token, for requests whose end production did not record. Only ``least`` needs
them."""


def route(
    requests: Sequence[TraceRequest], *, replicas: int, router: Router, seed: int
) -> list[list[TraceRequest]]:
    """Return what each replica gets, in order of arrival.

    ``least``: the one with the fewest in flight, in turn among equals; ``rr``: in turn; ``random``;
    ``session``: a session always to the same one. Raises TraceError where there is no session.
    """
    columns = columns_of(requests, block_size=1)
    chosen = np.random.default_rng(seed).integers(replicas, size=len(columns))
    if router == "rr":
        chosen = np.arange(len(columns)) % replicas
    elif router == "session":
        names = np.array([request.session_id or "" for request in requests])
        if not names.astype(bool).any():
            raise TraceError("no request has a session_id", hint="Give another --router: least.")
        _, first, session = np.unique(names, return_index=True, return_inverse=True)
        chosen = np.where(names == "", chosen, chosen[first][session])
    elif router == "least":
        prompt_s = columns.input_length * S_PER_PROMPT_TOKEN
        modeled_s = prompt_s + columns.output_length * S_PER_OUTPUT_TOKEN
        lasting_s = np.where(np.isnan(columns.e2e_s), modeled_s, columns.e2e_s)
        lasting_s = np.where(columns.served, lasting_s, 0.0)
        chosen = least_in_flight(columns.arrival_s, lasting_s, replicas)
    parts: list[list[TraceRequest]] = [[] for _ in range(replicas)]
    for request, replica in zip(requests, chosen.tolist(), strict=True):
        parts[replica].append(request)
    return parts


def least_in_flight(arrival_s: Floats, lasting_s: Floats, replicas: int) -> Ints:
    """Return the replica of each request: the one with the fewest in flight, among equals the one
    that was given nothing for longest. ``lasting_s`` is how long each request is in flight."""
    in_flight, newest = [0] * replicas, [-1] * replicas
    # the next replica is the least of (in flight, its newest request, replica) that still holds
    order = [(0, -1, replica) for replica in range(replicas)]
    ends: list[tuple[float, int]] = []
    chosen = []
    for row, (now_s, takes_s) in enumerate(
        zip(arrival_s.tolist(), lasting_s.tolist(), strict=True)
    ):
        while ends and ends[0][0] <= now_s:
            _, replica = heapq.heappop(ends)
            in_flight[replica] -= 1
            heapq.heappush(order, (in_flight[replica], newest[replica], replica))
        while True:
            count, last, replica = heapq.heappop(order)
            if (count, last) == (in_flight[replica], newest[replica]):
                break
        in_flight[replica], newest[replica] = count + 1, row
        heapq.heappush(order, (count + 1, row, replica))
        heapq.heappush(ends, (now_s + takes_s, replica))
        chosen.append(replica)
    return np.array(chosen, np.int64)


def busiest_part(parts: Sequence[Sequence[TraceRequest]]) -> int:
    """Return the number of the replica that is asked for the most tokens."""
    tokens = [
        sum(request.input_length + request.n * request.output_length for request in part)
        for part in parts
    ]
    return tokens.index(max(tokens))
