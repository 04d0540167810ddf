"""Route requests to replicas. Pure, and seeded.

Time is never stretched instead: that would break bursts and think times.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import NO_AFFINITY, Columns, columns_of
from tuner.trace.trace import TraceRequest

Router = Literal["least", "rr", "random", "session"]

S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN = 0.020, 0.0002
"""Assumed times of a token, for requests whose end production did not record. Only ``least`` needs
them."""


def route(
    requests: Sequence[TraceRequest], *, replicas: int, router: Router, seed: int
) -> list[list[TraceRequest]]:
    """Return what each replica gets, in order of arrival."""
    parts: list[list[TraceRequest]] = [[] for _ in range(replicas)]
    columns = columns_of(requests, block_size=1)
    chosen = assign(columns, replicas=replicas, router=router, seed=seed)
    for request, replica in zip(requests, chosen.tolist(), strict=True):
        parts[replica].append(request)
    return parts


def assign(columns: Columns, *, replicas: int, router: Router, seed: int) -> NDArray[np.int64]:
    """Return the replica of each request.

    ``least``: the one with the fewest in flight, in turn among equals; ``rr``: in turn; ``random``;
    ``session``: a session, or else a first block of the prompt, always to the same one.
    """
    size = len(columns)
    rng = np.random.default_rng(seed)
    if router == "rr":
        return np.arange(size) % replicas
    if router == "random":
        return rng.integers(replicas, size=size)
    if router == "session":
        keys, session = np.unique(columns.affinity, return_inverse=True)
        home = rng.integers(replicas, size=len(keys))[session]
        alone = columns.affinity == NO_AFFINITY
        return np.where(alone, rng.integers(replicas, size=size), home)
    from tuner.traffic.least_in_flight import least_in_flight  # noqa: PLC0415 - numba: 0.2 s

    modelled_s = (
        columns.output_length * S_PER_OUTPUT_TOKEN + columns.input_length * S_PER_PROMPT_TOKEN
    )
    lasting_s = np.where(np.isnan(columns.e2e_s), modelled_s, columns.e2e_s)
    return least_in_flight(columns.arrival_s, np.where(columns.served, lasting_s, 0.0), replicas)


def busiest_part(parts: Sequence[Sequence[TraceRequest]]) -> int:
    """Return the number of the replica that is asked for the most tokens."""
    tokens = [
        sum(request.input_length + request.n * request.output_length for request in part)
        for part in parts
    ]
    return tokens.index(max(tokens))
