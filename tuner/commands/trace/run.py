"""Run ``tuner trace``, once its options are read."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tuner.commands.trace.options import TraceCutOptions, TraceImportOptions, TraceShowOptions
from tuner.errors import TraceError, UsageError
from tuner.system.files import whole_file
from tuner.trace.columns import Columns
from tuner.trace.reading import read
from tuner.trace.trace import Trace, join
from tuner.trace.values import date_ms
from tuner.traffic.description import describe, stretch
from tuner.traffic.schedule import scheduled
from tuner.traffic.window import busiest, parse_duration_s, parse_window
from tuner.views.text import print_json, print_page
from tuner.views.trace import TraceReport, trace_json, trace_page

SEED = 0
"""Of what is drawn: the same trace every time."""

BUSIEST_S = 60.0
"""Length of the busiest part, unless the user names one."""

ONLY_FOR = {
    "Prometheus": ("from_", "to", "selector"),
    "concurrency schedule": ("lengths",),
    "file": ("format_name", "time_unit", "columns", "spread_ticks", "allow_text"),
}
"""Kind of source → options that only it has."""


def show(options: TraceShowOptions) -> None:
    """Show a trace. Raises TraceError, UsageError."""
    trace = read(options.file, options)
    report = _report(str(options.file), trace)
    traffic, columns = report.traffic, trace.columns
    if options.window or (traffic.served and traffic.duration_s >= 2 * BUSIEST_S):
        start_s, length_s = _part(columns, options.window or "busiest")
        part = stretch(columns, start_s=start_s, length_s=length_s)
        if part is None:
            first_s, last_s = columns.arrival_s[[0, -1]]
            raise TraceError(
                f"{report.place}: no request was served in {start_s:g}s+{length_s:g}s",
                hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
            )
        report = replace(report, part=part)
    if options.json:
        print_json(trace_json(report))
    else:
        print_page(trace_page(report), details=True)


def import_(options: TraceImportOptions) -> None:
    """Write a trace in tuner's own form. Raises InputError, UsageError."""
    with whole_file(options.output, force=options.force) as out:
        trace = _imported(options)
        tick_ms = describe(trace.columns).tick_ms if options.spread_ticks else None
        if tick_ms is not None:
            trace = trace.spread(tick_ms, SEED)
        elif options.spread_ticks:
            warning = "arrivals lie on no grid: nothing to spread"
            trace = replace(trace, warnings=(*trace.warnings, warning))
        out.writelines(trace.lines())
    print_page(trace_page(_report(str(options.output), trace)), details=True)


def cut(options: TraceCutOptions) -> None:
    """Write a part of a trace. Raises InputError, UsageError."""
    if options.window is None and options.replica is None:
        raise UsageError("nothing to cut", hint="Give --window or --replica.")
    with whole_file(options.output, force=options.force) as out:
        trace = read(options.file)
        columns = trace.columns
        if options.window is not None:
            trace = trace.cut(*_part(columns, options.window))
        if options.replica is not None:
            trace = trace.of_replica(_replica(columns, options.replica))
        out.writelines(trace.lines())
    print_page(trace_page(_report(str(options.output), trace)), details=True)


def _report(place: str, trace: Trace) -> TraceReport:
    """Return what there is to show, with what each of several recorded servers got."""
    columns = trace.columns
    report = TraceReport(place, trace, describe(columns))
    if not columns.replica.max() > columns.replica.min() >= 0:
        return report
    number, counts = _busiest(columns)
    busiest_traffic = describe(columns.take(columns.replica == number))
    return replace(report, replicas=counts, busiest=busiest_traffic)


def _imported(options: TraceImportOptions) -> Trace:
    """Return the trace of a file, of the files of a recording, of a Prometheus or of a schedule."""
    first, *more = options.sources
    kind = "recording" if more else "file"
    if "://" in first:
        kind = "Prometheus"
    elif options.lengths is not None:
        kind = "concurrency schedule"
    for only, names in ONLY_FOR.items():
        for name in names if only != kind else ():
            if getattr(options, name):
                option = name.removesuffix("_name").strip("_").replace("_", "-")
                cure = "Leave it out."
                raise UsageError(f"--{option} is for a {only}, not a {kind}", hint=cure)
    if more and kind != "recording":
        raise UsageError("only the files of a recording are joined", hint="Import one at a time.")
    if kind == "file":
        return read(Path(first), options)
    if options.lengths is not None:
        return scheduled(Path(first), options.lengths)
    if kind == "recording":
        return join([Path(source) for source in options.sources])
    from tuner.capture import prometheus  # noqa: PLC0415 - loads the recorder

    begin_s, end_s = _moment_s(options.from_ or "1h", "--from"), _moment_s(options.to, "--to")
    return prometheus.read(first, begin_s, end_s, options.selector or "", seed=SEED)


def _moment_s(text: str | None, option: str) -> float:
    """Read a date, seconds since 1970 or how long ago, as seconds since 1970; None is now."""
    at_ms = date_ms(text)
    if at_ms is not None:
        return at_ms / 1000
    ago_s = (
        0.0
        if text is None
        else parse_duration_s(text, option=f"{option} (a date, or how long ago)")
    )
    return datetime.now(UTC).timestamp() - ago_s


def _part(columns: Columns, window: str) -> tuple[float, float]:
    """Return start and length of ``busiest``, ``busiest+LEN`` or ``START+LEN``. Raises
    UsageError."""
    name, plus, length = window.partition("+")
    if name == "busiest":
        length_s = parse_duration_s(length, option="--window") if plus else BUSIEST_S
        return busiest(columns.arrival_s, columns.tokens(), length_s), length_s
    part = parse_window(window)
    if part is None:
        raise UsageError(
            f"--window {window}: that is no part of the trace, but all of it",
            hint="Leave --window out, or write busiest+10m or START+LEN (120s+60s).",
        )
    return part


def _replica(columns: Columns, name: str) -> int:
    """Return the number of a recorded server; of ``busiest`` that with the most tokens."""
    if name == "busiest" and columns.replica.max() >= 0:
        return _busiest(columns)[0]
    if re.fullmatch("[0-9]{1,9}", name):
        return int(name)
    raise UsageError(
        f"--replica {name!r}: no number, or nothing shows which server got which request",
        hint="Write busiest or a number; or route it: tuner sweep --replicas N --router least.",
    )


def _busiest(columns: Columns) -> tuple[int, tuple[int, ...]]:
    """Return the recorded server with the most tokens, and how many requests each got."""
    numbers, places = np.unique(columns.replica, return_inverse=True)
    tokens = np.where(numbers < 0, -1, np.bincount(places, weights=columns.tokens()))
    return int(numbers[tokens.argmax()]), tuple(np.bincount(places).tolist())
