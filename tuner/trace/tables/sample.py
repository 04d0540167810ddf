"""The first rows of a table by columns, and what they show of one beside another. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from tuner.trace.tables.cells import Counts, Spans, is_empty
from tuner.trace.tables.clocks import ColumnClock
from tuner.trace.tables.headings import Role, meanings
from tuner.trace.tables.plan import Column

SOME_ROWS = 3
"""Fewer rows are alike by chance."""

SAME_TIME_MS = 1000
"""Two columns that say the same time differ by less: one of them may be of whole seconds."""

RUNS_ON_MS = 10 * SAME_TIME_MS
"""Growth in a few rows from which on a span counts from some start."""

SAME_SPAN_MS = 1
DAY_MS = 86_400_000


class FirstRows:
    """The values of each column in the first rows."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.headings = headings
        self.values = [[row[place] for row in rows] for place in range(len(headings))]

    def texts(self, place: int) -> list[str]:
        return [str(one).strip() for one in self.values[place] if not is_empty(one)]

    def counts(self, column: Column) -> list[int]:
        """Return a column's counts, 0 where there is none."""
        assert isinstance(column.reader, Counts)
        read = [column.reader.read(one) for one in self.values[column.place]]
        return [one if isinstance(one, int) else 0 for one in read]

    def unique(self, place: int) -> str:
        """Return what names a column and no other."""
        name = self.headings[place]
        return name if name and self.headings.count(name) == 1 else f"#{place + 1}"

    def why_unread(self, missing: Sequence[Role]) -> str:
        """Say what stands below a heading that means what is missing, and cannot be read as it."""
        if not any(self.values):
            return ": no rows"
        for place, heading in enumerate(self.headings):
            if {one.role for one in meanings(heading)} & {*missing}:
                first = next((str(one) for one in self.values[place] if not is_empty(one)), "")
                shown = (
                    repr(first[:24]) if first[:1].isdigit() else "no number and no date"
                )  # it may be text
                return f": {heading} has {shown}" if first else f": {heading} is empty"
        return ""

    def is_constant(self, place: int) -> bool:
        """Whether some rows all have the same there."""
        known = [one for one in self.values[place] if not is_empty(one)]
        return len(known) >= SOME_ROWS and known.count(known[0]) == len(known)

    def is_midnight(self, day: Column) -> bool:
        assert isinstance(day.reader, ColumnClock)
        read = [day.reader.ms(text) for text in self.texts(day.place)]
        return all(isinstance(ms, float) and ms % DAY_MS == 0 for ms in read)

    def is_whole(self, span: Column, others: Sequence[Column]) -> bool:
        """Whether no other span of time is longer in any row: then it is the whole request's."""
        return all(a >= b for other in others for a, b in self._both(span, other))

    def waited(self, created: Column, started: Column) -> bool:
        """Whether rows were created before what they stand for began, and not when it had ended."""
        waits_ms = [b - a for a, b in self._both(created, started)]
        return bool(waits_ms) and min(waits_ms) >= 0 and max(waits_ms) >= SAME_TIME_MS

    def runs_on(self, span: Column, time: Column) -> bool:
        """Whether a span grows as the time does: then it counts from some start, and is no
        request's."""
        both = [*self._both(span, time)]
        since_ms, spans_ms = [at - lasted for lasted, at in both], [lasted for lasted, _ in both]
        if len(both) < SOME_ROWS or max(spans_ms) - min(spans_ms) < RUNS_ON_MS:
            return False
        return max(since_ms) - min(since_ms) < SAME_TIME_MS

    def alike(self, one: Column, other: Column) -> bool:
        """Whether two columns say the same, up to a second of a time and a ms of a span."""
        if isinstance(one.reader, Spans) and isinstance(other.reader, Spans):
            return all(abs(a - b) <= SAME_SPAN_MS for a, b in self._both(one, other))
        cells = zip(self.values[one.place], self.values[other.place], strict=True)
        if isinstance(one.reader, ColumnClock) and isinstance(other.reader, ColumnClock):
            known = [*self._both(one, other)]
            return len(known) == len(self.values[one.place]) and all(
                abs(a - b) < SAME_TIME_MS for a, b in known
            )
        return all(cell == cell_of_other for cell, cell_of_other in cells)

    def _both(self, one: Column, other: Column) -> Iterator[tuple[float, float]]:
        """Yield the ms of two columns of times or spans, in rows that have both."""
        for a, b in zip(self._ms_of(one), self._ms_of(other), strict=True):
            if isinstance(a, int | float) and isinstance(b, int | float):
                yield a, b

    def _ms_of(self, column: Column) -> list[object]:
        assert isinstance(column.reader, ColumnClock | Spans)
        return [column.reader.ms(cell) for cell in self.values[column.place]]
