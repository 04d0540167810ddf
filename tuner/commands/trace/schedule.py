"""``tuner trace import --lengths``: a concurrency schedule, made a trace of another's lengths."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tuner.commands.trace import view as trace_view
from tuner.errors import TraceError
from tuner.system.files import whole_file
from tuner.trace.formats import concurrency_schedule
from tuner.trace.formats.reading.header import TraceHeader, header_line, row_line
from tuner.trace.formats.reading.record import SERVED, Row
from tuner.trace.stream import Input, scan
from tuner.trace.trace import load
from tuner.traffic.concurrency import Holder, holding
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN
from tuner.traffic.summary import describe
from tuner.traffic.trace_warnings import trace_warnings

MAX_REQUESTS = 10_000_000
"""A day of a hundred requests a second: a damaged schedule may ask for any number."""


def import_(schedule: Path, lengths: Path, output: Path, *, model: str | None, force: bool) -> None:
    """Write a trace that holds a schedule's concurrency. Raises TraceError, TargetError."""
    ticks = concurrency_schedule.read(schedule)
    served = [
        (one.input_length, one.output_length)
        for one in load(lengths).requests
        if one.status in SERVED and one.output_length
    ]
    if not served:
        raise TraceError(f"{lengths}: no request was served", hint="Take lengths from another.")
    note = (
        f"synthetic: lengths of {lengths.name}, arrivals that hold the concurrency of a schedule "
        f"at {S_PER_OUTPUT_TOKEN * 1000:g} ms an output token and "
        f"{S_PER_PROMPT_TOKEN * 1000:g} ms a prompt token; with --closed-sessions a slower engine "
        f"holds it too"
    )
    rows = _count(ticks, served, schedule)
    header = TraceHeader(
        source=concurrency_schedule.NAME,
        model=model,
        rows_read=rows,
        rows_kept=rows,
        missing=("aborts", "errors", "prefixes"),
        notes=(note,),
    )
    with whole_file(output, force=force) as out:
        out.write(header_line(header))
        out.writelines(row_line(_row(one)) for one in holding(ticks, served))
    scanned = scan(Input(output), lambda _: None)
    traffic = describe(scanned.columns)
    warnings = (*scanned.header.notes, *trace_warnings(scanned.columns, traffic, scanned.header))
    trace_view.print_written(output, traffic, scanned.header, warnings)


def _count(
    ticks: Sequence[concurrency_schedule.Tick], served: Sequence[tuple[int, int]], schedule: Path
) -> int:
    count = sum(1 for _ in islice(holding(ticks, served), MAX_REQUESTS + 1))
    if count > MAX_REQUESTS:
        raise TraceError(
            f"{schedule}: more than {MAX_REQUESTS:,} requests would hold it",
            hint="Shorten it, or take the lengths of longer requests.",
        )
    return count


def _row(one: Holder) -> Row:
    session = f"s{one.place}"
    return Row(
        timestamp=round(one.at_s * 1000, 3),
        input_length=one.input_length,
        output_length=one.output_length,
        e2e_ms=round(one.lasts_s * 1000, 3),
        request_id=f"{session}:{one.turn}",
        session_id=session,
        turn=one.turn,
        parent_id=f"{session}:{one.turn - 1}" if one.turn else None,
    )
