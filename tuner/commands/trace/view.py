"""Render a trace that was written; every view of a trace shares these lines."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tuner.commands.shared.console import console_for, shown
from tuner.trace.record import TraceHeader
from tuner.traffic.summary import TrafficSummary

LIST_WIDTH = 130


def print_written(
    path: Path, traffic: TrafficSummary, header: TraceHeader, warnings: Sequence[str]
) -> None:
    console = console_for()
    console.print(f"{shown(str(path))}: {headline(traffic)}", soft_wrap=True)
    console.print(rows_line(header))
    for note in header.notes:
        if note not in warnings:
            console.print(f"note: {shown(note)}", soft_wrap=True)
    print_warnings(console, warnings)


def headline(traffic: TrafficSummary) -> str:
    """Return the line at which a wrong unit of time shows at once."""
    rate, tick = traffic.arrival_rate_rps, traffic.tick_ms
    return (
        f"{requests(traffic.requests)} over {traffic.duration_s / 3600:,.4g} h "
        f"({traffic.duration_s:,.1f}s), "
        f"{'all at one time' if rate is None else f'{rate:,.4g} req/s'}, "
        f"tick {'none' if tick is None else f'{tick:,.4g} ms'}"
    )


def requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def rows_line(header: TraceHeader) -> str:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in header.dropped.items())
    return f"rows: {header.rows_read:,} read, {header.rows_kept:,} kept" + (
        f", dropped: {shown(dropped)}" if dropped else ""
    )


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        console.print(f"[yellow]Warning:[/] {shown(warning)}", soft_wrap=True)


def print_formats() -> None:
    """Print every format with what marks its files."""
    from tuner.trace.formats import FORMATS, TABLE  # noqa: PLC0415 - loads pyarrow

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("format", "what it is", "known by"):
        table.add_column(heading)
    for known in (*FORMATS, TABLE):
        table.add_row(known.name, shown(known.says), shown(known.mark))
    console_for(at_least=LIST_WIDTH).print(table)
