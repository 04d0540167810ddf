"""Opens a trace file: looks whether it can be one, and lets its format read it.

A file that is not there, or is no text, is refused before any format is loaded.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tuner.errors import TraceError, UsageError
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.record import REASONS, Tally
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import (
    ARROW_MARKS,
    MAX_LINE_BYTES,
    TableOptions,
    TraceFile,
)

HEAD_BYTES = MAX_LINE_BYTES + 2
"""The longest first line there may be, whole, with its end, and one byte more."""
MARK_BYTES = 32
SIGNATURES = {
    b"PK\x03\x04": ("a zip archive, or a spreadsheet", "Unpack it, or export it as CSV."),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV first."),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "Fetch it: git lfs pull."),
    b"<": ("a page of HTML or XML, not a trace", "Download the raw file itself."),
}


def open_trace(  # noqa: PLR0913 - a file and how to read it
    path: Path,
    *,
    format_name: str | None = None,
    time_unit: TimeUnit | None = None,
    allow_text: bool = False,
    asked: TableOptions | None = None,
    place: str | None = None,
) -> tuple[Source, Tally]:
    """Open a trace for one pass in bounded memory; detect the format unless it is named.

    A file that holds text is refused, or with ``allow_text`` read without it. ``place`` is what
    messages call the file, by default its path. The tally is complete when the source's rows are
    exhausted.

    Raises TraceError for a file that is no trace; where no row can be used, at the end of the rows.
    Raises UsageError for an unknown format, and for a time unit that the format does not have.
    """
    place = place or str(path)
    head = _head(path, place)
    from tuner.trace.formats import registry, table  # noqa: PLC0415 - all formats: 50 modules

    if format_name is None and asked:
        format_name = table.NAME
    chosen = registry.named(format_name) if format_name else registry.detect(place, head, time_unit)
    if time_unit not in (None, "s", "ms") and chosen is not table:
        raise UsageError(
            f"{place}: {chosen.NAME} has no times in {time_unit}", hint="Leave out --time-unit."
        )
    tally = Tally(place, bytes_total=path.stat().st_size)
    lines = TraceFile(path, tally, allow_text=allow_text, asked=asked)
    source = chosen.read(lines, time_unit=time_unit)
    if source.batches is not None:
        batches = _at_least_one(source.batches, tally)
        rows = (row for batch in batches for row in batch.rows())
        return replace(source, rows=rows, batches=batches), tally
    return replace(source, rows=_at_least_one(source.rows, tally)), tally


Item = TypeVar("Item")


def _at_least_one(found: Iterator[Item], tally: Tally) -> Iterator[Item]:
    try:
        yield from found
    except OSError as error:
        raise _unreadable(tally.place, error) from error
    if tally.rows_kept:
        return
    if not tally.rows_read:
        raise TraceError(f"{tally.place}: no rows", hint="Is the file complete?")
    reason, count = max(tally.dropped.items(), key=lambda item: item[1])
    raise TraceError(
        f"{tally.first_place(reason)}: none of {tally.rows_read:,} rows can be used; "
        f"{count:,} of them {reason}: {REASONS[reason]}",
        hint="docs/traces.md says what to do; or tuner trace import --format NAME names another.",
    )


def _head(path: Path, place: str) -> bytes:
    """Return the file's first bytes, unpacked; raise TraceError when they cannot be text."""
    try:
        if path.exists() and not path.is_file():
            raise TraceError(
                f"{place}: not a regular file", hint="Write the trace to a file first."
            )
        with path.open("rb") as file:
            mark = file.read(MARK_BYTES)
        head = TraceFile(path, Tally(place)).head(HEAD_BYTES)
    except OSError as error:
        raise _unreadable(place, error) from error
    for signature, (what, cure) in SIGNATURES.items():
        if mark.startswith(signature):
            raise TraceError(f"{place}: {what}", hint=cure)
    if not head.strip():
        raise TraceError(f"{place}: empty", hint="Capture or import a trace first.")
    if head.startswith(ARROW_MARKS):
        return head
    if b"\x00" in head.partition(b"\n")[0]:  # further down it is one bad row
        raise TraceError(f"{place}: binary, not text", hint="A trace is UTF-8 text, or Parquet.")
    return head


def _unreadable(place: str, error: OSError) -> TraceError:
    return TraceError(
        f"{place}: {(error.strerror or str(error)).lower()}", hint="Shipped traces are in traces/."
    )
