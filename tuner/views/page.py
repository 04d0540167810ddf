"""A page: the result of a command, before it is printed, drawn or written. Pure.

Times are in seconds and shares from 0 to 1 in every table and chart; ``Table.shown`` and ``text``
decide how people read them.
"""

import math
from typing import Literal

from msgspec import Struct, field

from tuner.profile.summary import milliseconds, percent

Kind = Literal["text", "count", "number", "share", "time", "change"]
Cell = str | int | float | bool | None
FORMATS = {"count": "{:,.0f}", "change": "{:+.1%}"}
LONG_S = 2.0
"""A column with a time from here on is in seconds, others are in milliseconds."""


class Column(Struct, frozen=True):
    name: str
    """In CSV, Parquet and JSON."""
    heading: str = ""
    """For people; a column without one is only in files."""
    kind: Kind = "text"


class Table(Struct, frozen=True):
    """Rows of plain values. Text in a column of numbers is shown as it is."""

    columns: list[Column]
    rows: list[list[Cell]]
    caption: str = ""
    chosen: int | None = None
    """The row that is the answer."""

    def shown(self) -> list[tuple[str, Kind, list[str]]]:
        """Return heading, kind and cells of each column that people see, as they see them: with
        three digits, and times in one unit.

        >>> Table([Column("ttft_s", "TTFT", "time")], [[0.0951], [0.03], [None], ["cut"]]).shown()
        [('TTFT ms', 'time', ['95.1', '30.0', '-', 'cut'])]
        """
        result = []
        for place, column in enumerate(self.columns):
            heading, kind = column.heading, column.kind
            cells = [row[place] for row in self.rows]
            longest_s = max((c for c in cells if isinstance(c, int | float)), default=0.0)
            unit, times = ("s", 1.0) if longest_s >= LONG_S else ("ms", 1e3)
            if heading:
                texts = [_text(kind, cell, times) for cell in cells]
                result.append((f"{heading} {unit}" if kind == "time" else heading, kind, texts))
        return result

    def records(self) -> list[dict[str, Cell]]:
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class Mark(Struct, frozen=True):
    """A line across a chart at one value of x."""

    at: float
    label: str = ""
    is_accent: bool = False


class Chart(Struct, frozen=True):
    """A line, with gaps where y is None."""

    title: str
    x: list[float]
    y: list[float | None]
    kind: Kind = "number"
    """Of the y axis."""
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    """The ends of an interval for each y, a band behind the line."""
    by_cap: bool = False
    """Whether x is a ``max_num_seqs``: logarithmic, with a tick and a dot at each."""
    marks: list[Mark] = field(default_factory=list)
    limit: float | None = None
    """Of y, by the SLO."""


class Section(Struct, frozen=True):
    title: str
    note: str = ""
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


class Page(Struct, frozen=True, kw_only=True):
    """An answer and what it rests on; kept in a run's result.json."""

    subject: str
    """What the page is about, such as ``Sweep runs/prod``."""
    title: str
    """The answer, in a sentence."""
    aside: str = ""
    """What sort of answer it is, and how sure."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    """Name and sentence of each, the most important first."""
    sections: list[Section] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    """Sentences for those who want to know more."""
    warnings: list[str] = field(default_factory=list)
    """The one that matters most first."""
    run_dir: str = ""
    next: str = ""
    """The command to run, as a shell takes it."""

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]


def text(kind: Kind, value: float) -> str:
    """Return one value with its unit.

    >>> text("time", 0.0312), text("share", 0.972), text("count", 1200), text("change", 0.12)
    ('31.2 ms', '97.2%', '1,200', '+12.0%')
    >>> text("number", 0.4567), text("number", 1234.5)
    ('0.457', '1,234')
    """
    return milliseconds(1e3 * value) if kind == "time" else _text(kind, value, 1.0)


def _text(kind: Kind, cell: Cell, times: float) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "-"
    if isinstance(cell, str | bool) or kind == "text":
        return str(cell)
    if kind == "share":
        return percent(cell)
    if kind in FORMATS:
        return FORMATS[kind].format(cell)
    value = cell * times if kind == "time" else cell
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:#.3g}"
