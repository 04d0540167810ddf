"""Run ``tuner trace``, once its options are read."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tuner.commands.shared.console import shown
from tuner.commands.shared.output import print_json
from tuner.commands.trace import collected, report, view
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
from tuner.trace.guess import STDIN, Asked, columns_asked, delimiter_asked
from tuner.trace.raw import Tally
from tuner.trace.reading import Tell, read
from tuner.trace.trace import Trace
from tuner.traffic.arrivals import busiest
from tuner.traffic.likeness import MIN_PARTS, Likeness, likeness
from tuner.traffic.routing import assign
from tuner.traffic.summary import TrafficSummary, describe
from tuner.traffic.trace_warnings import trace_warnings
from tuner.traffic.window import parse_duration_s

BUSIEST = "60s"
"""Length of the busiest part, unless the user names one."""

UNKNOWN_REPLICAS = 0.05
"""Share of the served requests that may lack a replica where the others have one."""


def show(options: TraceShowOptions) -> None:
    """Show a trace. Raises TraceError, UsageError."""
    place, part = _place(options), _part(options)
    trace = _read(options)
    columns = trace.columns
    traffic = describe(columns)
    least_s = MIN_PARTS * parse_duration_s(BUSIEST, option="--length")
    has_parts = traffic.served > 0 and traffic.duration_s >= least_s
    if part is None and (options.length is not None or has_parts):
        part = _busiest(columns, options)
    found = report.TraceReport(
        place=place,
        header=trace.header,
        traffic=traffic,
        arrival_s=columns.arrival_s,
        part=None if part is None else _likeness(columns, part, place),
        warnings=(*trace.warnings, *trace_warnings(columns, traffic, trace.header)),
        shares=_shares(columns, options),
    )
    if options.json:
        print_json(report.json_of(found))
    else:
        report.print_report(found)


def import_(options: TraceImportOptions) -> None:
    """Write a trace in tuner's own form. Raises TraceError, TargetError, UsageError."""
    with whole_file(options.output, force=options.force) as out:
        if collected.is_wanted(options):
            trace = collected.read(options)
        else:
            trace = _read(options, allow_text=options.allow_text)
        if options.model is not None:
            trace = replace(trace, header=replace(trace.header, model=options.model))
        tick_ms = describe(trace.columns).tick_ms if options.spread_ticks else None
        if tick_ms is not None:
            trace = trace.spread(tick_ms, options.seed)
        elif options.spread_ticks:
            trace = trace.warned("arrivals lie on no grid: nothing to spread")
        out.writelines(trace.lines())
    traffic = describe(trace.columns)
    if tick_ms is not None:
        traffic = replace(traffic, tick_ms=None)
    _print_written(options.output, trace, traffic)


def cut(options: TraceCutOptions) -> None:
    """Write a part of a trace. Raises TraceError, TargetError, UsageError."""
    part = _part(options)
    if options.window is None:
        if options.replica is None and options.max_model_len is None:
            raise UsageError("nothing to cut", hint="Give --window, --replica or --max-model-len.")
        if options.length is not None:
            raise UsageError("--length is of the busiest part", hint="Add --window busiest.")
    with whole_file(options.output, force=options.force) as out:
        trace = _read(options)
        columns = trace.columns
        if options.window is not None:
            start_s, length_s = part or _busiest(columns, options)
            trace = trace.within(start_s, length_s).since(start_s, length_s)
        if options.replica is not None:
            trace = trace.of_replica(_replica(columns, options.replica))
        if options.max_model_len is not None:
            trace = trace.no_longer_than(options.max_model_len)
        out.writelines(trace.lines())
    _print_written(options.output, trace, describe(trace.columns))


def _print_written(output: Path, trace: Trace, traffic: TrafficSummary) -> None:
    warnings = (*trace.warnings, *trace_warnings(trace.columns, traffic, trace.header))
    view.print_written(output, traffic, trace.header, warnings)


def _place(options: FileOptions | TraceImportOptions) -> str:
    return STDIN if str(options.file) == "-" else str(options.file)


def _read(options: FileOptions | TraceImportOptions, *, allow_text: bool = False) -> Trace:
    """Read the trace that the options name."""
    asked = Asked(
        format_name=options.format_name,
        time_unit=options.time_unit,
        columns={} if options.columns is None else columns_asked(options.columns),
        delimiter=None if options.delimiter is None else delimiter_asked(options.delimiter),
        decimal=options.decimal,
        allow_text=allow_text,
        name=_place(options),
    )
    path = _stdin() if asked.name == STDIN else options.file
    with _telling(f"reading {options.file.name}") as tell:
        return read(path, asked, tell)


def _stdin() -> Path:
    """Return a file that holds all of standard input until the process ends."""
    descriptor, name = tempfile.mkstemp(prefix="tuner-stdin-")
    path = Path(name)
    interruption.ends_with_us(partial(path.unlink, missing_ok=True))
    with os.fdopen(descriptor, "wb") as file:
        try:
            shutil.copyfileobj(sys.stdin.buffer, file, 2**20)
        except OSError as problem:
            raise TraceError(
                f"stdin: cannot be kept in {path.parent}: {problem.strerror}",
                hint="Free some space, or name another folder with TMPDIR.",
            ) from None
    return path


def _part(options: TraceShowOptions | TraceCutOptions) -> tuple[float, float] | None:
    """Return the part that is asked for as start and length; None for the busiest."""
    if options.window is None or options.window == "busiest":
        return None
    start, plus, length = options.window.partition("+")
    if not plus:
        raise UsageError(
            f"--window: cannot read {options.window!r}",
            hint="Write busiest or START+LEN (120s+60s).",
        )
    if options.length is not None:
        raise UsageError(
            f"--window {options.window} has a length, so --length {options.length} means nothing",
            hint="Drop --length, or write --window busiest.",
        )
    is_zero = start.strip() in {"0", "0s"}
    start_s = 0.0 if is_zero else parse_duration_s(start, option="--window")
    return start_s, parse_duration_s(length, option="--window")


def _busiest(columns: Columns, options: TraceShowOptions | TraceCutOptions) -> tuple[float, float]:
    length_s = parse_duration_s(options.length or BUSIEST, option="--length")
    start_s, _ = busiest(columns.arrival_s, columns.tokens_before(), length_s)
    return start_s, length_s


def _likeness(columns: Columns, part: tuple[float, float], place: str) -> Likeness:
    found = likeness(columns, start_s=part[0], length_s=part[1])
    if found is None:
        first_s, last_s = columns.arrival_s[[0, -1]]
        raise TraceError(
            f"{place}: no request was served in {part[0]:g}s+{part[1]:g}s",
            hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
        )
    return found


def _replica(columns: Columns, asked: str) -> int:
    """Return the number of a recorded server; of ``busiest`` that which was asked for most."""
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


def _shares(columns: Columns, options: TraceShowOptions) -> report.Shares | None:
    """Return what the replicas get, and the traffic of the one that is asked for most tokens.

    Where the trace knows its replicas, and none are asked for, its own; None for a single one.
    """
    if options.replicas > 1:
        router: str = options.router
        count = options.replicas
        chosen = assign(columns, replicas=count, router=options.router, seed=0)
    else:
        unknown = int((columns.served & (columns.replica < 0)).sum())
        numbers, chosen = np.unique(columns.replica, return_inverse=True)
        if len(numbers) == 1 or unknown > UNKNOWN_REPLICAS * columns.served.sum():
            return None
        router, count = "as recorded", len(numbers)
    requests = np.bincount(chosen, minlength=count)
    tokens = np.bincount(chosen, weights=columns.tokens(), minlength=count)
    busiest_one: TrafficSummary = describe(columns.take(chosen == tokens.argmax()))
    return report.Shares(router, tuple(requests.tolist()), busiest_one)


@contextmanager
def _telling(what: str) -> Iterator[Tell]:
    """Show how far the reading is, how fast, and what it dropped; on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    bars = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    more = (TextColumn("{task.fields[rows]}"), TimeRemainingColumn())
    with Progress(*bars, *more, console=console, transient=True) as progress:
        task = progress.add_task(shown(what), total=1.0, rows="")

        def tell(tally: Tally) -> None:
            done = tally.bytes_read / max(1, tally.bytes_total)
            progress.update(task, completed=done, rows=f"{tally.rows_read:,} rows")

        yield tell
