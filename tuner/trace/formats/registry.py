"""Trace formats: one module each, and this registry.

A format is a module with ``NAME``, ``DESCRIPTION``, ``MARK``, ``sniff(head)`` and ``read(lines)``,
or an object with these where one module reads several that differ little. Some can also be written,
for the tools that replay them: REPLAY_TOOLS.

To add one, write its file and name it in FORMATS, before any format whose rows look like its own.
Files that look like a trace and can be none are in ``refused``.
"""

from collections.abc import Iterator
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
    table,
    timed_trace,
    tracelab,
    vllm_bench,
    vllm_otlp,
    weka,
)
from tuner.trace.formats.reading.header import TimeUnit
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


def replay_tool(name: str) -> ReplayTool:
    """Return the exporter of this name, which the command line has checked."""
    return {known.NAME: known for known in REPLAY_TOOLS}[name]


def named(name: str) -> Format:
    """Return the format that the user names. Raises UsageError."""
    by_name = {known.NAME.replace("-", "_"): known for known in FORMATS}
    found = by_name.get(name.lower().replace("-", "_"))
    if found is None:
        names = ", ".join(known.NAME for known in FORMATS)
        raise UsageError(f"no trace format {name!r}", hint=f"Known: {names}.")
    return found


def detect(place: str, head: bytes, time_unit: TimeUnit | None) -> Format:
    """Return the format of a file that begins with these bytes. Raises TraceError."""
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
