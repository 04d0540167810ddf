"""The shape of a table, the plan to read it by, and the refusal where there is none. Pure."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.errors import TraceError
from tuner.system.printable import printable
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.trace_file import STDIN, TableOptions
from tuner.trace.tables.cells import Counts, Spans
from tuner.trace.tables.clocks import ColumnClock
from tuner.trace.tables.headings import Role, role_of
from tuner.trace.tables.nested import at, flattened

SOURCE = "table"
MOST_INSIDE = 2000
SHOWN = 12
"""Headings that a refusal lists."""

NO_UTF_8 = "\ufffd"
"""The character that stands for bytes that are no UTF-8."""


Reads = ColumnClock | Counts | Spans | None
"""Reads the cells of a column."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a table in a file. Cells of JSON are by the dotted paths to them."""

    headings: tuple[str, ...]
    sample: tuple[tuple[Any, ...], ...]
    """The first rows; a cell that is not there is None."""

    delimiter: str = ""
    """Of cells in a line; empty where each row is a JSON object."""

    first_line: int = 1
    """Where rows begin, or below it."""

    headed: bool = True
    """False where the first line holds values already."""

    inside: tuple[str, ...] = ()
    """The last of the headings: paths to what cells hold as JSON."""

    shift: int = 0
    """Cells that a row has beyond its headings: 1 before them where rows are named, -1 behind them
    where each line ends in a delimiter."""

    whole: bool = False
    """All rows are in one JSON document, which must be read at once."""

    naive: frozenset[int] = frozenset()
    """Places of columns whose numbers are times without a zone, as the file says."""

    @property
    def width(self) -> int:
        """The number of cells of a row."""
        return len(self.headings) - len(self.inside)

    def opened(self) -> "Shape":
        """Return the table with what its cells hold as JSON objects as columns of their own."""
        held = [dict(zip(self.headings, cells, strict=True)) for cells in self.sample]
        rows = [dict(flattened(row)) for row in held]
        paths = dict.fromkeys(path for row in rows for path in row if path not in self.headings)
        inside = tuple(paths)[:MOST_INSIDE]
        sample = tuple(
            (*cells, *map(row.get, inside)) for cells, row in zip(self.sample, rows, strict=True)
        )
        return replace(self, headings=(*self.headings, *inside), sample=sample, inside=inside)

    def with_inside(self, cells: Sequence[Any], wanted: Collection[int]) -> Sequence[Any]:
        """Return the cells of a row, and what stands within them at the places that are wanted."""
        if not self.inside:
            return cells
        held = dict(zip(self.headings, cells, strict=False))
        inside = enumerate(self.inside, self.width)
        return [*cells, *(at(held, path) if place in wanted else None for place, path in inside)]


@dataclass(frozen=True, slots=True)
class Column:
    """A column that has a role."""

    heading: str
    place: int
    reader: Reads = None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The plan by which a table is read."""

    columns: Mapping[Role, Column]
    text: tuple[int, ...] = ()
    """Columns that may hold what was said."""

    prompt_is_sum: bool = False
    """Anthropic's usage counts cached prompt tokens beside the others."""

    flag: bool = False
    """The status says whether it went well."""

    as_published: bool = False
    """Models keep their names, and an output of no tokens is a failure."""

    said: tuple[str, ...] = ()
    """What was decided, and why."""

    @property
    def dated(self) -> bool:
        reader = (self.columns.get("timestamp") or self.columns["end"]).reader
        return isinstance(reader, ColumnClock) and reader.dated


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a table cannot be read as it is, and what would do."""

    what: str
    columns: Mapping[str, str]
    """What to give with ``--columns`` so that it can; empty where nothing helps."""

    taken: Mapping[str, str]
    """Which heading was taken for what."""

    time_forms: tuple[TimeUnit, ...] = ()
    """What to give with ``--time-unit``: one of these."""

    likely: bool = False
    """It is a table of requests all the same: at least two of the three main columns are there."""


def header_of(plan: TablePlan) -> TraceHeader:
    missing = ["prefixes"]
    missing += [] if {"status", "error"} & plan.columns.keys() else ["aborts", "errors"]
    missing += [] if {"end", "duration"} & plan.columns.keys() else ["ends"]
    missing += [] if "session_id" in plan.columns else ["sessions"]
    return TraceHeader(source=SOURCE, missing=tuple(missing))


def refused(place: str, shape: Shape, plan: Refusal, asked: TableOptions) -> TraceError:
    """Return the error: what was seen, what was taken for what, and the command that would do."""
    named = [heading or f"#{place + 1}" for place, heading in enumerate(shape.headings)]
    seen = ", ".join(named[:SHOWN]) + (", …" if len(named) > SHOWN else "")
    taken = ", ".join(f"{role}={heading}" for role, heading in plan.taken.items())
    message = f"{place}:{max(1, shape.first_line - 1)}: {plan.what}; seen: {seen}"
    if any(NO_UTF_8 in heading for heading in shape.headings):
        cure = "Convert it first, with the name of its encoding: iconv -f GB18030 -t UTF-8 FILE."
        return TraceError(f"{printable(message)}: headings are not UTF-8", hint=cure)
    message = printable(message + (f"; taken: {taken}" if taken else ""))
    if not plan.columns and not plan.time_forms:
        cure = "Export it with the time, the prompt's and the output's tokens"
        cure += "." if plan.likely else "; tuner trace import --list shows what else is read."
        if asked.columns:
            cure = f"--columns ROLE=HEADING takes headings as they stand, or #1 to #{len(named)}."
        return TraceError(message, hint=cure)
    command = ["tuner", "trace", "import", "-" if place == STDIN else place]
    roles = {role_of(name)[0] for name in plan.columns}
    kept = {name: held for name, held in asked.columns.items() if role_of(name)[0] not in roles}
    columns = {**kept, **plan.columns}
    if columns:
        command += ["--columns", ",".join(f"{role}={name}" for role, name in columns.items())]
    if form := next(iter(plan.time_forms), asked.time_unit):
        command += ["--time-unit", form]
    if asked.delimiter:
        command += ["--delimiter", asked.delimiter]
    cure = printable(shlex.join([*command, "-o", "trace.jsonl"]))
    if len(plan.time_forms) > 1:
        cure = f"--time-unit {' or '.join(plan.time_forms)}: {cure}"
    return TraceError(message, hint=cure)
