"""Run ``tuner trace``, once its options are read."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from tuner.commands.shared.console import shown
from tuner.commands.shared.output import print_json
from tuner.commands.trace import collected
from tuner.commands.trace import report as trace_report
from tuner.commands.trace import view as trace_view
from tuner.commands.trace.options import (
    TraceCutOptions,
    TraceExportOptions,
    TraceImportOptions,
    TraceShowOptions,
)
from tuner.errors import TraceError, UsageError
from tuner.system.files import resolve, whole_file
from tuner.trace.columns import Columns, columns_of
from tuner.trace.formats.reading.record import Tally
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.trace_file import (
    STDIN,
    TableOptions,
    columns_asked,
    delimiter_asked,
)
from tuner.trace.parts import drop_longer, only_replica
from tuner.trace.stream import (
    Draft,
    HeldPart,
    Input,
    Tell,
    TickSpread,
    convert,
    excerpt,
    in_order,
    scan,
    since,
    stdin_input,
)
from tuner.trace.trace import Trace, lines_of
from tuner.traffic.arrivals import busiest
from tuner.traffic.likeness import MIN_PARTS, Likeness, likeness
from tuner.traffic.routing import assign
from tuner.traffic.summary import TrafficSummary, describe
from tuner.traffic.trace_warnings import trace_warnings
from tuner.traffic.window import parse_duration_s

BUSIEST = "60s"
"""Length of the busiest part, unless the user says it."""

UNKNOWN_REPLICAS = 0.05
"""Share of the served requests that may lack a replica where the others have one."""


def _input(options: TraceShowOptions | TraceImportOptions | TraceCutOptions) -> Input:
    """Return the trace file that the options name, and how it is read. Raises UsageError."""
    asked = TableOptions(
        columns={} if options.columns is None else columns_asked(options.columns),
        delimiter=None if options.delimiter is None else delimiter_asked(options.delimiter),
    )
    if asked and options.format_name not in (None, "table"):
        raise UsageError(
            f"--columns and --delimiter are of tables, not of --format {options.format_name}",
            hint="Leave one of them out.",
        )
    is_stdin = str(options.file) == "-"
    return Input(
        stdin_input() if is_stdin else options.file,
        options.format_name,
        options.time_unit,
        asked=asked,
        name=STDIN if is_stdin else None,
    )


def show(options: TraceShowOptions) -> None:
    file = _input(options)
    asked = _start_and_length(options)
    with _telling(f"reading {file.name or file.path.name}") as tell:
        scanned = scan(file, tell)
    columns = scanned.columns
    traffic = describe(columns)
    report = trace_report.TraceReport(
        place=file.place,
        header=scanned.header,
        traffic=traffic,
        arrival_s=columns.arrival_s,
        part=_likeness(columns, asked or _busiest(columns, options), file.place)
        if asked is not None or options.length is not None or _has_parts(traffic)
        else None,
        warnings=(*scanned.warnings, *trace_warnings(columns, traffic, scanned.header)),
        shares=_shares(columns, options),
    )
    if options.json:
        print_json(trace_report.json_of(report))
    else:
        trace_report.print_report(report)


def import_(options: TraceImportOptions) -> None:
    if len(options.sources) > 1 or collected.is_address(options.sources[0]):
        collected.import_(options)
        return
    if options.from_ or options.to or options.selector:
        raise UsageError(
            "--from, --to and --selector are for a Prometheus",
            hint="Give its address: tuner trace import http://prometheus:9090 -o trace.jsonl",
        )
    if options.lengths is not None:
        _import_schedule(options, options.lengths)
        return
    file, output = replace(_input(options), allow_text=options.allow_text), options.output
    with (
        whole_file(output, force=options.force) as out,
        TemporaryFile(dir=resolve(output).parent) as beside,
    ):
        draft = Draft(beside)
        with _telling(f"reading {file.name or file.path.name}") as tell:
            scanned = scan(file, tell, draft=draft)
        if options.model is not None:
            scanned = replace(scanned, header=replace(scanned.header, model=options.model))
        traffic = describe(scanned.columns)
        warnings = list(scanned.warnings)
        spread = None
        if options.spread_ticks and traffic.tick_ms is None:
            warnings.append("arrivals lie on no grid: nothing to spread")
        elif options.spread_ticks and traffic.tick_ms is not None:
            spread = TickSpread(traffic.tick_ms, options.seed)
            traffic = replace(traffic, tick_ms=None)
        with _telling(f"writing {output.name}") as tell:
            convert(file, scanned, out, tell, spread=spread, draft=draft)
    warnings += trace_warnings(scanned.columns, traffic, scanned.header)
    trace_view.print_written(output, traffic, scanned.header, warnings)


def _import_schedule(options: TraceImportOptions, lengths: Path) -> None:
    of_file = (options.format_name, options.time_unit, options.columns, options.delimiter)
    if any(of_file) or options.spread_ticks:
        raise UsageError(
            "--lengths takes no --format, --columns, --delimiter, --time-unit or --spread-ticks",
            hint="A schedule has one form; leave them out.",
        )
    from tuner.commands.trace import schedule  # noqa: PLC0415 - loads what servers record with

    schedule.import_(
        options.file, lengths, options.output, model=options.model, force=options.force
    )


def export(options: TraceExportOptions) -> None:
    """Write a trace as a replay tool reads it. Raises TraceError, TargetError."""
    from tuner.trace.formats.registry import replay_tool  # noqa: PLC0415 - all formats: 50 modules

    trace, output = options.trace, options.output
    exporter, file = replay_tool(options.format_name), Input(trace)
    with whole_file(output, force=options.force) as out:
        with _telling(f"reading {trace.name}") as tell:
            scanned = scan(file, tell)
        with _telling(f"writing {output.name}") as tell:
            found = Replayable(
                (row for batch in in_order(file, scanned, tell) for row in batch.rows()),
                block_size=scanned.header.block_size,
                wanted=exporter.EXPORTED_BLOCK_SIZE,
            )
            out.writelines(exporter.export(found))
        if not found.requests:
            raise TraceError(
                f"{trace}: no request was served", hint="There is nothing to replay in it."
            )
    usage = exporter.usage(shlex.quote(output.name), found)
    trace_view.print_exported(output, found, usage, (*scanned.warnings, *found.notes()))


def cut(options: TraceCutOptions) -> None:
    file, output = _input(options), options.output
    asked = _start_and_length(options)
    held = None if asked is None else HeldPart(*asked)
    with whole_file(output, force=options.force) as out:
        with _telling(f"reading {file.name or file.path.name}") as tell:
            scanned = scan(file, tell, draft=held)
        start_s, length_s = asked or _wanted(scanned.columns, options)
        with _telling(f"cutting {file.name or file.path.name}") as tell:
            found = excerpt(file, scanned, tell, start_s=start_s, length_s=length_s, held=held)
        if options.window is not None:
            found = since(found, start_s=start_s, length_s=length_s)
        if options.replica is None and options.max_model_len is None:
            header, columns = found.header, found.columns()
            out.writelines(found.lines())
        else:
            trace = _chosen(found.trace(), scanned.columns, options)
            header = trace.header
            columns = columns_of(trace.requests, block_size=header.block_size)
            out.writelines(lines_of(trace))
    traffic = describe(columns)
    warnings = (*scanned.warnings, *trace_warnings(columns, traffic, header))
    trace_view.print_written(output, traffic, header, warnings)


def _chosen(trace: Trace, columns: Columns, options: TraceCutOptions) -> Trace:
    if options.replica is not None:
        trace = only_replica(trace, _replica(columns, options.replica))
    if options.max_model_len is not None:
        trace = drop_longer(trace, max_model_len=options.max_model_len)
    return trace


def _start_and_length(
    options: TraceShowOptions | TraceCutOptions,
) -> tuple[float, float] | None:
    """Return the part in seconds; None for the busiest."""
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
    zero = start.strip() in {"0", "0s"}
    return (
        0.0 if zero else parse_duration_s(start, option="--window"),
        parse_duration_s(length, option="--window"),
    )


def _has_parts(traffic: TrafficSummary) -> bool:
    """Whether the busiest part, unless the user says its length, is no more than one of some."""
    least_s = MIN_PARTS * parse_duration_s(BUSIEST, option="--length")
    return traffic.served > 0 and traffic.duration_s >= least_s


def _likeness(columns: Columns, start_and_length: tuple[float, float], place: str) -> Likeness:
    start_s, length_s = start_and_length
    found = likeness(columns, start_s=start_s, length_s=length_s)
    if found is None:
        first_s, last_s = columns.arrival_s[[0, -1]]
        raise TraceError(
            f"{place}: no request was served in {start_s:g}s+{length_s:g}s",
            hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
        )
    return found


def _busiest(columns: Columns, options: TraceShowOptions | TraceCutOptions) -> tuple[float, float]:
    length_s = parse_duration_s(options.length or BUSIEST, option="--length")
    start_s, _ = busiest(columns.arrival_s, columns.tokens_before(), length_s)
    return start_s, length_s


def _wanted(columns: Columns, options: TraceCutOptions) -> tuple[float, float]:
    """Return the busiest part, or, where none is asked for, all there is."""
    if options.window is not None:
        return _busiest(columns, options)
    if options.replica is None and options.max_model_len is None:
        raise UsageError("nothing to cut", hint="Give --window, --replica or --max-model-len.")
    if options.length is not None:
        raise UsageError("--length is of the busiest part", hint="Add --window busiest.")
    return 0.0, float(columns.arrival_s[-1]) + 1.0


def _replica(columns: Columns, asked: str) -> int:
    """Return the number of a recorded server; of ``busiest`` that which was asked for most."""
    if asked.isascii() and asked.isdecimal() and len(asked) < 10:
        return int(asked)
    if asked != "busiest":
        numbers = np.unique(columns.replica[columns.replica >= 0])[:20]
        there = ", ".join(map(str, numbers.tolist())) or "none"
        raise UsageError(
            f"--replica {asked!r} is no number", hint=f"Write busiest or a number; there: {there}."
        )
    known = columns.replica >= 0
    if not known.any():
        raise UsageError(
            "--replica busiest: the trace does not say which server got which request",
            hint="Route it: tuner sweep --replicas N --router least.",
        )
    numbers, places = np.unique(columns.replica[known], return_inverse=True)
    return int(numbers[np.bincount(places, weights=columns.tokens()[known]).argmax()])


def _shares(columns: Columns, options: TraceShowOptions) -> trace_report.Shares | None:
    """Return what the replicas get, and the traffic of the one that is asked for most tokens.

    Where the trace knows its replicas, and none are asked for, its own; None for a single one.
    """
    if options.replicas > 1:
        router: str = options.router
        count = options.replicas
        chosen = assign(columns, replicas=count, router=options.router, seed=options.seed)
    else:
        unknown = int((columns.served & (columns.replica < 0)).sum())
        if columns.replica.max() < 0 or unknown > UNKNOWN_REPLICAS * columns.served.sum():
            return None
        names, chosen = np.unique(columns.replica, return_inverse=True)
        if len(names) == 1:
            return None
        router, count = "as recorded", len(names)
    requests = np.bincount(chosen, minlength=count)
    tokens = np.bincount(chosen, weights=columns.tokens(), minlength=count)
    busiest_one: TrafficSummary = describe(columns.take(chosen == tokens.argmax()))
    return trace_report.Shares(router, tuple(requests.tolist()), busiest_one)


@contextmanager
def _telling(what: str) -> Iterator[Tell]:
    """Show how far the reading is, how fast, and what it dropped; on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()),
        *(TextColumn("{task.fields[rows]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(shown(what), total=1.0, rows="")

        def tell(tally: Tally) -> None:
            lasted_s = progress.tasks[task].elapsed or 0.0
            rate = f", {tally.rows_read / lasted_s:,.0f} rows/s" if lasted_s else ""
            dropped = tally.rows_read - tally.rows_kept
            progress.update(
                task,
                completed=tally.bytes_read / max(1, tally.bytes_total),
                rows=f"{tally.rows_read:,} rows{rate}"
                + (f", {dropped:,} dropped" if dropped else ""),
            )

        yield tell
