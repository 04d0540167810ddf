"""Trace formats: one module each, and this registry.

A format is a module with ``NAME``, ``DESCRIPTION``, ``MARK``, ``sniff(head)`` and ``read(lines)``,
or an object with these where one module reads several that differ little. Some can also be written,
for the tools that replay them: REPLAY_TOOLS.

To add one, write its file and name it in FORMATS, before any format whose rows look like its own.
Files that look like a trace and can be none are in ``refused``.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from tuner.errors import TraceError, UsageError
from tuner.trace.formats import (
    aiperf,
    azure,
    bailian,
    burstgpt,
    canonical,
    envoy,
    guidellm,
    langfuse,
    litellm,
    llmservingsim,
    mooncake,
    nginx,
    otel_genai,
    swissai,
    table,
    timed_trace,
    tracelab,
    vllm_bench,
    vllm_otlp,
    weka,
)
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.record import REASONS, Tally
from tuner.trace.formats.reading.refused import LOOKALIKES
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import MAX_LINE_BYTES, TableOptions, TraceFile


class Format(Protocol):
    """A format."""

    NAME: str
    DESCRIPTION: str
    MARK: str
    """By which headings or keys a file of it is known."""

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with these bytes is of this format."""
        ...

    def read(self, lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
        """Return the source of its rows, where single bad ones are counted.

        Raises TraceError for a file that cannot be read at all.
        """
        ...


FORMATS: tuple[Format, ...] = (
    canonical,
    *azure.FORMATS,
    burstgpt,
    bailian,
    aiperf,
    mooncake,
    guidellm,
    timed_trace,
    weka,
    swissai,
    tracelab,
    llmservingsim,
    vllm_bench,
    vllm_otlp,
    otel_genai,
    litellm,
    langfuse,
    envoy,
    nginx,
    table,
)


class ReplayTool(Protocol):
    """A tool that replays traces, whose input tuner can write."""

    NAME: str
    EXPORTED_BLOCK_SIZE: int | None
    """Tokens that the tool takes an id for; None where it can be told."""

    def export(self, found: Replayable) -> Iterator[bytes]:
        """Yield the lines of the tool's own input."""
        ...

    def usage(self, name: str, found: Replayable) -> str:
        """Return the command that replays the file of this name, once its lines were taken."""
        ...


REPLAY_TOOLS: tuple[ReplayTool, ...] = (mooncake, aiperf, guidellm, timed_trace)

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
    if format_name is None and asked:
        format_name = table.NAME
    chosen = _named(format_name) if format_name else _detect(place, head, time_unit)
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
    if head.startswith(table.ARROW_MARKS):
        return head
    if b"\x00" in head.partition(b"\n")[0]:  # further down it is one bad row
        raise TraceError(f"{place}: binary, not text", hint="A trace is UTF-8 text, or Parquet.")
    return head


def _unreadable(place: str, error: OSError) -> TraceError:
    return TraceError(
        f"{place}: {(error.strerror or str(error)).lower()}", hint="Shipped traces are in traces/."
    )


def replay_tool(name: str) -> ReplayTool:
    """Return the exporter of this name, which the command line has checked."""
    return {known.NAME: known for known in REPLAY_TOOLS}[name]


def _named(name: str) -> Format:
    by_name = {known.NAME.replace("-", "_"): known for known in FORMATS}
    found = by_name.get(name.lower().replace("-", "_"))
    if found is None:
        names = ", ".join(known.NAME for known in FORMATS)
        raise UsageError(f"no trace format {name!r}", hint=f"Known: {names}.")
    return found


def _detect(place: str, head: bytes, time_unit: TimeUnit | None) -> Format:
    for known in FORMATS[:-1]:
        if known.sniff(head):
            return known
    for refused in LOOKALIKES:
        if refused.sniff(head):
            raise TraceError(f"{place}: {refused.what}", hint=refused.hint)
    asked = TableOptions(time_unit=time_unit)
    if table.is_one(head, asked):
        return table
    if len(head.partition(b"\n")[0]) > MAX_LINE_BYTES:
        raise TraceError(
            f"{place}:1: longer than {MAX_LINE_BYTES >> 20} MiB: no row of a trace is",
            hint="Write one request a line; a list of requests in one line is no trace.",
        )
    if (refusal := table.refusal(place, head, asked)) is not None:
        raise refusal
    raise TraceError(
        f"{place}:1: not a trace format that tuner knows",
        hint="Export it as CSV or JSON lines with the time, the prompt's and the output's tokens; "
        "tuner trace import --list shows what else is read.",
    )
