"""A trace file as one format reads it: its header and its rows."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from tuner.trace.formats.columnar.batch import ROWS, Batch
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row

Again = Callable[[Collection[int]], Iterator[Batch]]


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file as one format reads it: row by row, or by columns."""

    header: TraceHeader
    rows: Iterator[Row]
    """In the order of the file. The tally of the lines is complete when this is exhausted."""

    absolute: bool = False
    """Stamps are ms since 1970, without a zone, and not ms from the trace's origin."""

    undated: bool = False
    """Absolute stamps count from some zero that is no date, such as the start of a machine."""

    batches: Iterator[Batch] | None = None
    """The same rows by columns, where the format is read so; whoever takes one has the other."""

    again: Again | None = None
    """Reads the batches of some blocks of the file once more, and counts nothing."""

    def by_columns(self) -> Iterator[Batch]:
        """Yield all rows by columns."""
        if self.batches is not None:
            yield from self.batches
            return
        number = 0
        while rows := list(islice(self.rows, ROWS)):
            yield replace(Batch.of(rows), block=number)
            number += 1


def columnar(
    header: TraceHeader,
    batches: Iterator[Batch],
    *,
    again: Again | None = None,
    absolute: bool = False,
    undated: bool = False,
) -> Source:
    """Return the source of a format that is read by columns."""
    rows = (row for batch in batches for row in batch.rows())
    return Source(header, rows, absolute, undated, batches, again)
