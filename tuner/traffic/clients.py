"""What clients send: prompts as token ids, and which request waits for which. Pure.

A token is a hash of (seed, what it belongs to, its position): no generator's stream is involved,
so the ids depend on no library's version and a prompt of 100,000 tokens is one array operation.

In open loop every turn leaves when it was recorded, and load does not shrink because the server is
slow. A client that reads the answer before it asks again does wait; where that is wanted, a turn
leaves its recorded think time after the turn before it ended, and never before it was recorded.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.trace.trace import TraceRequest

SPECIAL_IDS = 16
"""Ids below this are left out: padding, begin and end of text, and the like stand there."""

NO_THOUGHT_S = 0.001
"""A turn that came this close to the end of the one before, on either side, came at once: traces
round their times, and sums of them may even be negative."""

_GOLDEN = 0x9E3779B97F4A7C15


def prompt_token_ids(
    request: TraceRequest, *, seed: int, vocab_size: int, block_size: int
) -> list[int]:
    """Return ``request.input_length`` token ids in [SPECIAL_IDS, vocab_size).

    ``block_size`` is the trace's: how many tokens one of ``hash_ids`` stands for. Equal hash ids
    give equal tokens, whatever the row; tokens that no hash id covers depend on the row, so that
    nothing is shared that production did not share.

    Raises ValueError for a vocabulary with fewer than two ids beside the special ones.
    """
    usable = vocab_size - SPECIAL_IDS
    if usable < 2:
        raise ValueError(f"a vocabulary of {vocab_size} leaves no ids beside {SPECIAL_IDS}")
    blocks = np.repeat(np.array(request.hash_ids, np.uint64), block_size)[: request.input_length]
    alone = request.input_length - len(blocks)
    # twice the number of a block, or of a row and one: no block is taken for a row
    owner = np.concatenate((2 * blocks, np.full(alone, 2 * request.row + 1, np.uint64)))
    place = np.concatenate((np.arange(len(blocks)) % block_size, np.arange(alone)))
    key = _mixed(owner ^ np.uint64(seed * _GOLDEN % 2**64))
    bits = _mixed(key + place.astype(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(32)
    # the product with 2**-32 spreads 32 random bits evenly over the vocabulary
    ids = (bits * np.uint64(usable)) >> np.uint64(32)
    return (SPECIAL_IDS + ids.astype(np.int64)).tolist()  # type: ignore[no-any-return]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit integers: splitmix64's finalizer (Steele et al., OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Turn(NamedTuple):
    """The turn that one request waits for."""

    parent: int
    """Row of the turn before it."""

    think_s: float
    """From the end of that one until this one came, as recorded."""


def turns_of(requests: Sequence[TraceRequest]) -> dict[int, Turn]:
    """Return row → what it waits for, of requests in order of arrival.

    ``parent_id`` beats the order in the session. A turn waits only where its parent's end is
    recorded, and lies before the turn came or at most NO_THOUGHT_S after: otherwise nobody waited,
    or nobody knows how long.
    """
    newest: dict[tuple[str, str | None], TraceRequest] = {}
    result: dict[int, Turn] = {}
    for request in requests:
        after = ("session", request.session_id)
        if request.parent_id is not None:
            after = ("request", request.parent_id)
        parent = None if after[1] is None else newest.get(after)
        newest["session", request.session_id] = newest["request", request.request_id] = request
        if parent is None or parent.e2e_s is None:
            continue
        think_s = request.arrival_s - (parent.arrival_s + parent.e2e_s)
        if think_s >= -NO_THOUGHT_S:
            result[request.row] = Turn(parent.row, think_s if think_s > NO_THOUGHT_S else 0.0)
    return result


def places_of(requests: Sequence[TraceRequest]) -> dict[int, tuple[int, float]]:
    """Return row → the place that it holds in a recorded concurrency, and when that place is given
    up, in seconds of the trace. A place that is taken again later is another."""
    current: dict[str | None, int] = {}
    until_s: list[float] = []
    result: dict[int, int] = {}
    for request in requests:
        if not request.holds_place:
            continue
        number = current.get(request.session_id)
        if number is None or request.arrival_s - until_s[number] > NO_THOUGHT_S:
            number = current[request.session_id] = len(until_s)
            until_s.append(0.0)
        until_s[number] = request.arrival_s + (request.e2e_s or 0.0)
        result[request.row] = number
    return {row: (number, until_s[number]) for row, number in result.items()}
