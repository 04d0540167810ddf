"""Requests that hold a given concurrency over time, at an assumed speed. Pure.

Each of the requests in flight is a place, in which one request follows the other without a pause.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise

from tuner.trace.formats.concurrency_schedule import Tick
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN


@dataclass(frozen=True, slots=True)
class Holder:
    """A request that holds a place."""

    at_s: float
    lasts_s: float
    input_length: int
    output_length: int
    place: int
    turn: int
    """How many came before it in its place."""


def holding(ticks: Sequence[Tick], lengths: Sequence[tuple[int, int]]) -> Iterator[Holder]:
    """Yield requests in order of arrival, their (prompt, output) lengths taken in turn, and again.

    A place that is given up lets its last request end.
    """
    drawn = cycle(lengths)
    free_s: list[float] = []
    turns: list[int] = []
    for tick, after in pairwise(ticks):
        more = tick.concurrency - len(free_s)
        free_s += [tick.at_s] * more
        turns += [0] * more
        due = [(max(free_s[place], tick.at_s), place) for place in range(tick.concurrency)]
        heapq.heapify(due)
        while due and due[0][0] < after.at_s:
            at_s, place = due[0]
            prompt, output = next(drawn)
            lasts_s = output * S_PER_OUTPUT_TOKEN + prompt * S_PER_PROMPT_TOKEN
            yield Holder(at_s, lasts_s, prompt, output, place, turns[place])
            turns[place] += 1
            free_s[place] = at_s + lasts_s
            heapq.heapreplace(due, (free_s[place], place))
