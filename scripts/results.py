"""How the scripts show what they measure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Promised = tuple[str, float, float, float]
"""A number's name, the ends of its promised interval, and what it is."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    return "\n".join([table_row(head), table_row(["---"] * len(head)), *map(table_row, rows)])


def table_row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def percentiles(**values_s: NDArray[np.float64]) -> dict[str, float]:
    """Return milliseconds by the names of a promise's intervals, as in `ttft_p95_ms`."""
    return {
        f"{name}_p{share}_ms": 1e3 * float(np.nanquantile(values, share / 100))
        for name, values in values_s.items()
        for share in (50, 95, 99)
    }


def kept_promises(promised: Sequence[Promised]) -> tuple[str, str]:
    """Return how many intervals hold, and how wide half of each is:
    medians of times, and of attainment."""
    held = sum(low <= measured <= high for _, low, high, measured in promised)
    times = [(high - low) / (high + low) for name, low, high, _ in promised if name[-3:] == "_ms"]
    shares = [50 * (high - low) for name, low, high, _ in promised if name == "attainment"]
    widths = f"{np.median(times):.1%}, {np.median(shares):.1f} points" if times else ""
    return f"{held} of {len(promised)}", widths
