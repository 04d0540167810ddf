"""Any table of requests: CSV and its like, JSON lines, Parquet; columns are found by headings.

What is not clear is refused with the command that would do; see ``tuner/trace/tables``.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tuner.errors import TraceError
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.source import Source, columnar
from tuner.trace.formats.reading.trace_file import (
    ARROW_MARKS,
    SAMPLE_BYTES,
    TableOptions,
    TraceFile,
)
from tuner.trace.tables.headings import Role
from tuner.trace.tables.plan import (
    NO_UTF_8,
    Column,
    Reads,
    Refusal,
    Shape,
    TablePlan,
    header_of,
    refused,
)
from tuner.trace.tables.shape import json_shape, planned, text_shape

NAME = "table"
DESCRIPTION = "Any table of requests, by its headings: CSV, TSV, JSON lines, Parquet"
MARK = "a time, a prompt's and an output's tokens, in any words"

LONGEST_HEADING = 60
"""Of a table that is not known for what it is: longer ones are sentences, and may be anybody's."""


def sniff(head: bytes) -> bool:
    return is_one(head, TableOptions())


def is_one(head: bytes, asked: TableOptions) -> bool:
    """Return whether a file that begins so is a table that can be read as it stands."""
    return head.startswith(ARROW_MARKS) or isinstance(_look(head, asked)[1], TablePlan)


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    """See Format. Raises TraceError with the options that would do, where any would."""
    asked = replace(lines.asked, time_unit=time_unit)
    head = lines.head(SAMPLE_BYTES + 1)
    from tuner.trace.tables.reader import TableReader, of_arrow_file  # noqa: PLC0415 - slow to load

    if head.startswith(ARROW_MARKS):
        return of_arrow_file(lines, asked)
    shape, plan = _look(head, asked)
    if shape is None:
        raise TraceError(
            f"{lines.place}:1: no table: no line has two columns, or an object",
            hint="--delimiter names what parts the columns.",
        )
    if not isinstance(plan, TablePlan):
        assert plan is not None
        raise refused(lines.place, shape, plan, asked)
    lines.encoding = _encoding_of(head) if shape.delimiter else None
    lines.tally.said += plan.said
    reader = TableReader(lines, shape, plan)
    again = reader.again if not shape.whole else None
    return columnar(
        header_of(plan), reader.batches(), again=again, absolute=True, undated=not plan.dated
    )


def refusal(place: str, head: bytes, asked: TableOptions) -> TraceError | None:
    """Return why a file that no format claims is no table either; None for what is far from it."""
    shape, plan = _look(head, asked)
    if shape is None or not isinstance(plan, Refusal):
        return None
    is_table = plan.likely or plan.columns or _is_headed(shape)
    return refused(place, shape, plan, asked) if is_table else None


def _is_headed(shape: Shape) -> bool:
    """Whether there are rows below several short words, be they none of a trace."""
    named = [heading for heading in shape.headings if heading]
    are_short = all(len(heading) <= LONGEST_HEADING for heading in named)
    return shape.headed and are_short and len(named) > 1 and bool(shape.sample)


@lru_cache(maxsize=8)
def _look_at(head: bytes, delimiter: str | None, named: tuple[str, ...]) -> Shape | None:
    complete = len(head) <= SAMPLE_BYTES
    return json_shape(head, complete=complete) or text_shape(head, delimiter=delimiter, named=named)


def _look(head: bytes, asked: TableOptions) -> tuple[Shape | None, TablePlan | Refusal | None]:
    head = head[: SAMPLE_BYTES + 1]
    if encoding := _encoding_of(head):
        shape, plan = _plan(head.decode(encoding, errors="replace").encode(), asked)
        if isinstance(plan, TablePlan):
            return shape, plan
    return _plan(head, asked)


@lru_cache(maxsize=1)
def _encoding_of(head: bytes) -> str | None:
    """Return the encoding of western spreadsheets for what is not UTF-8 anywhere; else None."""
    text = head[:SAMPLE_BYTES].decode(errors="replace").rstrip(NO_UTF_8)  # its end may break off
    is_western = NO_UTF_8 in text and text.replace(NO_UTF_8, "").isascii()
    return "cp1252" if is_western else None


def _plan(head: bytes, asked: TableOptions) -> tuple[Shape | None, TablePlan | Refusal | None]:
    shape = _look_at(head, asked.delimiter, tuple(asked.columns.values()))
    return (None, None) if shape is None else planned(shape, asked)


Known = Mapping[Role, tuple[str, Reads]]
"""The columns of a format: role → heading, in any case, and how its cells are read."""


def text_table(head: bytes, known: Known) -> tuple[Shape, TablePlan] | None:
    """Return how a table of text with these columns is read; None for another table."""
    names = tuple(heading for heading, _ in known.values())
    shape = _look_at(head[: SAMPLE_BYTES + 1], None, names)
    if shape is None or not shape.delimiter:
        return None
    places = {heading.lower(): place for place, heading in enumerate(shape.headings)}
    if not {heading.lower() for heading, _ in known.values()} <= places.keys():
        return None
    columns = {
        role: Column(heading, places[heading.lower()], reads)
        for role, (heading, reads) in known.items()
    }
    return shape, TablePlan(columns)


def known_table(
    lines: TraceFile,
    header: TraceHeader,
    known: Known,
    *,
    dated: bool = True,
    as_published: bool = False,
) -> Source:
    """Return the source of a table whose columns are known.

    ``as_published``: its models keep their names, and an output of no tokens is a failure. Raises
    TraceError for another table.
    """
    found = text_table(lines.head(SAMPLE_BYTES + 1), known)
    if found is None:
        names = ", ".join(heading for heading, _ in known.values())
        raise TraceError(
            f"{lines.place}:1: no table with {names}",
            hint="Without --format its columns are found by their headings.",
        )
    from tuner.trace.tables.reader import TableReader  # noqa: PLC0415 - slow to load

    shape, plan = found
    reader = TableReader(lines, shape, replace(plan, as_published=as_published))
    return columnar(header, reader.batches(), again=reader.again, absolute=True, undated=not dated)
