"""Trace formats: one module each, and this registry.

A format is a module with ``NAME``, ``DESCRIPTION``, ``sniff(head)`` and ``read(lines, time_unit)``,
or an object with these where one module reads several that differ little.
Some can also be written, for the tools that replay them: REPLAY_TOOLS.
To add one, write its file and name it in FORMATS, before any format whose rows look like its own.
Files that look like a trace and can be none are in ``refused``.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

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
    timed_trace,
    tracelab,
    vllm_bench,
    vllm_otlp,
    weka,
)
from tuner.trace.formats.reading.record import REASONS, Row, Tally
from tuner.trace.formats.reading.refused import LOOKALIKES
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.source import Source, TimeUnit
from tuner.trace.formats.reading.trace_file import MAX_LINE_BYTES, TraceFile


class Format(Protocol):
    """A format."""

    NAME: str
    DESCRIPTION: str

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with these bytes is of this format."""
        ...

    def read(self, lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
        """Raise TraceError for a file that cannot be read at all; count single rows."""
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
        """Return the command that replays the file of this name."""
        ...


REPLAY_TOOLS: tuple[ReplayTool, ...] = (mooncake, aiperf, guidellm, timed_trace)

HEAD_BYTES = MAX_LINE_BYTES + 2
"""The longest first line there may be, whole, with its end, and one byte more."""
SIGNATURES = {
    b"\x1f\x8b": ("compressed (gzip)", "Unpack it first: gunzip -k FILE."),
    b"\x28\xb5\x2f\xfd": ("compressed (zstd)", "Unpack it first: unzstd FILE."),
    b"BZh": ("compressed (bzip2)", "Unpack it first: bunzip2 -k FILE."),
    b"\xfd7zXZ\x00": ("compressed (xz)", "Unpack it first: unxz -k FILE."),
    b"\x04\x22\x4d\x18": ("compressed (lz4)", "Unpack it first: unlz4 FILE."),
    b"PK\x03\x04": ("a zip archive, or a spreadsheet", "Unpack it, or export it as CSV."),
    b"PAR1": ("a Parquet file", "Write it as JSON lines: pandas.read_parquet(…).to_json(…)."),
    b"ARROW1": ("an Arrow file", "Write it as JSON lines or CSV first."),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV first."),
    b"\xff\xfe": ("UTF-16 text", "Convert it: iconv -f UTF-16 -t UTF-8."),
    b"\xfe\xff": ("UTF-16 text", "Convert it: iconv -f UTF-16 -t UTF-8."),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "Fetch it: git lfs pull."),
    b"<": ("a page of HTML or XML, not a trace", "Download the raw file itself."),
}


def open_trace(
    path: Path,
    *,
    format_name: str | None = None,
    time_unit: TimeUnit | None = None,
    allow_text: bool = False,
) -> tuple[Source, Tally]:
    """Open a trace for one pass in bounded memory; detect the format unless it is named.

    A file that holds text is refused, or with ``allow_text`` read without it.
    The tally is complete when the source's rows are exhausted; a trace without one usable row ends
    in TraceError.
    """
    head = _head(path)
    chosen = _named(format_name) if format_name else _detect(path, head)
    tally = Tally(str(path), bytes_total=path.stat().st_size)
    source = chosen.read(TraceFile(path, tally, allow_text=allow_text), time_unit=time_unit)
    return replace(source, rows=_at_least_one(source.rows, tally)), tally


def _at_least_one(rows: Iterator[Row], tally: Tally) -> Iterator[Row]:
    try:
        yield from rows
    except OSError as error:
        raise _unreadable(tally.place, error) from error
    if tally.rows_kept:
        return
    if not tally.rows_read:
        raise TraceError(f"{tally.place}: no rows", hint="Is the file complete?")
    reason, count = max(tally.dropped.items(), key=lambda item: item[1])
    raise TraceError(
        f"{tally.place}:{tally.first_line[reason]}: none of {tally.rows_read:,} rows can be used; "
        f"{count:,} of them {reason}: {REASONS[reason]}",
        hint="docs/traces.md says what to do; or tuner trace import --format NAME names another.",
    )


def _head(path: Path) -> bytes:
    """Return the file's first bytes; raise TraceError when they cannot be text."""
    try:
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: not a regular file", hint="Write the trace to a file first.")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise _unreadable(str(path), error) from error
    if not head.strip():
        raise TraceError(f"{path}: empty", hint="Capture or import a trace first.")
    for signature, (what, cure) in SIGNATURES.items():
        if head.startswith(signature):
            raise TraceError(f"{path}: {what}", hint=cure)
    if b"\x00" in head.partition(b"\n")[0]:  # further down it is one bad row
        raise TraceError(f"{path}: binary, not text", hint="A trace is UTF-8 text.")
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


def _detect(path: Path, head: bytes) -> Format:
    for known in FORMATS:
        if known.sniff(head):
            return known
    for refused in LOOKALIKES:
        if refused.sniff(head):
            raise TraceError(f"{path}: {refused.what}", hint=refused.hint)
    if len(head.partition(b"\n")[0]) > MAX_LINE_BYTES:
        raise TraceError(
            f"{path}:1: longer than {MAX_LINE_BYTES >> 20} MiB: no row of a trace is",
            hint="Write one request a line; a list of requests in one line is no trace.",
        )
    names = ", ".join(known.NAME for known in FORMATS)
    raise TraceError(
        f"{path}:1: not a trace format that tuner knows",
        hint=f"tuner trace import --format NAME, if it is one of {names}.",
    )
