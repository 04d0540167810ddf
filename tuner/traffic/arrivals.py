"""The busiest stretch of a trace. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats, Ints, columns_of
from tuner.trace.trace import TraceRequest

SHORTEST_S = 1e-3
"""Of a stretch whose requests arrive at once."""


def busiest_window(requests: Sequence[TraceRequest], length_s: float) -> tuple[float, float]:
    """Return the [start, end) of ``length_s`` in which the most tokens are requested.

    Tokens are those of prompts and outputs of requests that were served. Of equals the first.
    """
    columns = columns_of(requests, block_size=1)
    return busiest(columns.arrival_s, columns.tokens_before(), length_s)


def busiest(arrival_s: Floats, before: Ints, length_s: float) -> tuple[float, float]:
    """``busiest_window`` on columns; ``before`` as in ``Columns.tokens_before``."""
    ends = np.searchsorted(arrival_s, arrival_s + length_s, side="left")
    start_s = float(arrival_s[int(np.argmax(before[ends] - before[:-1]))])
    # A window that reaches past the end of the trace moves back: it would be idle there.
    latest_s = float(arrival_s[-1]) - length_s + 1e-6
    start_s = max(float(arrival_s[0]), min(start_s, latest_s))
    return start_s, start_s + length_s


def busiest_rows(arrival_s: Floats, tokens: NDArray[np.int64], most: int) -> slice:
    """Return the rows of the stretch of ``most`` requests with the most tokens a second; of equals
    the first, and all rows where there are no more.

    Not of the most tokens: a night of long prompts has more of them, hours apart.
    """
    if len(arrival_s) <= most:
        return slice(0, len(arrival_s))
    before = np.concatenate([[0], np.cumsum(tokens)])
    took_s = arrival_s[most - 1 :] - arrival_s[: len(arrival_s) - most + 1]
    first = int(np.argmax((before[most:] - before[:-most]) / np.maximum(took_s, SHORTEST_S)))
    return slice(first, first + most)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a trace beside the whole."""

    start_s: float
    length_s: float
    requests: int
    load: float
    """Tokens requested a second ÷ those of the whole."""


def stretch(columns: Columns, *, start_s: float, length_s: float) -> Stretch | None:
    """Return the part from ``start_s`` on beside the whole; None without a served request in it."""
    arrival_s, before = columns.arrival_s, columns.tokens_before()
    first, last = np.searchsorted(arrival_s, [start_s, start_s + length_s]).tolist()
    whole_s = float(arrival_s[-1] - arrival_s[0])
    if not columns.served[first:last].any() or not whole_s:
        return None
    tokens = float(before[last] - before[first])
    load = tokens / length_s / (float(before[-1]) / whole_s)
    return Stretch(start_s, length_s, last - first, load)
