"""Run ``tuner trace``, once its options are read."""

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tuner.commands.trace.options import (
    FileOptions,
    TraceCutOptions,
    TraceImportOptions,
    TraceShowOptions,
)
from tuner.errors import TraceError, UsageError
from tuner.system import interruption
from tuner.system.files import whole_file
from tuner.trace.columns import Columns
from tuner.trace.files import STDIN
from tuner.trace.guess import Asked, columns_asked
from tuner.trace.reading import read
from tuner.trace.trace import Trace
from tuner.traffic.sampling import Stretch, busiest, stretch
from tuner.traffic.schedule import scheduled
from tuner.traffic.summary import describe
from tuner.traffic.window import parse_duration_s, parse_window
from tuner.views.text import print_json, print_page
from tuner.views.trace import Shares, TraceReport, trace_json, trace_page, written_page

SEED = 0
"""Of what is drawn: the same trace every time."""

BUSIEST_S = 60.0
"""Length of the busiest part, unless the user names one."""

UNKNOWN_REPLICAS = 0.05
"""Share of the served requests that may lack a replica where the others have one."""


def show(options: TraceShowOptions) -> None:
    """Show a trace. Raises TraceError, UsageError."""
    chosen = _part(options.window)
    trace = _read(options)
    columns = trace.columns
    traffic = describe(columns)
    has_parts = traffic.served > 0 and traffic.duration_s >= 2 * BUSIEST_S
    part: Stretch | None = None
    if chosen is not None or options.window != "busiest" or has_parts:
        start_s, length_s = chosen or _busiest(columns, options.window)
        part = stretch(columns, start_s=start_s, length_s=length_s)
        if part is None:
            first_s, last_s = columns.arrival_s[[0, -1]]
            raise TraceError(
                f"{_place(options.file)}: no request was served in {start_s:g}s+{length_s:g}s",
                hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
            )
    report = TraceReport(_place(options.file), trace, traffic, part, _shares(columns))
    if options.json:
        print_json(trace_json(report))
    else:
        print_page(trace_page(report), details=True)


def import_(options: TraceImportOptions) -> None:
    """Write a trace in tuner's own form. Raises TraceError, TargetError, UsageError."""
    with whole_file(options.output, force=options.force) as out:
        trace = _collected(options)
        tick_ms = describe(trace.columns).tick_ms if options.spread_ticks else None
        if tick_ms is not None:
            trace = trace.spread(tick_ms, SEED)
        elif options.spread_ticks:
            trace = trace.warned("arrivals lie on no grid: nothing to spread")
        out.writelines(trace.lines())
    traffic = describe(trace.columns)
    if tick_ms is not None:
        traffic = replace(traffic, tick_ms=None)
    print_page(written_page(TraceReport(str(options.output), trace, traffic)), details=True)


def cut(options: TraceCutOptions) -> None:
    """Write a part of a trace. Raises TraceError, TargetError, UsageError."""
    chosen = _part(options.window)
    if options.window is None and options.replica is None and options.max_model_len is None:
        raise UsageError("nothing to cut", hint="Give --window, --replica or --max-model-len.")
    with whole_file(options.output, force=False) as out:
        trace = _read(FileOptions(file=options.file))
        columns = trace.columns
        if options.window is not None:
            start_s, length_s = chosen or _busiest(columns, options.window)
            trace = trace.cut(start_s, length_s)
        if options.replica is not None:
            trace = trace.of_replica(_replica(columns, options.replica))
        if options.max_model_len is not None:
            trace = trace.no_longer_than(options.max_model_len)
        out.writelines(trace.lines())
    report = TraceReport(str(options.output), trace, describe(trace.columns))
    print_page(written_page(report), details=True)


def _place(file: Path) -> str:
    return STDIN if str(file) == "-" else str(file)


def _read(options: FileOptions | TraceImportOptions, *, allow_text: bool = False) -> Trace:
    """Read the trace that the options name."""
    wanted = Asked(
        format_name=options.format_name,
        time_unit=options.time_unit,
        columns={} if options.columns is None else columns_asked(options.columns),
        allow_text=allow_text,
        name=_place(options.file),
    )
    return read(_regular(options.file), wanted)


def _regular(file: Path) -> Path:
    """Return the file, or one that holds all of standard input until the process ends."""
    if _place(file) != STDIN:
        return file
    descriptor, name = tempfile.mkstemp(prefix="tuner-stdin-")
    path = Path(name)
    interruption.ends_with_us(partial(path.unlink, missing_ok=True))
    with os.fdopen(descriptor, "wb") as copy:
        try:
            shutil.copyfileobj(sys.stdin.buffer, copy, 2**20)
        except OSError as problem:
            raise TraceError(
                f"stdin: cannot be kept in {path.parent}: {problem.strerror}",
                hint="Free some space, or name another folder with TMPDIR.",
            ) from None
    return path


def _collected(options: TraceImportOptions) -> Trace:
    """Return the trace of a file, of the files of a recording, or of a Prometheus.

    Raises UsageError, InputError.
    """
    first = options.sources[0]
    is_address = "://" in first
    is_file = len(options.sources) == 1 and not is_address and options.lengths is None
    of_file = (
        *(options.format_name, options.time_unit, options.columns),
        *(options.spread_ticks, options.allow_text),
    )
    if not is_address and any((options.from_, options.to, options.selector)):
        raise UsageError(
            "--from, --to and --selector are for a Prometheus",
            hint="Give its address: tuner trace import http://prometheus:9090 -o trace.jsonl",
        )
    if not is_file and any(of_file):
        raise UsageError(
            "--format, --time-unit, --columns, --spread-ticks and --allow-text are for one file",
            hint="Leave them out.",
        )
    if is_file:
        return _read(options, allow_text=options.allow_text)
    if len(options.sources) > 1 and (is_address or options.lengths is not None):
        raise UsageError("several sources, one of which stands alone", hint="Import one at a time.")
    if options.lengths is not None:
        return scheduled(_regular(options.file), options.lengths)
    from tuner.capture import join, prometheus  # noqa: PLC0415 - loads the recorder

    if not is_address:
        return join.join([Path(source) for source in options.sources])
    return prometheus.read(first, options.from_, options.to, options.selector or "", seed=SEED)


def _part(window: str | None) -> tuple[float, float] | None:
    """Return the part that the user names as start and length; None for the busiest. Raises
    UsageError."""
    if window is None or window.partition("+")[0] == "busiest":
        return None
    part = parse_window(window)
    if part is None:
        raise UsageError(
            f"--window {window}: that is no part of the trace, but all of it",
            hint="Leave --window out, or write busiest+10m or START+LEN (120s+60s).",
        )
    return part


def _busiest(columns: Columns, window: str) -> tuple[float, float]:
    """Return the busiest part, as long as ``busiest+LEN`` says."""
    _, plus, length = window.partition("+")
    length_s = parse_duration_s(length, option="--window") if plus else BUSIEST_S
    return busiest(columns.arrival_s, columns.tokens(), length_s), length_s


def _replica(columns: Columns, asked: str) -> int:
    """Return the number of a recorded server; of ``busiest`` that with the most tokens."""
    if asked.isascii() and asked.isdecimal() and len(asked) < 10:
        return int(asked)
    known = columns.replica >= 0
    numbers, places = np.unique(columns.replica[known], return_inverse=True)
    if asked != "busiest":
        there = ", ".join(map(str, numbers[:20].tolist())) or "none"
        raise UsageError(
            f"--replica {asked!r} is no number", hint=f"Write busiest or a number; there: {there}."
        )
    if not len(numbers):
        raise UsageError(
            "--replica busiest: the trace does not show which server got which request",
            hint="Route it: tuner sweep --replicas N --router least.",
        )
    return int(numbers[np.bincount(places, weights=columns.tokens()[known]).argmax()])


def _shares(columns: Columns) -> Shares | None:
    """Return what the recorded replicas get, and the traffic of the one with the most tokens; None
    where there is one, or too few requests know theirs."""
    if columns.replica.strides == (0,):  # nothing knows its replica
        return None
    unknown = int((columns.served & (columns.replica < 0)).sum())
    numbers, chosen = np.unique(columns.replica, return_inverse=True)
    if len(numbers) == 1 or unknown > UNKNOWN_REPLICAS * columns.served.sum():
        return None
    requests = np.bincount(chosen, minlength=len(numbers))
    tokens = np.bincount(chosen, weights=columns.tokens(), minlength=len(numbers))
    most = describe(columns.take(chosen == tokens.argmax()))
    return Shares("as recorded", tuple(requests.tolist()), most)
