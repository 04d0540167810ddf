"""A series over time as bars of characters."""

from collections.abc import Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = "        #"
"""Likewise, where the terminal knows nothing else."""

LABEL_WIDTH = 9
FEWEST, MOST = 20, 80


def columns_for(width: int) -> int:
    """Return how many bars fit a terminal."""
    return max(FEWEST, min(MOST, width - LABEL_WIDTH - 2))


def bars(values: Sequence[float | None], *, height: int, ascii_only: bool) -> list[str]:
    """Return the lines from top to bottom, the highest value written beside the first.

    Where a value is not known there is a dot on the ground.
    """
    top = max((value for value in values if value is not None), default=0.0)
    glyphs = ASCII if ascii_only else EIGHTHS
    rows = []
    for row in range(height, 0, -1):
        cells = "".join(_cell(value, top, row, height, glyphs) for value in values)
        label = f"{top:,.4g}" if row == height else "0" if row == 1 else ""
        rows.append(f"{label:>{LABEL_WIDTH}} {cells.rstrip()}")
    return rows


def axis(first: str, last: str, count: int) -> str:
    """Return the line under the bars, with what its ends mean."""
    return f"{'':>{LABEL_WIDTH}} {first}{last:>{count - len(first)}}"


def underline(begin: int, end: int, text: str) -> str:
    """Return a line that marks the bars from ``begin`` to ``end``."""
    return f"{'':>{LABEL_WIDTH}} {'':>{begin}}{'^' * max(1, end - begin)} {text}"


def _cell(value: float | None, top: float, row: int, height: int, glyphs: str) -> str:
    if value is None:
        return "." if row == 1 else " "
    if not top or value <= 0:
        return " "
    eighths = max(1, round(value / top * height * 8)) - (row - 1) * 8
    return glyphs[max(0, min(8, eighths))]
